"""Text that is safe to store and to send: valid Unicode, cut on character borders, hashed the same everywhere."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from functools import lru_cache
from typing import cast

_SURROGATE = re.compile("[\ud800-\udfff]")
_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")

INVISIBLE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufdd0-\ufdef\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""What nobody sees or what steers a display, as the inside of a class of a regular expression: controls but tab and line feed,
marks of direction and of width zero, fillers, halves of characters, noncharacters, tags."""

_INVISIBLE = re.compile(f"[{INVISIBLE}]")
UNSEEN = re.compile(f"[{INVISIBLE}\ufe00-\ufe0f]")
"""The same as an expression, with the selectors of a form."""

_JOINERS = "\u200c\u200d"
_DIRECTIONS = "\u061c\u200e\u200f"
_WITH_FORMS = frozenset("0123456789#*\xa9\xae")


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


def escaped_halves(text: str) -> str:
    """JSON text with each half of a character as JSON's own escape, so that it is valid UTF-8 and means what it meant."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def visible(text: str) -> str:
    """`text` with what is invisible or steers a display written as escapes (`\\x1b`, `\\u202e`): the one door to a person's eyes.

    Tabs and line feeds stay, CR LF becomes a line feed. A joiner stays where it joins: between characters beyond the
    Latin ones, as in emoji and Persian. Once more over its own result it changes nothing.
    """
    if text.isascii() and text.isprintable():
        return text
    return _INVISIBLE.sub(_escaped, text.replace("\r\n", "\n"))


def visible_name(path: object) -> str:
    """A path as one line that a person or a model is shown: it may hold line ends, and bytes that are no text."""
    return visible(str(path)).replace("\n", "\\n")


def without_unseen(text: str) -> tuple[str, list[str]]:
    """A text without what a reader of it does not see, and each character that was left out.

    What is seen where it stands stays: joiners that join, marks of direction beside text from right to left, and one selector of
    a form behind a character that has forms.
    """
    left: list[str] = []

    def judged(found: re.Match[str]) -> str:
        char, at = found[0], found.start()
        if char == "\r" or _is_seen(char, found.string[at - 1 : at], found.string[at + 1 : at + 2]):
            return char
        left.append(char)
        return ""

    return UNSEEN.sub(judged, text), left


def _is_seen(char: str, before: str, after: str) -> bool:
    if char in _JOINERS:
        return _joins(before) and _joins(after)
    if char in _DIRECTIONS:
        beside = [each for each in (before, after) if each and UNSEEN.match(each) is None]
        return any(unicodedata.bidirectional(each) in {"R", "AL", "AN"} for each in beside)
    if "\u180b" <= char <= "\u180f":
        return "\u1820" <= before <= "\u18aa"
    if "\ufe00" <= char <= "\ufe0f":
        return (before >= "\u2000" or before in _WITH_FORMS) and UNSEEN.match(before) is None
    return False


def _escaped(found: re.Match[str]) -> str:
    char, at = found[0], found.start()
    if char in _JOINERS and _joins(found.string[at - 1 : at]) and _joins(found.string[at + 1 : at + 2]):
        return char
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _joins(char: str) -> bool:
    return char >= "\u0370" and _INVISIBLE.match(char) is None


def visible_json(text: str) -> str:
    """JSON text with the same in JSON's own escapes, so that it means what it meant; its line ends stay."""
    return text if text.isascii() and "\x7f" not in text else _INVISIBLE.sub(_json_escaped, text)


def _json_escaped(found: re.Match[str]) -> str:
    char = found[0]
    if char < " " or (char in _JOINERS and _escaped(found) == char):
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def untagged(text: str, tag: str) -> str:
    """`text` with the session's tag broken up, which marks orders of the runtime, however it is written: in other cases or
    widths, or with what is invisible between its characters."""
    if not tag or (text.isascii() and tag.lower() not in text.lower()):
        return text
    return _tag_pattern(tag).sub(f"{tag[:4]}-{tag[4:]}", text)


@lru_cache(maxsize=16)
def _tag_pattern(tag: str) -> re.Pattern[str]:
    wide = (char + (chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else "") for char in tag)
    return re.compile(f"[{INVISIBLE}]*".join(f"[{re.escape(chars)}]" for chars in wide), re.IGNORECASE)


def decode(data: bytes) -> tuple[str, bool]:
    """Bytes as text, and whether some of them were not UTF-8 (they are shown as U+FFFD)."""
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return data.decode(errors="replace"), True


def sha256(text: str | bytes) -> str:
    """The hex SHA-256 of a text (as UTF-8) or of bytes."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def clipped(text: str, most: int) -> str:
    """A text of at most `most` characters. A cut has its mark, by which what it leaves of a secret is found (`worker.masking`)."""
    return text if len(text) <= most else text[: max(most - 3, 0)] + "..."


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
