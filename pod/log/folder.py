"""A pod's folder: the pointer, the lock, blobs, artifacts, segments."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import socket
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pod.errors import NewerFormat, PodBusy, PodNotFound, StoreError, UsageProblem
from pod.log.files import Files, files_of, json_of, label_of, odd_kind, open_file, read_file
from pod.log.lines import Invalid, now, parse
from pod.names import of_a_pod, unfit_name
from worker.ids import uuid7
from worker.text import sha256

POINTER_FORMAT = 1
LOCK_TRIES = 3
"""How often the lock is tried: another process that only looks whether it is held holds it itself for a moment."""

KEY_BYTES = 36
"""Length of the secret of cursors: 4 bytes that name it, 32 that sign."""

_KEY_LOCK = threading.Lock()
_OF_THE_HOME = Files()


def default_home() -> Path:
    """`$POD_HOME`, else `$XDG_STATE_HOME/pod`, else `~/.local/state/pod`. Raises what `home_of` does."""
    return home_of(os.environ["POD_HOME"]) if os.environ.get("POD_HOME") else _state_home()


def local_home() -> Path:
    """Where this machine keeps what belongs to it alone, whatever the home of pods is: `default_home()` where that is a folder."""
    return _state_home() if is_shared(os.environ.get("POD_HOME", "")) else default_home()


def is_shared(home: str) -> bool:
    """Whether a home is a database."""
    return home.startswith(("postgresql://", "postgres://"))


def is_address(home: str) -> bool:
    """Whether a home is an address of any kind, and so no folder."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", home) is not None


def home_of(home: str) -> Path:
    """The folder of a home; of a shared one the copy that this process works on.

    Raises `UsageProblem` for an address that is none or without the extra, `PodError` where it can't be reached.
    """
    if not is_address(home):
        return Path(home).absolute()
    if not is_shared(home):  # not repeated: a password may stand in it
        raise UsageProblem(
            f"the home begins with {home.partition('://')[0]}:// and is neither a folder nor a database that pods can lie in: such an address "
            "begins with postgresql://"
        )
    from pod.store.mounting import mount

    return mount(home, _state_home() / "shared")


def _state_home() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state).absolute() / "pod"


def check_name(name: object) -> str:
    """The name, where it can be a pod's. Raises `UsageProblem`."""
    if not isinstance(name, str):
        raise UsageProblem(f"a pod's name is text, not {type(name).__name__} ({repr(name)[:60]})")
    if (why := unfit_name(name)) is not None:
        raise UsageProblem(f"{name[:200]!r} can't be a pod's name: {why}")
    return name


class Pointer(BaseModel):
    """`pod.json`: which session and which segment are active. Replaced as a whole.

    `imported` is an id of its own for a pod that came from a file: it shares its session with the pod that was exported.
    """

    model_config = ConfigDict(frozen=True)

    format: int = POINTER_FORMAT
    name: str
    session: str
    segment: str
    generation: int = 0
    created: str = ""
    imported: str = ""

    @property
    def owner(self) -> str:
        """What marks the child processes of this pod, and of no other."""
        return self.imported or self.session


@dataclass
class PodFolder:
    """One pod on disk. Reading needs no lock; writing does (`lock`)."""

    home: Path
    name: str
    files: Files = _OF_THE_HOME
    _lock: int | None = None

    def __post_init__(self) -> None:
        if self.files is _OF_THE_HOME:
            self.files = files_of(self.home)

    @property
    def path(self) -> Path:
        """The pod's folder."""
        return self.home / "pods" / self.name

    @property
    def pointer_path(self) -> Path:
        """The file that names the active segment."""
        return self.path / "pod.json"

    @property
    def inbox(self) -> Path:
        """Where other processes leave commands."""
        return self.path / "inbox"

    @property
    def artifacts(self) -> Path:
        """Where spooled output lies."""
        return self.path / "artifacts"

    def segment_path(self, segment: str) -> Path:
        """The log of a segment."""
        return self.path / f"{segment}.jsonl"

    @property
    def origin(self) -> Path:
        """Where a fork keeps the logs that it took along of the sessions it descends from: read, never written to."""
        return self.path / "origin"

    def origin_path(self, segment: str) -> Path:
        """The log of a segment of a session that this pod was forked from."""
        return self.origin / f"{segment}.jsonl"

    def exists(self) -> bool:
        """Whether a pod of this name was made: its pointer is here, or what stands in its place, or logs that were begun."""
        self.files.look(self.path)
        return os.path.lexists(self.pointer_path) or bool(self.begun_logs())

    def is_left_over(self) -> bool:
        """Whether a pod was begun to be made here, and is none: its process makes it still, or was killed."""
        return not self.exists() and (
            any(os.path.lexists(self.path / n) for n in ("lock", "blobs")) or bool(self.logs())
        )

    def logs(self) -> list[Path]:
        """The logs of segments that lie here, those of compact workers left out."""
        return sorted(path for path in self.path.glob("*.jsonl") if ".compact-" not in path.name)

    def begun_logs(self) -> list[Path]:
        """Those that hold more than the one entry which a killed process left while it made the pod."""
        return [path for path in self.logs() if not _unbegun(path)]

    # -- pointer ----------------------------------------------------------------------------------------------

    def pointer(self) -> Pointer:
        """Reads the pointer. Raises `PodNotFound`, `NewerFormat`, `UsageProblem` where it is no pointer."""
        self.files.look(self.path)
        try:
            data = read_file(self.pointer_path)
        except OSError as error:
            if (kind := odd_kind(self.pointer_path)) is not None:
                raise self._no_pointer(f"{kind}, not a pod's pointer") from None
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                raise self._not_found() from None
            raise
        try:
            raw: dict[str, Any] = json_of(data)
            if int(raw.get("format", 0)) > POINTER_FORMAT:
                raise NewerFormat(self.pointer_path, raw["format"], POINTER_FORMAT)
            return Pointer.model_validate(raw)
        except (ValueError, AttributeError, TypeError) as e:
            raise self._no_pointer(f"not a pod's pointer ({type(e).__name__})") from e

    def _not_found(self) -> PodNotFound:
        if self.begun_logs():
            return PodNotFound(
                f"{self.pointer_path} is missing, but logs of a pod lie beside it; `pod doctor {self.name} --repair` "
                "writes it anew"
            )
        if self.is_left_over():
            return PodNotFound(f"there is no pod named {self.name!r} in {label_of(self.home)}: {self.left_over}")
        near = suggestion(self.name, (n for n in pod_names(self.home)))
        return PodNotFound(
            f"there is no pod named {self.name!r} in {label_of(self.home)}.{near} `pod ls` (in code: pod.pod_names) lists them."
        )

    @property
    def left_over(self) -> str:
        """What is to be said where `is_left_over`."""
        if self.is_busy():
            return "a process is making one"
        return (
            f"a process was killed while it made one; `pod rm {self.name}` or the next `pod gc` removes what it left, "
            f"`pod run --name {self.name}` makes the pod"
        )

    def _no_pointer(self, why: str) -> UsageProblem:
        return UsageProblem(f"{self.pointer_path}: {why}; `pod doctor {self.name} --repair` writes it anew")

    def set_pointer(self, pointer: Pointer) -> None:
        """Replaces the pointer, durably. Before it the old segment is active, after it the new one."""
        self.files.put(self.pointer_path, pointer.model_dump_json().encode() + b"\n")

    # -- one writer -------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Becomes the one writer. Raises `PodBusy` with the owner where another process is."""
        self.files.make_folder(self.path)
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise UsageProblem(f"{self.path / 'lock'}: not a regular file; remove it, and a new one is made")
        for left in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as e:
                if left and e.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                    time.sleep(0.01)
                    continue
                os.close(fd)
                if e.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                    raise PodBusy(self.name, self.owner()) from None
                raise
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(owner).encode(), 0)
        except OSError as e:
            os.close(fd)
            raise StoreError(self.path / "lock", "write", e) from e
        try:
            self.files.claim(self.path)
        except OSError as e:
            os.close(fd)
            raise StoreError(self.path, "taking the lease", e) from e
        except BaseException:
            os.close(fd)
            raise
        self._lock = fd

    def owner(self) -> dict[str, Any]:
        """Who holds the lock, as the holder wrote it."""
        if self._lock is None and (found := self.files.owner(self.path)):
            return found
        try:
            value: Any = json_of(read_file(self.path / "lock") or b"{}")
            return dict(value)
        except (OSError, ValueError, TypeError):
            return {}

    def is_busy(self) -> bool:
        """Whether some process is the writer now."""
        if self._lock is not None or self.files.owner(self.path):
            return True
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def unlock(self) -> None:
        """Stops being the writer."""
        if self._lock is not None:
            try:
                self.files.give_back(self.path)
            finally:
                os.close(self._lock)
                self._lock = None

    # -- cursors ----------------------------------------------------------------------------------------------

    @property
    def cursor_key_path(self) -> Path:
        """Where the secret lies that cursors into this pod's history are signed with (`pod.tools.history_cursor`)."""
        return self.path / "cursor.key"

    def cursor_key(self, *, make: bool = False) -> bytes | None:
        """The secret of cursors, or None where there is none; with `make`, a new one then. Raises `OSError`."""
        with _KEY_LOCK:
            try:
                data = read_file(self.cursor_key_path)
            except FileNotFoundError:
                data = b""
            if len(data) == KEY_BYTES:
                return data
            if not make:
                return None
            data = secrets.token_bytes(KEY_BYTES)
            self.files.put(self.cursor_key_path, data)
            return data

    def expire_cursors(self) -> None:
        """Makes all cursors of before invalid, durably: called before the session is changed other than by appends."""
        if self.cursor_key_path.exists():
            self.files.unlink(self.cursor_key_path)
            self.files.sync_folder(self.path)

    # -- blobs ------------------------------------------------------------------------------------------------

    def put_blob(self, text: str) -> str:
        """Keeps a text by its SHA-256 and returns that. Durable when it returns. A folder in its place goes to the quarantine.

        A path keeps its bytes that are no UTF-8.
        """
        data = text.encode("utf-8", "surrogateescape")
        label = sha256(data)
        if not self.holds(label):
            path = self.path / "blobs" / label
            self.files.make_folder(path.parent)
            if path.is_dir() and not path.is_symlink():  # a file can't take its place
                self.set_aside(path, uuid7()[-12:])
            self.files.put(path, data)
        return label

    def quarantined(self, path: Path, mark: str) -> Path:
        """Where what is damaged is put aside."""
        return self.path / "quarantine" / f"{path.name[:64]}.{mark[:12]}.bad"

    def set_aside(self, path: Path, mark: str) -> Path:
        """Moves what is damaged to the pod's quarantine, durably, and returns where it lies now."""
        target = self.quarantined(path, mark)
        self.files.make_folder(target.parent)
        self.files.rename(path, target)
        self.files.sync_folder(target.parent)
        self.files.sync_folder(path.parent)
        return target

    def holds(self, label: str) -> bool:
        """Whether a blob is here and unaltered."""
        try:
            return bool(label) and sha256(read_file(self.path / "blobs" / label)) == label
        except (OSError, ValueError):
            return False

    def blob(self, label: str) -> str:
        """The text of a blob. Raises `UsageProblem` where it is missing or altered."""
        path = self.path / "blobs" / label
        try:
            data = read_file(path)
        except OSError as e:
            raise UsageProblem(
                f"{path}: a text that the log refers to is missing ({e.strerror}); `pod doctor {self.name}` says which"
            ) from e
        if sha256(data) != label:
            raise UsageProblem(
                f"{path}: a text that the log refers to was altered; `pod doctor {self.name}` says which"
            )
        return data.decode("utf-8", "surrogateescape")


def _unbegun(path: Path) -> bool:
    """Whether a log has its first entry alone, and that of a fresh session: nothing was ever done in it."""
    try:
        with open_file(path) as file:
            first, more = file.readline(), file.read(1)
        line = parse(first.removesuffix(b"\n"), 0, 1)
        return not more and line.kind == "segment_started" and json_of(line.body)["lineage"]["kind"] == "fresh"
    except (OSError, Invalid, ValueError, LookupError, TypeError):
        return False


def pod_names(home: Path) -> Iterator[str]:
    """The names of all pods, sorted, those that can't be read too."""
    with files_of(home).steady():
        return iter([folder.name for folder in _folders(home) if folder.exists()])


def left_over_names(home: Path) -> Iterator[str]:
    """Names under which pods were begun to be made, and are none."""
    return (folder.name for folder in _folders(home) if folder.is_left_over())


def _folders(home: Path) -> Iterator[PodFolder]:
    """What may be a pod's folder, by name; a bounded walk (groups are at most four folders deep)."""
    root = home / "pods"
    files_of(home).names(home)

    def walk(folder: Path, depth: int) -> Iterator[PodFolder]:
        try:
            children = sorted(folder.iterdir())
        except OSError:
            return
        for child in children:
            if of_a_pod(child.name):
                continue
            yield PodFolder(home, child.relative_to(root).as_posix())
            if depth < 4 and child.is_dir() and not child.is_symlink():
                yield from walk(child, depth + 1)

    yield from walk(root, 1)


def suggestion(name: str, names: Iterator[str]) -> str:
    """` Did you mean 'x'?` where a name is near, else nothing."""
    import difflib

    near = difflib.get_close_matches(name, list(names), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
