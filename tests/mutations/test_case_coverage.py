"""Each case of the sections that this runtime answers for has a test that quotes its number."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache

import pytest

from tests.mutations.run_mutations import HERE, ROOT

SECTIONS = {
    "LOOP": (1, 6),
    "COVF": (7, 12),
    "PAIR": (13, 20),
    "LOST": (21, 29),
    "SUMM": (30, 38),
    "INJ": (39, 44),
    "TOK": (45, 53),
    "WIN": (54, 59),
    "RETRY": (60, 64),
    "LOG": (65, 73),
    "RESUME": (74, 80),
    "PROC": (84, 88),
    "SHELL": (89, 95),
    "FILE": (96, 102),
    "STREAM": (106, 109),
    "ARGS": (110, 117),
    "PERM": (81, 83),
    "RATE": (103, 105),
    "DOOM": (118, 120),
    "HEAD": (121, 130),
    "MCP": (131, 137),
    "CONF": (138, 142),
    "TIME": (143, 144),
    "UNI": (145, 147),
    "MEM": (148, 148),
    "UX": (149, 150),
    "SVC": (151, 157),
    "EMBED": (164, 165),
    "COST": (158, 160),
    "CACHE": (161, 163),
}
"""The first and the last case of each section."""

TABLE: dict[str, dict[str, list[str]]] = tomllib.loads((HERE / "cases.toml").read_text())
NAMED = [(case, test) for section in TABLE.values() for case, tests in section.items() for test in tests]


@cache
def said(path: str) -> dict[str, str]:
    """What each test of a file says of itself: its name and its docstring."""
    tree = ast.parse((ROOT / path).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {f.name: f"{f.name} {ast.get_docstring(f) or ''}" for f in functions if f.name.startswith("test_")}


def test_every_case_of_every_section_stands_in_the_table() -> None:
    expected = {name: [f"B{n:03d}" for n in range(first, last + 1)] for name, (first, last) in SECTIONS.items()}
    assert {name: list(section) for name, section in TABLE.items()} == expected
    assert all(tests for section in TABLE.values() for tests in section.values())


@pytest.mark.parametrize("section", TABLE)
def test_each_test_that_a_case_names_exists_and_quotes_its_number(section: str) -> None:
    wrong: list[str] = []
    for case, tests in TABLE[section].items():
        for test in tests:
            path, _, name = test.partition("::")
            text = said(path).get(name) if (ROOT / path).is_file() else None
            if text is None:
                wrong.append(f"{case}: there is no {test}")
            elif not re.search(rf"{case}(?!\d)", text, re.IGNORECASE):
                wrong.append(f"{case}: {test} does not quote it")
        if len(tests) != len(set(tests)):
            wrong.append(f"{case}: a test stands there twice")
    assert not wrong, "\n".join(wrong)


def test_a_case_is_never_covered_by_soak_runs_alone() -> None:
    """What is left out of the suite covers nothing."""
    assert NAMED and not [test for _, test in NAMED if not test.startswith("tests/") or "/soak/" in test]
