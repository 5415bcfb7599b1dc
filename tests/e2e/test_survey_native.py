"""The survey under the policy `native`: the real wires, against a strict provider that compacts histories itself."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.survey_task import CONVERSATION, FEW, TASK, plant, records_of, right

from pod import Pod, RunResult
from pod.log import entries as e
from pod.manifest import load_manifest
from worker import records as w
from worker.items import ContextItem, OpaqueItem, ReasoningItem
from worker.models.base import NativeWay, Reply, Request
from worker.offline.survey_view import FINDING
from worker.offline.surveyor import survey
from worker.testing import make_reply
from worker.testing.provider_agent import ProviderAgent
from worker.testing.provider_server import ProviderServer

pytestmark = pytest.mark.slow

_FAILED = re.compile(r"^no such file|has \d+ lines?: offset|^not |was not run")
"""How a failed tool result begins, for a wire that does not say its status."""

CASES = [
    ("openai:gpt-6-sol", "responses.compact", "notes", "asyncio"),
    ("openai:gpt-6-sol", "compaction_trigger", "conversation", "trio"),
    ("anthropic:claude-opus-5-5", "summarize", "conversation", "asyncio"),
    ("anthropic:claude-opus-5-5", "summarize", "notes", "trio"),
]


def thinking(request: Request) -> Reply:
    """The surveyor, with reasoning that its provider binds to what stands before it."""
    return make_reply(ReasoningItem(provider="", model="", payload="", text="I go on."), *survey(request).items)


def findings(request: Request) -> str:
    """A provider's summary: what the agent found so far, in its own words."""
    texts = [getattr(item, "text", "") for item in request.items if not isinstance(item, ReasoningItem)]
    found = (line for text in texts if isinstance(text, str) for line in text.split("\n") if line.startswith(FINDING))
    return "\n".join(["Files were read.", *dict.fromkeys(found)])


@pytest.mark.parametrize(("model", "way", "variant", "backend"), CASES, ids=[f"{c[1]}-{c[2]}" for c in CASES])
def test_the_report_is_the_same_over_the_providers_own_memories(
    model: str, way: NativeWay, variant: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is rejected, no reasoning is dropped, and no request is above its ceiling."""
    monkeypatch.setenv("SURVEY_KEY", "sk-survey")
    plant(tmp_path, FEW)
    wire: Any = model.partition(":")[0]
    agent = ProviderAgent(
        wire, thinking, summarize=findings, status_of=lambda text: "error" if _FAILED.search(text[:200]) else "ok"
    )
    with ProviderServer(
        agent, wire=wire, strict=True, bind_reasoning=True, compacts=agent.compact, ways=(way,)
    ) as server:
        loaded = load_manifest(
            "offline-survey",
            [
                f'model.name="{model}"', f'model.base_url="{server.url}"', 'model.api_key_env="SURVEY_KEY"',
                'context.policy="native"', 'context.ladder=["native"]', "prune.enabled=false",
                # A provider's summary is as long as it likes, and it is sent all that it compacts: more room than is shipped.
                "compaction.request_threshold=22000", "model.context_window=49152",
            ],
            env={}, cwd=tmp_path,
        )  # fmt: skip

        async def run() -> tuple[RunResult, list[w.Record], int]:
            async with Pod.open(loaded, name="survey", home=tmp_path / "home", cwd=tmp_path) as pod:
                result = await pod.run(TASK + (CONVERSATION if variant == "conversation" else ""))
                return result, [record async for record in records_of(pod)], pod.init_event().available

        result, records, available = anyio.run(run, backend=backend)
        assert result.status == "finished", result.error
        assert right(tmp_path), "the report equals what `ast` says"
        assert server.rejected == []
        made = [r for r in records if isinstance(r, e.NativeMade)]
        starts = [r for r in records if isinstance(r, e.SegmentStarted)]
        refused = way == "compaction_trigger"  # the endpoint, which this server does not have, is asked once
        assert {r.way for r in made} == {way}
        assert len(server.compacted) == len(made) + refused and not any(isinstance(r, w.Retry) for r in records)
        # One that gained too little was paid for, and the run went on without it.
        assert 3 <= result.compactions == len(starts) - 1 <= len(made)
        assert {r.rung for r in records if isinstance(r, e.CompactionCompleted)} == {"native"}
        assert all(isinstance(start.items[0], OpaqueItem) for start in starts[1:])
        assert all(not isinstance(i, ContextItem) or i.kind != "summary" for start in starts for i in start.items)
    replies = [r for r in records if isinstance(r, w.ReplyRecord)]
    assert not any(r.transformations for r in replies), "no reasoning was dropped"
    assert max(r.usage.input_tokens or 0 for r in replies) <= available
    assert all(a.source_hash != b.source_hash for a, b in pairwise(r.item for r in made))
