"""What someone meets who uses the commands for the first time: commands to copy, warnings, words for what went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_rig import Rig

from pod.cli.progress import Lines
from pod.cli.text import ways_out
from pod.events import Warning_
from worker.testing.provider_server import Answer, Call, Http, ProviderServer

FIRST, SECOND = "01a22e67-984c-7e1b-9c8e-c011049f1a64", "01a22e67-984c-7e1b-9c8e-c0110aaaaaaa"
OTHER = "11a22e67-984c-7e1b-9c8e-d011049f1a64"


def test_a_question_is_answered_by_a_command_that_fits_into_80_columns() -> None:
    assert ways_out("fix", FIRST, [FIRST, SECOND]) == [
        "pod approve fix 049f1a64 --resume   or: pod deny fix 049f1a64 --resume"
    ]
    long = ways_out("agent-20261130-214227-19d3", FIRST, [FIRST])
    assert len(long) == 2 and all(len(line) < 76 for line in long)


def test_an_id_that_is_not_unique_by_its_end_or_was_not_made_stays_whole() -> None:
    assert FIRST in ways_out("fix", FIRST, [FIRST, OTHER])[0]
    assert "pay-call_123456789" in ways_out("fix", "pay-call_123456789", ["pay-call_123456789"])[0]


def test_the_command_that_is_shown_answers_the_question(rig: Rig) -> None:
    steps = [Answer(calls=[Call("shell", {"command": f"touch {n}"}) for n in (1, 2)]), Answer("done")]
    with ProviderServer(steps) as server:
        ran = rig.pod("run", rig.manifest(server, tools=["shell"], profile="safe"), "x", "--name", "a")
        shown = [line.strip().split("   or: ") for line in ran.err.splitlines() if "pod approve a " in line]
        assert ran.code == 3 and len(shown) == 3
        yes, no = shown[0][0].split(), shown[1][1].split()
        assert rig.pod(*yes[1:-1]).code == 0 and rig.pod(*no[1:]).code == 0
    assert {path.name for path in rig.work.iterdir()} == {"1"}


def test_a_warning_that_the_command_has_told_is_not_told_again_by_the_run(rig: Rig) -> None:
    (rig.work / ".pod").mkdir()
    (rig.work / ".pod" / "config.toml").write_text('[model]\nname = "offline:surveyor"\n')
    with ProviderServer([Answer("done")]) as server:
        ran = rig.pod("run", rig.manifest(server), "x", "--name", "a")
    assert ran.code == 0 and ran.err.count("only the configuration of a trusted folder may set this") == 1, ran.err
    assert "only the configuration of a trusted folder" in rig.pod("log", "a").text
    lines = Lines(told=("agent.toml:3: [model] name: the window is a guess",))
    assert lines.of(Warning_(code="c", message="the window is a guess")) == ""
    assert lines.of(Warning_(code="c", message="another")) == "warning: another"


def test_inspect_has_the_words_of_the_log_for_retries_and_warnings(rig: Rig) -> None:
    with ProviderServer([Http(500, {"error": {"message": "out of order"}})]) as server:
        manifest = rig.manifest(server)
        manifest.write_text(manifest.read_text().replace("max_attempts = 1", "max_attempts = 2").replace("60000", "0"))
        assert rig.pod("run", manifest, "x", "--name", "a").code != 0
    told = rig.pod("inspect", "a").text
    assert "retry 1 of 2 in " in told and "warning: the window of openai-chat:test-model is not known" in told
    assert "error provider_down" not in told and "code unknown_window" not in told


def test_an_entry_without_an_item_is_told_apart_from_one_that_is_not_there(rig: Rig) -> None:
    with ProviderServer([Answer("done")]) as server:
        rig.pod("run", rig.manifest(server), "x", "--name", "a")
    entry = next(line.split()[0] for line in rig.pod("log", "a").text.splitlines() if "run started" in line)
    without, missing = rig.pod("log", "a", "--item", entry), rig.pod("log", "a", "--item", "9999")
    assert without.code == missing.code == 2
    assert f"entry {entry} of pod 'a'" in without.err and "holds no item" in without.err
    assert "has no item '9999'" in missing.err


@pytest.mark.parametrize(("event", "then"), [("PreToolUse", "is blocked"), ("Stop", "is passed over")])
def test_a_hook_whose_program_is_not_there_is_a_warning_before_the_run(event: str, then: str, rig: Rig) -> None:
    manifest = rig.manifest(None, more=f'[[hooks]]\nevent = "{event}"\ncommand = ["./guard"]\n')
    ran = rig.pod("manifest", "check", manifest)
    assert ran.code == 0 and "./guard is not there" in ran.err and then in ran.err, ran.err
    (rig.work / "guard").write_text("#!/bin/sh\n")
    (rig.work / "guard").chmod(0o755)
    assert "guard" not in rig.pod("manifest", "check", manifest).err


def test_the_list_of_tools_fits_into_80_columns_and_ends_no_sentence_in_its_middle(rig: Rig) -> None:
    told = rig.pod("tools", COLUMNS="80").text
    assert max(map(len, told.splitlines())) <= 80
    assert "Links are not followed, .git is left out." in " ".join(told.split())


def test_commands_get_the_variables_that_the_manifest_names_and_no_others(rig: Rig, tmp_path: Path) -> None:
    run = Answer(calls=[Call("shell", {"command": 'echo "[$MY_SETTING][$OTHER_SETTING]" > got.txt'})])
    more = '[tools.shell]\nenv = ["MY_SETTING"]\n'
    with ProviderServer([run, Answer("done")]) as server:
        manifest = rig.manifest(server, tools=["shell"], more=more)
        rules = 'permissions.rules=[{tool="shell", action="allow"}]'
        ran = rig.pod("run", manifest, "x", "--set", rules, MY_SETTING="mine", OTHER_SETTING="other")
    assert ran.code == 0 and (rig.work / "got.txt").read_text() == "[mine][]\n", ran.err
    wrong = rig.pod("manifest", "check", manifest, "--set", 'tools.shell.env=["A=1"]')
    assert wrong.code == 2 and "tools.shell" in wrong.err
