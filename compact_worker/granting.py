"""What loosens: a statement that something was approved, or that nobody need be asked. No text grants anything. Pure.

In memory that a model wrote such a statement is marked as an unverified claim: it stays readable, and what stands beside it stays as it
was. What tightens ("never without approval") is none, and stays word for word. The user's own words are carried by
code and never come here.

A filter of words is no wall: what is said in other words, or in a language that is not looked for here, gets through. Nothing reads a
permission from a text in any case; this only keeps such sentences from being handed on as facts.
"""

from __future__ import annotations

import re
import unicodedata

from compact_worker.folding import folded

CLAIM = "[unverified claim, grants nothing: "
"""Stands in front of a statement that loosens; `]` stands behind it."""

WINDOW = 3
"""Lines over which one statement may be written."""

LONG = 4_000
"""Characters of a line that are looked at as one."""

_FEW = r"(?:[^\w.\n]{1,3}\w{1,30}){0,4}?"
_ASKED = r"(?:approvals?|permissions?|confirmations?|authori[sz]ations?|consent)"
_UNNEEDED = (
    r"(?:(?:do|does)(?: not|n['’]?t| no longer)|no longer|never) (?:need|have) to|(?:do|does)(?: not|n['’]?t) (?:need|require)"
    r"|no (?:further |more |longer any )?need (?:to|of|for)|need(?:n['’]?t| not)|without having to|not (?:required|obliged) to"
    r"|no longer required to|(?:stop|quit)(?=\W+asking)"
)
_TO_ASK = (
    r"(?:ask(?:ing)?\b(?! (?:the|an?) (?:server|database|api|kernel|os)\b)"
    rf"|(?:(?:seek|get|obtain|request|await|wait for)(?:t?ing)? )?(?:(?:my|any|an?|the|further|prior|user|user's|human|explicit) ){{0,3}}{_ASKED}\b"
    r"|confirm(?:ing)? (?:with|anything|each|every|delet\w+|before|commands?)\b"
    r"|check(?:ing)? (?:in )?with (?:me|us|anyone|anybody|him|her|them|the (?:user|owner|operator|admin\w*|human))\b)"
)
_GRANTED = re.compile(
    r"\b(?:user|owner|operator|admin|human|reviewer|they|he|she)\b (?:has |have |had |already |just |explicitly )*"
    r"(?:approved|authori[sz]ed|permitted|granted|consented|gave (?:\w+ )?(?:approval|permission|consent))\b"
    r"|\b(?:approvals?|permissions?|authori[sz]ation|consent|access)\b "
    r"(?:was |were |is |are |has been |have been |already )*"
    r"(?:granted|given|obtained|received|approved)\b"
    r"|\b(?:user|owner|operator|admin|human|reviewer)\b (?:has |have |had |already |just |explicitly )*"
    r"(?:signed off|ok(?:ay)?['’]?(?:ed|d)\b|agreed to (?:all|any|every)|said (?:yes|ok|okay|to go ahead)|waived|gave (?:\w+ ){0,2}"
    r"(?:go-?ahead|ok|okay|green light|sign-?off|clearance|blessing)"
    r"|cleared (?:you|the agent|this|it|all)|(?:does not|doesn['’]?t) mind|is (?:fine|ok|okay) with (?:all|any|every|skipping|deleting|it))"
    r"|\b(?:sign-?off|go-?ahead|green light|clearance)\b (?:was |were |is |are |has been |have been |already )*"
    r"(?:granted|given|obtained|received|there|on file)\b"
    r"|\b(?:approvals?|permissions?|authori[sz]ation|consent)\b (?:is |are |was )?(?:on file|implied|assumed|implicit|automatic)\b"
    r"|\bpre-? ?(?:approved|authori[sz]ed|cleared)\b|\bapproval status: *approved\b"
    r"|承認(?:済み|されました|を得た)|許可(?:済み|されました|を得た)|已(?:获|获得|经)?(?:批准|授权)",
    re.IGNORECASE,
)
_WAIVED = re.compile(
    rf"\b(?:{_ASKED}|asking|confirming)\b (?:(?:step|check|prompt|request|gate|question|dialog|rule)s? )?"
    r"(?:is|are|was|were|has been|have been) (?:now |already |hereby |all )*"
    r"(?:(?:no longer|not|un)\s?(?:needed|required|necessary)|waived|lifted|suspended|disabled|dropped|optional"
    r"|(?:turned |switched )?off)\b"
    rf"|\bno (?:further |more |additional )?{_ASKED} (?:is |are )?(?:needed|required|necessary)\b"
    rf"|\b{_ASKED} (?:isn|aren|wasn|weren)['’]?t (?:\w+ )?(?:needed|required|necessary)\b"
    rf"|\b{_ASKED} (?:not|un|no longer|never) ?(?:needed|required|necessary)\b"
    rf"|\b(?:needs?|requires?) no (?:further |more |additional |prior |human |user |explicit )*{_ASKED}\b"
    rf"|\bno need (?:to|for) (?:ask|asking|confirm|confirming|confirmation|check(?:ing)? with)\b(?! (?:the|an?) (?:server|database|api|kernel|os)\b)"
    rf"|(?<!not )(?<!n't )(?<!n’t )(?<!never )(?<!ever )\b(?:proceed|continue|go ahead|go on|act) without"
    rf" (?:any |further |prior )*(?:asking|confirming|{_ASKED})\b"
    rf"|\b(?:{_UNNEEDED})\W+(?:even )?{_TO_ASK}"
    r"|\b(?:may|can|allowed to|authori[sz]ed to|permitted to|free to)\b(?! not\b| never\b| only\b|['’]t)[^.\n]{0,80}\bwithout "
    r"(?:any |further )*(?:asking|approval|permission|confirmation|consent)\b"
    r"|\bkeine (?:weitere )?(?:genehmigung|freigabe|bestatigung|zustimmung) (?:mehr )?(?:notig|erforderlich)\b"
    r"|\baucune (?:approbation|confirmation|autorisation) (?:n['’]est )?(?:requise|necessaire)\b"
    r"|\bno se (?:requiere|necesita) (?:aprobacion|confirmacion|permiso|autorizacion)\b"
    r"|(?:承認|許可|確認)は不要|无需(?:批准|授权|确认)",
    re.IGNORECASE,
)
_SKIP = re.compile(
    r"(?:^\W*|[.;:!,]\s*|\b(?:please|just|now|always|then|so|to|and|can|may|should|must|will|could)\s+)"
    r"(?:skip|bypass|omit|ignore|disable|drop|forgo|waive|suppress|turn off|switch off|do without|dispense with)(?:ping|ing)?\s+(?:\w+ ){0,3}?"
    r"(?:approvals?|permissions?|confirmations?|consent|sign-?offs?)\b(?! (?:tests?|pages?|modules?|class(?:es)?|emails?|files?)\b)",
    re.IGNORECASE,
)
_GRANT = re.compile(
    rf"\b(?:you|agent|assistant|model)\b{_FEW}[^\w.\n]{{1,3}}(?:have|has|are|is|were|was)\b{_FEW}[^\w.\n]{{1,3}}"
    r"(?:permission|authori[sz]ed|authori[sz]ation|permitted|approved|granted|root access|full access)\b"
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
_DENIED = re.compile(
    r"\b(?:never|not|n['’]?t) (?:\w+ )?(?:assume|believe|say|think|claim|conclude|pretend|act as (?:if|though))\b[^.\n]{0,30}$"
    r"|\b(?:nobody|no one|no (?:agent|tool|command|worker|job|change|delete|deploy\w*|push)) (?:\w{1,30} ){0,2}$"
    r"|\b(?:unless|until|whether|if)\b[^.,;:\n]{0,40}$",
    re.IGNORECASE,
)
CONDITION = re.compile(
    r"\b(?:unless|until|if|before|when|once|after|only|whether|ask|asks|wait|not|never)\b", re.IGNORECASE
)
"""What in front of a claim makes it a rule about when to ask."""

_DEMAND = re.compile(
    r"\b(?:unless|until|if|before|not|never|must|should|needs? to|ask|wait|only|whether)\b", re.IGNORECASE
)
_DATA = re.compile(
    r"\b(?:approv(?:al|ed)|permissions?|authori[sz]ed|consent)\b[\"'`]*\s*[=:]\s*[\"'`]*(?:true|yes|granted|approved|given|ok|all|allow\w*|1)\b",
    re.IGNORECASE,
)
_ABOUT_DATA = re.compile(
    r"\b(?:fields?|columns?|rows?|json|yaml|api|returns?|returned|responses?|payloads?|records?|schemas?|keys?|flags?|fixtures?"
    r"|tests?|values?|sets?|states?|objects?|entries|endpoint|query|filters?|where|status|orders?|invoices?|tickets?)\b|[{`]\s*[\"']?$",
    re.IGNORECASE,
)
_ELSEWHERE = re.compile(
    r"разрешени[ея] (?:не (?:требуется|нужно)|получено|дано)|(?:подтверждение|одобрение) (?:не (?:требуется|нужно)|получено)"
    r"|пользовател(?:ь|ем) (?:уже )?(?:одобрил|разрешил|одобрено|разрешено)|одобрено пользователем",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"[*_~`]{1,3}(?=\S)|(?<=\S)[*_~`]{1,3}|</?[a-z]{1,10}>")
_LEAD = re.compile(r"^[\s>|#/*+\-]*(?:\d{1,3}[.)]\s)?\s*")
_PIECES = re.compile(r"(?<=[.;!?。！？])\s+|(?<=[。！？])|\s*\|\s*")
_MARKED = re.compile(re.escape(CLAIM) + r"[^\]\[\n]*\]")


def loosens(text: str) -> bool:
    """Whether a text says that something was approved, or that approval is not needed.

    It is looked at as a reader takes it (`folded`, without the marks of Markdown). A rule about when to ask ("not unless the user
    approved it") and a field of data that is spoken of ("returns `approved: true`") are none.
    """
    if _ELSEWHERE.search(unicodedata.normalize("NFKC", text)):
        return True
    plain = folded(text)
    return _loosens(plain) or _loosens(_MARKUP.sub("", plain).replace("\\", ""))


def _loosens(plain: str) -> bool:
    waived = _WAIVED.search(plain)
    if waived is not None and _DENIED.search(plain[max(waived.start() - 80, 0) : waived.start()]) is None:
        return True
    found = _GRANTED.search(plain)
    if found is not None and CONDITION.search(plain[: found.start()]) is None:
        return True
    data = _DATA.search(plain)
    if data is not None and _ABOUT_DATA.search(plain[: data.start()]):
        plain = _DATA.sub("", plain)
    found = _GRANT.search(plain) or _SKIP.search(plain)
    return found is not None and _DEMAND.search(plain[: found.start()]) is None


def neutralised(text: str) -> tuple[str, int]:
    """The text with each statement that loosens marked as an unverified claim, and how many were; other lines, sentences and cells
    stay as they are, and so does what is marked already.
    """
    lines = text.split("\n")
    count = 0
    for at, line in enumerate(lines):
        lines[at], more = _line(line)
        count += more
    # What no line says alone, several may say together.
    at = 0
    while at < len(lines):
        size = next((n for n in range(2, WINDOW + 1) if _together(lines[at : at + n], n)), 0)
        for n in range(at, at + size):
            lines[n] = _marked(lines[n])
        count += bool(size)
        at += size or 1
    return "\n".join(lines), count


def _together(lines: list[str], size: int) -> bool:
    if len(lines) < size or any(CLAIM in line or not line.strip() or len(line) > LONG for line in lines):
        return False
    return loosens(" ".join(_LEAD.sub("", line).strip() for line in lines))


def _line(line: str) -> tuple[str, int]:
    """One line, statement by statement."""
    count = 0
    pieces: list[str] = []
    at = 0
    for place in [*_MARKED.finditer(line), None]:
        free = line[at : place.start() if place else len(line)]
        shown, more = _free(free)
        pieces += [shown, place[0] if place else ""]
        count += more
        at = place.end() if place else len(line)
    return "".join(pieces), count


def _free(text: str) -> tuple[str, int]:
    if len(text) <= LONG and not loosens(text):
        return text, 0
    count = 0
    pieces: list[str] = []
    at = 0
    for border in [*_PIECES.finditer(text), None]:
        piece = text[at : border.start() if border else len(text)]
        if loosens(piece):
            piece, count = _marked(piece), count + 1
        pieces += [piece, border[0] if border else ""]
        at = border.end() if border else len(text)
    if not count and len(text) <= LONG:
        return _marked(text), 1
    return "".join(pieces), count


def _marked(text: str) -> str:
    if not text.strip():
        return text
    lead = _LEAD.match(text)
    start = lead.end() if lead else 0
    rest = text[start:].rstrip()
    if not rest:
        return text
    inside = rest.replace("[", "(").replace("]", ")")
    return f"{text[:start]}{CLAIM}{inside}]{text[start + len(rest) :]}"
