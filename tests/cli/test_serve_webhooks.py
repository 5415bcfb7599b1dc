"""`pod serve --webhooks`: what is told survives a kill, and no secret of it stands anywhere."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.test_serve_command import Served, manifest, served
from service.receiver_rig import SECRET, Heard, Says, is_signed, receiving

from worker.testing.provider_server import Answer, ProviderServer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path


def hooks(folder: Path, url: str) -> Path:
    path = folder / "hooks.toml"
    path.write_text(f'[webhooks.tickets]\nurl = "{url}"\nsecret = "{SECRET}"\n')
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("backend", [[], ["--asyncio"]], ids=["trio", "asyncio"])
def test_killed_between_the_end_and_its_telling_it_is_told_once_after_a_restart(
    folder: Path, backend: list[str]
) -> None:
    reached, go = threading.Event(), threading.Event()

    def play(heard: Heard) -> Says:
        if go.is_set():
            return Says()
        reached.set()
        go.wait(20)
        return Says(599)

    said: list[str] = []
    with ProviderServer(lambda request: Answer("done"), wire="openai-chat") as server, receiving(play) as receiver:
        manifest(folder, server)
        words = ["--manifests", str(folder / "manifests"), "-C", str(folder / "work")]
        words += ["--webhooks", str(hooks(folder, receiver.url)), *backend]
        with served(folder / "home", *words) as first:
            assert first.post("/v1/pods", {"manifest": "agent", "name": "p", "task": "go"}).status_code == 201
            assert reached.wait(20)
            assert first.get("/v1/pods/p/result", params={"wait": 20}).json()["status"] == "finished"
            first.process.kill()
            first.process.wait(20)
        go.set()
        said += first.said
        for _ in range(2):  # once more: what was accepted is not sent again
            with served(folder / "home", *words) as again:
                assert again.post("/v1/pods/p/messages", {"text": "on"}).status_code == 202
                until_told(again, receiver, 2 + _)
            said += again.said
    numbers = [heard.body["data"]["seq"] for heard in receiver.accepted]
    assert numbers == sorted(set(numbers)) and len(numbers) == 3
    assert receiver.heard[0].id == receiver.accepted[0].id and all(is_signed(heard) for heard in receiver.heard)
    left = b"".join(path.read_bytes() for path in (folder / "home").rglob("*") if path.is_file())
    assert SECRET not in "".join(said) and SECRET.encode() not in left and receiver.url.encode() not in left


def until_told(up: Served, receiver: Any, many: int) -> None:
    """Waits until so many were accepted, and nothing waits any more."""
    for _ in range(400):
        metrics = up.get("/metrics").text
        if len(receiver.accepted) >= many and 'pod_webhooks_waiting{receiver="tickets"} 0.0' in metrics:
            return
        httpx2.get(f"{up.url}/healthz", trust_env=False)
        threading.Event().wait(0.05)
    raise AssertionError([heard.raw for heard in receiver.heard])


def test_a_file_of_webhooks_that_is_wrong_is_refused_before_anything_listens(folder: Path) -> None:
    open_to_all = hooks(folder, "https://hooks.example/")
    open_to_all.chmod(0o644)
    plain = folder / "plain.toml"
    plain.write_text(f'[webhooks.a]\nurl = "http://hooks.example/"\nsecret = "{SECRET}"\n')
    plain.chmod(0o600)
    for path, why in ((open_to_all, "chmod 600"), (plain, "use https"), (folder / "none.toml", "No such file")):
        one = Served(folder / "home", "--webhooks", str(path))
        _, err = one.process.communicate(timeout=20)
        assert one.process.returncode == 2 and why in err.decode() and "Traceback" not in err.decode()
        assert SECRET not in err.decode()
