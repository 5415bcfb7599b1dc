"""Cancelled in mid-stream: the connection is closed, nothing of the reply is kept, and the run goes on later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from wires.wires_rig import Sent, hurry, manifest, pairs

from pod import Pod, UsageProblem
from worker.testing.provider_server import Answer, Call, ProviderServer
from worker.testing.provider_wires import WireName

pytestmark = pytest.mark.anyio

TASK = "Write a line, then say so."
LINE = {"path": "notes.md", "content": "- once"}
NEVER = {"path": "notes.md", "content": "- never"}


def steps(slow: Answer) -> list[Answer]:
    return [
        Answer("First.", reasoning="I write.", calls=[Call("append_file", LINE)]),
        slow,
        Answer("It is written.", reasoning="Done."),
    ]


SLOW = Answer("This comes slowly, word by word.", reasoning="slow", calls=[Call("append_file", NEVER)], pause=0.05)
STUCK = Answer("This comes and then", reasoning="stuck", calls=[Call("append_file", NEVER)], fault="silence")


async def closed(server: ProviderServer, number: int) -> bool:
    """Whether the server sees the client close the connection of this request."""
    return await anyio.to_thread.run_sync(server.requests[number].left.wait, 5)


@pytest.mark.parametrize("slow", [SLOW, STUCK], ids=["streaming", "silent"])
async def test_a_cancelled_stream_is_closed_and_the_run_goes_on(wire: WireName, slow: Answer, tmp_path: Path) -> None:
    """B106 and the probe matrix: the provider stops working for us at once."""
    (tmp_path / "work").mkdir()
    events: list[Any] = []
    scope = anyio.CancelScope()

    def observe(event: Any) -> None:
        events.append(event)
        if event.type == "text.delta" and event.text.startswith("Thi"):
            scope.cancel()

    with ProviderServer(steps(slow), wire=wire, strict=True) as server:
        made = manifest(server)
        async with Pod.open(made, name="p", cwd=tmp_path / "work", home=tmp_path / "home", observers=[observe]) as pod:
            hurry(pod)
            with scope:
                await pod.run(TASK)
            assert scope.cancelled_caught
            assert await closed(server, 1)
            result = await pod.resume()
        bodies = [Sent.of(wire, request) for request in server.requests]
    assert result.status == "finished" and result.text == "It is written."
    assert len(bodies) == 3 and server.rejected == []
    assert bodies[2].body == bodies[1].body, "nothing of the cut reply was kept"
    assert (tmp_path / "work" / "notes.md").read_text() == "- once\n"
    assert [e.status for e in events if e.type == "run.ended"] == ["cancelled", "finished"]
    assert not [e for e in events if e.type == "retry"], "a cancellation is no fault of the provider"


async def test_another_process_goes_on_where_a_stream_was_cut(wire: WireName, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with ProviderServer(steps(SLOW), wire=wire, strict=True) as server:
        made = manifest(server)
        async with Pod.open(made, name="p", cwd=tmp_path / "work", home=tmp_path / "home") as pod:
            hurry(pod)
            async with pod.start(TASK) as run:
                async for event in run:
                    if event.type == "text.delta" and event.text.startswith("Thi"):
                        break
            assert await closed(server, 1)
        async with Pod.reopen("p", home=tmp_path / "home") as pod:
            hurry(pod)
            result = await pod.resume()
        bodies = [Sent.of(wire, request) for request in server.requests]
    assert result.status == "finished"
    assert bodies[2].body == bodies[1].body, "a restart sends the same bytes: the prefix cache stays warm"
    assert len(pairs(bodies[2])) == 1


async def test_a_cancelled_wait_for_headers_leaves_no_connection(wire: WireName, tmp_path: Path) -> None:
    """A provider that takes the request and says nothing: the cancellation does not wait for it."""
    (tmp_path / "work").mkdir()
    held = anyio.Event()

    def hold(_: Any) -> Answer:
        anyio.from_thread.run_sync(held.set, token=token)
        return Answer("late", fault="silence", after=0)

    token = anyio.lowlevel.current_token()
    with ProviderServer(hold, wire=wire) as server:
        async with Pod.open(manifest(server), name="p", cwd=tmp_path / "work", home=tmp_path / "home") as pod:
            async with anyio.create_task_group() as group:
                group.start_soon(pod.run, TASK)
                with anyio.fail_after(10):
                    await held.wait()
                group.cancel_scope.cancel()
            assert await closed(server, 0)
            assert pod.state.queued == [] and pod.state.history.view == [], (
                "the sender was there: the input is given back"
            )
            with pytest.raises(UsageProblem, match="nothing to go on with"):
                await pod.resume()
        assert len(server.requests) == 1, "nothing is asked of the model without a word of the user"
