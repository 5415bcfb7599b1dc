"""Commands that look and change, in this process: each side of a pod, its forks, its damage, manifests, the catalog."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cli.cli_rig import Rig

from pod.cli.main import main
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.session import Session
from worker.testing.provider_server import Answer, Call, ProviderServer


class Shell:
    """Runs commands in this process and keeps what they wrote."""

    def __init__(self, rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
        self.rig = rig
        self.capsys = capsys
        self.err = ""

    def __call__(self, *args: object, code: int = 0) -> str:
        got = main([str(a) for a in args])
        out, self.err = self.capsys.readouterr()
        assert got == code, (got, out, self.err)
        return out

    def json(self, *args: object) -> Any:
        return json.loads(self(*args, "--json"))


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    for key, value in rig.env().items():
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(rig.work)
    return Shell(rig, capsys)


@pytest.fixture
def surveyed(shell: Shell) -> Shell:
    """A pod named `a` that surveyed a folder through two segments or more."""
    source = shell.rig.work / "src"
    source.mkdir()
    for n in range(30):
        body = "".join(f"def f{n}_{i}() -> int:\n    return {i}\n\n" for i in range(40))
        (source / f"m{n}.py").write_text(f'"""Module {n}."""\n\n{body}')
    shell(
        "run", "offline-survey", "Survey the Python files in src. Write the report to SURVEY.md.", "--name", "a", "-q"
    )
    return shell


def test_a_survey_can_be_looked_at_from_every_side(surveyed: Shell) -> None:
    (look,) = surveyed.json("ls")
    assert (look["name"], look["status"], look["busy"]) == ("a", "finished", False)
    assert "a     finished" in surveyed("ls")

    facts = surveyed.json("show", "a")
    assert facts["totals"]["compactions"] >= 1 and facts["totals"]["requests"] > 5
    assert "last words:" in surveyed("show", "a")

    context = surveyed.json("context", "a")
    assert context["available"] < context["window"] and context["occupancy"] <= context["available"]
    assert set(context["categories"]) >= {"instructions", "tool schemas", "tool results", "reserve"}
    assert context["made_by"] and context["reported_first"]
    assert context["estimates"]["compared"] == facts["totals"]["by"]["worker:offline:surveyor"]["requests"]
    assert 2 <= context["first_estimates"]["compared"] < context["estimates"]["compared"]
    assert -20 < context["estimates"]["lowest"] <= context["estimates"]["mean"] <= context["estimates"]["highest"]
    assert context["estimates_barred"] is False and context["window_origin"]
    text = surveyed("context", "a")
    assert f"{context['estimates']['compared']} against reports: " in text
    off = context["estimate_last"] - context["reported_last"]
    share = 100 * off / context["reported_last"]
    assert f"reported ({off:+,}, {share:+.1f} %)" in text, "one sign for one error: above 0 is estimated too high"
    assert "[compaction] threshold" in text and "that no compaction can lower" in text
    assert context["compactions"] >= 1 and context["compaction_saved_usd"] == 0, "a model that costs nothing"
    assert "compaction, saved $0.0000" in text or "compactions, saved $0.0000" in text

    timeline = surveyed.json("inspect", "a")
    kinds = {step["type"] for step in timeline["timeline"]}
    assert {"request.completed", "tool.completed", "compaction.completed", "segment.started", "run.ended"} <= kinds
    assert len(timeline["segments"]) == facts["totals"]["segments"]
    worker = sum(s["requests"] for s in timeline["segments"])
    assert worker == facts["totals"]["by"]["worker:offline:surveyor"]["requests"]
    text = surveyed("inspect", "a")
    assert "compacted by" in text and "SEGMENT" in text and "cached" in text

    events = [json.loads(line) for line in surveyed("log", "a", "--json").splitlines()]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    last = events[-1]["seq"]
    assert surveyed("log", "a", "--after", last) == ""
    assert "run finished" in surveyed("log", "a", "--after", last - 1)


def test_a_dry_run_of_a_compaction_writes_nothing_and_a_real_one_begins_a_segment(surveyed: Shell) -> None:
    folder = PodFolder(surveyed.rig.home, "a")
    before = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
    plan = surveyed.json("compact", "a", "--dry-run")
    assert {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()} == before
    assert plan["least"] <= plan["expected"] and plan["target"] < plan["available"]
    assert (plan["accepted"] != "no") == plan["possible"] and "accepted" in surveyed("compact", "a", "--dry-run")
    segment = folder.pointer().segment
    if plan["possible"]:
        out = surveyed("compact", "a", "--focus", "the report", "-q")
        assert out.startswith("compacted: ")
        assert folder.pointer().segment != segment
    surveyed("compact", "a", "-q", code=1)
    assert "not compacted" in surveyed.err


def test_compact_is_left_in_the_inbox_of_a_running_pod(shell: Shell) -> None:
    with ProviderServer([Answer("one")]) as server:
        shell("run", shell.rig.manifest(server), "x", "--name", "a", "-q")
    session = Session.open(shell.rig.home, "a", durability="os")
    try:
        shell("compact", "a", "--focus", "tests")
        (left,) = (shell.rig.home / "pods" / "a" / "inbox").glob("*.json")
        command = json.loads(left.read_text())
        assert (command["kind"], command["args"]) == ("compact", {"focus": "tests"})
    finally:
        session.close()


def test_fork_rewind_clear_and_rm_say_what_they_did(shell: Shell) -> None:
    steps = [Answer(calls=[Call("list_files", {"path": "."})]), Answer("done"), Answer("forked answer"), Answer("anew")]
    with ProviderServer(steps) as server:
        manifest = shell.rig.manifest(server, tools=["list_files"])
        shell("run", manifest, "x", "--name", "a", "-q")
        lines = [line for line in shell("log", "a").splitlines() if "request" in line]
        inside = int(lines[0].split()[0])
        shell("fork", "a", "b", "--at", inside)
        assert "is not a settled point" in shell.err and "rounded down" in shell.err
        shell("fork", "a", "c")
        assert shell("resume", "c", "and now?", "-q") == "forked answer\n"
        said = [m["content"] for m in server.requests[-1].json["messages"] if m["role"] == "user"]
        assert said == ["x", "and now?"]
        shell("rewind", "a", "--to", "2")
        assert "rewound" in shell.err
        shell("clear", "a")
        assert "nothing of before is carried over" in shell.err
        assert shell("resume", "a", "hello", "-q") == "anew\n"
        assert [m["content"] for m in server.requests[-1].json["messages"] if m["role"] == "user"] == ["hello"]
        assert "done" not in shell("inspect", "a")
        shell("rm", "a")
        assert "removed for good" in shell.err and " segments, " in shell.err
        shell("show", "a", code=2)
    assert "b" in shell("gc", "--older-than", "0s", "--all-ended") and "would be removed" in shell.err
    shell("gc", "--older-than", "0s", "--all-ended", "--force")
    assert shell("ls") == "" and "no pods" in shell.err


def test_b150_ls_says_that_a_pod_is_compacting_and_for_how_long(shell: Shell) -> None:
    with ProviderServer([Answer("one")]) as server:
        shell("run", shell.rig.manifest(server), "x", "--name", "a", "-q")
    session = Session.open(shell.rig.home, "a", durability="os")
    try:
        session.put(e.CompactionStarted(compaction="c", trigger="hand", tokens=9))
        session.put(e.CompactionRung(compaction="c", rung="compact", state="tried"))
        (look,) = shell.json("ls")
        assert (look["status"], look["busy"]) == ("compacting", True)
        assert "compacting (0." in shell("ls")
    finally:
        session.close()


def test_damage_is_skipped_in_display_and_named_and_the_doctor_mends_it(shell: Shell) -> None:
    with ProviderServer([Answer("one"), Answer("two")]) as server:
        shell("run", shell.rig.manifest(server), "x", "--name", "a", "-q")
        folder = PodFolder(shell.rig.home, "a")
        path = folder.segment_path(folder.pointer().segment)
        lines = path.read_bytes().split(b"\n")
        lines[2] = lines[2].replace(b"input", b"inqut", 1)
        path.write_bytes(b"\n".join(lines))
        for command in (("log", "a"), ("inspect", "a")):
            assert "run finished" in shell(*command)
            assert f"{path}:3" in shell.err
        shown = shell("show", "a", code=1)
        assert f"{path}:3" in shell.err and "cost_usd" not in shown
        labels = {line.split()[0] for line in shown.splitlines()}
        assert {"pod:", "status:", "session:", "created:", "requests:", "damage:"} <= labels
        shell("resume", "a", "y", code=1)
        assert "pod doctor" in shell.err and len(server.requests) == 1
        assert "DAMAGED" in shell("doctor", "a", code=1)
        assert "put aside" in shell("doctor", "a", "--repair")
        assert "a: " in shell("doctor")
        assert shell("resume", "a", "y", "-q") == "two\n"


def test_a_new_manifest_checks_shows_and_is_not_overwritten(shell: Shell) -> None:
    shell("manifest", "new", "mine.toml", "--name", "mine")
    assert shell("manifest", "check", "mine.toml").startswith(str(Path("mine.toml").absolute()))
    shown = shell("manifest", "show", "mine.toml", "--set", "limits.max_tool_calls=3")
    assert [line.split()[1:] for line in shown.splitlines() if line.startswith("limits.max_tool_calls")] == [
        ["3", "--set", "limits.max_tool_calls"]
    ]
    assert tomllib.loads(shell("manifest", "show", "mine.toml", "--toml"))["pod"]["name"] == "mine"
    assert shell.json("manifest", "check", "coder")["proof"]
    assert json.loads(shell("manifest", "schema"))["title"] == "Pod manifest"
    shell("manifest", "new", "mine.toml", code=2)
    shell("manifest", "new", "--name", "not a name", code=2)
    assert shell.err.startswith("pod: error: --name")


def test_the_catalog_lists_models_with_windows_and_tools_with_effects(shell: Shell) -> None:
    models = {row["model"]: row for row in shell.json("models")["models"]}
    assert models["offline:surveyor"]["input"] == 0
    assert all(row["window"] > 30_000 for row in models.values())
    tools = {row["name"]: row["effect"] for row in shell.json("tools")}
    assert tools["read_file"] == "read" and tools["shell"] == "process" and "session_history" in tools
    assert "WINDOW" in shell("models") and "WHAT IT DOES" in shell("tools")


def test_a_hanging_request_ends_at_the_timeout_as_a_limit(shell: Shell) -> None:
    with ProviderServer([Answer("never", fault="silence", after=1)]) as server:
        began = time.monotonic()
        out = shell("run", shell.rig.manifest(server), "x", "--name", "a", "--timeout", "0.3", "--json", "-q", code=4)
        assert time.monotonic() - began < 15
    result = json.loads(out)
    assert (result["status"], result["error_kind"], result["resumable"]) == ("limit", "max_wall_seconds", True)


def test_a_followed_log_shows_what_comes_and_ends_quietly(shell: Shell) -> None:
    with ProviderServer([Answer("one"), Answer("two")]) as server:
        shell("run", shell.rig.manifest(server), "x", "--name", "a", "-q")
        with shell.rig.start("log", "a", "-f") as follower:
            assert follower.stdout is not None
            while b"run finished" not in follower.stdout.readline():
                pass
            shell("resume", "a", "more", "-q")
            while b"two" not in follower.stdout.readline():
                pass
            follower.send_signal(signal.SIGINT)
            _, err = follower.communicate(timeout=20)
    assert (follower.returncode, err) == (130, b"")


def test_stop_sends_a_signal_only_to_a_process_that_really_holds_the_lock(tmp_path: Path) -> None:
    from pod.cli.sending import holds

    lock = tmp_path / "lock"
    lock.write_text("{}")
    import os

    here = {"pid": os.getpid(), "host": socket.gethostname()}
    assert not holds(lock, here)
    with lock.open() as _:
        assert holds(lock, here)
        assert not holds(lock, {**here, "host": "another"})
        assert not holds(lock, {**here, "pid": 1 << 30})
        assert not holds(lock, {})


@pytest.mark.parametrize("what", ["pod.json", "lock", "segment", "blob"])
def test_a_pipe_in_the_place_of_a_file_holds_no_command(shell: Shell, what: str) -> None:
    """Each command ends, with its answer or one clear error, and the pipe is left alone."""
    (shell.rig.work / "src").mkdir()
    (shell.rig.work / "src" / "a.py").write_text("x = 1\n")
    shell("run", "offline-survey", "Survey the Python files in src.", "--name", "a", "-q")
    folder = PodFolder(shell.rig.home, "a").path
    path = {"segment": next(folder.glob("*.jsonl")), "blob": max((folder / "blobs").iterdir())}.get(what, folder / what)
    path.unlink()
    os.mkfifo(path)
    signal.alarm(60)
    try:
        for command in ("ls", "show a", "log a", "context a", "inspect a", "doctor a", "resume a", "fork a b", "rm a"):
            code = main(command.split())
            out, err = shell.capsys.readouterr()
            assert code in (0, 1, 2, 4, 64, 65, 66, 70, 73, 74, 75), (command, out, err)
            assert "Traceback" not in err and (out or err), (command, out, err)
            if command.startswith("doctor"):
                assert what == "blob" or code != 0, out  # a resume makes the text anew
    finally:
        signal.alarm(0)
