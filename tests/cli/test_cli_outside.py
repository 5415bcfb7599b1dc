"""Commands from another process: questions, messages, stopping, one writer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cli.cli_rig import Rig

from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest

WRITE = Answer(calls=[Call("write_file", {"path": "new.txt", "content": "hello\n"})])


def test_b122_a_question_without_a_human_pauses_at_once_with_the_way_out(rig: Rig) -> None:
    with ProviderServer([WRITE, Answer("written")]) as server:
        more = '[scope]\nwrite = ["."]\n'
        ran = rig.pod("run", rig.manifest(server, tools=["write_file"], profile="safe", more=more), "x", "--name", "a")
        assert (ran.code, ran.text) == (3, "")
        (asked,) = rig.pod("show", "a", "--json").json["approvals"]
        assert f"pod approve a {asked['id'][-8:]} --resume" in ran.err and "+hello" in ran.err
        assert not (rig.work / "new.txt").exists()
        assert rig.pod("ls", "--json").json[0]["status"] == "waiting"
        again = rig.pod("resume", "a")
        assert again.code == 3 and len(server.requests) == 1, "resuming takes nothing as consent"
        done = rig.pod("approve", "a", asked["id"][-8:], "--resume")
        assert (done.code, done.text) == (0, "written\n"), done.err
    assert (rig.work / "new.txt").read_text() == "hello\n"


def test_b122_denied_without_asking_where_the_manifest_says_so(rig: Rig) -> None:
    with ProviderServer([WRITE, Answer("then not")]) as server:
        more = '[scope]\nwrite = ["."]\n'
        manifest = rig.manifest(server, tools=["write_file"], profile="safe", more=more)
        ran = rig.pod("run", manifest, "x", "--json", "--set", "permissions.when_headless=deny")
    assert (ran.code, ran.json["denials"]) == (0, 1)
    assert not (rig.work / "new.txt").exists()


def test_a_denial_reaches_the_model_with_its_words(rig: Rig) -> None:
    with ProviderServer([WRITE, Answer("understood")]) as server:
        more = '[scope]\nwrite = ["."]\n'
        rig.pod("run", rig.manifest(server, tools=["write_file"], profile="safe", more=more), "x", "--name", "a")
        done = rig.pod("deny", "a", "--message", "use the other folder", "--resume")
        assert (done.code, done.text) == (0, "understood\n"), done.err
        assert "use the other folder" in json.dumps(server.requests[1].json["messages"])
        assert rig.pod("approve", "a").code == 2


def test_a_message_is_durable_at_once_joins_the_next_run_and_its_key_is_taken_once(rig: Rig) -> None:
    with ProviderServer([Answer("one"), Answer("two")]) as server:
        rig.pod("run", rig.manifest(server), "first", "--name", "a")
        sent = rig.pod("send", "a", "second", "--id", "key-1")
        assert (sent.code, sent.text) == (0, "key-1\n")
        assert rig.pod("send", "a", "second", "--id", "key-1").code == 0
        assert rig.pod("ls", "--json").json[0]["status"] == "queued"
        assert rig.pod("resume", "a").text == "two\n"
        said = [m["content"] for m in server.requests[1].json["messages"] if m["role"] == "user"]
    assert said == ["first", "second"]


@contextmanager
def _held(rig: Rig, *flags: str, tools: tuple[str, ...] = ()) -> Iterator[tuple[ProviderServer, threading.Event]]:
    """A provider whose first answer waits until the event is set."""
    go = threading.Event()

    def answer(request: RecordedRequest) -> Answer:
        if len(server.requests) == 1:
            server_asked.set()
            assert go.wait(25)
            return Answer(calls=[Call("list_files", {"path": "."})])
        return Answer("the end")

    server_asked = threading.Event()
    with ProviderServer(answer) as server:
        process = rig.start("run", rig.manifest(server, tools=["list_files"]), "x", "--name", "a", *flags)
        with process:
            assert server_asked.wait(20)
            try:
                yield server, go
            finally:
                go.set()
                process.communicate(timeout=20)


def test_b069_a_second_writer_is_told_who_has_the_pod_and_another_pod_is_free(rig: Rig) -> None:
    with _held(rig):
        manifest = rig.root / "agent.toml"
        logs = {path: path.read_bytes() for path in (rig.home / "pods" / "a").glob("*.jsonl")}
        busy = rig.pod("resume", "a", "me too")
        assert busy.code == 75 and "is in use by process" in busy.err and busy.text == ""
        assert logs == {path: path.read_bytes() for path in (rig.home / "pods" / "a").glob("*.jsonl")}
        for command in (("rewind", "a", "--to", "1"), ("clear", "a"), ("rm", "a")):
            assert rig.pod(*command).code == 75, command
        look = rig.pod("ls", "--json").json[0]
        assert (look["status"], look["busy"]) == ("running", True)
        assert rig.pod("run", manifest, "x", "--name", "c").text == "the end\n"
        assert rig.pod("gc", "--older-than", "0s", "--force").code == 0
        assert (rig.home / "pods" / "a" / "pod.json").exists()


def test_a_message_to_a_running_pod_joins_at_the_next_request(rig: Rig) -> None:
    with _held(rig) as (server, go):
        assert rig.pod("send", "a", "keep it short").code == 0
        go.set()
        rig.pod("resume", "a", "--wait")
    assert server.requests[1].json["messages"][-1]["content"] == "keep it short"


def test_wait_goes_on_when_the_other_process_has_ended(rig: Rig) -> None:
    with _held(rig) as (server, go), rig.start("resume", "a", "my turn", "--wait") as second:
        assert second.stderr is not None
        assert b"waiting for process" in second.stderr.readline()
        go.set()
        out, err = second.communicate(timeout=20)
    assert (second.returncode, out) == (0, b"the end\n"), err
    assert server.requests[-1].json["messages"][-1]["content"] == "my turn"


def test_stop_ends_a_run_elsewhere_and_leaves_no_order_for_the_next(rig: Rig) -> None:
    with _held(rig, "--json") as (_, go):
        stopped = rig.pod("stop", "a")
        assert stopped.code == 0 and "stopped" in stopped.err
        assert rig.pod("ls", "--json").json[0]["busy"] is False
        assert list((rig.home / "pods" / "a" / "inbox").glob("*.json")) == []
        go.set()
        again = rig.pod("resume", "a", "go on")
        assert (again.code, again.text) == (0, "the end\n"), again.err
    assert rig.pod("stop", "a").code == 0


def test_interrupt_ends_a_run_at_its_next_request(rig: Rig) -> None:
    with _held(rig) as (server, go):
        assert rig.pod("interrupt", "a").code == 0
        go.set()
        rig.pod("stop", "a")
    assert len(server.requests) == 1
    assert rig.pod("ls", "--json").json[0]["status"] == "cancelled"
