"""Words in and out: text that is no UTF-8, why a run ended, single items, output that can't be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

from pod.cli.given import valid_text
from pod.cli.progress import Lines, summary
from pod.cli.text import balance
from pod.events import CompactionRung, RunEnded
from pod.result import RunFailed, RunResult, whole_counts
from worker.testing.provider_server import Answer, Call, Http, ProviderServer


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(rig, capsys, monkeypatch)


# -- text that is no UTF-8 ------------------------------------------------------------------------------------

LATIN = "caf\udce9"  # how the interpreter hands on the byte E9


def test_bytes_that_are_no_utf_8_become_replacements_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert valid_text(LATIN, "the task") == "caf\ufffd"
    assert "the task is not valid UTF-8" in capsys.readouterr().err
    assert valid_text("\udcc3\udca9 ok", "x") == "é ok", "bytes that are UTF-8 together"
    capsys.readouterr()
    assert valid_text("\ud800a", "x") == "?a", "half a character that came from elsewhere"
    capsys.readouterr()
    assert valid_text("grüße 🙂", "x") == "grüße 🙂"
    assert capsys.readouterr().err == ""


def test_no_command_stumbles_over_bytes_that_are_no_utf_8(shell: Shell) -> None:
    answers = [Answer("one"), Answer("two"), Answer("three"), Answer("four")]
    with ProviderServer(answers) as server:
        manifest = shell.rig.manifest(server)
        shell("run", manifest, LATIN, "--name", "a", "-q")
        assert "warning: the task is not valid UTF-8" in shell.err
        shell("resume", "a", LATIN, "-q")
        assert "warning: the task is not valid UTF-8" in shell.err
        shell("send", "a", LATIN)
        assert "warning: the message is not valid UTF-8" in shell.err
        shell("resume", "a", "-q")
        shell("compact", "a", "--focus", LATIN, "-q", code=1)
        assert "warning: --focus is not valid UTF-8" in shell.err
        ran = shell.rig.pod("resume", "a", "-", "-q", given=b"caf\xe9")
        assert ran.code == 0 and "standard input is not valid UTF-8" in ran.err
    said = [m["content"] for m in server.requests[-1].json["messages"] if m["role"] == "user"]
    assert said == ["caf\ufffd"] * 4


def test_a_denial_may_hold_bytes_that_are_no_utf_8(shell: Shell) -> None:
    write = Answer(calls=[Call("write_file", {"path": "new.txt", "content": "x"})])
    with ProviderServer([write, Answer("done")]) as server:
        more = '[scope]\nwrite = ["."]\n'
        manifest = shell.rig.manifest(server, tools=["write_file"], profile="safe", more=more)
        shell("run", manifest, "x", "--name", "a", "-q", "-p", code=3)
        shell("deny", "a", "--message", LATIN, "--resume", "-q", "-p")
        assert "--message is not valid UTF-8" in shell.err
        assert "caf\ufffd" in json.dumps(server.requests[-1].json, ensure_ascii=False)


# -- why a run ended ------------------------------------------------------------------------------------------


def test_log_and_inspect_and_show_say_why_a_run_did_not_finish(shell: Shell) -> None:
    with ProviderServer([Http(400, {"error": {"message": "no such thing", "code": "bad"}})]) as server:
        shell("run", shell.rig.manifest(server), "x", "--name", "a", "-q", code=1)
    for command in ("log", "inspect"):
        (line,) = [line for line in shell(command, "a").splitlines() if "run failed" in line]
        assert "(bad_request)" in line and "no such thing" in line, line
    (row,) = [line for line in shell("show", "a").splitlines() if line.startswith("last run:")]
    assert "failed (bad_request): " in row and "no such thing" in row
    ended = [json.loads(line) for line in shell("log", "a", "--json").splitlines()][-1]
    assert (ended["type"], ended["error_kind"]) == ("run.ended", "bad_request")


def test_a_limit_says_which_one_it_was() -> None:
    line = Lines(verbose=True).of(RunEnded(run="r", status="limit", error_kind="max_requests", error="3 were made"))
    assert line == "run limit (max_requests): 3 were made"


def test_the_exception_of_a_failed_run_holds_the_error() -> None:
    result = RunResult(
        pod="a", session="s", segment="g", run="r", status="failed", error="the key is wrong", error_kind="auth",
        why_runtime_stopped="auth",
    )  # fmt: skip
    with pytest.raises(RunFailed, match=r"ended as failed \(auth\): the key is wrong"):
        result.raise_for_status()


def test_counts_of_the_usage_are_whole_numbers_in_json() -> None:
    by = whole_counts({"worker:m": {"requests": 3.0, "prompt_tokens": 10.0, "cost_usd": 0.5}})
    result = RunResult(pod="a", session="s", segment="g", run="r", status="finished", usage=by)
    assert '"requests":3,"prompt_tokens":10,"cost_usd":0.5' in result.model_dump_json()


def test_the_closing_line_names_the_requests_of_compactions_beside_the_runs_own() -> None:
    result = RunResult(
        pod="a", session="s", segment="g", run="r", status="finished", requests=404, compaction_requests=158
    )
    assert summary(result).startswith("404 requests (and 158 for compactions), ")
    assert summary(result.model_copy(update={"compaction_requests": 0})).startswith("404 requests, ")


def test_each_rung_of_a_compaction_has_words_in_the_log() -> None:
    lines = Lines(verbose=True, width=400)
    figures = {"requests": 1.0, "prompt_tokens": 1200.0, "output_tokens": 30.0}
    told = [
        lines.of(CompactionRung(compaction="c", rung="compact", state=state, reason=reason, figures=figures))
        for state, reason in (("tried", ""), ("done", ""), ("failed", "empty"))
    ]
    assert told == [
        "  tries compact (1 request, 1,200 in, 30 out)",
        "  done by compact (1 request, 1,200 in, 30 out)",
        "  failed: compact (1 request, 1,200 in, 30 out): empty",
    ]


# -- single things --------------------------------------------------------------------------------------------


@pytest.fixture
def surveyed(shell: Shell) -> Shell:
    source = shell.rig.work / "src"
    source.mkdir()
    for n in range(30):
        body = "".join(f"def f{n}_{i}() -> int:\n    return {i}\n\n" for i in range(40))
        (source / f"m{n}.py").write_text(f'"""Module {n}."""\n\n{body}')
    task = "Survey the Python files in src. Write the report to SURVEY.md."
    shell("run", "offline-survey", task, "--name", "a", "-q")
    return shell


def test_summary_items_and_artifacts_are_printed_whole(surveyed: Shell) -> None:
    assert "## Active Task" in surveyed("show", "a", "--summary")
    assert surveyed.json("show", "a", "--summary")["summary"].startswith("## ")
    text = surveyed("log", "a")
    assert "`pod show a --summary`" in surveyed.err
    assert "compaction.rung" not in text and "done by compact" in text
    (number,) = [line.split()[0] for line in text.splitlines() if "input: Survey" in line]
    whole = surveyed("show", "a", "--item", number)
    assert "Survey the Python files in src. Write the report to SURVEY.md." in whole
    (item,) = surveyed.json("log", "a", "--item", number)
    assert surveyed("log", "a", "--item", item["id"]) == whole
    assert surveyed("show", "a", "--item", item["id"][:-1]) == whole
    results = [e for e in map(json.loads, surveyed("log", "a", "--json").splitlines()) if e["type"] == "tool.completed"]
    of_call = surveyed.json("show", "a", "--item", results[0]["call_id"])
    assert [part["type"] for part in of_call] == ["tool_call", "tool_result"]
    for wrong in ("999999", "nothing"):
        surveyed("show", "a", "--item", wrong, code=2)
        assert "has no item" in surveyed.err


def test_an_artifact_is_printed_as_it_is_and_no_other_file(surveyed: Shell) -> None:
    folder = surveyed.rig.home / "pods" / "a" / "artifacts"
    folder.mkdir(exist_ok=True)
    (folder / "out.bin").write_bytes(b"\x00\xff\n")
    assert surveyed.rig.pod("show", "a", "--artifact", "out.bin").out == b"\x00\xff\n"
    for wrong in ("none.txt", "../pod.json", " ", "."):
        surveyed("show", "a", "--artifact", wrong, code=2)
        assert "has no artifact" in surveyed.err


def test_requests_are_counted_through_the_run_in_the_timeline(surveyed: Shell) -> None:
    steps = surveyed.json("inspect", "a")["timeline"]
    numbers = [step["request"] for step in steps if step["type"] == "request.completed"]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 20
    pruned = [line for line in surveyed("inspect", "a").splitlines() if "pruned" in line and "because" in line]
    assert pruned and all("; min_savings" not in line for line in pruned)


def test_a_pod_without_a_summary_says_so(shell: Shell) -> None:
    with ProviderServer([Answer("one")]) as server:
        shell("run", shell.rig.manifest(server), "x", "--name", "a", "-q")
    shell("show", "a", "--summary", code=2)
    assert "began without a summary" in shell.err


# -- where output and pods go ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("ls",), ("tools",), ("--help",), ("run", "offline-survey", "hello", "-q")])
def test_output_that_can_not_be_written_is_one_clear_line(arguments: tuple[str, ...], rig: Rig) -> None:
    rig.pod("run", "offline-survey", "hello", "-q")
    with Path("/dev/full").open("wb") as full, rig.start(*arguments, stdout=full) as process:
        _, err = process.communicate(timeout=30)
    text = err.decode()
    assert process.returncode == 1, text
    assert text.count("the output can't be written: No space left on device") == 1
    assert "Traceback" not in text and "traceback" not in text and "Exception ignored" not in text


@pytest.mark.parametrize("command", [("ls",), ("run", "offline-survey", "x"), ("show", "a"), ("doctor",)])
def test_a_home_that_is_a_file_is_named(command: tuple[str, ...], rig: Rig) -> None:
    (rig.root / "file").write_text("")
    ran = rig.pod(*command, POD_HOME=str(rig.root / "file"))
    assert ran.code == 2 and "file is not a folder" in ran.err and "POD_HOME" in ran.err
    assert ran.err.count("\n") == 1


def test_the_help_says_how_long_a_limit_is_kept_with_the_pod(shell: Shell) -> None:
    text = " ".join(shell("run", "--help").split())
    assert "kept with the pod until it is given a manifest again (`pod run`, `pod resume --manifest`)" in text
    assert (
        "in one run; kept with the pod until it is given a manifest again; `pod resume` takes another one once" in text
    )
    assert "this time only" in " ".join(shell("resume", "--help").split())


def test_bars_in_generated_tables_are_escaped_as_markdown_wants_it() -> None:
    from pod.docs import pages

    for name, page in pages().items():
        assert "&#124;" not in page, name
    assert "`str \\| None`" in pages()["events.md"]


def test_what_was_saved_lost_or_is_unknown_is_said_in_words() -> None:
    assert balance(0.0123) == "saved $0.0123" and balance(-1.5) == "lost $1.50"
    assert balance(None) == "what they saved is unknown (no price)"
