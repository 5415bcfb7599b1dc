"""Instruction files: only what is a file of the project, and nothing is dropped in silence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pod.instructions import FILE_LIMIT, TOTAL_LIMIT, Note, collect
from tests.pod.pod_rig import Agent, Rig, call, manifest, results, say
from worker.records import Warned

pytestmark = pytest.mark.anyio

NAMES = ("AGENTS.md", "CLAUDE.md")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    return root


def only_note(cwd: Path) -> Note:
    found = collect(cwd, NAMES)
    assert found.files == ()
    (note,) = found.notes
    return note


def test_files_from_the_root_down_are_taken_with_nothing_to_note(project: Path) -> None:
    (project / "AGENTS.md").write_text("root")
    (project / "a").mkdir()
    (project / "a" / "CLAUDE.md").write_text("below")
    found = collect(project / "a", NAMES)
    assert [(Path(path).name, text) for path, text in found.files] == [("AGENTS.md", "root"), ("CLAUDE.md", "below")]
    assert found.notes == ()


@pytest.mark.parametrize("how", ["absolute", "relative", "through a folder", "a chain"])
def test_a_link_that_leads_out_of_the_project_is_not_followed(project: Path, how: str) -> None:
    secret = project.parent / "secret.txt"
    secret.write_text("password")
    link = project / "AGENTS.md"
    match how:
        case "absolute":
            link.symlink_to(secret)
        case "relative":
            link.symlink_to("../secret.txt")
        case "through a folder":
            (project / "docs").symlink_to(project.parent)
            link.symlink_to("docs/secret.txt")
        case _:
            (project / "one").symlink_to(secret)
            link.symlink_to("one")
    note = only_note(project)
    assert note.path == str(link)
    assert "outside of the project" in note.message
    assert "password" not in note.message


def test_a_link_inside_of_the_project_is_followed(project: Path) -> None:
    (project / "docs").mkdir()
    (project / "docs" / "rules.md").write_text("the rules")
    (project / "AGENTS.md").symlink_to("docs/rules.md")
    assert [text for _, text in collect(project, NAMES).files] == ["the rules"]


@pytest.mark.parametrize("name", ["../outside.md", "/etc/hostname"])
def test_a_name_that_leads_out_of_the_project_is_not_read(project: Path, name: str) -> None:
    (project.parent / "outside.md").write_text("outside")
    found = collect(project, (name,))
    assert found.files == ()
    assert len(found.notes) == 1


KINDS = {
    "folder": "it is a folder",
    "pipe": "it is a FIFO",
    "device": "it leads outside of the project",
    "unreadable": "denies access",
    "broken link": "it is a link that leads nowhere",
    "loop": "it is a loop of links",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_readable_file_is_left_out_with_a_note_and_without_waiting(project: Path, kind: str) -> None:
    path = project / "AGENTS.md"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "broken link":
            path.symlink_to("nowhere")
        case "loop":
            path.symlink_to("AGENTS.md")
        case _:
            path.write_text("x")
            path.chmod(0)
            if os.access(path, os.R_OK):
                pytest.skip("root reads everything")
    note = only_note(project)
    assert note.path == str(path) and KINDS[kind] in note.message and "list_files" not in note.message


def test_the_next_name_stands_in_for_one_that_can_not_be_taken(project: Path) -> None:
    (project / "AGENTS.md").mkdir()
    (project / "CLAUDE.md").write_text("the rules")
    found = collect(project, NAMES)
    assert [text for _, text in found.files] == ["the rules"]
    assert len(found.notes) == 1


def test_a_file_above_the_limit_is_cut_with_a_mark_and_a_note(project: Path) -> None:
    (project / "AGENTS.md").write_text("é" * FILE_LIMIT)
    found = collect(project, NAMES)
    ((_, text),) = found.files
    assert text.startswith("é" * (FILE_LIMIT // 2))
    assert text.endswith("are taken as instructions]") and f"{2 * FILE_LIMIT:,} bytes" in text
    assert len(text.encode()) < FILE_LIMIT + 300
    (note,) = found.notes
    assert (note.size, note.limit) == (2 * FILE_LIMIT, FILE_LIMIT)
    warning = note.warning()
    assert warning.figures == {"path": note.path, "size": 2 * FILE_LIMIT, "limit": FILE_LIMIT}


def test_a_file_at_the_limit_is_whole(project: Path) -> None:
    (project / "AGENTS.md").write_text("x" * FILE_LIMIT)
    found = collect(project, NAMES)
    assert found.files[0][1] == "x" * FILE_LIMIT
    assert found.notes == ()


def test_what_is_above_the_limit_of_all_files_is_cut_with_a_mark_and_a_note(project: Path) -> None:
    folder = project
    count = TOTAL_LIMIT // FILE_LIMIT + 2
    for number in range(count):
        (folder / "AGENTS.md").write_text(f"{number}" * (FILE_LIMIT - (100 if number == 0 else 0)))
        folder = folder / "below"
        folder.mkdir()
    found = collect(folder, NAMES)
    assert sum(len(text.encode()) for _, text in found.files) < TOTAL_LIMIT + count * 300
    assert len(found.files) == count
    assert [note.limit for note in found.notes] == [TOTAL_LIMIT, TOTAL_LIMIT]
    assert found.files[-2][1].startswith("4" * 100 + "\n")
    assert found.files[-1][1].strip().startswith("[cut here: 0 of its")


async def test_what_was_left_out_is_a_warning_once_until_it_changes(rig: Rig) -> None:
    secret = rig.cwd.parent / "secret.txt"
    secret.write_text("the-password")
    (rig.cwd / "AGENTS.md").symlink_to(secret)
    agent = Agent(lambda r, n: say("ok"))
    async with rig.open(agent) as pod:
        await pod.run("one")
        await pod.run("two")
        told = [w for w in rig.of(Warned) if w.code == "instructions"]
        assert len(told) == 1 and "AGENTS.md" in told[0].message
        (rig.cwd / "AGENTS.md").unlink()
        rig.file("AGENTS.md", "x" * (FILE_LIMIT + 1))
        await pod.run("three")
    told = [w for w in rig.of(Warned) if w.code == "instructions"]
    assert [w.figures.get("size") for w in told] == [None, FILE_LIMIT + 1]
    assert not any("the-password" in request.system for request in agent.requests)


async def test_a_rule_of_the_manifest_keeps_a_file_out_of_a_search(rig: Rig) -> None:
    """The filter is made from the rules that the pod has."""
    rig.file(".env", "needle in the secret")
    rig.file("open.txt", "needle in the open")
    rules = [{"tool": "*", "match": ".env", "action": "deny"}]
    made = manifest(tools={"enable": ["search_text", "list_files", "read_file"]}, permissions={"rules": rules})
    steps = [call("search_text", pattern="needle"), call("list_files"), call("read_file", path="env")]
    agent = Agent(lambda r, n: steps[n - 1] if n <= len(steps) else say("done"))
    async with rig.open(agent, made) as pod:
        await pod.run("look")
    found = results(agent.requests[-1])
    assert "open.txt" in found[0].text() and "denied path" in found[0].text()
    assert not any(".env" in item.text() or "secret" in item.text() for item in found)
