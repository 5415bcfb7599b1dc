from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio
import pytest
from builtin.builtin_rig import Rig

from worker.builtin import matchers, search_text, walk
from worker.builtin.glob import Glob
from worker.tools import ToolFault

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["python", "ripgrep"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both programs that look for lines; ripgrep only where the machine has it."""
    found = shutil.which("rg")
    if request.param == "ripgrep" and found is None:
        pytest.skip("no ripgrep on this machine")
    monkeypatch.setattr(matchers, "ripgrep", lambda: found if request.param == "ripgrep" else None)
    return request.param


def tree(rig: Rig) -> None:
    rig.file("a.py", "import os\nNEEDLE = 1\n")
    rig.file("sub/b.py", "x\nprint('needle', NEEDLE)\n")
    rig.file("sub/c.txt", "NEEDLE in text\n")
    rig.file(".git/config", "NEEDLE\n")
    rig.file("build/out.py", "NEEDLE\n")
    rig.file(".gitignore", "build/\n*.log\n")
    rig.file("x.log", "NEEDLE\n")


async def test_a_folder_is_listed_in_order_with_types_and_sizes(rig: Rig) -> None:
    rig.file("b.txt", "x" * 1500)
    rig.file("sub/x")
    rig.file(".hidden")
    os.mkfifo(rig.root / "pipe")
    (rig.root / "link").symlink_to("b.txt")
    output = await rig.call("list_files")
    assert output.content == ".hidden  0 B\nb.txt  1.5 kB\nlink -> b.txt\npipe  (named pipe)\nsub/"
    assert output.summary == "list_files .: 5 entries, 1 of them folders"
    output = await rig.call("list_files", limit=2)
    assert output.content == ".hidden  0 B\nb.txt  1.5 kB"
    assert "only the first 2 are shown" in output.summary


async def test_listing_what_is_no_folder_says_so(rig: Rig) -> None:
    rig.file("a.txt")
    (rig.root / "empty").mkdir()
    assert "is empty" in (await rig.call("list_files", path="empty")).summary
    with pytest.raises(ToolFault, match=r"a\.txt is a file, not a directory"):
        await rig.call("list_files", path="a.txt")
    with pytest.raises(ToolFault, match="Did you mean empty"):
        await rig.call("list_files", path="empt")
    with pytest.raises(ToolFault, match="outside the read scope"):
        await rig.call("list_files", path="..")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", "x/y/a.py"], ["a.pyc", "a.py/b"]),
        ("src/*.py", ["src/a.py"], ["src/x/a.py", "a.py"]),
        ("src/**/*.py", ["src/a.py", "src/x/y/a.py"], ["a.py"]),
        ("**/test_?.py", ["test_a.py", "x/test_b.py"], ["test_ab.py"]),
        ("*.{ts,tsx}", ["a.ts", "x/a.tsx"], ["a.js"]),
        ("{a,b}/{c,d}", ["a/c", "b/d"], ["a/b"]),
        ("docs/**", ["docs/a", "docs/x/y"], ["docsx/a"]),
        ("[ab].txt", ["a.txt"], ["c.txt"]),
        ("./x", ["x", "a/x"], ["xx"]),
        ("**", ["a", "a/b"], []),
    ],
)
def test_glob_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    glob = Glob(pattern)
    assert [p for p in yes if not glob.matches(p)] == []
    assert [p for p in no if glob.matches(p)] == []


async def test_a_pattern_made_to_be_slow_is_not(rig: Rig) -> None:
    rig.file("a" * 200)
    with anyio.fail_after(2):
        await rig.call("find_files", pattern="*a" * 100 + "b")
        await rig.call("find_files", pattern="**/" * 100 + "b")
    with pytest.raises(ToolFault, match="alternatives"):
        await rig.call("find_files", pattern="{a,b}" * 12)


async def test_files_are_found_without_what_git_ignores(rig: Rig) -> None:
    tree(rig)
    output = await rig.call("find_files", pattern="*")
    assert output.content == ".gitignore\na.py\nsub/b.py\nsub/c.txt"
    assert output.summary == "find_files * in .: 4 files; skipped: 2 ignored"
    output = await rig.call("find_files", pattern="*.py", ignored=True)
    assert output.content == "a.py\nbuild/out.py\nsub/b.py"
    output = await rig.call("find_files", pattern="nothing")
    assert output.summary.startswith("find_files nothing in .: no files")
    output = await rig.call("find_files", pattern="*", limit=1)
    assert output.content == ".gitignore"
    assert '4 files; only the first 1 are shown, after=".gitignore" shows what follows' in output.summary


async def test_what_follows_a_path_is_found_without_what_stands_before_it(rig: Rig) -> None:
    tree(rig)
    output = await rig.call("find_files", pattern="*", after=".gitignore", limit=2)
    assert output.content == "a.py\nsub/b.py"
    assert '4 files, 3 after .gitignore; only the first 2 are shown, after="sub/b.py"' in output.summary
    output = await rig.call("find_files", pattern="*", after="sub/b.py")
    assert output.content == "sub/c.txt" and "only the first" not in output.summary
    output = await rig.call("find_files", pattern="*", after="sub/c.txt")
    assert output.content is None and output.summary.startswith("find_files * in .: 4 files, none after sub/c.txt")


async def test_nested_ignore_files_and_those_above_the_start_count(rig: Rig) -> None:
    rig.file(".gitignore", "*.log\n/sub/gen/\nbad[\n")
    rig.file("sub/.gitignore", "!keep.log\ntmp\n")
    for name in ("a.log", "sub/keep.log", "sub/b.log", "sub/tmp", "sub/gen/x", "sub/deep/tmp", "sub/deep/ok"):
        rig.file(name)
    output = await rig.call("find_files", pattern="*", path="sub")
    assert output.content == "sub/.gitignore\nsub/deep/ok\nsub/keep.log"


async def test_text_is_found_with_path_line_and_text(rig: Rig, either: str) -> None:
    tree(rig)
    output = await rig.call("search_text", pattern="NEEDLE")
    assert output.content is not None
    assert output.content.splitlines() == [
        "a.py:2: NEEDLE = 1",
        "sub/b.py:2: print('needle', NEEDLE)",
        "sub/c.txt:1: NEEDLE in text",
    ]
    assert output.summary == "search_text 'NEEDLE' in .: 3 lines in 3 files (4 searched); skipped: 2 ignored"
    output = await rig.call("search_text", pattern="needle", path="sub", files="*.py", ignore_case=True)
    assert output.content == "sub/b.py:2: print('needle', NEEDLE)"
    output = await rig.call("search_text", pattern=r"^NEEDLE\b.*text$", regex=True)
    assert output.content == "sub/c.txt:1: NEEDLE in text"
    output = await rig.call("search_text", pattern="NEEDLE", path="sub/c.txt")
    assert output.content == "sub/c.txt:1: NEEDLE in text"
    output = await rig.call("search_text", pattern="a.c(")
    assert output.content is None
    assert "nothing found" in output.summary


async def test_a_search_meets_pipes_cycles_and_huge_files(rig: Rig, either: str) -> None:
    """B102."""
    rig.file("a/x.txt", "NEEDLE\n")
    os.mkfifo(rig.root / "a" / "pipe")
    (rig.root / "a" / "up").symlink_to("..")
    with (rig.root / "huge").open("wb") as file:
        file.truncate(1 << 30)
    rig.file("binary", b"NEEDLE\0\n")
    with anyio.fail_after(10):
        output = await rig.call("search_text", pattern="NEEDLE")
        found = await rig.call("find_files", pattern="*")
    assert output.content == "a/x.txt:1: NEEDLE"
    assert output.summary.endswith("; skipped: 1 binary file, 1 large file, 1 link, 1 named pipe")
    assert found.summary.endswith("skipped: 1 link, 1 named pipe")


async def test_a_link_to_an_outside_file_is_not_searched(rig: Rig, either: str, tmp_path: Path) -> None:
    """B098 for the search."""
    (tmp_path / "secret").write_text("NEEDLE\n")
    (rig.root / "link").symlink_to(tmp_path / "secret")
    assert (await rig.call("search_text", pattern="NEEDLE")).content is None
    with pytest.raises(ToolFault, match="outside"):
        await rig.call("search_text", pattern="NEEDLE", path="link")


async def test_hits_are_bounded_and_said_to_be(rig: Rig, either: str) -> None:
    rig.file("a", "NEEDLE\n" * 50)
    rig.file("b", "NEEDLE\n" * 50)
    output = await rig.call("search_text", pattern="NEEDLE", limit=60)
    assert output.content is not None
    assert output.content.count("\n") == 59
    assert "60 lines in 2 files (2 searched); stopped at 60 lines, there may be more" in output.summary
    output = await rig.call("search_text", pattern="NEEDLE", limit=100)
    assert "stopped" not in output.summary


async def test_long_lines_are_clipped_around_the_match_and_named(rig: Rig, either: str) -> None:
    """B097 for the search."""
    rig.file("a", "é" * 5000 + "NEEDLE" + "z" * 5000 + "\n")
    output = await rig.call("search_text", pattern="NEEDLE")
    assert output.content is not None
    assert "NEEDLE" in output.content
    assert output.content.endswith("... [line clipped]")
    assert len(output.content) < 500
    assert "1 long line clipped" in output.summary


async def test_an_expression_that_never_ends_is_killed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matchers, "ripgrep", lambda: None)
    monkeypatch.setattr(search_text, "SECONDS", 0.5)
    rig.file("a", "ok aaa!\n")
    rig.file("b", "a" * 60 + "\n")
    with anyio.fail_after(5):
        output = await rig.call("search_text", pattern="(a+)+!", regex=True)
    assert "stopped after 0.5 s, there may be more" in output.summary


async def test_a_bad_expression_is_an_error(rig: Rig, either: str) -> None:
    rig.file("a", "x\n")
    with pytest.raises(ToolFault, match=r"(?i)not a regular expression|regex parse error"):
        await rig.call("search_text", pattern="(", regex=True)


async def test_names_and_lines_that_are_not_utf8_do_not_end_a_search(rig: Rig, either: str) -> None:
    """B147."""
    Path(os.fsdecode(os.fsencode(rig.root) + b"/caf\xe9\n.txt")).write_bytes(b"NEEDLE \xff\n")
    rig.file("\U0001f600.txt", "NEEDLE\n")
    output = await rig.call("search_text", pattern="NEEDLE")
    assert output.content is not None
    assert set(output.content.splitlines()) == {"caf\ufffd\\n.txt:1: NEEDLE \ufffd", "\U0001f600.txt:1: NEEDLE"}
    listed = await rig.call("list_files")
    assert listed.content is not None
    assert set(listed.content.splitlines()) == {"caf\ufffd\\n.txt  9 B", "\U0001f600.txt  7 B"}


async def test_many_files_are_searched_in_order(rig: Rig, either: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matchers, "_ARGUMENT_BYTES", 1_000)
    for i in range(300):
        rig.file(f"d{i % 3}/file-{i:03}.txt", f"NEEDLE {i}\n")
    rig.file("-e.txt", "NEEDLE dash\n")
    output = await rig.call("search_text", pattern="NEEDLE", limit=1000)
    assert output.content is not None
    lines = output.content.splitlines()
    assert len(lines) == 301
    assert lines == sorted(lines)


async def test_a_walk_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(20):
        rig.file(f"f{i:02}", "NEEDLE\n")
    monkeypatch.setattr(walk, "ENTRIES", 10)
    output = await rig.call("find_files", pattern="*")
    assert "10 files; stopped after 10 entries, more may exist" in output.summary
    output = await rig.call("search_text", pattern="NEEDLE")
    assert "stopped after 10 entries, there may be more" in output.summary
    monkeypatch.setattr(search_text, "MOST_FILES", 5)
    output = await rig.call("search_text", pattern="NEEDLE")
    assert "(5 searched); stopped after 5 files" in output.summary
