"""The tools `write_file` and `append_file`."""

from __future__ import annotations

import hashlib
from typing import BinaryIO, Protocol

from worker.builtin.artifacts import Artifacts
from worker.builtin.blocking import in_thread
from worker.builtin.changes import change, changed_since, line_count, old_file_if_any, written
from worker.builtin.scope import Scope
from worker.builtin.seen import SeenFiles
from worker.items import FileRange, ToolOutput
from worker.text import sha256, size
from worker.tools import ToolContext, tool


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@tool(effect="write", resource="path")
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
    with scope.open_write(path, unchanged=None if old is None else old.info) as file:
        file.write(data)
    summary = f"write_file {name}: {line_count(data)}, {size(len(data))}"
    if old is None:
        summary += " (new file)"
    elif old.data is None:
        summary += f" (replaced {size(old.info.st_size)})"
    else:
        summary += f" ({change(old.data, data)})" if old.data != data else " (unchanged)"
    if kept:
        summary += f"; it had not been read before, the old content is kept as artifact:{kept}"
    return ToolOutput(summary=summary, writes=written(resolved, data))


@tool(effect="write", resource="path")
async def append_file(path: str, content: str, context: ToolContext) -> ToolOutput:
    """Appends text to a file, on a new line; makes the file where it is missing. It need not be read before.

    Args:
        path: the file, relative to the working folder
        content: what to append; a line end is added where it has none
    """
    seen = context.services.get(SeenFiles)
    known = seen if isinstance(seen, SeenFiles) else None
    return await in_thread(_append, context.get(Scope), path, content, known)


def _append(scope: Scope, path: str, content: str, seen: SeenFiles | None) -> ToolOutput:
    data = content.encode()
    data += b"" if data.endswith(b"\n") or not data else b"\n"
    with scope.open_append(path) as target:
        before, ends_line = _digest(target.file)
        last_seen = None if seen is None else seen.get(str(target.path))
        known = target.before is None or target.before.st_size == 0 or last_seen == before.hexdigest()
        added = data if ends_line or not data else b"\n" + data
        rest = memoryview(added)
        while rest:
            rest = rest[target.file.write(rest) or 0 :]
        before.update(added)
        total = (0 if target.before is None else target.before.st_size) + len(added)
    summary = f"append_file {target.name}: {line_count(data)} appended, {size(total)} in all"
    summary += " (new file)" if target.before is None else ""
    # The model knows the whole only if it knew what stood there before.
    hashed = before.hexdigest() if known else ""
    return ToolOutput(summary=summary, writes=FileRange(path=str(target.path), first=0, last=0, sha256=hashed))


def _digest(file: BinaryIO) -> tuple[_Hash, bool]:
    digest, last = hashlib.sha256(), b"\n"
    file.seek(0)
    while chunk := file.read(1 << 20):
        digest.update(chunk)
        last = chunk[-1:]
    return digest, last == b"\n"
