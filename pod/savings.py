"""What prunes and compactions really saved or cost, by the figures that the provider reports.

What the work would have cost without them is reckoned: a prune's tokens would have stood in each later request of the
segment, a compaction's old context in each request of the segment that it began. That a prune puts a compaction off is
not counted, nor what a compaction saves beyond the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from pod.log import entries as e
from worker.models.base import Price, Usage
from worker.records import Pruned, ReplyRecord

Cause: TypeAlias = Literal["prune", "compaction"]


@dataclass(frozen=True, slots=True)
class Due:
    """A reply that shows the effect of prunes or of a compaction, not yet put on record.

    `entries` are the numbers of the entries that it shows the effect of; `read_before` is what the request before read
    from the cache, `held` what the cache would have held of this request without the change.
    """

    cause: Cause
    entries: tuple[int, ...]
    tokens_saved: int
    model: str
    usage: Usage
    read_before: int
    held: int
    cold: bool
    expected_usd: float | None = None
    expected_rewritten: int = 0

    def measured(self, price: Price | None) -> e.Measured:
        """The entry for it. `price` is that of the model that answered, None where it is not known."""
        usage = self.usage
        sent = usage.input_tokens or 0
        without = sent + self.tokens_saved
        held = 0 if self.cold else min(self.held, without)
        rewritten = max(held - self.tokens_saved - usage.cached_tokens, 0)
        cost = None
        if price is not None:
            fresh = price.cache_write if usage.cache_write_tokens else price.input
            kept = (held * price.cache_read + (without - held) * fresh) / 1_000_000
            cost = round(price.cost(usage.model_copy(update={"output_tokens": 0})) - kept, 8)
        return e.Measured(
            cause=self.cause, entries=self.entries, model=self.model, tokens_saved=self.tokens_saved,
            read_before=self.read_before, read_after=usage.cached_tokens, written=usage.cache_write_tokens,
            expected_rewritten=self.expected_rewritten, rewritten=rewritten, expected_usd=self.expected_usd,
            cost_usd=cost, read_mtok=None if price is None else price.cache_read,
            fresh_mtok=None if price is None else price.cache_write,
        )  # fmt: skip


class Standing(NamedTuple):
    """Why requests of this segment carry less than before, and the prices by which that counts."""

    cause: Cause
    model: str
    read_mtok: float
    fresh_mtok: float

    def saves(self, tokens: int, record: ReplyRecord) -> float:
        """US dollars that a later reply's request cost less; 0 for another model's, whose prices are not at hand."""
        if record.model != self.model:
            return 0.0
        return tokens * (self.read_mtok if record.usage.cached_tokens else self.fresh_mtok) / 1_000_000


@dataclass(slots=True)
class Savings:
    """A fold of the segment's entries. `due` waits to be put on record, `newest` is the last measured prune."""

    due: Due | None = None
    newest: e.Measured | None = None
    _standing: dict[Standing, int] = field(default_factory=dict[Standing, int])
    _pruned: list[tuple[int, Pruned]] = field(default_factory=list[tuple[int, Pruned]])
    _compacted: tuple[int, e.CompactionCompleted] | None = None
    _before: Usage | None = None

    def pruned(self, seq: int, record: Pruned) -> None:
        """A prune, which the next reply will show the effect of."""
        self._pruned.append((seq, record))

    def compacted(self, seq: int, record: e.CompactionCompleted) -> None:
        """This segment began by a compaction."""
        self._compacted = (seq, record)

    def replied(self, record: ReplyRecord) -> dict[Cause, float]:
        """What this reply's request cost less for what was measured before, in US dollars by cause."""
        saved: dict[Cause, float] = {}
        for standing, tokens in self._standing.items():
            saved[standing.cause] = saved.get(standing.cause, 0.0) + standing.saves(tokens, record)
        if record.usage.input_tokens:
            self.due = self._shown(record)
            self._before = record.usage
        return saved

    def _shown(self, record: ReplyRecord) -> Due | None:
        usage, before = record.usage, self._before
        if self._pruned:
            (seqs, prunes), self._pruned = zip(*self._pruned, strict=True), []
            expected = [p.expected_usd for p in prunes if p.expected_usd is not None]
            return Due(
                cause="prune", entries=tuple(seqs), tokens_saved=sum(p.tokens_saved for p in prunes),
                model=record.model, usage=usage, read_before=before.cached_tokens if before else 0,
                held=_held(before), cold=prunes[0].cold, expected_usd=sum(expected) if expected else None,
                expected_rewritten=0 if prunes[0].cold else sum(p.tail_tokens - p.tokens_saved for p in prunes),
            )  # fmt: skip
        if self._compacted is not None:
            (seq, done), self._compacted = self._compacted, None
            sent = usage.input_tokens or 0
            saved = max(done.before - sent, 0)
            return Due(
                cause="compaction", entries=(seq,), tokens_saved=saved, model=record.model, usage=usage,
                read_before=0, held=done.before, cold=False, expected_rewritten=done.after,
            )  # fmt: skip
        return None

    def measured(self, record: e.Measured) -> float:
        """Takes in a measured effect; what its own request cost less, in US dollars."""
        self.due = None
        if record.cause == "prune":
            self.newest = record
        if record.cost_usd is None or record.read_mtok is None or record.fresh_mtok is None:
            return 0.0
        standing = Standing(record.cause, record.model, record.read_mtok, record.fresh_mtok)
        self._standing[standing] = self._standing.get(standing, 0) + record.tokens_saved
        return -record.cost_usd


def _held(before: Usage | None) -> int:
    """What the cache holds of the request before; nothing where the provider showed no sign of one."""
    caches = before is not None and (before.cached_tokens or before.cache_write_tokens)
    return (before.input_tokens or 0) if before is not None and caches else 0
