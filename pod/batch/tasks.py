"""The tasks of a batch: read from JSON lines, JSON, CSV or a folder, each with the text that its pod is given."""

from __future__ import annotations

import csv
import difflib
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, cast

from pod.errors import UsageProblem
from worker.text import clean, clean_deep, sha256, visible_name

TEXT = "task"
"""The field that holds a task's text, where no template says otherwise."""

FORMS = "JSON lines (.jsonl, .ndjson), a JSON list (.json), a table (.csv, .tsv) or a folder with a file for each task"

MOST_TOLD = 5
"""Mistakes of a file that are told at once; the others are counted."""

LARGEST_FIELD = 64 * 1024 * 1024
"""Bytes of one field of a table."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `index` is its place among all, from 0; `place` says where it stands, for what is told of it."""

    index: int
    id: str
    text: str
    place: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def digest(self) -> str:
        """What tells this task from another one in its place."""
        return sha256(f"{self.id}\0{self.text}")[:16]


@dataclass(frozen=True, slots=True)
class _Row:
    place: str
    fields: Mapping[str, Any]
    id: str | None = None


class Fields(Template):
    """A text with `$field` in it; `${a field}` takes every name, with spaces and letters of other languages too."""

    braceidpattern = r"[^{}$\n]+"


class _Wrong(Exception):
    """A mistake in one row."""


def read_tasks(source: Path, template: str | None = None) -> list[Task]:
    """All tasks of a file or folder, in order. Blocks.

    `template` makes the text of the fields: `$field`, `$id`, `$index`, `$$` for a dollar. Raises `UsageProblem` with each place where
    something is wrong: nothing is run of a batch that does not read as a whole.
    """
    form = None if template is None else _template(template)
    tasks: list[Task] = []
    wrong: list[str] = []
    places: dict[str, str] = {}
    for row in _rows(source):
        try:
            task = _task(row, len(tasks) + len(wrong), form)
            if task.id in places:
                raise _Wrong(f"the id {task.id!r} stands at {places[task.id]} already")
        except _Wrong as error:
            wrong.append(f"{row.place}: {error}")
            continue
        places[task.id] = task.place
        tasks.append(task)
    if wrong:
        more = f"\n  and {len(wrong) - MOST_TOLD} more" if len(wrong) > MOST_TOLD else ""
        raise UsageProblem(
            "; ".join(wrong)
            if len(wrong) == 1
            else "\n  ".join(["these tasks do not read:", *wrong[:MOST_TOLD]]) + more
        )
    if not tasks:
        raise UsageProblem(f"{source}: there are no tasks in it; it may be {FORMS}")
    return tasks


def _task(row: _Row, index: int, form: Fields | None) -> Task:
    given = row.fields.get("id")
    if row.id is None and given is not None and not isinstance(given, str | int):
        raise _Wrong(f'"id" is text or a number, not {_kind(given)}')
    label = row.id or (str(given) if given is not None and str(given).strip() else str(index))
    text = _text(row, index, label, form)
    if not clean(text).strip():
        raise _Wrong("the task is empty: say what is to be done")
    return Task(index, label, text, row.place, row.fields)


def _text(row: _Row, index: int, label: str, form: Fields | None) -> str:
    if form is None:
        text = row.fields.get(TEXT)
        if text is None:
            fields = ", ".join(row.fields) or "none"
            first = _dollar(next(iter(row.fields), "field"))
            raise _Wrong(
                f"there is no field {TEXT!r} (fields: {fields}); say what the text is with --template, such as '{first}'"
            )
        if not isinstance(text, str):
            raise _Wrong(f'"{TEXT}" is text, not {_kind(text)}')
        return text
    known = {"index": index, "id": label, **row.fields}
    for name in form.get_identifiers():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {_dollar(near[0])}?" if near else ""
            raise _Wrong(
                f"the template wants {_dollar(name)}, and the fields here are {', '.join(row.fields) or 'none'}{hint}"
            )
    return form.substitute({name: _shown(value) for name, value in known.items()})


def _dollar(name: str) -> str:
    """How a template names a field."""
    return f"${name}" if Fields(f"${name}").get_identifiers() == [name] else f"${{{name}}}"


def _template(text: str) -> Fields:
    form = Fields(text)
    if not form.is_valid():
        raise UsageProblem(
            "the template has a dollar that begins no field: write $field, ${field} or ${a field with spaces}, and $$ for a dollar itself"
        )
    if not text.strip():
        raise UsageProblem(
            "the template is empty: say what is to be done, with $field where a field of the task belongs"
        )
    return form


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_KINDS = {
    "dict": "an object",
    "list": "a list",
    "bool": "true or false",
    "NoneType": "null",
    "int": "a number",
    "float": "a number",
    "str": "text",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value).__name__, type(value).__name__)


# -- forms ----------------------------------------------------------------------------------------------------


def _rows(source: Path) -> Iterator[_Row]:
    if source.is_dir():
        return _folder(source)
    if not source.exists():
        raise UsageProblem(f"{source}: there is no such file or folder")
    match source.suffix.lower():
        case ".jsonl" | ".ndjson":
            return _json_lines(source)
        case ".json":
            return _json_list(source)
        case ".csv":
            return _table(source, ",")
        case ".tsv":
            return _table(source, "\t")
        case _:
            raise UsageProblem(f"{source}: tasks are {FORMS}")


def _read(path: Path) -> str:
    """A file's text. Raises `UsageProblem` with the line that is no UTF-8."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageProblem(f"{path}: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageProblem(f"{path}:{line}: byte {error.start} is no UTF-8; store the file as UTF-8") from None


def _json_lines(path: Path) -> Iterator[_Row]:
    for number, line in enumerate(_read(path).split("\n"), 1):
        if line.strip():
            place = f"{path}:{number}"
            yield _object(place, _json(place, line))


def _json_list(path: Path) -> Iterator[_Row]:
    value = _json(str(path), _read(path))
    if not isinstance(value, list):
        raise UsageProblem(
            f"{path}: a .json file of tasks is a list, not {_kind(value)}; one object a line belongs in a .jsonl file"
        )
    for number, each in enumerate(cast("list[Any]", value), 1):
        yield _object(f"{path}, item {number}", each)


def _json(place: str, text: str) -> Any:
    try:
        return clean_deep(json.loads(text))
    except ValueError as error:
        where = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) and error.lineno > 1 else ""
        raise UsageProblem(f"{place}{where}: not JSON ({error})") from None
    except RecursionError:
        raise UsageProblem(f"{place}: JSON that is nested too deep") from None


def _object(place: str, value: Any) -> _Row:
    if isinstance(value, str):
        return _Row(place, {TEXT: value})
    if not isinstance(value, dict):
        raise UsageProblem(f"{place}: a task is an object or a text, not {_kind(value)}")
    return _Row(place, cast("dict[str, Any]", value))


def _table(path: Path, delimiter: str) -> Iterator[_Row]:
    csv.field_size_limit(min(LARGEST_FIELD, sys.maxsize))
    rows = csv.reader(io.StringIO(_read(path), newline=""), delimiter=delimiter, strict=True)
    heads: list[str] | None = None
    try:
        for cells in rows:
            place = f"{path}:{rows.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if heads is None:
                heads = _heads(place, cells)
                continue
            if len(cells) != len(heads):
                raise UsageProblem(f"{place}: {len(cells)} cells under {len(heads)} heads ({', '.join(heads)})")
            yield _Row(place, dict(zip(heads, cells, strict=True)))
    except csv.Error as error:
        raise UsageProblem(f"{path}:{rows.line_num}: not a table ({error})") from None


def _heads(place: str, cells: Sequence[str]) -> list[str]:
    heads = [cell.strip() for cell in cells]
    twice = next((head for head in heads if heads.count(head) > 1), None)
    if twice is not None:
        raise UsageProblem(f"{place}: the head {twice!r} stands there twice")
    return heads


def _folder(path: Path) -> Iterator[_Row]:
    for file in sorted(path.iterdir()):
        if not file.name.startswith(".") and file.is_file():
            if clean(file.name) != file.name:
                raise UsageProblem(f"{visible_name(file)}: its name is no UTF-8; give it another one")
            yield _Row(str(file), {TEXT: _read(file), "name": file.name, "path": str(file)}, id=file.name)
