"""Several nodes on one PostgreSQL, and what happens to them: a rig whose witness lies outside of every database.

Each task asks for `STEPS` calls of a tool that leaves a line in the witness file and is not idempotent. The provider counts the
results that a request holds, so a call whose outcome is unknown is not asked for again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cli.cli_rig import Rig
from store.pg_server import Server

from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest

STEPS = 3

TOOL = '''
import os
from worker import tool


@tool
def mark(task: str, step: int) -> str:
    """Leaves a mark outside of everything."""
    fd = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{task} {step} {os.getpid()}\\n".encode())
    os.close(fd)
    return "marked"
'''


def until(holds: Callable[[], object], within: float, what: str) -> float:
    """Waits for a condition; how long that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within, f"not within {within:g} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


@dataclass
class Node:
    """A `pod node`, with what it says."""

    process: Any
    said: list[str] = field(default_factory=list)
    hears: threading.Thread | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def listen(self) -> None:
        def read() -> None:
            for line in self.process.stderr:
                self.said.append(line.decode())

        self.hears = threading.Thread(target=read, daemon=True)
        self.hears.start()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self, within: float = 60.0) -> int:
        """Tells it to come to a halt; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)


@dataclass
class Fleet:
    """Nodes, a batch and a provider. `lease` is that of the home, seconds; `pace` how long the provider takes to answer."""

    rig: Rig
    server: Server
    url: str
    lease: float
    pace: float = 0.1
    nodes: list[Node] = field(default_factory=list)
    batches: list[Any] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    provider: ProviderServer = field(init=False)
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.provider = ProviderServer(self._step, wire="openai-chat")
        (self.rig.root / "marks.py").write_text(TOOL)
        self.rig.work.mkdir(exist_ok=True)

    def _step(self, request: RecordedRequest) -> Any:
        body = request.body.decode()
        name = re.findall(r"Do (t\d+)", body)[0]
        step = body.replace(" ", "").count('"role":"tool"')
        self.asked[name] += 1
        time.sleep(self.pace)
        if step < STEPS:
            return Answer(calls=[Call("mark", {"task": name, "step": step})])
        return Answer(f"did {name}")

    @property
    def witness(self) -> Path:
        return self.rig.root / "witness"

    def marks(self) -> list[tuple[str, int, int]]:
        """Task, step and process of each call that ran."""
        lines = self.witness.read_text().splitlines() if self.witness.exists() else []
        return [(name, int(step), int(pid)) for name, step, pid in (line.split() for line in lines)]

    def home(self, url: str | None = None) -> str:
        return f"{url or self.url}?pod_lease={self.lease:g}"

    def env(self, url: str | None = None) -> dict[str, str]:
        return {
            "POD_HOME": self.home(url), "WITNESS": str(self.witness), "PYTHONPATH": str(self.rig.root),
            "XDG_STATE_HOME": str(self.rig.root / "state"),
        }  # fmt: skip

    def prepare(self, count: int) -> None:
        """Writes the tasks and the manifest."""
        self.names = [f"t{n}" for n in range(count)]
        text = "".join(json.dumps({"id": name, "task": f"Do {name}"}) + "\n" for name in self.names)
        (self.rig.work / "tasks.jsonl").write_text(text)
        path = self.rig.manifest(self.provider)
        path.write_text(path.read_text().replace("enable = []", 'enable = []\npython = ["marks:mark"]'))

    def node(self, backend: str, concurrency: int, *, url: str | None = None, prefix: Sequence[str] = ()) -> Node:
        """Starts one; `prefix` are the words of a program that starts it elsewhere."""
        words = ["node", "--queue", "batch", "--concurrency", str(concurrency)]
        words += ["--asyncio"] if backend == "asyncio" else []
        if prefix:
            process: Any = subprocess.Popen(
                [*prefix, sys.executable, "-m", "pod", *words], cwd=self.rig.work, env=self.rig.env(**self.env(url)),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        else:
            process = self.rig.start(*words, stdout=subprocess.DEVNULL, **self.env(url))
        node = Node(process)
        node.listen()
        self.nodes.append(node)
        return node

    def serving(self, within: float = 30.0) -> None:
        """Waits until all of them serve."""
        until(
            lambda: len(self.rows("SELECT id FROM pod_engine.pod_node")) == len(self.nodes), within, "all nodes serve"
        )

    def batch(self) -> Any:
        """Starts the batch."""
        words = ("batch", "tasks.jsonl", "--manifest", self.rig.root / "agent.toml", "--engine", "dbos", "-p")
        self.batches.append(self.rig.start(*words, **self.env()))
        return self.batches[-1]

    def rows(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """What the database says, on a connection of the test's own; nothing where its tables are still being made."""
        import psycopg

        try:
            with psycopg.connect(self.url, connect_timeout=5) as connection:
                return connection.execute(question.encode(), values).fetchall()
        except psycopg.errors.UndefinedTable:
            return []

    def held_by(self, node: Node) -> list[str]:
        """The pods whose lease a node has."""
        found = self.rows("SELECT id, owner FROM pod.session WHERE owner <> ''")
        return [name for name, owner in found if owner.startswith(f"process {node.pid} on ")]

    def elsewhere(self, names: Sequence[str], node: Node, within: float) -> float:
        """Waits until each of these pods has another owner than a node, or has ended; how long that took."""
        return until(lambda: not set(names) & set(self.held_by(node)), within, f"{names} go on elsewhere")

    # -- what must hold in the end ----------------------------------------------------------------------------

    def check(self, batch: Any, within: float) -> None:
        """All finished once, no tool ran twice, and no entry of an older lease stands behind one of a newer."""
        out, err = batch.communicate(timeout=within)
        said = "\n".join([(out or b"").decode(), err.decode(), *("".join(node.said) for node in self.nodes)])
        assert batch.returncode == 0, said
        assert "Traceback" not in said, said
        lines = [json.loads(line) for line in (self.rig.work / "tasks.results.jsonl").read_text().splitlines()]
        assert sorted(line["id"] for line in lines) == sorted(self.names)
        assert {line["status"] for line in lines} == {"finished"}
        assert all(line["text"] == f"did {line['id']}" for line in lines)
        twice = {each: n for each, n in Counter((name, step) for name, step, _ in self.marks()).items() if n > 1}
        assert not twice, f"a tool ran twice: {twice}"
        self._check_logs()

    def _check_logs(self) -> None:
        rows = self.rows("SELECT session, log, seq, epoch, body FROM pod.entry ORDER BY session, log, seq")
        last: dict[tuple[str, str], tuple[int, int]] = {}
        ends: Counter[str] = Counter()
        told: Counter[str] = Counter()
        for session, log, seq, epoch, body in rows:
            before, older = last.get((session, log), (0, 0))
            assert seq == before + 1, f"{session}/{log}: entry {seq} stands behind {before}"
            assert epoch >= older, f"{session}/{log}: entry {seq} is of the lease {epoch}, and {older} stands before it"
            last[session, log] = seq, epoch
            ends[session] += bytes(body).count(b'"status":"finished"') if b'"kind":"run_ended"' in body else 0
            told[session] += bytes(body).count(b'"kind":"input"')
        pods = [f"tasks/{n}" for n in range(len(self.names))]
        assert [ends[pod] for pod in pods] == [1] * len(pods), "each finished once"
        assert [told[pod] for pod in pods] == [1] * len(pods), "each was told its task once"

    def end(self) -> None:
        """All nodes come to a halt by themselves."""
        for node in self.nodes:
            if node.process.poll() is None:
                assert node.end() == 0, "".join(node.said)


@contextmanager
def fleet(rig: Rig, server: Server, url: str, *, lease: float, pace: float = 0.1) -> Generator[Fleet]:
    made = Fleet(rig, server, url, lease, pace)
    with made.provider:
        try:
            yield made
        finally:
            for batch in made.batches:
                if batch.poll() is None:
                    batch.kill()
                    batch.communicate(timeout=10)
            for node in made.nodes:
                if node.process.poll() is None:
                    node.process.send_signal(signal.SIGCONT)
                    node.process.kill()
                    node.process.wait(10)
                assert node.hears is not None
                node.hears.join(10)
                node.process.stderr.close()


# -- what can be cut ----------------------------------------------------------------------------------------------


class Relay:
    """Passes connections on to a port of this machine, until it is cut: then nothing passes, and nobody is told."""

    def __init__(self, target: int, host: str = "127.0.0.1") -> None:
        import socket

        self._socket, self._target = socket, target
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._whole = threading.Event()
        self._whole.set()
        self._sockets: list[Any] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._whole.set()
        for each in (self._listener, *self._sockets):
            try:
                each.shutdown(self._socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                self._whole.wait()
                there = self._socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._sockets += [client, there]
            for source, target in ((client, there), (there, client)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: Any, target: Any) -> None:
        try:
            while data := source.recv(1 << 16):
                self._whole.wait()
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(self._socket.SHUT_RDWR)
            except OSError:
                pass


@dataclass
class Cable:
    """A network of its own for one node, and the way to it that can be cut."""

    how: str
    host: str
    prefix: Sequence[str]
    cut: Callable[[], None]
    mend: Callable[[], None]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@contextmanager
def namespace() -> Generator[Cable | None]:
    """A network namespace joined to this one by a pair of devices; None where the machine does not allow that."""
    name = f"pod{os.getpid()}"
    here, there, net = f"{name}a"[-15:], f"{name}b"[-15:], f"10.213.{os.getpid() % 250}"
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.SubprocessError):
        yield None
        return
    try:
        try:
            _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            _ip("addr", "add", f"{net}.1/30", "dev", here)
            _ip("link", "set", here, "up")
            _ip("-n", name, "addr", "add", f"{net}.2/30", "dev", there)
            _ip("-n", name, "link", "set", there, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.SubprocessError):
            yield None
            return
        yield Cable(
            "a network namespace", f"{net}.1", ("ip", "netns", "exec", name),
            lambda: _ip("link", "set", here, "down"), lambda: _ip("link", "set", here, "up"),
        )  # fmt: skip
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=10)
        subprocess.run(["ip", "link", "del", here], check=False, capture_output=True, timeout=10)


PIPE = """
import asyncio, sys

async def joined(reader, writer):
    there, back = await asyncio.open_connection(sys.argv[2], int(sys.argv[3]))
    async def passed(source, target):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()
    await asyncio.gather(passed(reader, back), passed(there, writer), return_exceptions=True)

async def main():
    server = await asyncio.start_server(joined, "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
"""Passes what comes to a port of a namespace's own loopback on: plain HTTP goes to no other address."""


@contextmanager
def passing(way: Cable, port: int, to: int) -> Generator[None]:
    """While it is open, a port of the loopback of a cable's end leads to one at its beginning."""
    if not way.prefix:
        yield
        return
    words = [*way.prefix, sys.executable, "-c", PIPE, str(port), way.host, str(to)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


@contextmanager
def cable(made: Fleet, count: int, how: str) -> Generator[tuple[Cable, str]]:
    """A way to the database (in a namespace: to the provider too) that can be cut, and the database's URL on it; the tasks are there."""
    port = int(re.findall(r":(\d+)/", made.url)[0])
    provider = int(re.findall(r":(\d+)/", made.provider.url)[0])
    with ExitStack() as stack:
        cut_off = stack.enter_context(namespace()) if how == "namespace" else None
        if how == "namespace" and cut_off is None:
            pytest.skip("this machine allows no network namespaces; the same with a relay runs")
        host = "127.0.0.1" if cut_off is None else cut_off.host
        relays = [Relay(port, host), Relay(provider, host)]
        for relay in relays:
            stack.callback(relay.close)
        way = cut_off or Cable("a relay on loopback", host, (), relays[0].cut, relays[0].mend)
        stack.enter_context(passing(way, provider, relays[1].port))
        made.prepare(count)
        yield way, made.url.replace(f"127.0.0.1:{port}", f"{host}:{relays[0].port}")
