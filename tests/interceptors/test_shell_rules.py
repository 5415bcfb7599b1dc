"""Command lines taken apart for rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interceptors.commands import readings, split


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("git status", ("git status",)),
        ("  git   status ", ("git status",)),
        ("cd a && git push origin", ("cd a", "git push origin")),
        ("a; b | c || d & e\nf", ("a", "b", "c", "d", "e", "f")),
        ("git commit -m 'a; b && c'", ("git commit -m 'a; b && c'",)),
        ('echo "a | b"', ('echo "a | b"',)),
        (r"echo a\;b", (r"echo a\;b",)),
        ("", ()),
    ],
)
def test_a_line_is_taken_apart_at_its_operators(line: str, parts: tuple[str, ...]) -> None:
    assert split(line) == (parts, True)


@pytest.mark.parametrize(
    "line",
    [
        "echo $(rm x)",
        "echo `rm x`",
        'echo "$(rm x)"',
        "cat < f",
        "echo x > f",
        "(rm x)",
        "{ rm x; }",
        "echo 'open",
        "a \\\nb",
        "$X",
    ],
)
def test_what_can_hide_a_command_is_not_plain(line: str) -> None:
    assert not split(line).plain


@pytest.mark.parametrize(
    "line",
    [
        "git push",
        "cd x && git push",
        "true; git  push",
        "FOO=1 git push",
        "sudo git push",
        "echo $(git push)",
        "echo `git push`",
        "(git push)",
        "if true; then git push; fi",
        "g'i't push",
        "echo 'a' \\\n; git push",
    ],
)
def test_a_forbidden_command_is_found_in_many_writings(line: str) -> None:
    assert "git push" in readings(line)


@given(st.text(alphabet="ab '\"\\$`;|&\n(){}<>=", max_size=40))
def test_any_line_can_be_taken_apart(line: str) -> None:
    commands = split(line)
    assert all(part == part.strip() and part for part in commands.parts)
    assert not line.strip() or readings(line) or not commands.parts
