"""Bytes of a terminal as plain text: escape sequences removed, however the bytes were cut into pieces.

Uses the standard library alone: the supervisor of background jobs runs it outside of the package's environment.
"""

from __future__ import annotations

import codecs
import re

# ECMA-48. A string sequence (OSC, DCS, SOS, PM, APC) ends with BEL or ST; a line end, CAN or SUB breaks it off, so
# that one that is never closed costs a line and not the rest of the output.
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\r\n\x18\x1a]*"
_CONTROL = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*"
_SEQUENCE = re.compile(rf"{_CONTROL}[@-~]?|{_STRING}(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-OQ-WYZ\\`-~]?")
_STRING_START = re.compile(r"\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f]")
_STRING_ENDS = "\x07\x1b\x9c\r\n\x18\x1a"
_OPEN_OTHER = re.compile(rf"(?:{_CONTROL}|\x1b[ -/]*)\Z")
_HAS_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_BYTES = bytes((*range(9), *range(0x0B, 0x20), 0x7F))
_DROPPED = dict.fromkeys((*range(1, 9), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0)))
_NEVER_TEXT = str.maketrans({chr(code): "\ufffd" for code in range(0xDC80, 0xDD00)} | {"\0": "\ufffd"})
_SURROGATE = re.compile("[\udc80-\udcff]")
_HELD = 65_536


class PlainText:
    """Turns a stream of bytes into text without control characters, piece by piece (cases B092 and B093).

    Sequences and characters that are split between pieces are held back until they are whole. Bytes that are not
    UTF-8, and NUL, become U+FFFD and are counted in `not_text`. CR LF and a lone CR become LF.
    """

    def __init__(self) -> None:
        self.not_text = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""

    def feed(self, data: bytes) -> str:
        """The text that is certain after these bytes."""
        if data.isascii() and not self._held and not self._decoder.getstate()[0] and _is_plain(data):
            return data.decode()
        text = self._held + self._decoder.decode(data)
        self._held = ""
        if _HAS_CONTROL.search(text):
            text = self._hold_back(text)
        return self._plain(text)

    def finish(self) -> str:
        """What was held back, at the end of the stream."""
        text = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        return self._plain(text)

    def _hold_back(self, text: str) -> str:
        found = _open_string(text) or _OPEN_OTHER.search(text)
        if found is None:
            if text.endswith("\r"):
                self._held = "\r"
                return text[:-1]
            return text
        self._held = text[found.start() :]
        if len(self._held) > _HELD:
            # Only that a string is open must be remembered, not what it says.
            start = self._held[:2] if self._held[0] == "\x1b" else self._held[0]
            self._held = start + ("\x1b" if self._held[-1] == "\x1b" else "")
        return text[: found.start()]

    def _plain(self, text: str) -> str:
        if not text.isascii():
            found = len(_SURROGATE.findall(text))
            self.not_text += found
        if _HAS_CONTROL.search(text):
            text = _SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
            self.not_text += text.count("\0")
            text = text.translate(_DROPPED)
        elif text.isascii():
            return text
        return text.translate(_NEVER_TEXT) if self.not_text else text


def _is_plain(data: bytes) -> bool:
    """Whether ASCII has no control character in it: of most output, and told many times faster than by a pattern."""
    return len(data.translate(None, _CONTROL_BYTES)) == len(data)


def _open_string(text: str) -> re.Match[str] | None:
    """The start of a string sequence that the text does not end. Only what follows the last end can be one."""
    # An ESC at the very end may be the first half of ST.
    end = len(text) - text.endswith("\x1b")
    last = max(text.rfind(char, 0, end) for char in _STRING_ENDS)
    start = last if last >= 0 and text[last] == "\x1b" else last + 1
    return _STRING_START.search(text, start, end)
