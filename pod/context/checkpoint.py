"""The checkpoint: a deterministic extract of what is summarised, made by code alone, without a model. Pure.

An earlier checkpoint is taken up where its hash fits, and only what is new is added: made in steps, the text is the same
as made at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compact_worker.overview import one_line
from compact_worker.summary import CHECK_NOTE, claims_check
from pod.context.extract import Extract, Source, kept, source_hash, tail_hash
from pod.context.facts import Checkpoint, Fact, FactKind
from pod.context.quoting import Quoter, claims_authority, printable
from worker.estimate import estimate_text
from worker.items import ContextItem, Item, ToolResultItem
from worker.memory import read_by_others
from worker.models.base import Family
from worker.models.encoding import neutral
from worker.text import sha256

FACTS = 60
"""Facts of a kind that a checkpoint keeps at most."""

LEAST_TOKENS = 160
"""Tokens of a checkpoint's text below which none is made."""

SHARE = 3
"""The newest fact of a section may take one part in so many of its room, the next one of what is left, and so on."""

LEAST_SHARE = 40
"""Tokens that any fact may take while there is room."""

PREAMBLE = (
    "Quotes from the record of this session, chosen by code; nothing in them was checked or concluded. The task list and "
    "processes stand in the state item."
)
WHOLE = " session_history has every item whole."

SECTIONS: Mapping[FactKind, tuple[str, int]] = {
    "words": ("User Directives", 6),
    "summary": ("Earlier Summary", 7),
    "file": ("Files", 3),
    "command": ("Commands", 3),
    "error": ("Errors", 3),
    "call": ("Calls", 3),
    "said": ("Current Work", 6),
}
"""The heading of each kind, in the order in which they stand, and its part of the room."""

_FILLED: tuple[FactKind, ...] = ("words", "said", "command", "error", "file", "call", "summary")
"""The order in which sections are filled: what one leaves goes to the next."""

_DIRECTIVE = re.compile(
    r"\b(?:must|never|always|do not|don't|only|please|keep|use|order|title|when you|write|avoid|prefer|should|no)\b",
    re.IGNORECASE,
)
_CHECKED = re.compile(
    r"\b(?:verified|validated|tested|works now|succeed(?:s|ed)|no (?:errors|failures|warnings)|\d+ passed|all green|exit code 0)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a checkpoint is made for. `limit` is the most raw tokens that its text may have, `whole` names the user's
    messages that stand in the new segment anyway, `tail` are the items behind the cut; `segment`, `last` (log entry), `model`
    and `at` (UTC) go on record. `history` says that `session_history` may be asked.
    """

    limit: int
    quoter: Quoter
    segment: str
    model: str
    at: str
    family: Family = "unknown"
    first: int = 1
    last: int = 0
    tail: Sequence[Item] = ()
    whole: frozenset[str] = frozenset()
    show: Callable[[str], str] = str
    history: bool = True


@dataclass(frozen=True, slots=True)
class Earlier:
    """Checkpoints that may be taken up: the one whose text the segment began with, and the last one that was made of this
    very segment and came to nothing."""

    standing: Checkpoint | None = None
    attempt: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A new checkpoint, whether it goes on from an earlier one, how many facts it shows and only counts, and why earlier
    ones were stale."""

    checkpoint: Checkpoint
    taken_up: bool
    shown: int
    omitted: int
    stale: tuple[str, ...] = ()


def make_checkpoint(sources: Sequence[Source], earlier: Earlier, rules: Rules) -> Made | None:
    """The checkpoint of a range, or None where nothing in it can be kept, or the room is too small for anything."""
    base, new, stale = _take_up(sources, earlier, rules)
    extract = Extract(rules.quoter, rules.show, changes=base.changes if base else 0)
    for source in new:
        extract.take(source)
    facts, more = kept([*(base.facts if base else ()), *extract.facts], FACTS)
    dropped: dict[FactKind, int] = dict(base.dropped) if base else {}
    for kind, count in more.items():
        dropped[kind] = dropped.get(kind, 0) + count
    changes = extract.changes + sum(isinstance(item, ToolResultItem) and item.writes is not None for item in rules.tail)
    text, shown, omitted = _text(facts, dropped, rules, changes)
    if not text:
        return None
    chained = base.source_hash if base else ""
    again = base is not None and base is earlier.attempt
    checkpoint = Checkpoint(
        segment=rules.segment,
        first=rules.first,
        last=rules.last,
        items=len(sources),
        messages=(base.messages if base else 0) + extract.messages,
        base=base.base if base is not None and again else chained,
        source_hash=source_hash(chained, [source.item for source in new], rules.quoter.masker),
        tail_items=len(rules.tail),
        tail_hash=tail_hash(rules.tail),
        model=rules.model,
        tokens=estimate_text(text, rules.family),
        at=rules.at,
        excluded=(base.excluded if base else 0) + extract.excluded,
        redacted=(base.redacted if base else 0) + extract.redacted,
        changes=extract.changes,
        facts=tuple(facts),
        dropped=dropped,
        text_hash=sha256(text),
        text=text,
    )
    return Made(checkpoint, base is not None, shown, omitted, tuple(stale))


def standing_fault(checkpoint: Checkpoint, items: Sequence[Item]) -> str:
    """Why a checkpoint is not that of the summary among a segment's items; nothing where it is."""
    fault = checkpoint.fault()
    if not fault and all(sha256(text) != checkpoint.text_hash for text in _summaries(items)):
        fault = "no summary of this segment has its hash"
    return fault


def _take_up(
    sources: Sequence[Source], earlier: Earlier, rules: Rules
) -> tuple[Checkpoint | None, Sequence[Source], list[str]]:
    """The checkpoint to go on from, what it does not cover, and which ones do not fit the log."""
    stale: list[str] = []
    items = [source.item for source in sources]
    attempt, standing = earlier.attempt, earlier.standing
    if attempt is not None:
        fault = attempt.fault() or _attempt_fault(attempt, items, rules)
        if not fault:
            return attempt, sources[attempt.items :], stale
        stale.append(f"the checkpoint made at {attempt.at} is not taken up: {fault}")
    if standing is not None:
        fault = standing_fault(standing, items)
        if not fault:
            return standing, [s for s in sources if not _is_summary(s.item)], stale
        stale.append(f"the checkpoint that this segment began with is not taken up: {fault}")
    return None, sources, stale


def _attempt_fault(attempt: Checkpoint, items: Sequence[Item], rules: Rules) -> str:
    """Whether its range still stands in the log as it was."""
    if attempt.segment != rules.segment:
        return "it is one of another segment"
    if attempt.items > len(items):
        return f"its range of {attempt.items} items is longer than what is summarised now ({len(items)})"
    covered = items[: attempt.items]
    if attempt.base:
        covered = [item for item in covered if not _is_summary(item)]
    if source_hash(attempt.base, covered, rules.quoter.masker) != attempt.source_hash:
        return "the items before its cut are not those that it was made of"
    behind = [*items[attempt.items :], *rules.tail][: attempt.tail_items]
    return "" if tail_hash(behind) == attempt.tail_hash else "the items behind its cut are not those of then"


def _is_summary(item: Item) -> bool:
    return isinstance(item, ContextItem) and item.kind == "summary"


def _summaries(items: Sequence[Item]) -> list[str]:
    read = map(read_by_others, items)
    return [item.text for item in read if isinstance(item, ContextItem) and item.kind == "summary"]


# -- the text -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Section:
    lines: list[str] = field(default_factory=list[str])
    omitted: int = 0


def _text(facts: Sequence[Fact], dropped: Mapping[FactKind, int], rules: Rules, changes: int) -> tuple[str, int, int]:
    """The text within the limit (nothing where it can't be), how many facts it shows, how many it only counts."""
    by_kind: dict[FactKind, list[Fact]] = {}
    for fact in facts:
        if not (fact.kind == "words" and fact.item in rules.whole):
            by_kind.setdefault(fact.kind, []).append(fact)
    if not by_kind or rules.limit < LEAST_TOKENS:
        return "", 0, 0
    room = rules.limit
    while room >= LEAST_TOKENS // 2:
        sections = _filled(by_kind, dropped, rules, changes, room)
        text = _rendered(sections, rules)
        over = estimate_text(text, rules.family) - rules.limit
        if over <= 0:
            shown = sum(len(section.lines) for section in sections.values())
            return (text if shown else ""), shown, sum(section.omitted for section in sections.values())
        room -= over + 1
    return "", 0, 0


def _filled(
    by_kind: Mapping[FactKind, Sequence[Fact]], dropped: Mapping[FactKind, int], rules: Rules, changes: int, room: int
) -> dict[FactKind, _Section]:
    bare = _rendered({kind: _Section(omitted=FACTS * 100) for kind in SECTIONS if kind in by_kind}, rules)
    left = room - estimate_text(bare, rules.family)
    parts = sum(SECTIONS[kind][1] for kind in by_kind)
    spare = 0
    found: dict[FactKind, _Section] = {}
    for kind in _FILLED:
        if kind in by_kind:
            mine = left * SECTIONS[kind][1] // parts + spare
            found[kind], spare = _section(by_kind[kind], mine, rules, changes)
            found[kind].omitted += dropped.get(kind, 0)
    return {kind: found[kind] for kind in SECTIONS if kind in found}


def _section(facts: Sequence[Fact], room: int, rules: Rules, changes: int) -> tuple[_Section, int]:
    """The newest facts that fit, each within its share of what the newer ones left; and the tokens that stay free."""
    section = _Section()
    left = max(room, 0)
    for number, fact in enumerate(reversed(facts)):
        oldest = number == len(facts) - 1
        line = _line(fact, left if oldest else max(LEAST_SHARE, left // SHARE), rules, changes)
        cost = estimate_text(f"{line}\n", rules.family)
        if cost > left:
            section.omitted = len(facts) - number
            break
        if line:
            left -= cost
            section.lines.append(line)
    section.lines.reverse()
    return section, left


def _line(fact: Fact, share: int, rules: Rules, changes: int) -> str:
    """One fact in one line: nothing where what is left of it would claim authority."""
    mark = _provenance(fact, changes)
    room = share - estimate_text(mark, rules.family) - 4
    text = (
        _words(fact.text, room, rules.family) if fact.kind == "words" else _cut(one_line(fact.text), room, rules.family)
    )
    if fact.kind == "words":
        text = f"「{text}」"
    elif claims_authority(text):
        return ""
    return f"- {neutral(printable(text))}{mark}"


def _provenance(fact: Fact, changes: int) -> str:
    """Where a fact comes from: the item of a user's words; run and entry of what tells of a check, as of then."""
    if fact.kind == "words":
        return f" [item {fact.item}]"
    if fact.kind == "file":
        return ""
    text = fact.text.replace(CHECK_NOTE, "")
    if fact.kind != "command" and not claims_check(text) and not _CHECKED.search(text):
        return ""
    where = f"entry {fact.entry}" if fact.entry else f"item {fact.item}"
    run = f"run {fact.run}, " if fact.run else ""
    stale = "; not fresh, files were written since" if changes > fact.changes else ""
    return f" ({run}{where}; as of then, not checked since{stale})"


def _words(text: str, room: int, family: Family) -> str:
    """A user's words whole where they fit, else the lines that direct something, else their beginning."""
    if estimate_text(one_line(text), family) <= room:
        return one_line(text)
    chosen: list[str] = []
    for line in text.split("\n"):
        if _DIRECTIVE.search(line) and estimate_text(" […] ".join([*chosen, one_line(line)]), family) <= room:
            chosen.append(one_line(line))
    return " […] ".join(chosen) or _cut(one_line(text), room, family)


def _cut(text: str, room: int, family: Family) -> str:
    """The longest beginning of at most `room` tokens, with a mark where it is not the whole."""
    if estimate_text(text, family) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if estimate_text(text[:middle].rstrip() + "…", family) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + "…"


def _rendered(sections: Mapping[FactKind, _Section], rules: Rules) -> str:
    blocks = [PREAMBLE + (WHOLE if rules.history else "")]
    for kind, section in sections.items():
        lines = list(section.lines)
        if section.omitted:
            lines.insert(0, f"- ({section.omitted} older ones are not shown)")
        if lines:
            blocks.append("\n".join([f"## {SECTIONS[kind][0]}", *lines]))
    return "\n\n".join(blocks) + "\n"
