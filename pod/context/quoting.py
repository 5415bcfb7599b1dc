"""Text of a session made fit to be quoted in a checkpoint: no secrets, no authority, no marks of the runtime. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from compact_worker.overview import one_line
from compact_worker.summary import claims_approval
from interceptors.redact import Masker
from worker.models.encoding import neutral
from worker.text import clean

BOUND = 6_000
"""Characters of one text that are looked at: two thirds from its beginning, the rest from its end."""

SECRET = "[secret]"
"""Stands for what looks like a secret and has no name."""

_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\bsk-[A-Za-z0-9_-]{16,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}|\bxox[abeprs]-[A-Za-z0-9-]{10,}|\bAIza[\w-]{30,}|\beyJ[\w-]{10,2000}+\.[\w-]{10,4000}+\.[\w-]{6,}"
    r"|(?<=bearer )[\w.~+/-]{12,}=*|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)",
    re.DOTALL | re.IGNORECASE,
)
_ASSIGNED = re.compile(
    r"\b(\w{0,40}(?:api_?key|token|secret|password|passwd|credentials?)\w{0,40}[\"']?\s*[=:]\s*[\"']?)(?!\[secret)[^\s\"',;]{8,}",
    re.IGNORECASE,
)
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
_OVERRIDE = re.compile(
    r"\b(?:ignor\w*|disregard\w*|forget|overrid\w*|bypass\w*|supersed\w*|(?:do not|don't|no longer|stop) follow\w*)\b"
    r"[^.\n]{0,60}\b(?:instructions?|prompts?|rules?|directives?|guidelines|constraints?|polic(?:y|ies)|restrictions?|said)\b"
    r"|\b(?:new|updated|real|actual|hidden|secret)\s+(?:system\s+)?(?:instructions?|orders?|prompt)\b\s*:"
    r"|\byou are now\b|\bfrom now on,? you\b|\byour (?:new|real|actual) (?:task|role|instructions?|goal)\b",
    re.IGNORECASE,
)
_GRANT = re.compile(
    r"\b(?:you|agent|assistant|model)\b[^.\n]{0,30}\b(?:have|has|are|is|were|was)\b[^.\n]{0,30}"
    r"\b(?:permission|authori[sz]ed|authori[sz]ation|permitted|approved|granted|root access|full access)\b"
    r"|\bauto-?approv\w*"
    r"|\b(?:approv(?:al|ed)|permissions?|authori[sz]ed|consent)\b[\"']?\s*[=:]\s*[\"']?"
    r"(?:true|yes|granted|approved|given|ok|all|allow\w*|1)\b"
    r"|\b(?:approved|authori[sz]ed|permitted|granted|signed off) by (?:the |an? )?"
    r"(?:user|owner|operator|admin\w*|human|reviewer|maintainers?|security)\b",
    re.IGNORECASE,
)
_DEMAND = re.compile(
    r"\b(?:unless|until|if|before|not|never|must|should|needs? to|ask|wait|only|whether)\b", re.IGNORECASE
)
_CLOSING = re.compile(
    r"^\W*end(?:\s+of)?(?:\s+(?:the|this|untrusted|tool|file))*\s+"
    r"(?:context|output|results?|file|data|summary|memory|document|conversation|content|input|tool|checkpoint)\b\W*$",
    re.IGNORECASE,
)
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
    """A text that is safe to quote: how many of its lines claimed authority and were left out, how many secrets replaced."""

    text: str
    excluded: int = 0
    redacted: int = 0


@dataclass(frozen=True, slots=True)
class Quoter:
    """Makes text quotable. `tag` is the session's, which marks true orders; `masker` knows the secrets by value."""

    masker: Masker
    tag: str = ""

    def user(self, text: str) -> Quoted:
        """The user's words: lines that claim an approval are left out (no text grants one), the others stay as they are."""
        text, redacted = self.masker.mask(text)
        # What invisible characters kept apart is whole only once they are gone.
        text, more = self.masker.mask(printable(_bounded(text)))
        return self._without(text, redacted + more, claims_approval)

    def other(self, text: str) -> Quoted:
        """What a model or tool said: every line that claims authority is left out as well."""
        masked = self.masked(text)
        return self._without(masked.text, masked.redacted, claims_authority)

    def line(self, text: str, limit: int) -> Quoted:
        """The same in one line of at most `limit` characters."""
        quoted = self.other(text)
        folded = one_line(quoted.text)
        if claims_authority(folded):
            return Quoted("", quoted.excluded + 1, quoted.redacted)
        return Quoted(shortened(folded, limit), quoted.excluded, quoted.redacted)

    def masked(self, text: str) -> Quoted:
        """Without secrets, those that only their shape tells included. Not yet fit to be quoted."""
        text, known = self.masker.mask(text)
        text, more = self.masker.mask(printable(_bounded(text)))
        text, shaped = _SECRETS.subn(SECRET, text)
        text, assigned = _ASSIGNED.subn(rf"\g<1>{SECRET}", text)
        return Quoted(text, 0, known + more + shaped + assigned)

    def _without(self, text: str, redacted: int, excludes: Callable[[str], bool]) -> Quoted:
        lines = text.split("\n")
        kept = [line for line in lines if not excludes(line)]
        return Quoted(self._unmarked("\n".join(kept).strip()), len(lines) - len(kept), redacted)

    def _unmarked(self, text: str) -> str:
        """Without what could be taken for the runtime's own marks."""
        if self.tag:
            text = text.replace(self.tag, "[tag]")
        return _HEADER.sub("(", _TAG.sub("&lt;", neutral(text)))


def printable(text: str) -> str:
    """Valid Unicode without control and invisible characters; line ends become `\\n`."""
    text = _TERMINAL.sub("", clean(text)).translate(_BREAKS)
    if text.isascii():
        return _CONTROLS.sub("", text)
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _INVISIBLE)


def claims_authority(line: str) -> bool:
    """Whether a line of model or tool text grants something, gives orders in another's name, or fakes a border."""
    plain = unicodedata.normalize("NFKC", line)
    if claims_approval(plain) or _ROLE.search(plain) or _OVERRIDE.search(plain) or _CLOSING.search(plain):
        return True
    found = _GRANT.search(plain)
    return found is not None and _DEMAND.search(plain[: found.start()]) is None


def _bounded(text: str) -> str:
    if len(text) <= BOUND:
        return text
    # A word that is cut might be the rest of a secret.
    end = text[-BOUND // 3 :].split(None, 1)
    return text[: BOUND * 2 // 3] + "\n" + (end[1] if len(end) > 1 else "")


def shortened(text: str, limit: int) -> str:
    """`text` with at most `limit` characters; a mark stands where something is left out."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + "…"
