"""What `pod manifest check` says of manifests that work and are likely not meant so."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

HEAD = 'version = 1\n[model]\nname = "offline:surveyor"\n'


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.delenv("NOT_SET", raising=False)
    return Shell(rig, capsys, monkeypatch)


def warned(shell: Shell, text: str) -> list[str]:
    """The warnings of a manifest, which is fine all the same."""
    Path("m.toml").write_text(HEAD + text)
    assert "fine" in shell("manifest", "check", "m.toml")
    return [line.removeprefix("pod: warning: ") for line in shell.err.splitlines()]


def profile(name: str, tools: str, rules: str = "", more: str = "") -> str:
    return f"""[tools]
enable = [{tools}]
[scope]
write = ["."]
[permissions]
profile = "{name}"
rules = [{rules}]
{more}"""


@pytest.mark.parametrize(
    ("name", "tools", "rules", "vain"),
    [
        ("unattended", '"shell", "write_file"', "", "shell"),
        ("unattended", '"shell"', '{ tool = "shell", match = "make *", action = "ask" }', "shell"),
        ("unattended", '"shell"', '{ tool = "sh*", match = "make *", action = "allow" }', ""),
        ("read-only", '"read_file", "edit_file", "shell"', "", "edit_file, shell"),
        ("read-only", '"shell"', '{ tool = "shell", match = "make *", action = "ask" }', ""),
        ("workspace-write", '"shell"', "", ""),
    ],
)
def test_tools_that_are_denied_in_any_case_are_named(
    name: str, tools: str, rules: str, vain: str, shell: Shell
) -> None:
    found = warned(shell, profile(name, tools, rules))
    assert len(found) == bool(vain)
    if vain:
        assert f"denies each call of {vain}, and no rule allows one" in found[0] and found[0].startswith("m.toml:5:")


SERVER = '[[mcp]]\nname = "docs"\ncommand = ["sh"]\n'


@pytest.mark.parametrize(
    ("rules", "more", "many"),
    [
        ("", "", 1),
        ('{ tool = "docs__search", action = "allow" }', "", 0),
        ('{ tool = "*__*", action = "allow" }', "", 0),
        ("", 'effect = "read"\n', 0),
        ("", 'effects = { "search_*" = "read" }\n', 0),
    ],
)
def test_a_server_whose_tools_are_denied_in_any_case_is_named(rules: str, more: str, many: int, shell: Shell) -> None:
    found = warned(shell, profile("unattended", '"read_file"', rules, SERVER + more))
    assert len(found) == many and all('{ tool = "docs__*", action = "allow" }' in each for each in found)


def test_a_server_whose_program_is_not_there_is_named_with_what_that_means(shell: Shell) -> None:
    text = profile("safe", '"read_file"', "", '[[mcp]]\nname = "a"\ncommand = ["no-such-program"]\nrequired = {}\n')
    assert "the agent goes without its tools" in warned(shell, text.format("false"))[0]
    assert "no-such-program is not in PATH: nothing begins without" in warned(shell, text.format("true"))[0]


def test_a_server_whose_program_the_sandbox_does_not_show_is_named_with_its_folder(
    shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = tmp_path_factory.mktemp("elsewhere") / "server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    more = f'[[mcp]]\nname = "a"\ncommand = ["{program}"]\n[sandbox]\nmode = "{{}}"\n'
    text = profile("safe", '"read_file"', "", more)
    (found,) = warned(shell, text.format("workspace"))
    assert f"{program} is not there in the sandbox" in found and f"name {program.parent} in [scope] read" in found
    assert warned(shell, text.format("off")) == []
    shown = text.format("workspace").replace("[scope]", f'[scope]\nread = [".", "{program.parent}"]')
    assert warned(shell, shown) == []


def test_a_hook_about_a_tool_that_nobody_has_is_named_with_the_one_that_is_meant(shell: Shell) -> None:
    hook = '[[hooks]]\nevent = "PreToolUse"\nmatch = "{}"\ncommand = ["sh"]\n'
    (found,) = warned(shell, profile("safe", '"write_file"', "", hook.format("writefile")))
    assert "m.toml:13: [hooks #1] match: " in found and "did you mean write_file?" in found
    for match in ("write_*", "*", "docs__search", "jobs"):
        assert warned(shell, profile("safe", '"write_file"', "", hook.format(match) + SERVER)) == []


def test_a_hook_for_many_manifests_may_be_about_a_tool_that_this_one_has_not(shell: Shell) -> None:
    user = shell.rig.root / "config" / "pod"
    user.mkdir(parents=True)
    (user / "config.toml").write_text('[[hooks]]\nevent = "PreToolUse"\nmatch = "shell"\ncommand = ["sh"]\n')
    assert warned(shell, profile("safe", '"write_file"')) == []


def test_variables_that_are_handed_on_and_are_not_set_are_named(shell: Shell) -> None:
    more = """[[mcp]]
name = "a"
command = ["sh"]
env = ["NOT_SET"]
[[mcp]]
name = "b"
url = "https://b.example/mcp"
headers_env = { Authorization = "NOT_SET" }
[tools.shell]
env = ["NOT_SET", "HOME"]
"""
    found = warned(shell, profile("safe", '"read_file"', "", more))
    places = ["[mcp #1.env #1]", "[mcp #2.headers_env] Authorization", "[tools.shell.env #1]"]
    assert [next(p for p in places if p in each) for each in found] == places
    assert all("the environment variable NOT_SET is not set" in each for each in found)


@pytest.mark.parametrize("use", ["read", "write"])
def test_a_root_that_holds_the_home_folder_is_named(use: str, shell: Shell) -> None:
    scope = {"read": '["."]', "write": '["."]'}
    for root, says in (("~/", "is your home folder"), ("/", "/ holds your home folder"), ("~/work", "")):
        scope[use] = f'["{root}"]'
        text = f"[scope]\nread = {scope['read']}\nwrite = {scope['write']}\n"
        found = warned(shell, text)
        assert len(found) == bool(says) and all(says in each for each in found)


def test_a_rule_that_allows_every_command_is_doubted_where_nothing_holds_them(shell: Shell) -> None:
    free = '{ tool = "shell", action = "allow" }'
    (found,) = warned(shell, profile("unattended", '"shell"', free))
    assert "runs with all that you may do" in found and '[sandbox] mode = "workspace"' in found
    for rules, more in ((free, '[sandbox]\nmode = "workspace"\n'), (free.replace("}", ', match = "make *" }'), "")):
        assert warned(shell, profile("unattended", '"shell"', rules, more)) == []


def test_hosts_that_no_tool_asks_are_doubted(shell: Shell) -> None:
    hosts = '[tools.fetch_url]\nhosts = ["a.example"]\n'
    (found,) = warned(shell, profile("safe", '"read_file"', "", hosts))
    assert "fetch_url is not enabled" in found
    assert warned(shell, profile("safe", '"fetch_url"', "", hosts)) == []
