"""Whether a text is a summary, and the one form in which it is kept. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from compact_worker.directives import FindSource, Verified, quoted, verify
from compact_worker.granting import CONDITION, neutralised
from compact_worker.material import Directive
from compact_worker.sections import FENCE, REQUIRED, Sections, parse, render, substance
from worker.estimate import estimate_text
from worker.models.base import Family
from worker.text import clean

CODE_LINES = 12
"""A code block of more lines does not belong into a summary."""

CODE_CHARS = 600
"""A code block of more characters does not belong into a summary."""

DIFF_LINES = 3
"""So many lines of a diff in a row make a text one."""

THIN_PREFIX = 2_000
"""Tokens of a summarised range above which a summary must say something (case B011)."""

THIN_SUMMARY = 20
"""Tokens that the lines of such a summary have at least."""

CHECK_NOTE = "(as of that run; not checked since)"
"""What code puts behind a claim that tests pass: a summary cannot say so of the present."""

_PASSING = re.compile(
    r"\b(?:tests?|test suite|suite|checks?|build|ci|lint(?:er)?|pytest)\b (?:now |all |still |currently |is |are )*"
    r"(?:pass|passes|passing|green)\b",
    re.IGNORECASE,
)
_GOAL = re.compile(
    r"\b(?:make|makes|making|ensure|get|getting|verify|check|confirm|goal|want|wants|needs?|must|should)\b",
    re.IGNORECASE,
)
_DIFF = re.compile(r"^(?:diff --git |@@ -\d+|\+\+\+ |--- [ab]/)")
_ENTRY_ID = re.compile(r"^#{3,4}\s+\[([A-Za-z0-9_.:-]{1,40})\]", re.MULTILINE)


class SummaryRefused(Exception):
    """The text is not a summary. `reason` is a stable word; the text tells the model what to mend."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Summary:
    """A valid summary in its normal form, and what was done to get there.

    `moved` directives are now findings, `dropped` ones are gone, `excluded` statements claimed approvals or grants and are marked so; `lost`
    are ids of entries of the previous summary that do not occur in this one.
    """

    text: str
    tokens: int
    directives: tuple[Directive, ...]
    moved: tuple[tuple[str, str], ...]
    dropped: tuple[str, ...]
    excluded: int
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a summary is held against. `previous` is the summary that it updates, `prefix_tokens` the size of the summarised range."""

    max_tokens: int
    user_texts: Sequence[str]
    find_source: FindSource
    previous: str | None = None
    prefix_tokens: int = 0
    family: Family = "unknown"


def check_summary(text: str, rules: Rules) -> Summary:
    """The summary in its normal form. Raises `SummaryRefused` with what is to be mended.

    Refused are an empty text, a lone JSON value, a missing section, code and diffs, sections that say nothing for a
    range of any size, and a text above the limit. Claims of approvals are marked as such, claims that tests pass are dated,
    what looks like a secret is replaced, directives are verified; those that a user said stay as they are.
    """
    text = clean(text)
    _refuse_shapes(text)
    sections = parse(text)
    if sections.missing:
        names = ", ".join(f'"## {name}"' for name in sections.missing)
        raise SummaryRefused(
            "sections", f"missing: {names}. All of {len(REQUIRED)} headings must stand there: {_headings()}"
        )
    said = substance(sections.bodies)
    if not said.strip():
        raise SummaryRefused("empty", "all sections are empty: write what was done and what comes next")
    if rules.prefix_tokens > THIN_PREFIX and estimate_text(said, rules.family) < THIN_SUMMARY:
        raise SummaryRefused(
            "thin",
            f"the summary says next to nothing, and what it stands for has {rules.prefix_tokens:,} tokens: "
            "look things up with the tools that read the session, then write what was done, decided and asked for",
        )
    return _normalise(sections, rules)


def entry_ids(text: str | None) -> tuple[str, ...]:
    """The ids of a summary's entries, as in `### [T1] name`, in order."""
    return tuple(dict.fromkeys(_ENTRY_ID.findall(text or "")))


def _refuse_shapes(text: str) -> None:
    if not text.strip():
        raise SummaryRefused("empty", "the text is empty")
    if _is_json(text):
        raise SummaryRefused("json", f"the text is JSON; a summary is Markdown with the headings {_headings()}")
    in_row = 0
    start: int | None = None
    fence = ""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        in_row = in_row + 1 if _DIFF.match(line) else 0
        if in_row >= DIFF_LINES:
            raise SummaryRefused("code", "the text holds a diff: say in words what changed and where")
        mark = FENCE.match(line)
        if mark is None or (fence and not mark[1].startswith(fence)):
            continue
        if start is None:
            start, fence = number, mark[1]
            continue
        block = lines[start + 1 : number]
        if len(block) > CODE_LINES or sum(map(len, block)) > CODE_CHARS:
            raise SummaryRefused(
                "code",
                f"line {start + 1} begins a code block of {len(block)} lines: name the file and lines "
                "instead, or mark them to be read again",
            )
        start, fence = None, ""
    if start is not None:
        raise SummaryRefused(
            "cut", f"line {start + 1} begins a code block that does not end: the text seems to be cut off"
        )


def _is_json(text: str) -> bool:
    bare = re.sub(r"^```\w*\s*|\s*```$", "", text.strip())
    if bare[:1] not in "{[":
        return False
    try:
        json.loads(bare)
    except ValueError:
        return False
    return True


def _normalise(sections: Sections, rules: Rules) -> Summary:
    excluded = 0
    bodies: dict[str, str] = {}
    for name, body in sections.bodies.items():
        if name != "User Directives":
            bodies[name], count = _screen(body)
            excluded += count
    earlier = quoted(parse(rules.previous or "").bodies.get("User Directives", ""))
    said = sections.bodies.get("User Directives", "")
    verified = verify(said, rules.user_texts, rules.find_source, earlier)
    bodies["User Directives"] = verified.body()
    others, count = _screen("\n".join(_flat(name, body) for name, body in sections.others.items()))
    excluded += count
    moved, count = _screen(_moved(verified, bodies.get("Findings", "")))
    excluded += count
    findings = [bodies.get("Findings", ""), others, moved]
    bodies["Findings"] = "\n".join(part for part in findings if part)
    text = render(bodies)
    tokens = estimate_text(text, rules.family)
    if tokens > rules.max_tokens:
        raise SummaryRefused(
            "too_long",
            f"the summary has {tokens:,} tokens, more than summary_max_tokens={rules.max_tokens}: "
            "shorten what is finished first",
        )
    known = set(entry_ids(text))
    lost = tuple(label for label in entry_ids(rules.previous) if label not in known)
    return Summary(text, tokens, verified.kept, verified.moved, verified.dropped, excluded, lost)


def _screen(body: str) -> tuple[str, int]:
    """A section with claims of approvals marked, claims about tests dated and secrets taken out, and how many claims there were."""
    from compact_worker.secrecy import without_secrets

    text, excluded = neutralised(without_secrets("\n".join(body.splitlines()))[0])
    lines = (f"{line.rstrip()} {CHECK_NOTE}" if claims_check(line) else line for line in text.split("\n"))
    return "\n".join(lines).strip("\n"), excluded


def claims_check(line: str) -> bool:
    """Whether a line says that tests or checks pass, and does not date it."""
    found = _PASSING.search(line)
    if found is None or CHECK_NOTE in line:
        return False
    before = line[: found.start()]
    return CONDITION.search(before) is None and _GOAL.search(before) is None


def _flat(name: str, body: str) -> str:
    lines = (line.strip().lstrip("#-*+ ") for line in body.splitlines())
    return "\n".join(f"- {name}: {line}" for line in lines if line)


def _moved(verified: Verified, findings: str) -> str:
    lines = (f"- 「{text}」 — source: {source} (said there, not by the user)" for text, source in verified.moved)
    return "\n".join(line for line in lines if line not in findings)


def _headings() -> str:
    return ", ".join(f"## {name}" for name in REQUIRED)
