"""Text of a session made fit to be quoted in a checkpoint: no secrets, no authority, no marks of the runtime. Pure."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from compact_worker.folding import folded
from compact_worker.granting import neutralised
from compact_worker.overview import one_line
from compact_worker.secrecy import without_secrets
from worker.masking import Masker
from worker.models.encoding import neutral
from worker.text import clean, untagged

BOUND = 6_000
"""Characters of one text that are looked at: two thirds from its beginning, the rest from its end."""

_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co"})
_BREAKS = str.maketrans({"\r": "\n", "\v": "\n", "\f": "\n", "\x85": "\n", "\u2028": "\n", "\u2029": "\n"})
_WORD = r"(?:system|developer|assistant|human|user|operator|administrator|admin|runtime|root)"
_ROLE = re.compile(
    rf"^\W*(?:(?:new|important|urgent)\s+)?{_WORD}(?:\s+(?:message|prompt|note|notice|override|instructions?|reminder))?\W{{0,3}}"
    r"\s*[:>\]]|(?-i:\b(?:SYSTEM|ADMIN|DEVELOPER)(?: \w+)?:)",
    re.IGNORECASE,
)
_RULES = (
    r"(?:instructions?|prompts?|rules?|directives?|guidelines?|guidance|constraints?|polic(?:y|ies)|restrictions?|directions?|orders"
    r"|safeguards?|said)"
)
_OLD = r"(?:previous|prior|earlier|preceding|above|former|foregoing|original|initial|existing|current|old)"
_OVERRIDE = re.compile(
    r"\b(?:ignor\w*|disregard\w*|forget|overrid\w*|bypass\w*|supersed\w*|discard|(?:set|put) aside|pay no (?:attention|heed) to"
    rf"|(?:do not|don['’]?t|no longer|never mind|stop) (?:follow|obey|heed|comply with)\w*|(?:not|no longer) bound by)\b[^.\n]{{0,60}}\b{_RULES}\b"
    r"|\b(?:ignore|disregard|forget|discard)\b (?:\w+ ){0,3}(?:everything|anything|all(?: that)?|what\w*|context|text|messages?|words|training)\b"
    rf"[^.\n]{{0,40}}\b(?:{_OLD}|before|so far|until now|told|learned)\b"
    rf"|\b(?:ignore|disregard|forget|discard)\b (?:\w+ ){{0,3}}{_OLD} (?:context|text|messages?|words|conversation|training|commands?)\b"
    r"|\b(?:new|updated|real|actual|hidden|secret)\s+(?:system\s+)?(?:instructions?|orders?|prompt)\b\s*:"
    r"|\byou are now\b|\bfrom now on,? you\b|\byour (?:new|real|actual) (?:task|role|instructions?|goal)\b",
    re.IGNORECASE,
)
_RUN_TOGETHER = re.compile(
    r"\b(?:(?:ignore|disregard|forget|override|bypass)\w{0,30}(?:instruction|guidance|guideline|rule|prompt|direction|polic)"
    r"|\w{0,20}noneedto(?:ask|confirm)|\w{0,20}needtoask|skip\w{0,12}(?:approval|confirmation)|\w{0,20}permissiongranted"
    r"|\w{0,30}withoutasking|youarenow\w{0,20})",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"^\W*end(?:\s+of)?(?:\s+(?:the|this|untrusted|tool|file))*\s+"
    r"(?:context|output|results?|file|data|summary|memory|document|conversation|content|input|tool|checkpoint)\b\W*$",
    re.IGNORECASE,
)
_SETTING = re.compile(
    r"\s*(?:[-*] )?(?:system|user|human|root|admin|operator|runtime|assistant)\s*[:=]\s*[\w./@-]{1,40},?\s*"
)
"""A role's name as the key of a setting with one word; orders need more words."""
_CLAIMS = (_ROLE, _OVERRIDE, _CLOSING, _RUN_TOGETHER)
_TAG = re.compile(
    r"[<＜‹]\s{0,8}(?=[</／⁄]?\s{0,8}(?:[|｜]|/|(?:[\w-]*-)?reminder|system|user|assistant|human|developer|instructions?|tool|function"
    r"|results?|order|context|memory|summary|checkpoint|approval|sys|thinking|invoke|parameter|s>|im_))",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"\[(?=\s*/?(?:inst|auto-?read file|referenced files|user message|pruned|system|runtime|order|context|summary"
    r"|checkpoint|end of|run|entry|item|artifact|\.\.\.)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Quoted:
    """A text that is safe to quote: how many of its lines claimed authority (they are left out) or an approval (that is marked), how
    many secrets were replaced.
    """

    text: str
    excluded: int = 0
    redacted: int = 0


@dataclass(frozen=True, slots=True)
class Quoter:
    """Makes text quotable. `tag` is the session's, which marks true orders; `masker` knows the secrets by value."""

    masker: Masker
    tag: str = ""

    def user(self, text: str) -> Quoted:
        """The user's words: they stay as they are, but for secrets and what could be taken for the runtime's marks."""
        text, redacted = self.masker.mask(text)
        # What invisible characters kept apart is whole only once they are gone.
        text, more = self.masker.mask(printable(_bounded(text)))
        return Quoted(self._unmarked(text.strip()), 0, redacted + more)

    def other(self, text: str) -> Quoted:
        """What a model or tool said: lines that give orders in another's name are left out, statements that claim an approval are
        marked as such.
        """
        masked = self.masked(text)
        lines = masked.text.split("\n")
        kept = [line for line in lines if not usurps(line)]
        text, claims = neutralised("\n".join(kept).strip())
        return Quoted(self._unmarked(text), len(lines) - len(kept) + claims, masked.redacted)

    def line(self, text: str, limit: int) -> Quoted:
        """The same in one line of at most `limit` characters."""
        quoted = self.other(text)
        text = one_line(quoted.text)
        if usurps(text):
            return Quoted("", quoted.excluded + 1, quoted.redacted)
        text, claims = neutralised(text)
        return Quoted(shortened(text, limit), quoted.excluded + claims, quoted.redacted)

    def masked(self, text: str) -> Quoted:
        """Without secrets, those that only their shape tells included. Not yet fit to be quoted."""
        text, known = self.masker.mask(text)
        text, more = self.masker.mask(printable(_bounded(text)))
        text, shaped = without_secrets(text)
        return Quoted(text, 0, known + more + shaped)

    def _unmarked(self, text: str) -> str:
        """Without what could be taken for the runtime's own marks."""
        return _HEADER.sub("(", _TAG.sub("&lt;", neutral(untagged(text, self.tag))))


def printable(text: str) -> str:
    """Valid Unicode without control and invisible characters; line ends become `\\n`."""
    text = _TERMINAL.sub("", clean(text)).translate(_BREAKS)
    if text.isascii():
        return _CONTROLS.sub("", text)
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _INVISIBLE)


def usurps(line: str) -> bool:
    """Whether a line of model or tool text gives orders in another's name, or fakes a border. A setting (`system: linux`) does
    not.

    It is looked at as a reader takes it (`folded`). A filter of words is no wall: other words, other languages and what
    is written in parts over several lines get through. What keeps a quote from acting is that no text grants anything.
    """
    plain = folded(line)
    return _SETTING.fullmatch(line) is None and any(pattern.search(plain) for pattern in _CLAIMS)


def claims_authority(line: str) -> bool:
    """Whether a line does so, or claims an approval and is not marked as a claim."""
    return usurps(line) or neutralised(line)[1] > 0


def _bounded(text: str) -> str:
    if len(text) <= BOUND:
        return text
    # A word that is cut might be the rest of a secret.
    end = text[-BOUND // 3 :].split(None, 1)
    return text[: BOUND * 2 // 3] + "\n" + (end[1] if len(end) > 1 else "")


def shortened(text: str, limit: int) -> str:
    """`text` with at most `limit` characters; a mark stands where something is left out."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + "…"
