"""Text that is safe to store and to send: valid Unicode, cut on character borders, hashed the same everywhere."""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import cast

_SURROGATE = re.compile("[\ud800-\udfff]")
_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def clean(text: str) -> str:
    """`text` without lone surrogates (each becomes U+FFFD), so that it is valid UTF-8 (case B145).

    Proper pairs that came in as two escapes are joined into the character that they mean.
    """
    if _SURROGATE.search(text) is None:
        return text
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _SURROGATE.sub("�", joined)


def clean_deep(value: object) -> object:
    """A JSON value with all its strings cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_deep(x) for x in cast("list[object]", value)]
    if isinstance(value, dict):
        return {clean(k): clean_deep(v) for k, v in cast("dict[str, object]", value).items()}
    return value


@lru_cache(maxsize=32)
@lru_cache(maxsize=4)
def half_in_json(text: str) -> bool:
    """Whether a string in JSON text holds half a character, as it is or as an escape: no provider takes it (case B145).

    Asked of the same memory at every request, so the last answers are kept.
    """
    if _SURROGATE.search(text) is not None:
        return True
    if _HALF_ESCAPE.search(text) is None:
        return False
    try:
        value: object = json.loads(text)
        return clean_deep(value) != value
    except (ValueError, RecursionError):
        return False


def decode(data: bytes) -> tuple[str, bool]:
    """Bytes as text, and whether some of them were not UTF-8 (they are shown as U+FFFD)."""
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return data.decode(errors="replace"), True


def sha256(text: str | bytes) -> str:
    """The hex SHA-256 of a text (as UTF-8) or of bytes."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def byte_prefix(text: str, limit: int) -> str:
    """The longest start of `text` whose UTF-8 form has at most `limit` bytes; never half a character."""
    data = text.encode()
    return text if len(data) <= limit else data[: max(limit, 0)].decode(errors="ignore")


def byte_suffix(text: str, limit: int) -> str:
    """The longest end of `text` whose UTF-8 form has at most `limit` bytes; never half a character."""
    data = text.encode()
    if len(data) <= limit:
        return text
    return data[len(data) - limit :].decode(errors="ignore") if limit > 0 else ""


def size(count: int) -> str:
    """A count of bytes as a person reads it: `812 B`, `6.1 kB`, `2.0 MB`."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"
