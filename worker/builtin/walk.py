"""Going through a folder and all below it: no links followed, special files counted, what git ignores left out."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from worker.builtin.path_filter import KEPT_BACK, Visible
from worker.builtin.scope import Scope, kind_of
from worker.text import clean
from worker.tools import ToolFault

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

ENTRIES = 200_000
"""Entries that one walk looks at."""

SECONDS = 20.0
"""Seconds that one walk, or one search, may take."""

_IGNORE_FILE = 262_144
_KINDS = {"symbolic link": "links", "regular file": "files"}


class Entry(NamedTuple):
    """Something in a folder: `path` relative to the walk's start, `info` of the thing itself (not of a link's
    target).
    """

    path: str
    info: os.stat_result

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.info.st_mode)


@dataclass
class Walk:
    """A bounded walk below `root` (resolved, in read scope). Iterate once; then `skipped` and `stopped` say what is
    missing.

    Files come folder by folder, each in order of names. Links are not followed, so a cycle cannot hold it (case
    B102); `.git` folders are left out; so is what `.gitignore` files say, unless `ignored` is set,
    and what `visible` hides, with all that is below it.
    """

    scope: Scope
    root: Path
    ignored: bool = False
    check: Callable[[], object] | None = None
    visible: Visible | None = None
    skipped: Counter[str] = field(default_factory=Counter[str])
    stopped: str = ""
    seen: int = 0

    def __iter__(self) -> Iterator[Entry]:
        deadline = time.monotonic() + SECONDS
        rules = [] if self.ignored else self._rules_above()
        waiting: list[tuple[str, list[_Rules]]] = [("", rules)]
        while waiting:
            folder, rules = waiting.pop()
            found = self._entries(folder)
            if not self.ignored and any(e.path.rpartition("/")[2] == ".gitignore" and e.is_file for e in found):
                rules = [*rules, *self._rules(self.root / folder, inner=f"{folder}/" if folder else "")]
            below: list[tuple[str, list[_Rules]]] = []
            for entry in found:
                self.seen += 1
                if self.seen > ENTRIES or time.monotonic() > deadline:
                    self.stopped = f"stopped after {self.seen - 1} entries"
                    return
                is_folder = stat.S_ISDIR(entry.info.st_mode)
                if is_folder and entry.path.rpartition("/")[2] == ".git":
                    continue
                if self.visible is not None and self.visible.hides(self.root / entry.path):
                    self.skipped[KEPT_BACK] += 1
                elif _is_ignored(rules, entry.path, is_folder):
                    self.skipped["ignored"] += 1
                elif is_folder:
                    below.append((entry.path, rules))
                elif entry.is_file:
                    yield entry
                else:
                    kind = kind_of(entry.info.st_mode)
                    self.skipped[_KINDS.get(kind, f"{kind}s")] += 1
            waiting.extend(reversed(below))

    def _entries(self, folder: str) -> list[Entry]:
        if self.check is not None:
            self.check()
        try:
            return list_folder(self.scope, self.root / folder, folder)
        except OSError:
            self.skipped["unreadable folders"] += 1
            return []

    def _rules_above(self) -> list[_Rules]:
        """The rules of the folders between the scope's root and the start of the walk."""
        roots = [root for root in self.scope.read_roots if self.root.is_relative_to(root)]
        top = min(roots, key=lambda root: len(root.parts), default=self.root)
        found: list[_Rules] = []
        for folder in reversed(self.root.parents):
            if folder.is_relative_to(top):
                found += self._rules(folder, prefix=self.root.relative_to(folder).as_posix() + "/")
        return found

    def _rules(self, folder: Path, *, prefix: str = "", inner: str = "") -> list[_Rules]:
        try:
            with self.scope.open_read(folder / ".gitignore") as opened:
                text = opened.file.read(_IGNORE_FILE).decode(errors="replace")
        except (ToolFault, OSError):
            return []
        return [_Rules(_ignore_spec(text.splitlines()), prefix, inner)]


def _ignore_spec(lines: list[str]) -> GitIgnoreSpec:
    """The rules in these lines; lines that git could not read either are left out."""
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        return GitIgnoreSpec.from_lines([line for line in lines if _is_rule(line)])


def _is_rule(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


class _Rules(NamedTuple):
    """One ignore file: `prefix` leads from its folder to the walk's start, or `inner` from the start to its folder."""

    spec: GitIgnoreSpec
    prefix: str
    inner: str


def _is_ignored(rules: list[_Rules], path: str, is_folder: bool) -> bool:
    """What the nearest ignore file with an opinion says."""
    for rule in reversed(rules):
        relative = rule.prefix + path.removeprefix(rule.inner)
        verdict = rule.spec.check_file(relative + "/" if is_folder else relative).include
        if verdict is not None:
            return verdict
    return False


def list_folder(scope: Scope, resolved: Path, prefix: str = "") -> list[Entry]:
    """What stands in one folder, sorted by name, opened without following links. Raises `OSError`."""
    passed = scope.open_folder(resolved)
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=passed)
    finally:
        os.close(passed)
    try:
        entries: list[Entry] = []
        with os.scandir(fd) as found:
            for entry in found:
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                entries.append(Entry(f"{prefix}/{entry.name}" if prefix else entry.name, info))
        return sorted(entries, key=lambda e: e.path)
    finally:
        os.close(fd)


def folder_in_scope(scope: Scope, path: str) -> Path:
    """The resolved path of a folder that may be read. Raises `ToolFault` for a file or a missing folder."""
    resolved = scope.resolve(path, "read")
    if resolved.is_dir():
        return resolved
    # Opening says what is wrong: missing (with the nearest name), a device, no access.
    scope.open_read(path).file.close()
    raise ToolFault(f"{scope.show(resolved)} is a file, not a directory")


def safe_name(path: str) -> str:
    """A path in one line: control characters are escaped, bytes that are not UTF-8 become U+FFFD (case B147)."""
    return "".join(c if c.isprintable() or c == "\ufffd" else c.encode("unicode_escape").decode() for c in clean(path))


def skipped_words(skipped: Counter[str]) -> str:
    """`2 links, 1 named pipe`, in a fixed order."""
    return ", ".join(
        f"{n} {word[:-1] if n == 1 and word.endswith('s') else word}" for word, n in sorted(skipped.items()) if n
    )
