"""Exit codes and signals: a script can rely on them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from cli.cli_rig import Rig

from worker.testing.provider_server import Answer, Call, Drop, Http, ProviderServer, RecordedRequest


def _error(status: int, code: str, text: str = "no") -> Http:
    return Http(status, {"error": {"message": text, "type": code, "code": code}})


CASES: list[tuple[str, list[Any], dict[str, Any], int, str]] = [
    ("finished", [Answer("fine")], {}, 0, "finished"),
    (
        "a failed tool and a good end",
        [Answer(calls=[Call("read_file", {"path": "no"})]), Answer("fine")],
        {},
        0,
        "finished",
    ),
    ("a bad key", [_error(401, "invalid_api_key")], {}, 77, "failed"),
    ("an unknown model", [_error(404, "model_not_found", "The model `x` does not exist")], {}, 69, "failed"),
    ("no credit", [_error(429, "insufficient_quota")], {}, 69, "failed"),
    ("overloaded", [_error(503, "server_error")], {}, 75, "failed"),
    ("rate limited", [_error(429, "rate_limit_exceeded")], {}, 75, "failed"),
    ("connection lost", [Drop()], {}, 75, "failed"),
    ("refused", [Answer("I won't", refusal=True)], {}, 5, "failed"),
    ("cut off", [Answer("half", stop="length")], {}, 1, "failed"),
    ("overflow", [_error(400, "context_length_exceeded", "maximum context length is 100 tokens")], {}, 1, "failed"),
    (
        "a limit",
        [Answer(calls=[Call("list_files", {"path": "."})])] * 3,
        {"flags": ["--max-requests", "2"]},
        4,
        "limit",
    ),
]


@pytest.mark.parametrize(("what", "steps", "more", "code", "status"), CASES, ids=[case[0] for case in CASES])
def test_b124_only_a_finished_run_ends_with_0(
    what: str, steps: list[Any], more: dict[str, Any], code: int, status: str, rig: Rig,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """B124: the matrix. B128: two requests and no more where two are the limit, said so, resumable."""
    from pod.cli.main import main

    for key, value in rig.env().items():
        monkeypatch.setenv(key, value)
    with ProviderServer(steps) as server:
        manifest = rig.manifest(server, tools=["read_file", "list_files"])
        flags = ["-C", str(rig.work), "--json", "--name", "a", *more.get("flags", [])]
        got = main(["run", str(manifest), "x", *flags])
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (got, result["exit_code"], result["status"]) == (code, code, status), err
    assert (result["text"] is None) == (status != "finished")
    assert "Traceback" not in err
    if status != "finished":
        assert "pod resume a" in err
    if what == "a limit":
        assert len(server.requests) == 2, "B128: exactly as many requests as the limit says"
        assert result["resumable"] and result["tool_calls"] == 2


def test_a_manifest_error_names_file_line_and_key(rig: Rig) -> None:
    with ProviderServer([]) as server:
        manifest = rig.manifest(server, more="[compactoin]\nthreshold = 1\n")
        ran = rig.pod("run", manifest, "x", "--json")
    assert (ran.code, ran.out) == (2, b"")
    assert "agent.toml:17" in ran.err and "compactoin" in ran.err and ran.err.startswith("pod: error: ")


def test_an_unknown_provider_is_a_configuration_error(rig: Rig) -> None:
    with ProviderServer([]) as server:
        ran = rig.pod("run", rig.manifest(server), "x", "--model", "antropic:x")
    assert ran.code == 2 and "anthropic" in ran.err and not (rig.home / "pods").exists()


def test_b124_a_log_that_cannot_be_written_is_a_failure_that_says_so(rig: Rig) -> None:
    with ProviderServer([Answer("z" * 60_000)]) as server:
        manifest = rig.manifest(server)
        script = f"export PYTHONDONTWRITEBYTECODE=1; ulimit -f 24; exec {sys.executable} -m pod run {manifest} x --output-format stream-json --name a"
        done = subprocess.run(["bash", "-c", script], cwd=rig.work, env=rig.env(), capture_output=True, timeout=30)
    assert done.returncode == 1, done.stderr
    assert b"Traceback" not in done.stderr and b"resume the pod" in done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["type"], last["result"]["status"], last["result"]["exit_code"]) == ("result", "failed", 1)


@pytest.mark.parametrize("backend", ["--asyncio", None])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_durably_and_it_can_be_resumed(
    number: int, code: int, backend: str | None, rig: Rig
) -> None:
    asked = threading.Event()

    def answer(request: RecordedRequest) -> Answer:
        if len(server.requests) == 1:
            return Answer(calls=[Call("list_files", {"path": "."})])
        if len(server.requests) == 2:
            asked.set()
            return Answer("never whole", fault="silence", after=1)
        return Answer("resumed")

    with ProviderServer(answer) as server:
        flags = [backend] if backend else []
        manifest = rig.manifest(server, tools=["list_files"])
        with rig.start("run", manifest, "x", "--output-format", "stream-json", "--name", "a", *flags) as process:
            assert asked.wait(20)
            os.kill(process.pid, number)
            out, err = process.communicate(timeout=20)
        assert process.returncode == code, err
        last = json.loads(out.splitlines()[-1])
        assert (last["type"], last["result"]["status"], last["result"]["exit_code"]) == ("result", "cancelled", code)
        assert b"pod resume a" in err and b"Traceback" not in err
        assert rig.pod("ls", "--json").json[0]["status"] == "cancelled"
        again = rig.pod("resume", "a")
        assert (again.code, again.text) == (0, "resumed\n")
    assert not (rig.home / "crash").exists()


def test_a_second_signal_forces_the_exit(rig: Rig) -> None:
    """A reader that never reads holds the end of the stream back: the second signal does not wait for it."""
    asked = threading.Event()

    def answer(request: RecordedRequest) -> Answer:
        if len(server.requests) == 2:
            asked.set()
            return Answer("x", fault="silence", after=1)
        return Answer("x" * 400_000, calls=[Call("list_files", {"path": "."})])

    with ProviderServer(answer) as server:
        manifest = rig.manifest(server, tools=["list_files"])
        flags = ["--output-format", "stream-json", "--name", "a", "--set", "model.context_window=900000"]
        with rig.start("run", manifest, "x", *flags) as process:
            assert process.stderr is not None
            assert asked.wait(20)
            os.kill(process.pid, signal.SIGTERM)
            while b"Once more forces" not in process.stderr.readline():
                pass
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(10) == 143
    assert rig.pod("ls", "--json").json[0]["busy"] is False
