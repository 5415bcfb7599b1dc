"""Which files a tool may open, decided on the resolved path at the moment of use."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeAlias

from worker.builtin.protected import Protected
from worker.text import clipped
from worker.tools import ToolFault

Use: TypeAlias = Literal["read", "write"]

# O_PATH needs no read permission on a folder that is only passed through; where it is missing, an ordinary open does.
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NAMES_LOOKED_AT = 5_000
LONGEST_PATH = 4_096
"""Characters of a path; the operating system takes no longer ones."""

_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
    (stat.S_ISLNK, "symbolic link"),
    (stat.S_ISREG, "regular file"),
)


def kind_of(mode: int) -> str:
    """The type in `st_mode`, in words."""
    return next((word for test, word in _KINDS if test(mode)), "special file")


def home_expanded(text: str) -> str:
    """`~` and `~/...` with the home folder, any other text as it is: `~$report.docx` is a name. Raises nothing."""
    if text == "~" or text.startswith("~/"):
        # Unlike Path.expanduser it does not raise where there is no home folder.
        return os.path.expanduser(text)  # noqa: PTH111
    return text


@dataclass(frozen=True)
class OpenFile:
    """A regular file, open for reading. `path` is resolved, `name` is how the model is told of it."""

    path: Path
    name: str
    file: BinaryIO
    info: os.stat_result

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


@dataclass(frozen=True)
class Appended:
    """A regular file, open at its end. `before` is its state before, None where it was made."""

    path: Path
    name: str
    file: BinaryIO
    before: os.stat_result | None


class Scope:
    """The working folder with the roots that may be read and written.

    `read` and `write` are relative to `cwd`; what may be written may be read too. `protected` places, every `.git` and
    every `.pod` are never written. All methods block (call them in a thread), and raise `ToolFault` with the path and a way out.

    Names are resolved first; then each folder on the resolved path is opened from the one above without following
    links, so that a folder or file swapped for a link after the decision is refused, not followed (case B098). For a write
    each of them is compared with the protected places by what it is, so that no other name leads there.
    """

    def __init__(
        self,
        cwd: str | Path,
        *,
        read: Iterable[str | Path] = (".",),
        write: Iterable[str | Path] = (),
        protected: Iterable[str | Path] = (),
    ) -> None:
        self.cwd = Path(os.path.realpath(cwd))
        self.write_roots = tuple(self._root(p) for p in write)
        self.read_roots = tuple(dict.fromkeys([*(self._root(p) for p in read), *self.write_roots]))
        self.protected = Protected((self._root(p) for p in protected), (self.cwd, *self.write_roots))
        self.hidden: Callable[[Path], bool] = lambda _: False
        """Paths that no error may name as the one that was perhaps meant."""

    def _root(self, path: str | Path) -> Path:
        return Path(os.path.realpath(self.cwd / Path(path).expanduser()))

    def show(self, resolved: Path) -> str:
        """How the model is told of a path: relative to the working folder where it lies in it."""
        try:
            return resolved.relative_to(self.cwd).as_posix()
        except ValueError:
            return str(resolved)

    def resolve(self, path: str | Path, use: Use = "read") -> Path:
        """The real path, after links, if it is in scope for this use."""
        text = str(path)
        if not text or "\0" in text:
            raise ToolFault(f"not a path: {clipped(text, 80)!r}")
        if len(text) > LONGEST_PATH:
            raise ToolFault(f"{clipped(text, 80)}: the path is too long.")
        lexical = self.cwd / home_expanded(text)
        try:
            resolved = Path(os.path.realpath(lexical))
        except OSError as e:
            raise _fault(text, e) from e
        except ValueError as e:
            raise ToolFault(f"not a path: {text!r} ({e})") from e
        roots = self.read_roots if use == "read" else self.write_roots
        if not any(resolved.is_relative_to(root) for root in roots):
            raise self._outside(text, lexical, resolved, use, roots)
        _no_circle(text, resolved)
        if use == "write":
            self.protected.check_names(text, Path(os.path.normpath(lexical)), resolved)
        return resolved

    def _outside(self, text: str, lexical: Path, resolved: Path, use: Use, roots: tuple[Path, ...]) -> ToolFault:
        where = "" if Path(os.path.normpath(lexical)) == resolved else f" (it leads to {resolved})"
        allowed = ", ".join("the working folder" if r == self.cwd else self.show(r) for r in roots)
        may = f"in: {allowed}. Choose a path there, or ask" if roots else "nowhere. Ask"
        return ToolFault(
            f"outside the {use} scope: {text}{where}. This agent may {use} {may} the user to add the folder to [scope] {use}."
        )

    def open_folder(self, resolved: Path, *, make: bool = False) -> int:
        """A descriptor of the folder at a resolved path, reached without following links; the caller closes it.

        `make` makes missing folders, for a write; none of the folders on the way is a protected one then. Raises
        `OSError`, `ToolFault`.
        """
        guard = self.protected.guard(resolved) if make else None
        fd = os.open(resolved.anchor, _FOLDER)
        try:
            for part in resolved.parts[1:]:
                if guard is not None:
                    guard.check_folder(os.fstat(fd))
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=fd)
                below = os.open(part, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = below
            if guard is not None:
                guard.check_folder(os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_read(self, path: str | Path) -> OpenFile:
        """A regular file, open for reading. Any other type is refused by its name, without waiting (case B099)."""
        resolved = self.resolve(path, "read")
        name = self.show(resolved)
        try:
            folder = self.open_folder(resolved.parent)
            try:
                # Looking before opening: opening a device may already do something.
                _only_regular(name, os.stat(resolved.name or ".", dir_fd=folder, follow_symlinks=False))
                fd = os.open(resolved.name, os.O_RDONLY | _FILE, dir_fd=folder)
            finally:
                os.close(folder)
        except FileNotFoundError as e:
            raise self._missing(str(path), resolved) from e
        except OSError as e:
            raise _fault(name, e) from e
        try:
            info = os.fstat(fd)
            _only_regular(name, info)
            return OpenFile(resolved, name, os.fdopen(fd, "rb"), info)
        except BaseException:
            os.close(fd)
            raise

    @contextlib.contextmanager
    def open_write(
        self, path: str | Path, *, unchanged: os.stat_result | None = None
    ) -> Generator[BinaryIO, None, None]:
        """A file to write whole: it takes the place of the old one at the end of the block, in one step.

        Missing folders are made; the mode of an old file is kept. A block that raises leaves the old file as it was.
        With `unchanged`, the old file must still be the one of that state. A file that has several names (hard links) keeps
        them: once the new content lies complete beside it, it is copied into the same file.
        """
        resolved = self.resolve(path, "write")
        name = self.show(resolved)
        temporary = f".pod-{secrets.token_hex(8)}.tmp"
        try:
            folder = self.open_folder(resolved.parent, make=True)
        except OSError as e:
            raise _fault(name, e) from e
        try:
            old = _stat_in(folder, resolved.name)
            if old is not None:
                _only_regular(name, old)
                self.protected.guard(resolved).check_file(old)
            linked = old if old is not None and old.st_nlink > 1 else None
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=folder)
            try:
                with os.fdopen(fd, "wb") as file:
                    yield file
                    file.flush()
                    if old is not None:
                        _keep_owner_and_mode(fd, old)
                    os.fsync(fd)
                    if unchanged is not None and not same_state(unchanged, _stat_in(folder, resolved.name)):
                        raise _changed(name)
                    if linked is not None:
                        _copy_into(folder, resolved.name, fd, linked, _Names(name, temporary))
                if linked is None:
                    os.replace(temporary, resolved.name, src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    os.unlink(temporary, dir_fd=folder)
            except _PartlyWritten:
                raise
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise
        except OSError as e:
            raise _fault(name, e) from e
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def open_append(self, path: str | Path) -> Generator[Appended, None, None]:
        """A file, open at its end for reading and writing; made where it is missing, with its folders.

        A block that raises cuts the file back to what it was.
        """
        resolved = self.resolve(path, "write")
        name = self.show(resolved)
        try:
            folder = self.open_folder(resolved.parent, make=True)
            try:
                old = _stat_in(folder, resolved.name)
                if old is not None:
                    _only_regular(name, old)
                fd = os.open(resolved.name, os.O_RDWR | os.O_APPEND | os.O_CREAT | _FILE, 0o666, dir_fd=folder)
            finally:
                os.close(folder)
            with os.fdopen(fd, "r+b", buffering=0) as file:
                info = os.fstat(fd)
                _only_regular(name, info)
                self.protected.guard(resolved).check_file(info)
                try:
                    yield Appended(resolved, name, file, None if old is None else info)
                except BaseException:
                    os.ftruncate(fd, info.st_size)
                    raise
        except OSError as e:
            raise _fault(name, e) from e

    def _missing(self, text: str, resolved: Path) -> ToolFault:
        """The error for a path that does not exist, with the nearest name in the first folder that does."""
        missing, folder = resolved, resolved.parent
        while not folder.is_dir() and folder != folder.parent:
            missing, folder = folder, folder.parent
        if any(folder.is_relative_to(root) for root in self.read_roots):
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                looked_at = islice(entries, _NAMES_LOOKED_AT)
                names = [entry.name for entry in looked_at if not self.hidden(folder / entry.name)]
                near = difflib.get_close_matches(missing.name, names, 1, 0.6)
                if near:
                    return ToolFault(f"no such file: {text}. Did you mean {self.show(folder / near[0])}?")
            return ToolFault(f"no such file: {text}. list_files(path={self.show(folder)!r}) shows what is there.")
        return ToolFault(f"no such file: {text}. list_files shows what is there.")


def _stat_in(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def same_state(one: os.stat_result, other: os.stat_result | None) -> bool:
    """Whether two looks at a path saw the same file with the same content, as far as size and times tell."""
    if other is None:
        return False
    keys = (one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns)
    return keys == (other.st_dev, other.st_ino, other.st_size, other.st_mtime_ns)


class _PartlyWritten(ToolFault):
    """A file is neither the old one nor the new one; the new content lies beside it."""


class _Names(NamedTuple):
    shown: str
    temporary: str


def _changed(name: str) -> ToolFault:
    return ToolFault(f"not written: {name} changed at this very moment. Read it again, then write.")


def _copy_into(folder: int, name: str, source: int, old: os.stat_result, names: _Names) -> None:
    """Makes an existing file hold what `source` holds. What is longer than the old content comes first, so that a full disk
    leaves the old content."""
    target = os.open(name, os.O_WRONLY | _FILE, dir_fd=folder)
    try:
        if not same_state(old, os.fstat(target)):
            raise _changed(names.shown)
        length = os.fstat(source).st_size
        try:
            _copy(source, target, old.st_size, length)
        except BaseException:
            os.ftruncate(target, old.st_size)
            raise
        try:
            _copy(source, target, 0, min(old.st_size, length))
            os.ftruncate(target, length)
            os.fsync(target)
        except OSError as e:
            raise _PartlyWritten(
                f"{names.shown} is only partly written ({e.strerror}); all of the new content lies beside it in {names.temporary}."
            ) from e
    finally:
        os.close(target)


def _copy(source: int, target: int, start: int, end: int) -> None:
    at = start
    while at < end:
        at += os.pwrite(target, os.pread(source, min(end - at, 1 << 20), at), at)
    os.fsync(target)


def _keep_owner_and_mode(fd: int, old: os.stat_result) -> None:
    new = os.fstat(fd)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        # Only root may give files away; for anyone else the new owner is the writer, as with any editor that renames.
        with contextlib.suppress(PermissionError):
            os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, stat.S_IMODE(old.st_mode))


def _no_circle(text: str, resolved: Path) -> None:
    """Links that lead to each other resolve to themselves; they are told apart from one that came since."""
    try:
        resolved.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ToolFault(
                f"{text}: a link there leads back to itself, so nothing can be opened by this name."
            ) from error


def _only_regular(name: str, info: os.stat_result) -> None:
    if stat.S_ISREG(info.st_mode):
        return
    if stat.S_ISDIR(info.st_mode):
        raise ToolFault(f"{name} is a directory, not a file: list_files shows what it holds.")
    if stat.S_ISLNK(info.st_mode):
        raise ToolFault(
            f"{name} was changed to a symbolic link while it was being opened; it is not followed. Try again."
        )
    raise ToolFault(f"{name} is a {kind_of(info.st_mode)}, not a regular file; it is not opened.")


def _fault(name: str, error: OSError) -> ToolFault:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return ToolFault(f"{name}: a part of the path is not a directory (or became a link while it was being opened).")
    if error.errno == errno.ENAMETOOLONG:
        return ToolFault(f"{clipped(name, 80)}: the name is too long.")
    if error.errno == errno.EACCES:
        return ToolFault(f"{name}: the operating system denies access to it.")
    return ToolFault(f"{name}: {error.strerror or error}")
