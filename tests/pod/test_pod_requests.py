"""Windows, overflow, retries and figures, at the pod (cases B051, B055 to B058, B060 to B064, B158 to B160)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pod.log import entries as e
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    capabilities,
    compacting,
    contexts,
    filler,
    manifest,
    results,
    size,
    summariser,
    types,
    users,
    words,
)  # fmt: skip
from worker.errors import AuthFailed, ContextOverflow, StreamBroken, TooLargeForTier
from worker.items import ToolResultItem
from worker.models.base import Capabilities, Emit, Price, Reply, Request, Usage
from worker.records import Input, Pruned, ReplyRecord, Retry, SizeRefused, WindowLearned
from worker.retry import RetryPolicy
from worker.testing import call, fail, reply, say
from worker.tools import tool

pytestmark = pytest.mark.anyio

PRICE = Price(input=1.0, output=10.0, cache_read=0.1, cache_write=1.25, source="test")


class Real(Agent):
    """A provider with a window of its own, smaller than what is declared; `largest` is the largest request it took."""

    refused = 0

    def __init__(self, play: Any, real: int, *, says: bool = True, **more: Any) -> None:
        super().__init__(play, **more)
        self.real, self.says = real, says

    async def send(self, request: Request, emit: Emit) -> Reply:
        if (tokens := size(request)) > self.real:
            self.refused += 1
            raise ContextOverflow("too long", limit=self.real if self.says else None, requested=tokens, status=400)
        return await super().send(request, emit)


async def test_b051_what_the_next_request_adds_counts_before_it_leaves(rig: Rig) -> None:
    """B051: R1 reports 100,000, then comes a result of 40,000: the yield is before R2."""

    @tool(max_output=1_000_000)
    async def big() -> str:
        """Gives much."""
        return filler(40_000)

    agent = Agent(
        lambda r, n: reply(call("big"), usage=Usage(input_tokens=100_000, output_tokens=10)) if n == 1 else say("done"),
        window=140_000,
    )
    async with rig.open(
        agent, manifest(compaction=compacting(120_000)), tools=[big], compact_model=summariser()
    ) as pod:
        (await pod.run("go " + filler(60_000))).raise_for_status()
    started = rig.of(e.CompactionStarted)[0]
    assert started.trigger == "request_threshold" and started.tokens > 135_000
    kinds = rig.kinds()
    assert kinds[: kinds.index("yielded")].count("reply") == 1


async def test_b055_a_stated_limit_is_learned_and_used_for_the_triggers_afterwards(rig: Rig) -> None:
    """B055: an unknown model (32,768 assumed) whose real window is 20,000: one recovery, then triggers follow."""
    agent = Real(caller(40), 20_000, capabilities=Capabilities(family="o200k"))
    made = manifest(compaction=compacting(request_threshold="90%", request=None))
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        assert pod.init_event().window_source == "fallback" and pod.init_event().window == 32_768
        (await pod.run("go")).raise_for_status()
        assert pod.init_event().window == 20_000
        assert pod.init_event().triggers == {"request_threshold": int((20_000 - 4_096) * 0.9)}
    assert agent.refused == 1
    assert [c.trigger for c in rig.of(e.CompactionStarted)][:2] == ["overflow", "request_threshold"]


async def test_a_window_declared_anew_drops_what_was_learned_with_an_event_and_survives_a_reopen(rig: Rig) -> None:
    """The failure before says what taught the window, and the way out that then works."""
    refusing = Agent(
        lambda r, n: fail(ContextOverflow("too long: 9,000 at most", limit=9_000)) if n == 3 else say("ok")
    )
    warning = manifest(context={"policy": "warn", "overflow_recovery": False})
    async with rig.open(refusing, warning) as pod:
        for _ in range(2):
            (await pod.run("word " * 3_000)).raise_for_status()
        assert (await pod.run("word " * 3_000)).error_kind == "overflow"
        result = await pod.resume()
    assert result.error_kind == "over_budget" and len(refusing.requests) == 3
    assert 'learned when the provider said "too long: 9,000 at most"' in str(result.error)
    assert "another [model] context_window" in str(result.error)
    for window in (100_000, 100_000):
        agent = Agent(lambda r, n: say("ok"), window=window)
        async with rig.open(agent, warning) as pod:
            assert pod.init_event().window == window
            (await pod.run("go on")).raise_for_status()
    assert [(w.source, w.window) for w in rig.of(WindowLearned)] == [("stated", 9_000), ("declared", 100_000)]


async def test_a_run_that_no_compaction_can_help_ends_with_what_the_provider_said(rig: Rig) -> None:
    agent = Agent(
        lambda r, n: fail(TooLargeForTier("TPM: Limit 600, Requested 7193", limit=600)) if n == 1 else say("ok")
    )
    async with rig.open(agent, manifest(context={"overflow_recovery": True}), compact_model=summariser()) as pod:
        result = await pod.run("go")
        assert result.status == "failed" and "TPM: Limit 600, Requested 7193" in str(result.error)
        assert pod.init_event().window == 200_000
        assert (await pod.resume()).text == "ok"
    assert [r.limit for r in rig.of(SizeRefused)] == [600] and not rig.of(WindowLearned)


async def test_refusals_that_name_no_limit_teach_nine_tenths_of_what_was_refused(rig: Rig) -> None:
    agent = Real(caller(50), 20_000, says=False)
    async with rig.open(
        agent, manifest(compaction=compacting(150_000)), tools=[Counted(1_200).tool], compact_model=summariser()
    ) as pod:
        (await pod.run("go")).raise_for_status()
    assert 1 <= agent.refused <= 2
    learned = rig.of(WindowLearned)
    assert all(w.source == "guessed" for w in learned) and 18_000 * 0.95 < learned[-1].window < 20_000


@pytest.mark.parametrize("broken", [False, True])
async def test_b056_b057_a_smaller_model_gets_no_request_above_its_window(rig: Rig, broken: bool) -> None:
    """B056: 60,000 tokens under A; the next turn with B (24,000) is compacted first and runs on B.

    B057: also where A answers no more and B's own summary fails: a checkpoint, never B in the old segment.
    """
    made = manifest(compaction=compacting(150_000))
    fetch = Counted(2_000)
    async with rig.open(Agent(caller(28), name="offline:a"), made, tools=[fetch.tool]) as pod:
        (await pod.run("the task")).raise_for_status()
        assert pod.running.worker.sender.occupancy().tokens > 55_000
    b = Agent(caller(3), window=24_000, name="offline:b")
    worker = (
        Agent(lambda r, n: fail(AuthFailed("no", status=401)), name="offline:a")
        if broken
        else summariser(window=24_000)
    )
    async with rig.open(b, made, tools=[fetch.tool], compact_model=worker) as pod:
        (await pod.run("go on with b")).raise_for_status()
    assert b.requests and all(size(r) <= 23_000 for r in b.requests)
    assert len(rig.of(e.CompactionCompleted)) == 1
    first = [r.model for r in rig.of(ReplyRecord)]
    assert first == ["offline:a"] * 29 + ["offline:b"] * 4
    old = [line for line in rig.segments()[0].read_text().splitlines() if '"kind":"reply"' in line]
    assert len(old) == 29 and not any('"offline:b"' in line for line in old), "B stands only in a segment that fits it"
    assert rig.of(e.CompactionCompleted)[0].rung == ("checkpoint" if broken else "compact")
    assert rig.starts()[1].lineage.kind_ == "compacted_from"
    assert words(b.requests[0]) == ["the task", "go on with b"]


async def test_b058_input_and_requested_output_together_never_exceed_the_window(rig: Rig) -> None:
    """B058: an input that fits alone, but not with the output that is asked for, is not sent that way."""
    agent = Agent(lambda r, n: say("done"), capabilities=capabilities(20_000, 8_192))
    made = manifest(model={"max_output_tokens": 8_192})
    async with rig.open(agent, made) as pod:
        ok = await pod.run(filler(5_000))
        result = await pod.run(filler(9_000))
    assert ok.status == "finished" and result.error_kind == "over_budget"
    assert len(agent.requests) == 1
    assert all(size(r) + r.max_output_tokens <= 20_000 for r in agent.requests)


async def test_b060_a_retry_does_not_add_the_user_message_again(rig: Rig) -> None:
    """B060: the stream breaks, the next try is the same request; the message stands there and in the log once."""
    agent = Agent(lambda r, n: fail(StreamBroken("cut")) if n == 1 else say("done"))
    made = manifest(retry={"max_attempts": 3})
    pod = rig.open(agent, made)
    async with pod:
        pod.running.worker.sender.retry = RetryPolicy(max_attempts=3, chance=lambda: 0.0)
        result = (await pod.run("only once")).raise_for_status()
    assert agent.requests[0].messages == agent.requests[1].messages
    assert users(agent.requests[1]) == ["only once"] and len(rig.of(Input)) == 1
    assert result.retries == 1 and len(rig.of(Retry)) == 1


async def test_b061_an_overflow_is_never_sent_again_unchanged(rig: Rig) -> None:
    """B061: always refused, ten retries configured: two sends, the second one smaller; then the overflow error."""
    agent = Agent(lambda r, n: call("fetch", n=n) if n <= 5 else fail(ContextOverflow("too long", status=400)))
    made = manifest(retry={"max_attempts": 10}, compaction=compacting(100_000))
    async with rig.open(agent, made, tools=[Counted(1_500).tool], compact_model=summariser()) as pod:
        result = await pod.run("go")
    refused = agent.requests[5:]
    assert len(refused) == 2 and size(refused[1]) < size(refused[0]) * 0.9
    assert result.error_kind == "overflow" and result.exit_code != 0
    assert "Still too large after 1 recovery" in (result.error or "")


async def test_b062_recovery_reduces_the_cause_and_repeats_no_tool(rig: Rig) -> None:
    """B062: a tool with an effect returns far too much; it runs once, and the run goes on with its result reduced."""
    ran: list[int] = []

    @tool(effect="write", max_output=4_000_000)
    async def flood() -> str:
        """Floods."""
        ran.append(1)
        return filler(30_000, "flood")

    agent = Real(lambda r, n: call("flood") if n == 1 else say("done"), 20_000)
    async with rig.open(
        agent, manifest(compaction=compacting(150_000)), tools=[flood], compact_model=summariser()
    ) as pod:
        result = (await pod.run("one question")).raise_for_status()
    assert ran == [1] and result.text == "done" and agent.refused == 1
    (left,) = results(agent.requests[-1], "flood")
    assert "bytes left out" in (left.content or "") and size(agent.requests[-1]) < 10_000
    assert words(agent.requests[-1]) == ["one question"]


async def test_b064_a_recovered_overflow_is_no_failure_in_the_stream(rig: Rig) -> None:
    """B064: recovering, then the result; no terminal error event, exit code 0."""
    seen: list[Any] = []
    agent = Real(caller(16), 15_000)
    async with rig.open(
        agent,
        manifest(compaction=compacting(150_000)),
        tools=[Counted(1_200).tool],
        compact_model=summariser(),
        observers=[seen.append],
    ) as pod:
        result = (await pod.run("go")).raise_for_status()
    assert agent.refused == 1 and result.exit_code == 0 and result.error is None
    ended = [event for event in seen if event.type == "run.ended"]
    assert [event.status for event in ended] == ["finished"]
    order = types(seen)
    assert order.index("context.window_learned") < order.index("compaction.started") < order.index("run.ended")


async def test_b158_b159_compaction_is_counted_itemised_and_totals_never_fall(rig: Rig) -> None:
    """B158: the compact worker's tokens and cost stand in the totals, by purpose. B159: through compaction and restart."""
    priced = capabilities(price=PRICE)
    agent = Agent(
        lambda r, n: reply(
            call("fetch", n=n) if n % 4 else say("done"), usage=Usage(input_tokens=15_000, output_tokens=10)
        ),
        capabilities=priced,
    )
    worker = Agent(
        lambda r, n: reply(
            call("write_summary", text=summary_text()) if n % 2 else say("ok"), usage=Usage(input_tokens=20_000, output_tokens=100)
        ),
        name="offline:summariser", capabilities=priced,
    )  # fmt: skip
    made = manifest(compaction=compacting(None))
    seen: list[dict[str, Any]] = []

    def look(pod: Any) -> None:
        seen.append(pod.state.totals.model_dump())

    async with rig.open(agent, made, tools=[Counted(1_500).tool], compact_model=worker) as pod:
        for n in range(3):
            await pod.run(f"run {n}")
            look(pod)
        assert await pod.compact()
        look(pod)
    async with rig.open(agent, made, tools=[Counted(1_500).tool], compact_model=worker) as pod:
        look(pod)
        result = await pod.run("more")
        look(pod)
    for before, after in itertools.pairwise(seen):
        assert all(
            after[key] >= before[key]
            for key in ("requests", "prompt_tokens", "output_tokens", "cost_usd", "prunes", "compactions")
        )
    assert seen[3]["prompt_tokens"] - seen[2]["prompt_tokens"] == 40_000
    assert seen[3] == seen[4], "a restart changes nothing"
    assert set(result.usage) == {"worker:offline:agent", "compaction:offline:summariser"}
    assert result.usage["compaction:offline:summariser"]["prompt_tokens"] == 40_000
    assert result.usage["compaction:offline:summariser"]["requests"] == 2
    assert seen[2]["requests"] == 12 and seen[3]["requests"] == 14
    expected = (40_000 * 1.0 + 200 * 10.0 + 16 * 15_000 * 1.0 + 16 * 10 * 10.0) / 1e6
    assert result.session_cost_usd == pytest.approx(expected, abs=1e-6)


def summary_text() -> str:
    from tests.pod.pod_rig import summary

    return summary()


async def test_a_compaction_inside_a_run_counts_for_its_cost_and_tokens_but_not_for_max_requests(rig: Rig) -> None:
    priced = capabilities(price=PRICE)
    made = manifest(worker={"max_requests": 13}, compaction=compacting(8_000))
    worker = summariser(capabilities=priced)
    async with rig.open(
        Agent(caller(12), capabilities=priced), made, tools=[Counted(1_500).tool], compact_model=worker
    ) as pod:
        result = (await pod.run("go")).raise_for_status()
    assert result.requests == 13 and result.compactions >= 2 and len(worker.requests) >= 4
    main = sum(r.cost_usd or 0 for r in rig.of(ReplyRecord))
    assert result.cost_usd is not None and result.cost_usd > main > 0


# -- prune, at the pod ---------------------------------------------------------------------------------------------


async def test_prune_is_conditional_on_its_savings(rig: Rig) -> None:
    """The seed: only above `min_savings`: nothing is pruned for less, and the prefix cache stays whole."""
    for savings, pruned in ((50_000, False), (3_000, True)):
        name = f"s{savings}"
        made = manifest(prune={"enabled": True, "protected_tokens": 2_000, "min_savings": savings})
        async with rig.open(Agent(caller(12)), made, name, tools=[Counted(1_000).tool]) as pod:
            (await pod.run("go")).raise_for_status()
        found = rig.of(Pruned, name)
        assert bool(found) == pruned
        assert all(p.tokens_saved > p.min_savings >= 3_000 for p in found)


async def test_prune_changes_the_request_and_never_the_log(rig: Rig) -> None:
    """The seed: request context only: the summary stays in the request, and the log still holds the content."""
    made = manifest(prune={"enabled": True, "protected_tokens": 2_000, "min_savings": 3_000})
    agent = Agent(caller(12))
    async with rig.open(agent, made, tools=[Counted(1_000).tool]) as pod:
        (await pod.run("go")).raise_for_status()
        before = rig.segments()[0].read_bytes()
    first = results(agent.requests[-1])[0]
    assert first.pruned and first.content is None and first.summary.startswith("fetch, ")
    assert "full text: session_history item" in first.summary
    held = [r.item for r in rig.log() if getattr(getattr(r, "item", None), "type", "") == "tool_result"]
    assert len(held) == 12 and all(i.content and not i.pruned for i in held if isinstance(i, ToolResultItem))
    assert rig.segments()[0].read_bytes().startswith(before)


async def test_prune_protects_a_suffix_by_tokens_also_inside_one_long_turn(rig: Rig) -> None:
    """The seed: the boundary follows tokens, so old results of the current turn are candidates, the newest are not."""
    for protected in (2_500, 6_500):
        name = f"t{protected}"
        made = manifest(prune={"enabled": True, "protected_tokens": protected, "min_savings": 1_500})
        agent = Agent(caller(14))
        async with rig.open(agent, made, name, tools=[Counted(1_000).tool]) as pod:
            (await pod.run("one turn")).raise_for_status()
        whole = [r for r in results(agent.requests[-1]) if not r.pruned]
        assert len(whole) * 1_000 >= protected - 1_000
        assert [r.pruned for r in results(agent.requests[-1])] == sorted(
            (r.pruned for r in results(agent.requests[-1])), reverse=True
        )
        assert any(r.pruned for r in results(agent.requests[-1]))


async def test_prune_is_idempotent_also_after_a_restart(rig: Rig) -> None:
    """The seed: what is pruned is passed over: no item is pruned twice, and reopening prunes nothing anew."""
    made = manifest(prune={"enabled": True, "protected_tokens": 2_000, "min_savings": 3_000})
    agent = Agent(caller(12))
    async with rig.open(agent, made, tools=[Counted(1_000).tool]) as pod:
        (await pod.run("go")).raise_for_status()
    count = len(rig.of(Pruned))
    agent.play = lambda r, n: say("ok")
    async with rig.open(agent, made, tools=[Counted(1_000).tool]) as pod:
        (await pod.run("short")).raise_for_status()
    pruned = [i.id for p in rig.of(Pruned) for i in p.items]
    assert count and len(pruned) == len(set(pruned)) and len(rig.of(Pruned)) == count


async def test_a_pruned_state_crosses_with_the_retained_tail(rig: Rig) -> None:
    """The seed: the tail of a new segment is kept as it stood in the view: pruned results stay pruned."""
    made = manifest(
        prune={"enabled": True, "protected_tokens": 1_200, "min_savings": 1_500},
        compaction=compacting(None, retained_tokens=3_500),
    )
    agent = Agent(caller(34))
    async with rig.open(agent, made, tools=[Counted(1_000).tool], compact_model=summariser()) as pod:
        (await pod.run("go")).raise_for_status()
        view = {i.id: i for i in pod.state.history.view}
        assert await pod.compact()
        tail = [i for i in pod.state.start.items if i.id in view and isinstance(i, ToolResultItem)]
    assert any(i.pruned for i in tail) and all(i == view[i.id] for i in tail)


async def test_an_auto_read_is_an_ordinary_item_that_later_prunes_and_compactions_take(rig: Rig) -> None:
    """The seed: auto-reads are history like any other: a later prune reduces them to a stub."""
    rig.file("a.txt", "alpha beta gamma delta\n" * 400)

    def play(request: Request, n: int) -> Any:
        return (
            call("read_file", path="a.txt") if n == 1 else call("fetch", n=n) if n <= 6 or 8 <= n <= 16 else say("done")
        )

    made = manifest(
        tools={"enable": ["read_file"]}, prune={"enabled": True, "protected_tokens": 1_500, "min_savings": 6_000},
        compaction=compacting(None, retained_tokens=500, retained_floor_tokens=100),
    )  # fmt: skip
    agent = Agent(play)
    worker = summariser(first=[call("mark_read_required", path="a.txt")])
    async with rig.open(agent, made, tools=[Counted(1_000).tool], compact_model=worker) as pod:
        await pod.run("go")
        assert await pod.compact()
        await pod.run("again")
    shown = [contexts(r, "auto_read")[0] for r in agent.requests if contexts(r, "auto_read")]
    assert "[Auto-read file: a.txt:1-400]" in shown[0] and len(shown[0]) > 8_000
    assert len(shown[-1]) < 1_000 and "a.txt" in shown[-1]
