"""A pod from its export: everything is checked in a folder of its own, then placed in one step."""

from __future__ import annotations

import errno
import hashlib
import shutil
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from pydantic import ValidationError

from pod.contents import CONTENTS, FORMAT, POINTER, Contents, Part, allowed, is_origin, part_of, segment_of, side_of
from pod.errors import ImportRefused, LogDamaged, NewerFormat, PodExists, UsageProblem
from pod.log import entries as e
from pod.log.files import Files, json_of, named
from pod.log.folder import PodFolder, Pointer, check_name
from pod.log.segment import CHUNK, Damage, scan
from pod.log.texts import NEEDED, texts_of
from pod.reading import SessionReader
from pod.session import load
from pod.staging import new_stage, owned
from worker.ids import uuid7

CONTENTS_LIMIT = 64 * 1024 * 1024
"""Bytes that the list of contents may have."""

PADDING_LIMIT = 1024 * 1024
"""Zero bytes that may follow the last part."""

_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported: the pod's name here and in the file, segments of its session, files, bytes, its working folder.
    `origins` are the segments that a fork took along of the sessions it descends from."""

    name: str
    was: str
    session: str
    segments: int
    files: int
    size: int
    cwd: str
    origins: int = 0


def import_pod(source: Path | BinaryIO, home: Path, name: str | None = None) -> Imported:
    """Makes a pod of what `pod.transfer.export_pod` wrote, under its own name or another one. Blocks; durable.

    All is unpacked beside the pods, every hash and every entry's checksum is checked, and one rename places it: until
    then nothing of `home` has changed, and whatever is raised, or a kill, leaves no pod behind. Files are 0600, folders
    0700. The pod counts as another one than that it came from: jobs and processes of that one are not its own.

    The pod brings its manifest, permissions included: import what you trust. Raises `ImportRefused`, `PodExists`,
    `UsageProblem` for a name, `NewerFormat`, `OSError`.
    """
    with _opened(source) as (label, stream), _archive(label, stream) as tar:
        contents = _contents(label, tar)
        target = PodFolder(home, check_name(contents.pod if name is None else name))
        _refuse_taken(target)
        with _staging(target) as stage:
            staged = PodFolder(stage, "pod")
            _unpack(label, tar, contents, staged)
            _refuse_more(label, tar)
            pointer = _verified(label, contents, staged)
            cwd = texts_of(staged, pointer.segment).get("cwd")
            cwd = "" if cwd is None else staged.blob(cwd)
            staged.set_pointer(pointer.model_copy(update={"name": target.name, "imported": uuid7()}))
            _place(staged, target)
    logs = sum(segment_of(part.name) is not None for part in contents.parts)
    size = sum(part.size for part in contents.parts)
    origins = sum(is_origin(part.name) for part in contents.parts)
    return Imported(target.name, contents.pod, contents.session, logs, len(contents.parts), size, cwd, origins)


# -- reading the file -----------------------------------------------------------------------------------------


@contextmanager
def _opened(source: Path | BinaryIO) -> Generator[tuple[str, BinaryIO]]:
    if not isinstance(source, Path):
        yield str(getattr(source, "name", "standard input")), source
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise ImportRefused(source, f"can't be read ({error.strerror})") from error
    with file:
        yield str(source), file


@contextmanager
def _archive(label: str, stream: BinaryIO) -> Generator[tarfile.TarFile]:
    """The file as a stream of parts; whatever is wrong with its form is said in one way."""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            yield tar
    except (tarfile.TarError, EOFError) as error:
        raise ImportRefused(label, f"not a whole export of a pod ({error})") from error


def _next(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    try:
        return tar.next()
    except (ValueError, OverflowError) as error:  # headers that make no sense
        raise tarfile.ReadError(str(error)) from error


def _contents(label: str, tar: tarfile.TarFile) -> Contents:
    first = _next(tar)
    if first is None or first.name != CONTENTS or first.type not in _PLAIN or first.size > CONTENTS_LIMIT:
        raise ImportRefused(label, f"not an export of a pod: it does not begin with {CONTENTS}")
    try:
        raw: Any = json_of(_data(tar, first).read(first.size))
        said = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        if said.get("kind") != "pod-export":
            raise ImportRefused(label, f"not an export of a pod: {CONTENTS} says nothing of one")
        found = said.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise NewerFormat(label, found, FORMAT)
        contents = Contents.model_validate(raw)
    except ValidationError as error:
        raise ImportRefused(label, f"{CONTENTS} does not read ({e.first_problem(error)})") from error
    except ValueError as error:
        raise ImportRefused(label, f"{CONTENTS} does not read ({error})") from error
    _check_names(label, contents.parts)
    return contents


def _check_names(label: str, parts: tuple[Part, ...]) -> None:
    known: set[str] = set()
    for part in parts:
        if not allowed(part.name):
            _refuse_name(label, part.name)
        if part.name in known:
            raise ImportRefused(label, f"{part.name} stands in it twice")
        if part.name.startswith("blobs/") and part.name != f"blobs/{part.sha256}":
            raise ImportRefused(label, f"{part.name} was altered: its hash is not its name")
        known.add(part.name)
    if POINTER not in known:
        raise ImportRefused(label, f"incomplete: {POINTER} is missing")


def _refuse_name(label: str, name: str) -> None:
    shown = ascii(name[:120])
    outside = name.startswith(("/", "~")) or "\\" in name or ".." in name.split("/")
    raise ImportRefused(label, f"{shown} " + ("leads out of a pod's folder" if outside else "is no file of a pod"))


def _data(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    data = tar.extractfile(member)
    if data is None:
        raise tarfile.ReadError(f"{member.name} holds nothing")
    return data


# -- unpacking and checking -----------------------------------------------------------------------------------


def _unpack(label: str, tar: tarfile.TarFile, contents: Contents, staged: PodFolder) -> None:
    files = staged.files
    files.make_folder(staged.path)
    folders = {staged.path}
    for part in contents.parts:
        member = _next(tar)
        if member is None:
            raise ImportRefused(label, f"incomplete: {part.name} is missing")
        if member.name != part.name and not allowed(member.name):
            _refuse_name(label, member.name)
        if member.type not in _PLAIN or member.issparse():
            raise ImportRefused(label, f"{member.name[:120]!a} is a link or no plain file")
        if (member.name, member.size) != (part.name, part.size):
            raise ImportRefused(label, f"altered: {part.name} ({part.size} bytes) is not where {CONTENTS} says")
        path = staged.path / part.name
        if path.parent not in folders:
            files.make_folder(path.parent)
            folders.add(path.parent)
        if _copy(_data(tar, member), path, files) != part.sha256:
            raise ImportRefused(label, f"{part.name} was altered: its hash is not that of {CONTENTS}")
    if (more := _next(tar)) is not None:
        raise ImportRefused(label, f"{more.name[:120]!a} is not named by {CONTENTS}")
    for folder in folders:
        files.sync_folder(folder)


def _refuse_more(label: str, tar: tarfile.TarFile) -> None:
    """Behind the last part an archive has padding, and nothing else."""
    rest = cast("IO[bytes]", tar.fileobj)  # open as long as the archive is
    padding = 0
    while chunk := rest.read(CHUNK):
        padding += len(chunk)
        if chunk.strip(b"\0") or padding > PADDING_LIMIT:
            raise ImportRefused(label, "something follows the end of the archive")


def _copy(data: IO[bytes], path: Path, files: Files) -> str:
    digest = hashlib.sha256()
    fd = files.open_append(path, create=True)
    try:
        while chunk := data.read(CHUNK):
            digest.update(chunk)
            with named(path):
                files.write(fd, chunk)
        with named(path):
            files.sync(fd)
    finally:
        files.close(fd)
    return digest.hexdigest()


def _verified(label: str, contents: Contents, staged: PodFolder) -> Pointer:
    """The pointer, where all logs are whole and are those of one session that can be resumed."""
    try:
        pointer = staged.pointer()
    except NewerFormat as error:
        raise NewerFormat(f"{label}: {POINTER}", error.found, error.known) from None
    except UsageProblem:
        raise ImportRefused(label, f"{POINTER} is not a pod's pointer") from None
    if (pointer.session, pointer.segment) != (contents.session, contents.segment):
        raise ImportRefused(label, f"{POINTER} names another session or segment than {CONTENTS}")
    logs = [part.name for part in contents.parts if part.name.endswith(".jsonl")]
    for name in logs:
        _check_log(label, name, staged.path / name)
    try:
        chain = SessionReader(staged).chain(origins=True)
        if [part_of(s) for s in chain.segments] != [name for name in logs if side_of(name) is None]:
            raise ImportRefused(label, "incomplete: its segments are not those of the session")
        if chain.end != contents.end:
            raise ImportRefused(label, f"incomplete: the oldest segment should be one that ends as {contents.end!r}")
        if any(side is not None and side not in {s.id for s in chain.segments} for side in map(side_of, logs)):
            raise ImportRefused(label, "a compact worker's log belongs to no segment")
        for use, digest in load(staged.segment_path(pointer.segment)).blobs.items():
            if use in NEEDED and not (staged.path / "blobs" / digest).is_file():
                raise ImportRefused(label, f"incomplete: blobs/{digest[:64]} is missing")
    except (ImportRefused, OSError):
        raise
    except Exception as error:  # entries of the right form can still tell of something that can't be
        raise ImportRefused(label, f"its active segment can't be replayed ({type(error).__name__})") from error
    return pointer


def _check_log(label: str, name: str, path: Path) -> None:
    try:
        for found in scan(path):
            if isinstance(found, Damage):
                raise ImportRefused(label, f"{name}:{found.number} is damaged: {found.reason}")
            e.record_of(found, path)
    except NewerFormat as error:
        raise NewerFormat(f"{label}: {name}", error.found, error.known) from None
    except LogDamaged as error:
        raise ImportRefused(label, f"{name}:{error.line} is damaged: {error.reason}") from error


# -- placing --------------------------------------------------------------------------------------------------


def _refuse_taken(target: PodFolder) -> None:
    if target.exists():
        raise PodExists(f"there is already a pod named {target.name!r}; import it under another name (--name)")
    try:
        taken = next(target.path.iterdir(), None) is not None
    except FileNotFoundError:
        return
    except NotADirectoryError:
        taken = True
    if taken:
        raise PodExists(
            f"{target.path} is there already (a group of pods, or what is left of one); import the pod under another "
            "name (--name)"
        )


@contextmanager
def _staging(target: PodFolder) -> Generator[Path]:
    """A folder of its own in the home, gone at the end, with the folders above it where they were made for it."""
    home = target.home
    made = [folder for folder in (home, *home.parents) if not folder.exists()]
    stage = new_stage(home)
    target.files.make_folder(stage)
    try:
        with owned(stage):
            yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if not target.exists():
            _remove_empty(made)


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def _place(staged: PodFolder, target: PodFolder) -> None:
    files = target.files
    parent = target.path.parent
    above = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    files.make_folder(parent)
    try:
        files.rename(staged.path, target.path)
    except OSError as error:
        _remove_empty(above)
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            _refuse_taken(target)
        raise
    files.sync_folder(parent)
