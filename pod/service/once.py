"""Each write once: a key that the asker chose, what was asked with it, and what was answered, on record.

A key that comes again with the same request gets the same answer, without the request being done again; with another request
it is refused. Where the process died in between, the request is done again under the key's own command id, which a pod takes
once; one that has no such id (a fork, a clear) might be done twice, so it is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pod.errors import UsageProblem
from pod.log.files import Files

KEPT = 7 * 86_400.0
"""Seconds for which a key is remembered."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class KeyReused(UsageProblem):
    """The key was used for another request."""


class KeyInUse(UsageProblem):
    """The request with this key is being done just now."""


class OutcomeUnknown(UsageProblem):
    """The service ended, or failed, while it did the request with this key."""


@dataclass(frozen=True, slots=True)
class Given:
    """An answer that was given."""

    status: int
    body: Any


@dataclass(eq=False)
class Once:
    """The record, one file for each key in `folder`. Everything but `begin` and `forget` blocks."""

    folder: Path
    files: Files = field(default_factory=Files)
    _busy: set[str] = field(default_factory=set[str], init=False)

    def begin(self, owner: str, key: str) -> str:
        """Takes a key for the time of a request, and returns the name under which it is kept: keys of two holders are two.

        Raises `KeyInUse`, and `UsageProblem` for a key that can be none.
        """
        if not _KEY.fullmatch(key):
            raise UsageProblem(
                "Idempotency-Key: letters, digits, '.', '_' and '-', at most 100, beginning with a letter or digit"
            )
        label = hashlib.sha256(f"{owner}\0{key}".encode()).hexdigest()[:40]
        if label in self._busy:
            raise KeyInUse("a request with this Idempotency-Key is being answered just now: ask again in a moment")
        self._busy.add(label)
        return label

    def forget(self, label: str) -> None:
        """The request is over."""
        self._busy.discard(label)

    def look(self, label: str, asked: bytes, again: bool) -> Given | None:
        """The answer that was given before, if any; else the key is on record as that of this request. `again` says whether a request
        that was begun and never answered may be done again.

        Raises `KeyReused`, `OutcomeUnknown`, `OSError`.
        """
        digest = hashlib.sha256(asked).hexdigest()
        try:
            found: Any = json.loads((self.folder / f"{label}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            found = None
        if found is None:
            self._put(label, {"asked": digest})
            return None
        if found.get("asked") != digest:
            raise KeyReused("this Idempotency-Key was used for another request: nothing was done; take another key")
        if "status" in found:
            return Given(found["status"], found["body"])
        if not again:
            raise OutcomeUnknown(
                "the service ended or failed while it did this request, so it may be done or not: look how the pod stands, and where it is "
                "not done, ask with another Idempotency-Key"
            )
        return None

    def answered(self, label: str, asked: bytes, given: Given) -> None:
        """Puts the answer on record."""
        digest = hashlib.sha256(asked).hexdigest()
        self._put(label, {"asked": digest, "status": given.status, "body": given.body})

    def drop(self, label: str) -> None:
        """Nothing came of the request: its key can be used again."""
        with suppress(OSError):
            (self.folder / f"{label}.json").unlink()

    def sweep(self) -> None:
        """Removes keys that are too old."""
        before = time.time() - KEPT
        with suppress(OSError):
            for path in self.folder.iterdir():
                with suppress(OSError):
                    if path.stat().st_mtime < before:
                        path.unlink()

    def _put(self, label: str, value: dict[str, Any]) -> None:
        self.files.make_folder(self.folder)
        self.files.put(self.folder / f"{label}.json", json.dumps(value).encode())
