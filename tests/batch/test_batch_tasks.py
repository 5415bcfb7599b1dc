"""What a batch is told to do: every form of input, templates, and mistakes with their places."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod.batch.batch import choose
from pod.batch.tasks import read_tasks
from pod.batch.workspaces import Workspaces
from pod.errors import UsageProblem


def read(tmp_path: Path, name: str, text: str | bytes, template: str | None = None) -> list[tuple[str, str]]:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [(task.id, task.text) for task in read_tasks(path, template)]


FORMS = {
    "t.jsonl": '{"id": "a", "task": "one"}\n\n"two"\n{"task": "three", "more": [1]}\n',
    "t.ndjson": '{"id": "a", "task": "one"}\r\n"two"\r\n{"task": "three"}',
    "t.json": '[{"id": "a", "task": "one"}, "two", {"task": "three"}]',
    "t.csv": 'id,task\na,one\n,two\n\n,"three"\n',
    "t.tsv": "\ufeffid\ttask\na\tone\n\ttwo\n\tthree\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_gives_the_same_tasks(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, name, FORMS[name]) == [("a", "one"), ("1", "two"), ("2", "three")]


def test_a_folder_has_a_task_in_each_file_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, text in {"b.md": "second", "a.md": "first", ".hidden": "x"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "inner").mkdir()
    assert [(task.id, task.text) for task in read_tasks(tmp_path)] == [("a.md", "first"), ("b.md", "second")]
    assert [task.text for task in read_tasks(tmp_path, "Read $name: $task")] == [
        "Read a.md: first",
        "Read b.md: second",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.jsonl", '{"id": "a\\ud800", "task": "b \\udc00 \\ud83d\\ude00", "f": ["\\ud800"]}'),
        ("t.json", '[{"id": "a\\ud800", "task": "b \\udc00 \\ud83d\\ude00", "f": ["\\ud800"]}]'),
    ],
)
def test_b145_half_a_character_is_read_as_the_sign_for_one_that_is_none(tmp_path: Path, name: str, text: str) -> None:
    assert read(tmp_path, name, text) == [("a\ufffd", "b \ufffd \U0001f600")]
    assert read_tasks(tmp_path / name, "$f")[0].text == '["\ufffd"]'
    assert read_tasks(tmp_path / name)[0].digest


def test_a_template_puts_fields_in_their_places(tmp_path: Path) -> None:
    line = json.dumps({"id": "x7", "title": "it $breaks", "tags": ["a", "b"], "n": 3})
    (made,) = read(tmp_path, "t.jsonl", line, "$id/$index: ${title} $tags $n for $$5")
    assert made == ("x7", 'x7/0: it $breaks ["a", "b"] 3 for $5')


def test_a_field_of_any_name_is_named_in_braces(tmp_path: Path) -> None:
    text = "id,Title of it,größe\n7,it broke,12\n"
    assert read(tmp_path, "t.csv", text, "${Title of it} (${größe}, $id)") == [("7", "it broke (12, 7)")]


WRONG = {
    "no such file": ("gone.jsonl", None, None, "gone.jsonl: there is no such file"),
    "another form": ("t.txt", "x", None, "t.txt: tasks are JSON lines"),
    "no JSON": ("t.jsonl", '{"task": "a"}\n{"task": \n', None, "t.jsonl:2: not JSON"),
    "no object": ("t.jsonl", "[1]\n", None, "t.jsonl:1: a task is an object or a text, not a list"),
    "no text": ("t.jsonl", '{"title": "a", "body": "b"}\n', None, "no field 'task' (fields: title, body); say what the text is with --template"),
    "text of another kind": ("t.jsonl", '{"task": 3}\n', None, 't.jsonl:1: "task" is text, not a number'),
    "an empty task": ("t.jsonl", '{"task": "a"}\n{"task": "  "}\n', None, "t.jsonl:2: the task is empty"),
    "an id twice": ("t.jsonl", '{"id": "a", "task": "a"}\n{"id": "a", "task": "b"}\n', None, "t.jsonl:2: the id 'a' stands at"),
    "an id of another kind": ("t.jsonl", '{"id": [1], "task": "a"}\n', None, 't.jsonl:1: "id" is text or a number, not a list'),
    "no UTF-8": ("t.jsonl", b'{"task": "a"}\n\xff\n', None, "t.jsonl:2: byte 14 is no UTF-8"),
    "no list": ("t.json", '{"task": "a"}', None, "t.json: a .json file of tasks is a list, not an object"),
    "nothing": ("t.jsonl", "\n\n", None, "t.jsonl: there are no tasks in it"),
    "an empty folder": ("", None, None, "there are no tasks in it"),
    "a field that is none": ("t.jsonl", '{"titel": "a"}\n', "Fix $title", "the fields here are titel; did you mean $titel?"),
    "a field with spaces that is none": ("t.csv", "The title,b\nx,y\n", "Fix $Title", "did you mean ${The title}?"),
    "a first field with spaces": ("t.csv", "The title,b\nx,y\n", None, "say what the text is with --template, such as '${The title}'"),
    "a lone dollar": ("t.jsonl", '{"task": "a"}\n', "for 5$", "write $field, ${field} or ${a field with spaces}, and $$ for a dollar"),
    "an empty template": ("t.jsonl", '{"task": "a"}\n', " ", "the template is empty"),
    "cells without a head": ("t.csv", "id,task\na,b,c\n", None, "t.csv:2: 3 cells under 2 heads (id, task)"),
    "a head twice": ("t.csv", "task,task\na,b\n", None, "t.csv:1: the head 'task' stands there twice"),
    "an open quote": ("t.csv", 'task\n"a\n', None, "t.csv:2: not a table"),
    "too deep": ("t.jsonl", "[" * 100_000 + "\n", None, "t.jsonl:1: "),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_is_told_with_its_place_and_the_way_out(tmp_path: Path, what: str) -> None:
    name, text, template, said = WRONG[what]
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageProblem) as told:
        read_tasks(path, template)
    assert said in str(told.value)


def test_several_mistakes_are_told_at_once_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\n' * 8 + '{"task": "fine"}\n')
    with pytest.raises(UsageProblem) as told:
        read_tasks(path)
    said = str(told.value)
    assert (
        said.startswith("these tasks do not read:") and said.count(": there is no field") == 5 and "and 3 more" in said
    )


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(lambda text: text.strip())


@given(st.lists(texts, min_size=1, max_size=8))
def test_what_a_table_and_lines_hold_is_read_back_letter_for_letter(
    tmp_path_factory: pytest.TempPathFactory, given: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("t")
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(["task"])
    writer.writerows([[text] for text in given])
    lines = "".join(json.dumps({"task": text}) + "\n" for text in given)
    assert [text for _, text in read(folder, "t.csv", table.getvalue())] == given
    assert [text for _, text in read(folder, "t.jsonl", lines)] == given


@given(st.integers(0, 200), st.integers(1, 200), st.integers(1, 200), st.booleans(), st.integers())
def test_the_choice_is_the_same_for_the_same_seed_and_never_doubles(
    count: int, limit: int, sample: int, shuffle: bool, seed: int
) -> None:
    chosen = choose(count, limit=limit, sample=sample, shuffle=shuffle, seed=seed)
    assert chosen == choose(count, limit=limit, sample=sample, shuffle=shuffle, seed=seed)
    assert len(set(chosen)) == len(chosen) == min(count, limit, sample)
    assert set(chosen) <= set(range(count))
    if not shuffle:
        assert chosen == sorted(chosen)


def _git(folder: Path, *words: str) -> None:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], cwd=folder, check=True, env=env
    )


def test_worktrees_are_made_at_once_and_made_again_whatever_was_left_of_them(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    _git(base, "init", "-q")
    for n in range(200):
        (base / f"{n}.txt").write_text("x")
    _git(base, "add", ".")
    _git(base, "commit", "-qm", "x")
    spaces = Workspaces("git-worktree", base, tmp_path / "work", "b").checked()
    with ThreadPoolExecutor(12) as pool:
        made = list(pool.map(spaces.make, range(36)))
    assert all((folder / "199.txt").read_text() == "x" for folder in made)
    shutil.rmtree(made[0])  # by hand
    made[1].rename(made[1].with_name("1.tmp"))  # as a kill before the last step
    (tmp_path / "work" / "40.tmp").mkdir()  # as one before the first
    (tmp_path / "work" / "40.tmp" / "half").write_text("x")
    for n in (0, 1, 40):
        assert (spaces.make(n) / "199.txt").read_text() == "x"
    assert not list((tmp_path / "work").glob("*.tmp"))
