"""`pod serve`: a real process, killed, stopped, started again."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import httpx2
import pytest

from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest

TOKEN = "the-token-of-the-tests"


class Served:
    """A process of `pod serve`."""

    def __init__(self, home: Path, *words: str, env: dict[str, str] | None = None, unset: tuple[str, ...] = ()) -> None:
        environment = {
            **os.environ,
            "POD_HOME": str(home),
            "POD_TOKEN": TOKEN,
            "SERVE_TEST_KEY": "sk-test",
            **(env or {}),
        }
        for name in unset:
            environment.pop(name, None)
        self.process: Any = forked.started(
            ["-m", "pod", "serve", "--port", "0", *words],
            env=environment,
            cwd=home.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self.said: list[str] = []
        self.url = ""
        self.reads: threading.Thread | None = None

    def until_up(self) -> Served:
        """Waits until it listens."""
        for line in self.process.stderr:
            self.said.append(line.decode())
            if found := re.search(r"listens on (\S+)", self.said[-1]):
                self.url = found[1].rstrip("/")
                break
        assert self.url, self.said
        self.reads = threading.Thread(target=lambda: self.said.extend(line.decode() for line in self.process.stderr))
        self.reads.start()
        return self

    def close(self) -> None:
        """Ends it and what reads it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
            raise
        finally:
            if self.reads is not None:
                self.reads.join(20)
            self.process.stderr.close()

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return httpx2.get(
            self.url + path, headers={"authorization": f"Bearer {TOKEN}"}, timeout=20, trust_env=False, **options
        )

    def post(self, path: str, body: Any) -> httpx2.Response:
        return httpx2.post(
            self.url + path, headers={"authorization": f"Bearer {TOKEN}"}, json=body, timeout=20, trust_env=False
        )


@contextmanager
def served(home: Path, *words: str, **options: Any) -> Generator[Served]:
    one = Served(home, *words, **options)
    try:
        yield one.until_up()
    finally:
        one.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path


def manifest(folder: Path, server: ProviderServer) -> None:
    (folder / "manifests" / "agent.toml").write_text(
        f'version = 1\n[model]\nname = "openai-chat:m"\nbase_url = "{server.url}"\napi_key_env = "SERVE_TEST_KEY"\n'
        'context_window = 200000\n[tools]\nenable = ["list_files"]\n'
    )


@pytest.mark.parametrize("backend", [[], ["--asyncio"]], ids=["trio", "asyncio"])
def test_killed_in_mid_run_it_goes_on_when_started_again_and_readers_see_each_event_once(
    folder: Path, backend: list[str]
) -> None:
    """B155: readers come back with the number that they saw last."""
    go, reached = threading.Event(), threading.Event()

    def step(request: RecordedRequest) -> Any:
        results = request.body.count(b'"role":"tool"') + request.body.count(b'"role": "tool"')
        if results < 4:
            return Answer(calls=[Call("list_files", {"path": "."})])
        if results == 4 and not go.is_set():
            reached.set()
            go.wait(20)
        return Answer("done") if results >= 8 else Answer(calls=[Call("list_files", {"path": "."})])

    words = ["--manifests", str(folder / "manifests"), "-C", str(folder / "work"), *backend]
    with ProviderServer(step, wire="openai-chat") as server:
        manifest(folder, server)
        seen: list[int] = []
        with served(folder / "home", *words) as first:
            assert first.post("/v1/pods", {"manifest": "agent", "name": "p", "task": "go"}).status_code == 201
            assert reached.wait(20)
            seen += [event["seq"] for event in first.get("/v1/pods/p/events", params={"limit": 500}).json()["events"]]
            first.process.kill()
            first.process.wait(20)
        go.set()
        with served(folder / "home", *words) as second:
            headers = {
                "authorization": f"Bearer {TOKEN}",
                "accept": "text/event-stream",
                "last-event-id": str(seen[-1]),
            }
            url = f"{second.url}/v1/pods/p/events"
            with httpx2.stream("GET", url, headers=headers, timeout=20, trust_env=False) as stream:
                for line in stream.iter_lines():
                    if line.startswith("id: "):
                        seen.append(int(line[4:]))
                    if line == "event: run.ended":
                        break
            result = second.get("/v1/pods/p/result", params={"wait": 20}).json()
            assert result["status"] == "finished" and result["result"]["text"] == "done"
            whole = [event["seq"] for event in second.get("/v1/pods/p/events", params={"limit": 500}).json()["events"]]
        assert seen == [number for number in whole if number <= seen[-1]]
        assert second.process.returncode == 0


def test_b153_without_a_token_others_are_not_let_in(folder: Path) -> None:
    """B153: elsewhere than on this machine a token is needed; here one is made; an empty one is none."""
    home = folder / "home"
    for words, env, unset, why in (
        (["--host", "0.0.0.0"], {}, ("POD_TOKEN",), "a token is needed"),
        (["--host", "0.0.0.0"], {"POD_TOKEN": ""}, (), "the token is empty"),
        ([], {"POD_TOKEN": " "}, (), "the token is empty"),
        ([], {"POD_TOKEN": "short"}, (), "at least 16"),
        (["--tokens", str(folder / "none.toml")], {}, ("POD_TOKEN",), "No such file"),
        (["--tokens", str(folder / "none.toml")], {}, (), "both given"),
        (["--manifests", str(folder / "none")], {}, (), "no such folder"),
        (["--allow-host", "a:80"], {}, (), "without a port"),
        (["--host", "203.0.113.1"], {}, (), "can't listen"),
    ):
        one = Served(home, *words, env=env, unset=unset)
        _, err = one.process.communicate(timeout=20)
        assert one.process.returncode == 2 and why in err.decode(), (words, err.decode())
        assert "Traceback" not in err.decode()
    assert not home.exists() or not (home / "pods").exists()
    with served(home, unset=("POD_TOKEN",)) as up:
        deadline = time.monotonic() + 10
        while not (found := re.search(r"for this time only: (\S+)", "".join(up.said))):
            assert time.monotonic() < deadline, up.said
            time.sleep(0.02)
        assert "no manifest is offered, so no pod can be made here: --manifests DIR" in "".join(up.said)
        assert up.url.startswith("http://127.0.0.1:") and up.get("/v1/pods").status_code == 401
        assert f"its page: {up.url}/#token={found[1]}" in "".join(up.said)
        answer = httpx2.get(f"{up.url}/v1/pods", headers={"authorization": f"Bearer {found[1]}"}, trust_env=False)
        assert answer.status_code == 200


def test_a_socket_of_the_file_system_is_this_users_alone_and_needs_no_token(folder: Path) -> None:
    path = folder / "pod.sock"
    one = Served(folder / "home", "--uds", str(path), unset=("POD_TOKEN",))
    try:
        one.until_up()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
            assert client.get("/v1/pods").json() == {"pods": [], "next": None}
        two = Served(folder / "home", "--uds", str(path), unset=("POD_TOKEN",))
        _, err = two.process.communicate(timeout=20)
        assert two.process.returncode == 2 and "a server listens there" in err.decode()
    finally:
        one.close()
    assert one.process.returncode == 0
    assert not path.exists()


def test_no_token_and_no_key_stands_in_what_it_says_or_leaves(folder: Path) -> None:
    with ProviderServer(lambda request: Answer("done"), wire="openai-chat") as server:
        manifest(folder, server)
        words = ["--manifests", str(folder / "manifests"), "-C", str(folder / "work")]
        with served(folder / "home", *words) as up:
            up.post("/v1/pods", {"manifest": "agent", "name": "p", "task": "go"})
            up.get("/v1/pods/p/result", params={"wait": 20})
            up.get(f"/v1/pods?token={TOKEN}")
    said = "".join(up.said)
    left = b"".join(path.read_bytes() for path in (folder / "home").rglob("*") if path.is_file())
    assert TOKEN not in said and TOKEN.encode() not in left and json.dumps(TOKEN).encode() not in left
