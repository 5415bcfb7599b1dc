"""Pods through HTTP: made, talked to, answered, stopped, gone on with; each write once."""

from __future__ import annotations

import io
import json
from typing import Any

import anyio
import pytest
from service.service_rig import Rig, answering

from pod import Pod, PodHost
from pod.importing import import_pod
from pod.log.inbox import Command, post, waiting
from pod.removing import remove
from pod.retrace import Stored, entries_of
from pod.timeline import Timeline
from worker import tool
from worker.items import ToolResultItem
from worker.models.base import Request
from worker.testing import call, hang, say
from worker.testing.scripted import Step

pytestmark = pytest.mark.anyio


async def test_a_pod_is_made_with_its_task_runs_and_its_result_is_waited_for(rig: Rig) -> None:
    async with rig.up() as up:
        assert (await up.get("/v1/manifests")).json()["manifests"] == ["plain"]
        made = await up.post("/v1/pods", {"manifest": "plain", "task": "go"})
        assert made.status_code == 201 and made.json()["new"] is True
        name = made.json()["pod"]
        found = (await up.get(f"/v1/pods/{name}/result", params={"wait": 20})).json()
        assert found["status"] == "finished" and found["result"]["text"] == "done"
        listed = (await up.get("/v1/pods")).json()
        assert [row["name"] for row in listed["pods"]] == [name] and listed["next"] is None
        shown = (await up.get(f"/v1/pods/{name}")).json()
        assert shown["status"] == "finished" and shown["last_text"] == "done"
        assert (await up.get(f"/v1/pods/{name}/context")).json()["policy"]


async def test_names_with_groups_are_found_and_lists_have_pages(rig: Rig) -> None:
    async with rig.up() as up:
        for name in ("team/a", "team/b", "z"):
            await up.make(name, task=None)
        first = (await up.get("/v1/pods", params={"limit": 2})).json()
        assert [row["name"] for row in first["pods"]] == ["team/a", "team/b"]
        second = (await up.get("/v1/pods", params={"limit": 2, "after": first["next"]})).json()
        assert [row["name"] for row in second["pods"]] == ["z"] and second["next"] is None
        assert (await up.get("/v1/pods/team%2Fa")).json()["name"] == "team/a"
        assert (await up.get("/v1/pods/team/b/events")).status_code == 200


async def test_a_message_wakes_a_pod_and_two_at_once_are_answered_in_order(rig: Rig) -> None:
    """B156: queued in order, no fork, and never stuck busy."""
    heard: list[list[str]] = []

    def play(request: Request) -> Step:
        heard.append([item.text for item in request.items if item.type == "user"])
        return say(f"answer {len(heard)}")

    async with rig.up(model=answering(play)) as up:
        await up.make(task=None)
        async with anyio.create_task_group() as group:
            for text in ("one", "two"):
                group.start_soon(up.post, "/v1/pods/p/messages", {"text": text})
        await up.until("p", "finished")
        with anyio.fail_after(20):
            while not heard or sorted(heard[-1]) != ["one", "two"]:
                await anyio.sleep(0.02)
        await up.until("p", "finished")
        assert (await up.post("/v1/pods/p/messages", {"text": "three"})).json()["stored"] is True
        with anyio.fail_after(20):
            while heard[-1][-1] != "three":
                await anyio.sleep(0.02)
        assert len(heard[-1]) == 3
        await up.until("p", "finished")
    assert len(list((rig.home / "pods" / "p").glob("*.jsonl"))) == 1


async def test_a_run_is_stopped_and_gone_on_with(rig: Rig) -> None:
    """B156: after the stop the pod is free, and whoever waited is answered."""
    reached = anyio.Event()

    @tool
    async def slow() -> str:
        """Takes a while."""
        reached.set()
        await anyio.sleep(0.2)
        return "slept"

    turns: list[int] = []

    def play(request: Request) -> Step:
        turns.append(1)
        results = [item for item in request.items if isinstance(item, ToolResultItem)]
        return say("rested") if len(results) > 1 else call("slow")

    async with rig.up(model=answering(play), tools=[slow]) as up:
        await up.make()
        with anyio.fail_after(20):
            await reached.wait()
        answer = await up.post("/v1/pods/p/stop", {"reason": "enough"})
        assert answer.status_code == 202 and answer.json()["running"] is True
        found = (await up.get("/v1/pods/p/result", params={"wait": 20})).json()
        assert found["status"] == "cancelled" and found["result"]["resumable"] is True
        assert (await up.post("/v1/pods/p/resume")).status_code == 202
        assert (await up.until("p", "finished"))["last_text"] == "rested"
        nothing = await up.post("/v1/pods/p/resume")
        assert nothing.status_code == 422 and "nothing to go on with" in nothing.json()["message"]


async def test_a_question_is_listed_answered_and_the_pod_goes_on(rig: Rig) -> None:
    done: list[str] = []

    @tool(effect="network")
    def send_mail(to: str) -> str:
        """Sends a mail."""
        done.append(to)
        return "sent"

    def play(request: Request) -> Step:
        ended = [item for item in request.items if isinstance(item, ToolResultItem)]
        return say("told them") if ended else call("send_mail", to="ann")

    async with rig.up(model=answering(play), tools=[send_mail]) as up:
        await up.make()
        await up.until("p", "waiting")
        [asked] = (await up.get("/v1/pods/p/approvals")).json()["approvals"]
        assert asked["tool"] == "send_mail" and not done
        wrong = await up.post("/v1/pods/p/approvals/nothing-of-it", {"approve": True})
        assert wrong.status_code == 404
        answer = await up.post(f"/v1/pods/p/approvals/{asked['id']}", {"approve": True, "scope": "once"})
        assert answer.status_code == 202
        await up.until("p", "finished")
        events = (await up.get("/v1/pods/p/events", params={"limit": 500})).json()["events"]
        [told] = [event for event in events if event["type"] == "approval.answered"]
        assert told["by"] == "token" and done == ["ann"]
        again = await up.post(f"/v1/pods/p/approvals/{asked['id']}", {"approve": False})
        assert again.status_code == 404


async def test_the_same_request_with_its_key_is_done_once_and_another_one_is_refused(rig: Rig) -> None:
    async with rig.up() as up:
        body = {"manifest": "plain", "task": "go"}
        first = await up.post("/v1/pods", body, idempotency_key="make-1")
        again = await up.post("/v1/pods", body, idempotency_key="make-1")
        assert first.status_code == 201 and again.json() == first.json() and again.status_code == 201
        other = await up.post("/v1/pods", {**body, "task": "something else"}, idempotency_key="make-1")
        assert other.status_code == 422 and other.json()["error"] == "key_reused"
        name = first.json()["pod"]
        await up.until(name, "finished")
        for _ in range(3):
            said = await up.post(f"/v1/pods/{name}/messages", {"text": "more"}, idempotency_key="say-1")
            assert said.status_code == 202
        await up.until(name, "finished")
        events = (await up.get(f"/v1/pods/{name}/events", params={"limit": 500})).json()["events"]
        assert [event["text"] for event in events if event["type"] == "input.received"] == ["go", "more"]
        assert (await up.post(f"/v1/pods/{name}/fork", {"name": "f"}, idempotency_key="say-1")).status_code == 422
        for wrong in ("", "a b", "x" * 101):
            refused = await up.post("/v1/pods", body, idempotency_key=wrong)
            assert refused.status_code == 422, wrong
    assert sorted(each.name for each in (rig.home / "pods").iterdir()) == [name]


async def test_a_key_counts_after_a_restart_and_a_refusal_leaves_it_free(rig: Rig) -> None:
    async with rig.up() as up:
        refused = await up.post("/v1/pods", {"manifest": "none", "name": "p"}, idempotency_key="k")
        assert refused.status_code == 404
        assert (await up.post("/v1/pods", {"manifest": "plain", "name": "p"}, idempotency_key="k")).status_code == 201
    async with rig.up() as up:
        again = await up.post("/v1/pods", {"manifest": "plain", "name": "p"}, idempotency_key="k")
        assert again.status_code == 201 and again.json() == {"pod": "p", "new": True}
        taken = await up.post("/v1/pods", {"manifest": "plain", "name": "p"}, idempotency_key="other")
        assert taken.status_code == 409 and taken.json()["error"] == "name_taken"


async def test_what_a_dead_process_did_under_a_key_is_not_done_again(rig: Rig) -> None:
    """The effect is there and its answer was never put on record: asked again, the pod takes it once."""
    async with rig.up() as up:
        await up.make(task=None)
        assert (await up.post("/v1/pods/p/messages", {"text": "hi"}, idempotency_key="k")).json()["stored"] is True
        await up.until("p", "finished")
        for path in (rig.root / "state" / "keys").glob("*.json"):
            value = json.loads(path.read_text())
            path.write_text(json.dumps({"asked": value["asked"]}))
        again = await up.post("/v1/pods/p/messages", {"text": "hi"}, idempotency_key="k")
        assert again.json()["stored"] is False
        events = (await up.get("/v1/pods/p/events", params={"limit": 500})).json()["events"]
        assert sum(event["type"] == "input.received" for event in events) == 1


async def test_a_pod_whose_maker_died_in_between_is_the_same_askers_when_it_is_asked_for_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"manifest": "plain", "name": "p", "task": "go"}
    async with rig.up() as up:
        monkeypatch.setattr(up.service.care, "say", lambda *args: 1 / 0)
        assert (await up.post("/v1/pods", body, idempotency_key="k")).status_code == 500
    assert rig.folder().exists()
    async with rig.up() as up:
        assert (await up.post("/v1/pods", body, idempotency_key="other")).status_code == 409
        assert (await up.post("/v1/pods", body, idempotency_key="k")).status_code == 200
        assert (await up.until("p", "finished"))["last_text"] == "done"


async def test_an_order_to_compact_a_pod_that_waits_for_its_place_is_kept_for_its_run(rig: Rig) -> None:
    begun = anyio.Event()

    def play(request: Request) -> Step:
        begun.set()
        return hang()

    async with PodHost(concurrency=1) as host, rig.up(host=host, model=answering(play)) as up:
        await up.make("first")
        with anyio.fail_after(20):
            await begun.wait()
        await up.make("second")
        assert (await up.post("/v1/pods/second/compact", {"focus": "x"})).status_code == 202
        kinds = [command.kind for _, command in waiting(rig.folder("second")) if command is not None]
        assert sorted(kinds) == ["compact", "send"]
        for name in ("first", "second"):
            await up.post(f"/v1/pods/{name}/stop")
        host.halt()


async def test_dry_runs_forks_exports_and_searches(rig: Rig, tmp_path: Any) -> None:
    async with rig.up() as up:
        await up.make(task="look for the blue whale")
        await up.until("p", "finished")
        dry = (await up.post("/v1/pods/p/compact", {"dry_run": True})).json()
        assert {"possible", "reason", "occupancy"} <= dry.keys()
        assert (await up.post("/v1/pods/p/compact", {})).status_code == 202
        forked = await up.post("/v1/pods/p/fork", {"name": "q"})
        assert forked.status_code == 201 and forked.json()["pod"] == "q"
        assert (await up.post("/v1/pods/p/fork", {"name": "q"})).status_code == 409
        found = (await up.get("/v1/pods/p/history", params={"action": "search", "query": "BLUE WHALE"})).json()
        assert found["status"] == "ok" and "blue whale" in found["text"]
        file = await up.get("/v1/pods/p/export")
        assert file.headers["content-type"] == "application/x-tar"
    target = tmp_path / "p.tar"
    target.write_bytes(file.content)
    imported = import_pod(target, tmp_path / "elsewhere", None)
    assert imported.name == "p" and io.BytesIO(file.content).read(2)


async def test_a_pod_that_another_process_has_open_is_told_through_its_inbox(rig: Rig) -> None:
    """Whoever runs it: a message joins there, and nothing is run twice."""
    reached, go = anyio.Event(), anyio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        reached.set()
        await go.wait()
        return "waited"

    said: list[list[str]] = []

    def play(request: Request) -> Step:
        said.append([item.text for item in request.items if item.type == "user"])
        return say("ok") if any(isinstance(item, ToolResultItem) for item in request.items) else call("wait")

    async with rig.up() as up, anyio.create_task_group() as group:
        pod = Pod.open(
            rig.manifests / "plain.toml", name="p", home=rig.home, cwd=rig.cwd, model=answering(play), tools=[wait]
        )

        async def elsewhere() -> None:
            async with pod:
                await pod.run("go")

        group.start_soon(elsewhere)
        with anyio.fail_after(20):
            await reached.wait()
        assert (await up.post("/v1/pods/p/messages", {"text": "and this"})).status_code == 202
        go.set()
        with anyio.fail_after(20):
            while not said or said[-1] != ["go", "and this"]:
                await anyio.sleep(0.02)
        await up.until("p", "finished")


async def test_the_end_of_the_service_is_quick_and_leaves_each_pod_to_be_gone_on_with(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pod.service.app.DRAIN", 0.2)
    begun: list[int] = []

    def play(request: Request) -> Step:
        begun.append(1)
        return hang()

    async with rig.up(model=answering(play)) as up:
        for number in range(3):
            await up.make(f"p{number}")
        with anyio.fail_after(20):
            while len(begun) < 3:
                await anyio.sleep(0.02)
        began = anyio.current_time()
    assert anyio.current_time() - began < 5
    async with rig.up() as up:
        for number in range(3):
            assert (await up.post(f"/v1/pods/p{number}/resume")).status_code == 202
            await up.until(f"p{number}", "finished")


async def test_what_happened_is_counted_without_names(rig: Rig) -> None:
    async with rig.up() as up:
        for name in ("secret-project", "other"):
            await up.make(name)
            await up.get(f"/v1/pods/{name}/result", params={"wait": 20})
            await up.until(name, "finished")
        text = (await up.get("/metrics")).text
        assert 'pod_runs_total{status="finished"} 2.0' in text and "pod_requests_total 2.0" in text
        assert 'pod_tokens_total{kind="output"}' in text and "pod_event_readers 0.0" in text
        assert "secret-project" not in text
        assert (await up.get("/metrics", headers={"authorization": ""})).status_code == 401


async def test_an_order_to_stop_that_came_too_late_leaves_nothing_waiting_and_stops_no_later_run(rig: Rig) -> None:
    """B156: a run that ended by itself just before leaves a pod that is free."""
    async with rig.up() as up:
        await up.make()
        await up.until("p", "finished")
        await anyio.to_thread.run_sync(post, rig.folder(), Command(kind="stop", args={"reason": "too late"}))
        assert (await up.get("/v1/pods/p")).json()["status"] == "finished"
        assert [row["status"] for row in (await up.get("/v1/pods")).json()["pods"]] == ["finished"]
        await up.post("/v1/pods/p/messages", {"text": "once more"})
        with anyio.fail_after(20):
            while (await up.get("/v1/pods/p")).json()["totals"]["requests"] < 2:
                await anyio.sleep(0.02)
        await up.until("p", "finished")
    assert not list(waiting(rig.folder()))


async def test_a_timeline_goes_on_where_it_was_left_and_is_that_of_the_whole_log(rig: Rig) -> None:
    @tool
    def look(what: str) -> str:
        """Looks."""
        return what

    def play(request: Request) -> Step:
        results = [item for item in request.items if isinstance(item, ToolResultItem)]
        return call("look", what="x" * 1_000) if len(results) % 4 != 3 else say("y" * 1_000)

    async with rig.up(model=answering(play), tools=[look]) as up:
        await up.make()
        await up.until("p", "finished")
        first = (await up.get("/v1/pods/p/timeline", params={"limit": 3})).json()
        assert len(first["steps"]) == 3 and first["more"] is True and first["left_out"] == 0
        rest = (await up.get("/v1/pods/p/timeline", params={"after": first["last"]})).json()
        assert rest["more"] is False
        again = (await up.get("/v1/pods/p/timeline", params={"after": rest["last"]})).json()
        assert again["steps"] == [] and again["last"] == rest["last"]
        whole = Timeline(Stored(rig.folder()))
        steps = [step for line, record in entries_of(rig.folder(), print, print) if (step := whole.add(line, record))]
        found = first["steps"] + rest["steps"]
        assert [step["seq"] for step in found] == [step["seq"] for step in steps]
        assert [s["input"] for s in found if "input" in s] == [s["input"] for s in steps if "input" in s]
        assert max(len(s["text"]) for s in found if "text" in s) == 300  # whole, it is in the events
        assert rest["segments"][0]["requests"] == len([s for s in steps if s["type"] == "request.completed"])
        row = (await up.get("/v1/pods")).json()["pods"][0]
        assert row["tokens"] == found[-2]["input"]


async def test_a_timeline_is_of_the_pod_that_has_the_name_now(rig: Rig) -> None:
    async with rig.up() as up:
        await up.make(task="one")
        await up.until("p", "finished")
        before = (await up.get("/v1/pods/p/timeline")).json()["steps"]
        await anyio.to_thread.run_sync(remove, rig.home, "p")
        await up.make(task="two")
        await up.until("p", "finished")
        after = (await up.get("/v1/pods/p/timeline")).json()["steps"]
    assert [s["text"] for s in before if s["type"] == "input.received"] == ["one"]
    assert [s["text"] for s in after if s["type"] == "input.received"] == ["two"]


async def test_an_entry_is_read_as_text_and_cut_unless_it_is_asked_for_whole(rig: Rig) -> None:
    async with rig.up(model=answering(lambda request: say("word " * 4_000))) as up:
        await up.make()
        await up.until("p", "finished")
        events = (await up.get("/v1/pods/p/events")).json()["events"]
        seq = next(event["seq"] for event in events if event["type"] == "request.completed")
        short = (await up.get(f"/v1/pods/p/entries/{seq}")).json()
        whole = (await up.get(f"/v1/pods/p/entries/{seq}", params={"whole": True})).json()
    assert short["kind"] == "reply" and short["cut"] is True and len(short["text"]) == 4_000
    assert (
        whole["cut"] is False and "word " * 4_000 in whole["text"] and whole["text"].startswith(short["text"][:3_000])
    )


async def test_a_question_is_waited_for_and_so_is_an_end_without_one(rig: Rig) -> None:
    go_on = anyio.Event()

    @tool(effect="network")
    def send_mail(to: str) -> str:
        """Sends a mail."""
        return "sent"

    @tool
    async def hold() -> str:
        """Waits."""
        await go_on.wait()
        return "held"

    def play(request: Request) -> Step:
        results = [item for item in request.items if isinstance(item, ToolResultItem)]
        return [call("hold"), call("send_mail", to="ann"), say("done")][min(len(results), 2)]

    async with rig.up(model=answering(play), tools=[send_mail, hold]) as up:
        await up.make()
        assert (await up.get("/v1/pods/p/approvals")).json() == {"approvals": []}
        found: list[Any] = []

        async def ask() -> None:
            found.append((await up.get("/v1/pods/p/approvals", params={"wait": 20})).json()["approvals"])

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await up.until("p", "running")
            go_on.set()
        assert [each["tool"] for each in found[0]] == ["send_mail"]
        await up.post(f"/v1/pods/p/approvals/{found[0][0]['id']}", {"approve": True})
        await up.until("p", "finished")
        with anyio.fail_after(10):
            assert (await up.get("/v1/pods/p/approvals", params={"wait": 50})).json() == {"approvals": []}


async def test_a_name_that_ends_like_an_operation_is_told_apart_by_its_slash(rig: Rig) -> None:
    async with rig.up() as up:
        for name in ("p", "p/result", "p/approvals"):
            await up.make(name, task=None)
        assert (await up.get("/v1/pods/p%2Fresult")).json()["name"] == "p/result"
        assert (await up.get("/v1/pods/p%2fresult/result")).json()["status"] == "new"
        assert (await up.get("/v1/pods/p/result")).json() == {"status": "new", "result": None}
        assert (await up.post("/v1/pods/p%2Fapprovals/fork", {"name": "f"})).json()["pod"] == "f"
        gone = await up.get("/v1/pods/q%2Fresult")
        assert gone.status_code == 404 and "'q/result'" in gone.json()["message"]
        assert (await up.client.delete("/v1/pods/p%2Fresult")).json()["pod"] == "p/result"
