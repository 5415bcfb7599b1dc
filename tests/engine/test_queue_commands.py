"""`pod node`, `pod queue` and `pod batch --engine dbos` as a user runs them: real processes, kills, one database."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli.cli_rig import Rig

from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest

LEASE = "2"


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


def until(holds: Callable[[], object], within: float = 25.0) -> None:
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


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, (out or b"").decode(), err.decode()


def inputs(rig: Rig, pod: str) -> int:
    """How often a pod was told its task."""
    return sum(line["type"] == "input" for line in rig.pod("log", pod, "--json").lines)


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
