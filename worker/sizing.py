"""How large the next request is, and what each model may be sent: one number for triggers, ceiling, warnings and display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from worker.admission import next_inputs
from worker.budget import DEFAULT_BUFFER, Budget, budget_of
from worker.estimate import estimate_item, estimate_spec, estimate_text
from worker.history import History, Parts, pending_tokens
from worker.items import UserItem
from worker.ledger import Ledger
from worker.memory import reading_tokens
from worker.models.base import Model, ToolSpec
from worker.occupancy import Occupancy


def _no_thresholds(budget: Budget) -> Sequence[int]:
    return ()


def _nothing_stands() -> int:
    return 0


@dataclass(slots=True)
class Sizing:
    """The sizes of the next request, for each model.

    `thresholds` are the tokens at which something is decided beside the ceiling. `standing` are the raw tokens of what must
    stay in every request beside system prompt and schemas.
    """

    models: Sequence[Model]
    ledger: Ledger
    system: str
    tools: tuple[ToolSpec, ...]
    max_output_tokens: int = 0
    buffer: int = DEFAULT_BUFFER
    ceiling: int | None = None
    thresholds: Callable[[Budget], Sequence[int]] = _no_thresholds
    standing: Callable[[], int] = _nothing_stands
    _overheads: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def model(self) -> Model:
        """The model that is asked first."""
        return self.models[0]

    @property
    def history(self) -> History:
        """The history whose view is sent."""
        return self.ledger.history

    def overhead(self, model: Model) -> int:
        """Raw estimate of what no compaction can lower: system prompt and tool schemas."""
        if model.name not in self._overheads:
            family = model.capabilities.family
            self._overheads[model.name] = estimate_text(self.system, family) + sum(
                estimate_spec(spec, family) for spec in self.tools
            )
        return self._overheads[model.name]

    def budget(self, model: Model) -> Budget:
        """The budget of a model, with what refusals taught."""
        return budget_of(
            model.capabilities,
            requested_output=self.max_output_tokens,
            buffer=self.buffer,
            learned=self.history.windows.get(model.name),
        )

    def occupancy(self, model: Model | None = None) -> Occupancy:
        """The occupancy of the next request, the queued input that goes with it included."""
        model = model or self.model
        history = self.history
        if self.foreign(model):
            return self._in_full(model)
        pending = pending_tokens(history, self.going()) if history.queue else 0
        occupancy = history.occupancy(model.name, self.overhead(model), pending)
        if more := self._read_more(model):
            tokens = occupancy.tokens + int(more * history.calibration.whole(model.name))
            return occupancy.model_copy(update={"tokens": max(tokens, 0)})
        return occupancy

    def going(self) -> tuple[UserItem, ...]:
        """The queued inputs that the next request takes along; see `next_inputs`."""
        if not self.history.queue:
            return ()
        model = self.model
        most = min([*self.thresholds(self.budget(model)), self.limit(model)])
        factor = self.history.calibration.whole(model.name)
        return next_inputs(self.history, self.overhead(model) + self.standing(), most / factor)

    def occupancy_of_head(self, model: Model, upto: int, *, in_full: bool = False) -> Occupancy:
        """The occupancy of a request with the first `upto` items of the view alone: at most that of the whole view.

        `in_full`: what was reported of the view says nothing of it, since the provider left parts of it out.
        """
        history, family = self.history, model.capabilities.family
        same = family == history.family
        tokens = history.tokens[:upto] if same else [estimate_item(i, family) for i in history.view[:upto]]
        factor, overhead = history.calibration.whole(model.name), self.overhead(model)
        raw = overhead + sum(tokens) + self._replaced(model)
        head = Occupancy(tokens=int(raw * factor), provenance="heuristic", overhead=int(overhead * factor))
        if in_full:
            return head
        known = [head, self.occupancy(model), self._reported(model, upto)]
        return min((each for each in known if each is not None), key=lambda each: each.upper)

    def _reported(self, model: Model, upto: int) -> Occupancy | None:
        """What the last report says of the first `upto` items: the request that it is of held them all, and so they are no
        more. None where it is of fewer, or of what the provider itself left parts out of.
        """
        base = self.history.baseline
        if base is None or base.model != model.name or base.cleared or upto > base.newer or self._read_more(model):
            return None
        k = self.history.calibration.factor(model.name)
        put_in = int(max(-base.removed, 0) * max(k, 1.0))
        tokens = base.reported + put_in + (base.echoed if upto > base.covers else 0)
        overhead = min(int(self.overhead(model) * k), tokens)
        return Occupancy(tokens=tokens, provenance=base.source, overhead=overhead)

    def _read_more(self, model: Model) -> int:
        """Raw tokens that the history's number lacks for this model, since it reads a memory in words; below 0: has too many."""
        base = self.history.baseline
        return 0 if base is not None and base.model == model.name else self._replaced(model)

    def _replaced(self, model: Model) -> int:
        """Raw tokens of a memory in words less those of the memory, for a model that does not get it as it is."""
        return reading_tokens(self.history.view, model)

    def _in_full(self, model: Model) -> Occupancy:
        """The occupancy by the estimator of a model whose family is not the history's: a fallback may count twice as
        many tokens (facts, providers 5.2)."""
        history, family = self.history, model.capabilities.family
        factor = history.calibration.whole(model.name)
        overhead = self.overhead(model)
        pending = sum(estimate_item(item, family) for item in self.going())
        total = self.parts(model).raw + pending
        return Occupancy(
            tokens=int(total * factor), provenance="heuristic", overhead=int(overhead * factor), pending=pending,
            barred=history.calibration.barred(model.name),
        )  # fmt: skip

    def foreign(self, model: Model) -> bool:
        """Whether the history's estimates are of another family than this model's, and no report stands in for them."""
        base = self.history.baseline
        return model.capabilities.family != self.history.family and (base is None or base.model != model.name)

    def parts(self, model: Model) -> Parts:
        """What is known of the next request without what is queued, and the raw estimate of the rest."""
        if not self.foreign(model):
            parts = self.history.parts(model.name, self.overhead(model))
            return Parts(parts.known, parts.raw + self._read_more(model))
        family = model.capabilities.family
        raw = sum(estimate_item(item, family) for item in self.history.view)
        return Parts(0, self.overhead(model) + raw + self._replaced(model))

    def whole(self, model: Model) -> int:
        """The raw estimate of all of the next request without what is queued: what a report of it is held against."""
        if self.foreign(model):
            return self.parts(model).raw
        return self.overhead(model) + self.history.total + self._read_more(model)

    def limit(self, model: Model) -> int:
        """The most tokens that a request to this model may be estimated at."""
        available = self.budget(model).available
        return available if self.ceiling is None else min(available, self.ceiling)

    def fits(self, model: Model, occupancy: Occupancy | None = None) -> bool:
        """Whether the next request, or another one of this occupancy, may be sent to this model."""
        occupancy = occupancy or self.occupancy(model)
        return occupancy.fits(self.budget(model).available) and occupancy.tokens <= self.limit(model)
