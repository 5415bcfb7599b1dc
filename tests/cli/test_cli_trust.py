"""`pod trust` as a user meets it: what is asked for is shown before it is trusted, and nobody is asked who isn't there."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest
from cli.cli_rig import Rig

ASKS = """\
[tools]
python = ["json:dumps"]
[tools.shell]
timeout = 500
[limits]
max_tool_calls = 7
[permissions]
rules = [{ tool = "shell", match = "git push*", action = "deny" }, { tool = "*", action = "allow" }]
"""


@pytest.fixture
def file(rig: Rig) -> Path:
    path = rig.work / ".pod" / "config.toml"
    path.parent.mkdir()
    path.write_text(ASKS)
    return path


def kept(rig: Rig) -> list[Path]:
    return [*(rig.home / "trust").glob("*")]


def state(rig: Rig) -> str:
    return rig.pod("trust", "--json").json["state"]


def test_what_a_folder_asks_for_is_shown_and_nobody_who_is_not_there_is_asked(rig: Rig, file: Path) -> None:
    ran = rig.pod("trust")
    assert (ran.code, kept(rig)) == (2, [])
    assert "--yes" in ran.err and "Traceback" not in ran.err
    assert ran.text.splitlines() == [
        f"{file}: not trusted: it may only tighten",
        "asks for what only a trusted folder gets:",
        '  line 2: [tools] python = ["json:dumps"]  (else [])',
        "  line 4: [tools.shell] timeout = 500  (else 120)",
        '  line 8: [permissions.rules #2] = { tool = "*", action = "allow" }',
        "tightens, trusted or not:",
        "  limits.max_tool_calls = 7",
        "denies, trusted or not, by 1 rule:",
        '  { tool = "shell", match = "git push*", action = "deny" }',
    ]


def test_yes_trusts_what_is_there_and_a_run_then_follows_it(rig: Rig, file: Path) -> None:
    manifest = rig.manifest(None)
    before = rig.pod("manifest", "show", manifest, "--json")
    assert before.json["manifest"]["tools"]["python"] == [] and before.json["project"]["state"] == "untrusted"
    assert [each["line"] for each in before.json["project"]["left_out"]] == [2, 4, 8]
    assert before.json["tightened"] == {"limits.max_tool_calls": {"from": None, "source": "default"}}
    assert "`pod trust" in before.err
    assert rig.pod("trust", "--yes").code == 0
    after = rig.pod("manifest", "show", manifest, "--json")
    assert after.json["manifest"]["tools"]["python"] == ["json:dumps"] and after.json["project"]["state"] == "trusted"
    assert after.err == ""
    assert rig.pod("trust").code == 0  # nothing is left to decide


@pytest.mark.parametrize(("answer", "code", "then"), [("y", 0, "trusted"), ("n", 1, "untrusted"), ("", 1, "untrusted")])
def test_on_a_terminal_the_user_is_asked_and_only_a_yes_trusts(
    rig: Rig, file: Path, answer: str, code: int, then: str
) -> None:
    outer, inner = pty.openpty()
    try:
        os.write(outer, f"{answer}\n".encode())
        with rig_process(rig, inner) as process:
            process.communicate(timeout=30)
        assert process.returncode == code
    finally:
        os.close(outer)
        os.close(inner)
    assert state(rig) == then


def rig_process(rig: Rig, terminal: int) -> subprocess.Popen[bytes]:
    import sys

    return subprocess.Popen(
        [sys.executable, "-m", "pod", "trust"], cwd=rig.work, env=rig.env(), stdin=terminal, stdout=subprocess.PIPE, stderr=terminal
    )  # fmt: skip


def test_a_change_is_shown_as_what_changed_and_listed_as_changed(rig: Rig, file: Path) -> None:
    assert rig.pod("trust", "--diff").code == 2
    rig.pod("trust", "--yes")
    file.write_text(ASKS.replace("500", "600"))
    shown = rig.pod("trust", "--diff")
    assert [line for line in shown.text.splitlines() if line[:2] in {"-t", "+t"}] == [
        "-timeout = 500",
        "+timeout = 600",
    ]
    listed = rig.pod("trust", "--list", "--json").json
    assert [(each["folder"], each["state"]) for each in listed] == [(str(rig.work), "changed")]
    assert rig.pod("trust", "--remove").code == 0 and kept(rig) == []
    assert rig.pod("trust", "--list").text == ""


def test_a_folder_that_is_gone_is_listed_and_its_decision_can_be_taken_back(rig: Rig, file: Path) -> None:
    rig.pod("trust", "--yes")
    file.unlink()
    assert rig.pod("trust", "--list").text.split()[-2] == "gone"
    assert rig.pod("trust", rig.work, "--remove").code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tools\n", "config.toml:1:7: is not valid TOML"),
        ("[toolz]\na = 1\n", "[toolz]: unknown table; did you mean [tools]?"),
        ("[model]\napi_key = 'sk-abcdefghijklmnop12345678'\n", "a secret must not stand in a manifest"),
    ],
)
def test_what_no_run_would_take_is_not_trusted(rig: Rig, file: Path, text: str, said: str) -> None:
    file.write_text(text)
    ran = rig.pod("trust", "--yes")
    assert ran.code == 2 and said in ran.err and kept(rig) == []
    assert "sk-abc" not in ran.err and "sk-abc" not in ran.text


def test_ignoring_a_broken_configuration_lets_runs_go_on(rig: Rig, file: Path) -> None:
    file.write_text("[tools\n")
    manifest = rig.manifest(None)
    refused = rig.pod("manifest", "check", manifest)
    assert refused.code == 2 and f"`pod trust --ignore {rig.work}`" in refused.err
    assert rig.pod("trust", "--ignore", rig.work).code == 0
    assert rig.pod("manifest", "check", manifest).code == 0
    assert rig.pod("trust", "--list").text.split()[-2] == "ignored"


def test_hidden_characters_of_a_value_are_shown_as_escapes(rig: Rig, file: Path) -> None:
    file.write_text('[worker]\nsystem_prompt = "good\\u202e\\U000E0041\\u001b[2J"\n')
    shown = rig.pod("trust")
    assert "good\\u{202e}\\u{e0041}\\u001b[2J" in shown.text


def test_a_folder_without_a_configuration_needs_no_trust_and_a_wrong_one_is_named(rig: Rig) -> None:
    for arguments, said in (((), "needs no trust"), (("none",), "no such folder"), (("--list", "."), "leave out")):
        ran = rig.pod("trust", *arguments)
        assert ran.code == 2 and said in ran.err
