"""Help at 80 columns, and the page that is made of it."""

from __future__ import annotations

import shlex

import pytest

from pod.cli.commands import COMMANDS
from pod.cli.flags import usages
from pod.cli.main import EXIT_CODES, main
from pod.cli.parser import ACTIONS
from pod.docs import cli_markdown
from pod.result import EXIT, EXIT_BY_KIND

NAMES = [[], *(list(usage.words) for usage in usages())]


@pytest.mark.parametrize("words", NAMES, ids=lambda words: " ".join(words) or "pod")
def test_help_fits_into_80_columns_and_ends_with_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words, "--help"]) == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert lines[-2] == "example:"
    assert lines[-1].startswith("  " + " ".join(["pod", *words]))
    assert lines[0].startswith("usage: " + " ".join(["pod", *words]))


@pytest.mark.parametrize("words", [["run"], ["manifest", "new"]], ids=" ".join)
def test_help_and_a_command_is_the_help_of_that_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    wanted = capsys.readouterr().out
    assert main(["help", *words]) == 0
    assert capsys.readouterr().out == wanted
    assert main(["help", "nonsense"]) == 2


def test_every_argument_says_what_it_is_for() -> None:
    for usage in usages():
        for argument in (*usage.positionals, *usage.options):
            assert argument.help, (usage.name, argument)
            assert not argument.help.endswith("."), (usage.name, argument)


def test_the_page_has_every_command_every_flag_and_every_example() -> None:
    page = cli_markdown()
    for usage in usages():
        _, section = page.split(f"## `pod {usage.name}`\n", 1)
        section = section.split("\n## ", 1)[0]
        assert f"```console\n{usage.example}\n```" in section
        for argument in (*usage.positionals, *usage.options):
            for flag in argument.flags or (argument.value,):
                assert flag in section or flag in {"-h", "--help"}, (usage.name, flag)
    assert page.count("\n## `pod ") == len(COMMANDS) + len(ACTIONS)


def test_the_examples_of_actions_parse() -> None:
    for usage in usages():
        if len(usage.words) == 2:
            words = shlex.split(usage.example.partition(" > ")[0])
            assert words[:3] == ["pod", *usage.words]
            assert COMMANDS[usage.words[0]].parser().parse_args(words[2:]).action == usage.words[1]


def test_the_help_tells_every_exit_code() -> None:
    told = {int(code) for codes, _ in EXIT_CODES for code in codes.split(", ")}
    assert {*EXIT.values(), *EXIT_BY_KIND.values(), 2, 143} == told
