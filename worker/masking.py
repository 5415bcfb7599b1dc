"""Secrets in text: known ones by their values, in whatever form they stand there, replaced by their names; others by their shape. Pure.

A value is looked for as it is, in JSON (escaped once or twice), in URLs, in HTML, in base64 (also inside of more), each
line of a long one by itself; and, where a text has such characters, behind fullwidth and invisible ones, escapes of
single characters, and line breaks in a long run (as `base64` makes them). Of a value that was cut with `...` or `…`, eight
characters and more are found. Not found: other encodings, a value taken apart in other ways.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any, cast
from urllib.parse import quote, quote_plus

from worker.shapes import ShapedStream, holds_shape, shaped, without_ends
from worker.text import UNSEEN

SHORTEST = 8
"""Characters below which a value is not taken for a secret: it would be found everywhere."""

LINE = 16
"""Characters of a line of a longer secret (a key in PEM) above which it is looked for by itself."""

_LEAST = 4
"""Characters of a secret that a cut may leave."""

_NAMES = re.compile(
    r"(?:^|_)(?:KEYS?|TOKEN|SECRETS?|PASS|PAT|PASSPHRASE|CREDENTIALS?|DSN)(?:_\w+)?$"
    r"|(?:^|_)(?:AUTH|COOKIES?)$"
    r"|(?:API|ACCESS|SECRET|PRIVATE|AUTH|SIGNING|ENCRYPTION|MASTER)KEY|TOKEN$|SECRET$|PASSW(?:OR)?D|[A-Z]_?PWD$",
    re.IGNORECASE,
)
_PLACES = re.compile(r"_(?:FILE|FILENAME|PATH|DIR|HOME|SOCK|ENV|NAME)$", re.IGNORECASE)
_IN_URL = re.compile(r"^\w[\w+.-]*://[^\s/:@]*:([^\s/@]+)@")
_SCHEME = re.compile(r"(bearer|basic|token|apikey|digest|negotiate) +(\S+)", re.IGNORECASE)
_RUN = 16
"""Characters of base64 before a line break that may be one within a run."""

_ESCAPE = re.compile(
    r"(?<!\\)\\+(?:u00([2-7][0-9a-fA-F])|x([2-7][0-9a-fA-F])|(/))"
    r"|((?:(?:(?<!\\)\\+r)?(?:(?<!\\)|(?<=r))\\{1,8}n|\r?\n)[ \t]{0,16}(?:\d{1,7}[\t:|])?(?=[A-Za-z0-9+/_=-]))"
)
_IN_A_RUN = re.compile(f"[A-Za-z0-9+/_-]{{{_RUN}}}")
_BROKEN = re.compile(
    # From the line break on, of which there are few: a search from the run on would look at each character.
    rf"\n(?:(?<=[A-Za-z0-9+/_-]{{{_RUN}}}\n)|(?<=[A-Za-z0-9+/_-]{{{_RUN}}}\r\n))[ \t]{{0,16}}[A-Za-z0-9+/_=-]"
)
_BEGUN = re.compile(
    r"\\{1,4}(?:u0{0,2}[2-7]?|x[2-7]?)?\Z|((?:(?:\\{1,4}r)?\\{1,4}n|\\{1,4}r|\r?\n|\r)[ \t]{0,16}(?:\d{1,7}[\t:|]?)?)\Z"
)
_LONGEST_BREAK = 40
"""What may be the beginning of an escape or of a line break within a run, and its longest."""

_CUT_AFTER = re.compile(r"\n?\[?(?:\.\.\.|…)")
_CUT_BEFORE = re.compile(r"(?:\.\.\.|…)\]?\n?\Z")
_NAMED_MARK = re.compile(r"\[secret (\w{1,200})\]")
_ANY_MARK = re.compile(r"\[secret(?: \w{1,200})?\]")
_MARK = re.compile(r"\n?\[\.\.\. [^\]\n]{0,400} \.\.\.\]\n?")


def secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names speak of a secret, with values long enough to be one; of an address (`scheme://user:password@host`)
    under any name the password.

    What only says where a secret lies (`..._FILE`, credentials that are a path) is none.
    """
    found: dict[str, str] = {}
    for name, value in environment.items():
        if len(value) < SHORTEST:
            continue
        in_url = _IN_URL.match(value)
        if in_url is not None and len(in_url[1]) >= SHORTEST:
            found[name] = in_url[1]
        elif _speaks(name) and not (value[0] in "/~" and "CREDENTIAL" in name.upper()):
            found[name] = value
    return found


def _speaks(name: str) -> bool:
    return name not in {"PWD", "OLDPWD"} and not _PLACES.search(name) and _NAMES.search(name) is not None


def unmasked(value: Any, secrets: Mapping[str, str]) -> Any:
    """A JSON value with the values of variables for their marks: the way back, for what only this process keeps in memory."""
    if isinstance(value, str):
        return _NAMED_MARK.sub(lambda found: secrets.get(found[1], found[0]), value) if "[secret " in value else value
    if isinstance(value, list):
        return [unmasked(each, secrets) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: unmasked(each, secrets) for key, each in cast("dict[str, Any]", value).items()}
    return value


def marks_in(text: str) -> list[str]:
    """What stands in a text for secrets that were never shown, each once."""
    return list(dict.fromkeys(_ANY_MARK.findall(text))) if "[secret" in text else []


@dataclass(frozen=True)
class Masker:
    """Replaces secrets in text by their variable's name, the longest first. `secrets` are values by name; with `shapes` also what
    looks like a secret is replaced (`worker.shapes`).
    """

    secrets: Mapping[str, str]
    shapes: bool = False

    @cached_property
    def values(self) -> Masker:
        """The same without shapes: for a user's own words."""
        return Masker(self.secrets) if self.shapes else self

    @cached_property
    def forms(self) -> dict[str, str]:
        """Each form of each secret with what stands in its place, the longest first.

        One that occurs in such a mark is none: a text that was masked stays as it is.
        """
        found: dict[str, str] = {}
        for name, value in self.secrets.items():
            for form in forms_of(value):
                found.setdefault(form, f"[secret {name}]")
        marks = "\n".join(found.values())
        return {form: found[form] for form in sorted(found, key=lambda f: (-len(f), f)) if form not in marks}

    def __bool__(self) -> bool:
        return self.shapes or bool(self.forms)

    def holds(self, text: str) -> bool:
        """Whether a secret stands in a text."""
        known = any(form in text for form in self.forms) or any(self._cut(text)) or self._hidden(text) is not None
        return known or (self.shapes and holds_shape(text))

    def mask(self, text: str) -> tuple[str, int]:
        """The text without secrets, and how many were replaced."""
        text, count = self._known(text)
        if not self.shapes:
            return text, count
        text, more = shaped(text)
        return text, count + more

    def _known(self, text: str) -> tuple[str, int]:
        hits = [form for form in self.forms if form in text]
        count = 0
        if hits:
            text, count = self._either(hits).subn(lambda found: self.forms[found[0]], text)
        if cuts := self._cut(text):
            pieces: list[str] = []
            at = 0
            for start, end, mark in cuts:
                pieces += [text[at:start], mark]
                at = end
            text, count = "".join([*pieces, text[at:]]), count + len(cuts)
        hidden = self._hidden(text)
        return (text, count) if hidden is None else self._unhidden(text, hidden, count)

    def names_in(self, text: str) -> list[str]:
        """The marks that `mask` would put into a text, each once."""
        found = [mark for form, mark in self.forms.items() if form in text] + [cut[2] for cut in self._cut(text)]
        return list(dict.fromkeys(found + [self.forms[form] for form in self._hidden(text) or ()]))

    def mask_cut(self, text: str) -> tuple[str, int]:
        """`mask` for a text that may be a part of a larger one: what a cut left of a secret at its beginning, at its end and
        at the marks of what is left out is replaced as well, where that is at least half of it (or eight characters).
        """
        text, count = self.mask(text)
        if not self:
            return text, count
        pieces: list[str] = []
        at = 0
        for mark in _MARK.finditer(text):
            pieces += [text[at : mark.start()], mark[0]]
            at = mark.end()
        pieces.append(text[at:])
        for n in range(0, len(pieces), 2):
            trimmed = self._trimmed(pieces[n])
            trimmed = without_ends(trimmed)[0] if self.shapes else trimmed
            count += trimmed != pieces[n]
            pieces[n] = trimmed
        return "".join(pieces), count

    def _trimmed(self, text: str) -> str:
        """Without the rest of a secret at the beginning, and the beginning of one at the end."""
        if len(text) < _LEAST:
            return text
        for form, mark in self.forms.items():
            least = min(SHORTEST, max(_LEAST, (len(form) + 1) // 2))
            head, last = text[: len(form)], form[-least:]
            at = head.rfind(last)
            while at >= 0 and not form.endswith(head[: at + least]):
                at = head.rfind(last, 0, at + least - 1)
            if at >= 0:
                text = mark + text[at + least :]
            tail, first = text[-len(form) :], form[:least]
            at = tail.find(first)
            while at >= 0 and not form.startswith(tail[at:]):
                at = tail.find(first, at + 1)
            if at >= 0:
                text = text[: len(text) - len(tail) + at] + mark
        return text

    def _cut(self, text: str) -> list[tuple[int, int, str]]:
        """The places of secrets that were cut with a mark, each with what stands there instead; none overlaps another."""
        if "..." not in text and "…" not in text:
            return []
        found: list[tuple[int, int, str]] = []
        for form, mark in self.forms.items():
            for at in _places(text, form[:SHORTEST]):
                end = at + _same(form, text[at : at + len(form)])
                if end - at < len(form) and _CUT_AFTER.match(text, end):
                    found.append((at, end, mark))
            for at in _places(text, form[-SHORTEST:]):
                end = at + SHORTEST
                start = end - _same(form[::-1], text[max(end - len(form), 0) : end][::-1])
                if end - start < len(form) and _CUT_BEFORE.search(text, max(start - 5, 0), start):
                    found.append((start, end, mark))
        kept: list[tuple[int, int, str]] = []
        for place in sorted(found, key=lambda each: (each[0], -each[1])):
            if not kept or place[0] >= kept[-1][1]:
                kept.append(place)
        return kept

    @staticmethod
    def _either(forms: list[str]) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(form) for form in forms))

    def _hidden(self, text: str) -> list[str] | None:
        """The forms that a text holds only as a reader takes it; None where there are none."""
        if not self.forms or (text.isascii() and "\\" not in text and not _BROKEN.search(text)):
            return None
        shown = as_read(text)
        if shown == text:
            return None
        return [form for form in self.forms if form in shown and form not in text] or None

    def _unhidden(self, text: str, hidden: list[str], count: int) -> tuple[str, int]:
        shown: list[str] = []
        places: list[tuple[int, int]] = []
        for piece, start, end in _as_read(text):
            shown.append(piece)
            places += [(start, end)] * len(piece)
        pieces: list[str] = []
        at = 0
        for found in self._either(hidden).finditer("".join(shown)):
            start, end = places[found.start()][0], places[found.end() - 1][1]
            if start < at:
                continue
            pieces += [text[at:start], self.forms[found[0]]]
            at, count = end, count + 1
        return "".join([*pieces, text[at:]]), count


def forms_of(value: str) -> Iterator[str]:
    """The forms in which a value may stand in a text, each at least as long as a secret is. Of a header (`Bearer ...`) its credentials
    are one too."""
    import html

    lines = [line.strip() for line in value.splitlines()]
    whole = [value, *(line for line in lines if len(lines) > 1 and len(line) >= LINE and not line.startswith("-----"))]
    for text in (*whole, *_credentials(value)):
        once = (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
        yield from (text, *once, *(json.dumps(each, ensure_ascii=False)[1:-1] for each in once))
        yield from (each.replace("/", "\\/") for each in (text, *once))  # as some JSON writers do
        yield html.escape(text)
        for in_url in (quote(text, safe=""), quote(text), quote_plus(text)):
            yield in_url
            yield re.sub(r"%..", lambda found: found[0].lower(), in_url)
    data = value.encode("utf-8", "surrogatepass")
    for before in range(3):
        start, end = (0, 2, 3)[before], (before + len(data)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(before) + data)[start:end].decode()


def _credentials(value: str) -> Iterator[str]:
    """What a header gives a server to log in with, and the password in it."""
    found = _SCHEME.fullmatch(value.strip())
    if found is None or len(found[2]) < SHORTEST:
        return
    yield found[2]
    if found[1].lower() == "basic":
        try:
            password = base64.b64decode(found[2], validate=True).decode().partition(":")[2]
        except ValueError:
            return
        if len(password) >= SHORTEST:
            yield password


def as_read(text: str) -> str:
    """A text as a reader takes it: compatible characters, nothing invisible, no escapes of single characters."""
    shown = _ESCAPE.sub(_unescaped, text)
    return shown if shown.isascii() else unicodedata.normalize("NFKC", UNSEEN.sub("", shown))


def _unescaped(found: re.Match[str]) -> str:
    if found[4]:
        return "" if _ends_a_run(found.string, found.start()) else found[0]
    return found[3] or chr(int(found[1] or found[2], 16))


def _ends_a_run(text: str, at: int) -> bool:
    """Whether a long run of base64 ends at a place."""
    return at >= _RUN and _IN_A_RUN.match(text, at - _RUN) is not None


def _same(one: str, other: str) -> int:
    """How many characters two texts begin with that are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _places(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _as_read(text: str) -> Iterator[tuple[str, int, int]]:
    """What a reader takes for each character or escape, with its place."""
    at = 0
    for escape in _ESCAPE.finditer(text):
        yield from _each(text, at, escape.start())
        shown = _unescaped(escape)
        if shown != escape[0]:
            yield shown, *escape.span()
        else:
            yield from _each(text, *escape.span())
        at = escape.end()
    yield from _each(text, at, len(text))


def _each(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    for at in range(start, end):
        char = text[at]
        if not UNSEEN.match(char):
            yield char if char.isascii() else unicodedata.normalize("NFKC", char), at, at + 1


@dataclass
class MaskedStream:
    """Masks a text that comes in pieces: what may be the beginning of a secret is held back until that is known, also where only a
    reader would see one (behind invisible characters, escapes and line breaks).
    """

    masker: Masker
    _before: str = ""
    _held: str = ""
    _shaped: ShapedStream | None = field(init=False)
    _forms: dict[str, list[str]] = field(init=False)
    _marks: Mapping[str, str] = field(init=False)
    _longest: int = field(init=False)

    def __post_init__(self) -> None:
        self._shaped = ShapedStream() if self.masker.shapes else None
        self._marks = self.masker.forms
        self._forms = {}
        for form in self._marks:
            self._forms.setdefault(form[0], []).append(form)
        self._longest = max(map(len, self._marks), default=0)

    def feed(self, text: str) -> str:
        """Takes the next piece and gives what is known by now."""
        text = self._given(text, last=False) if self._marks else text
        return text if self._shaped is None else self._shaped.feed(text)

    def end(self) -> str:
        """What was held back, masked as it is. The stream begins anew."""
        text = self._given("", last=True)
        self._before = ""
        return text if self._shaped is None else self._shaped.feed(text) + self._shaped.end()

    def _given(self, text: str, *, last: bool) -> str:
        skip = len(self._before)
        text = self._before + self._held + text
        begun = None if last else _BEGUN.search(text, max(len(text) - _LONGEST_BREAK, skip))
        if begun is not None and begun[1] and not _ends_a_run(text, begun.start()):
            begun = None
        known = len(text) if begun is None else begun.start()
        shown, places = self._as_read(text[:known])
        opened = len(shown) if last else self._open(shown)
        cut = max(known if opened == len(shown) else places(opened)[0], skip)
        pieces: list[str] = []
        at = skip
        for found in self._found(shown):
            start, end = places(found.start())[0], places(found.end() - 1)[1]
            if start >= max(cut, at):
                break
            if start >= at:
                pieces += [text[at:start], self._marks[found[0]]]
                at = end
        cut = max(cut, at)
        self._held = text[cut:]
        self._before = text[max(cut - _RUN, 0) : cut]
        return "".join([*pieces, text[at:cut]])

    def _as_read(self, text: str) -> tuple[str, Callable[[int], tuple[int, int]]]:
        """The text in which secrets are looked for, and where each character of it stands: what a reader would take it for, where
        that holds one, or the beginning of one.
        """
        if text.isascii() and "\\" not in text and not _BROKEN.search(text):
            return text, _here
        shown = as_read(text)
        if shown == text or not (any(form in shown for form in self._marks) or self._open(shown) < len(shown)):
            return text, _here
        pieces = list(_as_read(text))
        places = [(start, end) for piece, start, end in pieces for _ in piece]
        return "".join(piece for piece, _, _ in pieces), places.__getitem__

    def _found(self, text: str) -> Iterator[re.Match[str]]:
        hits = [form for form in self._marks if form in text]
        return re.finditer("|".join(map(re.escape, hits)), text) if hits else iter(())

    def _open(self, text: str) -> int:
        """The first place from which on the text may be the beginning of a secret."""
        for at in range(max(len(text) - self._longest + 1, 0), len(text)):
            forms = self._forms.get(text[at])
            if forms and any(len(form) > len(text) - at and form.startswith(text[at:]) for form in forms):
                return at
        return len(text)


def _here(at: int) -> tuple[int, int]:
    return at, at + 1
