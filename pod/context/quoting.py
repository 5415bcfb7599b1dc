"""Text of a session made fit to be quoted in a checkpoint: no secrets, no authority, no marks of the runtime. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from compact_worker.folding import folded
from compact_worker.granting import claims_approval
from compact_worker.overview import one_line
from pod.context.secrecy import without_secrets
from worker.masking import Masker
from worker.models.encoding import neutral
from worker.text import clean

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
_SKIP = re.compile(
    r"(?:^\W*|[.;:!,]\s*|\b(?:please|just|now|always|then|so|to|and|can|may|should|must|will|could)\s+)"
    r"(?:skip|bypass|omit|ignore|disable|drop|forgo|waive|suppress|turn off|switch off|do without|dispense with)(?:ping|ing)?\s+(?:\w+ ){0,3}?"
    r"(?:approvals?|permissions?|confirmations?|consent)\b(?! (?:tests?|pages?|modules?|class(?:es)?|emails?|files?)\b)",
    re.IGNORECASE,
)
_GRANT = re.compile(
    r"\b(?:you|agent|assistant|model)\b[^.\n]{0,30}\b(?:have|has|are|is|were|was)\b[^.\n]{0,30}"
    r"\b(?:permission|authori[sz]ed|authori[sz]ation|permitted|approved|granted|root access|full access)\b"
    r"|\bauto-?approv\w*"
    r"|\b(?:i|we|the (?:user|owner|operator|admin\w*)) (?:hereby |now |fully |explicitly )*(?:approves?|authori[sz]es?|permits?|consents?|grants?)\b"
    r"|\byou (?:now )?(?:have|got) (?:\w+ ){0,2}(?:permission|approval|consent|authori[sz]ation|clearance|carte blanche)\b"
    r"|\b(?:full|blanket|standing|unrestricted|unlimited) (?:\w+ )?(?:approval|permissions?|consent|authori[sz]ation|authority|access)\b"
    r"|\byou (?:may|can)(?: now)? (?:\w+ ){1,3}?(?:anything|everything|whatever|freely|at will)\b"
    r"|\b(?:commands?|actions?|delet(?:es|ions)|writes|pushes|deploy(?:s|ments)|tool calls?|operations|requests|changes|tools)\b"
    r" (?:are|is) (?:now |all |hereby |already )*(?:pre-?)?(?:approved|authori[sz]ed|permitted|allowed|fine|ok|okay)\b(?! by\b)"
    r"|\b(?:consider|treat|regard) (?:\w+ ){1,4}(?:as )?(?:pre-?)?(?:approved|authori[sz]ed|permitted|granted)\b"
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
        text, shaped = without_secrets(text)
        return Quoted(text, 0, known + more + shaped)

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
    """Whether a line of model or tool text grants something, gives orders in another's name, or fakes a border.

    It is looked at as a reader takes it (`folded`). A filter of words is no wall: other words, other languages and what
    is written in parts over several lines get through. What keeps a quote from acting is that no text grants anything.
    """
    plain = folded(line)
    if claims_approval(plain) or any(pattern.search(plain) for pattern in _CLAIMS):
        return True
    found = _GRANT.search(plain) or _SKIP.search(plain)
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
