"""Promises of the survey's parts: what of the user's words is understood, and that facts survive being written down."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.offline.python_scan import Import
from worker.offline.survey_facts import Fact, Instruction, Modules, read_fact
from worker.offline.survey_report import BARE_MARK, LEFT_OUT, without
from worker.offline.survey_task import SECTIONS, Directives, instruction_in, read_directives, read_task


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        ("Survey the Python files in src.", ("src",)),
        ("Please survey all Python files under `lib/a`, `lib/b` and lib/c/. Then rest.", ("lib/a", "lib/b", "lib/c")),
        ("Survey the Python files of the folders src/x and src/y", ("src/x", "src/y")),
        ("survey everything in .", (".",)),
        ("Survey the Python files in lib/my.pkg. Write the report to out/r.md.", ("lib/my.pkg",)),
    ],
)
def test_the_folders_are_understood(text: str, folders: tuple[str, ...]) -> None:
    task = read_task([text])
    assert task is not None
    assert task.folders == folders


def test_without_a_survey_there_is_no_task() -> None:
    assert read_task(["Hello.", "Write the report to report.md."]) is None


def test_the_files_of_a_task_are_understood() -> None:
    task = read_task(
        [
            "Survey the Python files in src. Write the report to out/report.md.\n"
            "Keep your notes in the file notes/log.md. When you meet NOTE.txt, obey the instruction in it."
        ]
    )
    assert task is not None
    assert (task.report, task.notes, task.meet) == ("out/report.md", "notes/log.md", "NOTE.txt")


def test_findings_in_the_conversation_need_no_notes() -> None:
    task = read_task(["Survey the Python files in src.", "Keep the findings in the conversation only."])
    assert task is not None
    assert task.notes is None


def test_the_newest_survey_counts() -> None:
    task = read_task(["Survey the Python files in a.", "Now survey the Python files in b."])
    assert task is not None
    assert task.folders == ("b",)


def test_directives_add_up_and_later_ones_replace_earlier_ones() -> None:
    found = read_directives(
        [
            'Title: One\nNever use the word "legacy".\nOrder of sections: Todos, importers.',
            "Title: Two\nNever use the word “Stale”!\nLast line: Done.",
        ]
    )
    assert found == Directives("Two", ("legacy", "stale"), ("Todos", "Importers", "Definitions"), "Done.")


def test_without_directives_the_usual_order_holds() -> None:
    assert read_directives(["Survey the Python files in src."]) == Directives(order=SECTIONS)


def test_an_instruction_in_a_comment_is_found() -> None:
    assert instruction_in("import a\n# Last line: The end.\nb = 1") == ["Last line: The end."]
    assert instruction_in("nothing here") == []


NAME = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
PATH = st.lists(NAME, min_size=1, max_size=4).map(lambda parts: "/".join(parts) + ".py")
FACTS = st.builds(
    Fact,
    path=PATH,
    first=st.integers(1, 500),
    last=st.integers(0, 900),
    total=st.integers(-1, 900),
    carry=st.sampled_from(["", "'''|1|x", "|2|from a import (b,"]),
    definitions=st.lists(NAME, max_size=4).map(tuple),
    imports=st.lists(st.tuples(PATH, st.integers(1, 5)), max_size=4).map(tuple),
    todos=st.lists(st.tuples(st.integers(1, 900), st.text(max_size=30)), max_size=3).map(tuple),
    flags=st.integers(0, 7),
)


@given(FACTS, st.sampled_from(["", "- ", "- FINDING ", "FINDING "]), st.sampled_from(["", " (as of that run)"]))
def test_a_fact_survives_being_written_down(fact: Fact, before: str, behind: str) -> None:
    line = fact.line()
    assert "\n" not in line
    assert read_fact(before + line + behind) == fact


@given(FACTS, st.integers(0, 5_000))
def test_a_fact_in_notes_keeps_its_number(fact: Fact, number: int) -> None:
    noted = replace(fact, number=number)
    assert read_fact(noted.line()) == noted


def test_an_instruction_survives_being_written_down() -> None:
    found = Instruction("src/NOTE.txt", ('Never use the word "a".', "Last line: b"))
    assert read_fact("- " + found.line()) == found


@given(FACTS, st.integers(1, 200))
def test_a_part_of_a_line_is_no_fact(fact: Fact, cut: int) -> None:
    line = fact.line()
    if cut < len(line):
        assert read_fact(line[:-cut]) is None


@pytest.mark.parametrize("line", ["", "FINDING", '["#","header"]', '["="]', '["a",1]', '["a","b","c","d"]', "[1,2]"])
def test_other_lines_are_no_facts(line: str) -> None:
    assert read_fact(line) is None


def test_an_import_is_resolved_like_python_does() -> None:
    modules = Modules(["lib/p/__init__.py", "lib/p/a.py", "lib/p/q/__init__.py", "lib/p/q/b.py", "lib/tool.py"])

    def named(path: str, module: str, *names: str) -> set[str]:
        return set(modules.count(path, [[Import(module, names)]]))

    assert named("lib/p/q/b.py", "p.a") == {"lib/p/a.py"}
    assert named("lib/p/q/b.py", "p", "a", "other") == {"lib/p/a.py", "lib/p/__init__.py"}
    assert named("lib/p/q/b.py", ".", "x") == {"lib/p/q/__init__.py"}
    assert named("lib/p/q/b.py", "..", "a", "q") == {"lib/p/a.py", "lib/p/q/__init__.py"}
    assert named("lib/p/q/b.py", "..a", "name") == {"lib/p/a.py"}
    assert named("lib/p/a.py", ".q.b", "*") == {"lib/p/q/b.py"}
    assert named("lib/p/a.py", "tool") == {"lib/tool.py"}
    assert named("lib/p/a.py", "os.path") == set()
    assert named("lib/p/a.py", ".a", "itself") == set()


def test_a_statement_counts_once_for_a_file() -> None:
    modules = Modules(["a.py", "b.py"])
    assert modules.count("a.py", [[Import("b"), Import("b")], [Import("b", ("x", "y"))]]) == {"b.py": 2}


def test_a_forbidden_word_is_left_out_as_a_whole_word_in_any_case() -> None:
    assert without("Legacy code, legacyish, LEGACY.", ("legacy",)) == f"{LEFT_OUT} code, legacyish, {LEFT_OUT}."
    assert without("a word here", ("word",)) == f"a {BARE_MARK} here"
