"""The rung `native`: the provider compacts the history itself, and its own item opens the new segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from pod import codes
from pod.context.beat import beating
from pod.context.facts import Checkpoint
from pod.context.parts import Parts
from pod.context.policy import Memory, Plan, RungFailed
from pod.errors import PodError
from pod.log import entries as e
from worker.booking import conservative
from worker.codes import USAGE_DOUBTED
from worker.errors import ModelError
from worker.estimate import estimate_item
from worker.items import Item, OpaqueItem, source_hash
from worker.memory import distrust, maker_of, provenance
from worker.models.base import FOCUSED_WAYS, Compacted, CompactsNatively, Model, NoCompaction, Usage
from worker.models.reported import checked, recordable
from worker.records import Warned
from worker.sending import Tried
from worker.sizing import Sizing
from worker.text import sha256

if TYPE_CHECKING:
    from pod.context.rungs import Breaker, CheckpointRung

UNREADABLE = (
    "The provider of {model} compacted {count} items here and gives no text of them, and none could be quoted. "
    "session_history has them."
)
"""What others read of a memory that nothing is known of."""


def compacts(model: Model) -> bool:
    """Whether a model's provider compacts histories itself."""
    return bool(model.capabilities.native_compaction) and isinstance(model, CompactsNatively)


def no_way(model: Model) -> str:
    """Why the rung is passed over for a model whose provider does not compact."""
    return f"the provider of {model.name} has no compaction of its own"


def above_ceiling(sizes: Sizing, model: Model, upto: int, *, in_full: bool) -> str:
    """Why the rung is passed over where a request to compact the first `upto` items would be too large, else nothing.

    `in_full`: the provider clears, and such a request goes uncleared.
    """
    head = sizes.occupancy_of_head(model, upto, in_full=in_full)
    if sizes.fits(model, head):
        return ""
    return f"the items to compact are estimated at {head}, above the ceiling of {sizes.limit(model):,} for {model.name}"


def billed(usage: Usage, model: Model, estimate: int) -> Usage:
    """What a report is booked at, without faults."""
    window = model.capabilities.window
    usage = checked(usage, window)
    if usage.faults:
        return conservative(usage, believed=True, estimate=estimate, said=0, window=window)
    return usage


def spent_on(usage: Usage, model: Model, attempts: int, estimate: int = 0) -> dict[str, float]:
    """What a compaction cost, as the session's figures count it: a figure that can't be true is booked as `conservative`
    says, with the input's `estimate`. No output is larger than the window."""
    price, usage = model.capabilities.price, billed(usage, model, estimate)
    return {
        "requests": attempts, "prompt_tokens": usage.input_tokens or 0, "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens, "cost_usd": 0.0 if price is None else price.cost(usage),
        "unpriced": int(price is None),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class NativeRung:
    """A memory by the provider of the model that is asked next. Fallbacks are not asked: it is bound to its model.

    `quotes` makes the text that others read where the provider gives none.
    """

    parts: Parts
    breaker: Breaker
    quotes: CheckpointRung
    name: str = "native"
    asks_model: bool = True

    def passed_over(self, plan: Plan) -> str:
        """Where nothing can be summarised, the model has no such way, its provider rejects its own memories or the
        breaker is open (by hand it is tried all the same), or the request would be too large. One that is on record already needs no request.
        """
        model = self.parts.sender.active
        if not plan.possible:
            return plan.reason
        if not compacts(model):
            return no_way(model)
        if plan.trigger != "hand" and (reason := distrust(model)):
            return reason
        if self._on_record(plan, model) is not None:
            return ""
        resting = "" if plan.trigger == "hand" else self.breaker.resting()
        return resting or self._above_ceiling(plan, model)

    def _on_record(self, plan: Plan, model: Model) -> e.NativeMade | None:
        """The memory of these very items by this model that was paid for and came to nothing: a process died, or it was
        not accepted."""
        made = self.parts.session.state.native
        if made is None or maker_of(made.item) != model.name:
            return None
        return made if made.item.source_hash == source_hash(self._head(plan)) else None

    def _asks_anew(self, plan: Plan, made: e.NativeMade, focus: str | None, model: Model) -> bool:
        """Whether one on record was made without the focus, and the provider can be told of it."""
        if not focus or made.focus == focus or made.way not in FOCUSED_WAYS:
            return False
        return not self._above_ceiling(plan, model)

    def _above_ceiling(self, plan: Plan, model: Model) -> str:
        in_full = model.name in self.parts.config.cleared
        return above_ceiling(self.parts.sender, model, plan.cut.at, in_full=in_full)

    def _head(self, plan: Plan) -> list[Item]:
        return self.parts.session.state.history.view[: plan.cut.at]

    async def attempt(self, plan: Plan, label: str, focus: str | None) -> Memory:
        """Takes up what is on record, or asks the provider and puts its answer on record, durably.

        Raises `RungFailed`, `PodError` of the store. Cancelled, the connection is closed and nothing is kept; an answer
        that had come stays on record.
        """
        model = self.parts.sender.active
        found = self._on_record(plan, model)
        if found is not None and self._asks_anew(plan, found, focus, model):
            found = None
        if found is None:
            await self._within_limits(plan, model)
        made = found or await self._asked(plan, label, model, focus)
        item = made.item
        figures = {
            **provenance(item, estimate_item(item, self.parts.session.family)),
            "way": made.way,
            "taken_up": found is not None,
        }
        if focus and made.focus != focus:
            figures["focus"] = "not used: the provider was not told of it"
            message = f"the provider of {model.name} takes no focus for its own compaction ({made.way}): it was not told of it"
            self.parts.session.put(Warned(code=codes.NATIVE_FOCUS, message=message))
        return Memory(native=item, checkpoint=self._checkpoint_of(item), figures=figures)

    async def _within_limits(self, plan: Plan, model: Model) -> None:
        """Raises `RungFailed` where the request would pass a limit of the run: it is not sent."""
        limits = self.parts.shared_limits((model,))
        if limits is None:
            return
        in_full = model.name in self.parts.config.cleared
        head = self.parts.sender.occupancy_of_head(model, plan.cut.at, in_full=in_full)
        output = self.parts.sender.budget(model).output
        ended = await limits.reached(self.parts.wall(), head.tokens, output, (model.capabilities.price,))
        if ended is not None:
            raise RungFailed(ended.message, {"model": model.name}, limit=limits.met)

    def _checkpoint_of(self, item: OpaqueItem) -> Checkpoint | None:
        """The checkpoint that others read in the memory's place, where its text is one."""
        attempt = self.parts.session.state.attempt
        return attempt if attempt is not None and attempt.text_hash == sha256(item.readable) else None

    async def _recorded(
        self, plan: Plan, label: str, model: Model, tried: Tried[Compacted], focus: str | None
    ) -> e.NativeMade:
        answer, head = tried.answer, self._head(plan)
        readable = answer.item.readable.strip() and self.parts.session.gate.masked(answer.item.readable)
        if not readable:
            readable = await self._quoted(plan, label) or UNREADABLE.format(model=model.name, count=len(head))
        spent = spent_on(answer.usage, model, tried.attempts, plan.summarised_tokens)
        made = e.NativeMade(
            compaction=label,
            item=answer.item.model_copy(update={"source_hash": source_hash(head), "readable": readable}),
            way=answer.way,
            usage=recordable(billed(answer.usage, model, plan.summarised_tokens)),
            cost_usd=None if spent["unpriced"] else spent["cost_usd"],
            attempts=tried.attempts,
            seconds=round(tried.seconds, 3),
            provider_id=self.parts.session.gate.id(answer.provider_id),
            focus=focus if answer.focused else None,
        )
        self.parts.session.put(made)
        if faults := checked(answer.usage, model.capabilities.window).faults:
            message = f"{model.name} reported a usage of its compaction that is not believed: {'; '.join(faults)}"
            figures = {"model": model.name, "kind": "figures"}
            self.parts.session.put(Warned(code=USAGE_DOUBTED, message=message, figures=figures))
        await self.parts.session.sync()
        self.parts.session.folder.files.point("native.made")
        return made

    async def _quoted(self, plan: Plan, label: str) -> str:
        """The text of a checkpoint of the same items, empty where none can be made: the memory is there all the same."""
        try:
            return (await self.quotes.made(plan, label)).checkpoint.text
        except RungFailed as failure:
            self.parts.session.put(
                Warned(code=codes.NATIVE_UNREADABLE, message=f"a memory has no text of its own: {failure}")
            )
            return ""

    async def _asked(self, plan: Plan, label: str, model: Model, focus: str | None) -> e.NativeMade:
        deadline, made = self.parts.config.worker.deadline, None

        def beat(elapsed: float) -> None:
            self.parts.progress(label, "compaction.working", {"rung": self.name, "elapsed": elapsed})

        try:
            with anyio.move_on_after(deadline):
                async with beating(beat):
                    tried = await self.parts.sender.compact(model, plan.cut.at, focus or "")
                    self._check(label, model, tried)
                    # What is paid for goes on record, also where the compaction is cancelled meanwhile.
                    with anyio.CancelScope(shield=True):
                        made = await self._recorded(plan, label, model, tried, focus)
        except ModelError as error:
            message = f"{model.name} did not compact: {error.kind}: {error.message} {error.gave_up}".strip()
            paid = isinstance(error, NoCompaction)
            spent = (
                spent_on(error.usage, model, error.attempts, plan.summarised_tokens)
                if paid
                else {"requests": error.attempts}
            )
            raise self._failed(label, model, message, spent) from error
        except (PodError, RungFailed):
            raise
        except Exception as error:
            # A model of somebody else's may raise anything; a rung that breaks is a rung that failed.
            message = f"the compaction of {model.name} broke: {type(error).__name__}: {error}"
            raise self._failed(label, model, message) from error
        if made is None:
            raise self._failed(label, model, f"{model.name} took more than {deadline:g} s ([compaction] deadline)")
        return made

    def _check(self, label: str, model: Model, tried: Tried[Compacted]) -> None:
        """Raises `RungFailed` for an answer that is no memory of this model."""
        item = tried.answer.item
        empty = not item.payload.strip()
        if empty or maker_of(item) != model.name:
            what = "without a memory" if empty else f"with a memory of {maker_of(item)}"
            spent = spent_on(tried.answer.usage, model, tried.attempts)
            raise self._failed(label, model, f"{model.name} answered {what}", spent)

    def _failed(self, label: str, model: Model, reason: str, spent: Mapping[str, float] | None = None) -> RungFailed:
        self.breaker.failed(label)
        return RungFailed(reason, {"model": model.name, **(spent or {"requests": 1}), "after": None})
