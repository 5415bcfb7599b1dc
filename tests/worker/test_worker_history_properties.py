"""The history is a pure fold: whatever happens, records replayed give what was live, and requests stay valid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.loop_rig import Journal
from worker.history import History, says_something
from worker.items import (
    AssistantItem,
    ContextItem,
    ReasoningItem,
    ToolCallItem,
    ToolResultItem,
    UserItem,
    make_call,
)  # fmt: skip
from worker.ledger import Ledger
from worker.models.base import Usage
from worker.models.wire import Wire
from worker.records import (
    Admitted,
    ContextAdded,
    Edited,
    Input,
    Pruned,
    ReplyRecord,
    Retry,
    ToolResult,
    ToolsChanged,
    ToolStarted,
    WindowLearned,
    Withdrawn,
)  # fmt: skip
from worker.sending import Follower
from worker.testing import PlainEncoder, check_items, encode_items

MODEL = "offline:scripted"
ENCODER = PlainEncoder("offline", "scripted")
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).map(lambda t: f"w{t}")
usages = st.builds(
    Usage,
    input_tokens=st.none() | st.integers(0, 200_000),
    output_tokens=st.integers(0, 5_000),
    reasoning_tokens=st.integers(0, 5_000),
)
replies = st.tuples(
    st.just("reply"), st.booleans(), st.none() | words | st.just(" \n"), st.integers(0, 4), usages, st.booleans()
)
growing = st.one_of(
    st.tuples(st.just("user"), words), st.tuples(st.just("context"), words), st.tuples(st.just("retry")), replies
)
anything = st.one_of(
    growing,
    st.tuples(st.just("edit"), st.integers(0, 50), words),
    st.tuples(st.just("prune"), st.integers(0, 50)),
    st.tuples(st.just("withdraw")),
    st.tuples(st.just("schemas")),
    st.tuples(st.just("window"), st.integers(1_000, 9_000)),
)


@dataclass
class Play:
    """Plays a script as a worker would: results come in any order, input while calls are open waits in the queue."""

    order: Sequence[int]
    journal: Journal = field(default_factory=Journal)
    history: History = field(default_factory=lambda: History(family="o200k"))
    follower: Follower = field(default_factory=lambda: Follower(Wire(ENCODER)))
    bodies: list[tuple[bytes, bytes]] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.journal, self.history)
        self.user("begin")

    def user(self, text: str) -> None:
        item = UserItem(text=text)
        self.ledger.put(Input(item=item))
        self.ledger.put(Admitted(ids=(item.id,)))

    def context(self, text: str) -> None:
        self.ledger.put(ContextAdded(items=(ContextItem(kind="notice", text=text),)))

    def retry(self) -> None:
        self.ledger.put(Retry(error="overloaded", message="busy", attempt=1, max_attempts=6, wait=0.5))

    def schemas(self) -> None:
        self.ledger.put(ToolsChanged(system="s", tools="t"))

    def window(self, tokens: int) -> None:
        self.ledger.put(WindowLearned(model=MODEL, window=tokens, source="stated"))

    def withdraw(self) -> None:
        last = self.history.last()
        if isinstance(last, UserItem) and len(self.history.view) > 1:
            self.ledger.put(Withdrawn(ids=(last.id,)))

    def edit(self, at: int, text: str) -> None:
        item: Any = self.history.view[at % len(self.history.view)]
        changed = {"summary": text, "content": None} if isinstance(item, ToolResultItem) else {"text": text}
        if not isinstance(item, ToolCallItem | ReasoningItem):
            self.ledger.put(Edited(items=(item.model_copy(update=changed),), by="test"))

    def prune(self, at: int) -> None:
        found = [i for i in self.history.view if isinstance(i, ToolResultItem) and i.content]
        if found:
            item = found[at % len(found)]
            self.ledger.put(Pruned(items=(item.model_copy(update={"content": None, "pruned": True}),)))

    def body(self) -> None:
        """What a request now would send, beside what an encoder that remembers nothing makes of it."""
        sent = b"".join(self.follower.pieces(self.history))
        self.bodies.append((sent, encode_items(ENCODER, self.history.view)))

    def reply(self, reasoning: bool, text: str | None, calls: int, usage: Usage, noise: bool) -> None:
        # Only the user's side can be answered.
        if isinstance(self.history.last(), AssistantItem):
            self.user("and then?")
        check_items(self.history.view)
        self.body()
        items: list[Any] = []
        name = f"reply{len(self.journal.records)}"
        if reasoning:
            items.append(ReasoningItem(provider="offline", model="scripted", payload='{"t":1}', reply=name))
        if text is not None:
            items.append(AssistantItem(text=text, reply=name))
        for _ in range(calls):
            self.calls += 1
            made = make_call(f"c{self.calls}", "act", '{"n":1}' if self.calls % 3 else '{"n":')
            items.append(made.model_copy(update={"reply": name}))
        self.ledger.put(ReplyRecord(items=tuple(items), usage=usage, model=MODEL, cost_usd=0.25 if noise else None))
        self._answer([i for i in items if isinstance(i, ToolCallItem)], noise)

    def _answer(self, calls: list[ToolCallItem], noise: bool) -> None:
        for call in calls:
            self.ledger.put(ToolStarted(call_id=call.call_id))
        if noise and calls:
            self.context("while calls are open")
            self.ledger.put(Input(item=UserItem(text="queued while calls are open")))
        while calls:
            call = calls.pop(self.order[len(calls) % len(self.order)] % len(calls))
            item = ToolResultItem(call_id=call.call_id, name="act", status="ok", summary="did", content="text " * 40)
            self.ledger.put(ToolResult(item=item))
            if calls:
                assert self.history.unresolved, "siblings wait for each other"
        if self.history.queue:
            self.ledger.put(Admitted(ids=tuple(self.history.queue)))

    def run(self, script: Sequence[tuple[Any, ...]]) -> None:
        for kind, *args in script:
            getattr(self, kind)(*args)


def replayed(records: Sequence[Any]) -> History:
    """The records read back from their JSON, folded into an empty history."""
    history = History(family="o200k")
    for record in records:
        history.apply(type(record).model_validate_json(record.model_dump_json()))
    return history


@settings(max_examples=60, deadline=None)
@given(script=st.lists(anything, max_size=25), order=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_replaying_the_records_gives_the_same_view_figures_and_open_calls(script: Any, order: Any) -> None:
    """B076: after a restart the encoded items are the same bytes."""
    play = Play(order)
    play.run(script)
    live, again = play.history, replayed(play.journal.records)
    assert again.view == live.view
    assert (again.tokens, again.total, again.opaque) == (live.tokens, live.total, live.opaque)
    assert again.counters == live.counters
    assert (again.baseline, again.calibration, again.windows) == (live.baseline, live.calibration, live.windows)
    assert (again.queue, again.open, again.held, again.call_ids) == (live.queue, live.open, live.held, live.call_ids)
    assert (again.unanswered, again.newest_batch) == (live.unanswered, live.newest_batch)
    assert again.occupancy(MODEL, 100) == live.occupancy(MODEL, 100)
    assert encode_items(ENCODER, again.view) == encode_items(ENCODER, live.view)


@settings(max_examples=60, deadline=None)
@given(
    script=st.lists(anything, max_size=25),
    order=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    cut=st.integers(0, 200),
)
def test_a_restart_at_any_record_goes_on_to_the_same_state(script: Any, order: Any, cut: int) -> None:
    play = Play(order)
    play.run(script)
    records = play.journal.records
    history = replayed(records[: cut % (len(records) + 1)])
    for record in records[cut % (len(records) + 1) :]:
        history.apply(record)
    assert history.view == play.history.view
    assert history.counters == play.history.counters
    assert history.occupancy(MODEL, 0) == play.history.occupancy(MODEL, 0)


@settings(max_examples=60, deadline=None)
@given(script=st.lists(anything, max_size=25), order=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_the_view_is_valid_and_its_sums_hold_whatever_happens(script: Any, order: Any) -> None:
    """I1: each call has one result behind it, in the order of the calls; strictly checked before each reply too."""
    play = Play(order)
    play.run(script)
    history = play.history
    check_items([*history.view, UserItem(text="next")])
    calls = [i.call_id for i in history.view if isinstance(i, ToolCallItem)]
    assert [i.call_id for i in history.view if isinstance(i, ToolResultItem)] == calls
    assert history.total == sum(history.tokens)
    assert len(history.tokens) == len(history.view)
    assert {i.id: at for at, i in enumerate(history.view)} == history.index
    assert 0 <= history.unanswered <= len(history.view)
    assert not history.unanswered or isinstance(history.view[history.unanswered - 1], UserItem)


@settings(max_examples=60, deadline=None)
@given(script=st.lists(anything, max_size=25), order=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_the_bytes_kept_in_step_equal_an_encoding_from_scratch(script: Any, order: Any) -> None:
    play = Play(order)
    play.run(script)
    play.body()
    for kept, fresh in play.bodies:
        assert kept == fresh


@settings(max_examples=60, deadline=None)
@given(script=st.lists(growing, max_size=25), order=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_no_item_is_encoded_twice_where_nothing_is_edited(script: Any, order: Any) -> None:
    """One request costs what is new: of replies that say something, as only those make the view grow."""
    says = [s for s in script if s[0] != "reply" or says_something(_items(s))]
    play = Play(order)
    play.run(says)
    play.user("and at last")
    play.body()
    assert play.follower.wire.encoded == len(play.history.view)


def _items(step: tuple[Any, ...]) -> list[Any]:
    _, _, text, calls, *_ = step
    return [AssistantItem(text=text or ""), *(make_call("c", "act", "{}") for _ in range(calls))]


def test_input_withdrawn_before_anything_came_of_it_leaves_no_trace() -> None:
    play = Play([0])
    play.reply(False, "hello", 0, Usage(), False)
    before = (list(play.history.view), play.history.total, play.history.unanswered)
    items = [UserItem(text=t) for t in ("one", "two", "three")]
    for item in items:
        play.ledger.put(Input(item=item))
    play.ledger.put(Admitted(ids=(items[0].id, items[1].id)))
    play.body()
    assert play.history.unanswered == 3, "the place of the first"
    play.ledger.put(Withdrawn(ids=tuple(i.id for i in items)))
    assert (list(play.history.view), play.history.total, play.history.unanswered) == before
    assert not play.history.queue
    play.user("four")
    play.body()
    assert play.bodies[-1][0] == play.bodies[-1][1]


def test_a_result_for_a_call_that_is_not_open_changes_nothing() -> None:
    """B016: no invented result for calls that no longer exist, and no second one for a call that has one."""
    play = Play([0])
    play.reply(False, None, 1, Usage(), False)
    view = list(play.history.view)
    for call_id in ("c1", "gone"):
        play.ledger.put(ToolResult(item=ToolResultItem(call_id=call_id, name="act", status="ok", summary="again")))
    assert play.history.view == view


def test_input_admitted_twice_stands_once() -> None:
    item = UserItem(text="go")
    history = History()
    for record in (Input(item=item), Input(item=item), Admitted(ids=(item.id,)), Admitted(ids=(item.id,))):
        history.apply(record)
    assert history.view == [item]
