"""Hooks as they are defined: in a manifest, by an installed package, in code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from inspect import isclass, signature
from pathlib import PurePath
from typing import Any, cast, get_args

from pod.errors import UsageProblem
from pod.loading import users_code
from pod.manifest.sections import Hook as HookSection
from pod.manifest.sections import HookEvent, OnError

GROUP = "pod.hooks"
"""The entry points of installed packages. None of them acts unless a manifest names it."""

EVENTS: tuple[str, ...] = get_args(HookEvent)
TOOL_EVENTS = frozenset({"PreToolUse", "PostToolUse"})
TIMEOUT = 60.0
MAX_BLOCKS = 3


@dataclass(frozen=True)
class Hook:
    """Asks `call` (a function, plain or async, of the event's input) or the program `command` at an event.

    `match` is a glob on the tool's name. After `timeout` seconds there is no answer. `on_error` is what that means, as any other
    fault: by default a hook before something blocks it, because a guard that can't speak must not let through what it guards; any
    other is passed over, since what it would speak of is done already, or would begin or end without it. Raises `UsageProblem`.
    """

    event: HookEvent
    call: Callable[[Any], Any] | None = None
    command: Sequence[str] = ()
    match: str = "*"
    timeout: float = TIMEOUT
    on_error: OnError | None = None
    max_blocks: int = MAX_BLOCKS
    name: str = ""
    _label: str = field(init=False, default="")

    def __post_init__(self) -> None:
        if self.event not in EVENTS:
            near = difflib.get_close_matches(str(self.event), EVENTS, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EVENTS)}"
            raise UsageProblem(f"hooks: there is no event {self.event!r}: {hint}")
        if (self.call is None) == (not self.command):
            raise UsageProblem(f"hooks: a hook for {self.event} has either a function or a command")
        if self.call is not None and not callable(self.call):
            raise UsageProblem(f"hooks: {ascii(self.call)[:80]} can't be called: give a function of the event's input")
        if isinstance(self.command, str):
            raise UsageProblem(f"hooks: command is a list of words: write [{self.command!r}]")
        object.__setattr__(self, "_label", self.name or _name_of(self))

    @property
    def label(self) -> str:
        """What it is called in the log."""
        return self._label

    @property
    def blocks_on_error(self) -> bool:
        """Whether a hook that gives no answer blocks."""
        chosen = self.on_error or ("block" if self.event.startswith("Pre") else "ignore")
        return chosen == "block"


_RUNNERS = re.compile(r"(python|bash|sh|zsh|node|deno|ruby|perl|uv)[\d.]*")


def _name_of(hook: Hook) -> str:
    if hook.command:
        program, *words = hook.command
        # `python3 check.py` is known by its script.
        script = (
            words[0]
            if words and not words[0].startswith("-") and _RUNNERS.fullmatch(PurePath(program).name)
            else program
        )
        return PurePath(script).name[:100] or program[:100]
    return str(getattr(hook.call, "__name__", type(hook.call).__name__))


def hooks_of(sections: Iterable[HookSection], given: Any, load: Callable[[str, str], Any]) -> tuple[Hook, ...]:
    """The manifest's hooks in order, then those given in code. `load` gives what a reference names. Raises `UsageProblem`."""
    found = [_from_manifest(section, load) for section in sections]
    if isinstance(given, Hook | str | bytes) or not isinstance(given, Iterable):
        raise UsageProblem("hooks=[...] is a list of Hook(...)")
    for each in cast("Iterable[object]", given):
        if not isinstance(each, Hook):
            raise UsageProblem(f"hooks=[...] holds {ascii(each)[:80]}: write Hook('PreToolUse', your_function)")
        found.append(each)
    return tuple(found)


def _from_manifest(section: HookSection, load: Callable[[str, str], Any]) -> Hook:
    common: dict[str, Any] = {
        "match": section.match, "timeout": section.timeout, "on_error": section.on_error,
        "max_blocks": section.max_blocks,
    }  # fmt: skip
    if section.use is None:
        return Hook(section.event, command=section.command or (), name=section.name or "", **common)
    return Hook(section.event, _used(section.use, load), name=section.name or section.use, **common)


def _used(use: str, load: Callable[[str, str], Any]) -> Callable[[Any], Any]:
    """The function that `use` names: `package.module:name`, or the name of an entry point. A class is made an object of."""
    where = f"[[hooks]] use: {use!r}"
    found = load(use, "[[hooks]] use:") if ":" in use else _installed(use)
    if isclass(found):
        with users_code(lambda why: UsageProblem(f"{where}: no object of it can be made: {why}")):
            found = found()
    if not callable(found):
        raise UsageProblem(
            f"{where} can't be called: it must be a function of the event's input, or a class of such objects"
        )
    try:
        signature(found).bind(None)
    except TypeError:
        raise UsageProblem(f"{where} takes other arguments: it must take one, the event's input") from None
    except ValueError:
        pass  # built in, without a signature that can be read
    return found


def _installed(name: str) -> Any:
    points: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not points:
        known = sorted({point.name for point in entry_points(group=GROUP)})
        raise UsageProblem(
            f"[[hooks]] use: no installed package offers a hook {name!r} (entry points {GROUP}: {', '.join(known) or 'none'})"
        )
    with users_code(lambda why: UsageProblem(f"[[hooks]] use: {name!r} ({points[0].value}) can't be loaded: {why}")):
        return points[0].load()
