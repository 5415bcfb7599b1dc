"""Promises of the scanner: pieces of a file say what the whole file says, and both say what `ast` says."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offline.survey_oracle import definitions, todos

from worker.offline.python_scan import scan

STDLIB = Path(os.__file__).parent
FOLDERS = (
    "asyncio",
    "email",
    "json",
    "http",
    "xml",
    "unittest",
    "importlib",
    "logging",
    "multiprocessing",
    "concurrent",
)


def in_pieces(
    text: str, sizes: list[int]
) -> tuple[list[str], list[tuple[str, tuple[str, ...]]], list[tuple[int, str]], str]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    names: list[str] = []
    imports: list[tuple[str, tuple[str, ...]]] = []
    marked: list[tuple[int, str]] = []
    carry, at, turn = "", 0, 0
    while at < len(lines):
        size = sizes[turn % len(sizes)]
        piece = scan(lines[at : at + size], at + 1, carry)
        carry = piece.carry
        names += piece.definitions
        imports += [(item.module, item.names) for statement in piece.imports for item in statement]
        marked += piece.todos
        at += size
        turn += 1
    return names, imports, marked, carry


def by_ast(text: str) -> list[tuple[str, tuple[str, ...]]]:
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(("." * node.level + (node.module or ""), tuple(alias.name for alias in node.names)))
    return sorted(found)


@pytest.mark.parametrize(
    ("folder", "size"),
    [*((folder, 200) for folder in FOLDERS), ("email", 1_000_000), ("email", 7), ("asyncio", 1), ("json", 1)],
)
def test_the_standard_library_is_scanned_as_ast_reads_it(folder: str, size: int) -> None:
    checked = 0
    for file in sorted((STDLIB / folder).rglob("*.py")):
        text = file.read_bytes().decode("utf-8-sig")
        names, imports, marked, carry = in_pieces(text, [size])
        assert names == definitions(ast.parse(text)), file
        assert sorted(imports) == by_ast(text), file
        assert marked == todos(text), file
        assert carry == "", file
        checked += 1
    assert checked > 2


TRICKY = [
    "from a import (\n    b,\n    c as d,  # )\n)\n",
    "from . import \\\n    x\n",
    "from .import y\n",
    "from..a.b import(z)\n",
    "import a.b as c, d; import e\n",
    "try: import f\nexcept ImportError: from g import h\n",
    "if 1: pass\nelse: import i\n",
    '"""\nimport no\nclass No:\n"""\n',
    "'''a\\''' ' \" \n'''\n",
    'x = r\'\\\\\' + "\\""\n',
    "y = 'a\\\nb'\nclass K: pass\n",
    "z = [\n'''(\n''', (\n'[')]\ndef m(\n  a=')'\n): pass\n",
    "class P(\n  Q,\n): pass\n",
    "async  def r(): pass\n",
    "\x0c\nclass S: pass\n",
    "\x0cclass T: pass\n",
    "def _u(): import v\n",
    "if 1:\n    class W: pass\n",
    "# import no  # TODO one\n",
    "a = {1: 2}[1]  # FIXME: two\n",
    "print(f'{1:>{2}} {{')\n",
    "from e import *\n",
    "lam = lambda: 0; from o import p\n",
    "@property\ndef q(self): return '#'\n",
    "def résumé(): pass\n",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(TRICKY), max_size=12), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_borders_may_fall_anywhere(parts: list[str], sizes: list[int]) -> None:
    text = "".join(parts)
    tree = ast.parse(text)
    names, imports, marked, carry = in_pieces(text, sizes)
    assert names == definitions(tree)
    assert sorted(imports) == by_ast(text)
    assert marked == todos(text)
    assert carry == ""


def test_what_is_open_at_a_border_is_a_short_text() -> None:
    inside = scan(["x = f(1, '''text", "def no(): pass"], 1)
    assert inside.definitions == []
    assert inside.carry == "'''|1|x"
    assert scan(["'''", ")", "def yes(): pass"], 3, inside.carry).definitions == ["yes"]


def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing() -> None:
    piece = scan(["\ufeffimport a\r", "class B:\r", "    pass\r"], 1)
    assert piece.definitions == ["B"]
    assert [item.module for statement in piece.imports for item in statement] == ["a"]
