"""Text that a user gave, as an argument or on standard input: always valid Unicode from here on."""

from __future__ import annotations

import sys

from pod.cli.failing import note
from pod.errors import UsageProblem


def valid_text(text: str, what: str) -> str:
    """`text` with U+FFFD in place of bytes that are no UTF-8, and a warning that names `what` where there were any.

    The interpreter keeps such bytes of an argument as halves of characters, which no log and no provider takes.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        _warn(what)
        return text.encode("utf-8", "surrogateescape" if _escaped(text) else "replace").decode("utf-8", "replace")
    return text


def _escaped(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" and not "\udc80" <= c <= "\udcff" for c in text)


def _warn(what: str) -> None:
    note(f"pod: warning: {what} is not valid UTF-8; U+FFFD stands in place of the bytes that are not")


def task_of(given: str | None, what: str = "the task") -> str | None:
    """The task as it was given; standard input is read for `-` alone (case B121). Raises `UsageProblem` for an empty
    one.
    """
    if given is None:
        return None
    text = _read_stdin() if given == "-" else valid_text(given, what)
    if not text.strip():
        raise UsageProblem(f"{what} is empty" + ("; nothing came from standard input" if given == "-" else ""))
    return text


def _read_stdin() -> str:
    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None:
        return sys.stdin.read()
    data: bytes = buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError:
        _warn("standard input")
        return data.decode(errors="replace")
