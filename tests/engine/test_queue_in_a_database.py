"""`pod batch`, `pod node` and `pod queue` on a home that is a database, as a user runs them on two machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.cli_rig import Ran, Rig
from engine.fleet import until

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed: its tests are left out")

from tests.engine.test_queue_commands import Provider, asked, tasks
from worker.testing.provider_server import Answer, Call, RecordedRequest


class Machines:
    """Commands on machines that share a database: each has a state folder, and so a copy, of its own."""

    def __init__(self, root: Path, url: str) -> None:
        self.rig, self.url = Rig(root), url
        self.rig.work.mkdir()

    def env(self, machine: str) -> dict[str, str]:
        return {"POD_HOME": f"{self.url}?pod_lease=2", "XDG_STATE_HOME": str(self.rig.root / machine)}

    def pod(self, *args: object, machine: str = "one") -> Ran:
        return self.rig.pod(*args, **self.env(machine))

    def start(self, *args: object, machine: str = "one", **more: Any) -> Any:
        return self.rig.start(*args, **more, **self.env(machine))

    def batch(self, *args: object) -> tuple[object, ...]:
        return ("batch", "tasks.jsonl", "--manifest", self.rig.root / "agent.toml", *args)

    def rows(self) -> dict[str, dict[str, Any]]:
        lines = (self.rig.work / "tasks.results.jsonl").read_text().splitlines()
        return {row["id"]: row for row in map(json.loads, lines)}


@pytest.fixture
def machines(tmp_path: Path, new_database: Callable[[], str]) -> Machines:
    return Machines(tmp_path, new_database())


def test_many_that_begin_at_once_make_the_tables_once(tmp_path: Path, database: str) -> None:
    machines = Machines(tmp_path, database)
    started = [machines.start("queue", "ls", machine=f"m{n}") for n in range(3)]
    for process in started:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and b"nothing is on the queues" in out, err


@pytest.mark.parametrize("engine", ["local", "dbos"])
def test_a_batch_is_the_same_batch_on_every_machine(machines: Machines, engine: str) -> None:
    rig = machines.rig
    tasks(rig, "one", "two", "three")
    provider = Provider()
    with provider.server as server:
        rig.manifest(server)
        ran = machines.pod(*machines.batch("--engine", engine, "--concurrency", "2"))
        assert ran.code == 0, ran.err
        assert {name: row["text"] for name, row in machines.rows().items()} == {
            n: f"did {n}" for n in ("one", "two", "three")
        }
        first = (rig.work / "tasks.results.jsonl").read_bytes()
        (rig.work / "tasks.results.jsonl").unlink()
        again = machines.pod(*machines.batch("--json", "--engine", engine), machine="two")
        assert again.code == 0, again.err
        assert len(provider.seen) == 3, "the logs in the database are what counts"
        assert len((rig.work / "tasks.results.jsonl").read_text().splitlines()) == len(first.splitlines())
        tasks(rig, "one", "another")
        mixed = machines.pod(*machines.batch("--engine", engine), machine="two")
        assert mixed.code == 2 and "not the task that the batch 'tasks' was begun with" in mixed.err
    assert "finished" in machines.pod("batch", "report", "tasks", machine="two").text
    assert not (rig.home / "pods").exists()


def test_one_machine_runs_a_batch_at_a_time(machines: Machines) -> None:
    rig = machines.rig
    tasks(rig, "one")
    provider = Provider("one")
    with provider.server as server:
        rig.manifest(server)
        process = machines.start(*machines.batch(), stdout=subprocess.DEVNULL)
        until(lambda: provider.seen, 20, "the batch runs")
        other = machines.pod(*machines.batch(), machine="two")
        process.kill()
        process.communicate()
        provider.go.set()
    assert other.code == 75 and "another process runs the batch 'tasks'" in other.err


def test_what_is_parked_on_one_machine_goes_on_when_another_one_answers(machines: Machines) -> None:
    rig = machines.rig
    tasks(rig, "one", "two")

    def step(request: RecordedRequest) -> Any:
        if '"role":"tool"' in request.body.decode().replace(" ", "") or asked(request) == "two":
            return Answer("done")
        return Answer(calls=[Call("shell", {"command": "echo hello > said.txt"})])

    provider = Provider(step=step)
    with provider.server as server:
        path = rig.manifest(server, tools=["shell"], profile="safe")
        path.write_text(path.read_text().replace('profile = "safe"', 'profile = "safe"\nwhen_headless = "pause"'))
        node = machines.start("node", "--queue", "batch", machine="two", stdout=subprocess.DEVNULL)
        try:
            ran = machines.pod(*machines.batch("--engine", "dbos"))
            assert ran.code == 3, ran.err
            assert "waits for a human" in machines.pod("queue", "ls", machine="three").text
            assert machines.pod("approve", "tasks/0", "--all", machine="three").code == 0
            until(
                lambda: machines.pod("queue", "show", "tasks/0", "--json").json["activations"][0]["outcome"] == "done",
                20, "the answered pod ends",
            )  # fmt: skip
            again = machines.pod(*machines.batch("--engine", "dbos"))
            assert again.code == 0, again.err
        finally:
            node.send_signal(signal.SIGTERM)
            node.communicate(timeout=90)
    assert node.returncode == 0
    shown = machines.pod("queue", "show", "tasks/0", "--json").json["activations"]
    assert [(each["id"], each["outcome"]) for each in shown] == [("tasks/0@2", "done"), ("tasks/0@1", "parked")]


def test_what_is_cancelled_is_never_begun_and_a_retry_goes_on_with_it_from_any_machine(machines: Machines) -> None:
    rig = machines.rig
    tasks(rig, "one", "two")
    provider = Provider("one")
    with provider.server as server:
        rig.manifest(server)
        node = machines.start("node", "--queue", "batch", "--concurrency", "1", stdout=subprocess.DEVNULL)
        batch = machines.start(*machines.batch("--engine", "dbos"))
        try:
            until(lambda: provider.seen == ["one"], 20, "the first is asked")
            assert machines.pod("queue", "cancel", "tasks/1", machine="two").code == 0
            provider.go.set()
            _, err = batch.communicate(timeout=90)
            assert batch.returncode == 1, err
            assert {name: row["status"] for name, row in machines.rows().items()} == {
                "one": "finished",
                "two": "cancelled",
            }
            assert "queued again, as tasks/1@2" in machines.pod("queue", "retry", "tasks/1", machine="two").text
            again = machines.pod(*machines.batch("--engine", "dbos"))
            assert again.code == 0, again.err
        finally:
            node.send_signal(signal.SIGTERM)
            node.communicate(timeout=90)
    assert provider.seen == ["one", "two"]


REFUSED: dict[str, tuple[list[str], str]] = {
    "a file of its own for the queues": (["node", "--queue", "q", "--db", "x.sqlite"], "its queues lie there too; leave --db out"),
    "a lease of its own for a node": (["node", "--queue", "q", "--lease", "5"], "?pod_lease=SECONDS"),
    "a cap on all, over several processes": (
        ["batch", "tasks.jsonl", "--manifest", "M", "--engine", "dbos", "--max-cost", "5"], "--set limits.max_cost_usd=",
    ),
    "a pod that was never queued": (["queue", "show", "nobody"], "nobody: no pod of this name was put on a queue"),
    "a batch that is none": (["batch", "report", "none"], "neither a file of results nor a batch in postgresql://127.0.0.1:"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_command_says_why_in_one_line(machines: Machines, what: str) -> None:
    args, said = REFUSED[what]
    tasks(machines.rig, "one")
    manifest = str(machines.rig.manifest(None))
    ran = machines.pod(*[manifest if word == "M" else word for word in args])
    assert ran.code == 2 and said in ran.err and "Traceback" not in ran.err, ran.err


def test_a_database_that_is_not_there_is_one_line_without_the_password(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.work.mkdir()
    for args in (("node", "--queue", "q"), ("queue", "ls"), ("batch", "report", "x")):
        ran = rig.pod(*args, POD_HOME="postgresql://u:secret-word@127.0.0.1:1/none")
        assert ran.code == 1 and "can't be reached" in ran.err and "secret-word" not in ran.err, ran.err


STUCK = """
import sys, time
from pathlib import Path
import anyio
from pod.engine.dbos_engine import DbosEngine
from pod.engine.port import Activation, Ended, QueueSpec

class Hangs:
    async def run(self, activation):
        print("hangs", flush=True)
        time.sleep(60)
        return Ended("done")
    def cancel(self, id): ...
    async def drain(self, within): ...

async def main():
    async with DbosEngine(Path(sys.argv[1]), lease=1.0) as engine:
        await engine.submit([Activation("a")], queue="work")
        await engine.serve(Hangs(), queues=[QueueSpec("work", 1, 0.05)])

anyio.run(main, backend=sys.argv[2])
"""


def test_a_node_whose_event_loop_hangs_ends_after_two_leases_whatever_the_loop(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", STUCK, str(tmp_path / f"{backend}.sqlite"), backend], stdout=subprocess.PIPE, env=os.environ,
        )
        for backend in ("trio", "asyncio")
    ]  # fmt: skip
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == b"hangs\n"
            assert process.wait(20) == 75
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_schedules_and_limits_are_seen_by_all_machines_and_each_time_begins_once(machines: Machines) -> None:
    provider = Provider()
    with provider.server as server:
        manifest = machines.rig.manifest(server)
        words = ("--cron", "* * * * * *", "--manifest", manifest, "--task", "Do report", "--overlap", "allow")
        assert machines.pod("queue", "schedule", "add", "report", *words).code == 0
        assert machines.pod("queue", "limit", "batch", "--together", "1", "--starts", "50", "--per", "5").code == 0
        nodes = [
            machines.start("node", "--queue", "batch", machine=each, stdout=subprocess.DEVNULL)
            for each in ("one", "two")
        ]
        try:
            until(lambda: len(provider.seen) >= 3, 30, "three times have begun")
            told = machines.pod("queue", "ls", "--all", "--json", machine="two").json
            paused = machines.pod("queue", "schedule", "pause", "report", machine="two")
        finally:
            for each in nodes:
                each.kill()
                each.communicate()
    assert paused.code == 0 and told["limits"]["batch"]["together"] == 1
    ids = [each["id"] for each in told["activations"]]
    assert len(set(ids)) == len(ids) >= 3 and all(id_.endswith("Z@1") for id_ in ids)
