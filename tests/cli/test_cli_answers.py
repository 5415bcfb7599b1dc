"""Answers to several questions: named, all at once, one by one on a terminal; and what is said while they wait."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cli.cli_rig import Rig
from cli.cli_screen import Terminal, terminal

from worker.testing.provider_server import Answer, Call, ProviderServer

SCOPE = '[scope]\nwrite = ["."]\n'
THREE = Answer(
    calls=[
        Call("write_file", {"path": "one.txt", "content": "1\n"}),
        Call("write_file", {"path": "two.txt", "content": "2\n"}),
        Call("shell", {"command": "touch three.txt"}),
    ]
)


@pytest.fixture
def asked(rig: Rig) -> Iterator[Rig]:
    """A pod named `a` with three open questions: two writes and a command."""
    with ProviderServer([THREE, Answer("done")]) as server:
        manifest = rig.manifest(server, tools=["write_file", "shell"], profile="safe", more=SCOPE)
        assert rig.pod("run", manifest, "x", "--name", "a").code == 3
        assert len(_open(rig)) == 3
        yield rig


def _open(rig: Rig) -> list[str]:
    return [question["id"] for question in rig.pod("show", "a", "--json").json["approvals"]]


def _files(rig: Rig) -> set[str]:
    return {path.name for path in rig.work.iterdir()}


def _answered(screen: Terminal, after: str, keys: str) -> None:
    """Types at the prompt that comes behind a text: keys pressed before a prompt are no answer to it."""
    screen.read_until(after)
    screen.seen = screen.seen.partition(after)[2]
    screen.read_until("[?]: ")
    screen.type(keys)


def test_without_an_id_all_questions_are_listed_with_what_they_ask(asked: Rig) -> None:
    ran = asked.pod("approve", "a", "--resume")
    assert ran.code == 2 and "asks 3 questions" in ran.err and "--all" in ran.err
    for label, what in zip(_open(asked), ("one.txt", "two.txt", "touch three.txt"), strict=True):
        assert any(label in line and what in line for line in ran.err.splitlines()), ran.err
    assert _files(asked) == set()


def test_a_yes_without_an_id_shows_the_one_question_whole_and_allows_nothing_where_nobody_is_asked(rig: Rig) -> None:
    """Another question than the one that was looked at may be open by now."""
    long = "".join(f"line {n}\n" for n in range(60))
    write = Answer(calls=[Call("write_file", {"path": "one.txt", "content": long})])
    with ProviderServer([write, Answer("done")]) as server:
        manifest = rig.manifest(server, tools=["write_file"], profile="safe", more=SCOPE)
        assert rig.pod("run", manifest, "x", "--name", "a").code == 3
        for words in (("approve", "a"), ("approve", "a", "--resume"), ("approve", "a", "-p")):
            ran = rig.pod(*words)
            assert ran.code == 2 and f"{_open(rig)[0]}  write_file: one.txt" in ran.err and "+line 0" in ran.err
            assert "+line 59" in ran.err and "pod approve a ID" in ran.err and "--all" in ran.err
        assert "+line 59" in rig.pod("show", "a").text and _files(rig) == set()
        with terminal(rig, "approve", "a") as screen:
            _answered(screen, "+line 59", "n not now\n")
            assert screen.end() == 0, screen.seen
    assert _open(rig) == [] and _files(rig) == set()


def test_a_yes_by_id_says_what_it_allows(asked: Rig) -> None:
    ran = asked.pod("approve", "a", _open(asked)[2])
    assert ran.code == 0 and "  shell: touch three.txt\n" in ran.err
    ran = asked.pod("approve", "a", "--all")
    assert all(f"  write_file: {name}.txt\n" in ran.err for name in ("one", "two"))


def test_a_no_without_an_id_is_to_the_one_that_is_open(rig: Rig) -> None:
    write = Answer(calls=[Call("write_file", {"path": "one.txt", "content": "1\n"})])
    with ProviderServer([write, Answer("done")]) as server:
        manifest = rig.manifest(server, tools=["write_file"], profile="safe", more=SCOPE)
        rig.pod("run", manifest, "x", "--name", "a")
        assert rig.pod("deny", "a", "--resume").code == 0
    assert _files(rig) == set()


def test_all_answers_every_question_says_what_that_allows_and_is_named_as_a_way_out(asked: Rig) -> None:
    waits = asked.pod("resume", "a")
    assert waits.code == 3 and "pod approve a --all --resume   or: pod deny a --all --resume" in waits.err
    done = asked.pod("approve", "a", "--all", "--resume")
    assert (done.code, done.text) == (0, "done\n"), done.err
    assert "3 approved: writes for the rest of the run and this call" in done.err
    assert _files(asked) == {"one.txt", "two.txt", "three.txt"}


def test_deny_all_runs_none_and_tells_the_model_why(asked: Rig) -> None:
    done = asked.pod("deny", "a", "--all", "--message", "not today", "--resume")
    assert (done.code, done.text) == (0, "done\n"), done.err
    assert _files(asked) == set()
    log = asked.pod("log", "a", "--json").lines
    assert sum(event["type"] == "permission.denied" and "not today" in event["reason"] for event in log) == 3
    for shown in (done.err, asked.pod("log", "a").text, asked.pod("inspect", "a").text):
        lines = [line for line in shown.splitlines() if "denied:" in line]
        assert len(lines) == 3 and all("not today" in line and "; by " in line for line in lines), shown
        assert all(any(what in line for line in lines) for what in ("one.txt", "two.txt", "touch three.txt"))
    assert done.err.count("not today") == 3, "the result of a denied call is not told a second time"
    [segment] = asked.pod("inspect", "a", "--json").json["segments"]
    assert (segment["tools"], segment["denied"], segment["errors"]) == (3, 3, 0)
    assert "3 (3 denied)" in asked.pod("inspect", "a").text and "failed)" not in asked.pod("inspect", "a").text


def test_a_beginning_or_an_end_of_an_id_is_enough_where_it_is_one_questions(asked: Rig) -> None:
    first, second, third = _open(asked)
    one = asked.pod("approve", "a", third[-8:])
    assert one.code == 0 and "pod a: approved: this call;" in one.err
    assert _open(asked) == [first, second]
    wrong = asked.pod("approve", "a", first[:6], "--scope", "once")
    assert wrong.code == 2 and "may be 2 questions" in wrong.err and second in wrong.err
    shared = next(n for n in range(len(first)) if first[:n] != second[:n])
    assert asked.pod("approve", "a", first[:shared], "--scope", "once").code == 0
    assert _open(asked) == [second]


def test_a_yes_to_all_like_it_settles_the_questions_that_are_like_it(asked: Rig) -> None:
    first, _, third = _open(asked)
    ran = asked.pod("approve", "a", first, "--scope", "run")
    assert ran.code == 0 and "2 approved" in ran.err
    assert _open(asked) == [third], "the other write is settled, the command is not"


def test_on_a_terminal_each_question_is_put_and_settled_ones_are_skipped(asked: Rig) -> None:
    with terminal(asked, "approve", "a", "--resume", "-q") as screen:
        _answered(screen, "one.txt", "?\n")
        _answered(screen, "Ctrl-D leaves the question open", "a\n")
        screen.read_until("approved: writes for the rest of the run")
        screen.read_until("(and 1 more like it)")
        _answered(screen, "touch three.txt", "n\n")
        assert screen.end() == 0, screen.seen
    assert _files(asked) == {"one.txt", "two.txt"}


def test_control_d_is_no_answer(asked: Rig) -> None:
    with terminal(asked, "approve", "a", "--resume") as screen:
        _answered(screen, "one.txt", "y\n")
        _answered(screen, "two.txt", "\x04")
        assert screen.end() == 3, screen.seen
    assert len(_open(asked)) == 2
    assert _files(asked) == set(), "the run goes on when all is answered"


def test_a_run_on_a_terminal_takes_y_for_this_call_alone_and_control_d_for_no_answer(rig: Rig) -> None:
    with ProviderServer([THREE, Answer("done")]) as server:
        manifest = rig.manifest(server, tools=["write_file", "shell"], profile="safe", more=SCOPE)
        with terminal(rig, "run", manifest, "x", "--name", "a", "-q") as screen:
            _answered(screen, "one.txt", "y\n")
            _answered(screen, "two.txt", "\x04")
            assert screen.end() == 3, screen.seen
    assert len(_open(rig)) == 2
    assert rig.pod("ls", "--json").json[0]["status"] == "waiting"


def test_a_run_on_a_terminal_asks_nothing_that_is_settled(rig: Rig) -> None:
    with ProviderServer([THREE, Answer("done")]) as server:
        manifest = rig.manifest(server, tools=["write_file", "shell"], profile="safe", more=SCOPE)
        with terminal(rig, "run", manifest, "x", "--name", "a", "-q") as screen:
            _answered(screen, "one.txt", "a\n")
            _answered(screen, "touch three.txt", "y\n")
            assert screen.end() == 0, screen.seen
    assert _files(rig) == {"one.txt", "two.txt", "three.txt"}
    assert _open(rig) == []


def test_a_message_to_a_waiting_pod_is_told_what_comes_first(asked: Rig) -> None:
    ran = asked.pod("send", "a", "and then stop")
    assert ran.code == 0 and "waits for an answer first" in ran.err
    for label, what in zip(_open(asked), ("one.txt", "two.txt", "touch three.txt"), strict=True):
        assert (
            what in ran.err
            and f"pod approve a {label[-8:]} --resume" in ran.err
            and f"pod deny a {label[-8:]}" in ran.err
        )
    (look,) = asked.pod("ls", "--json").json
    assert look["status"] == "waiting", "a question comes before stored input"
    assert "waiting for a human" in asked.pod("ls").text
    done = asked.pod("approve", "a", "--all", "--resume", "--json")
    assert done.code == 0, done.err
    inputs = [event["text"] for event in asked.pod("log", "a", "--json").lines if event["type"] == "input.received"]
    assert inputs == ["x", "and then stop"]


def test_a_message_that_waits_behind_a_question_is_told_as_stored_with_the_way_to_answer(asked: Rig) -> None:
    sent = asked.pod("send", "a", "one more", "--json").json
    assert sent["stored"] and sent["status"] == "waiting"
    assert [asks["id"] for asks in sent["waits_for"]["questions"]] == _open(asked)
    assert "touch three.txt" in sent["waits_for"]["questions"][2]["summary"]
    assert sent["waits_for"]["answer"] == "pod approve a --all --resume, or pod deny a --all --resume"
    ran = asked.pod("resume", "a", "and another", "--json")
    assert ran.code == 3 and "2 messages are stored, and join once all of it is answered" in ran.err
    assert len(ran.json["queued"]) == 2 and ran.json["details"] == sent["waits_for"]
    assert asked.pod("show", "a", "--json").json["queued"] == ["one more", "and another"]
    done = asked.pod("approve", "a", "--all", "--resume", "--json")
    assert done.code == 0 and done.json["queued"] == []


def test_with_some_questions_answered_the_pod_still_waits(asked: Rig) -> None:
    label = _open(asked)[2]
    asked.pod("approve", "a", label)
    assert asked.pod("ls", "--json").json[0]["status"] == "waiting"
    asked.pod("approve", "a", "--all")
    assert asked.pod("ls", "--json").json[0]["status"] == "answered"
    assert json.loads(asked.pod("resume", "a", "--json").out)["status"] == "finished"
