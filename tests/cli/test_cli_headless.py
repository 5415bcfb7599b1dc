"""Nobody is there: nothing is waited for, no tool that asks is offered, and what happened is told from the log."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
from cli.cli_rig import Rig

from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest


def arrival(rig: Rig, stdin: int) -> float:
    """Seconds from the start of a run to its first request, with this standard input. The run is seen to its end."""
    came: list[float] = []

    def answer(_: RecordedRequest) -> Answer:
        came.append(time.monotonic())
        return Answer("ok")

    with ProviderServer(answer) as server:
        began = time.monotonic()
        ran = rig.pod("run", rig.manifest(server), "x", stdin=stdin)
    assert (ran.code, ran.text, len(came)) == (0, "ok\n", 1), ran.err
    return came[0] - began


def test_b121_the_first_request_leaves_at_once_while_standard_input_stays_open(rig: Rig) -> None:
    """B121: the prompt is an argument, standard input a pipe that nobody closes. The same run without one is the measure, so that
    a slow machine is not taken for waiting."""
    read, write = os.pipe()
    with open(os.devnull, "rb") as nothing:
        usual = max(arrival(rig, nothing.fileno()) for _ in range(2))
    try:
        assert arrival(rig, read) < usual + 2
        os.fstat(write)  # open to the end
    finally:
        os.close(read)
        os.close(write)


def test_b123_a_tool_that_asks_a_user_is_not_offered_and_a_call_of_it_is_an_error(rig: Rig) -> None:
    """B123: there is none to enable; a model that calls one gets an error, and the outcome shows that no tool did any work."""
    ask = Answer(calls=[Call("ask_user", {"question": "Which one?"})])
    with ProviderServer([ask, Answer("Shall I proceed?")]) as server:
        enabled = rig.pod("run", rig.manifest(server, tools=["ask_user", "list_files"]), "x", "--json")
        ran = rig.pod("run", rig.manifest(server, tools=["list_files"]), "x", "--output-format", "stream-json")
        sent = [request.json for request in server.requests]
    assert enabled.code == 2 and "ask_user" in enabled.err and enabled.out == b""
    assert len(sent) == 2 and all("ask_user" not in json.dumps(body["tools"]) for body in sent)
    done = [event for event in ran.lines if event["type"] == "tool.completed"]
    assert [(event["name"], event["status"]) for event in done] == [("ask_user", "error")]
    result = ran.lines[-1]["result"]
    assert result["status"] == "finished" and not [event for event in ran.lines if event["type"] == "tool.started"]


def test_b125_a_run_that_finished_counts_as_finished_though_nobody_was_told(rig: Rig) -> None:
    """B125: the process is killed once the end is on record, before a word of it is out. The log is what counts: it is not run
    again."""
    with ProviderServer([Answer("all done")]) as server:
        manifest = rig.manifest(server)
        read, write = os.pipe()
        os.set_blocking(write, False)
        try:
            while True:  # a reader that takes nothing: what the run tells stays in the process
                os.write(write, b" " * 4096)
        except BlockingIOError:
            os.set_blocking(write, True)
        with rig.start("run", manifest, "x", "--name", "a", stdout=write) as process:
            os.close(write)
            ended = threading.Event()
            log = rig.home / "pods" / "a"
            for _ in range(2000):
                if any(b'"kind":"run_ended"' in path.read_bytes() for path in log.glob("*.jsonl")):
                    break
                ended.wait(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait(20)
            os.close(read)
        assert process.returncode == -signal.SIGKILL
        assert rig.pod("ls", "--json").json[0]["status"] == "finished"
        again = rig.pod("resume", "a")
        assert again.code == 2 and "its last run finished" in again.err
        assert rig.pod("show", "a", "--json").json["last_text"] == "all done"
        assert len(server.requests) == 1


@pytest.mark.parametrize("zone", ["Asia/Bangkok", "America/New_York"])
def test_b143_b144_ages_and_dates_do_not_move_with_the_zone(zone: str, rig: Rig) -> None:
    """B143: a fresh pod is seconds old in any zone, and each entry carries UTC. B144: what a model reads holds no date without
    its zone, before a resume and behind it, and the prompt keeps its bytes."""
    import re

    tasks = Answer(calls=[Call("tasks", {"add": ["count the hours"]})])
    with ProviderServer([tasks, Answer("one"), Answer("two")]) as server:
        manifest = rig.manifest(server, tools=["tasks"])
        assert rig.pod("run", manifest, "x", "--name", "a", TZ=zone).code == 0
        listed = rig.pod("ls", TZ=zone).text
        assert rig.pod("resume", "a", "y", TZ=zone).code == 0
        bodies = [request.json for request in server.requests]
    assert re.search(r"\b\d+(\.\d)? s ago\b", listed), listed
    entries = [json.loads(line) for line in next((rig.home / "pods" / "a").glob("*.jsonl")).read_text().splitlines()]
    assert len(entries) > 5 and all(re.fullmatch(r"[-\d]{10}T[:.\d]+Z", entry["at"]) for entry in entries)
    assert len({body["messages"][0]["content"] for body in bodies}) == 1
    for date in re.findall(r"\d{4}-\d\d-\d\d(?:[T ][\d:.]+(?:Z|[+-]\d\d:\d\d)?)?", json.dumps(bodies)):
        assert date.endswith("Z") or re.search(r"[+-]\d\d:\d\d$", date), date


def test_b147_all_that_lists_searches_and_exports_works_where_the_console_knows_ascii_alone(rig: Rig) -> None:
    """B147: and Latin-1 and Windows' own, with emoji in names of files, tasks and answers."""
    (rig.work / "naïve 🎉.md").write_text("日本語 🎉\n")
    steps = [
        Answer(calls=[Call("list_files", {"path": "."}), Call("read_file", {"path": "naïve 🎉.md"})]),
        Answer("ok 🎉 日本語"),
    ]
    with ProviderServer(steps) as server:
        assert rig.pod("run", rig.manifest(server, tools=["list_files", "read_file"]), "🎉", "--name", "a").code == 0
    for encoding in ("ascii", "latin-1", "cp1252"):
        for command in (
            ("ls",), ("show", "a"), ("log", "a"), ("inspect", "a"), ("context", "a"), ("doctor", "a"), ("show", "a", "--item", "3"),
            ("log", "a", "--json"), ("inspect", "a", "--html", "-"), ("export", "a"), ("manifest", "show", "{}"), ("tools",), ("models",),
        ):  # fmt: skip
            looked = rig.pod(*(word.format(rig.root / "agent.toml") for word in command), PYTHONIOENCODING=encoding)
            assert looked.code == 0 and looked.out, (encoding, command, looked.err)
            if "--json" not in command and "--html" not in command and command[0] != "export":
                looked.out.decode(encoding)
    assert b"naive" not in looked.out
    shown = rig.pod("log", "a", PYTHONIOENCODING="ascii").text
    assert "na?ve ?.md" in shown and "ok ?" in shown
