"""A model that plays a script: replies and faults in order, each request recorded and strictly checked.

from worker.testing import ScriptedModel, call, say

with ScriptedModel([call("read_file", path="a.py"), say("It is empty.")]) as model:
    ...  # run a worker with `model`
assert model.requests[1].items[-1].type == "tool_result"
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

import anyio

from worker.errors import ModelError
from worker.ids import uuid7
from worker.items import AssistantItem, Item, ReasoningItem, ReplyItem, make_call
from worker.models.base import Capabilities, Emit, Encoder, Reply, Request, StopReason, ToolSpec, Usage
from worker.testing.function_model import COUNTED, FunctionModel, make_reply
from worker.testing.strict import InvalidItems, check_request


class ScriptError(AssertionError):
    """The script and what happened differ: a request that no step answers, or steps that no request asked for."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one request gets: items of a reply, or an error, or nothing for ever (`hangs`). Made by the functions
    below."""

    items: tuple[ReplyItem, ...] = ()
    error: Exception | None = None
    usage: Usage = COUNTED
    stop: StopReason | None = None
    hangs: bool = False


ScriptStep: TypeAlias = Step | Callable[[Request], Step]


def say(text: str) -> Step:
    """A reply of text."""
    return Step(items=(AssistantItem(text=text),))


def call(name: str, /, **arguments: Any) -> Step:
    """A reply with one call of a tool."""
    return raw_call(name, json.dumps(arguments, ensure_ascii=False))


def raw_call(name: str, arguments: str, *, cut: bool = False) -> Step:
    """A reply with one call whose argument text is taken as it is; `cut` says that the output limit ended it."""
    return Step(items=(make_call("", name, arguments, cut=cut),), stop="length" if cut else None)


def calls(parts: Iterable[Step]) -> Step:
    """A reply with several calls."""
    return reply(*parts)


def think(payload: str, text: str = "") -> Step:
    """Reasoning with an opaque payload; a part of a reply, before what it leads to."""
    return Step(items=(ReasoningItem(provider="", model="", payload=payload, text=text),))


def reply(*parts: Step, usage: Usage = COUNTED, stop: StopReason | None = None) -> Step:
    """One reply of several parts, with the usage it reports (`Usage()` for none; by default the model counts)."""
    stop = stop or next((part.stop for part in parts if part.stop), None)
    return Step(items=tuple(item for part in parts for item in part.items), usage=usage, stop=stop)


def fail(error: ModelError) -> Step:
    """No reply: the request raises this error.

    A `ModelError` (`RateLimited`, `ProviderDown`, ...; `worker.errors` has them all) is a provider's failure: retried,
    or the end of the run as `failed`. Any other exception counts as a bug of the model's code and raises out of
    `pod.run`.
    """
    return Step(error=error)


def hang() -> Step:
    """No reply and no error: the request waits until it is cancelled."""
    return Step(hangs=True)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as it arrived."""

    system: str
    tools: tuple[ToolSpec, ...]
    items: tuple[Item, ...]
    messages: bytes
    max_output_tokens: int
    cache_key: str


def _record(request: Request) -> Recorded:
    return Recorded(
        system=request.system,
        tools=request.tools,
        items=tuple(request.items),
        messages=request.messages,
        max_output_tokens=request.max_output_tokens,
        cache_key=request.cache_key,
    )


class ScriptedModel(FunctionModel):
    """Plays `steps`, one a request. A step may be a function of the request that makes the step.

    `requests` holds every request as it arrived, the refused ones too. With `strict`, a request behind the last step,
    or one that a strict provider would reject (`worker.testing.check_request`), raises an `AssertionError`; as a
    runtime may turn that into a failed run, `assert_consumed` (called when the `with` block ends well) raises the
    first one again, and also when steps are left. Without `strict` the last step is repeated, and nothing is checked.
    """

    def __init__(
        self,
        steps: Sequence[ScriptStep],
        strict: bool = True,
        capabilities: Capabilities | None = None,
        *,
        name: str = "offline:scripted",
        encoder: Encoder | None = None,
        enforce_window: bool = True,
    ) -> None:
        super().__init__(name, self._play, capabilities=capabilities, encoder=encoder, enforce_window=enforce_window)
        self.steps = tuple(steps)
        for number, step in enumerate(self.steps):
            if not (isinstance(step, Step) or callable(step)):
                ways = "say, call, calls, think, reply, fail(error), hang(), or a function of the request"
                raise TypeError(f"steps[{number}] is {step!r:.80}, and no step: {ways}")
        self.requests: list[Recorded] = []
        self._strict = strict
        self._next = 0
        self._calls = 0
        self._mark = secrets.token_hex(3)
        self._problem: AssertionError | None = None

    @property
    def consumed(self) -> int:
        """How many steps were played."""
        return self._next

    def assert_consumed(self) -> None:
        """Raises what was wrong with a request, and `ScriptError` where steps are left."""
        if self._problem is not None:
            raise self._problem
        left = len(self.steps) - self._next
        if self._strict and left > 0:
            raise ScriptError(
                f"{left} of {len(self.steps)} steps were not asked for; the next is {self.steps[self._next]}"
            )

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.assert_consumed()

    async def send(self, request: Request, emit: Emit) -> Reply:
        """The next step. Raises the step's error, `ContextOverflow`, and with `strict` an `AssertionError`."""
        self.requests.append(_record(request))
        return await super().send(request, emit)

    async def _play(self, request: Request) -> Reply:
        if self._strict:
            try:
                check_request(request, self.encoder)
            except InvalidItems as e:
                self._problem = self._problem or e
                raise
        if self._next >= len(self.steps) and (self._strict or not self.steps):
            error = ScriptError(f"request {len(self.requests)} comes after the last of {len(self.steps)} steps")
            self._problem = self._problem or error
            raise error
        step = self.steps[min(self._next, len(self.steps) - 1)]
        self._next = min(self._next + 1, len(self.steps))
        made = step if isinstance(step, Step) else step(request)
        if made.hangs:
            await anyio.sleep_forever()
        if made.error is not None:
            raise made.error
        items = tuple(self._own(item) for item in made.items)
        return make_reply(*items, usage=made.usage, stop=made.stop)

    def _own(self, item: ReplyItem) -> ReplyItem:
        if item.type == "tool_call":
            self._calls += 1
            call_id = item.call_id or f"call_{self._calls}_{self._mark}"
            return _copy(item, call_id=call_id)
        if item.type == "reasoning":
            provider, _, model = self.name.partition(":")
            return _copy(item, provider=item.provider or provider, model=item.model or model)
        return _copy(item)


def _copy(item: ReplyItem, **changes: Any) -> ReplyItem:
    # An id of its own: a step that is played twice makes two items.
    return item.model_copy(update={"id": uuid7(), **changes})
