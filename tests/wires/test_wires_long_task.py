"""Sixty requests on real files, at least two compactions, every fault of the probe matrix: what must hold on each wire.

The task runs once for each wire and source of the summary, on both backends (see `conftest.py`); these tests look at the bodies
that the server got, the events, the log and the files.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

from wires.wires_rig import Ran, Sent, Turn, pairs, strings
from wires.wires_task import DIRECTIVE, MODULES, OUTPUT, STEER_AT, STEERING, STEPS, TASK, WINDOW, faults, note

LASTING = {"request.started", "text.delta", "compaction.progress"}


def delivered(ran: Ran) -> list[Sent]:
    """The pod's own requests that brought a reply, in order."""
    return [turn.sent for turn in ran.agent.of("main")]


def changes(ran: Ran) -> list[set[str]]:
    """For each of these requests, what stood on record between the reply before it and its own."""
    found: list[set[str]] = [set()]
    for event in ran.events:
        if event.type == "request.completed":
            found.append(set())
        else:
            found[-1].add(event.type)
    return found[:-1]


def windows(ran: Ran) -> list[list[Sent]]:
    """The delivered requests of each segment."""
    found: list[list[Sent]] = []
    for sent, changed in zip(delivered(ran), changes(ran), strict=True):
        if not found or "segment.started" in changed:
            found.append([])
        found[-1].append(sent)
    return found


def test_the_task_ends_finished_after_sixty_requests(ran: Ran) -> None:
    assert ran.result.status == "finished", ran.result
    assert ran.result.text == "All modules are looked through."
    assert ran.result.requests == STEPS == len(delivered(ran))
    assert (ran.events[-1].type, ran.events[-1].status) == ("run.ended", "finished")


def test_the_context_was_compacted_at_least_twice_from_the_source_asked_for(ran: Ran, source: str) -> None:
    done = [r for r in ran.told("compaction.rung") if r.state == "done" and r.rung == "compact"]
    assert len(done) >= 1 and {r.figures["source"] for r in done} == {source}
    completed = ran.told("compaction.completed")
    assert len(completed) >= 2
    assert len(ran.told("segment.started")) == len(completed) == len(ran.records) - 1 == ran.result.compactions
    assert all(event.after < event.before for event in completed)
    assert not ran.told("compaction.failed")


def test_each_fault_was_met_once_and_is_told_by_its_name(ran: Ran) -> None:
    expected = [name for _, at in sorted(faults(ran.wire).items()) for name, _ in at]
    met = [turn.fault for turn in ran.agent.of("main", failed=True)]
    assert Counter(met) == Counter([*expected, "overflow"])
    retries = ran.told("retry")
    assert [r.error for r in retries] == [name.split()[0] for name in met if name and name != "overflow"]
    waited = [r.wait for r in retries if r.error == "rate_limited"]
    assert waited == [0.02], "the provider's word on the wait was not followed"
    assert ran.result.retries == len(retries)


def test_an_overflow_teaches_the_window_and_is_recovered_by_a_compaction(ran: Ran) -> None:
    [learned] = ran.told("context.window_learned")
    named = ran.wire != "openai"  # that API says only that it is too much
    assert learned.source == ("stated" if named else "guessed")
    assert learned.window == 30_000 if named else learned.window < WINDOW
    assert [e.trigger for e in ran.told("compaction.completed")].count("overflow") == 1


def test_the_fault_of_a_compact_worker_is_counted_as_a_request_of_its_own(ran: Ran) -> None:
    first = next(r for r in ran.told("compaction.rung") if r.state == "done")
    assert first.figures["requests"] == first.figures["turns"] + 1
    assert [turn.fault for turn in ran.agent.of("compaction", failed=True)] == ["overloaded 529"]
    figures = [r.figures for r in ran.told("compaction.rung") if r.state == "done"]
    assert sum(f["requests"] for f in figures) == len([t for t in ran.agent.turns if t.kind == "compaction"])


def test_a_request_is_sent_again_byte_for_byte_and_never_doubled(ran: Ran) -> None:
    turns: list[Turn] = ran.agent.turns
    assert len(ran.server.requests) == len(turns)
    for turn, following in pairwise(turns):
        if turn.fault is not None and turn.fault != "overflow":
            assert following.sent.body == turn.sent.body, turn.fault
    served = [turn.step for turn in ran.agent.of("main")]
    assert served == list(range(STEPS))
    bodies = Counter(turn.sent.body for turn in turns if turn.fault is None)
    assert max(bodies.values()) == 1


def test_no_tool_ran_twice_and_nothing_of_a_broken_reply_ran(ran: Ran) -> None:
    notes = (ran.folder / "notes.md").read_text()
    assert notes == "".join(note(k) for k in range(STEPS - 1) if k % 6 in (0, 4))
    results = ran.flat("tool_result")
    assert max(Counter(r["item"]["call_id"] for r in results).values()) == 1
    calls = [i for r in ran.flat("reply") for i in r["items"] if i["type"] == "tool_call"]
    assert [c["call_id"] for c in calls] and len(calls) == len(results) == ran.result.tool_calls
    started = Counter(r["call_id"] for r in ran.flat("tool_started"))
    assert max(started.values()) == 1
    edits = [r for r in results if r["item"]["name"] == "edit_file"]
    assert len(edits) == 10 and {r["item"]["status"] for r in edits} == {"ok"}
    changed = [n for n in range(MODULES) if "LEVEL = 0\n" not in (ran.folder / "mods" / f"m{n}.py").read_text()]
    assert changed == [1, 7]


def test_wrong_calls_are_answered_with_errors_and_the_work_goes_on(ran: Ran) -> None:
    errors = [r["item"] for r in ran.flat("tool_result") if r["item"]["status"] == "error"]
    assert {item["name"] for item in errors} == {"read_file", "read_fil"}
    assert any("Did you mean 'read_file'?" in item["summary"] for item in errors)


def test_a_strict_provider_accepts_every_body(ran: Ran) -> None:
    assert ran.server.rejected == []
    for request in ran.server.requests:
        assert not any("\ud800" <= ch <= "\udfff" for text in strings(json.loads(request.body)) for ch in text)


def test_every_request_pairs_each_call_with_its_result_in_order(ran: Ran) -> None:
    for turn in ran.agent.turns:
        pairs(turn.sent)


def test_results_reach_the_model_with_their_summaries(ran: Ran) -> None:
    """The results of a request are those of the log, or stubs of them after a prune."""
    summaries = {r["item"]["call_id"]: r["item"]["summary"] for r in ran.flat("tool_result")}
    first = windows(ran)[0]
    for call_id, text in pairs(first[-1]):
        assert text.split("\n")[0].split(" ")[0] == summaries[call_id].split("\n")[0].split(" ")[0]
    assert len(pairs(first[-1])) > 20


def test_no_request_is_above_its_ceiling(ran: Ran) -> None:
    started = ran.told("request.started")
    assert all(event.tokens <= event.ceiling for event in started)
    # The server's own count, a quarter of the bytes; the reply's room is part of the window.
    assert all(len(turn.sent.body) // 4 + OUTPUT <= WINDOW for turn in ran.agent.turns)
    refused = [turn.fault for turn in ran.agent.turns if turn.fault and turn.fault.startswith("overflow")]
    answers = len(ran.server.requests) - len(ran.agent.turns)
    assert (len(refused), answers) == (2, 0), "the server found nothing too large but the two that the script says"


def test_the_task_stands_once_byte_for_byte_in_each_request_until_the_first_compaction(ran: Ran) -> None:
    for sent in windows(ran)[0]:
        holding = [text for text in sent.strings() if TASK in text]
        assert len(holding) == 1 and holding[0].count(TASK) == 1
        assert holding[0] == TASK
        assert sum(DIRECTIVE in text for text in sent.strings()) == 1


def test_the_task_stands_verbatim_in_each_new_segment(ran: Ran) -> None:
    for window in windows(ran)[1:]:
        for sent in window:
            words = [text for text in sent.strings() if TASK in text]
            assert len(words) == 1 and words[0].count(TASK) == 1
            assert '<context kind="user_words" source="user message">\n' + TASK + "\n</context>" in words[0]
            assert sum(f"「{DIRECTIVE}」" in text for text in sent.strings()) == 1


def test_a_steering_message_is_in_every_request_from_the_next_one_on(ran: Ran) -> None:
    for step, sent in enumerate(delivered(ran)):
        count = sum(text.count(STEERING) for text in sent.strings())
        assert count == (step > STEER_AT), step


def test_consecutive_requests_are_prefixes_of_each_other_but_for_prunes_and_segments(ran: Ran) -> None:
    broken: list[tuple[int, set[str]]] = []
    requests = delivered(ran)
    for step, (sent, following) in enumerate(pairwise(requests)):
        if not following.starts_with(sent):
            broken.append((step + 1, changes(ran)[step + 1]))
        assert following.tail == sent.tail or "context.window_learned" in changes(ran)[step + 1]
    assert all(changed & {"context.pruned", "segment.started"} for _, changed in broken), broken
    starts = len(ran.told("segment.started")) + len(ran.told("context.pruned"))
    assert len(broken) == starts, "a prune or a new segment that changes nothing in the bytes is none"
    assert len({sent.head for sent in requests}) == 1, "system prompt and tools stay the same bytes"


def test_a_compaction_from_the_prefix_begins_with_the_pods_own_bytes(ran: Ran, source: str) -> None:
    turns = [turn for turn in ran.agent.turns if turn.fault is None]
    starts = [
        (before.sent, turn.sent)
        for before, turn in pairwise(turns)
        if before.kind == "main" and turn.kind == "compaction" and b"mark_read_required" not in turn.sent.body
    ]
    assert len(starts) >= (1 if source == "prefix" else 0)
    for before, order in starts:
        assert order.starts_with(before)
        assert order.static == before.static, "the same system prompt, tools, limits and cache key"
        assert order.system == before.system
        # The reply to the last request and its results stand between, then the order and nothing more.
        assert pairs(order)[: len(pairs(before))] == pairs(before)
        assert order.strings()[-1].endswith("</order>") and order.strings()[-1].count("<order tag=") == 1


def test_a_cache_key_is_sent_where_the_wire_has_one_and_stays_through_segments(ran: Ran) -> None:
    keys = {turn.sent.json.get("prompt_cache_key") for turn in ran.agent.turns if b"mark_read" not in turn.sent.body}
    assert keys == ({ran.result.session} if ran.wire == "openai" else {None})


def test_what_was_told_live_is_what_the_log_tells_later(ran: Ran) -> None:
    kinds = [event.type for event in ran.events if event.type not in LASTING]
    assert kinds.count("segment.started") == len(ran.records) - 1
    numbers = [event.seq for event in ran.events if event.type not in LASTING]
    assert numbers == sorted(set(numbers)), "each entry is told once, in order"
