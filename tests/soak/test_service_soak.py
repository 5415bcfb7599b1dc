"""A service with two hundred pods at once, each with a reader, some of which stall; and every answer against its document."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from service.service_rig import TOKEN, Rig, Stream, answering

from pod import PodHost
from pod.cli.files import open_files
from worker import tool
from worker.items import ToolResultItem
from worker.models.base import Request
from worker.testing import call, say
from worker.testing.scripted import Step

pytestmark = pytest.mark.anyio
PODS, STEPS = 200, 10


@tool
async def step() -> str:
    """One step."""
    await anyio.sleep(0.02)
    return "stepped"


def play(request: Request) -> Step:
    done = sum(isinstance(item, ToolResultItem) for item in request.items)
    return say("done") if done >= STEPS else call("step")


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("stalled", [0, 50])
async def test_two_hundred_pods_at_once_tell_each_reader_each_event_once(tmp_path: Path, stalled: int) -> None:
    open_files(4 * PODS)
    rig = Rig(tmp_path)
    names = [f"p{number:03}" for number in range(PODS)]
    streams: dict[str, Stream] = {}
    held: list[socket.socket] = []

    async with PodHost(concurrency=PODS) as host, rig.up(host=host, model=answering(play), tools=[step]) as up:
        port = int(up.url.rpartition(":")[2])
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(up.make, name, None)
        gc.collect()
        before = resident()

        async def read(name: str) -> None:
            async with up.events(name) as stream:
                streams[name] = stream
                with anyio.fail_after(120):
                    while (found := await stream._next()) is not None:
                        if found[1]["type"] == "run.ended":
                            return

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(read, name)
            for name in names[:stalled]:
                one = socket.socket()
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                await anyio.to_thread.run_sync(one.connect, ("127.0.0.1", port))
                head = f"GET /v1/pods/{name}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
                one.sendall(head.encode())
                held.append(one)
            for name in names:
                group.start_soon(up.post, f"/v1/pods/{name}/messages", {"text": "go"})
        assert (resident() - before) / PODS < 1024 * 1024
        for name in names:
            numbers = streams[name].numbers
            assert numbers == [number for number in rig.told(name) if number <= numbers[-1]], name
        for name in names:
            group_of: Any = await up.until(name, "finished")
            assert group_of["last_text"] == "done"
        began = anyio.current_time()
    assert anyio.current_time() - began < 5
    for one in held:
        one.close()


async def test_a_service_that_ends_in_the_middle_takes_under_five_seconds_and_all_can_be_gone_on_with(
    tmp_path: Path,
) -> None:
    open_files(4 * PODS)
    rig = Rig(tmp_path)
    names = [f"p{number:03}" for number in range(PODS)]
    async with PodHost(concurrency=PODS) as host, rig.up(host=host, model=answering(play), tools=[step]) as up:
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(up.make, name, "go")
        began = anyio.current_time()
    took = anyio.current_time() - began
    assert took < 5, took
    async with PodHost(concurrency=PODS) as host, rig.up(host=host, model=answering(play), tools=[step]) as up:
        for name in names:
            if (await up.get(f"/v1/pods/{name}")).json()["status"] not in {"finished", "running", "queued"}:
                await up.post(f"/v1/pods/{name}/resume")
        for name in names:
            assert (await up.until(name, "finished"))["last_text"] == "done"


def test_every_answer_to_generated_requests_is_as_the_document_says(tmp_path: Path) -> None:
    """No server error, no answer that the document does not have, over generated requests of each operation."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    rig = Rig(tmp_path)
    found: list[str] = []

    async def main() -> None:
        async with rig.up() as up:
            await up.make("p")
            await up.until("p", "finished")
            await anyio.to_thread.run_sync(check, up.url)

    def check(url: str) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers)
        for operation in schema.get_all_operations():
            given(case=operation.ok().as_strategy())(checked(set(operation.ok().definition.raw["responses"])))()

    def checked(known: set[str]) -> Callable[[Any], None]:
        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        def one(case: Any) -> None:
            answer = case.call(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
            case.validate_response(answer, checks=[schemathesis.checks.not_a_server_error])
            if str(answer.status_code) not in known:
                found.append(f"{case.method} {case.path}: {answer.status_code} {answer.text[:200]}")

        return one

    anyio.run(main)
    assert not found, "\n".join(dict.fromkeys(found))
