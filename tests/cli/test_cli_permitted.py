"""What `pod show` and `pod log` tell of what an agent may do and what was denied to it."""

from __future__ import annotations

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

from worker.testing.provider_server import Answer, Call, ProviderServer

RULES = """[scope]
write = ["."]
[[permissions.rules]]
tool = "shell"
match = "git push*"
action = "deny"
[[hooks]]
event = "Stop"
command = ["true"]
"""


def push(number: int) -> Answer:
    return Answer(calls=[Call("shell", {"command": f"git push {number}"})])


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(rig, capsys, monkeypatch)


def test_show_counts_the_denials_of_the_session_and_gives_the_newest_with_why(shell: Shell) -> None:
    with ProviderServer([*map(push, range(6)), Answer("first"), push(6), Answer("second")]) as server:
        manifest = shell.rig.manifest(server, tools=["shell"], more=RULES)
        shell("run", manifest, "x", "--name", "a", "-q")
        shell("resume", "a", "again", "-q")
    shown = shell("show", "a").splitlines()
    at = next(n for n, line in enumerate(shown) if line.startswith("denied:"))
    assert shown[at].split(maxsplit=1)[1] == "7 calls; the newest:"
    rule = '{ tool = "shell", match = "git push*", action = "deny" }'
    assert shown[at + 1 : at + 6] == [f"  shell: git push {n}; the rule {rule}" for n in (6, 5, 4, 3, 2)]
    assert "pod inspect a" in shown[at + 6]
    facts = shell.json("show", "a")
    assert facts["totals"]["denied"] == 7 and [each["tool"] for each in facts["denials"]] == ["shell"] * 5


def test_show_tells_what_a_pod_may_do_as_it_goes_on(shell: Shell) -> None:
    with ProviderServer([Answer("done")] * 2) as server:
        manifest = shell.rig.manifest(server, tools=["shell"], more=RULES)
        shell("run", manifest, "x", "--name", "a", "-q")
        shown = shell("show", "a")
        assert "unattended, 1 rule, 1 hook" in shown and "reads .; writes ." in shown and "denied" not in shown
        assert "off: a command that is allowed runs with all that you may do" in shown
        text = manifest.read_text()
        manifest.write_text(text.replace("unattended", "safe").replace('write = ["."]', 'read = [".", "/usr"]'))
        shell("resume", "a", "again", "--manifest", manifest, "-q")
    shown = shell("show", "a")
    assert "safe, 1 rule" in shown and "reads ., /usr; writes nothing" in shown
    settings = shell.json("show", "a")["settings"]
    assert settings["permissions"]["profile"] == "safe" and settings["sandbox"]["mode"] == "off"
    assert settings["permissions"]["rules"] == [{"tool": "shell", "match": "git push*", "action": "deny"}]


def test_an_entry_about_a_call_shows_the_call_and_what_the_model_was_told(shell: Shell) -> None:
    with ProviderServer([push(1), Answer("done")]) as server:
        shell("run", shell.rig.manifest(server, tools=["shell"], more=RULES), "x", "--name", "a", "-q")
    entry = next(line.split()[0] for line in shell("log", "a").splitlines() if "denied:" in line)
    shown = shell("log", "a", "--item", entry)
    assert '{"command": "git push 1"}' in shown and "denied" in shown and "shell was not run: the rule" in shown


def test_a_limit_on_cost_that_can_not_be_held_is_named_with_the_place_that_sets_it(shell: Shell) -> None:
    manifest = shell.rig.manifest(None, tools=["shell"])
    (shell.rig.work / ".pod").mkdir()
    (shell.rig.work / ".pod" / "config.toml").write_text("[limits]\nmax_cost_usd = 1\n")
    for command in (("run", manifest, "x"), ("manifest", "check", manifest)):
        shell(*command, code=2)
        assert "limits.max_cost_usd = 1 (.pod/config.toml:2) can't be held" in shell.err
    shell("run", manifest, "x", "--max-cost", "2", code=2)
    assert "limits.max_cost_usd = 2 (--max-cost) can't be held" in shell.err
