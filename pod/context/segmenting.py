"""The next segment of a session: what it begins with, made to fit by code, and its commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compact_worker import Reference
from pod.context import opening as op
from pod.context.parts import Parts
from pod.context.policy import Memory, Plan
from pod.errors import StoreError
from pod.log import entries as e
from worker.estimate import estimate_item
from worker.ids import uuid7
from worker.items import ContextItem, Item, ToolResultItem, source_hash
from worker.memory import maker_of
from worker.text import sha256, untagged
from worker.tools import ToolFault


@dataclass(frozen=True, slots=True)
class NextSegment:
    """Makes the segment that follows the active one. `texts` and `overhead` (raw tokens) are those of its system prompt
    and schemas.
    """

    parts: Parts
    texts: Mapping[str, str]
    overhead: int

    def opening(self, plan: Plan, memory: Memory) -> op.Opening:
        """What the segment begins with, cut to what the plan allows. Reads files: not for the event loop."""
        session = self.parts.session
        state, history, family = session.state, session.state.history, session.family
        head, rest = history.view[: plan.cut.at], history.view[plan.cut.at :]
        # What warned the old window of its end says nothing true in the new one.
        tail = [item for item in rest if item.id != state.warned]
        words = op.user_words(
            head,
            whole=state.whole_inputs,
            budget=self.parts.config.user_words_tokens,
            family=family,
            omitted=state.omitted_words,
        )
        reads, references, notes = self._files(memory)
        standing = {item.id for item in tail}
        pins = tuple(_pinned(item) for item in head if item.id in state.pins and item.id not in standing)
        tag = state.start.tag
        continued = self._continued(memory, head)
        free = self._free()
        whole = continued and len(tail) == len(rest)
        kept = op.without_bound_reasoning(tail, free | self._unbroken(memory, continued=whole))
        opening = op.Opening(
            words=words,
            summary=memory.summary and _untagged(memory.summary, tag),
            native=memory.native,
            continued=continued,
            reads=tuple(_untagged(item, tag) for item in reads),
            references=references,
            pins=tuple(_untagged(item, tag) for item in pins),
            tail=kept,
            state=op.state_item(state.tool_state, len(state.queued)),
            lead_in=memory.lead_in,
            notebook=memory.notebook and _untagged(memory.notebook, tag),
            notes=notes,
        )
        limit = self._raw_limit(plan)
        must = {item.id for item in history.view[plan.cut.mandatory :]}
        mandatory = sum(item.id in must for item in tail)
        protected = frozenset(state.whole_inputs)
        floor = self.parts.config.retained_floor_tokens
        everything = protected | {item.id for item in words.items}
        opening = op.fit(opening, limit, family, floor=floor, mandatory=mandatory, protected=everything)
        # The user's words give way last: what is spilled stays readable as an artifact.
        opening = self._spilled(opening, limit)
        opening = op.fit(opening, limit, family, floor=floor, mandatory=mandatory, protected=protected)
        if opening.tokens(family) > max(limit, most := self._room(plan, plan.limits.most)):
            # What waits for an answer goes before what this run has answered already.
            first = frozenset(filter(None, (state.first_input,)))
            opening = op.fit(opening, most, family, floor=floor, mandatory=mandatory, protected=first)
        if opening.tail == kept:
            return opening
        # What was cut from the tail, or in it, stood between the memory and the reasoning behind it.
        return replace(opening, tail=op.without_bound_reasoning(opening.tail, free))

    def _continued(self, memory: Memory, head: Sequence[Item]) -> bool:
        """Whether the provider's memory stands for all that lies before the tail, and for nothing else."""
        native = memory.native
        return native is not None and (tuple(head) == (native,) or native.source_hash == source_hash(head))

    def _unbroken(self, memory: Memory, *, continued: bool) -> frozenset[str]:
        """The model whose bound reasoning stays valid behind its own memory: where system prompt and tools stay as they
        are too (facts, providers 2.6).
        """
        state = self.parts.session.state
        same = {use: sha256(self.texts.get(use, "")) == state.blobs.get(use) for use in ("system", "schemas")}
        unchanged = all(same.values()) and state.schemas == state.start.blobs.get("schemas")
        if memory.native is None or not continued or not unchanged:
            return frozenset()
        return frozenset({maker_of(memory.native)})

    def _files(self, memory: Memory) -> tuple[tuple[ContextItem, ...], tuple[Reference, ...], tuple[str, ...]]:
        state = self.parts.session.state
        shown = {self.parts.scope.show(Path(path)): digest for path, digest in state.seen.items()}
        reads, left_out, notes = op.auto_reads(
            memory.marks,
            self.parts.read,
            shown,
            self.parts.config.worker.auto_read_budget_tokens,
            self.parts.session.family,
        )
        named = {item.path for item in reads} | {r.path for r in left_out}
        references = list(left_out)
        for reference in memory.references:
            if reference.path not in named:
                references.append(reference)
                named.add(reference.path)
        for path in list(state.recent)[-5:]:
            name = self.parts.scope.show(Path(path))
            if name not in named and name not in memory.unmarked:
                references.append(Reference(name, "touched recently"))
        return reads, tuple(self._checked(r) for r in references), notes

    def _checked(self, reference: Reference) -> Reference:
        """A reference with what became of its file: changed, unchanged or unreadable (cases B024, B098)."""
        state = self.parts.session.state
        try:
            _, _, _, digest = self.parts.read(reference.path, 1, 1)
            seen = state.seen.get(str(self.parts.scope.resolve(reference.path)))
        except (ToolFault, OSError) as fault:
            return replace(reference, reason=f"not readable now: {str(fault)[:160]}")
        if seen is None:
            return reference
        mark = "unchanged since it was read" if seen == digest else "changed since it was read"
        return replace(reference, reason=f"{reference.reason}; {mark}" if reference.reason else mark)

    def _free(self) -> frozenset[str]:
        """The models whose reasoning stays valid whatever stands before it."""
        return frozenset(m.name for m in self.parts.sender.models if m.capabilities.history_binding == "none")

    def _raw_limit(self, plan: Plan) -> int:
        """Raw tokens that the items may have, so that with overhead and factor they lie under the target."""
        return min(self.parts.config.result_context_max_tokens, self._room(plan, plan.limits.target))

    def _room(self, plan: Plan, under: int) -> int:
        """Raw tokens that the items may have, so that with all that is beside them they lie under so many tokens."""
        return max(int((under - 1) / self.parts.factor()) - self.overhead - plan.before.pending, 0)

    def _spilled(self, opening: op.Opening, limit: int) -> op.Opening:
        """The largest results of a tail that must stay are cut to head and tail where it does not fit otherwise."""
        family = self.parts.session.family
        tail = list(opening.tail)
        notes = list(opening.notes)
        order = sorted(
            (n for n, item in enumerate(tail) if isinstance(item, ToolResultItem) and item.content),
            key=lambda n: -estimate_item(tail[n], family),
        )
        for n in order:
            if opening.tokens(family) <= limit:
                break
            item = tail[n]
            assert isinstance(item, ToolResultItem)
            if len((item.content or "").encode()) <= op.SPILL_FLOOR * 2:
                break
            name = item.artifact or self.parts.artifacts.store(
                item.call_id, f"{item.name}.txt", (item.content or "").encode()
            )
            tail[n] = op.spill(item, name)
            notes.append(f"the result of {item.name} was cut to head and tail; artifact:{name} holds it all")
            opening = replace(opening, tail=tuple(tail), notes=tuple(notes))
        return opening

    def after(self, plan: Plan, opening: op.Opening) -> int:
        """The occupancy of the new segment's first request, the queued input that goes with it included."""
        raw = self.overhead + opening.tokens(self.parts.session.family) + plan.before.pending
        return int(raw * self.parts.factor())

    async def commit(self, opening: op.Opening, memory: Memory, plan: Plan, label: str, rung: str, after: int) -> None:
        """Makes the segment the session's active one, durably, with the entry that says which rung made it.

        Raises `StoreError`. The pointer decides: before it is replaced, the old segment is the active one.
        """
        session, state = self.parts.session, self.parts.session.state
        await session.sync()
        carry = state.carry().model_copy(
            update={
                "omitted_words": opening.words.omitted,
                "checkpoint": memory.checkpoint,
                "totals": state.totals.model_copy(update={"segments": state.totals.segments + 1}),
            }
        )
        guards = {i.name: s for i in self.parts.interceptors if (s := i.carry()) is not None}
        run = state.open_run(guards)
        if run is not None:
            more = run.counters.model_copy(update={"segments": run.counters.segments + 1})
            run = run.model_copy(update={"counters": more})
        segment = uuid7()
        try:
            blobs = {use: session.folder.put_blob(text) for use, text in self.texts.items()}
            start = e.SegmentStarted(
                session=state.start.session,
                segment=segment,
                lineage=e.Lineage(
                    kind="rolled_over_from" if rung == "rollover" else "compacted_from",
                    segment=state.start.segment, run=state.run, seq=state.last_seq, compaction=label,
                ),
                items=opening.items(),
                blobs=blobs,
                pending_inputs=tuple(state.queued),
                open_run=run,
                carry=carry,
                tag=state.start.tag,
            )  # fmt: skip
            completed = e.CompactionCompleted(
                compaction=label, trigger=plan.trigger, rung=rung, before=plan.before.tokens, after=after,
                limit=plan.limits.most, held=after > plan.limits.lowest, notes=opening.notes, figures=dict(memory.figures),
                reported=state.savings.before, overhead=plan.before.overhead,
                cold=self.parts.wall() - state.last_reply_at > self.parts.sender.model.capabilities.cache_ttl,
            )  # fmt: skip
            await session.switch(start, completed)
        except OSError as error:
            raise StoreError(session.folder.segment_path(segment), "the new segment's commit", error) from error
        await session.sync()


def _untagged(item: ContextItem, tag: str) -> ContextItem:
    """Data that crosses a boundary, with the tag of true orders broken up: a file may have held it."""
    text = untagged(item.text, tag)
    return item if text == item.text else item.model_copy(update={"text": text})


def _pinned(item: Item) -> ContextItem:
    text = item.text() if isinstance(item, ToolResultItem) else str(getattr(item, "text", ""))
    if isinstance(item, ContextItem):
        return item
    return ContextItem(id=item.id, kind="pin", text=text, source=f"pinned {item.type}", trust="tool")
