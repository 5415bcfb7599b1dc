"""The history of a segment: a pure fold of records into the view, the queue, the open calls and the figures.

Nothing else changes it. The live worker and a restart apply the same records, so they see the same items, the same open
calls and the same occupancy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from worker import records as r
from worker.believing import HIGHEST, LOWEST, SLACK, Known, Trail, refusal_holds
from worker.budget import LearnedWindow
from worker.calibration import LEARN_FROM, Calibration
from worker.codes import ESTIMATE_BARRED, MEMORY_REBUILT, USAGE_DOUBTED
from worker.estimate import Provenance, estimate_images, estimate_item
from worker.items import (
    AssistantItem,
    Item,
    OpaqueItem,
    ReasoningItem,
    ReplyItem,
    ToolCallItem,
    ToolResultItem,
    UserItem,
)
from worker.models.base import Family, Refusals, Usage
from worker.models.reported import ABSURD
from worker.occupancy import OPAQUE_SHARE, Baseline, Occupancy
from worker.stand_ins import lost_before, lost_result

ON_REPORTS: frozenset[str] = frozenset({"usage", "usage-adjusted"})
"""Provenances of numbers that stand on an earlier report; a report after any other is the first of a stretch."""


class Parts(NamedTuple):
    """The next request's tokens: `known` from a report or a count, `raw` what is estimated (without any factor)."""

    known: int
    raw: int


class Counters(BaseModel):
    """Figures of one run, through yields and restarts. `prompt_tokens` sums what the provider reported as input,
    `empty_replies` counts those in a row. What was saved is below 0 where it was lost."""

    model_config = ConfigDict(frozen=True)

    requests: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    retries: int = 0
    denied: int = 0
    empty_replies: int = 0
    pauses: int = 0
    overflows: int = 0
    overflows_since_reply: int = 0
    repairs: int = 0
    compactions: int = 0
    prunes: int = 0
    segments: int = 1
    worker_cost_usd: float = 0.0
    worker_requests: int = 0
    worker_tokens: int = 0
    worker_unpriced: int = 0
    prune_saved_usd: float = 0.0
    compaction_saved_usd: float = 0.0


@dataclass(slots=True)
class OpenCall:
    """A call without a result. `started` says that the tool may have run; `result` waits for its siblings."""

    item: ToolCallItem
    started: bool = False
    result: ToolResultItem | None = None


@dataclass(slots=True)
class History:
    """The state of a segment as the worker sees it. Change it through `apply` only.

    `held` are context items that came while calls were open: they enter the view behind the results.
    `view` holds the items of the next request, `tokens` the estimate of each (without factor or calibration), `family`
    the estimator, `changes` the places that edits touched, in order, so that whoever encodes the view can follow
    (below 0: the item at the place `~change` was taken out).
    `unanswered` is the place, counted from 1, of the first admitted input without a reply (0 for none), `newest_batch`
    where the newest reply begins. `refusals` are what each model's server is known not to take.
    `rebuilt` names the models of which it was warned that they read a memory in words, `doubted`
    what it was warned of in reports that are not believed, by model and kind. `trails` are the reports in a row, for each model,
    that were not believed. `unsure` is what of the estimate a report may leave out, or see far smaller.
    """

    family: Family = "unknown"
    view: list[Item] = field(default_factory=list[Item])
    tokens: list[int] = field(default_factory=list[int])
    total: int = 0
    opaque: int = 0
    edits: int = 0
    changes: list[int] = field(default_factory=list[int])
    queue: dict[str, UserItem] = field(default_factory=dict[str, UserItem])
    open: dict[str, OpenCall] = field(default_factory=dict[str, OpenCall])
    held: list[Item] = field(default_factory=list[Item])
    call_ids: set[str] = field(default_factory=set[str])
    index: dict[str, int] = field(default_factory=dict[str, int])
    counters: Counters = field(default_factory=Counters)
    baseline: Baseline | None = None
    calibration: Calibration = field(default_factory=Calibration)
    windows: dict[str, LearnedWindow] = field(default_factory=dict[str, LearnedWindow])
    newest_batch: int = 0
    unanswered: int = 0
    rebuilt: set[str] = field(default_factory=set[str])
    doubted: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    refusals: dict[str, Refusals] = field(default_factory=dict[str, Refusals])
    trails: dict[str, Trail] = field(default_factory=dict[str, Trail])
    unsure: int = 0

    def extend(self, items: Iterable[Item]) -> None:
        """Puts items at the end of the view (starting items of a segment, and what `apply` adds)."""
        for item in items:
            self.index[item.id] = len(self.view)
            self.view.append(item)
            count = estimate_item(item, self.family)
            self.tokens.append(count)
            self.total += count
            self.unsure += unsure_tokens(item, count)
            if isinstance(item, ReasoningItem | OpaqueItem):
                self.opaque += count
            if isinstance(item, ToolCallItem):
                self.call_ids.add(item.call_id)

    def apply(self, record: object) -> None:
        """Folds one record. Records that are not about the view are ignored."""
        handler = _HANDLERS.get(type(record))
        if handler is not None:
            handler(self, record)

    def set_family(self, family: Family) -> None:
        """Estimates the view anew, for another model's tokenizer."""
        if family == self.family:
            return
        self.family = family
        self.tokens = [estimate_item(item, family) for item in self.view]
        self.total = sum(self.tokens)
        self.opaque = sum(
            t for t, i in zip(self.tokens, self.view, strict=True) if isinstance(i, ReasoningItem | OpaqueItem)
        )
        self.unsure = sum(map(unsure_tokens, self.view, self.tokens))
        self.baseline = None
        self.trails.clear()

    def begin_run(self, counters: Counters | None = None) -> None:
        """A new run starts counting from nothing, or goes on from `counters`."""
        self.counters = counters or Counters()

    def count(self, **more: float) -> None:
        """Adds to counters of the run."""
        now = self.counters
        self.counters = now.model_copy(update={key: getattr(now, key) + value for key, value in more.items()})

    # -- the fold -----------------------------------------------------------------------------------------------

    def _input(self, record: r.Input) -> None:
        self.queue.setdefault(record.item.id, record.item)

    def _close_lost(self) -> None:
        """Before input or a reply enters the view: calls still open then lost their results to a repair of the log.

        They get one that says so: each call has exactly one result, directly behind its reply.
        """
        if self.open:
            self._settle([call.result or lost_result(call.item) for call in self.open.values()])

    def _settle(self, results: Iterable[ToolResultItem]) -> None:
        """The results of the open calls enter the view, and behind them what had to wait for them."""
        self.open.clear()
        self.extend(results)
        held, self.held = self.held, []
        self.extend(held)

    def _admitted(self, record: r.Admitted) -> None:
        self._close_lost()
        first = len(self.view) + 1
        self.extend(self.queue.pop(i) for i in record.ids if i in self.queue)
        if len(self.view) >= first:
            self.unanswered = self.unanswered or first

    def _withdrawn(self, record: r.Withdrawn) -> None:
        """Only what the model has not answered can be taken back: the last item, or one behind its last reply."""
        for i in reversed(record.ids):
            self.queue.pop(i, None)
            at = self.index.get(i)
            if at is not None and (at == len(self.view) - 1 or 0 < self.unanswered <= at + 1):
                self._take_out(at)
        if self.unanswered:
            places = range(self.unanswered, len(self.view) + 1)
            self.unanswered = next((n for n in places if isinstance(self.view[n - 1], UserItem)), 0)

    def _take_out(self, at: int) -> None:
        del self.index[self.view[at].id]
        self.unsure -= unsure_tokens(self.view[at], self.tokens[at])
        del self.view[at]
        self.total -= self.tokens.pop(at)
        for place in range(at, len(self.view)):
            self.index[self.view[place].id] = place
        self.edits += 1
        self.changes.append(~at)
        if self.baseline is not None and at < self.baseline.newer:
            self.baseline = None  # a count of the view with this item: what it has without is not known

    def _context_added(self, record: r.ContextAdded) -> None:
        if self.open:
            self.held += record.items
        else:
            self.extend(record.items)

    def _edited(self, record: r.Edited | r.Pruned) -> None:
        removed = 0
        for item in record.items:
            at = self.index.get(item.id)
            if at is None:
                continue
            count = estimate_item(item, self.family)
            if self.baseline is not None and at < self.baseline.newer:
                removed += self.tokens[at] - count
            if isinstance(self.view[at], ReasoningItem | OpaqueItem):
                self.opaque -= self.tokens[at]
            if isinstance(item, ReasoningItem | OpaqueItem):
                self.opaque += count
            self.unsure += unsure_tokens(item, count) - unsure_tokens(self.view[at], self.tokens[at])
            self.view[at] = item
            self.total += count - self.tokens[at]
            self.tokens[at] = count
            self.changes.append(at)
        self.edits += 1
        if self.baseline is not None:
            self.baseline = replace(self.baseline, removed=self.baseline.removed + removed)
        if isinstance(record, r.Pruned):
            self.count(prunes=1)

    def _reply(self, record: r.ReplyRecord) -> None:
        self._close_lost()
        if not self.view:
            self.extend(lost_before(item) for item in kept_items(record)[:1])
        covers, before = len(self.view), self.total
        usage = record.usage
        self._judge(record)
        shown = kept_items(record)
        self.extend(shown)
        if shown:
            self.newest_batch = covers
            self.unanswered = 0
        # Some servers report zeros where they count nothing.
        if usage.input_tokens:
            self._accepted(record.model, usage.input_tokens)
            reasoning = sum(
                n for n, i in zip(self.tokens[covers:], shown, strict=True) if isinstance(i, ReasoningItem | OpaqueItem)
            )
            said = self.total - before
            told = max(usage.output_tokens - usage.reasoning_tokens, 0)
            echoed = echo(told, said - reasoning, self.calibration.factor(record.model)) + reasoning if shown else 0
            self.baseline = Baseline(
                model=record.model, reported=usage.input_tokens, echoed=echoed, covers=covers, newer=len(self.view),
                estimated=record.estimate, cleared=cleared_tokens(record.transformations), raw=self.total, said=said,
            )  # fmt: skip
        self.open.update({i.call_id: OpenCall(i) for i in record.items if isinstance(i, ToolCallItem)})
        self._count_reply(record.counts, record)

    def _judge(self, record: r.ReplyRecord) -> None:
        """What the report teaches of the estimator: the growth since the last one, and how good the estimate was."""
        base, reported, cleared = self.baseline, record.usage.input_tokens, cleared_tokens(record.transformations)
        if self._trailed(record, cleared):
            return
        if not reported or cleared:
            return
        grown = 0
        if base is not None and base.model == record.model and not base.removed and base.source == "usage":
            grown = base.since(self.total)
            known = base.reported + base.echoed
            self.calibration = self.calibration.learn(record.model, grown, reported - known)
        if record.estimate:
            self.calibration = self.calibration.compare(
                record.model, record.estimate, reported, record.buffer,
                first=record.provenance not in ON_REPORTS, tested=grown >= LEARN_FROM,
            )  # fmt: skip

    def _trailed(self, record: r.ReplyRecord, cleared: int) -> bool:
        """Follows reports that are not believed. True where nothing else is to be learned from this one: it is not, or it
        is since it and those before it grew as the estimates did, which is what they teach."""
        model, trail = record.model, self.trails.pop(record.model, None)
        reported = (record.doubted or record.usage).input_tokens or 0
        if record.doubted is not None and record.usage.input_tokens is None and reported > 0 and record.estimate:
            self.calibration = self.calibration.doubt(model, record.estimate, reported)
        if record.whole is None:
            return False
        reported += cleared
        trail = Trail.begin(reported, record.whole) if trail is None else trail.follow(reported, record.whole)
        if record.usage.input_tokens is None:
            self.trails[model] = trail
        else:
            self.calibration = self.calibration.learn(model, *trail.grown)
        return True

    def _counted(self, record: r.TokensCounted) -> None:
        """A count of the view as it stands is the base of what follows."""
        if record.provenance == "provider count":
            self._correct(record.model, record.parts, record.tokens)
        self._base(record.model, record.tokens, record.provenance)

    def _base(self, model: str, tokens: int, source: Provenance) -> None:
        self.trails.pop(model, None)
        at = len(self.view)
        self.baseline = Baseline(
            model=model, reported=tokens, echoed=0, covers=at, newer=at, source=source, raw=self.total
        )

    def _correct(self, model: str, parts: tuple[int, int], exact: int, whole: int = 0) -> None:
        known, raw = parts
        self.calibration = self.calibration.correct(model, raw, exact, known, whole)

    def _warned(self, record: r.Warned) -> None:
        if record.code == ESTIMATE_BARRED:
            self.calibration = self.calibration.told(str(record.figures.get("model", "")))
        elif record.code == MEMORY_REBUILT:
            reader = str(record.figures.get("to", ""))
            self.rebuilt.add(reader)
            if record.figures.get("from") == reader and self.baseline is not None and self.baseline.model == reader:
                self.baseline = None  # a number of the view with this memory: what it has in words is not known
        elif record.code == USAGE_DOUBTED:
            self.doubted.add((str(record.figures.get("model", "")), str(record.figures.get("kind", ""))))

    def _count_reply(self, usage: Usage, record: r.ReplyRecord) -> None:
        self.count(
            requests=1,
            prompt_tokens=usage.input_tokens or 0,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=record.cost_usd or 0.0,
            unpriced=record.cost_usd is None,
            tool_calls=sum(isinstance(i, ToolCallItem) for i in record.items),
            pauses=record.stop == "pause",
        )
        empty = 0 if says_something(record.items) else self.counters.empty_replies + 1
        self.counters = self.counters.model_copy(update={"overflows_since_reply": 0, "empty_replies": empty})

    def _tool_started(self, record: r.ToolStarted) -> None:
        call = self.open.get(record.call_id)
        if call is not None:
            call.started = True

    def _tool_result(self, record: r.ToolResult) -> None:
        call = self.open.get(record.item.call_id)
        if call is None or call.result is not None:
            return
        call.result = record.item
        if record.item.status == "denied":
            self.count(denied=1)
        if all(c.result is not None for c in self.open.values()):
            self._settle([c.result for c in self.open.values() if c.result is not None])

    def _retry(self, record: r.Retry) -> None:
        self.count(retries=1)

    def _accepted(self, model: str, tokens: int) -> None:
        known = self.windows.get(model, LearnedWindow())
        if tokens > known.accepted:
            self.windows[model] = known.model_copy(update={"accepted": tokens})

    def _window(self, record: r.WindowLearned) -> None:
        accepted = self.windows.get(record.model, LearnedWindow()).accepted
        if record.source == "declared":
            self.windows[record.model] = LearnedWindow(accepted=accepted)
            return
        if record.source == "stated" and accepted > record.window:
            accepted = 0  # it was reported, and the refusal is the stronger evidence
        self.windows[record.model] = LearnedWindow(
            accepted=accepted, limit=record.window, declared=record.declared, told=record.message
        )
        if record.counted is not None:
            self._correct(record.model, record.parts, record.counted, record.whole)
            # Exactly what the next request would have: nothing that was reported before says more of it.
            if record.whole and refusal_holds(record.counted, record.whole, self.unsure):
                self._base(record.model, record.counted, "provider count")
        self.count(overflows=1, overflows_since_reply=1)

    def _provider_refused(self, record: r.ProviderRefused) -> None:
        self.refusals[record.model] = record.refusals

    def _size(self, record: r.SizeRefused) -> None:
        self.count(overflows=1, overflows_since_reply=1)

    def _tools_changed(self, record: r.ToolsChanged) -> None:
        self.baseline = None
        self.trails.clear()

    # -- looking ------------------------------------------------------------------------------------------------

    @property
    def unresolved(self) -> list[OpenCall]:
        """Open calls that have no result yet, in the order of the reply."""
        return [call for call in self.open.values() if call.result is None]

    def occupancy(self, model: str, overhead: int, pending: int = 0) -> Occupancy:
        """The occupancy of the next request to `model`.

        `overhead` and `pending` are raw estimates of system prompt and schemas, and of input that is queued. The last
        report is the base where its request's view is a prefix of this one; only what is newer is estimated, times the
        model's calibration. Without a report everything is estimated, times 1.15.
        """
        k, barred = self.calibration.factor(model), self.calibration.barred(model)
        base = self.baseline
        parts = self.parts(model, overhead, pending)
        if base is None or base.model != model:
            factor = self.calibration.whole(model)
            return Occupancy(
                tokens=int(parts.raw * factor), provenance="heuristic", overhead=int(overhead * factor),
                pending=pending, barred=barred,
            )  # fmt: skip
        tokens = max(parts.known + int(parts.raw * k), 0)
        if self.opaque:
            tokens = max(tokens, int(OPAQUE_SHARE * base.left * (overhead + self.total + pending)))
        provenance: Provenance = "usage-adjusted" if base.removed and base.source != "tokenizer" else base.source
        return Occupancy(
            tokens=tokens, provenance=provenance, overhead=min(int(overhead * k), tokens), pending=pending,
            known=0 if base.source == "tokenizer" else max(parts.known, 0), barred=barred,
        )  # fmt: skip

    def parts(self, model: str, overhead: int, pending: int = 0) -> Parts:
        """What is known of the next request to `model`, and the raw estimate of the rest."""
        base = self.baseline
        if base is None or base.model != model:
            return Parts(0, overhead + self.total + pending)
        # What edits took out counts carefully, what they put in wholly.
        k = self.calibration.factor(model)
        removed = int(base.removed * (min(k, 1.0) if base.removed > 0 else max(k, 1.0)))
        return Parts(base.reported + base.echoed - removed, base.since(self.total) + pending)

    def known(self, model: str) -> Known | None:
        """What was last told of the beginning of the next request to `model`, and the raw estimate of the rest."""
        base = self.baseline
        if base is None or base.model != model:
            return None
        return Known(base.reported + base.cleared, base.said + base.since(self.total), base.removed, base.source)

    def last(self) -> Item | None:
        """The last item of the view."""
        return self.view[-1] if self.view else None

    def statistics(self) -> dict[str, Any]:
        """Figures to look at: items, tokens, edits, queue, open calls."""
        return {
            "items": len(self.view),
            "tokens": self.total,
            "edits": self.edits,
            "queued": len(self.queue),
            "open_calls": len(self.unresolved),
        }


def cleared_tokens(transformations: Iterable[Mapping[str, Any]]) -> int:
    """Tokens of old results that the provider left out: its report has them not, so it says nothing of the estimator."""
    told = (change.get("cleared_input_tokens") for change in transformations)
    return sum(value for value in told if isinstance(value, int) and 0 < value <= ABSURD)


def unsure_tokens(item: Item, tokens: int) -> int:
    """What of an item's estimate a report may leave out (reasoning, B050) or see far smaller (images, B046)."""
    if isinstance(item, ReasoningItem | OpaqueItem):
        return tokens
    return estimate_images(item.images) if isinstance(item, UserItem | ToolResultItem) else 0


def echo(told: int, said: int, factor: float) -> int:
    """The tokens that a reply has in later requests: those of the reported output (without reasoning), unless they can't be
    those of what was said (`said`, raw). Then reasoning that is not sent back was counted, or nothing was."""
    return told if int(said * LOWEST) - SLACK <= told <= int(said * HIGHEST) + SLACK else int(said * factor)


def says_something(items: Iterable[ReplyItem]) -> bool:
    """Whether a reply has text or calls."""
    return any(isinstance(i, ToolCallItem) or (isinstance(i, AssistantItem) and bool(i.text.strip())) for i in items)


def kept_items(record: r.ReplyRecord) -> list[ReplyItem]:
    """The items of a reply that the view shows.

    Blank text is left out, and so is reasoning that led to nothing: a strict provider rejects both. Where the provider
    paused its turn, it gets back what it sent.
    """
    items = [i for i in record.items if not isinstance(i, AssistantItem) or i.text.strip()]
    if record.stop != "pause" and all(isinstance(i, ReasoningItem) for i in items):
        return []
    return items


def pending_tokens(history: History, items: Sequence[Item]) -> int:
    """The estimate of items that are not yet in the view."""
    return sum(estimate_item(item, history.family) for item in items)


_HANDLERS: dict[type, Any] = {
    r.Input: History._input,  # pyright: ignore[reportPrivateUsage]  # the table of this class's own fold
    r.Admitted: History._admitted,  # pyright: ignore[reportPrivateUsage]
    r.Withdrawn: History._withdrawn,  # pyright: ignore[reportPrivateUsage]
    r.ContextAdded: History._context_added,  # pyright: ignore[reportPrivateUsage]
    r.Edited: History._edited,  # pyright: ignore[reportPrivateUsage]
    r.Pruned: History._edited,  # pyright: ignore[reportPrivateUsage]
    r.ReplyRecord: History._reply,  # pyright: ignore[reportPrivateUsage]
    r.ToolStarted: History._tool_started,  # pyright: ignore[reportPrivateUsage]
    r.ToolResult: History._tool_result,  # pyright: ignore[reportPrivateUsage]
    r.Retry: History._retry,  # pyright: ignore[reportPrivateUsage]
    r.WindowLearned: History._window,  # pyright: ignore[reportPrivateUsage]
    r.ProviderRefused: History._provider_refused,  # pyright: ignore[reportPrivateUsage]
    r.SizeRefused: History._size,  # pyright: ignore[reportPrivateUsage]
    r.TokensCounted: History._counted,  # pyright: ignore[reportPrivateUsage]
    r.Warned: History._warned,  # pyright: ignore[reportPrivateUsage]
    r.ToolsChanged: History._tools_changed,  # pyright: ignore[reportPrivateUsage]
}
