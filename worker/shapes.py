"""Secrets that their shape alone tells: keys of known providers, tokens, private keys. Pure, and linear in the text.

Only what can hardly be anything else is looked for here, since this changes what a model reads: a prefix that a provider gives to its
keys and enough behind it. What takes a guess (`password = x`, a header, a URL with a password) is left to summaries
(`compact_worker.secrecy`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

SECRET = "[secret]"
"""Stands for what looks like a secret and has no name."""

LONGEST_KEY = 20_000
"""Characters between the two borders of a private key, at most."""

LONGEST_TOKEN = 8_192
"""Characters of a token for whose end a stream waits."""


class _Kind(NamedTuple):
    """`begins` are the characters that every one of a kind begins with, `body` what follows at once, `part` one character of that.
    `kept` says that its beginning is no part of the secret.
    """

    begins: tuple[str, ...]
    body: str
    part: str = r"\w"
    kept: bool = False


_KINDS = (
    _Kind(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"(?=[A-Za-z_]{0,60}\d)\w{36,}", r"[A-Za-z0-9]"),
    _Kind(("github_pat_",), r"\w{40,}"),
    _Kind(("glpat-", "gldt-", "glft-", "glsoat-", "glrt-", "glcbt-", "glptt-", "glimt-", "glagent-", "gloas-"), r"[\w-]{20,}", r"[\w-]"),
    _Kind(("GR1348941",), r"[\w-]{20,}", r"[\w-]"),
    _Kind(("sk-ant-", "sk-proj-", "sk-svcacct-", "sk-admin-", "sk-or-v1-"), r"[\w-]{20,}", r"[\w-]"),
    _Kind(("sk-",), r"(?:(?=[A-Za-z]{0,60}\d)[A-Za-z0-9]{32,}|[\w-]{0,200}T3BlbkFJ[\w-]{16,})", r"[A-Za-z0-9]"),
    _Kind(("AKIA", "ASIA", "ABIA", "ACCA", "A3T"), r"[0-9A-Z]{16,17}(?![A-Za-z0-9])", r"[0-9A-Z]"),
    _Kind(("xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-", "xoxo-"), r"(?=[A-Za-z-]{0,60}\d)[\w-]{16,}", r"[\w-]"),
    _Kind(("xapp-",), r"\d-[\w-]{20,}", r"[\w-]"),
    _Kind(("hooks.slack.com/services/",), r"[Tt]\w{1,40}/[Bb]\w{1,40}/\w{1,80}", r"[\w/]", kept=True),
    _Kind(("AIza",), r"[\w-]{35}(?![\w-])", r"[\w-]"),
    _Kind(("ya29.",), r"[\w-]{40,}", r"[\w-]"),
    _Kind(("GOCSPX-",), r"[\w-]{24,}", r"[\w-]"),
    _Kind(("npm_",), r"[A-Za-z0-9]{36}(?!\w)", r"[A-Za-z0-9]"),
    _Kind((":_authToken=",), r"[A-Fa-f0-9]{8}-[A-Fa-f0-9-]{27}", r"[A-Fa-f0-9-]", kept=True),
    _Kind(("pypi-",), r"Ag[\w-]{40,}", r"[\w-]"),
    _Kind(("hf_",), r"[A-Za-z0-9]{30,}(?!\w)", r"[A-Za-z0-9]"),
    _Kind(("gsk_",), r"[A-Za-z0-9]{40,}", r"[A-Za-z0-9]"),
    _Kind(("xai-",), r"[A-Za-z0-9]{60,}", r"[A-Za-z0-9]"),
    _Kind(("dckr_pat_", "dckr_oat_"), r"[\w-]{20,}", r"[\w-]"),
    _Kind(("sk_live_", "rk_live_"), r"[A-Za-z0-9]{20,}", r"[A-Za-z0-9]"),
    _Kind(("whsec_",), r"[A-Za-z0-9+/]{32,}", r"[A-Za-z0-9+/]"),
    _Kind(("SG.",), r"[\w-]{22}\.[\w-]{43}(?![\w-])", r"[\w.-]"),
    _Kind(("shpat_", "shpca_", "shppa_", "shpss_"), r"[0-9a-fA-F]{32}", r"[0-9a-fA-F]"),
    _Kind(("dop_v1_", "doo_v1_", "dor_v1_"), r"[0-9a-f]{64}", r"[0-9a-f]"),
    _Kind(("hvs.", "hvb."), r"[\w-]{24,}", r"[\w-]"),
    _Kind(("lin_api_",), r"[A-Za-z0-9]{32,}", r"[A-Za-z0-9]"),
    _Kind(("sq0csp-", "sq0atp-"), r"[\w-]{22,}", r"[\w-]"),
    _Kind(("AGE-SECRET-KEY-1",), r"[0-9A-Z]{40,}", r"[0-9A-Z]"),
    _Kind(("AccountKey=",), r"[A-Za-z0-9+/]{86}==", r"[A-Za-z0-9+/=]", kept=True),
    _Kind(("eyJ",), r"[\w-]{8,4000}\.eyJ[\w-]{8,8000}\.[\w-]{16,}", r"[\w.-]"),
)  # fmt: skip


def _common(begins: Sequence[str]) -> str:
    first, last = min(begins), max(begins)
    return first[: next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


_BEGINS = {begin: kind for kind in _KINDS for begin in kind.begins}
_NEEDLES = tuple((_common(kind.begins), kind.begins) for kind in _KINDS)
"""What all beginnings of a kind have in common: a text without that needs no closer look."""

_MOST_BEGINS = max(map(len, _BEGINS))
_FREE = r"(?<![A-Za-z0-9])"
_BORDER = re.compile(r"-{4,5} ?(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}")
_LINES = re.compile(
    r"(?:(?:\s|\\[nrt]|[\"',+|>]|\d{1,6}[\t:|]){0,12}(?:(?:Proc-Type|DEK-Info|Version|Comment): ?[\w ,-]{0,80}|[A-Za-z0-9+/=]{16,}))+"
)
_BASE64 = re.compile(r"[A-Za-z0-9+/=]{16}")
_LINE = re.compile(r"\W{0,8}(?:\d{1,6}\W{1,4})?[A-Za-z0-9+/]{2,}={0,2}\W{0,4}")
_OPEN_BORDER = re.compile(r"-{1,5} ?(?:B|BE|BEG|BEGI|BEGIN[A-Z0-9 ]{0,60}-{0,4})?\Z")
_BORDER_CHARS = 90
_NO_RUN = re.compile(r"[^\w\-./+=:]", re.ASCII)
"""What ends a token, whatever its kind."""

_STARTS = re.compile(
    f"{_FREE}(?:{'|'.join(re.escape(b) for b, kind in _BEGINS.items() if not kind.kept)})"
    f"|{'|'.join(re.escape(b) for b, kind in _BEGINS.items() if kind.kept)}",
    re.ASCII,
)
_KEPT_BEGIN = frozenset(begin[0] for begin, kind in _BEGINS.items() if kind.kept)
_HALF_STARTS = frozenset(begin[:size] for begin in _BEGINS for size in range(1, len(begin)))
_LEFT = re.compile(
    f"{_FREE}(?:{'|'.join(f'{re.escape(b)}{kind.part}{{8,}}' for b, kind in _BEGINS.items() if b != 'sk-')}|sk-[A-Za-z0-9]{{24,}})\\Z",
    re.ASCII,
)


class Span(NamedTuple):
    """A place in a text, and what is put there."""

    start: int
    end: int
    shown: str


def shaped(text: str) -> tuple[str, int]:
    """The text without what looks like a secret, and how many were replaced."""
    spans = spans_of(text)
    return (replaced(text, spans), len(spans)) if spans else (text, 0)


def holds_shape(text: str) -> bool:
    """Whether something looks like a secret."""
    return bool(spans_of(text))


def replaced(text: str, spans: Sequence[Span], at: int = 0) -> str:
    """The text from `at` on with the spans replaced."""
    pieces: list[str] = []
    for span in spans:
        pieces += [text[at : span.start], span.shown]
        at = span.end
    return "".join([*pieces, text[at:]])


def spans_of(text: str, at: int = 0) -> list[Span]:
    """Where something looks like a secret, from `at` on; what stands before it is looked at as what it follows."""
    kinds = tuple(begin for common, begins in _NEEDLES if common in text for begin in begins if begin in text)
    keys = list(_keys(text, at)) if "PRIVATE KEY" in text else []
    if not kinds:
        return keys
    pattern = _pattern(kinds)
    ends = [at, *(key.end for key in keys)]
    starts = [*(key.start for key in keys), len(text)]
    found = list(keys)
    for start, end in zip(ends, starts, strict=True):
        for hit in pattern.finditer(text, start, end):
            begin = hit.end(hit.lastindex) if hit.lastindex else hit.start()
            found.append(Span(begin, hit.end(), SECRET))
    return sorted(found)


@lru_cache(maxsize=64)
def _pattern(begins: tuple[str, ...]) -> re.Pattern[str]:
    """What is looked for where these beginnings occur; the group that takes part is what stays."""
    kept = [f"({re.escape(begin)}){_BEGINS[begin].body}" for begin in begins if _BEGINS[begin].kept]
    whole = [re.escape(begin) + _BEGINS[begin].body for begin in begins if not _BEGINS[begin].kept]
    parts = [f"{_FREE}(?:{'|'.join(whole)})[\\w-]*", *kept] if whole else kept
    return re.compile("|".join(parts), re.ASCII)


def _keys(text: str, at: int) -> Iterator[Span]:
    """Private keys: between their borders, or, where the second one is missing, as far as lines of one follow."""
    borders = list(_BORDER.finditer(text, at))
    for border, following in pairwise([*borders, None]):
        if border is None or border[1] == "END":
            continue
        limit = min(border.end() + LONGEST_KEY, following.start() if following else len(text))
        if following is not None and following[1] == "END" and following.start() <= limit:
            if _BASE64.search(text, border.end(), limit):
                yield Span(border.start(), following.end(), SECRET)
        elif (body := _LINES.match(text, border.end(), limit)) and _BASE64.search(body[0]):
            yield Span(border.start(), body.end(), SECRET)


def shaped_cut(text: str) -> tuple[str, int]:
    """`shaped` for a part of a larger text: also what a cut left of a token at its end, and of a private key at its beginning."""
    text, count = shaped(text)
    text, more = without_ends(text)
    return text, count + more


def without_ends(text: str) -> tuple[str, int]:
    """A text that was masked, without what a cut left at its ends."""
    count = 0
    first = _BORDER.search(text) if "PRIVATE KEY" in text else None
    if first is not None and first[1] == "END" and (start := _lines_above(text, first.start())) is not None:
        text, count = f"{text[:start]}{SECRET}{text[first.end() :]}", count + 1
    left = _LEFT.search(text, _run(text, 0))
    return (text, count) if left is None else (text[: left.start()] + SECRET, count + 1)


def _lines_above(text: str, end: int) -> int | None:
    """Where the lines of a key begin that stand right above its last border; None where there are none."""
    start, at = None, end
    while at > max(end - LONGEST_KEY, 0):
        before = text.rfind("\n", 0, at - 1) + 1
        line = text[before:at].rstrip("\n")
        if line and not _LINE.fullmatch(line):
            break
        start = before if _BASE64.search(line) else start
        at = before
    return start


def _run(text: str, at: int) -> int:
    """Where the characters at the end of a text begin that may all be of one token."""
    tail = text[max(at, len(text) - LONGEST_TOKEN) :][::-1]
    ends = _NO_RUN.search(tail)
    return len(text) - (ends.start() if ends else len(tail))


def _open(text: str, at: int) -> int:
    """The first place from `at` on that what follows the text can change; its end where there is none."""
    run = _run(text, at)
    cut = min(_open_key(text, at), _open_token(text, run))
    # Before a key that is not whole, there may stand a token that it would be the end of.
    before = _STARTS.search(text, at + _run(text[at:cut], 0), cut) if cut < len(text) else None
    if before is None or any(key.start <= before.start() < key.end for key in _keys(text, at)):
        return cut
    return before.start()


def _open_token(text: str, run: int) -> int:
    started = _STARTS.search(text, run)
    if started is not None:
        return started.start()
    for size in range(min(_MOST_BEGINS - 1, len(text) - run), 0, -1):
        if text[-size:] in _HALF_STARTS and _free(text, len(text) - size):
            return len(text) - size
    return len(text)


def _free(text: str, at: int) -> bool:
    """Whether a token can begin there."""
    begins_anywhere = text[at] in _KEPT_BEGIN
    return begins_anywhere or at == 0 or not (text[at - 1].isascii() and text[at - 1].isalnum())


def _open_key(text: str, at: int) -> int:
    begun: re.Match[str] | None = None
    for border in _BORDER.finditer(text, at):
        grows = border.end() == len(text)
        if border[1] == "END" and not grows:
            begun = None
        elif border[1] == "BEGIN" or begun is None:
            begun = border
        at = border.end()
    if begun is not None and len(text) - begun.end() <= LONGEST_KEY + _BORDER_CHARS:
        return begun.start()
    half = _OPEN_BORDER.search(text, max(at, len(text) - _BORDER_CHARS))
    return half.start() if half is not None else len(text)


@dataclass
class ShapedStream:
    """`shaped` for a text that comes in pieces: what may still become a secret is held back until that is known."""

    _before: str = ""
    _held: str = ""

    def feed(self, text: str) -> str:
        """Takes the next piece and gives what is known by now."""
        text = self._before + self._held + text
        return self._given(text, _open(text, len(self._before)))

    def end(self) -> str:
        """What was held back, as it is. The stream begins anew."""
        text = self._before + self._held
        given = self._given(text, len(text))
        self._before = self._held = ""
        return given

    def _given(self, text: str, cut: int) -> str:
        at = len(self._before)
        shown, self._held = text[:cut], text[cut:]
        self._before = shown[-1:]
        return replaced(shown, spans_of(shown, at), at)
