"""`pod node`, `pod queue` and `pod batch --engine dbos` as a user runs them: real processes, kills, one database."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli.cli_rig import Rig

from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest

LEASE = "2"

SCOPE = '[scope]\nread = ["."]\nwrite = ["."]\n'


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path)
    made.work.mkdir()
    return made


def asked(request: RecordedRequest) -> str:
    """The task that a request is about."""
    return re.findall(r"Do (\w+)", request.body.decode())[0]


class Provider:
    """Answers each request; holds those of the tasks in `held` until they are let go."""

    def __init__(self, *held: str, step: Callable[[RecordedRequest], Any] | None = None) -> None:
        self.held = set(held)
        self.step = step or (lambda request: Answer(f"did {asked(request)}"))
        self.go = threading.Event()
        self.seen: list[str] = []
        self.server = ProviderServer(self._step, wire="openai-chat")

    def _step(self, request: RecordedRequest) -> Any:
        name = asked(request)
        self.seen.append(name)
        if name in self.held:
            self.go.wait(30)
        return self.step(request)


def tasks(rig: Rig, *names: str) -> None:
    (rig.work / "tasks.jsonl").write_text("".join(json.dumps({"id": n, "task": f"Do {n}"}) + "\n" for n in names))


def batch_words(rig: Rig, *args: object) -> tuple[object, ...]:
    return ("batch", "tasks.jsonl", "--manifest", rig.root / "agent.toml", "--engine", "dbos", *args)


def rows(rig: Rig) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in (rig.work / "tasks.results.jsonl").read_text().splitlines()]
    assert len({line["index"] for line in lines}) == len(lines), "no task has two lines"
    return {line["id"]: line for line in lines}


def until(holds: Callable[[], object], within: float = 60.0) -> None:
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.02)


@contextmanager
def node(rig: Rig, *args: object, **env: str) -> Generator[subprocess.Popen[bytes]]:
    """A node of the queue `batch`; killed at the end, with what it says."""
    process = rig.start("node", "--queue", "batch", "--lease", LEASE, *args, stdout=subprocess.DEVNULL, **env)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()


def freeze(process: subprocess.Popen[bytes], rig: Rig) -> None:
    """Stops a process where it holds no lock of the database: frozen in the middle of a write it would hold all others too."""

    def frozen() -> bool:
        process.send_signal(signal.SIGSTOP)
        try:
            with closing(sqlite3.connect(rig.home / "engine.sqlite", timeout=0.5, isolation_level=None)) as database:
                database.execute("BEGIN IMMEDIATE")
                database.execute("ROLLBACK")
        except sqlite3.OperationalError:
            process.send_signal(signal.SIGCONT)
            return False
        return True

    until(frozen)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=90)
    return process.returncode, (out or b"").decode(), err.decode()


def inputs(rig: Rig, pod: str) -> int:
    """How often a pod was told its task."""
    lines = [line for file in (rig.home / "pods" / pod).glob("*.jsonl") for line in file.read_text().splitlines()]
    return sum('"kind":"input"' in line for line in lines)


def told_its_end(rig: Rig, pod: str) -> bool:
    """Whether a pod's own log says how its run ended."""
    return any('"kind":"run_ended"' in file.read_text() for file in (rig.home / "pods" / pod).glob("*.jsonl"))


def asked_of(rig: Rig, question: str, *values: object) -> list[tuple[Any, ...]]:
    """What the database says, without a process that asks."""
    path = rig.home / "engine.sqlite"
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(path, timeout=10)) as database:
            return database.execute(question, values).fetchall()
    except sqlite3.OperationalError:  # its tables are being made
        return []


def nodes(rig: Rig) -> int:
    """How many nodes have begun and not ended by themselves."""
    return len(asked_of(rig, "SELECT id FROM pod_node"))


def state(rig: Rig, pod: str) -> list[tuple[str, str]]:
    """Each activation of a pod, the newest first, with where it is or what became of it."""
    found = asked_of(
        rig,
        "SELECT s.workflow_uuid, s.status, o.output FROM workflow_status s LEFT JOIN workflow_output o USING (workflow_uuid) "
        "WHERE s.workflow_uuid LIKE ? ORDER BY s.workflow_uuid DESC",
        f"{pod}@%",
    )
    return [(id_, json.loads(json.loads(output))["outcome"] if output else status) for id_, status, output in found]


def test_where_no_node_serves_the_batch_serves_itself_and_the_same_command_again_does_nothing(rig: Rig) -> None:
    tasks(rig, "one", "two", "three")
    provider = Provider()
    with provider.server as server:
        rig.manifest(server)
        ran = rig.pod(*batch_words(rig, "--concurrency", "2", "--asyncio"))
        assert ran.code == 0, ran.err
        first = (rig.work / "tasks.results.jsonl").read_bytes()
        again = rig.pod(*batch_words(rig, "--json"))
    assert again.code == 0 and again.json["ran"] == 0 and (rig.work / "tasks.results.jsonl").read_bytes() == first
    assert "no node serves the queue 'batch': this command does, at most 2 at once" in ran.err
    assert {name: row["text"] for name, row in rows(rig).items()} == {n: f"did {n}" for n in ("one", "two", "three")}
    assert sorted(provider.seen) == ["one", "three", "two"]
    shown = rig.pod("queue", "ls", "--all", "--json").json
    assert sorted((a["id"], a["outcome"], a["priority"]) for a in shown["activations"]) == [
        (f"tasks/{n}@1", "done", 200) for n in range(3)
    ]
    assert shown["nodes"] == [] and "nothing is on the queues" in rig.pod("queue", "ls").text


def test_the_list_begins_with_what_runs_and_a_pattern_cancels_all_that_is_left(rig: Rig) -> None:
    names = [f"number{n}" for n in range(12)]
    tasks(rig, *names)
    provider = Provider(*names)
    with provider.server as server:
        rig.manifest(server)
        process = rig.start(*batch_words(rig, "--concurrency", "1", "--partition", "p"), stdout=subprocess.DEVNULL)
        until(lambda: provider.seen)
        first = names.index(provider.seen[0])
        listed = rig.pod("queue", "ls").text.splitlines()
        part = rig.pod("queue", "ls", "--limit", "3")
        cancelled = rig.pod("queue", "cancel", "tasks/*")
        again = rig.pod("queue", "cancel", "tasks/*")
        others = rig.pod("queue", "cancel", "task[0-9]/*")
        after = rig.pod("queue", "ls", "--all").text
        provider.go.set()
        code, _, err = ended(process)
    rest = [f"tasks/{n}@1" for n in range(12) if n != first]
    assert [line.split()[0] for line in listed[1:13]] == [f"tasks/{first}@1", *rest]
    assert listed[1].split()[2] == "running" and "batch: 1 running, 11 queued" in listed
    assert part.text.count("@1") == 3 and "... and more; --limit N shows N of them" in part.text
    assert f"tasks/{first}@1" in part.text
    assert cancelled.code == 0 and cancelled.text.count("is cancelled") == 12
    assert again.code == others.code == 2 and "nothing of this name waits or runs" in again.err
    assert "-/p" in after
    assert code == 1 and "12 were cancelled; the same command goes on with them" in err
    assert "as many at once as the nodes take" in err


def test_a_node_that_is_killed_leaves_nothing_undone_and_nothing_is_done_twice(rig: Rig) -> None:
    names = ("one", "two", "three", "four")
    tasks(rig, *names)
    provider = Provider(*names)
    with provider.server as server:
        rig.manifest(server)
        with node(rig, "--concurrency", "2") as first, node(rig, "--concurrency", "2", "--asyncio") as second:
            until(lambda: nodes(rig) == 2)
            batch = rig.start(*batch_words(rig))
            until(lambda: len(provider.seen) == 4)
            first.kill()
            first.wait()
            killed = time.monotonic()
            until(lambda: len(provider.seen) == 4)
            provider.go.set()
            code, _, err = ended(batch)
            assert code == 0, err
            assert time.monotonic() - killed < 20
            second.send_signal(signal.SIGTERM)
            assert ended(second)[0] == 0
    assert {name: row["text"] for name, row in rows(rig).items()} == {n: f"did {n}" for n in names}
    assert len(provider.seen) == 6, "those that the killed node had were asked once more, the others not"
    assert [inputs(rig, f"tasks/{n}") for n in range(4)] == [1] * 4


def test_b129_when_every_process_is_killed_the_same_command_goes_on(rig: Rig) -> None:
    tasks(rig, "one", "two", "three")
    provider = Provider("two")
    with provider.server as server:
        rig.manifest(server)
        with node(rig, "--concurrency", "1") as first:
            batch = rig.start(*batch_words(rig, "-p"))
            until(lambda: "two" in provider.seen)
            batch.kill()
            batch.communicate()
            first.kill()
        provider.go.set()
        again = rig.pod(*batch_words(rig))
    assert again.code == 0, again.err
    assert {name: row["status"] for name, row in rows(rig).items()} == dict.fromkeys(
        ("one", "two", "three"), "finished"
    )
    assert provider.seen[:2] == ["one", "two"] and sorted(provider.seen[2:]) == ["three", "two"]
    assert inputs(rig, "tasks/1") == 1


def test_a_node_that_is_frozen_keeps_its_pod_and_the_others_go_on_without_it(rig: Rig) -> None:
    tasks(rig, "one", "two")
    provider = Provider("one")
    with provider.server as server:
        rig.manifest(server)
        with node(rig, "--concurrency", "1") as frozen:
            batch = rig.start(*batch_words(rig))
            until(lambda: provider.seen == ["one"])
            freeze(frozen, rig)
            with node(rig, "--concurrency", "1"):
                until(lambda: "two" in provider.seen)
                # Its lease is over: another node takes the pod up, finds that the frozen one has it, and puts it off.
                until(lambda: ("tasks/0@1", "superseded") in state(rig, "tasks/0"))
                frozen.send_signal(signal.SIGCONT)
                provider.go.set()
                code, _, err = ended(batch)
    assert code == 0, err
    assert provider.seen.count("one") == 1 and inputs(rig, "tasks/0") == 1
    assert {name: row["text"] for name, row in rows(rig).items()} == {"one": "did one", "two": "did two"}


def test_a_node_that_is_told_to_end_hands_on_what_it_has_at_the_next_request(rig: Rig) -> None:
    tasks(rig, "one")

    def step(request: RecordedRequest) -> Any:
        if '"role":"tool"' in request.body.decode().replace(" ", ""):
            return Answer("did it")
        return Answer(calls=[Call("list_files", {"path": "."})])

    provider = Provider("one", step=step)
    with provider.server as server:
        rig.manifest(server, tools=["list_files"], more=SCOPE)
        with node(rig) as first:
            batch = rig.start(*batch_words(rig, "--priority", "7"))
            until(lambda: provider.seen == ["one"])
            first.send_signal(signal.SIGTERM)
            assert first.stderr is not None
            for line in first.stderr:
                if b"1 runs come to their end" in line:
                    break
            with node(rig, "--asyncio"):
                until(lambda: nodes(rig) == 2)
                provider.go.set()
                assert first.wait(20) == 0
                code, _, err = ended(batch)
    assert code == 0, err
    assert state(rig, "tasks/0") == [("tasks/0@2", "done"), ("tasks/0@1", "drained")]
    assert provider.seen == ["one", "one"] and inputs(rig, "tasks/0") == 1


def test_what_kills_its_process_is_given_up_after_three_starts_and_the_good_ones_finish(rig: Rig) -> None:
    names = ("one", "poison", "two", "three", "four", "five")
    tasks(rig, *names)
    (rig.root / "deadly.py").write_text(
        'import os\nfrom worker import tool\n\n\n@tool\ndef die() -> str:\n    """Ends the process."""\n    os._exit(9)\n'
    )

    def step(request: RecordedRequest) -> Any:
        return Answer(calls=[Call("die")]) if asked(request) == "poison" else Answer(f"did {asked(request)}")

    provider = Provider(step=step)
    with provider.server as server:
        path = rig.manifest(server)
        path.write_text(path.read_text().replace("enable = []", 'enable = []\npython = ["deadly:die"]'))
        ran = rig.pod(*batch_words(rig, "--concurrency", "3"), PYTHONPATH=str(rig.root))
        assert ran.code == 1, ran.err
        found = rows(rig)
        assert {name for name, row in found.items() if row["status"] == "finished"} == set(names) - {"poison"}
        assert found["poison"]["error_kind"] == "poisoned" and "it was begun 3 times" in found["poison"]["error"]
        assert provider.seen.count("poison") == 3
        shown = rig.pod("queue", "show", "tasks/1").text
    assert "poisoned" in shown and "tasks/1@2" in shown, shown


def test_what_is_cancelled_is_ended_or_never_begun_and_a_retry_goes_on_with_it(rig: Rig) -> None:
    tasks(rig, "one", "two")
    provider = Provider("one")
    with provider.server as server:
        rig.manifest(server)
        with node(rig, "--concurrency", "1"):
            batch = rig.start(*batch_words(rig))
            until(lambda: provider.seen == ["one"])
            assert rig.pod("queue", "cancel", "tasks/1", "tasks/0").code == 0
            code, _, err = ended(batch)
            assert code == 1, err
            assert {name: row["status"] for name, row in rows(rig).items()} == {"one": "cancelled", "two": "cancelled"}
            assert "has ended already" in rig.pod("queue", "cancel", "tasks/1").text
            assert not (rig.home / "pods" / "tasks" / "1").exists()
            # Its node hears of it a moment later: only then may the provider answer.
            until(lambda: told_its_end(rig, "tasks/0"))
            provider.go.set()
            assert "queued again, as tasks/1@2" in rig.pod("queue", "retry", "tasks/1", "tasks/0").text
            again = rig.pod(*batch_words(rig))
    assert again.code == 0, again.err
    assert provider.seen == ["one", "two", "one"] or provider.seen == ["one", "one", "two"]
    assert inputs(rig, "tasks/0") == 1


def test_what_waits_for_a_human_is_parked_and_goes_on_when_it_is_answered(rig: Rig) -> None:
    tasks(rig, "one", "two")

    def step(request: RecordedRequest) -> Any:
        if '"role":"tool"' in request.body.decode().replace(" ", "") or asked(request) == "two":
            return Answer("done")
        return Answer(calls=[Call("shell", {"command": "echo hello > said.txt"})])

    provider = Provider(step=step)
    with provider.server as server:
        path = rig.manifest(server, tools=["shell"], profile="safe")
        path.write_text(path.read_text().replace('profile = "safe"', 'profile = "safe"\nwhen_headless = "pause"'))
        with node(rig):
            ran = rig.pod(*batch_words(rig))
            assert ran.code == 3, ran.err
            assert {name: row["status"] for name, row in rows(rig).items()} == {"one": "paused", "two": "finished"}
            assert rows(rig)["one"]["approvals"] and "waits for a human" in rig.pod("queue", "ls").text
            assert rig.pod("approve", "tasks/0", "--all").code == 0
            until(lambda: state(rig, "tasks/0")[0] == ("tasks/0@2", "done"))
            again = rig.pod(*batch_words(rig))
    assert again.code == 0, again.err
    assert state(rig, "tasks/0") == [("tasks/0@2", "done"), ("tasks/0@1", "parked")]


REFUSED: dict[str, tuple[list[str], str]] = {
    "a cap on all": (["batch", "tasks.jsonl", "--manifest", "M", "--engine", "dbos", "--max-cost", "5"], "--set limits.max_cost_usd="),
    "a queue without an engine": (["batch", "tasks.jsonl", "--manifest", "M", "--queue", "q"], "--queue: for queues; give --engine dbos"),
    "a priority without an engine": (["batch", "tasks.jsonl", "--manifest", "M", "--priority", "5"], "--priority: for queues"),
    "a priority that is none": (["batch", "tasks.jsonl", "--manifest", "M", "--engine", "dbos", "--priority", "0"], "from 1 on, not '0'"),
    "a queue's name that is none": (["node", "--queue", "a/b"], "not 'a/b'"),
    "no queue": (["node"], "--queue"),
    "a short lease": (["node", "--queue", "q", "--lease", "0.1"], "1 or more, not '0.1'"),
    "a database of another kind": (["node", "--queue", "q", "--db", "mysql://x/y"], "of the kind 'mysql' is not served"),
    "a database in no folder": (["queue", "ls", "--db", "no/where.sqlite"], "there is no folder"),
    "a database that is none": (["queue", "ls", "--db", "tasks.jsonl"], "no database of the engine can be opened"),
    "a pod that was never queued": (["queue", "retry", "nobody"], "nobody: no pod of this name was put on a queue"),
    "no action": (["queue"], "ACTION"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_command_says_why_in_one_line(rig: Rig, what: str) -> None:
    tasks(rig, "one")
    args, said = REFUSED[what]
    manifest = str(rig.manifest(None))
    ran = rig.pod(*[manifest if word == "M" else word for word in args])
    assert ran.code == 2 and said in ran.err and "Traceback" not in ran.err, ran.err
    assert (rig.work / "tasks.jsonl").read_text() == '{"id": "one", "task": "Do one"}\n' and not (
        rig.home / "pods"
    ).exists()


def test_queues_cost_nothing_where_they_are_not_used(rig: Rig) -> None:
    env = {**os.environ, **rig.env()}
    code = (
        "import sys, pod, pod.batch.batch, pod.cli.main; print([m for m in ('dbos', 'sqlalchemy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
