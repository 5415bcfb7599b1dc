"""An entry of a log as lines for a reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from worker.masking import Masker
from worker.records import Record
from worker.text import visible

ENTRY_MOST = 4_000
"""Characters of an entry that are shown."""

_UNSHOWN = {"payload": "opaque", "data": "image data", "tag": "the session's tag"}


def entry_text(kind: str, record: Record, masker: Masker, most: int = ENTRY_MOST) -> str:
    """What an entry holds, as lines for a reader: secrets masked, payloads left out, at most `most` characters."""
    found = [kind]
    length = len(kind)
    for line in _Telling(masker, most).lines(record.model_dump(mode="json", exclude_none=True), ""):
        found.append(line)
        length += len(line) + 1
        if length >= most:
            break
    return "\n".join(found)[:most]


@dataclass(frozen=True, slots=True)
class _Telling:
    masker: Masker
    most: int

    def lines(self, value: object, indent: str) -> Iterator[str]:
        """A table or a list as lines, the first of which stands behind the mark of the list that it is in."""
        if isinstance(value, list):
            for inner in cast("list[object]", value):
                for number, line in enumerate(self.lines(inner, indent + "  ")):
                    yield line if number else f"{indent}- {line.strip()}"
        elif isinstance(value, dict):
            for key, inner in cast("dict[str, object]", value).items():
                yield from self.pair(key, inner, indent)
        elif isinstance(value, str):
            yield from (indent + part for part in self.shown(value))
        else:
            yield indent + json.dumps(value)

    def pair(self, key: str, value: object, indent: str) -> Iterator[str]:
        """A key with its value."""
        head = f"{indent}{visible(self.masker.mask(key)[0])}:"
        if isinstance(value, str) and key in _UNSHOWN:
            yield f"{head} [{_UNSHOWN[key]}, {len(value):,} characters, not shown]"
        elif isinstance(value, dict | list):
            if value:
                yield head
                yield from self.lines(cast("object", value), indent + "  ")
        elif isinstance(value, str):
            parts = self.shown(value) if value else []
            if len(parts) == 1:
                yield f"{head} {parts[0]}"
            elif parts:
                yield head
                yield from (f"{indent}    {part}" for part in parts)
        else:
            yield f"{head} {json.dumps(value)}"

    def shown(self, text: str) -> list[str]:
        """A text as lines: masked whole, cut afterwards."""
        return visible(self.masker.mask(text)[0][: 2 * self.most]).split("\n")
