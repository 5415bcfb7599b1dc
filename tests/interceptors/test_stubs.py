"""Stubs: what stays where something was pruned."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from interceptors.stubs import excerpt, render_arguments, render_read_stub, render_stub
from worker.items import ContextItem, FileRange, Image, ToolResultItem, make_call
from worker.text import sha256


def result(content: str | None, **more: object) -> ToolResultItem:
    values = {"call_id": "c1", "name": "shell", "status": "ok", "summary": "shell: make test, exit 2", **more}
    return ToolResultItem(content=content, **values)  # type: ignore[arg-type]


def test_a_pruned_result_keeps_its_summary() -> None:
    stub = render_stub(result("x\n" * 4000))
    assert stub.content is None
    assert stub.pruned
    assert stub.summary.startswith("shell: make test, exit 2\n")


def test_a_stub_names_tool_status_size_hash_and_where_the_full_text_is() -> None:
    content = "line of output\n" * 500
    item = result(content, status="error", artifact="shell-1.txt")
    text = render_stub(item).summary
    assert "shell error" in text
    assert "7.5 kB" in text
    assert sha256(content)[:12] in text
    assert sha256(content)[:13] not in text
    assert f"session_history item {item.id}" in text
    assert "artifact shell-1.txt" in text


def test_a_stub_keeps_the_call_the_files_and_the_state() -> None:
    reads = FileRange(path="a.py", first=1, last=9, sha256="f")
    item = result("x" * 5000, reads=reads, state={"tasks": [1]})
    stub = render_stub(item)
    assert (stub.id, stub.call_id, stub.status, stub.reads, stub.state) == (item.id, "c1", "ok", reads, {"tasks": [1]})


def test_pictures_go_with_the_content_and_are_counted() -> None:
    stub = render_stub(result(None, images=(Image(media_type="image/png", data="AAAA"),)))
    assert stub.images == ()
    assert "1 image" in stub.summary


def test_an_excerpt_shows_trouble_then_demands_then_the_last_line() -> None:
    lines = [f"ok {n}" for n in range(300)]
    lines[100] = "ERROR: port 7443 refused"
    lines[200] = "You must never deploy on Friday."
    lines[-1] = "3 failed, 297 passed"
    text = excerpt("\n".join(lines), 200)
    assert text.splitlines()[:1] != ["ok 0"] or "ERROR" in text
    assert "ERROR: port 7443 refused" in text
    assert "You must never deploy on Friday." in text
    assert text.splitlines()[-1] == "3 failed, 297 passed"


def test_an_excerpt_keeps_the_order_of_the_text() -> None:
    text = excerpt("always check\nplain\nfatal: gone\nend", 200)
    assert text.splitlines() == ["always check", "plain", "fatal: gone", "end"]


def test_no_excerpt_where_none_is_wanted() -> None:
    assert excerpt("error: gone", 0) == ""


@given(st.text(max_size=2000), st.integers(0, 300))
def test_an_excerpt_is_bounded_and_the_same_each_time(content: str, limit: int) -> None:
    once = excerpt(content, limit)
    assert len(once) <= limit
    assert once == excerpt(content, limit)


def test_an_auto_read_file_becomes_one_line_that_says_how_to_get_it_back() -> None:
    item = ContextItem(kind="auto_read", text="[Auto-read file: a.py:1-2]\nx = 1\n", path="a.py")
    stub = render_read_stub(item)
    assert stub.pruned
    assert "\n" not in stub.text
    assert "a.py" in stub.text
    assert "read_file" in stub.text


def test_large_arguments_become_a_valid_object_that_keeps_small_values() -> None:
    arguments = json.dumps({"path": "a.py", "content": "x = 1\n" * 1000})
    stub = render_arguments(make_call("c1", "write_file", arguments))
    values = json.loads(stub.wire_arguments())
    assert values["path"] == "a.py"
    assert values["content"].startswith("[pruned: ")
    assert len(stub.arguments) < 300
    assert (stub.call_id, stub.name) == ("c1", "write_file")


def test_damaged_arguments_stay_marked_as_damaged() -> None:
    call = make_call("c1", "write_file", '{"content": "' + "x" * 2000)
    stub = render_arguments(call)
    assert stub.error == call.error
    assert json.loads(stub.wire_arguments()).keys() == {"unparsed_arguments"}
    assert len(stub.arguments) < 300


@given(st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=500), st.lists(st.text()))))
def test_pruned_arguments_are_an_object_and_pruning_them_again_changes_nothing(values: dict[str, object]) -> None:
    call = make_call("c1", "t", json.dumps(values))
    once = render_arguments(call)
    assert once.parsed is not None
    assert once.parsed.keys() == values.keys()
    assert render_arguments(once) == once
