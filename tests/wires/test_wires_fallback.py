"""Fallback models across wires: the primary is busy, and models of other providers take over."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from wires.wires_rig import MODELS, WIRES, Sent, hurry, manifest, pairs

from pod import Pod
from pod.manifest.sections import ModelSection
from pod.setup import models_of
from worker.estimate import HEURISTIC_FACTOR, estimate_items
from worker.models.anthropic import MessagesModel
from worker.models.openai_chat import ChatModel
from worker.models.openai_responses import ResponsesModel
from worker.testing.provider_server import Answer, Call, Http, ProviderServer, RecordedRequest, Step
from worker.testing.provider_wires import WireName, error_body

pytestmark = pytest.mark.anyio

ADAPTERS = {"openai-chat": ChatModel, "openai": ResponsesModel, "anthropic": MessagesModel}
KEYS = {"openai-chat": "OPENAI_API_KEY", "openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
LINES = 500
FALLBACKS = {**MODELS, "openai-chat": "openai-chat:gpt-4.1"}


@dataclass
class Providers:
    """The three providers, one server each, that share one script: whoever is up gives the next step."""

    steps: Iterator[Answer]
    down: set[str] = field(default_factory=set[str])
    servers: dict[str, ProviderServer] = field(default_factory=dict[str, ProviderServer])
    got: list[tuple[str, Sent]] = field(default_factory=list[tuple[str, Sent]])
    refused: dict[str, int] = field(default_factory=dict[str, int])

    def answering(self, wire: WireName) -> Any:
        def serve(request: RecordedRequest) -> Step:
            if wire in self.down:
                self.refused[wire] = self.refused.get(wire, 0) + 1
                return Http(529, error_body(wire, "overloaded", kind="overloaded_error"))
            self.got.append((wire, Sent.of(wire, request)))
            return next(self.steps)

        return serve


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Providers]:
    """The three servers, each at the place where its vendor's own API is looked for."""
    made = Providers(iter(script()))
    with ExitStack() as stack:
        for wire in WIRES:
            server = ProviderServer(made.answering(wire), wire=wire, strict=True)
            made.servers[wire] = stack.enter_context(server)
            monkeypatch.setattr(ADAPTERS[wire], "default_base_url", server.url)
            monkeypatch.setenv(KEYS[wire], f"key-of-{wire.removesuffix('-chat')}")
        yield made


def script() -> list[Answer]:
    def read(n: int) -> Answer:
        return Answer(f"Part {n}.", reasoning=f"private thought {n}", calls=[Call("read_file", {"path": f"f{n}.py"})])

    return [*(read(n) for n in range(5)), Answer("Read.", reasoning="private thought 5")]


def prepare(folder: Path) -> None:
    (folder / "work").mkdir()
    for n in range(5):
        lines = [f"v{n}_{i} = {i * 31 % 97}  # the {i}th value of file {n}" for i in range(LINES)]
        (folder / "work" / f"f{n}.py").write_text("\n".join(lines) + "\n")


def fallbacks(primary: str) -> tuple[str, ...]:
    """First one that is too small, then the two others."""
    others = [FALLBACKS[wire] for wire in WIRES if wire != primary]
    return ("openai:tiny-of-nobody", *others) if primary != "openai" else ("openai-chat:tiny-of-nobody", *others)


async def run(
    providers: Providers, primary: WireName, folder: Path, when: dict[int, set[str]]
) -> tuple[Any, list[Any]]:
    """A run whose primary is `primary`; `when` says which providers go down at the step of that number."""
    prepare(folder)
    events: list[Any] = []

    def observe(event: Any) -> None:
        events.append(event)
        if event.type == "request.completed":
            done = sum(e.type == "request.completed" for e in events)
            providers.down = when.get(done, providers.down)

    made = manifest(
        providers.servers[primary],
        name=MODELS[primary],
        model={"context_window": 200_000, "max_output_tokens": 6_000, "fallback": fallbacks(primary)},
        prune={"enabled": False},
    )
    async with Pod.open(made, name="p", cwd=folder / "work", home=folder / "home", observers=[observe]) as pod:
        hurry(pod)
        result = await pod.run("Read the files.")
    return result, events


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that has failed is asked first again at the next request."""
    monkeypatch.setattr("worker.sending.REST", 0.0)


@pytest.mark.parametrize("primary", WIRES)
async def test_a_provider_that_has_failed_rests_while_the_other_answers(
    providers: Providers, primary: WireName, tmp_path: Path
) -> None:
    result, events = await run(providers, primary, tmp_path, {4: {primary}})
    assert result.status == "finished", result
    second = next(wire for wire in WIRES if wire != primary)
    assert [wire for wire, _ in providers.got] == [primary] * 4 + [second] * 2
    assert providers.refused == {primary: 6}, "its tries were spent once, not at each request"
    assert len([e for e in events if e.type == "model.switched" and not e.skipped]) == 1


@pytest.mark.usefixtures("no_rest")
@pytest.mark.parametrize("primary", WIRES)
async def test_another_provider_takes_over_and_gives_back(
    providers: Providers, primary: WireName, tmp_path: Path
) -> None:
    result, events = await run(providers, primary, tmp_path, {4: {primary}, 5: set()})
    assert result.status == "finished", result
    assert result.text == "Read."
    second = next(wire for wire in WIRES if wire != primary)
    assert [wire for wire, _ in providers.got] == [primary] * 4 + [second] + [primary]
    assert providers.refused == {primary: 6}, "the primary had all its tries"
    retries = [e for e in events if e.type == "retry"]
    assert [(r.error, r.model) for r in retries] == [("overloaded", MODELS[primary])] * 5
    for server in providers.servers.values():
        assert server.rejected == []


@pytest.mark.usefixtures("no_rest")
@pytest.mark.parametrize("primary", WIRES)
async def test_a_fallback_that_is_too_small_is_passed_over_with_an_event(
    providers: Providers, primary: WireName, tmp_path: Path
) -> None:
    """B056: the request has more tokens than an unknown model's window leaves, so it is never sent there."""
    _, events = await run(providers, primary, tmp_path, {4: {primary}, 5: set()})
    switches = [e for e in events if e.type == "model.switched"]
    second = next(wire for wire in WIRES if wire != primary)
    assert [(e.to_model, e.skipped) for e in switches] == [(fallbacks(primary)[0], True), (FALLBACKS[second], False)]
    assert "above the ceiling" in switches[0].reason and switches[1].reason.startswith("overloaded")
    assert all(sent.json["model"] != "tiny-of-nobody" for _, sent in providers.got)


@pytest.mark.usefixtures("no_rest")
@pytest.mark.parametrize("primary", WIRES)
async def test_reasoning_stays_with_the_provider_that_made_it(
    providers: Providers, primary: WireName, tmp_path: Path
) -> None:
    await run(providers, primary, tmp_path, {4: {primary}, 5: set()})
    (_, foreign), (_, back) = providers.got[4:]
    assert "private thought" not in json.dumps(foreign.json)
    thoughts = [f"private thought {n}" in json.dumps(back.json) for n in range(5)]
    assert thoughts == [True, True, True, True, False]
    for _, sent in providers.got:
        assert len(pairs(sent)) == min(providers.got.index((_, sent)), 5)
    calls = {call_id for call_id, _ in pairs(back)}
    assert {call_id for call_id, _ in pairs(foreign)} <= calls, "one history, whoever is asked"


async def test_a_fallback_has_its_own_window_output_and_key(providers: Providers, tmp_path: Path) -> None:
    """The key of one vendor never travels to another, nor the window that the manifest says of the first."""
    result, events = await run(providers, "openai-chat", tmp_path, {1: {"openai-chat"}, 2: {"openai-chat", "openai"}})
    assert result.status == "finished", result
    answered = [e.model for e in events if e.type == "request.completed"]
    # At the second request the small one still holds the history, and then it does not any more.
    assert answered == [
        "openai-chat:some-model",
        "openai:tiny-of-nobody",
        *["anthropic:claude-opus-5-5"] * 4,
    ]
    sizes = {
        sent.json["model"]: sent.json.get("max_tokens") or sent.json["max_output_tokens"] for _, sent in providers.got
    }
    assert sizes == {"some-model": 6_000, "tiny-of-nobody": 4_096, "claude-opus-5-5": 6_000}
    keys = {wire: set(re.findall(r"key-of-[a-z]+", json.dumps(sent.headers))) for wire, sent in providers.got}
    assert keys == {"openai-chat": set(), "openai": {"key-of-openai"}, "anthropic": {"key-of-anthropic"}}


async def test_when_no_model_answers_the_run_fails_resumable_with_the_last_word(
    providers: Providers, tmp_path: Path
) -> None:
    result, events = await run(providers, "anthropic", tmp_path, {1: set(WIRES)})
    assert (result.status, result.error_kind) == ("failed", "overloaded")
    assert result.resumable and "tries" in result.error
    assert providers.refused == {"anthropic": 6, "openai-chat": 6, "openai": 12}
    assert tuple(e.to_model for e in events if e.type == "model.switched") == fallbacks("anthropic")


async def test_a_fallback_of_the_same_provider_does_not_take_the_firsts_window() -> None:
    section = ModelSection(
        name="openai:gpt-6-sol", context_window=300_000, max_output_tokens=50_000, fallback=("openai:gpt-4o",)
    )
    first, second = models_of(section)
    assert (first.capabilities.window, second.capabilities.window) == (300_000, 128_000)
    assert (first.capabilities.max_output, second.capabilities.max_output) == (50_000, 16_384)


async def test_a_fallback_is_judged_by_its_own_tokenizer(providers: Providers, tmp_path: Path) -> None:
    """Claude counts more tokens for the same text (facts, providers 5.2): what fits one may not fit another."""
    prepare(tmp_path)
    made = manifest(providers.servers["openai"], model={"fallback": (MODELS["anthropic"],)})
    async with Pod.open(made, name="p", cwd=tmp_path / "work", home=tmp_path / "home") as pod:
        hurry(pod)
        providers.steps = iter([script()[0], script()[-1]])
        await pod.run("Read the files.")
        sender, view = pod.running.worker.sender, pod.state.history.view
        other = sender.occupancy(sender.models[1])
        whole = sender.overhead(sender.models[1]) + estimate_items(view, "claude")
    assert (other.tokens, other.provenance) == (int(whole * HEURISTIC_FACTOR), "heuristic")
    assert estimate_items(view, "claude") > estimate_items(view, "o200k")
