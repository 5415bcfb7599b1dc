"""A session of many megabytes: what is asked of it is bounded, and others are answered meanwhile."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import anyio
import pytest
from log.logs import batch, create, say
from service.service_rig import Rig

pytestmark = pytest.mark.anyio
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a session of 40 MB."""
    home = tmp_path_factory.mktemp("large")
    session = create(home, durability="os")
    for n in range(640):
        say(session, f"message {n}")
        batch(session, f"c{n}", "x" * 62_000)
    session.close()
    return home


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_b157_history_of_a_large_session_has_pages_and_a_bound_and_others_are_answered(
    rig: Rig, large: Path
) -> None:
    """B157: twenty at once."""
    rig.home = large
    async with rig.up() as up:
        if not rig.folder("other").exists():
            await up.make("other", task=None)
        await up.get("/v1/pods/a/history", params={"action": "search", "query": "warm"})
        gc.collect()
        before, most = resident(), 0
        answers: list[Any] = []

        async def ask(params: dict[str, Any], path: str) -> None:
            nonlocal most
            answer = await up.get(path, params=params)
            assert answer.status_code == 200 and len(answer.content) < 8 * MEGABYTE
            most = max(most, resident())
            answers.append(answer.json())

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(ask, {"action": "search", "query": f"nowhere {number}"}, "/v1/pods/a/history")
                group.start_soon(ask, {"after": 100 * number, "limit": 20}, "/v1/pods/a/events")
            with anyio.fail_after(20):
                assert (await up.get("/v1/pods/other")).status_code == 200
        assert len(answers) == 20 and most - before < 48 * MEGABYTE, (most - before) / MEGABYTE
