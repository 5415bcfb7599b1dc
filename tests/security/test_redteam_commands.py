"""Command lines that get around a rule: what a rule finds, what it does not, and what the sandbox holds then."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.security.redteam_rig import World
from worker.builtin.sandbox import Sandbox
from worker.testing.provider_server import Call

_WHY = Sandbox("read-only", Path("/")).trouble()
needs_sandbox = pytest.mark.skipif(_WHY is not None, reason=f"no sandbox here: {_WHY}")

FOUND = (
    "touch {m}", "  touch   {m}", "touch\t{m}", "cd . && touch {m}", "true; touch {m}", "true | touch {m}", "false || touch {m}", "true & touch {m}",
    "true\ntouch {m}", "echo $(touch {m})", "echo `touch {m}`", 'echo "$(touch {m})"', "(touch {m})", "{{ touch {m}; }}", "A=1 touch {m}",
    "env touch {m}", "env A=1 B=2 touch {m}", "command touch {m}", "exec touch {m}", "nohup touch {m}", "time touch {m}", "if touch {m}; then :; fi",
    "until touch {m}; do break; done", "t'o'uch {m}", 'to"u"ch {m}', "to\\uch {m}", "\\touch {m}", '"touch" {m}', "'touch' '{m}'",
    "f() {{ touch {m}; }}; f",
    "cat <(touch {m})", "! touch {m}", "echo 'x;' ; touch {m}", "for i in 1; do touch {m}; done", "A='x y' ; touch {m}",
)  # fmt: skip
"""A rule against `touch mark*` finds these."""

NOT_FOUND = (
    "/usr/bin/touch {m}", "touch ./{m}", "touch -- {m}", "cd src && touch ../{m}", "bash -c 'touch {m}'", "eval touch {m}", "T=touch; $T {m}",
    "xargs touch <<< {m}", "nice touch {m}", "timeout 9 touch {m}", "printf 'touch {m}' | sh", "find . -maxdepth 0 -exec touch {m} \\;",
    "git -c alias.x='!touch {m}' x", "{python} -c 'open(\"{m}\", \"w\")'", ": > {m}", "cp own.txt {m}", "tee {m} < own.txt",
    "$(echo touch) {m}", "ln -s own.txt {m}", "shopt -s expand_aliases\nalias t=touch\nt {m}",
)  # fmt: skip
"""It does not find these: a shell has endless ways. Only the sandbox holds them."""

CARRIED = (
    "{a} ; touch {m}", "{a} && touch {m}", "false {a} || touch {m}", "{a} | touch {m}", "{a} & touch {m}", "{a}\ntouch {m}", "{a} $(touch {m})",
    "{a} `touch {m}`",
    '{a} "$(touch {m})"', "{a} > {m}", "{a} >> {m}", "{a} | tee {m}", "{a} <(touch {m})", "({a}; touch {m})", "{a} \\\n; touch {m}", "{a} $(: > {m})",
    "{a} # x\ntouch {m}", "{a} ${{x:-$(touch {m})}}", "{a} <<E\n$(touch {m})\nE", "A=$(touch {m}) {a}", "PATH=. {a}; touch {m}",
    "{a};touch {m}", "{a} 'x' \"`touch {m}`\"",
)  # fmt: skip
"""Behind a command that a rule allows."""

OF_THE_PROGRAM = (
    "git -c alias.x='!touch {m}' x", "git -c alias.y='!f() {{ touch {m}; }}; f' y",
    "git init -q --template= s-{m} && git -C s-{m} -c core.fsmonitor='touch ../{m}' status",
)  # fmt: skip
"""What a program does itself that a rule allows by its name (`git *`): nothing but the sandbox holds it."""


def lines_of(table: Sequence[str]) -> dict[str, str]:
    """Each command with a file of its own to make."""
    words = {"python": sys.executable, "a": "echo ok"}
    return {f"mark-{n}": text.format(m=f"mark-{n}", **words) for n, text in enumerate(table)}


async def made(world: World, table: Sequence[str], name: str, rules: list[dict[str, str]], **more: Any) -> set[str]:
    """The commands of a table that made their file, all in one run."""
    commands = lines_of(table)
    tables = {"permissions": {"profile": "unattended", "rules": rules}, **more}
    struck = await world.strike(
        *[Call("shell", {"command": line}) for line in commands.values()], tables=tables, name=name
    )
    assert struck.result.status == "finished" and len(struck.results) == len(table)
    done = {line for mark, line in commands.items() if (world.work / mark).is_symlink() or (world.work / mark).exists()}
    refused = {line for line, item in zip(commands.values(), struck.results, strict=True) if item.status == "denied"}
    assert not done & refused and len(refused) == struck.result.denials
    if "sandbox" not in more:
        assert done | refused == {*commands.values()}, "each is refused, or is a real attack"
    for mark in commands:
        (world.work / mark).unlink(missing_ok=True)
    return done


ALLOW = {"tool": "shell", "action": "allow"}
DENY = {"tool": "shell", "match": "touch mark*", "action": "deny"}


@pytest.mark.anyio
async def test_a_rule_finds_a_command_in_these_writings(world: World) -> None:
    assert await made(world, FOUND, "ruled", [ALLOW, DENY]) == set()
    assert await made(world, FOUND, "control", [ALLOW]) == {*lines_of(FOUND).values()}


@pytest.mark.anyio
async def test_a_rule_is_no_wall_and_these_get_past_it(world: World) -> None:
    """As docs/security.md says: whoever finds one of them refused may move it to the table above."""
    assert await made(world, NOT_FOUND, "ruled", [ALLOW, DENY]) == {*lines_of(NOT_FOUND).values()}


@needs_sandbox
@pytest.mark.anyio
async def test_what_gets_past_a_rule_the_sandbox_holds(world: World) -> None:
    sandbox = {"mode": "read-only"}
    table = (*FOUND, *NOT_FOUND, *CARRIED, *OF_THE_PROGRAM)
    before = world.seen()
    assert await made(world, table, "held", [ALLOW], sandbox=sandbox) == set()
    assert world.seen() == before


@pytest.mark.anyio
async def test_an_allowed_command_carries_no_other(world: World) -> None:
    allow = {"tool": "shell", "match": "echo ok*", "action": "allow"}
    assert await made(world, CARRIED, "ruled", [allow]) == set()
    assert await made(world, CARRIED, "control", [ALLOW]) == {*lines_of(CARRIED).values()}
    plain = await world.strike(
        Call("shell", {"command": "echo ok then"}),
        tables={"permissions": {"profile": "unattended", "rules": [allow]}},
        name="twin",
    )
    assert plain.results[0].status == "ok" and plain.result.denials == 0


@pytest.mark.anyio
async def test_a_rule_that_allows_a_program_allows_all_that_it_can_do(world: World) -> None:
    """As docs/security.md says: allow programs that run no others."""
    allow = {"tool": "shell", "match": "git *", "action": "allow"}
    assert await made(world, OF_THE_PROGRAM, "ruled", [allow]) == {*lines_of(OF_THE_PROGRAM).values()}
