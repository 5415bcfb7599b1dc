from __future__ import annotations

import errno
import os
import stat

import pytest
from builtin.builtin_rig import Rig

from worker.builtin.registry import builtin_tool
from worker.builtin.seen import SeenFiles
from worker.text import sha256
from worker.tools import ToolFault

pytestmark = pytest.mark.anyio


async def test_a_new_file_is_written_with_its_folders(rig: Rig) -> None:
    output = await rig.call("write_file", path="a/b/c.txt", content="one\ntwo\n")
    assert (rig.root / "a/b/c.txt").read_text() == "one\ntwo\n"
    assert output.summary == "write_file a/b/c.txt: 2 lines, 8 B (new file)"
    assert output.writes is not None
    assert output.writes.model_dump() == {
        "path": str(rig.root / "a/b/c.txt"), "first": 0, "last": 0, "sha256": sha256("one\ntwo\n"),
    }  # fmt: skip


async def test_what_was_written_may_be_edited_without_a_read(rig: Rig) -> None:
    await rig.call("write_file", path="a", content="one\ntwo\n")
    output = await rig.call("edit_file", path="a", old="two", new="2")
    assert (rig.root / "a").read_text() == "one\n2\n"
    assert output.summary == "edit_file a: replaced at line 2 (+1 -1 lines, 6 B)"
    await rig.call("edit_file", path="a", old="one", new="1")
    assert (rig.root / "a").read_text() == "1\n2\n"


async def test_an_edit_needs_a_read(rig: Rig) -> None:
    rig.file("a", "one\n")
    with pytest.raises(ToolFault, match="a has not been read yet: read_file it first"):
        await rig.call("edit_file", path="a", old="one", new="two")
    assert (rig.root / "a").read_text() == "one\n"


async def test_what_was_read_before_a_compaction_may_be_edited_while_unchanged(rig: Rig) -> None:
    """B100: only the folded hashes cross the boundary."""
    rig.file("a", "one\n")
    await rig.call("read_file", path="a")
    rig.seen = SeenFiles(rig.seen.known())
    await rig.call("edit_file", path="a", old="one", new="two")
    assert (rig.root / "a").read_text() == "two\n"


async def test_a_file_that_changed_since_is_not_edited(rig: Rig) -> None:
    """B100, the variant with a change on disk; the size and the time may even be the same."""
    rig.file("a", "one\n")
    await rig.call("read_file", path="a")
    rig.file("a", "One\n")
    with pytest.raises(ToolFault, match=r"a changed since it was last read\. Read it again"):
        await rig.call("edit_file", path="a", old="One", new="two")
    with pytest.raises(ToolFault, match="a changed since"):
        await rig.call("write_file", path="a", content="mine")
    assert (rig.root / "a").read_text() == "One\n"
    await rig.call("read_file", path="a")
    await rig.call("edit_file", path="a", old="One", new="two")


async def test_a_read_through_a_link_counts_for_the_file(rig: Rig) -> None:
    rig.file("real", "one\n")
    (rig.root / "link").symlink_to("real")
    await rig.call("read_file", path="link")
    await rig.call("edit_file", path="real", old="one", new="two")
    await rig.call("edit_file", path="link", old="two", new="three")
    assert (rig.root / "real").read_text() == "three\n"
    assert (rig.root / "link").is_symlink()


async def test_an_ambiguous_match_says_how_many_and_where(rig: Rig) -> None:
    rig.file("a", "x = 1\ny\nx = 1\n" * 6)
    await rig.call("read_file", path="a")
    with pytest.raises(ToolFault, match=r"old occurs 12 times \(lines 1, 3, 4, 6, 7, 9, 10, 12, and 4 more\)"):
        await rig.call("edit_file", path="a", old="x = 1", new="x = 2")
    output = await rig.call("edit_file", path="a", old="x = 1", new="x = 2", replace_all=True)
    assert "12 places" in output.summary
    assert (rig.root / "a").read_text() == "x = 2\ny\nx = 2\n" * 6


async def test_no_match_shows_the_nearest_lines(rig: Rig) -> None:
    rig.file("a", "def first():\n    return total_sum\n\ndef second():\n\treturn 2\n")
    await rig.call("read_file", path="a")
    with pytest.raises(ToolFault, match=r"(?s)does not occur.*line 2:     return total_sum"):
        await rig.call("edit_file", path="a", old="    return total_sums", new="")
    with pytest.raises(ToolFault, match="At line 4 it stands with other white space"):
        await rig.call("edit_file", path="a", old="def second():\n    return 2", new="")
    with pytest.raises(ToolFault, match="Nothing in it is like"):
        await rig.call("edit_file", path="a", old="qqqqqqqqqqqqqqqqq", new="")


@pytest.mark.parametrize(("old", "new", "word"), [("", "x", "old is empty"), ("one", "one", "nothing to change")])
async def test_edits_that_mean_nothing_are_refused(rig: Rig, old: str, new: str, word: str) -> None:
    rig.file("a", "one\n")
    await rig.call("read_file", path="a")
    with pytest.raises(ToolFault, match=word):
        await rig.call("edit_file", path="a", old=old, new=new)


async def test_an_edit_keeps_line_ends_marks_and_bytes_that_are_not_text(rig: Rig) -> None:
    rig.file("a", b"\xef\xbb\xbfone\r\ntwo\r\nb\xe9\r\n")
    await rig.call("read_file", path="a")
    await rig.call("edit_file", path="a", old="one\ntwo", new="1\n2\n3")
    assert (rig.root / "a").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\n3\r\nb\xe9\r\n"


async def test_an_unread_file_that_is_replaced_is_kept_as_an_artifact(rig: Rig) -> None:
    rig.file("a", "precious\n")
    output = await rig.call("write_file", path="a", content="new\n")
    assert (rig.root / "a").read_text() == "new\n"
    name = output.summary.rpartition("artifact:")[2]
    assert rig.artifacts.path(name).read_text() == "precious\n"
    output = await rig.call("write_file", path="a", content="newer\n")
    assert output.summary == "write_file a: 1 line, 6 B (+1 -1 lines, 6 B)", "known content needs no copy"


async def test_append_makes_a_file_and_starts_on_a_new_line(rig: Rig) -> None:
    output = await rig.call("append_file", path="notes/n.md", content="first")
    assert output.summary == "append_file notes/n.md: 1 line appended, 6 B in all (new file)"
    rig.file("notes/n.md", "first\nhalf")
    output = await rig.call("append_file", path="notes/n.md", content="second\n")
    assert (rig.root / "notes/n.md").read_text() == "first\nhalf\nsecond\n"
    assert output.summary == "append_file notes/n.md: 1 line appended, 18 B in all"


async def test_an_append_does_not_make_unread_content_known(rig: Rig) -> None:
    rig.file("a", "unseen\n")
    output = await rig.call("append_file", path="a", content="mine\n")
    assert output.writes is not None
    assert output.writes.sha256 == ""
    with pytest.raises(ToolFault, match="has not been read yet"):
        await rig.call("edit_file", path="a", old="mine", new="yours")
    await rig.call("read_file", path="a")
    await rig.call("append_file", path="a", content="more\n")
    await rig.call("edit_file", path="a", old="mine", new="yours")
    assert (rig.root / "a").read_text() == "unseen\nyours\nmore\n"
    rig.file("a", "other\n")
    await rig.call("append_file", path="a", content="mine\n")
    with pytest.raises(ToolFault, match="not been read"):
        await rig.call("edit_file", path="a", old="mine", new="yours")


async def test_writes_outside_of_the_scope_change_nothing(rig: Rig) -> None:
    for name, arguments in (
        ("write_file", {"content": "x"}),
        ("append_file", {"content": "x"}),
        ("edit_file", {"old": "a", "new": "b"}),
    ):
        with pytest.raises(ToolFault, match="outside the write scope"):
            await rig.call(name, path="../new", **arguments)
    assert not (rig.root.parent / "new").exists()


@pytest.mark.parametrize("new", ["2\n", "a text that is longer than the old one\n"])
async def test_a_change_shows_under_every_name_of_a_file_and_no_temporary_is_left(rig: Rig, new: str) -> None:
    target = rig.file("a", "one\ntwo\n")
    target.chmod(0o640)
    (rig.root / "b").hardlink_to(target)
    await rig.call("read_file", path="a")
    edited = await rig.call("edit_file", path="a", old="two\n", new=new)
    assert (rig.root / "b").read_text() == f"one\n{new}"
    written = await rig.call("write_file", path="b", content=new)
    assert target.read_text() == new
    for output in (edited, written):
        assert "the file has 2 names (hard links), all of them show it" in output.summary
    assert target.stat().st_nlink == 2 and stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(path.name for path in rig.root.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("failing", ["growth", "old part"])
async def test_a_disk_that_fills_up_leaves_a_linked_file_or_the_new_content_beside_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    target = rig.file("a", "old\n")
    (rig.root / "b").hardlink_to(target)
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if (offset > 0) == (failing == "growth"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ToolFault, match="No space left") as caught:
        await rig.call("write_file", path="a", content="new and longer\n")
    beside = [path for path in rig.root.iterdir() if path.name not in {"a", "b"}]
    if failing == "growth":
        assert target.read_text() == "old\n" and not beside
    else:
        assert beside[0].read_text() == "new and longer\n" and beside[0].name in str(caught.value)


@pytest.mark.parametrize(
    ("before", "content", "after"),
    [
        (b"x\r\ny\r\n", "z\n", b"x\r\ny\r\nz\r\n"),
        (b"x\r\ny", "z\nw", b"x\r\ny\r\nz\r\nw\r\n"),
        (b"x\ny\n", "z\r\n", b"x\ny\nz\n"),
        (b"a\r\nb\nc\r\n", "z\n", b"a\r\nb\nc\r\nz\r\n"),
        (b"a\r\nb\nc\n", "z\n", b"a\r\nb\nc\nz\n"),
        (b"no end", "z\r\nw", b"no end\r\nz\r\nw\r\n"),
        (b"", "z\r\n", b"z\r\n"),
    ],
)
async def test_an_append_follows_the_line_ends_that_most_lines_have(
    rig: Rig, before: bytes, content: str, after: bytes
) -> None:
    target = rig.file("a", before)
    await rig.call("append_file", path="a", content=content)
    assert target.read_bytes() == after
    preview = builtin_tool("append_file").preview
    assert preview is not None and preview({"path": "a", "content": content}, before) == after
