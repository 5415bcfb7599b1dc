"""What a human is shown of a write is what the tool then leaves in the file."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interceptors.approvals import ApprovalAsked
from interceptors.permissions import Permissions
from interceptors.preview import DIFF_CHARS, SHOWN_BYTES, diff, write_preview
from worker.builtin.registry import BUILTIN, builtin_tool
from worker.builtin.scope import Scope
from worker.builtin.seen import SeenFiles
from worker.history import History
from worker.interceptor import CallContext, Pause
from worker.items import make_call
from worker.text import sha256
from worker.tools import Tool, ToolContext, ToolFault, tool

TEXTS = st.text(st.sampled_from("ab \t\n\r"), max_size=30) | st.lists(st.sampled_from(["a\r\n", "b\r\n", "c"])).map(
    "".join
)
ARGUMENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "write_file": st.fixed_dictionaries({"content": TEXTS}),
    "append_file": st.fixed_dictionaries({"content": TEXTS}),
    "edit_file": st.fixed_dictionaries({"old": TEXTS.filter(bool), "new": TEXTS, "replace_all": st.booleans()}).filter(
        lambda arguments: arguments["old"] != arguments["new"]
    ),
}


def test_every_tool_that_writes_has_a_preview() -> None:
    writing = {name for name in BUILTIN if builtin_tool(name).effect == "write"}
    assert writing == ARGUMENTS.keys()
    assert all(builtin_tool(name).preview is not None for name in writing)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(ARGUMENTS)), before=st.none() | TEXTS)
def test_a_preview_applied_is_the_file_that_the_tool_leaves(data: st.DataObject, name: str, before: str | None) -> None:
    arguments = data.draw(ARGUMENTS[name])
    if name == "edit_file" and before:
        arguments["old"] = data.draw(st.sampled_from([arguments["old"], before[: len(before) // 2] or before]))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "f.txt"
        if before is not None:
            file.write_bytes(before.encode())
        shown = _shown(name, {"path": "f.txt", **arguments}, Path(folder))
        refused = anyio.run(partial(_run, name, {"path": "f.txt", **arguments}, file))
        left = file.read_bytes().decode() if file.exists() else None
    if refused:
        assert "will be refused" in shown and left == before
    elif shown == "(no change)":
        assert left == before
    elif shown == "(an empty file)":
        assert left == ""
    else:
        assert applied(shown, before or "") == left


@pytest.mark.parametrize("before", ["one\ntwo\n", "one\ntwo", "one\r\ntwo\r\n", ""])
def test_an_append_is_shown_as_lines_that_are_added(before: str) -> None:
    shown = write_preview(builtin_tool("append_file"), {"path": "f", "content": "three"}, before.encode())
    assert shown is not None
    changed = [line for line in shown.splitlines()[2:] if line[0] in "+-"]
    assert changed[-1] == "+three"
    assert applied(shown, before).splitlines() == [*before.splitlines(), "three"]
    assert [line for line in changed if line.startswith("-")] == (["-two"] if before == "one\ntwo" else [])


def test_an_edit_is_shown_where_it_stands_in_the_file() -> None:
    arguments = {"path": "f", "old": "x = 1", "new": "x = 2", "replace_all": True}
    shown = str(write_preview(builtin_tool("edit_file"), arguments, b"a\nx = 1\nb\nx = 1\n"))
    assert shown.count("+x = 2") == 2 and " b" in shown.splitlines()


def test_a_change_of_line_ends_is_named() -> None:
    shown = write_preview(builtin_tool("write_file"), {"path": "f", "content": "a\nb\n"}, b"a\r\nb\r\n")
    assert str(shown).splitlines()[:2] == ["--- before (CR LF)", "+++ after (LF)"]


def test_a_file_too_large_to_show_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_bytes(b"x" * (SHOWN_BYTES + 1))
    shown = _shown("append_file", {"path": "f.txt", "content": "more"}, tmp_path)
    assert "its lines are left out" in shown and shown.endswith("content:\nmore")


def test_of_a_tool_without_a_preview_only_the_arguments_are_shown() -> None:
    @tool(effect="write", resource="path")
    def insert(path: str, text: str) -> str:
        """Puts a line somewhere."""
        return path + text

    assert write_preview(insert, {"path": "f", "text": "new"}, b"one\ntwo\n") == "text:\nnew"
    pair = write_preview(insert, {"old_text": "a\n", "new_text": "b\n"}, b"a\n")
    assert str(pair).splitlines()[-2:] == ["-a", "+b"]
    assert write_preview(insert, {"path": "f"}, b"") is None


def test_a_long_diff_is_cut_and_says_so() -> None:
    shown = write_preview(builtin_tool("write_file"), {"path": "f", "content": "x" * 9_000}, b"")
    assert "more characters]" in str(shown)[DIFF_CHARS:]


@given(before=TEXTS, after=TEXTS)
def test_a_diff_applied_gives_the_other_text(before: str, after: str) -> None:
    assert applied(diff(before, after), before) == after


def applied(patch: str, before: str) -> str:
    """The text that a unified diff makes of another one."""
    old = re.findall(r"[^\n]*\n|[^\n]+", before)
    new: list[str] = []
    at = 0
    lines = re.findall(r"[^\n]*\n|[^\n]+", patch if patch.endswith("\n") or not patch else patch + "\n")
    for number, line in enumerate(lines[2:], 2):
        if head := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
            start = int(head[1]) - (head[2] != "0")
            new += old[at:start]
            at = start
            continue
        if line.startswith("\\"):
            continue
        bare = number + 1 < len(lines) and lines[number + 1].startswith("\\")
        text = line[1:-1] if bare else line[1:]
        if line[0] in " -":
            assert old[at] == text
            at += 1
        if line[0] in " +":
            new.append(text)
    return "".join([*new, *old[at:]])


def _shown(name: str, arguments: dict[str, Any], folder: Path) -> str:
    """The diff of the question that the permissions put about a call."""
    permissions = Permissions(scope=Scope(folder, write=["."]))
    call = make_call("c1", name, json.dumps(arguments))
    ctx = CallContext(call, builtin_tool(name), call.parsed or {}, History(), "tag")
    decision = anyio.run(permissions.before_tool, ctx)
    assert isinstance(decision, Pause) and isinstance(decision.record, ApprovalAsked)
    return str(decision.record.diff)


async def _run(name: str, arguments: dict[str, Any], file: Path) -> bool:
    """Runs the tool itself. Whether it refused."""
    seen = SeenFiles({str(file.resolve()): sha256(file.read_bytes())} if file.exists() else {})
    services: tuple[object, ...] = (Scope(file.parent, write=["."]), seen)
    made: Tool = builtin_tool(name)
    context = ToolContext("c1", name, file.parent, services={type(service): service for service in services})
    try:
        await made.run(arguments, context)
    except ToolFault:
        return True
    return False
