"""What a server answered, as the output of a tool: text as it is, pictures as pictures, everything else in words."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, cast

from worker.builtin.terminal import PlainText
from worker.items import Image, ToolOutput
from worker.text import clipped, size

MOST_PICTURES = 8
LARGEST_PICTURE = 3_750_000
"""Bytes of a picture; models refuse what is larger."""

MOST_PICTURED = 8_000_000
"""Bytes of all pictures of a result: a request holds those of every result, and providers refuse one that is too large."""

_BEGIN = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""How the data of a picture begins. A provider refuses each request that holds one of which this is not so."""


def output_of(content: Sequence[object], structured: object, *, failed: bool, label: str) -> ToolOutput:
    """The output of a call from the parts of its result (as JSON values). Pure.

    `structured` says again what the text says, so it is shown only where there is no text: nothing is kept twice (case B134).
    """
    texts: list[str] = []
    images: list[Image] = []
    for part in content:
        table = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        found = _picture(table, images) if table.get("type") == "image" else _words(table)
        if isinstance(found, Image):
            images.append(found)
        else:
            texts.append(found)
    if structured is not None and not any(_is_text(part) for part in content):
        texts.append(json.dumps(structured, ensure_ascii=False))
    text = _plain("\n".join(texts))
    if not text and not images:
        text = "failed, and said nothing" if failed else "done, no output"
    output = ToolOutput.from_text(text or f"{len(images)} image(s)", label="" if failed else label, is_error=failed)
    return output.model_copy(update={"images": tuple(images)}) if images else output


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and cast("dict[str, Any]", part).get("type") == "text"


def _words(part: dict[str, Any]) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "audio"}:
            return f"[audio, {part.get('mimeType')}, {size(_bytes(part.get('data')))}: not shown]"
        case {"type": "resource_link"}:
            more = f": {said}" if isinstance(said := part.get("description"), str) and said else ""
            return f"[resource {part.get('name')!r} at {part.get('uri')}, {part.get('mimeType') or 'of unknown kind'}{more}]"
        case {"type": "resource", "resource": dict()}:
            inside = cast("dict[str, Any]", part["resource"])
            if isinstance(text := inside.get("text"), str):
                return f"[resource {inside.get('uri')}]\n{text}"
            kind = inside.get("mimeType") or "of unknown kind"
            return f"[resource {inside.get('uri')}, {kind}, {size(_bytes(inside.get('blob')))}: not shown]"
        case _:
            return f"[a part of the unknown kind {clipped(str(part.get('type')), 60)!r}: not shown]"


def _picture(part: dict[str, Any], before: Sequence[Image]) -> Image | str:
    kind, data = part.get("mimeType"), part.get("data")
    why = ""
    if not isinstance(data, str) or not isinstance(kind, str) or not _is_base64(data):
        why = "it can't be read"
    elif kind not in _BEGIN:
        why = "models take no pictures of this kind"
    elif not base64.b64decode(data[:64]).startswith(_BEGIN[kind]):
        why = "it is no picture of this kind"
    elif _bytes(data) > LARGEST_PICTURE:
        why = f"at most {size(LARGEST_PICTURE)} are shown"
    elif len(before) >= MOST_PICTURES:
        why = f"at most {MOST_PICTURES} of a result are shown"
    elif _bytes(data) + sum(_bytes(image.data) for image in before) > MOST_PICTURED:
        why = f"at most {size(MOST_PICTURED)} of a result are shown"
    if why:
        return f"[image, {kind}, {size(_bytes(data))}: not shown, {why}]"
    return Image(media_type=cast("str", kind), data=cast("str", data))


def _is_base64(data: str) -> bool:
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _bytes(data: object) -> int:
    """The size of what base64 text stands for."""
    return len(data) * 3 // 4 if isinstance(data, str) else 0


def _plain(text: str) -> str:
    made = PlainText()
    return made.feed(text.encode(errors="replace")) + made.finish()
