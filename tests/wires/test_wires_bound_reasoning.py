"""Models that bind their reasoning to what stands before it, and those that want it back in an open tool loop."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from wires.conftest import LongRuns
from wires.test_wires_long_task import delivered, windows
from wires.wires_rig import Agent, Ran, Sent, hurry, manifest, pairs, run_pod

from pod import Pod
from worker.testing.provider_server import Answer, Call, Http, ProviderServer, RecordedRequest, Step
from worker.testing.provider_wires import WireName, error_body

pytestmark = pytest.mark.anyio

BETA = "thinking-binding-controls-2026-08-01"
SMALL_WINDOW = 14_000


def controlled(sent: Sent) -> bool:
    """Whether a request asks for invalid thinking to be dropped: the beta name and the field."""
    thinking = cast("dict[str, Any]", sent.json.get("thinking") or {})
    named = BETA in sent.headers.get("anthropic-beta", "").split(",")
    return named and thinking.get("block_binding") == {"prefix_mismatch_behavior": "drop_block"}


def bodies_of(folder: Path, count: int, size: int = 150) -> None:
    """Files to read, each about `size` lines of code."""
    (folder / "work").mkdir(exist_ok=True)
    for n in range(count):
        text = "\n".join(f"VALUE_{n}_{i} = {i * 31 % 97}  # the {i}th value" for i in range(size))
        (folder / "work" / f"f{n}.py").write_text(text + "\n")


def reading(count: int) -> list[Answer]:
    """An agent that reads one file after the other."""
    steps = [
        Answer(f"File {n}.", reasoning=f"I read f{n}.", calls=[Call("read_file", {"path": f"f{n}.py"})])
        for n in range(count)
    ]
    return [*steps, Answer("All read.", reasoning="Done.")]


def thoughts(sent: Sent) -> list[dict[str, Any]]:
    """The reasoning that a request sends back."""
    if sent.wire == "openai":
        return [item for item in sent.items if item["type"] == "reasoning"]
    listed = [cast("list[dict[str, Any]]", x["content"]) for x in sent.items if isinstance(x["content"], list)]
    blocks = [block for content in listed for block in content]
    return [block for block in blocks if block["type"] == "thinking"]


def transformed(ran: Ran) -> list[list[dict[str, Any]]]:
    """What the provider did to the input of each request, as the reply entries hold it."""
    return [list(reply["transformations"]) for reply in ran.flat("reply")]


# -- in the long task


@pytest.mark.parametrize("source", ["prefix", "overview"])
def test_the_control_is_in_the_first_request_and_in_all_later_ones(long_runs: LongRuns, source: str) -> None:
    ran = long_runs("anthropic", source)
    assert controlled(ran.agent.turns[0].sent)
    assert all(controlled(turn.sent) for turn in ran.agent.turns), "the compact worker's requests are no exception"


@pytest.mark.parametrize("wire", ["anthropic", "openai"])
def test_reasoning_goes_back_as_it_came_until_a_segment_starts(
    long_runs: LongRuns, wire: WireName, source: str
) -> None:
    """B020: the server signs each block over all that stands before it, and every block it got was valid."""
    ran = long_runs(wire, source)
    kept = [i["payload"] for r in ran.flat("reply") for i in r["items"] if i["type"] == "reasoning"]
    assert len(kept) == len(delivered(ran))
    at = 0
    for window in windows(ran):
        for n, sent in enumerate(window):
            shown = thoughts(sent)
            assert len(shown) == n, "all of this segment and none of an earlier one"
            for payload in kept[at : at + n]:
                assert payload.encode() in sent.messages
        at += len(window)
    whole = [reply for segment in ran.records for reply in _before_a_prune(segment) if reply["kind"] == "reply"]
    assert len(whole) > 50
    assert not [reply for reply in whole if reply["transformations"]], "the provider had nothing to drop"


def _before_a_prune(segment: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of a segment up to its first prune: behind that, bound reasoning is dropped."""
    return segment[: next((at for at, line in enumerate(segment) if line["kind"] == "pruned"), None)]


def test_reasoning_of_a_response_keeps_the_bytes_of_its_event(long_runs: LongRuns) -> None:
    """B146: the server writes its items with blanks behind colons, which nothing of ours does."""
    sent = delivered(long_runs("openai", "prefix"))[5]
    assert len(re.findall(rb'\{"id": "rs_\d+", "type": "reasoning", "summary": \[\{"type": ', sent.messages)) == 5


def test_text_and_calls_of_the_kept_end_stay_without_their_reasoning(long_runs: LongRuns) -> None:
    """B020: after a compaction the retained tail has no bound blocks, and no call lost its result."""
    both: tuple[WireName, WireName] = ("anthropic", "openai")
    for wire in both:
        for window in windows(long_runs(wire, "prefix"))[1:]:
            assert thoughts(window[0]) == []
            assert len(pairs(window[0])) >= 1
            assert b'"id":"fc_' not in window[0].messages, "ids of calls are worth nothing without their reasoning"


# -- a prune of bound history


@pytest.mark.parametrize("wire", ["anthropic", "openai"])
async def test_what_a_provider_drops_after_a_prune_is_in_the_reply_entry(wire: WireName, tmp_path: Path) -> None:
    """A prune at the ceiling makes later thinking invalid: the provider drops it and says so, and the run goes on."""
    bodies_of(tmp_path, 7)
    agent = Agent(wire, reading(7))
    with ProviderServer(agent, wire=wire, strict=True, bind_reasoning=True) as server:
        made = manifest(server, model={"context_window": SMALL_WINDOW}, prune={"protected_tokens": 1_000})
        ran = await run_pod(server, agent, made, tmp_path, "Read all files.")
    assert ran.result.status == "finished", ran.result
    assert [event.reason for event in ran.told("context.pruned")][:1] == ["ceiling"]
    assert ran.server.rejected == []
    first = next(n for n, found in enumerate(transformed(ran)) if found)
    names = {"anthropic": "prefix_binding_mismatch", "openai": "prefix_mismatch"}
    assert {entry["reason"] for entry in transformed(ran)[first]} == {names[wire]}
    assert len(thoughts(delivered(ran)[first])) >= len(transformed(ran)[first]), "they were sent, the provider chose"


async def test_a_model_that_is_not_known_to_bind_is_asked_again_with_the_control(tmp_path: Path) -> None:
    """Facts, recommendation 14: the rejection is an event, the request goes out once more, and later ones are right."""
    bodies_of(tmp_path, 7)
    agent = Agent("anthropic", reading(7))
    with ProviderServer(agent, wire="anthropic", strict=True, bind_reasoning=True) as server:
        made = manifest(
            server,
            name="anthropic:claude-of-next-year",
            model={"context_window": SMALL_WINDOW},
            prune={"protected_tokens": 1_000},
        )
        ran = await run_pod(server, agent, made, tmp_path, "Read all files.")
        sent = [Sent.of("anthropic", request) for request in server.requests]
    assert ran.result.status == "finished", ran.result
    retries = ran.told("retry")
    assert [(r.error, r.attempt, r.wait) for r in retries] == [("invalid_history", 1, 0.0)]
    assert "is dropped from now on" in retries[0].message
    marks = [controlled(each) for each in sent]
    first = marks.index(True)
    assert first > 0 and all(marks[first:]) and not any(marks[:first])
    assert sent[first].messages == sent[first - 1].messages, "the same history, under the other rule"
    assert any(transformed(ran))


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        ("anthropic", "messages.1.content.0: Invalid `signature` in `thinking` block"),
        ("openai", "The encrypted content gAAA... could not be verified."),
    ],
)
async def test_reasoning_that_a_provider_cannot_read_any_more_is_left_out(
    wire: WireName, message: str, tmp_path: Path
) -> None:
    """B013, B020: another account or a moved endpoint must not brick the session."""
    bodies_of(tmp_path, 3, size=5)
    steps = iter(reading(3))

    def serve(request: RecordedRequest) -> Step:
        moved = len(server.requests) > 2
        old = b"I read f0" in request.body or b"I read f1" in request.body
        return Http(400, error_body(wire, message)) if moved and old else next(steps)

    agent = Agent(wire, [])
    with ProviderServer(serve, wire=wire, strict=True) as server:
        ran = await run_pod(server, agent, manifest(server), tmp_path, "Read all files.")
        sent = [Sent.of(wire, request) for request in server.requests]
    assert ran.result.status == "finished", ran.result
    assert [r.error for r in ran.told("retry")] == ["invalid_history"]
    assert [len(thoughts(each)) for each in sent] == [0, 1, 2, 0, 0]
    assert [len(pairs(each)) for each in sent] == [0, 1, 2, 2, 3]


async def test_a_history_that_cannot_be_mended_ends_the_run_with_the_providers_words(tmp_path: Path) -> None:
    body = error_body("openai-chat", "messages with role 'tool' must be a response to a preceding message")
    with ProviderServer(lambda _: Http(400, body), wire="openai-chat") as server:
        ran = await run_pod(server, Agent("openai-chat", []), manifest(server), tmp_path, "Go.")
    assert (ran.result.status, ran.result.error_kind) == ("failed", "invalid_history")
    assert "must be a response" in (ran.result.error or "")
    assert len(server.requests) == 1


# -- models that do not bind


async def test_a_turn_with_a_thinking_budget_keeps_its_thinking_through_a_compaction(tmp_path: Path) -> None:
    """These models want an open tool loop to begin with thinking, and do not bind it: it stays in the retained tail."""
    bodies_of(tmp_path, 9)
    agent = Agent("anthropic", reading(9), reread="f0.py")
    with ProviderServer(agent, wire="anthropic", strict=True) as server:
        made = manifest(
            server,
            name="anthropic:claude-sonnet-4-5",
            model={"reasoning": 1024},
            prune={"enabled": False},
            compaction={
                "request_threshold": 16_000, "source": "prefix", "retained_tokens": 3_000, "worker_context_max_tokens": 9_000
            },
        )  # fmt: skip
        ran = await run_pod(server, agent, made, tmp_path, "Read all files.")
    assert ran.result.status == "finished", ran.result
    assert ran.server.rejected == [] and ran.result.compactions >= 1
    for window in windows(ran)[1:]:
        assert window[0].json["thinking"] == {"type": "enabled", "budget_tokens": 1024}
        assert thoughts(window[0])


async def test_thinking_is_off_while_the_open_turn_is_another_models(tmp_path: Path) -> None:
    """A switch in mid-turn to a model with a thinking budget: without this it would reject the history."""
    bodies_of(tmp_path, 3, size=5)
    with ProviderServer(reading(2)[:1], wire="openai-chat", strict=True) as first:
        pod = Pod.open(manifest(first), name="p", cwd=tmp_path / "work", home=tmp_path / "home")
        async with pod:
            pod.running.retry = None
            broken = await pod.run("Read all files.")
        assert broken.status == "failed" and len(first.requests) == 2
    steps = [*reading(3)[1:3], Answer("Both.", reasoning="Done."), Answer("Thanks.", reasoning="Polite.")]
    with ProviderServer(steps, wire="anthropic", strict=True) as second:
        made = manifest(second, name="anthropic:claude-sonnet-4-5", model={"reasoning": 1024})
        async with Pod.open(made, name="p", cwd=tmp_path / "work", home=tmp_path / "home") as pod:
            hurry(pod)
            result = await pod.resume()
            again = await pod.run("Thank you.")
        sent = [Sent.of("anthropic", request) for request in second.requests]
    assert (result.status, again.status) == ("finished", "finished"), (result, again)
    assert second.rejected == []
    assert "I read f0" not in json.dumps(sent[0].json), "reasoning of another provider is left out"
    assert ["thinking" in each.json for each in sent] == [False, True, True, True]
