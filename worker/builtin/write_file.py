"""The tools `write_file` and `append_file`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple, Protocol

from worker.builtin.artifacts import Artifacts
from worker.builtin.blocking import in_thread
from worker.builtin.changes import change, changed_since, line_count, line_end, names_kept, old_file_if_any, written
from worker.builtin.scope import Scope
from worker.builtin.seen import SeenFiles
from worker.items import FileRange, ToolOutput
from worker.masking import marks_in
from worker.text import sha256, size
from worker.tools import ToolContext, ToolFault, tool


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def _whole(arguments: Mapping[str, Any], before: bytes) -> bytes:
    return arguments["content"].encode()


@tool(effect="write", resource="path", preview=_whole)
async def write_file(path: str, content: str, context: ToolContext) -> ToolOutput:
    """Writes a whole file: makes it, or replaces all that it held. Missing folders are made.

    To change a part of a file use edit_file. A file that changed since you last read it is not replaced.

    Args:
        path: the file, relative to the working folder
        content: everything that the file shall hold
    """
    seen = context.services.get(SeenFiles)
    artifacts = context.services.get(Artifacts)
    return await in_thread(
        _write,
        context.get(Scope),
        path,
        content.encode(),
        seen if isinstance(seen, SeenFiles) else None,
        artifacts if isinstance(artifacts, Artifacts) else None,
        context.call_id,
    )


def _write(
    scope: Scope, path: str, data: bytes, seen: SeenFiles | None, artifacts: Artifacts | None, call_id: str
) -> ToolOutput:
    old = old_file_if_any(scope, path)
    resolved = scope.resolve(path, "write") if old is None else old.path
    name = scope.show(resolved)
    kept = ""
    if old is not None and old.data is not None and old.data != data:
        last_seen = None if seen is None else seen.get(str(old.path))
        if last_seen is not None and last_seen != sha256(old.data):
            raise changed_since(name)
        if last_seen is None and old.data and artifacts is not None:
            # Nobody looked at what is replaced here, so it is kept.
            kept = artifacts.store(call_id, f"replaced-{old.path.name}", old.data)
    if old is not None and old.data is not None:
        _keep_secrets(name, old.data, data)
    with scope.open_write(path, unchanged=None if old is None else old.info) as file:
        file.write(data)
    summary = f"write_file {name}: {line_count(data)}, {size(len(data))}"
    if old is None:
        summary += " (new file)"
    elif old.data is None:
        summary += f" (replaced {size(old.info.st_size)})"
    else:
        summary += f" ({change(old.data, data)})" if old.data != data else " (unchanged)"
    summary += "" if old is None else names_kept(old.info)
    if kept:
        summary += f"; it had not been read before, the old content is kept as artifact:{kept}"
    return ToolOutput(summary=summary, writes=written(resolved, data))


def _keep_secrets(name: str, old: bytes, new: bytes) -> None:
    """Raises `ToolFault` where a mark would take the place of the secret that it stands for."""
    lost = [mark for mark in marks_in(new.decode()) if mark.encode() not in old]
    if lost:
        raise ToolFault(
            f"{name} was not replaced: content holds {', '.join(lost)}, which stands for a secret that you are not shown, and the "
            "file would lose it. Change the other lines with edit_file"
        )


def _with_more(arguments: Mapping[str, Any], before: bytes) -> bytes:
    end = line_end(before.count(b"\n"), before.count(b"\r\n"))
    return before + _added(arguments["content"], _Tail(before.endswith(b"\n") or not before, end))


@tool(effect="write", resource="path", preview=_with_more)
async def append_file(path: str, content: str, context: ToolContext) -> ToolOutput:
    """Appends text to a file, on a new line; makes the file where it is missing. It need not be read before.

    Args:
        path: the file, relative to the working folder
        content: what to append; a line end is added where it has none, and all are written as the file's own
    """
    seen = context.services.get(SeenFiles)
    known = seen if isinstance(seen, SeenFiles) else None
    return await in_thread(_append, context.get(Scope), path, content, known)


def _append(scope: Scope, path: str, content: str, seen: SeenFiles | None) -> ToolOutput:
    with scope.open_append(path) as target:
        before, tail = _digest(target.file)
        last_seen = None if seen is None else seen.get(str(target.path))
        known = target.before is None or target.before.st_size == 0 or last_seen == before.hexdigest()
        added = _added(content, tail)
        rest = memoryview(added)
        while rest:
            rest = rest[target.file.write(rest) or 0 :]
        before.update(added)
        total = (0 if target.before is None else target.before.st_size) + len(added)
    summary = f"append_file {target.name}: {line_count(content.encode())} appended, {size(total)} in all"
    summary += " (new file)" if target.before is None else ""
    # The model knows the whole only if it knew what stood there before.
    hashed = before.hexdigest() if known else ""
    return ToolOutput(summary=summary, writes=FileRange(path=str(target.path), first=0, last=0, sha256=hashed))


class _Tail(NamedTuple):
    """How a file ends: whether with its line, and by which line end its lines end (empty where it has none)."""

    ends_line: bool
    line_end: bytes


def _added(content: str, tail: _Tail) -> bytes:
    """What is put behind a file's content: on a new line, with a line end, in the file's own line ends."""
    data = content.encode()
    if not data:
        return data
    if tail.line_end:
        data = data.replace(b"\r\n", b"\n").replace(b"\n", tail.line_end)
    end = tail.line_end or line_end(data.count(b"\n"), data.count(b"\r\n")) or b"\n"
    data += b"" if data.endswith(b"\n") else end
    return data if tail.ends_line else end + data


def _digest(file: BinaryIO) -> tuple[_Hash, _Tail]:
    digest, last = hashlib.sha256(), b"\n"
    newlines = crlf = 0
    file.seek(0)
    while chunk := file.read(1 << 20):
        digest.update(chunk)
        newlines += chunk.count(b"\n")
        crlf += chunk.count(b"\r\n") + (last == b"\r" and chunk[:1] == b"\n")
        last = chunk[-1:]
    return digest, _Tail(last == b"\n", line_end(newlines, crlf))
