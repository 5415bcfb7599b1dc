"""On a terminal: the live display and the questions. A pseudo-terminal stands for the human's."""

from __future__ import annotations

import json
import os
import re

import pytest
from cli.cli_rig import Rig
from cli.cli_screen import terminal

from worker.testing.provider_server import Answer, Call, ProviderServer

WRITE = Answer(calls=[Call("write_file", {"path": "new.txt", "content": "hello\n"})])
SCOPE = '[scope]\nwrite = ["."]\n'


@pytest.mark.parametrize("backend", [[], ["--asyncio"]])
def test_a_question_is_shown_with_its_diff_and_a_yes_goes_on_at_once(backend: list[str], rig: Rig) -> None:
    with ProviderServer([WRITE, Answer("written")]) as server:
        manifest = rig.manifest(server, tools=["write_file"], profile="safe", more=SCOPE)
        with terminal(rig, "run", manifest, "x", "--name", "a", *backend) as screen:
            screen.read_until("Allow it?")
            assert "write_file wants to run:" in screen.seen and "+hello" in screen.seen
            assert not (rig.work / "new.txt").exists()
            screen.type("maybe\n")
            screen.type("y\n")
            assert screen.end() == 0, screen.seen
            assert "written" in screen.seen
    assert (rig.work / "new.txt").read_text() == "hello\n"


def test_a_no_is_a_denial_and_the_run_goes_on(rig: Rig) -> None:
    with ProviderServer([WRITE, Answer("then not")]) as server:
        manifest = rig.manifest(server, tools=["write_file"], profile="safe", more=SCOPE)
        with terminal(rig, "run", manifest, "x") as screen:
            screen.read_until("Allow it?")
            screen.type("n\n")
            assert screen.end() == 0, screen.seen
    assert not (rig.work / "new.txt").exists()


def test_the_model_is_told_the_reason_that_stands_behind_a_no(rig: Rig) -> None:
    with ProviderServer([WRITE, Answer("then not")]) as server:
        manifest = rig.manifest(server, tools=["write_file"], profile="safe", more=SCOPE)
        with terminal(rig, "run", manifest, "x") as screen:
            screen.read_until("Allow it?")
            screen.type("y but not there\n")  # more words behind a yes are no answer
            screen.type("N, use the copy\n")
            assert screen.end() == 0, screen.seen
        assert "denied this call: use the copy" in json.dumps(server.requests[1].json)
    assert not (rig.work / "new.txt").exists()


def test_control_c_at_a_question_leaves_it_open(rig: Rig) -> None:
    with ProviderServer([WRITE, Answer("later")]) as server:
        manifest = rig.manifest(server, tools=["write_file"], profile="safe", more=SCOPE)
        with terminal(rig, "run", manifest, "x", "--name", "a") as screen:
            screen.read_until("Allow it?")
            os.kill(screen.process.pid, 2)
            assert screen.end() in {3, 130}, screen.seen
            assert "pod approve a" in screen.seen
        assert rig.pod("ls", "--json").json[0]["status"] == "waiting"
        assert rig.pod("approve", "a", "--all", "--resume").text == "later\n"


def test_an_answer_from_elsewhere_ends_the_question(rig: Rig) -> None:
    with ProviderServer([WRITE, Answer("written")]) as server:
        manifest = rig.manifest(server, tools=["write_file"], profile="safe", more=SCOPE)
        with terminal(rig, "run", manifest, "x", "--name", "a") as screen:
            screen.read_until("Allow it?")
            assert rig.pod("approve", "a", "--all").code == 0
            assert screen.end() == 0, screen.seen
            assert "answered elsewhere" in screen.seen
    assert (rig.work / "new.txt").exists()


def test_print_asks_nothing_even_on_a_terminal(rig: Rig) -> None:
    with ProviderServer([WRITE]) as server:
        manifest = rig.manifest(server, tools=["write_file"], profile="safe", more=SCOPE)
        with terminal(rig, "run", manifest, "x", "-p", "--name", "a") as screen:
            assert screen.end() == 3
            assert "Allow it?" not in screen.seen and "\x1b" not in screen.seen


@pytest.mark.parametrize("columns", [80, 200])
def test_b095_the_live_display_emits_only_its_own_escape_sequences(columns: int, rig: Rig) -> None:
    dirty = "evil \x1b[2J\x1b[3A\x1b]52;c;QUJD\x07\x9b2J end"
    (rig.work / "evil.txt").write_text(dirty)
    steps = [Answer(dirty, calls=[Call("read_file", {"path": "evil.txt"})], pause=0.02), Answer(dirty, pause=0.02)]
    with ProviderServer(steps) as server:
        manifest = rig.manifest(server, tools=["read_file"])
        with terminal(rig, "run", manifest, "x", "-v", columns=columns) as screen:
            assert screen.end() == 0, screen.seen
    allowed = re.compile(r"\x1b\[(?:\?25[lh]|[0-9;]*m|2K|1A|[0-9]*[ABG])")
    rest = allowed.sub("", screen.seen)
    assert "\x1b" not in rest and "\x07" not in rest and "\x9b" not in rest
    assert "\x1b[2J" not in screen.seen and "\x1b[3A" not in screen.seen
    assert "tokens (" in screen.seen and "request" in screen.seen
