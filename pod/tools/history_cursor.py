"""Cursors of `session_history`: where an answer ended, as opaque text that only this pod can have written.

A cursor is signed with a secret in the pod's folder (`cursor.key`, mode 0600, never exported), over the question and
the place. Appends leave the secret alone. `pod clear`, `pod rewind` and `pod doctor --repair` throw it away before they
change anything, and a fork or an import begins without one, so no cursor outlives a change of what was.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from pod.log.files import open_file
from pod.log.folder import PodFolder
from pod.reading import Step
from worker.tools import ToolFault

PENDING = 32
"""Inputs not yet admitted that a cursor remembers the place of."""

CURSOR_CHARS = 2_000
"""A longer text is no cursor."""

_NAME, _MAC = 4, 16
_ANCHOR = 64

BAD = "bad_cursor: this cursor was altered or is for another question; give it as it stands, or leave it out to begin again"
STALE = (
    "stale_cursor: the history was cleared, rewound, repaired or rewritten since, or the cursor is another pod's; "
    "leave the cursor out to begin again"
)


class Met(NamedTuple):
    """How far the numbers of a log's entries were met: the last one (0: not known), and lines behind it that are none."""

    last: int = 0
    broken: int = 0

    def gap(self, seq: int) -> tuple[int, int]:
        """The first number that is missing before the entry `seq`, and how many are; each broken line may have been one."""
        first = self.last + 1 + self.broken
        return (first, seq - first) if self.last and seq > first else (seq, 0)


class Passed(NamedTuple):
    """What was passed over before a place: rows that are too long or damaged, and entries that are missing."""

    too_long: int = 0
    damaged: int = 0
    lost: int = 0


class Place(NamedTuple):
    """Where to go on: an offset in the segment of a step, rows of that line already given, characters of a row.

    `pending` are the lines of inputs not yet admitted, each with a mark of the input's id (`mark_of`). `near` says that
    an item is still looked for by its time. `met` is how far the numbers were met before this place, `passed` what was
    passed over.
    """

    step: Step
    offset: int = 0
    skip: int = 0
    chars: int = 0
    pending: tuple[tuple[int, str], ...] = ()
    near: bool = False
    met: Met = Met()
    passed: Passed = Passed()


def mark_of(item: str) -> str:
    """A few characters that tell the ids of pending inputs from each other."""
    return hashlib.sha256(item.encode("utf-8", "surrogatepass")).hexdigest()[:8]


class Cursors:
    """The cursors of one question of one pod."""

    def __init__(self, folder: PodFolder, session: str, *question: str | None) -> None:
        self.folder = folder
        self._question = json.dumps([session, *question]).encode()

    def write(self, place: Place, newest: str) -> str:
        """A place as a cursor; `newest` is a mark of the window that is the newest. Raises `OSError`."""
        key = self.folder.cursor_key(make=True)
        assert key is not None
        anchor = _anchor(place.step.log(self.folder), place.offset)
        values = [[*place.step], *place[1:], newest, anchor]
        payload = json.dumps(values, separators=(",", ":")).encode()
        return _text(key[:_NAME] + self._mac(key, payload) + payload)

    def read(self, text: str) -> tuple[Place, str]:
        """The place in a cursor, and the mark of what was the newest window.

        Raises `ToolFault`: `bad_cursor` for one that was not written so for this question, `stale_cursor` where the
        log is another one since.
        """
        raw = _bytes(text)
        key = self.folder.cursor_key()
        if key is None or raw[:_NAME] != key[:_NAME]:
            raise ToolFault(STALE)
        payload = raw[_NAME + _MAC :]
        if not hmac.compare_digest(raw[_NAME : _NAME + _MAC], self._mac(key, payload)):
            raise ToolFault(BAD)
        values: Any = json.loads(payload)
        if len(values) != len(Place._fields) + 2:  # of another version
            raise ToolFault(STALE)
        step, offset, skip, chars, pending, near, met, passed, newest, anchor = values
        place = Place(
            Step(*step),
            offset,
            skip,
            chars,
            tuple((at, mark) for at, mark in pending),
            near,
            Met(*met),
            Passed(*passed),
        )
        if anchor != _anchor(place.step.log(self.folder), offset):
            raise ToolFault(STALE)
        return place, newest

    def _mac(self, key: bytes, payload: bytes) -> bytes:
        signed = len(self._question).to_bytes(8) + self._question + payload
        return hmac.digest(key[_NAME:], signed, "sha256")[:_MAC]


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if len(text) <= CURSOR_CHARS else b""
    except (ValueError, binascii.Error):
        raise ToolFault(BAD) from None
    if len(raw) <= _NAME + _MAC or _text(raw) != text:
        raise ToolFault(BAD)
    return raw


def _anchor(path: Path, offset: int) -> str:
    """A mark of the file and of the bytes before an offset: it stands as long as the log is only appended to."""
    start = max(offset - _ANCHOR, 0)
    try:
        with open_file(path) as file:
            data = os.pread(file.fileno(), offset - start, start)
            inode = os.fstat(file.fileno()).st_ino
    except OSError:
        return ""
    return hashlib.sha256(b"%d:%d:" % (inode, len(data)) + data).hexdigest()[:12]
