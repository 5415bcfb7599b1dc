"""A final answer that must meet a JSON Schema or be of a type: asked for in the system prompt, checked, mended once."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from pod.errors import UsageProblem
from pod.log.files import read_file
from pod.manifest.values import is_json_object
from pod.result import RunResult
from pod.session import Session
from worker.items import OrderItem, UserItem
from worker.records import ContextAdded
from worker.results import Failed, Finished, Outcome

REPAIRS = 1
"""How often an answer that does not meet the schema is asked for again."""

_HEAD = "# The final answer\n\n"
_MEND = "Your answer does not meet the output schema"
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n?```\s*$", re.DOTALL)
_TOLD = 5
"""How many mistakes of an answer the model is told of."""


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The schema as it was read. With an `adapter` the answer is validated by the type that the schema was made of."""

    text: str
    adapter: TypeAdapter[Any] | None = None

    @classmethod
    def read(cls, given: str) -> OutputSchema:
        """Reads and checks a schema: a file, or the schema itself. Raises `UsageProblem` for what is no JSON Schema."""
        from worker.schemas import BadSchema, checked_schema

        if is_json_object(given):
            try:
                return cls(json.dumps(checked_schema(given), ensure_ascii=False))
            except BadSchema as e:
                raise UsageProblem(f"[worker] output_schema: the text {ascii(given)[:60]} {e}") from e
        try:
            schema = checked_schema(read_file(Path(given)).decode("utf-8-sig"))
        except BadSchema as e:
            raise UsageProblem(f"[worker] output_schema: {given} {e}") from e
        except (OSError, ValueError) as e:
            raise UsageProblem(f"[worker] output_schema: {given} can't be read: {e}") from e
        return cls(json.dumps(schema, ensure_ascii=False, sort_keys=True))

    @classmethod
    def of(cls, output_type: Any) -> OutputSchema:
        """The schema of a type, with its fields in their order. Raises `UsageProblem` where pydantic has none for it."""
        from worker.schemas import BadSchema, checked_schema

        label = getattr(output_type, "__name__", None) or str(output_type)[:80]
        if isinstance(output_type, list | tuple | str):
            raise UsageProblem(f"output_type={label} is no type: one of several is written A | B")
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(output_type)
            text = json.dumps(adapter.json_schema(), ensure_ascii=False)
            checked_schema(text)
        except (PydanticUserError, BadSchema, TypeError) as e:
            raise UsageProblem(f"output_type: no JSON Schema can be made of {label}: {str(e).splitlines()[0]}") from e
        return cls(text, adapter)

    def prompt(self) -> str:
        """What the system prompt says about the answer."""
        return (
            f"{_HEAD}When the task is done, your last message must be one JSON value, without any other text, that meets this "
            f"JSON Schema:\n\n{self.text}"
        )

    def check(self, answer: str) -> tuple[Any, str | None]:
        """The JSON value in an answer and None, or None and what is wrong with it."""
        found = _FENCE.search(answer.strip())
        try:
            value: Any = json.loads(found[1] if found else answer)
        except (ValueError, RecursionError) as e:
            return None, f"it is not one JSON value ({e})"
        try:
            said = self._wrong(value)
        except Exception as e:  # whatever a schema trips over, such as an answer that is nested too deep for it
            return None, f"it can't be held against the schema ({type(e).__name__}: {str(e)[:300]})"
        return (None, "; ".join(said[:_TOLD])) if said else (value, None)

    def _wrong(self, value: Any) -> list[str]:
        if self.adapter is not None:
            try:
                self._made(value)
            except ValidationError as e:
                mistakes = e.errors(include_url=False, include_context=False, include_input=False)
                return [f"{_place(each['loc'])}: {each['msg'][:300]}" for each in mistakes]
            return []
        from worker.schemas import validator_of

        errors = sorted(validator_of(json.loads(self.text)).iter_errors(value), key=lambda e: list(map(str, e.path)))
        return [f"{_place(tuple(e.path))}: {e.message[:300]}" for e in errors]

    def _made(self, value: Any) -> Any:
        """The object of the type that a JSON value stands for, read as JSON: a date is a text there, a tuple an array."""
        assert self.adapter is not None
        return self.adapter.validate_json(json.dumps(value))

    def typed(self, result: RunResult[Any]) -> RunResult[Any]:
        """A result with the output as an object of the type. Raises `UsageProblem` for one on record that is of another type."""
        if result.status != "finished":
            return result
        value, wrong = result.output, None
        if value is None:  # a compaction began a segment since the run ended: the answer is there, its output is not
            value, wrong = self.check(result.text or "")
        if self.adapter is None:
            return result.model_copy(update={"output": value})
        try:
            if wrong is None:
                return result.with_output(self._made(value), value)
        except ValidationError as e:
            first = e.errors()[0]
            wrong = f"{_place(first['loc'])}: {first['msg']}"
        raise UsageProblem(
            f"the answer on record in pod {result.pod!r} is not of this output_type ({wrong}): "
            "open the pod with the type that was asked for, or ask again"
        )

    # -- in a session -----------------------------------------------------------------------------------------

    def ask(self, session: Session) -> None:
        """Asks for it by an order, where the schema came after the segment's prompt was made."""
        if not session.state.history.unresolved and not self._asked(session):
            self._order(session, self.prompt())

    def _asked(self, session: Session) -> bool:
        """Whether this schema is the one that the model was last told of."""
        state = session.state
        orders = [item.text for item in state.history.view if isinstance(item, OrderItem) and _HEAD in item.text]
        return session.gate.own(self.prompt()) in (orders[-1] if orders else session.folder.blob(state.blobs["system"]))

    def checked(self, outcome: Finished, session: Session) -> Outcome | None:
        """The outcome with its output, or a failure; None where the answer is asked for once more."""
        value, wrong = self.check(session.gate.masked(outcome.text))
        if wrong is None:
            return Finished(outcome.text, output=value)
        if _mended(session) >= REPAIRS:
            return Failed("output_invalid", f"the answer does not meet the output schema: {wrong}", text=outcome.text)
        again = f"{_MEND}: {wrong}. Answer again with the JSON value alone."
        self._order(session, again if self._asked(session) else f"{again}\n\n{self.prompt()}")
        return None

    def _order(self, session: Session, text: str) -> None:
        order = OrderItem(text=text, tag=session.state.start.tag)
        session.put(ContextAdded(items=(order,), by="output_schema"))


def _place(path: tuple[int | str, ...]) -> str:
    return "/".join(map(str, path)) or "the value"


def _mended(session: Session) -> int:
    """How often an answer to the newest input was asked for again."""
    count = 0
    for item in reversed(session.state.history.view):
        if isinstance(item, UserItem):
            break
        count += isinstance(item, OrderItem) and item.text.startswith(_MEND)
    return count
