"""Paths that lead out of the scope, or to what no tool writes: each is refused, and each works where its guard is off."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from tests.security.redteam_rig import SECRET, Struck, World
from worker.builtin.scope import Scope
from worker.testing.provider_server import Call
from worker.tools import ToolFault

pytestmark = pytest.mark.anyio

EVERYTHING = {"scope": {"read": ["/"], "write": ["/"]}}
"""The guard off: all of the machine is in scope."""

OUT = (
    "../outside/{file}", "src/../../outside/{file}", "./src/.././../outside/{file}", "{out}/{file}", "/{out}//./{file}",
    "missing/../../outside/{file}", "link-{file}", "folder/{file}", "chain1/{file}", "inside/../../outside/{file}",
    "folder/deep/../{file}", "/proc/self/root{out}/{file}", "/proc/thread-self/root{out}/{file}", "/proc/{pid}/root{out}/{file}",
    "process/{file}", "/proc/self/cwd/{up}{out}/{file}", "~/{file}",
)  # fmt: skip
"""Ways to a file outside."""

OPEN = ("/proc/self/fd/{fd}", "/dev/fd/{fd}", "/proc/{pid}/fd/{fd}", "/proc/self/task/../fd/{fd}", "descriptor")
"""Ways to a file that the runtime itself has open."""

LOOK_ALIKES = (
    "%2e%2e/outside/{file}", "..%2foutside/{file}", "..\\outside\\{file}", "\uff0e\uff0e/outside/{file}", "\u2025/outside/{file}",
    "..\u2215outside\u2215{file}", "..\u2044outside\u2044{file}", "\u200b../outside/{file}", ".\u200b./outside/{file}", "file://{out}/{file}",
    "~root/{file}", "$HOME/{file}", "`pwd`/../outside/{file}", "..;/outside/{file}", "....//outside/{file}", "%252e%252e/outside/{file}",
)  # fmt: skip
"""What other programs take for a way out. Here they are names like others."""

NO_PATHS = {
    "": "not a path", "own.txt\0.png": "not a path", "\0": "not a path", "x/" * 2500: "too long", "x" * 300: "name is too long",
    "loop": "leads back to itself",
}  # fmt: skip


@contextmanager
def arranged(world: World, file: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The links of the table, and what stands for the words in it."""
    work, out = world.work, world.outside
    monkeypatch.setenv("HOME", str(out))
    fd = os.open(out / file, os.O_RDWR)
    for name, target in {
        f"link-{file}": f"../outside/{file}", "folder": out, "chain1": "chain2", "chain2": "src/chain3", "inside": "src",
        "process": f"/proc/self/root{out}", "descriptor": f"/proc/self/fd/{fd}", "loop": "loop",
    }.items():  # fmt: skip
        (work / name).symlink_to(target)
    (work / "src" / "chain3").symlink_to("../../outside")
    try:
        yield {
            "file": file, "out": str(out), "pid": str(os.getpid()), "fd": str(fd), "up": "../" * 30,
        }  # fmt: skip
    finally:
        os.close(fd)


def refused(struck: Struck, words: str = "scope") -> None:
    """Every call refused in words; nothing was read, nothing changed, and the run went on to its end."""
    assert struck.results
    for item in struck.results:
        assert item.status in {"denied", "error"} and words in item.text(), item.text()
    assert struck.result.status == "finished" and struck.result.exit_code == 0
    assert SECRET.encode() not in struck.wire and not struck.changed


@pytest.mark.parametrize("path", [*OUT, *OPEN])
async def test_b098_no_spelling_of_a_path_reads_out_of_scope(
    path: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with arranged(world, "secret.txt", monkeypatch) as words:
        call = Call("read_file", {"path": path.format(**words)})
        refused(await world.strike(call), "outside the read scope")
        assert SECRET in (await world.strike(call, tables=EVERYTHING, name="control")).told


@pytest.mark.parametrize("path", OUT)
async def test_b098_no_spelling_of_a_path_writes_out_of_scope(
    path: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with arranged(world, "target.txt", monkeypatch) as words:
        path = path.format(**words)
        calls = [
            Call("edit_file", {"path": path, "old": "before", "new": "edited"}),
            Call("append_file", {"path": path, "content": "appended"}),
            Call("write_file", {"path": path, "content": "written"}),
        ]
        refused(await world.strike(*calls), "outside the write scope")
        read = Call("read_file", {"path": path})
        await world.strike(read, *calls[:2], tables=EVERYTHING, name="control")
        assert (world.outside / "target.txt").read_text() == "edited\nappended\n"
        await world.strike(read, calls[2], tables=EVERYTHING, name="another")
        assert (world.outside / "target.txt").read_text() == "written"


@pytest.mark.parametrize("path", LOOK_ALIKES)
async def test_what_looks_like_a_way_out_is_a_name_in_the_folder(
    path: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with arranged(world, "secret.txt", monkeypatch) as words:
        name = path.format(**words)
        call = Call("read_file", {"path": name})
        refused(await world.strike(call), "no such file")
        twin = world.work / name
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.write_text("a file of this very name")
        assert "a file of this very name" in (await world.strike(call, name="control")).told


@pytest.mark.parametrize("path", NO_PATHS, ids=[path[:9].encode("unicode_escape").decode() for path in NO_PATHS])
async def test_what_is_no_path_is_refused_in_words(path: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with arranged(world, "secret.txt", monkeypatch):
        calls = [Call(tool, {"path": path, "content": "x"}) for tool in ("write_file", "append_file")]
        refused(await world.strike(Call("read_file", {"path": path}), *calls), NO_PATHS[path])


WALKS = (
    ("list_files", {"path": "{at}"}), ("find_files", {"pattern": "*.txt", "path": "{at}"}), ("find_files", {"pattern": "{at}/*.txt"}),
    ("search_text", {"pattern": "the-secret", "path": "{at}"}), ("search_text", {"pattern": "the-secret", "path": "{at}/secret.txt"}),
    ("search_text", {"pattern": "the-secret", "files": "{at}/*"}),
)  # fmt: skip


@pytest.mark.parametrize("at", ["../outside", "{out}", "folder", "/proc/self/root{out}"])
@pytest.mark.parametrize(("tool", "arguments"), WALKS)
async def test_b098_no_walk_leaves_the_scope(
    tool: str, arguments: dict[str, str], at: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pattern is matched below the folder that is walked, so that one that leads out finds nothing."""
    with arranged(world, "secret.txt", monkeypatch) as words:
        made = {key: value.format(at=at.format(**words)) for key, value in arguments.items()}
        struck = await world.strike(Call(tool, dict(made)))
        [item] = struck.results
        assert item.status != "ok" or "nothing found" in item.summary or "no file" in item.summary, item.text()
        assert SECRET.encode() not in struck.wire and "target.txt" not in struck.told and not struck.changed
        if "path" in made:
            seen = await world.strike(Call(tool, dict(made)), tables=EVERYTHING, name="control")
            assert "secret.txt" in seen.told and seen.results[0].status == "ok"


async def test_b098_walks_do_not_follow_links_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.work / "src" / "copy.txt").write_text(SECRET.replace("-", " "))
    with arranged(world, "secret.txt", monkeypatch):
        struck = await world.strike(
            Call("search_text", {"pattern": "the.secret", "regex": True, "ignored": True}),
            Call("find_files", {"pattern": "**/*.txt", "ignored": True}),
        )
    assert "src/copy.txt" in struck.told and "deep" not in struck.told and SECRET.encode() not in struck.wire


# -- what no tool writes ---------------------------------------------------------------------------------------------

PROTECTED = (
    ".git/config", ".GIT/config", ".Git/hooks/post-commit", "src/.git/hooks/x", "src/../.git/config", "{work}/.git/config",
    "to-git/config", "file-of-git", "hard-git", "src/hard-git", ".pod/config.toml", ".POD/config.toml", "src/.pod/config.toml", "to-pod/new",
    "hard-pod", "/proc/self/root{work}/.git/config", "{home}/pods/p/inbox/0.json", "{home}/pods/other/pod.json", "{home}/trust/x", "to-home/pods/x",
    "{root}/config/pod/config.toml",
)  # fmt: skip


@pytest.mark.parametrize("path", PROTECTED)
async def test_no_tool_writes_what_decides_on_the_agent_though_all_is_in_scope(path: str, world: World) -> None:
    work = world.work
    world.home.mkdir()
    for name, target in {
        "to-git": ".git",
        "file-of-git": ".git/config",
        "to-pod": ".pod",
        "to-home": world.home,
    }.items():
        (work / name).symlink_to(target)
    os.link(work / ".git" / "config", work / "hard-git")
    os.link(work / ".git" / "config", work / "src" / "hard-git")
    os.link(work / ".pod" / "config.toml", work / "hard-pod")
    words = {"work": str(work), "home": str(world.home), "root": str(world.root)}
    before = {path.name for path in world.home.iterdir()}
    named = {"path": path.format(**words)}
    struck = await world.strike(
        Call("write_file", {**named, "content": "x"}),
        Call("append_file", {**named, "content": "x"}),
        Call("edit_file", {**named, "old": "before", "new": "after"}),
        Call("write_file", {"path": "git/config.new", "content": "a harmless twin"}),
        tables=EVERYTHING,
    )
    *attacks, twin = struck.results
    for attack in attacks:
        assert attack.status in {"denied", "error"}, attack.text()
        assert "not written" in attack.text() or (attack.name == "edit_file" and "hard" in path), attack.text()
    assert twin.status == "ok" and struck.changed == {"work/git", "work/git/config.new"}
    assert {path.name for path in world.home.iterdir()} - before <= {"pods"}
    assert [path.name for path in (world.home / "pods").iterdir()] == ["p"] and struck.result.exit_code == 0


# -- kinds -----------------------------------------------------------------------------------------------------------

KINDS = {
    "pipe": "named pipe", "sock": "socket", "src": "directory", ".": "directory", "to-pipe": "named pipe", "to-zero": "character device",
    "/dev/zero": "character device", "/dev/urandom": "character device", "/dev/null": "character device", "/dev/full": "character device",
}  # fmt: skip


@pytest.mark.parametrize("path", KINDS)
async def test_b099_what_is_no_file_is_refused_by_its_kind_without_waiting(path: str, world: World) -> None:
    os.mkfifo(world.work / "pipe")
    (world.work / "to-pipe").symlink_to("pipe")
    (world.work / "to-zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        there = os.open(world.work, os.O_RDONLY)
        try:
            listening.bind(f"/proc/self/fd/{there}/sock")
        finally:
            os.close(there)
        tools = {
            "read_file": {},
            "write_file": {"content": "x"},
            "append_file": {"content": "x"},
            "edit_file": {"old": "a", "new": "b"},
        }
        if KINDS[path] != "directory":
            tools["search_text"] = {"pattern": "own"}
        calls = [Call(tool, {"path": at, **more}) for at in (path, "twin.txt") for tool, more in tools.items()]
        (world.work / "twin.txt").write_text("own a\n")
        with anyio.fail_after(20):
            struck = await world.strike(*calls, tables=EVERYTHING)
    for number, item in enumerate(struck.results):
        if number < len(tools):
            assert item.status == "error" and KINDS[path] in item.text(), item.text()
        elif item.name != "edit_file":
            assert item.status == "ok", item.text()
    assert struck.changed <= {"work/twin.txt"}


# -- swapped while a call looks --------------------------------------------------------------------------------------


def swap(folder: str, inside: str, outside: str) -> None:
    """Another process: `racy` is by turns the file inside and a link to the one outside, without end."""
    turn = Path(folder) / "turn"
    while True:
        turn.unlink(missing_ok=True)
        os.link(inside, turn)
        os.replace(turn, Path(folder) / "racy")
        # A rename over another name of the same file does nothing, and leaves `turn`.
        turn.unlink(missing_ok=True)
        turn.symlink_to(outside)
        os.replace(turn, Path(folder) / "racy")


@contextmanager
def racing(world: World, outside: str) -> Iterator[None]:
    inside = world.root / "inside.txt"
    inside.write_text("harmless")
    (world.work / "racy").write_text("harmless")
    process = multiprocessing.get_context("spawn").Process(
        target=swap, args=(str(world.work), str(inside), str(world.outside / outside)), daemon=True
    )
    process.start()
    try:
        while not (world.work / "racy").is_symlink():
            assert process.is_alive()
        yield
    finally:
        process.kill()
        process.join()


def checked_then_opened(scope: Scope, world: World) -> bool:
    """What a careless tool does: it looks where the path leads, then opens the path."""
    try:
        scope.resolve("racy")
        return SECRET in (world.work / "racy").read_text()
    except (ToolFault, OSError):
        return False


async def test_b098_a_file_that_is_swapped_for_a_link_while_it_is_opened_is_not_followed(world: World) -> None:
    """The same race is won within these tries by a tool that looks first and opens then."""
    scope = Scope(world.work)
    with racing(world, "secret.txt"):
        assert any(checked_then_opened(scope, world) for _ in range(100_000))
        got: set[str] = set()
        for _ in range(3_000):
            try:
                with scope.open_read("racy") as opened:
                    got.add(opened.file.read().decode())
            except ToolFault:
                got.add("refused")
        struck = await world.strike(*[Call("read_file", {"path": "racy"})] * 30)
    assert got == {"harmless", "refused"}
    assert SECRET.encode() not in struck.wire and len(struck.results) == 30


async def test_b098_a_swapped_file_is_not_written_through(world: World) -> None:
    scope = Scope(world.work, write=["."])
    with racing(world, "target.txt"):
        got: set[str] = set()
        for _ in range(3_000):
            try:
                with scope.open_append("racy") as opened:
                    opened.file.write(b"x")
                got.add("written")
            except ToolFault:
                got.add("refused")
        struck = await world.strike(*[Call("write_file", {"path": "racy", "content": "after"})] * 20)
    assert got == {"written", "refused"} and len(struck.results) == 20
    assert (world.outside / "target.txt").read_text() == "before"
