"""The hooks of an open pod, asked one after another; each answer is on record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread

from pod.hooks.answers import HEARD, Answer, Block, Broken, GoOn, of_code, plain
from pod.hooks.define import TOOL_EVENTS, Hook
from pod.hooks.inputs import HookInput, Mask, Stop, told
from pod.hooks.program import run_program
from pod.log import entries as e
from pod.session import Session
from worker.items import ContextItem
from worker.records import ContextAdded

BY = "hooks"
"""By whom notices of hooks are added to the view."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A hook blocked, and why: in its own words, or what went wrong with it."""

    hook: Hook
    reason: str

    def __str__(self) -> str:
        return f"the hook {self.hook.label!r} ({self.hook.event}) {self.reason}"


@dataclass(frozen=True, slots=True)
class Heard:
    """What the hooks of an event said. `notices` are for the model."""

    refusal: Refusal | None = None
    notices: tuple[str, ...] = ()


@dataclass
class Hooks:
    """Asks hooks in their order. `mask` takes secrets out of what they are told and of what they say; `owner` marks their
    processes.
    """

    session: Session
    cwd: Path
    defined: Sequence[Hook] = ()
    mask: Mask = str
    stops: Callable[[str], int] = lambda _: 0
    _events: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._events = frozenset(hook.event for hook in self.defined)

    def about(self, event: str, tool: str = "") -> list[Hook]:
        """The hooks that an event concerns."""
        if event not in self._events:
            return []
        return [
            hook
            for hook in self.defined
            if hook.event == event and (event not in TOOL_EVENTS or fnmatchcase(tool, hook.match))
        ]

    @property
    def starts_programs(self) -> bool:
        """Whether a hook is a program."""
        return any(hook.command for hook in self.defined)

    async def ask(self, given: HookInput, *, run: str | None = None) -> Heard:
        """Asks each hook of the event. One that blocks ends the round, except after something was done: there each is heard.

        Cancelled, the program that runs is ended, and nothing of it is on record.
        """
        tool, call_id = str(getattr(given, "tool", "")), str(getattr(given, "call_id", ""))
        state, after = self.session.state, given.event.startswith("Post")
        refusal: Refusal | None = None
        notices: list[str] = []
        for hook in self.about(given.event, tool):
            base: dict[str, str | int] = {
                "hook": hook.label, "pod": self.session.folder.name, "session": state.start.session,
                "run": state.run or "" if run is None else run, "cwd": str(self.cwd),
            }  # fmt: skip
            if isinstance(given, Stop):
                base["blocks"] = self.stops(hook.label)
            started = time.monotonic()
            answer = await self._answer(hook, told(given.model_copy(update=base), self.mask))
            ms = round((time.monotonic() - started) * 1000)
            found = self._refusal(hook, answer)
            notice = self._notice(hook, tool, answer, found if after else None)
            self.session.put(
                e.HookRan(
                    event=given.event, name=hook.label, outcome=_OUTCOMES[type(answer)], blocked=found is not None, ms=ms,
                    reason=self.mask(answer.reason) if not isinstance(answer, GoOn) else "", tool=tool, call_id=call_id,
                    run=str(base["run"]), notice=notice,
                )
            )  # fmt: skip
            if notice:
                notices.append(notice)
            if found is not None and not after:
                return Heard(found, tuple(notices))
            refusal = refusal or found
        return Heard(refusal, tuple(notices))

    async def _answer(self, hook: Hook, given: HookInput) -> Answer | Broken:
        if hook.call is None:
            data = given.model_dump_json().encode()
            owner = self.session.pointer.owner
            return await run_program(hook.command, data, cwd=self.cwd, owner=owner, timeout=hook.timeout)
        try:
            with anyio.move_on_after(hook.timeout) as scope:
                return of_code(await _called(hook.call, given))
        except Exception as error:
            return Broken(plain(f"it raised {type(error).__name__}: {error}", 1_000))
        assert scope.cancelled_caught
        return Broken(f"no answer within {hook.timeout:g} s")

    def _refusal(self, hook: Hook, answer: Answer | Broken) -> Refusal | None:
        match answer:
            case Block(reason=reason):
                return Refusal(hook, f"said no: {self.mask(reason)}" if reason else "said no, and gave no reason")
            case Broken(reason=reason) if hook.blocks_on_error:
                return Refusal(hook, f"gave no answer, which blocks: {self.mask(reason)}")
            case _:
                return None

    def _notice(self, hook: Hook, tool: str, answer: Answer | Broken, refusal: Refusal | None) -> str:
        """What the model is told beside: nothing where the block itself is told."""
        about = f"{hook.event} of {tool}" if tool else hook.event
        if refusal is not None:
            return f"The hook {hook.label!r}, asked at {about}, {refusal.reason}"
        if isinstance(answer, GoOn) and answer.additional_context and hook.event in HEARD:
            return f"The hook {hook.label!r}, asked at {about}, adds: {self.mask(answer.additional_context)}"
        return ""

    def notify(self, notices: Sequence[str]) -> None:
        """Puts notices at the end of the view."""
        if notices:
            self.session.put(ContextAdded(items=items_of(notices), by=BY))


_OUTCOMES: dict[type, Literal["passed", "blocked", "failed"]] = {GoOn: "passed", Block: "blocked", Broken: "failed"}


def items_of(notices: Sequence[str]) -> tuple[ContextItem, ...]:
    """Notices as data without authority."""
    return tuple(ContextItem(kind="notice", text=text, source="hook", trust="tool") for text in notices)


async def _called(call: Callable[[Any], Any], given: HookInput) -> Any:
    """A plain function runs in a thread; where it does not return in time, it is left to itself."""
    if iscoroutinefunction(call) or iscoroutinefunction(getattr(call, "__call__", None)):  # noqa: B004
        return await call(given)
    found = await anyio.to_thread.run_sync(partial(call, given), abandon_on_cancel=True)
    return await found if isawaitable(found) else found
