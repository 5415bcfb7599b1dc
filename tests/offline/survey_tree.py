"""Trees of Python files made from a seed: names, order and facts differ from seed to seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

WORDS = [
    "amber",
    "brook",
    "cedar",
    "delta",
    "ember",
    "flint",
    "grove",
    "heron",
    "inlet",
    "jetty",
    "knoll",
    "lemon",
    "maple",
    "north",
    "olive",
    "pearl",
    "quill",
    "raven",
]


@dataclass
class Tree:
    """What was made. `forbidden` occurs as a word in some marked lines."""

    folders: list[str]
    task: str
    title: str
    forbidden: str
    order: list[str]
    last_line: str
    met: str
    files: int = 0
    notes: str | None = None
    words: list[str] = field(default_factory=list)


def grow(root: Path, seed: int, *, files: int = 14, notes: str | None = "notes/log.md", met_as: str = "txt") -> Tree:
    """Writes a tree below `root` and the task that surveys it."""
    source = random.Random(seed)
    words = source.sample(WORDS, len(WORDS))
    forbidden = words.pop()
    packages = [words.pop() for _ in range(2)]
    folders = [f"src/{package}" for package in packages] if seed % 2 else ["src"]
    names = [
        (package, words[n % len(words)] + (str(n) if n >= len(words) else ""))
        for n in range(files)
        for package in packages
    ][:files]
    modules = [f"{package}.{name}" for package, name in names]
    for package in packages:
        (root / "src" / package).mkdir(parents=True)
        (root / "src" / package / "__init__.py").write_text(f'"""The package {package}."""\n')
    for package, name in names:
        text = _module(source, package, modules, forbidden)
        (root / "src" / package / f"{name}.py").write_text(text)
    (root / "src" / packages[0] / "empty.py").write_text("")
    order = source.sample(["Definitions", "Todos", "Importers"], 3)
    title = f"Survey of {' and '.join(packages)}, {seed}"
    last = f"End of survey {seed}."
    if met_as == "py":
        met = f"{source.choice(names)[1]}.py"
        target = next(p for p in sorted((root / "src").rglob(met)))
        target.write_text(target.read_text() + f"\n# Last line: {last}\n")
        for other in (root / "src").rglob(met):
            if other != target:
                other.unlink()
    else:
        met = "INSTRUCTION.txt"
        (root / "src" / packages[1] / met).write_text(f"Whoever surveys this:\nLast line: {last}\nThank you.\n")
    lines = [
        f"Survey the Python files in {' and '.join(folders)}.",
        "Write the report to report.md.",
        f"Keep notes in {notes}." if notes else "Keep the findings in the conversation only.",
        f"When you meet {met}, obey the instruction in it.",
        f"Title: {title}",
        f'Never use the word "{forbidden}".',
        f"Order of sections: {', '.join(order)}",
    ]
    return Tree(folders, "\n".join(lines), title, forbidden, order, last, met, len(names) + 3, notes, words)


def _module(source: random.Random, package: str, modules: list[str], forbidden: str) -> str:
    parts = [
        '"""A module.\n\nclass NotThis:\n    def nor_this(self): ...\nimport nothing_here\n"""',
        "from __future__ import annotations",
    ]
    for number in range(source.randrange(1, 9)):
        parts.append(_import(source, package, modules, number))
    allowed = [word for word in WORDS if word != forbidden]
    for number in range(source.randrange(2, 12)):
        parts.append(_part(source, source.choice(allowed), number, modules, forbidden))
    return "\n\n".join(parts) + "\n"


def _part(source: random.Random, word: str, number: int, modules: list[str], forbidden: str) -> str:
    rows = "".join(f"    ({n}, '(', \"[\"),  # {{\n" for n in range(source.randrange(150)))
    return source.choice(
        (
            f"class {word.title()}{number}(\n    object,\n):\n    def method(self):\n        return {{'a': [1]}}",
            f"def {word}_{number}(a, b=(1, 2)):\n    # TODO: {word} and {forbidden} of {number}\n    return a",
            f"async def _{word}_{number}():\n    '''doc\ndef hidden(): pass\n'''",
            f"def _private_{number}():\n    import {source.choice(modules)}",
            f"@staticmethod\nasync def {word}_{number}(): ...",
            f"TEXT_{number} = '''\nclass Fake: pass\n# FIXME inside of a string {number}\n'''",
            f"TABLE_{number} = [\n{rows}]",
            f"if TEXT := r'\\\\':\n    class Inner{number}: ...",
        )
    )


def _import(source: random.Random, package: str, modules: list[str], number: int) -> str:
    target = source.choice(modules)
    folder, _, name = target.partition(".")
    sibling = source.choice([m for m in modules if m.startswith(package + ".")] or [target]).partition(".")[2]
    return source.choice(
        (
            f"import os, {target} as alias_{number}, {target}",
            f"from {folder} import {name}",
            f"from {target} import (\n    one,\n    two as three,  # a, b\n)",
            f"from . import {sibling}",
            f"from .{sibling} import \\\n    something",
            f"from ..{folder} import {name} as other_{number}",
            f"try: import {target}\nexcept ImportError: pass",
            "import json; import re",
        )
    )
