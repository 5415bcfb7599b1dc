"""What a hook answers: go on, or block with a reason. It can only tighten; nothing that it says allows anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from worker.builtin.terminal import PlainText

REASON = 2_000
"""Characters of a reason that are kept."""

CONTEXT = 4_000
"""Characters of a hook's context that reach the model."""

BLOCKS = 2
"""The exit code by which a program blocks."""

KEYS = ("decision", "reason", "additional_context")
"""What the JSON of a program may hold."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """Nothing against it. `additional_context` is put before the model as data without authority (after RunStart, PostToolUse and
    PostCompact).
    """

    additional_context: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Not so, and why."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Broken:
    """The hook gave no answer: `reason` is what went wrong with it."""

    reason: str


Answer: TypeAlias = GoOn | Block
HEARD = ("RunStart", "PostToolUse", "PostCompact")
"""The events after which there is a place for context."""


def of_program(code: int | None, stdout: str, stderr: str) -> Answer | Broken:
    """What a program that ended by itself says: exit code 0 goes on, and its output may be a JSON object; exit code 2 blocks with
    its standard error as the reason; anything else is no answer.
    """
    if code == BLOCKS:
        return Block(plain(stderr, REASON))
    if code != 0:
        said = plain(stderr, REASON) or plain(stdout, REASON)
        how = "did not end" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        return Broken(f"{how}{f': {said}' if said else ''}")
    text = stdout.strip()
    return of_json(text) if text else GoOn()


def of_json(text: str) -> Answer | Broken:
    """What the output of a program says. Whatever is not understood is no answer: a slip must not let a call through."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return Broken(f"its output is no JSON: {plain(text, 200)!r} (other words belong on standard error)")
    if not isinstance(value, dict):
        return Broken("its output is no JSON object")
    found = cast("dict[str, Any]", value)
    strange = [key for key in found if key not in KEYS]
    if strange:
        return Broken(f"its output has the key {plain(strange[0], 60)!r}; known are {', '.join(KEYS)}")
    for key, given in found.items():
        if given is not None and not isinstance(given, str):
            return Broken(f"its output's {key} is no text")
    match found.get("decision"):
        case "deny" | "block":
            return Block(plain(found.get("reason") or "", REASON))
        case None | "allow":
            return GoOn(plain(found.get("additional_context") or "", CONTEXT))
        case other:
            return Broken(f"its decision is {plain(other, 60)!r}; known are allow, deny and block")


def of_code(given: object) -> Answer | Broken:
    """What a function returned: nothing, `GoOn` or `Block`."""
    match given:
        case None:
            return GoOn()
        case GoOn(additional_context=text) if isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            return GoOn(plain(text, CONTEXT))
        case Block(reason=text) if isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            return Block(plain(text, REASON))
        case _:
            return Broken(f"it returned {plain(ascii(given), 200)}; return None, GoOn(...) or Block(...)")


def plain(text: str, most: int) -> str:
    """A text without control characters and escape sequences, at most `most` characters."""
    made = PlainText()
    found = (made.feed(text.encode(errors="replace")) + made.finish()).strip()
    return found if len(found) <= most else f"{found[: most - 1]}…"
