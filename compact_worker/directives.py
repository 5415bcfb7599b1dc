"""Whether the user really said it: directives are looked up in the user's messages, word for word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from compact_worker.material import Directive
from compact_worker.overview import one_line
from compact_worker.sections import entries

_POINTER = re.compile(r"\s*\[(?:user message \d+|an earlier user message)\]\s*$")
_QUOTED = re.compile("「(.+)」", re.DOTALL)
_DASH = re.compile(r"\s+(?:—|–|--?)\s+")
_GAP = re.compile(r"\s*(?:\[(?:…|\.\.\.)\]|…|\.\.\.)\s*")
_PAIRS = (("「", "」"), ("『", "』"), ('"', '"'), ("“", "”"), ("«", "»"), ("‘", "’"), ("'", "'"), ("`", "`"))
_SPANS = re.compile('「([^」]*)」|“([^”]*)”|"([^"]*)"')
_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"'})

FindSource = Callable[[Sequence[str]], str | None]
"""Takes the parts of a quote, folded; names the tool output or file in which they occur, or None."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The directives of a summary: those that a user said, those found in tool output (text and source), those found
    nowhere."""

    kept: tuple[Directive, ...] = ()
    moved: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = field(default=())

    def body(self) -> str:
        """The section User Directives: the words and where they stand, nothing else."""
        return "\n".join(f"- 「{d.text}」 [{_place(d)}]" for d in self.kept)


def _place(directive: Directive) -> str:
    return "an earlier user message" if directive.user is None else f"user message {directive.user + 1}"


def fold(text: str) -> str:
    """The form in which words are compared: NFC, white space folded, typographic quotes as plain ones."""
    return one_line(unicodedata.normalize("NFC", text)).translate(_QUOTES)


def occurs(parts: Sequence[str], folded: str) -> bool:
    """Whether folded parts stand in a folded text in this order."""
    at = 0
    for part in parts:
        at = folded.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def quoted(body: str) -> list[str]:
    """The users' words in a section that was verified."""
    return [found[1] for entry in entries(body) if (found := _QUOTED.search(entry)) is not None]


def verify(body: str, user_texts: Sequence[str], find_source: FindSource, earlier: Sequence[str] = ()) -> Verified:
    """Looks each entry of a section up in the user's messages, then in those that were verified `earlier` (their messages may stand in
    no view any more), then in tool output.

    Of an entry that the user said only the user's words are kept, and a pointer to the newest message that holds them:
    what a summariser writes around a quote has no place among directives. An ellipsis in a quote stands for words left
    out.
    """
    users, known_words = [fold(text) for text in user_texts], [fold(text) for text in earlier]
    kept: list[Directive] = []
    moved: list[tuple[str, str]] = []
    dropped: list[str] = []
    for entry in entries(body):
        bare = _POINTER.sub("", entry)
        candidates = _candidates(bare)
        hits = [hit for text in candidates if (hit := _said(text, users, known_words)) is not None][:1]
        hits = hits or [hit for text in _quotations(bare) if (hit := _said(text, users, known_words)) is not None]
        if hits:
            kept += [hit for hit in hits if all(hit.text != known.text for known in kept)]
            continue
        sources = ((text, find_source(_parts(text))) for text in candidates if _parts(text))
        source = next(((text, name) for text, name in sources if name is not None), None)
        if source is not None:
            moved.append(source)
        else:
            dropped.append(one_line(entry))
    return Verified(tuple(kept), tuple(moved), tuple(dropped))


def _said(text: str, users: Sequence[str], earlier: Sequence[str]) -> Directive | None:
    parts = _parts(text)
    if not parts:
        return None
    words = one_line(unicodedata.normalize("NFC", text))
    for number in range(len(users) - 1, -1, -1):
        if occurs(parts, users[number]):
            return Directive(words, number)
    return Directive(words, None) if any(occurs(parts, each) for each in earlier) else None


def _parts(text: str) -> list[str]:
    return [part for part in (fold(piece) for piece in _GAP.split(text)) if part]


def _candidates(entry: str) -> list[str]:
    """What the quote may be, the largest first: the entry, its outermost quotation, what stands before a dash."""
    found = [entry]
    for first, last in _PAIRS:
        start, end = entry.find(first), entry.rfind(last)
        # An apostrophe inside a word is no quotation mark.
        if 0 <= start < end and (first not in "'‘`" or start == 0):
            found.append(entry[start + 1 : end])
    found += [piece for piece in _DASH.split(entry, maxsplit=1)[:1] if piece != entry]
    return _worded(found)


def _quotations(entry: str) -> list[str]:
    """Each quotation of an entry that holds several."""
    return _worded("".join(groups) for groups in _SPANS.findall(entry))


def _worded(texts: Iterable[str]) -> list[str]:
    stripped = (one_line(text).strip("*_ ") for text in texts)
    return [text for text in dict.fromkeys(stripped) if any(char.isalnum() for char in text)]
