"""Searches files for a text or a regular expression, as a process of its own: an expression that never ends can be
killed.

`python -I -S search_child.py ROOT` reads one JSON line with `pattern`, `regex` and `ignore_case`, then relative paths
separated by NUL, and prints one JSON array a line: `["hit", path, line, text, clipped]`, `["skip", reason]` or
`["error", message]`. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
SNIFFED = 8_192
CLIP = 400
"""Characters of a line that a hit shows, around the match."""


def main() -> None:
    stream = sys.stdin.buffer
    order = json.loads(stream.readline())
    source = order["pattern"] if order["regex"] else re.escape(order["pattern"])
    try:
        pattern = re.compile(source, re.IGNORECASE if order["ignore_case"] else 0)
    except (re.error, RecursionError, OverflowError) as e:
        _say("error", f"not a regular expression: {e}")
        return
    needle = None if order["regex"] or order["ignore_case"] else order["pattern"].encode()
    root = os.open(sys.argv[1], _FOLDER)
    for path in stream.read().split(b"\0"):
        if path:
            _search(root, path, pattern, needle)


def _search(root: int, path: bytes, pattern: re.Pattern[str], needle: bytes | None) -> None:
    try:
        data = _read(root, path)
    except OSError:
        _say("skip", "unreadable files")
        return
    if b"\0" in data[:SNIFFED]:
        _say("skip", "binary files")
        return
    if needle is not None and needle not in data:
        return
    for number, line, column in _hits(data, pattern):
        _say("hit", os.fsdecode(path), number, line, column)


def _hits(data: bytes, pattern: re.Pattern[str]) -> Iterator[tuple[int, str, int]]:
    for number, raw in enumerate(data.split(b"\n"), 1):
        line = raw.decode(errors="replace").rstrip("\r")
        found = pattern.search(line)
        if found is not None:
            yield number, line, found.start()


def _read(root: int, path: bytes) -> bytes:
    """The file's content; no folder on the way is a link, so what is read lies below the root."""
    *folders, name = path.split(b"/")
    opened: list[int] = []
    try:
        for folder in folders:
            opened.append(os.open(folder, _FOLDER, dir_fd=opened[-1] if opened else root))
        with os.fdopen(os.open(name, _FILE, dir_fd=opened[-1] if opened else root), "rb") as file:
            return file.read()
    finally:
        for fd in opened:
            os.close(fd)


def clip(line: str, column: int) -> tuple[str, bool]:
    """The line, or the part of it around `column` where it is long; and whether it was clipped."""
    if len(line) <= CLIP:
        return line, False
    start = max(min(column - CLIP // 4, len(line) - CLIP), 0)
    part = line[start : start + CLIP]
    return ("..." if start else "") + part + ("..." if start + CLIP < len(line) else ""), True


def _say(*values: object) -> None:
    if values[0] == "hit":
        text, clipped = clip(str(values[3]), int(str(values[4])))
        values = (*values[:3], text, clipped)
    sys.stdout.write(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
