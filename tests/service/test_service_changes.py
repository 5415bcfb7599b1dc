"""Pods that are cleared, taken back and removed through HTTP, while nobody runs them."""

from __future__ import annotations

import anyio
import pytest
from service.service_rig import Rig, Up, answering

from pod import Pod, PodHost
from worker import tool
from worker.items import ToolResultItem
from worker.models.base import Request
from worker.testing import call, hang, say
from worker.testing.scripted import Step

pytestmark = pytest.mark.anyio


async def test_a_pod_is_removed_for_good_and_its_name_is_free(rig: Rig) -> None:
    async with rig.up() as up:
        await up.make()
        await up.until("p", "finished")
        await settled(up)
        files = sum(1 for path in rig.folder().path.rglob("*") if path.is_file())
        gone = await up.client.delete("/v1/pods/p")
        assert gone.status_code == 200, gone.text
        said = gone.json()
        assert said["pod"] == "p" and said["segments"] == 1 and 0 < said["files"] <= files and said["bytes"] > 500
        assert not rig.folder().path.exists() and not list((rig.root / "state" / "pods").glob("*.json"))
        assert (await up.get("/v1/pods/p")).status_code == 404 and (
            await up.client.delete("/v1/pods/p")
        ).status_code == 404
        await up.make("p", "anew")
        assert (await up.until("p", "finished"))["totals"]["requests"] == 1


async def settled(up: Up) -> None:
    """Waits until nothing is under way here."""
    care = up.service.care
    with anyio.fail_after(20):
        while care._busy:
            await anyio.sleep(0.02)


async def test_what_is_removed_once_under_a_key_is_not_removed_again(rig: Rig) -> None:
    async with rig.up() as up:
        await up.make(task=None)
        await settled(up)
        first = await up.client.delete("/v1/pods/p", headers={"idempotency-key": "rm-1"})
        await up.make(task=None)
        await settled(up)
        again = await up.client.delete("/v1/pods/p", headers={"idempotency-key": "rm-1"})
        assert first.status_code == again.status_code == 200 and first.json() == again.json()
        assert rig.folder().exists()


async def test_what_runs_here_or_waits_for_its_place_is_refused_until_it_was_stopped(rig: Rig) -> None:
    begun, go = anyio.Event(), anyio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await go.wait()
        return "waited"

    def play(request: Request) -> Step:
        return say("done") if any(isinstance(item, ToolResultItem) for item in request.items) else call("wait")

    async with PodHost(concurrency=1) as host, rig.up(host=host, model=answering(play), tools=[wait]) as up:
        await up.make("first")
        with anyio.fail_after(20):
            await begun.wait()
        await up.make("second")
        for name in ("first", "second"):
            for answer in (
                await up.client.delete(f"/v1/pods/{name}"),
                await up.post(f"/v1/pods/{name}/clear"),
                await up.post(f"/v1/pods/{name}/rewind", {"to": 2}),
            ):
                assert answer.status_code == 409 and answer.json()["error"] == "in_use", answer.text
                assert "stop" in answer.json()["message"]
            await up.post(f"/v1/pods/{name}/stop")
        go.set()
        await settled(up)
        for name in ("first", "second"):
            assert (await up.client.delete(f"/v1/pods/{name}")).status_code == 200
        assert (await up.get("/v1/pods")).json()["pods"] == []
        host.halt()


async def test_what_another_process_has_open_is_refused_with_who_that_is(rig: Rig) -> None:
    async with rig.up() as up:
        async with Pod.open(rig.manifests / "plain.toml", name="p", home=rig.home, cwd=rig.cwd, model=answering()):
            for answer in (await up.client.delete("/v1/pods/p"), await up.post("/v1/pods/p/clear")):
                assert answer.status_code == 409 and answer.json()["error"] == "in_use"
                assert "in use by process" in answer.json()["message"]
        assert (await up.client.delete("/v1/pods/p")).status_code == 200


async def test_a_cleared_pod_begins_anew_and_takes_what_comes_after(rig: Rig) -> None:
    heard: list[list[str]] = []

    def play(request: Request) -> Step:
        heard.append([item.text for item in request.items if item.type == "user"])
        return say("done")

    async with rig.up(model=answering(play)) as up:
        await up.make(task="the secret plan")
        await up.until("p", "finished")
        await settled(up)
        done = await up.post("/v1/pods/p/clear")
        assert done.status_code == 200 and done.json()["point"] > 1 and done.json()["left_behind"] == []
        shown = (await up.get("/v1/pods/p")).json()
        assert shown["status"] == "new" and shown["items"] == 0 and shown["totals"]["requests"] == 1
        found = (await up.get("/v1/pods/p/history", params={"action": "search", "query": "secret"})).json()
        assert "secret plan" not in found["text"]
        await up.post("/v1/pods/p/messages", {"text": "next"})
        await up.until("p", "finished")
        assert heard == [["the secret plan"], ["next"]]


async def test_a_pod_is_taken_back_and_readers_go_on(rig: Rig) -> None:
    async with rig.up() as up:
        await up.make(task="one")
        await up.until("p", "finished")
        await settled(up)
        before = rig.told()[-1]
        await up.post("/v1/pods/p/messages", {"text": "two"})
        with anyio.fail_after(20):
            while rig.told()[-1] == before or (await up.get("/v1/pods/p")).json()["status"] != "finished":
                await anyio.sleep(0.02)
        await settled(up)
        async with up.events("p", last_event_id=str(before)) as stream:
            await stream.until("run.ended")
            done = (await up.post("/v1/pods/p/rewind", {"to": before})).json()
            assert done["point"] <= before == done["asked"] and done["unfinished"] is False
            await stream.until("segment.started")
        shown = (await up.get("/v1/pods/p")).json()
        assert shown["lineage"] == "rewound_from" and "two" not in str((await up.get("/v1/pods/p/context")).json())
        far = await up.post("/v1/pods/p/rewind", {"to": 10**9})
        assert far.status_code == 422
        again = await up.post("/v1/pods/p/rewind", {"to": rig.told()[-1]})
        assert again.status_code == 409 and again.json()["error"] == "not_settled"


async def test_a_message_that_comes_while_a_pod_is_removed_finds_none(rig: Rig) -> None:
    async with rig.up(model=answering(lambda request: hang())) as up:
        await up.make(task=None)
        await settled(up)
        answers: list[int] = []

        async def ask(method: str, path: str) -> None:
            body = {"text": "hi"} if method == "POST" else None
            answers.append((await up.client.request(method, path, json=body)).status_code)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "DELETE", "/v1/pods/p")
            group.start_soon(ask, "POST", "/v1/pods/p/messages")
        # Either came first: a pod that was given something and began with it stays, else it is gone.
        assert rig.folder().exists() is (409 in answers), answers
        for name in ("p",):
            await up.post(f"/v1/pods/{name}/stop")
