"""A written report against what is true of the files."""

from __future__ import annotations

import re
from pathlib import Path

from offline.survey_oracle import Truth, survey

EMPTY = {"Definitions": "nothing public", "Todos": "none", "Importers": "nobody"}


def masked(text: str, word: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "[word left out]", text, flags=re.IGNORECASE)


def expected(root: Path, folders: list[str], title: str, order: list[str], last_line: str | None, word: str) -> str:
    """The whole report as it must be."""
    truths = survey(root, folders)
    lines = [f"# {title}", ""]
    for section in order:
        lines += [f"## {section}", "", *(f"- `{path}`: {_said(section, truth)}" for path, truth in truths.items()), ""]
    if last_line is not None:
        lines.append(last_line)
    return "".join(masked(line, word) + "\n" for line in lines)


def _said(section: str, truth: Truth) -> str:
    if section == "Definitions":
        said = ", ".join(truth.definitions)
    elif section == "Todos":
        said = " | ".join(f"{number}: {text[:160]}" for number, text in truth.todos)
    else:
        said = f"`{truth.importer[0]}` ({truth.importer[1]})" if truth.importer else ""
    return said or EMPTY[section]
