"""Text as a reader takes it, however it was written: for looking at what a line says, never for keeping it. Pure."""

from __future__ import annotations

import re
import unicodedata

_ALIKE = {
    "аеорсухіјѕһԁԛԝѵӏкмтвнзьг": "aeopcyxijshdqwvlkmtbh3br",
    "АВЕКМНОРСТУХІЈЅԌԚԜѴӀЗЬГ": "ABEKMHOPCTYXIJSGQWVI3bR",
    "αεικνορτυχγηωβσςμπ": "aeiknoptuxynwbosmn",
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ": "ABEZHIKMNOPTYX",
    "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ": "abcdefghijklmnoprstuvwyz",
    "ıȷɑɡոսցօհʼ’‘": "ijagnugoh'''",
}
_LATIN = str.maketrans({char: latin for chars, to in _ALIKE.items() for char, latin in zip(chars, to, strict=True)})
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u2800\u3164\uffa0")
_APART = re.compile(r"(?<![^\W_])[^\W\d_](?:[ .·•*_\-][^\W\d_](?![^\W_])){3,}")
_BETWEEN = re.compile(r"[ .·•*_\-]")


def folded(line: str) -> str:
    """A line in compatible characters: nothing invisible in it, Cyrillic, Greek and other letters that look Latin as these, no
    accents on Latin letters, and words whose letters stand apart drawn together.

    Where all letters stand equally far apart, nothing tells words: they come as one.
    """
    line = unicodedata.normalize("NFKC", line)
    if not line.isascii():
        seen = (c for c in line if not (unicodedata.category(c) == "Cf" or c in _UNSEEN or 0xFE00 <= ord(c) <= 0xFE0F))
        line = "".join(_bare(c) for c in unicodedata.normalize("NFC", "".join(seen).translate(_LATIN)))
    return _APART.sub(lambda found: _BETWEEN.sub("", found[0]), line)


def _bare(char: str) -> str:
    if char.isascii():
        return char
    if 0x300 <= ord(char) < 0x370:
        return ""
    letter = unicodedata.normalize("NFD", char)[0]
    return letter if letter.isascii() and letter.isalpha() else char
