"""`pod run` as a script sees it: standard output, standard input, formats, names."""

from __future__ import annotations

import json
import os

from cli.cli_rig import Rig

from worker.testing.provider_server import Answer, Call, ProviderServer

DIRTY = "clear\x1b[2J up\x1b[3A clip\x1b]52;c;QUJD\x07 c1\x9b2J end"


def test_standard_output_holds_the_final_text_alone(rig: Rig) -> None:
    with ProviderServer([Answer(calls=[Call("list_files", {"path": "."})]), Answer("All done.")]) as server:
        ran = rig.pod("run", rig.manifest(server, tools=["list_files"]), "look", "--name", "a")
    assert (ran.code, ran.text) == (0, "All done.\n")
    assert "request 1:" in ran.err and "list_files" in ran.err and "pod a: finished: 2 requests" in ran.err
    assert "\x1b" not in ran.err


def test_quiet_says_nothing_but_the_result(rig: Rig) -> None:
    with ProviderServer([Answer("ok")]) as server:
        ran = rig.pod("run", rig.manifest(server), "x", "-q")
    assert (ran.code, ran.text, ran.err) == (0, "ok\n", "")


def test_json_is_the_whole_result_in_one_line(rig: Rig) -> None:
    with ProviderServer([Answer("ok")]) as server:
        ran = rig.pod("run", rig.manifest(server), "x", "--json", "--name", "a")
    assert ran.out.count(b"\n") == 1 and ran.out.endswith(b"\n")
    result = ran.json
    assert (result["pod"], result["status"], result["text"], result["exit_code"]) == ("a", "finished", "ok", 0)
    assert result["requests"] == 1


def test_the_stream_begins_with_init_ends_with_one_result_and_its_numbers_never_fall(rig: Rig) -> None:
    with ProviderServer([Answer(calls=[Call("list_files", {"path": "."})]), Answer("Fine.")]) as server:
        ran = rig.pod(
            "run", rig.manifest(server, tools=["list_files"]), "x", "--output-format", "stream-json", "--asyncio"
        )
    events = ran.lines
    types = [event["type"] for event in events]
    assert types[0] == "init" and types[-1] == "result" and types.count("result") == 1 and types.count("init") == 1
    assert events[0]["schema_version"] and events[0]["window"] == 60_000
    assert {"run.started", "request.started", "request.completed", "tool.started", "tool.completed"} <= set(types)
    numbers = [event["seq"] for event in events]
    assert numbers == sorted(numbers)
    assert events[-1]["result"]["text"] == "Fine." and events[-1]["result"]["exit_code"] == ran.code == 0


def test_output_goes_to_a_file_instead(rig: Rig) -> None:
    target = rig.root / "out.txt"
    with ProviderServer([Answer("to the file")]) as server:
        ran = rig.pod("run", rig.manifest(server), "x", "-o", target)
    assert (ran.code, ran.text, target.read_text()) == (0, "", "to the file\n")


def test_a_dash_reads_the_task_from_standard_input_and_an_empty_one_is_an_error(rig: Rig) -> None:
    with ProviderServer([Answer("ok")]) as server:
        manifest = rig.manifest(server)
        ran = rig.pod("run", manifest, "-", given="Grüße aus der Röhre".encode())
        assert ran.code == 0
        assert server.requests[0].json["messages"][-1]["content"] == "Grüße aus der Röhre"
        empty = rig.pod("run", manifest, "-", given=b" \n")
    assert empty.code == 2 and "the task is empty" in empty.err


def test_b095_no_escape_byte_of_the_model_or_a_tool_reaches_the_terminal(rig: Rig) -> None:
    (rig.work / "evil.txt").write_text(DIRTY)
    read = Answer(f"reading {DIRTY}", calls=[Call("read_file", {"path": "evil.txt"})])
    with ProviderServer([read, Answer(DIRTY), read, Answer(DIRTY)]) as server:
        manifest = rig.manifest(server, tools=["read_file"])
        human = rig.pod("run", manifest, "x", "-v", "--name", "a")
        shown = rig.pod("show", "a")
        logged = rig.pod("log", "a")
        inspected = rig.pod("inspect", "a")
        machine = rig.pod("run", manifest, "x", "--output-format", "stream-json")
    assert human.text == f"{DIRTY}\n"  # the result, in a pipe
    assert "clear\\x1b[2J up\\x1b[3A clip\\x1b]52;c;QUJD\\x07 c1\\x9b2J end" in human.err and shown.code == 0
    for text in (human.err, *(ran.text + ran.err for ran in (shown, logged, inspected))):
        assert not {c for c in text if ord(c) < 32 and c not in "\n\t"}
        assert not {c for c in text if 0x7F <= ord(c) < 0xA0}
    assert b"\x1b" not in machine.out and "\x9b" not in machine.text
    assert machine.lines[-1]["result"]["text"] == DIRTY


def test_b126_nothing_but_json_reaches_standard_output(rig: Rig) -> None:
    (rig.root / "noisy_tools.py").write_text(
        "import os, warnings\n"
        "def noise() -> str:\n"
        '    "Makes noise."\n'
        "    print('printed by a tool')\n"
        "    os.write(1, b'written to the descriptor\\n')\n"
        "    warnings.warn('old', DeprecationWarning)\n"
        "    os.system('echo from a child')\n"
        "    return 'quiet now'\n"
    )
    more = '[[permissions.rules]]\ntool = "noise"\naction = "allow"'
    with ProviderServer([Answer(calls=[Call("noise", {})]), Answer("ok")]) as server:
        manifest = rig.manifest(server, more=more)
        manifest.write_text(manifest.read_text().replace("enable = []", 'enable = []\npython = ["noisy_tools:noise"]'))
        ran = rig.pod(
            "run", manifest, "x", "--output-format", "stream-json", "-v",
            PYTHONPATH=str(rig.root), OPENAI_LOG="debug", PYTHONWARNINGS="default", PYTHONDEVMODE="0",
        )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.lines[-1]["result"]["tool_calls"] == 1
    completed = [event for event in ran.lines if event["type"] == "tool.completed"]
    assert completed[0]["status"] == "ok", completed
    for said in ("printed by a tool", "written to the descriptor", "from a child"):
        assert said in ran.err and said.encode() not in ran.out


def test_b147_a_console_that_cannot_show_a_character_gets_a_replacement(rig: Rig) -> None:
    with ProviderServer([Answer("naïve 🎉 ok"), Answer("naïve 🎉 ok")]) as server:
        manifest = rig.manifest(server)
        ran = rig.pod("run", manifest, "🎉", "--name", "a", PYTHONIOENCODING="ascii")
        assert (ran.code, ran.out) == (0, b"na?ve ? ok\n")
        machine = rig.pod("run", manifest, "🎉", "--json", PYTHONIOENCODING="ascii")
        assert machine.json["text"] == "naïve 🎉 ok"
    for command in (("ls",), ("show", "a"), ("inspect", "a"), ("log", "a")):
        looked = rig.pod(*command, PYTHONIOENCODING="ascii")
        assert looked.code == 0 and looked.out.isascii() and looked.out
    rig.fresh = True
    assert b"na?ve ? ok" in rig.pod("show", "a", PYTHONIOENCODING="ascii").out


def test_b127_a_reader_that_leaves_ends_the_run_quietly_and_durably(rig: Rig) -> None:
    def endless(_request: object) -> Answer:
        return Answer("x" * 20_000, calls=[Call("list_files", {"path": "."})])

    with ProviderServer(endless) as server:
        manifest = rig.manifest(
            server, tools=["list_files"], more="[limits]\nrepeat_call = { remind = [], stop = 900 }"
        )
        with rig.start("run", manifest, "x", "--output-format", "stream-json", "--name", "a", "-q") as process:
            assert process.stdout is not None and process.stderr is not None
            while json.loads(process.stdout.readline())["type"] != "tool.completed":
                pass
            process.stdout.close()
            err = process.stderr.read().decode()
            assert process.wait(20) == 141
    assert err == ""
    assert rig.pod("ls", "--json").json[0]["status"] == "cancelled"


def test_b127_a_slow_reader_gets_every_line_whole(rig: Rig) -> None:
    with ProviderServer([Answer("y" * 300_000)]) as server:
        process = rig.start("run", rig.manifest(server), "x", "--output-format", "stream-json")
        with process:
            assert process.stdout is not None
            data = bytearray()
            while chunk := os.read(process.stdout.fileno(), 3_000):
                data += chunk
            process.communicate(timeout=20)
    assert data.endswith(b"\n")
    lines = [json.loads(line) for line in data.splitlines()]
    assert lines[-1]["type"] == "result" and lines[-1]["result"]["text"] == "y" * 300_000


def test_continue_takes_the_newest_pod_of_this_manifest_and_folder(rig: Rig) -> None:
    with ProviderServer([Answer("one"), Answer("two"), Answer("three")]) as server:
        manifest = rig.manifest(server)
        first = rig.pod("run", manifest, "first", "--json").json
        again = rig.pod("run", manifest, "-c", "second", "--json").json
        elsewhere = rig.root / "elsewhere"
        elsewhere.mkdir()
        other = rig.pod("run", manifest, "third", "-c", "-C", elsewhere)
    assert first["pod"].startswith("agent-")
    assert (again["pod"], again["session"]) == (first["pod"], first["session"])
    assert [m["content"] for m in server.requests[1].json["messages"][1:]] == ["first", "one", "second"]
    assert other.code == 2 and "leave out -c to begin one" in other.err


def test_an_ephemeral_pod_leaves_nothing(rig: Rig) -> None:
    with ProviderServer([Answer("gone")]) as server:
        ran = rig.pod("run", rig.manifest(server), "x", "--ephemeral", "--json", TMPDIR=str(rig.root))
    assert (ran.code, ran.json["text"], ran.json["resumable"]) == (0, "gone", False)
    assert not (rig.home / "pods").exists() and not list(rig.root.glob("pod-*"))


def test_flags_overrule_the_manifest_and_set_comes_last(rig: Rig) -> None:
    with ProviderServer([Answer("ok")]) as server:
        manifest = rig.manifest(server)
        ran = rig.pod(
            "run", manifest, "x", "--name", "a", "--model", "openai-chat:other", "--max-requests", "7", "--timeout",
            "60", "--profile", "read-only", "--set", "worker.max_requests=9",
        )  # fmt: skip
        assert ran.code == 0
        assert server.requests[0].json["model"] == "other"
    from pod.log.folder import PodFolder
    from pod.stored import stored_manifest

    kept, cwd = stored_manifest(PodFolder(rig.home, "a"))
    assert (kept.worker.max_requests, kept.permissions.profile, kept.limits.max_wall_seconds) == (9, "read-only", 60)
    assert cwd == str(rig.work.resolve())


def test_resume_with_another_manifest_says_what_changes_and_keeps_it(rig: Rig) -> None:
    with ProviderServer([Answer("one"), Answer("two"), Answer("three")]) as server:
        manifest = rig.manifest(server)
        rig.pod("run", manifest, "x", "--name", "a")
        other = rig.manifest(server, name="other.toml")
        other.write_text(other.read_text().replace("test-model", "better-model"))
        ran = rig.pod("resume", "a", "go on", "--manifest", other)
        assert ran.code == 0 and "manifest changes: model.name" in ran.err and "better-model" in ran.err
        rig.pod("resume", "a", "and on")
        assert [r.json["model"] for r in server.requests] == ["test-model", "better-model", "better-model"]


def test_resume_without_anything_to_do_says_so(rig: Rig) -> None:
    with ProviderServer([Answer("one")]) as server:
        rig.pod("run", rig.manifest(server), "x", "--name", "a")
        ran = rig.pod("resume", "a")
    assert ran.code == 2 and "nothing to go on with" in ran.err and ran.text == ""
    assert len(server.requests) == 1


def test_the_proof_stops_a_manifest_whose_numbers_cannot_work_before_anything_is_spent(rig: Rig) -> None:
    more = (
        "[compaction]\nthreshold = 9000\nrequest_threshold = 9000\nretained_tokens = 2000\nsummary_max_tokens = 6000\n"
    )
    more += "final_reserve_tokens = 6000\n"
    with ProviderServer([]) as server:
        manifest = rig.manifest(server, more=more)
        ran = rig.pod("run", manifest, "x", "--name", "a")
        checked = rig.pod("manifest", "check", manifest)
        assert server.requests == []
    for one in (ran, checked):
        assert one.code == 2
        assert "largest summary" in one.err and "6,000" in one.err and "NOT below 4,500" in one.err
    assert not (rig.home / "pods").exists()


def test_the_shipped_survey_runs_by_its_name(rig: Rig) -> None:
    (rig.work / "src").mkdir()
    (rig.work / "src" / "one.py").write_text('"""One."""\n\ndef one() -> int:\n    return 1\n')
    ran = rig.pod("run", "offline-survey", "Survey the Python files in src. Write the report to SURVEY.md.", "-q")
    assert ran.code == 0, ran.err
    assert "one.py" in (rig.work / "SURVEY.md").read_text()


def test_the_process_listens_to_no_terminal_that_is_not_there(rig: Rig) -> None:
    with ProviderServer([Answer("ok")]) as server, rig.start("run", rig.manifest(server), "x", stdin=None) as process:
        out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"ok\n")
