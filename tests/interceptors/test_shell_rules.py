"""Command lines taken apart for rules."""

from __future__ import annotations

import time

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


MEGABYTE = 1_000_000
LONG = {
    "one word": "echo " + "a" * MEGABYTE,
    "equals signs": "=" * MEGABYTE,
    "assignments in one word": "a=" * (MEGABYTE // 2),
    "assignments": "a= " * (MEGABYTE // 3),
    "wrappers": "env " * (MEGABYTE // 4),
    "blanks": "a" + " " * MEGABYTE + "b",
    "tabs": "env\t \t" * (MEGABYTE // 6),
    "single quotes": "'" * MEGABYTE,
    "double quotes": '"' * MEGABYTE,
    "backslashes": "\\" * MEGABYTE,
    "escapes": "\\a" * (MEGABYTE // 2),
    "escapes in quotes": '"' + '\\"' * (MEGABYTE // 2),
    "dollars in quotes": '"$' * (MEGABYTE // 2),
    "nested substitutions": "$(" * (MEGABYTE // 2),
    "substitutions": "$(a)" * (MEGABYTE // 4),
    "operators": ";" * MEGABYTE,
    "many commands": "".join(f"c{n};" for n in range(MEGABYTE // 8)),
    "a here document": "python - <<'E'\n" + 'x = f("a b", {1: 2})\n' * (MEGABYTE // 21),
}


def takes_less(line: str, seconds: float) -> bool:
    """Whether one of three tries is fast enough: the machine has other work."""
    for _ in range(3):
        started = time.process_time()
        readings(line)
        if time.process_time() - started < seconds:
            return True
    return False


@pytest.mark.parametrize("what", ["one word", "equals signs", "blanks", "assignments", "nested substitutions"])
def test_a_megabyte_on_one_line_is_read_in_no_time(what: str) -> None:
    assert takes_less(LONG[what], 0.2)


@pytest.mark.parametrize("what", LONG)
def test_no_line_takes_more_than_its_length_in_time(what: str) -> None:
    """Quadratic work on a megabyte takes minutes; this is a second at most, also on a busy machine."""
    assert takes_less(LONG[what], 1.5)


@pytest.mark.parametrize(
    "line", ["echo see sudo git push", "echo A=1 b", "grep env file", "echo then go", "cat 'env x'"]
)
def test_what_looks_like_a_wrapper_in_the_middle_of_a_command_stays(line: str) -> None:
    """The parts of a line are read as they are, whatever words they hold."""
    unquoted = line.replace("'", "")
    assert readings(line) == {line, unquoted}


@pytest.mark.parametrize(
    "line", ["if git push; then x; fi", "while git push; do x; done", "! git push", "env A=1 git push"]
)
def test_a_command_behind_a_keyword_is_found(line: str) -> None:
    assert "git push" in readings(line)
