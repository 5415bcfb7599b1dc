"""Pods of one process share the pace of their account, and tell of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from pod import Manifest, Pod
from pod.cli.progress import Lines
from pod.events import Paced
from worker.pacing import paces
from worker.testing.provider_server import Http, ProviderServer

pytestmark = pytest.mark.anyio


def manifest(server: ProviderServer, **more: Any) -> Manifest:
    return Manifest.model_validate(
        {
            "model": {
                "name": f"{server.wire}:m", "base_url": server.url, "api_key_env": "PACE_TEST_KEY",
                "context_window": 64_000,
            },
            "tools": {"enable": []},
            **more,
        }
    )  # fmt: skip


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACE_TEST_KEY", "sk-of-the-pace-tests")


async def test_a_refusal_of_one_pod_holds_the_others_and_each_tells_so_once(tmp_path: Path) -> None:
    """B104."""
    refusal = Http(429, {"error": {"message": "slow down"}}, {"retry-after": "60"})
    with ProviderServer([refusal]) as server, anyio.fail_after(30):
        once = manifest(server, retry={"max_attempts": 1})
        async with Pod.open(once, name="first", home=tmp_path, cwd=tmp_path) as pod:
            assert (await pod.run("go")).error_kind == "rate_limited"
        async with Pod.open(once, name="second", home=tmp_path, cwd=tmp_path) as pod, pod.start("go") as run:
            told = [event async for event in until_paced(run)]
            (view,) = paces().view()
            assert (view.in_flight, view.waiting, view.reason) == (0, 1, "rate_limited")
            await run.interrupt()
        assert len(server.requests) == 1
    (paced,) = [event for event in told if isinstance(event, Paced)]
    assert (paced.reason, paced.waiting) == ("rate_limited", 1) and 50 < paced.wait <= 60
    line = Lines().of(paced)
    assert line.startswith("waits for its turn: the provider refused others for their rate, ") and "at least" in line
    assert paces().view()[0].waiting == 0


async def until_paced(run: Any) -> Any:
    async for event in run:
        yield event
        if event.type == "paced":
            return
