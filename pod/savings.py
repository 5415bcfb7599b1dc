"""What prunes and compactions really saved or cost, by the figures that the provider reports.

What the work would have cost without them is reckoned: a prune's tokens would have stood in each later request of the
segment, a compaction's old context in each request of the segment that it began. What such a token would have cost is told by
the report of that very request (`Rates`): whether it read the cache, wrote to it, or neither. That a prune puts a
compaction off is not counted, nor what a compaction saves beyond the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from pod.log import entries as e
from worker.models.base import Capabilities, Price, Usage
from worker.records import Pruned, ReplyRecord

Cause: TypeAlias = Literal["prune", "compaction"]


class Rates(NamedTuple):
    """What a token of input costs, in US dollars a million: read from the cache, written to it, or neither."""

    read: float
    write: float
    input: float

    @classmethod
    def of(cls, price: Price) -> Rates:
        """Those of a model."""
        return cls(price.cache_read, price.cache_write, price.input)

    def cost(self, tokens: int, held: int, shown: Usage) -> float:
        """What a request of `tokens` would have cost, of which the cache held `held`.

        What it did not hold is written to it where the request shown wrote; only what that one neither read nor wrote
        (behind a provider's last marker) stays out.
        """
        fresh = max(tokens - held, 0)
        neither = max((shown.input_tokens or 0) - shown.cached_tokens - shown.cache_write_tokens, 0)
        written = max(fresh - neither, 0) if shown.cache_write_tokens else 0
        return (held * self.read + written * self.write + (fresh - written) * self.input) / 1_000_000

    def more(self, tokens: int, shown: Usage, *, held: bool) -> float:
        """What `tokens` more would have cost in the request shown, had they stood in the one before too; `held` says
        that the cache had them still."""
        fresh = self.write if shown.cache_write_tokens else self.input
        return tokens * (self.read if held else fresh) / 1_000_000


@dataclass(frozen=True, slots=True)
class Due:
    """A reply that shows the effect of prunes or of a compaction, not yet put on record.

    `entries` are the numbers of the entries that it shows the effect of; `before` is what was reported of the request
    before, `sent` its tokens where nothing was. `common` are the tokens at the beginning that both share, `cold` says that by the
    clock the cache was lost, `warmed` that the compaction read the old prefix itself, so that what this request read tells
    nothing of the time before.
    """

    cause: Cause
    entries: tuple[int, ...]
    tokens_saved: int
    model: str
    usage: Usage
    before: e.Reported | None
    sent: int
    common: int
    cold: bool = False
    warmed: bool = False
    expected_usd: float | None = None
    expected_rewritten: int = 0

    def held(self, capabilities: Capabilities | None) -> int:
        """Tokens of this request, as it would have been without the change, that the cache would have held.

        What was read shows that there was a cache. Nothing read shows that there was none, as the common beginning would
        have been found in it, unless that is too short to be kept at all: then the request before and the clock tell.
        """
        before, read = self.before, self.usage.cached_tokens
        if before is not None and before.model != self.model:
            return read
        if read:
            warm = not (self.cold and self.warmed)
        else:
            silent = capabilities is not None and self.common < capabilities.cache_least
            signs = before is not None and (before.usage.cached_tokens or before.usage.cache_write_tokens)
            warm = silent and bool(signs) and not self.cold
        return min(self.sent, (self.usage.input_tokens or 0) + self.tokens_saved) if warm else 0

    def measured(self, capabilities: Capabilities | None) -> e.Measured:
        """The entry for it. `capabilities` are those of the model that answered, None where they are not known."""
        usage, held = self.usage, self.held(capabilities)
        price = capabilities.price if capabilities is not None else None
        cost = None
        if price is not None:
            without = Rates.of(price).cost((usage.input_tokens or 0) + self.tokens_saved, held, usage)
            cost = round(price.cost(usage.model_copy(update={"output_tokens": 0})) - without, 8)
        return e.Measured(
            cause=self.cause, entries=self.entries, model=self.model, tokens_saved=self.tokens_saved,
            read_before=self.before.usage.cached_tokens if self.before else 0,
            read_after=usage.cached_tokens, written=usage.cache_write_tokens, held=held,
            expected_rewritten=self.expected_rewritten,
            rewritten=max(held - self.tokens_saved - usage.cached_tokens, 0),
            expected_usd=self.expected_usd, cost_usd=cost, read_mtok=None if price is None else price.cache_read,
            write_mtok=None if price is None else price.cache_write, input_mtok=None if price is None else price.input,
        )  # fmt: skip


class Standing(NamedTuple):
    """Why requests of this segment carry `tokens` less than before, and the prices by which that counts.

    `reach` is how far the cache was read in front of the change: a report that reads further shows that the cache would
    have held the tokens too.
    """

    cause: Cause
    model: str
    tokens: int
    reach: int
    rates: Rates


@dataclass(slots=True)
class Savings:
    """A fold of the segment's entries. `due` waits to be put on record, `newest` is the last measured prune, `before` what was
    reported of the segment's last request."""

    due: Due | None = None
    newest: e.Measured | None = None
    before: e.Reported | None = None
    _standing: list[Standing] = field(default_factory=list[Standing])
    _pruned: list[tuple[int, Pruned]] = field(default_factory=list[tuple[int, Pruned]])
    _compacted: tuple[int, e.CompactionCompleted] | None = None

    def pruned(self, seq: int, record: Pruned) -> None:
        """A prune, which the next reply will show the effect of."""
        self._pruned.append((seq, record))

    def compacted(self, seq: int, record: e.CompactionCompleted) -> None:
        """This segment began by a compaction."""
        self._compacted = (seq, record)

    def replied(self, record: ReplyRecord) -> dict[Cause, float]:
        """What this reply's request cost less for what was measured before, in US dollars by cause.

        A reply that shows the effect of a change tells that only once it is measured; one without figures tells nothing.
        """
        usage = record.usage
        if not usage.input_tokens:
            return {}
        self.due = self._shown(record)
        self.before = e.Reported(model=record.model, usage=usage)
        return {} if self.due is not None else self._less(record.model, usage)

    def _less(self, model: str, usage: Usage, held: bool | None = None) -> dict[Cause, float]:
        """Of another model's request nothing is known: its prices are not at hand."""
        saved: dict[Cause, float] = {}
        for one in self._standing:
            if one.model == model:
                read = usage.cached_tokens > one.reach if held is None else held
                saved[one.cause] = saved.get(one.cause, 0.0) + one.rates.more(one.tokens, usage, held=read)
        return saved

    def _shown(self, record: ReplyRecord) -> Due | None:
        usage, before = record.usage, self.before
        prunes, seqs = [prune for _, prune in self._pruned], tuple(seq for seq, _ in self._pruned)
        self._pruned = []
        if self._compacted is not None:
            # Prunes of the new segment's first request are part of what it is smaller by.
            (seq, done), self._compacted = self._compacted, None
            known = done.reported
            return Due(
                cause="compaction", entries=(seq, *seqs), tokens_saved=max(done.before - (usage.input_tokens or 0), 0),
                model=record.model, usage=usage, before=known,
                sent=(known.usage.input_tokens or 0) if known is not None else done.before, common=done.overhead,
                cold=done.cold, warmed=done.rung == "native" or done.figures.get("source") == "prefix",
                expected_rewritten=done.after,
            )  # fmt: skip
        if not prunes:
            return None
        expected = [p.expected_usd for p in prunes if p.expected_usd is not None]
        sent = (before.usage.input_tokens or 0) if before is not None else 0
        return Due(
            cause="prune", entries=seqs, tokens_saved=sum(p.tokens_saved for p in prunes), model=record.model,
            usage=usage, before=before, sent=sent, common=max(sent - max(p.tail_tokens for p in prunes), 0),
            cold=prunes[0].cold, expected_usd=sum(expected) if expected else None,
            expected_rewritten=0 if prunes[0].cold else sum(p.tail_tokens - p.tokens_saved for p in prunes),
        )  # fmt: skip

    def measured(self, record: e.Measured) -> dict[Cause, float]:
        """Takes in a measured effect; what its own request cost less, in US dollars by cause."""
        due, self.due = self.due, None
        if record.cause == "prune":
            self.newest = record
        saved = self._less(record.model, due.usage, record.held > 0) if due is not None else {}
        read, write, fresh = record.read_mtok, record.write_mtok, record.input_mtok
        if record.cost_usd is not None and read is not None and write is not None and fresh is not None:
            rates = Rates(read, write, fresh)
            self._standing.append(Standing(record.cause, record.model, record.tokens_saved, record.read_after, rates))
            saved[record.cause] = saved.get(record.cause, 0.0) - record.cost_usd
        return saved
