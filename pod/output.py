"""A final answer that must meet a JSON Schema: asked for in the system prompt, checked, mended once."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pod.errors import UsageProblem
from pod.log.files import read_file
from pod.session import Session
from worker.items import OrderItem, UserItem
from worker.records import ContextAdded
from worker.results import Failed, Finished, Outcome

REPAIRS = 1
"""How often an answer that does not meet the schema is asked for again."""

_MEND = "Your answer does not meet the output schema"
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n?```\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The schema as it was read."""

    text: str

    @classmethod
    def read(cls, path: str) -> OutputSchema:
        """Reads and checks a schema. Raises `UsageProblem` where the file is no JSON Schema."""
        from worker.schemas import BadSchema, checked_schema

        try:
            schema = checked_schema(read_file(Path(path)).decode("utf-8-sig"))
        except BadSchema as e:
            raise UsageProblem(f"[worker] output_schema: {path} {e}") from e
        except (OSError, ValueError) as e:
            raise UsageProblem(f"[worker] output_schema: {path} can't be read: {e}") from e
        return cls(json.dumps(schema, ensure_ascii=False, sort_keys=True))

    def prompt(self) -> str:
        """What the system prompt says about the answer."""
        return (
            "# The final answer\n\nWhen the task is done, your last message must be one JSON value, without any other text, that meets this "
            f"JSON Schema:\n\n{self.text}"
        )

    def check(self, answer: str) -> tuple[Any, str | None]:
        """The value in an answer and None, or None and what is wrong with it."""
        from worker.schemas import validator_of

        found = _FENCE.search(answer.strip())
        try:
            value: Any = json.loads(found[1] if found else answer)
        except (ValueError, RecursionError) as e:
            return None, f"it is not one JSON value ({e})"
        schema: Any = json.loads(self.text)
        try:
            errors = sorted(validator_of(schema).iter_errors(value), key=lambda e: list(map(str, e.path)))
        except Exception as e:  # whatever a schema trips over, such as an answer that is nested too deep for it
            return None, f"it can't be held against the schema ({type(e).__name__}: {str(e)[:300]})"
        if not errors:
            return value, None
        said = [f"{'/'.join(str(p) for p in e.path) or 'the value'}: {e.message[:300]}" for e in errors[:5]]
        return None, "; ".join(said)

    # -- in a session -----------------------------------------------------------------------------------------

    def ask(self, session: Session) -> None:
        """Asks for it by an order, where the schema came after the segment's prompt was made."""
        state, text = session.state, self.prompt()
        if state.history.unresolved or text in session.folder.blob(state.blobs["system"]):
            return
        if not any(isinstance(item, OrderItem) and item.text == text for item in state.history.view):
            self._order(session, text)

    def checked(self, outcome: Finished, session: Session) -> Outcome | None:
        """The outcome with its output, or a failure; None where the answer is asked for once more."""
        value, wrong = self.check(outcome.text)
        if wrong is None:
            return Finished(outcome.text, output=value)
        if _mended(session) >= REPAIRS:
            return Failed("output_invalid", f"the answer does not meet the output schema: {wrong}", text=outcome.text)
        self._order(session, f"{_MEND}: {wrong}. Answer again with the JSON value alone.")
        return None

    def _order(self, session: Session, text: str) -> None:
        order = OrderItem(text=text, tag=session.state.start.tag)
        session.put(ContextAdded(items=(order,), by="output_schema"))


def _mended(session: Session) -> int:
    """How often an answer to the newest input was asked for again."""
    count = 0
    for item in reversed(session.state.history.view):
        if isinstance(item, UserItem):
            break
        count += isinstance(item, OrderItem) and item.text.startswith(_MEND)
    return count
