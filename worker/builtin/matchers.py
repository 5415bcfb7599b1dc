"""The two programs that look for lines in chosen files: ripgrep where it is on the PATH, else our own search process.

Both are processes: an expression that takes for ever is killed with its process, and never holds up the runtime.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import anyio

from worker.builtin.blocking import in_thread
from worker.builtin.sandbox import Sandbox
from worker.builtin.search_child import clip
from worker.text import clipped
from worker.tools import ToolFault

_ARGUMENT_BYTES = 100_000
_ANSWER_BYTES = 64 * 1024 * 1024


class Search(NamedTuple):
    """What is looked for."""

    pattern: str
    regex: bool
    ignore_case: bool


class Hit(NamedTuple):
    """A line that matches: `path` is relative to the root; `clipped` says that `text` is a part of the line."""

    path: str
    line: int
    text: str
    clipped: bool


def ripgrep() -> str | None:
    """Where ripgrep is, or None."""
    return shutil.which("rg")


async def find_hits(
    search: Search,
    root: Path,
    paths: Sequence[str],
    hits: list[Hit],
    limit: int,
    skipped: Counter[str],
    sandbox: Sandbox | None = None,
) -> bool:
    """Adds hits in the files, in order, to `hits`, at most `limit`; False where there are more.

    Files that cannot be searched are counted in `skipped`. Cancelled, the search process is gone, and `hits` holds
    what was found so far. With a sandbox, the process sees the root and nothing
    else of the scope. Raises `ToolFault` for an expression that is none.
    """
    if not paths:
        return True
    program = ripgrep()
    if program is None:
        return await _with_python(search, root, paths, hits, limit, skipped, sandbox)
    for batch in _batches(paths):
        if not await _with_ripgrep(program, search, root, batch, hits, limit, skipped, sandbox):
            return False
    return True


def _batches(paths: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    length = 0
    for path in paths:
        length += len(os.fsencode(path)) + 1
        if batch and length > _ARGUMENT_BYTES:
            yield batch
            batch, length = [], len(os.fsencode(path)) + 1
        batch.append(path)
    yield batch


async def _with_python(
    search: Search,
    root: Path,
    paths: Sequence[str],
    hits: list[Hit],
    limit: int,
    skipped: Counter[str],
    sandbox: Sandbox | None,
) -> bool:
    def take(line: bytes) -> bool:
        kind, *values = json.loads(line)
        if kind == "error":
            raise ToolFault(str(values[0]))
        if kind == "skip":
            skipped[str(values[0])] += 1
            return True
        if len(hits) == limit:
            return False
        hits.append(Hit(*values))
        return True

    order = json.dumps(search._asdict()).encode() + b"\n" + b"\0".join(map(os.fsencode, paths))
    with tempfile.TemporaryFile() as stdin:
        await in_thread(_fill, stdin, order)
        child = Path(__file__).with_name("search_child.py")
        argv = [sys.executable, "-I", "-S", str(child), str(root)]
        if sandbox is not None:
            argv = await in_thread(sandbox.reading, argv, root, (root, child, Path(sys.base_prefix)))
        whole, code, errors = await _lines_of(argv, root, stdin, take)
    if whole and code:
        raise ToolFault(f"the search failed: {errors[-300:]}")
    return whole


def _fill(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.seek(0)


async def _with_ripgrep(
    program: str,
    search: Search,
    root: Path,
    paths: list[str],
    hits: list[Hit],
    limit: int,
    skipped: Counter[str],
    sandbox: Sandbox | None,
) -> bool:
    waiting: list[Hit] = []

    def take(line: bytes) -> bool:
        message = json.loads(line)
        kind, data = message["type"], message["data"]
        if kind == "match":
            waiting.append(_as_hit(data))
            return len(hits) + len(waiting) <= limit
        if kind == "end":
            # Only the end of a file says that it turned out to be binary.
            if data["binary_offset"] is not None:
                skipped["binary files"] += 1
            else:
                hits.extend(waiting)
            waiting.clear()
        return True

    argv = [program, "--json", "--no-config", "--no-ignore", "--hidden", "--no-messages", "--sort", "path"]
    argv += ["--fixed-strings"] if not search.regex else []
    argv += ["--ignore-case"] if search.ignore_case else ["--case-sensitive"]
    argv += ["--regexp", search.pattern, "--", *paths]
    if sandbox is not None:
        argv = await in_thread(sandbox.reading, argv, root, (root,))
    whole, code, errors = await _lines_of(argv, root, None, take)
    if not whole:
        hits.extend(waiting[: limit - len(hits)])
    elif code == 2 and errors:
        raise ToolFault(f"ripgrep: {clipped(errors, 300)}")
    return whole


def _as_hit(data: dict[str, Any]) -> Hit:
    line = _text(data["lines"]).rstrip("\r\n")
    matches = data["submatches"]
    start = len(line.encode()[: matches[0]["start"]].decode(errors="ignore")) if matches else 0
    text, clipped = clip(line, start)
    return Hit(_text(data["path"], paths=True), int(data["line_number"]), text, clipped)


def _text(value: dict[str, str], *, paths: bool = False) -> str:
    if "text" in value:
        return value["text"]
    data = base64.b64decode(value["bytes"])
    return os.fsdecode(data) if paths else data.decode(errors="replace")


async def _lines_of(
    argv: Sequence[str], cwd: Path, stdin: IO[bytes] | None, take: Callable[[bytes], bool]
) -> tuple[bool, int | None, str]:
    """Runs a program and gives each line of its output to `take` until that says False; then the program is killed.

    Returns whether all lines were taken, the exit code, and the errors. Whatever happens, the program is gone
    afterwards.
    """
    with tempfile.TemporaryFile() as errors:
        process = await anyio.open_process(
            argv,
            cwd=cwd,
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
        try:
            whole = await _read_lines(process.stdout, take)
            if whole:
                await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                if process.returncode is None:
                    process.kill()
            await process.aclose()
        errors.seek(0)
        return whole, process.returncode, errors.read(4_096).decode(errors="replace").strip()


async def _read_lines(stream: anyio.abc.ByteReceiveStream | None, take: Callable[[bytes], bool]) -> bool:
    assert stream is not None
    rest = b""
    total = 0
    async for chunk in stream:
        total += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not take(line):
                return False
        if total > _ANSWER_BYTES:
            return False
    return True
