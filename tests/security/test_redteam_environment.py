"""What processes for the agent see of the runtime's environment: nothing that is a secret, in whatever way they look."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli.cli_rig import Rig as Shell

from tests.security.redteam_rig import KEY
from worker.builtin.sandbox import Sandbox
from worker.builtin.shell_environment import shell_environment
from worker.testing.provider_server import Answer, Call, ProviderServer

_WHY = Sandbox("read-only", Path("/")).trouble()
needs_sandbox = pytest.mark.skipif(_WHY is not None, reason=f"no sandbox here: {_WHY}")

DUMPS = (
    "env > {m}", "printenv > {m}", "export -p > {m}", "set > {m}", "declare -p > {m}", "cat /proc/self/environ > {m}", "cat /proc/$$/environ > {m}",
    "bash -c env > {m}", "bash -lc env > {m}", "setsid env > {m}", "( ( env ) ) > {m}", "xargs -n1 env < /dev/null > {m}", "nohup env > {m}",
    "{python} -c 'import os; print(dict(os.environ))' > {m}", "env | cat > {m}", "find /proc/self/environ -exec cat {{}} \\; > {m}",
    "cat /proc/$PPID/environ /proc/self/environ > {m}", "for p in $(pgrep -P $PPID) $$; do cat /proc/$p/environ; done > {m}",
)  # fmt: skip
MARK = "a-mark-that-may-pass"
OWN = {
    "TEST_KEY": KEY, "MY_TOKEN": "token-of-mine-123456", "DATABASE_PASSWORD": "password-of-mine-1",
    "AWS_SECRET_ACCESS_KEY": "aws/secret+of=mine12345", "LC_API_KEY": "key-with-a-name-that-passes",
    "UNNAMED": "a-value-nobody-would-guess", "LC_MARK": MARK,
}  # fmt: skip
"""The runtime's environment. What is not listed does not pass, whatever it is called; the mark may."""

LOGINS = {
    "HTTPS_PROXY": ("http://user:password-of-a-proxy@127.0.0.1:9", "http://127.0.0.1:9"),
    "all_proxy": ("socks5h://token-of-a-proxy@127.0.0.1:9", "socks5h://127.0.0.1:9"),
    "NO_PROXY": ("localhost,127.0.0.1,docs.test", "localhost,127.0.0.1,docs.test"),
    "GOPATH": ("/opt/go@1.2:/home/x@y", "/opt/go@1.2:/home/x@y"),
}
"""Variables that pass, and as what: an address without its login."""


def test_an_address_that_passes_to_commands_loses_its_login_unless_the_user_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, (value, _) in LOGINS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LC_API_KEY", OWN["LC_API_KEY"])
    passed = shell_environment()
    assert {name: passed[name] for name in LOGINS} == {name: after for name, (_, after) in LOGINS.items()}
    assert "LC_API_KEY" not in passed
    named = shell_environment(["HTTPS_PROXY", "LC_API_KEY"])
    assert (named["HTTPS_PROXY"], named["LC_API_KEY"]) == (LOGINS["HTTPS_PROXY"][0], OWN["LC_API_KEY"])


SEEKER = "for p in /proc/[0-9]*; do if grep -qa UNNAMED $p/environ && ! grep -qa POD_CALL_ID $p/environ; then cat $p/environ; fi; done 2>&- > found"
"""Looks for a process that holds what commands are not given: the runtime, which belongs to the same user."""


def ran(shell: Shell, calls: Sequence[Call], more: str = "") -> None:
    """One run as a process of its own, whose environment holds secrets."""
    with ProviderServer([*(Answer(calls=[call]) for call in calls), Answer("done")]) as server:
        manifest = shell.manifest(server, tools=["shell", "jobs", "search_text"], more=more)
        rules = '[permissions]\nrules = [{tool = "*", action = "allow"}]'
        manifest.write_text(manifest.read_text().replace("[permissions]", rules))
        done = shell.pod("run", manifest, "go", "--name", "a", "-p", **OWN)
    assert done.code == 0, done.err


def secrets_of(path: Path) -> list[str]:
    data = path.read_bytes()
    return [name for name, value in OWN.items() if name != "LC_MARK" and value.encode() in data]


SCOPE = '[scope]\nwrite = ["."]\n'


@pytest.mark.parametrize("sandbox", ["off", pytest.param("workspace", marks=needs_sandbox)])
def test_no_command_is_given_a_secret_of_the_runtime(sandbox: str, shell: Shell) -> None:
    lines = {f"dump-{n}": text.format(m=f"dump-{n}", python=sys.executable) for n, text in enumerate(DUMPS)}
    python = f'[scope]\nread = [".", "{sys.prefix}", "{sys.base_prefix}"]\nwrite = ["."]\n'
    ran(
        shell, [Call("shell", {"command": line}) for line in lines.values()], f'{python}[sandbox]\nmode = "{sandbox}"\n'
    )
    seen = {line: (shell.work / mark) for mark, line in lines.items()}
    assert not {line: found for line, path in seen.items() if (found := secrets_of(path))}
    assert not [line for line, path in seen.items() if MARK.encode() not in path.read_bytes()], "each shows what passes"


def test_no_background_job_is_given_a_secret_of_the_runtime(shell: Shell) -> None:
    wait = Call("jobs", {"action": "read", "id": "p1", "wait": 10})
    ran(shell, [Call("shell", {"command": "(env; setsid env) > dump", "background": True}), wait], SCOPE)
    assert not secrets_of(shell.work / "dump") and MARK in (shell.work / "dump").read_text()


def test_no_hook_is_given_a_secret_of_the_runtime(shell: Shell) -> None:
    """Hooks are the user's own programs, and get no more than commands do."""
    hook = shell.root / "hook.sh"
    hook.write_text('#!/bin/sh\nenv > "$HOME/dump"\ncat > "$HOME/told"\n')
    hook.chmod(0o700)
    hooks = f'{SCOPE}[[hooks]]\nevent = "PreToolUse"\ncommand = ["{hook}"]\n'
    ran(shell, [Call("shell", {"command": "true"})], hooks)
    assert not secrets_of(shell.root / "dump") and MARK in (shell.root / "dump").read_text()
    assert '"true"' in (shell.root / "told").read_text() and not secrets_of(shell.root / "told")


def test_without_a_sandbox_a_command_reads_the_runtimes_own_environment(shell: Shell) -> None:
    """Not defended against, as docs/security.md says: both are processes of one user."""
    ran(shell, [Call("shell", {"command": SEEKER})], SCOPE)
    assert "TEST_KEY" in secrets_of(shell.work / "found")


@needs_sandbox
def test_in_a_sandbox_no_other_process_is_there_to_be_read(shell: Shell) -> None:
    ran(
        shell,
        [Call("shell", {"command": f"{SEEKER}; ls -d /proc/[0-9]* > others"})],
        f'{SCOPE}[sandbox]\nmode = "workspace"\n',
    )
    assert (shell.work / "found").read_bytes() == b"" and len((shell.work / "others").read_text().split()) < 10
