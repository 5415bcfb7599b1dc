from __future__ import annotations

import sys
import tempfile
import tracemalloc
from pathlib import Path

import anyio
import pytest
from builtin.builtin_rig import Rig
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.builtin import file_range
from worker.builtin.file_range import FileSlice, as_read, read_range
from worker.builtin.scope import Scope
from worker.text import sha256
from worker.tool_output import serialised_size
from worker.tools import MAX_OUTPUT, ToolFault

pytestmark = pytest.mark.anyio


def pieces(scope: Scope, path: str, cap: int) -> list[FileSlice]:
    """The file, read by following the cursor of each answer."""
    found: list[FileSlice] = []
    offset, column = 1, 1
    while True:
        part = read_range(scope, path, offset, None, cap, column=column)
        found.append(part)
        if part.next_offset is None:
            return found
        following = (part.next_offset, part.next_column or 1)
        assert following > (offset, column), "the cursor moves"
        offset, column = following


async def test_one_line_above_the_cap_is_read_in_pieces_that_rebuild_it(rig: Rig) -> None:
    """B096."""
    text = "".join(chr(0x4E00 + i % 5000) for i in range(11_000))
    rig.file("one-line.json", text)
    cap = 30_000
    got, output = "", await rig.call("read_file", {"max_output": cap}, path="one-line.json")
    while True:
        assert output.content
        assert serialised_size(output.content) <= cap
        got += output.content
        if "go on with" not in output.summary:
            break
        cursor = dict(part.split("=") for part in output.summary.partition("go on with ")[2].split())
        output = await rig.call(
            "read_file", {"max_output": cap}, path="one-line.json", **{k: int(v) for k, v in cursor.items()}
        )
    assert got == text


def test_a_clipped_line_is_flagged_and_named(rig: Rig) -> None:
    """B097."""
    rig.file("a", "x" * 3000 + "\nend\n")
    part = read_range(rig.scope, "a", max_bytes=2000)
    assert (part.cut, part.cut_line, part.next_offset, part.next_column) == (True, 1, 1, 2001)
    assert "line 1 is cut" in as_read(part, "read_file").summary
    whole = read_range(rig.scope, "a", max_bytes=4000)
    assert (whole.cut, whole.cut_line, whole.next_offset) == (False, None, None)


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from('ab\n\r\t"\\é漢😀\x01\ufeff'), max_size=200), st.integers(12, 60))
def test_pieces_rebuild_any_text_file(text: str, cap: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f").write_bytes(text.encode())
        found = pieces(Scope(folder), "f", cap)
    assert "".join(part.text for part in found) == text
    assert all(serialised_size(part.text) <= cap for part in found)
    assert all(
        part.sha256 == sha256(text) and part.total_lines == len(text.encode().split(b"\n")) - (text[-1:] in ("\n", ""))
        for part in found
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([b"a", b"\n", b"\xff", b"\xe6", "漢".encode()]), max_size=80), st.integers(12, 40))
def test_pieces_cover_files_that_are_not_utf8(parts: list[bytes], cap: int) -> None:
    data = b"".join(parts)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f").write_bytes(data)
        found = pieces(Scope(folder), "f", cap)
    shown = "".join(part.text for part in found)
    assert shown == data.decode("utf-8", "surrogateescape").translate({0xDC00 + b: "\ufffd" for b in range(128, 256)})


async def test_a_range_says_what_it_shows_of_what(rig: Rig) -> None:
    data = "".join(f"line {i}\n" for i in range(1, 101))
    path = rig.file("a.txt", data)
    output = await rig.call("read_file", path="a.txt", offset=10, limit=3)
    assert output.content == "line 10\nline 11\nline 12\n"
    assert output.summary == "read_file a.txt: lines 10-12 of 100, 24 B of 792 B; go on with offset=13"
    assert output.reads is not None
    assert (output.reads.path, output.reads.first, output.reads.last) == (str(path), 10, 12)
    assert output.reads.sha256 == sha256(data)


async def test_large_answers_end_behind_a_whole_line_and_below_the_cap_of_the_loop(rig: Rig) -> None:
    rig.file("a.txt", '"quoted"\t\\\n' * 20_000)
    output = await rig.call("read_file", path="a.txt")
    assert output.content is not None
    assert MAX_OUTPUT - 40 < serialised_size(output.content) <= MAX_OUTPUT
    assert output.content.endswith("\\\n")
    assert output.artifact is None, "the rest stands in the file and needs no copy"
    assert "; cut by size; go on with offset=" in output.summary


def test_a_part_of_a_line_covers_no_line(rig: Rig) -> None:
    """A later piece must not make an earlier piece of the same line look superseded."""
    rig.file("a", "x" * 100 + "\nend\n")
    for column, cap in ((1, 20), (21, 20)):
        seen = read_range(rig.scope, "a", max_bytes=cap, column=column).seen
        assert seen is not None
        assert seen.last < seen.first
        assert seen.sha256
    rest = read_range(rig.scope, "a", column=81).seen
    assert rest is not None
    assert (rest.first, rest.last) == (2, 2)


async def test_an_empty_file_is_a_normal_result(rig: Rig) -> None:
    """B099."""
    rig.file("empty")
    output = await rig.call("read_file", path="empty")
    assert output.summary == "read_file empty: the file is empty"
    assert not output.is_error
    assert output.reads is not None


@pytest.mark.parametrize("offset", [3, 1000])
async def test_past_the_end_is_an_error_that_says_where_the_end_is(rig: Rig, offset: int) -> None:
    rig.file("a", "1\n2\n")
    with pytest.raises(ToolFault, match=f"a has 2 lines: offset {offset} is past its end"):
        await rig.call("read_file", path="a", offset=offset)
    with pytest.raises(ToolFault, match="line 1 is shorter than column 9"):
        await rig.call("read_file", path="a", column=9)


async def test_binary_files_are_described(rig: Rig) -> None:
    rig.file("a.png", b"\x89PNG\r\n\x1a\n\0\0" + b"x" * 990)
    output = await rig.call("read_file", path="a.png")
    assert output.summary == "read_file a.png: PNG image, 1.0 kB; not shown as text"
    assert output.content is None
    assert output.reads is None


async def test_line_ends_marks_and_bad_bytes_are_kept_and_told(rig: Rig) -> None:
    rig.file("a", b"\xef\xbb\xbfone\r\ntwo\r\n")
    output = await rig.call("read_file", path="a")
    assert output.content == "\ufeffone\r\ntwo\r\n"
    assert "byte-order mark" in output.summary
    assert "lines end in CR LF" in output.summary
    rig.file("b", b"caf\xe9 \xff\n")
    output = await rig.call("read_file", path="b")
    assert output.content == "caf\ufffd \ufffd\n"
    assert "2 bytes that are not UTF-8" in output.summary


async def test_artifacts_are_read_by_name(rig: Rig) -> None:
    name = rig.artifacts.store("c1", "out.txt", "a\nb\n")
    output = await rig.call("read_file", path=f"artifact:{name}", offset=2)
    assert output.content == "b\n"
    assert f"artifact:{name}" in output.summary
    assert output.reads is None
    with pytest.raises(ToolFault, match=f"Did you mean artifact:{name}"):
        await rig.call("read_file", path="artifact:c1-out.tx")
    with pytest.raises(ToolFault, match="no such artifact"):
        await rig.call("read_file", path="artifact:../../work/x")


def test_memory_does_not_grow_with_the_file(rig: Rig) -> None:
    rig.file("big", b"line of text\n" * 3_000_000)
    tracemalloc.start()
    try:
        part = read_range(rig.scope, "big", 1_500_000, 10)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (part.first, part.last, part.total_lines) == (1_500_000, 1_500_009, 3_000_000)
    assert peak < 4_000_000, f"{peak} bytes for a file of {part.size}"


def test_a_file_above_the_scan_limit_is_read_but_not_hashed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.file("big", b"line\n" * 500_000)
    monkeypatch.setattr(file_range, "SCAN_LIMIT", 1_000_000)
    part = read_range(rig.scope, "big", 1, 3, 1000)
    assert (part.text, part.sha256, part.total_lines, part.next_offset) == ("line\n" * 3, None, None, 4)
    assert "too large to be hashed" in as_read(part, "read_file").summary


async def test_reading_gives_up_when_cancelled(rig: Rig) -> None:
    with (rig.root / "sparse").open("wb") as file:
        file.truncate(900_000_000)
        file.write(b"text")
    with anyio.fail_after(5), anyio.move_on_after(0.05) as scope:
        await rig.call("read_file", path="sparse")
    assert scope.cancelled_caught


async def test_the_result_is_valid_for_every_log(rig: Rig) -> None:
    rig.file("a", b"x" * 9000 + b"\0\xed\xa0\x80\n")
    output = await rig.call("read_file", path="a")
    assert output.content is not None
    output.model_dump_json().encode()
    assert "\0" not in output.content
    assert sys.getsizeof(output.content) > 9000
