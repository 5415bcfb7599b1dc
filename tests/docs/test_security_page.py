"""docs/security.md promises nothing that no test holds, and its table of profiles is what the code decides."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from interceptors.deciding import Profile, decide
from interceptors.facts import CallFacts

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def promises() -> list[str]:
    """The lines of each section that says what holds."""
    sections = re.findall(r"^## What holds[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return [line for section in sections for line in section.splitlines() if line.strip()]


@cache
def names_in(path: str) -> set[str]:
    found = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    return {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_there_are_promises() -> None:
    assert len(promises()) >= 25 and all(line.startswith("- ") for line in promises())


@pytest.mark.parametrize("line", promises(), ids=lambda line: line[2:50])
def test_each_promise_names_a_test_that_is_there(line: str) -> None:
    named = TEST.findall(line)
    assert named and line.count("::") == len(named), "a promise ends with (`tests/...py::test_name`)"
    for path, name in named:
        assert (ROOT / path).is_file() and name in names_in(path), f"{path}::{name}"


def test_the_table_of_profiles_is_what_is_decided() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")
    ]
    effects: tuple[Any, ...] = ("read", "write", "process", "network")
    said = {"allow": "yes", "ask": "asks", "deny": "no"}
    assert [row[0].strip("`") for row in rows] == [*get_args(Profile)]
    for name, *cells, outside in rows:
        profile: Any = name.strip("`")
        decided = [said[decide(CallFacts("t", effect), profile).action] for effect in effects]
        assert [cell.partition(" ")[0] for cell in cells] == decided, name
        assert outside == said[decide(CallFacts("t", "read", outside="out of scope"), profile).action]
    asked = decide(CallFacts("t", "write"), "safe")
    assert asked.scope == "run" and "covers the run" in rows[0][2]
