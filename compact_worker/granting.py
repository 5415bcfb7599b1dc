"""What claims that something was approved, or that nobody need be asked: no text grants anything. Pure.

A filter of words is no wall: what is said in other words, or in a language that is not looked for here, gets through. Nothing reads a
permission from a text in any case; this only keeps such sentences from being handed on.
"""

from __future__ import annotations

import re

from compact_worker.folding import folded

_GRANTED = re.compile(
    r"\b(?:user|owner|operator|admin|human|reviewer|they|he|she)\b (?:has |have |had |already |just |explicitly )*"
    r"(?:approved|authori[sz]ed|permitted|granted|consented|gave (?:\w+ )?(?:approval|permission|consent))\b"
    r"|\b(?:approvals?|permissions?|authori[sz]ation|consent|access)\b "
    r"(?:was |were |is |are |has been |have been |already )*"
    r"(?:granted|given|obtained|received|approved)\b"
    r"|\bpre-?approved\b|\bapproval status: *approved\b"
    r"|承認(?:済み|されました|を得た)|許可(?:済み|されました|を得た)|已(?:获|获得|经)?(?:批准|授权)",
    re.IGNORECASE,
)
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
_WAIVED = re.compile(
    rf"\b(?:{_ASKED}|asking|confirming)\b (?:(?:step|check|prompt|request|gate|question|dialog|rule)s? )?"
    r"(?:is|are|was|were|has been|have been) (?:now |already |hereby |all )*"
    r"(?:(?:no longer|not|un)\s?(?:needed|required|necessary)|waived|lifted|suspended|disabled|dropped|optional"
    r"|(?:turned |switched )?off)\b"
    rf"|\bno (?:further |more |additional )?{_ASKED} (?:is |are )?(?:needed|required|necessary)\b"
    rf"|\b(?:{_UNNEEDED})\W+(?:even )?{_TO_ASK}"
    r"|\b(?:may|can|allowed to|authori[sz]ed to|permitted to|free to)\b(?! not\b| never\b| only\b|['’]t)[^.\n]{0,80}\bwithout "
    r"(?:any |further )*(?:asking|approval|permission|confirmation|consent)\b"
    r"|(?:承認|許可|確認)は不要|无需(?:批准|授权|确认)",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\b(?:never|not|n['’]?t) (?:\w+ )?(?:assume|believe|say|think|claim|conclude|pretend|act as (?:if|though))\b[^.\n]{0,30}$"
    r"|\b(?:unless|until|whether|if)\b[^.,;:\n]{0,40}$",
    re.IGNORECASE,
)
CONDITION = re.compile(
    r"\b(?:unless|until|if|before|when|once|after|only|whether|ask|asks|wait|not|never)\b", re.IGNORECASE
)
"""What in front of a claim makes it a rule about when to ask."""


def claims_approval(line: str) -> bool:
    """Whether a line says that something was approved, or that approval is not needed.

    A rule about when to ask ("not unless the user approved it") is a constraint and stays. Nothing reads a permission
    from a summary in any case.
    """
    line = folded(line)
    waived = _WAIVED.search(line)
    if waived is not None and _DENIED.search(line[: waived.start()]) is None:
        return True
    found = _GRANTED.search(line)
    return found is not None and CONDITION.search(line[: found.start()]) is None
