"""The agent's own notes across windows: a file that it keeps, shown at the start of each new window."""

from __future__ import annotations

import hashlib
import stat
from codecs import getincrementaldecoder
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pod.carry import NotesMark
from pod.context.policy import Plan
from pod.log.files import open_file
from worker.builtin.file_range import SCAN_LIMIT
from worker.builtin.scope import Scope
from worker.estimate import estimate_text
from worker.items import ContextItem
from worker.tools import ToolFault

NOTES = "context-notes.md"
"""The file, in the agent's working folder. The runtime never makes it."""

SLOT_BYTES = 8_192
"""Bytes of it that a window begins with at most."""

SLOT_TOKENS = 2_000
"""Tokens of them at most."""

PIECE = 1 << 20
"""Bytes that are read at a time for a hash."""


@dataclass(frozen=True, slots=True)
class Notes:
    """The agent's notes as a new window has them: a sentence that says what became of them, and the item that shows them."""

    said: str
    item: ContextItem | None = None


def read_notes(scope: Scope, path: str, before: NotesMark | None = None) -> Notes:
    """The notes as they stand now, cut with a mark where they are longer than the slot.

    What a clear left behind (`before`) is not shown as long as the file still begins with it: only what was added behind
    it is. Reads a file: not for the event loop.
    """
    try:
        with scope.open_read(path) as opened:
            return _notes(opened.file, opened.info.st_size, path, before)
    except ToolFault as fault:
        if isinstance(fault.__cause__, FileNotFoundError):
            return Notes(f"{path} does not exist.")
        return Notes(f"Your notes can't be shown: {str(fault).rstrip('.')}.")
    except OSError as error:
        return Notes(f"Your notes can't be shown: {path}: {error.strerror or error}.")


def _notes(file: BinaryIO, size: int, path: str, before: NotesMark | None) -> Notes:
    digest = _digest(file, size)
    start = 0 if before is None else _end_of_before(file, size, before)
    file.seek(start)
    raw = file.read(SLOT_BYTES + 1)
    body = raw.lstrip(b"\r\n")
    at = start + len(raw) - len(body)
    if b"\0" in body:
        return Notes(f"Your notes can't be shown: {path} is not text.")
    if not body.strip() and len(raw) <= SLOT_BYTES:
        return Notes(f"{path} holds nothing new." if start else f"{path} is empty.")
    shown, used = _fitting(body)
    if (left := size - at - used) > 0:
        shown += f"\n[... {left} bytes more; read_file {path} shows them. Shorten your notes ...]"
    item = ContextItem(
        kind="notes", text=shown, source=f"{path}, written by you", trust="model", path=path, sha256=digest
    )
    return Notes(f"Your notes in {path} follow.", item)


def _fitting(body: bytes) -> tuple[str, int]:
    """The longest start that fits the slot, as text, and how many bytes it has; never half a character."""
    limit = SLOT_BYTES
    while True:
        decoder = getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(body[:limit], final=limit >= len(body))
        if estimate_text(text) <= SLOT_TOKENS:
            return text, len(body[:limit]) - len(decoder.getstate()[0])
        limit = min(limit, len(body)) * 9 // 10


def _end_of_before(file: BinaryIO, size: int, before: NotesMark) -> int:
    """Where that ends which stood there at the last clear; 0 where the file was written anew since."""
    if before.size > size or (before.sha256 and _digest(file, before.size) != before.sha256):
        return 0
    return before.size


def mark_of(path: Path) -> NotesMark | None:
    """The notes in a file as they stand now, for what clears a session; None where there are none. Blocks."""
    try:
        info = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(info.st_mode) or not info.st_size:
        return None
    try:
        with open_file(path) as file:
            digest = _digest(file, info.st_size) or ""
    except OSError:
        digest = ""
    return NotesMark(size=info.st_size, sha256=digest)


def _digest(file: BinaryIO, size: int) -> str | None:
    """The SHA-256 (hex) of a file's first bytes; None for more of them than are read for a hash."""
    if size > SCAN_LIMIT:
        return None
    file.seek(0)
    digest, left = hashlib.sha256(), size
    while left > 0 and (chunk := file.read(min(left, PIECE))):
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest()


def warning(used: int, end: int, notes: str | None) -> str:
    """What the agent is told before a window ends."""
    where = (
        f"Write what you must not lose (decisions, open points, results still needed) to {notes} now, in a few lines: it "
        "stands at the start of the new window"
        if notes
        else "Notes can't be written here; session_history shows what stands in this window"
    )
    return (
        f"The context holds {used:,} tokens; at {end:,} ({round(100 * used / max(end, 1))} % are used) a new window begins "
        f"without them. {where}. session_history finds everything else. Then go on with the task."
    )


def small_window(plan: Plan, key: str, end: int) -> str:
    """What the user is told where a window ends after one reply. `key` is what ended it, at `end` tokens."""
    return (
        f"a window ended after one reply: {plan.before.tokens:,} tokens are above {key} ({end:,}), and "
        f"what stands in any window takes {plan.limits.standing.mandatory:,} of them (system prompt and tool schemas {plan.before.overhead:,}). "
        f"The limit is too small for this task: raise {key} or the model's window, or enable fewer tools."
    )
