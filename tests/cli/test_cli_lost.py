"""Logs that are gone, cut or empty: every command that looks says so, and none shows less as if it were all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell
from log.logs import create, reply, say, started

from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.losses import losses
from pod.session import Session
from worker.items import UserItem
from worker.records import Input, Withdrawn


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(rig, capsys, monkeypatch)


def pod(home: Path) -> tuple[PodFolder, list[Path]]:
    """A pod of three segments, and their logs, oldest first."""
    session = create(home)
    logs = [session.writer.path]
    for number in range(3):
        say(session, f"words {number}")
        reply(session, f"answer {number}")
        if number < 2:
            anyio.run(session.switch, started(session))
            logs.append(session.writer.path)
    session.close()
    return session.folder, logs


def gone(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def headless(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


LOSSES = {"gone": gone, "cut": cut, "torn": torn, "without its first entry": headless, "emptied": emptied}


@pytest.mark.parametrize("what", LOSSES)
def test_an_older_log_that_is_not_whole_is_named_by_every_command_that_looks(shell: Shell, what: str) -> None:
    folder, logs = pod(shell.rig.home)
    old = logs[1]
    assert losses(folder) == [] and "lost" not in shell("show", "a") and shell("doctor", "a").startswith("a: fine")
    LOSSES[what](old)
    shell("inspect", "a")
    assert str(old) in shell.err and "not in these figures" in shell.err
    said = shell.json("inspect", "a")["wanting"]
    assert str(old) in said[0]
    page = shell.rig.work / "a.html"
    shell("inspect", "a", "--html", page)
    assert f"Wanting: {old}" in page.read_text()
    shell("log", "a")
    assert str(old) in shell.err
    assert str(old) in shell("show", "a", code=1)
    shown = json.loads(shell("show", "a", "--json", code=1))
    assert str(old) in shown["lost"][0] and shown["totals"]["requests"] == 3, "sums that a segment carries stay right"
    assert f"{old}" in shell("doctor", "a", code=1)
    if what in {"gone", "cut"}:
        assert str(old) in shell("doctor", "a", "--repair", code=1), "what is lost can't be mended"


def test_what_a_clear_or_a_rewind_left_may_go(shell: Shell) -> None:
    folder, logs = pod(shell.rig.home)
    shell("rewind", "a", "--to", "5")
    logs[2].unlink()
    assert losses(folder) == [] and "missing" not in shell("doctor", "a")
    shell("clear", "a")
    emptied(logs[0])
    shell("doctor", "a")
    for path in folder.logs():
        if path.stem != folder.pointer().segment:
            path.unlink()
    assert losses(folder) == [] and "missing" not in shell("doctor", "a")
    assert "lost" not in shell("show", "a")


LOOKS = (
    ("show", "a"),
    ("inspect", "a"),
    ("inspect", "a", "--html", "-"),
    ("context", "a"),
    ("log", "a"),
    ("doctor", "a"),
)


def a_torn_line_alone(path: Path) -> None:
    path.write_bytes(b'{"torn')


@pytest.mark.parametrize("what", [gone, emptied, a_torn_line_alone])
def test_an_active_log_without_an_entry_is_told_alike_by_all_that_look(shell: Shell, what: Any) -> None:
    folder, logs = pod(shell.rig.home)
    what(logs[2])
    for command in LOOKS:
        out = shell(*command, code=1)
        assert str(logs[2]) in out + shell.err, command
        assert "SEGMENT" not in out and "<html" not in out
    assert shell.json("ls")[0]["status"] == "unreadable"
    shell("resume", "a", code=1)
    assert str(logs[2]) in shell.err
    assert folder.exists()


# -- rejected input ---------------------------------------------------------------------------------------------------

REASON = "the newest input is too large: with what every request holds it has 40,000 tokens"


def rejected(home: Path) -> str:
    """A pod whose last run ended because its input was rejected; the input's id."""
    session: Session = create(home)
    say(session, "small words")
    reply(session, "fine")
    item = UserItem(text="huge words")
    session.put(Input(item=item))
    session.put(e.RunStarted(run="r"))
    session.put(e.InputRejected(id=item.id, reason=REASON))
    session.put(Withdrawn(ids=(item.id,)))
    result = {"kind": "over_budget", "message": REASON, "details": {"rejected": [item.id]}}
    session.put(e.RunEndedEntry(run="r", status="failed", result=result))
    session.close()
    return item.id


def test_rejected_input_is_shown_as_rejected_with_its_reason(shell: Shell) -> None:
    label = rejected(shell.rig.home)
    assert f"input rejected, never to be sent: {REASON}" in shell("log", "a")
    lines = [line.split("Z  ")[1] for line in shell("inspect", "a").splitlines() if "Z  " in line]
    assert "input: small words" in lines and "input [rejected]: huge words" in lines
    assert f"input rejected, never to be sent: {REASON}" in lines
    steps = shell.json("inspect", "a")["timeline"]
    inputs = {step["text"]: step.get("rejected") for step in steps if step["type"] == "input.received"}
    assert inputs == {"small words": None, "huge words": REASON}
    [step] = [step for step in steps if step["type"] == "input.rejected"]
    assert (step["id"], step["reason"]) == (label, REASON)
    page = shell("inspect", "a", "--html", "-")
    assert "[rejected] input: huge words" in page and "[rejected] input: small" not in page
    assert f"input rejected, never to be sent: {REASON[:40]}" in page
    row = next(line for line in shell("show", "a").splitlines() if line.startswith("rejected"))
    assert "1 message" in row and REASON in row and label in row
    assert shell.json("show", "a")["rejected"] == [{"id": label, "reason": REASON}]
    assert "huge words" in shell("show", "a", "--item", label)


def test_only_the_last_run_s_rejected_input_stands_in_show(shell: Shell) -> None:
    rejected(shell.rig.home)
    session = Session.open(shell.rig.home, "a")
    session.put(e.RunStarted(run="s"))
    session.close()
    assert shell.json("show", "a")["rejected"] == []
