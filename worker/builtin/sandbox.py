"""The sandbox of the processes that are started for an agent: bubblewrap, with no more of the machine than the scope names.

What is in it is decided by `mounts`, a pure function; `Sandbox` looks at the disk and makes the command line. A sandbox
that was asked for and can't be made is an error (`trouble`), never a reason to go without.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from worker.builtin.protected import led_to

Mode: TypeAlias = Literal["workspace", "read-only"]
Git: TypeAlias = Literal["read-only", "writable"]

SYSTEM = tuple(
    map(
        Path,
        [
            "/usr",
            "/bin",
            "/sbin",
            "/lib",
            "/lib32",
            "/lib64",
            "/libx32",
            "/etc",
            "/opt",
            "/nix",
            "/gnu",
            "/run/current-system",
        ],
    )
)
"""Folders with programs and their settings: all that is there of the machine besides the scope, and read-only."""

PROGRAMS = "/usr/bin:/bin:/usr/local/bin:/run/wrappers/bin:/run/current-system/sw/bin"
"""Where bubblewrap is looked for. Not on the PATH: a folder of the project may stand in it, which the agent writes."""

REFUSED = 125
"""The exit code where a place changed while its sandbox was being made: the command was not run."""

_TMP = Path("/tmp")
_OWN = frozenset({"TMPDIR", "TEMP", "TMP", "XDG_RUNTIME_DIR"})
_REPOSITORIES = 64
_FOLDERS_LOOKED_AT = 5_000
_PROBE_SECONDS = 20

# Run first in the sandbox: are the places that were mounted over those that were looked at?
_CHECKED = (
    'seen=$(stat -c %d:%i -- {places}) && [ "$seen" = "$1" ] || '
    '{{ echo "not run: a protected place changed while the sandbox was being made; try again" >&2; exit {code}; }}; '
    'shift; exec "$@"'
)
# A parent of its own, with one thread: a process is killed with the thread that started it (--die-with-parent), and
# those of the runtime come and go.
_PARENT = ("/bin/sh", "-c", '"$@"; exit $?', "sh")


class View(NamedTuple):
    """What a sandbox shows, all paths real: `guarded` places in `write` roots stay read-only, `hidden` ones are empty."""

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    guarded: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    home: Path | None = None
    private: bool = True
    """Whether the home folder is one to write in, empty at first and gone with the command."""


class Mount(NamedTuple):
    """One mount. `checked` says that an agent may write beside it, so that it might have been swapped for a link."""

    how: Literal["tmpfs", "dir", "ro-bind", "bind", "mask"]
    path: Path
    checked: bool = False


def mounts(view: View) -> list[Mount]:
    """All mounts of a view, in their order: what lies deeper covers what it lies in. Pure."""
    closed = (*view.guarded, *view.hidden)
    write = _outermost(p for p in view.write if not _in(p, closed))
    read = _outermost(p for p in view.read if not _in(p, (*view.hidden, *write)))
    roots = (*read, *write)
    found: list[tuple[int, Mount]] = []
    if _TMP not in roots:
        found.append((0, Mount("tmpfs", _TMP)))
    if view.home is not None and view.home.parent != view.home and not _in(view.home, (*roots, *view.hidden)):
        found.append((0, Mount("tmpfs" if view.private else "dir", view.home)))
    found += [(1, Mount("ro-bind", p)) for p in SYSTEM if not _in(p, roots)]
    found += [(2, Mount("ro-bind", p)) for p in read]
    found += [(3, Mount("bind", p)) for p in write]
    for place in closed:
        root = next((p for p in write if place.is_relative_to(p)), None)
        if root is None:
            continue
        # A folder on the way that is no mount of its own could be moved away, the place with it.
        between = place.relative_to(root).parts[:-1]
        found += [(4, Mount("bind", root.joinpath(*between[: n + 1]), True)) for n in range(len(between))]
    shown = (*roots, *SYSTEM)
    found += [(5, Mount("ro-bind", p, True)) for p in view.guarded if _in(p, write) and not _in(p, view.hidden)]
    found += [(6, Mount("mask", p)) for p in _outermost(view.hidden) if _in(p, shown)]
    ordered = sorted(dict.fromkeys(found), key=lambda each: (len(each[1].path.parts), each[0]))
    return [mount for _, mount in ordered]


def _in(path: Path, places: Iterable[Path]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def _outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    kept: list[Path] = []
    for path in sorted(set(paths), key=lambda p: len(p.parts)):
        if not _in(path, kept):
            kept.append(path)
    return tuple(kept)


@dataclass(frozen=True)
class Sandbox:
    """What processes for an agent are kept to. All paths are real ones.

    `mode` workspace: `write` roots are writable but for `.git` (where `git` is read-only), `.pod` and `guarded` places;
    read-only: nothing is, but a private /tmp. `hidden` places are never there. `network` False: no network, not even
    that of the machine itself. `kept` are folders that are made before a command could make them itself, so that they are
    there to be guarded or hidden. The methods that make command lines block: they look at the disk.
    """

    mode: Mode
    cwd: Path
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    guarded: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    kept: tuple[Path, ...] = ()
    network: bool = False
    git: Git = "read-only"
    program: str | None = field(default_factory=lambda: shutil.which("bwrap", path=PROGRAMS))

    def command(self, argv: Sequence[str], cwd: Path) -> list[str]:
        """`argv` in the sandbox, for a caller with a single thread that outlives the command (a supervisor)."""
        write = self.write if self.mode == "workspace" else ()
        for root in write:
            with contextlib.suppress(OSError):
                root.mkdir(parents=True, exist_ok=True)
        for folder in self.kept:
            if _in(folder, write):
                with contextlib.suppress(OSError):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        guarded = tuple(self._guards()) if write else ()
        home = Path(os.path.realpath(Path.home()))
        view = View((*self.read, *self.write), write, guarded, self.hidden, home, self.mode == "workspace")
        found = mounts(view)
        seen = _looked_at(mount.path for mount in found if mount.checked)
        # What is a link by now, or gone, has nothing in it to keep from being written.
        found = [mount for mount in found if not mount.checked or str(mount.path) in seen]
        return [*self._setup(found, cwd), *_if_unswapped(seen, argv)]

    def child(self, argv: Sequence[str], cwd: Path) -> list[str]:
        """`argv` in the sandbox, for a process that the runtime itself starts and holds the pipes of (a server, a hook).

        Killing the process that this starts ends all that is in the sandbox.
        """
        return [*_PARENT, *self.command(argv, cwd)]

    def reading(self, argv: Sequence[str], cwd: Path, paths: Iterable[Path]) -> list[str]:
        """As `child`, for a program of the runtime's own that only reads: `paths`, the program and the system's folders
        are there.
        """
        program, *rest = argv
        program = os.path.realpath(program)
        found = mounts(View(tuple(Path(os.path.realpath(p)) for p in (*paths, program)), private=False))
        return [*_PARENT, *replace(self, network=False)._setup(found, cwd), program, *rest]

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """What of an environment holds in the sandbox: places for temporary files are its own."""
        return {key: value for key, value in given.items() if key not in _OWN} | {"TMPDIR": str(_TMP)}

    def told(self) -> str:
        """What the sandbox is, for the result of a command that failed in it: one line."""
        writes = _names(self.write, self.cwd) if self.mode == "workspace" else ""
        kept = ", but not .git" if writes and self.git == "read-only" else ""
        return (
            f"[ran in a sandbox ({self.mode}): reads {_names((*self.read, *self.write), self.cwd) or 'nothing'}; "
            f"writes {writes or 'nothing'}{kept}; a private /tmp; {'network' if self.network else 'no network'}. "
            "Only the user can change that ([sandbox], [scope])]"
        )

    def trouble(self) -> str | None:
        """Why there can be no sandbox here, with the way out; None where one was made. Blocks: it makes one."""
        wanted = f'[sandbox] mode = "{self.mode}" can\'t be kept'
        off = 'or set [sandbox] mode = "off", and commands run with all that you may do'
        if sys.platform != "linux":
            return f"{wanted}: there is a sandbox on Linux only. Run the agent in a Linux container, {off}"
        if self.program is None:
            return f"{wanted}: bubblewrap is not installed (no bwrap in {PROGRAMS}). Install it (package bubblewrap), {off}"
        try:
            done = subprocess.run(
                self.child(["true"], self.cwd),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_SECONDS,
                check=False,
                cwd="/",
            )
            why = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{wanted}: {self.program} does not work here ({error}). Mend that, {off}"
        if done.returncode == 0:
            return None
        return (
            f"{wanted}: {self.program} does not work here ({why}). It needs user namespaces: "
            f"`sysctl kernel.unprivileged_userns_clone user.max_user_namespaces`, AppArmor, or the container's "
            f"seccomp profile may forbid them. Allow them, {off}"
        )

    def _guards(self) -> Iterator[Path]:
        """Places in the write roots that stay read-only, as far as they are there and no link leads to them."""
        for place in dict.fromkeys((*self.guarded, *self._by_name())):
            if os.path.lexists(place) and os.path.realpath(place) == str(place):
                yield place

    def _by_name(self) -> Iterator[Path]:
        names = (".pod",) if self.git == "writable" else (".git", ".pod")
        folders = dict.fromkeys((self.cwd, *self.write))
        for folder in folders:
            yield from _with_led_to(folder / name for name in names)
        for root in self.write:
            below = (folder / name for folder in _folders(root) for name in names)
            yield from _with_led_to(islice((place for place in below if os.path.lexists(place)), _REPOSITORIES))

    def _setup(self, found: Sequence[Mount], cwd: Path) -> list[str]:
        words = [self.program or "bwrap", "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        words += ["--unshare-cgroup-try", "--hostname", "pod", "--die-with-parent", "--new-session"]
        words += ["--cap-drop", "ALL"]
        for mount in found:
            words += _words(mount)
        if self.network:
            resolver = os.path.realpath("/etc/resolv.conf")
            words += ["--ro-bind-try", resolver, resolver]
        else:
            words.append("--unshare-net")
        words += ["--dev", "/dev", "--proc", "/proc"]
        if not any(m.how in ("bind", "ro-bind") and cwd.is_relative_to(m.path) for m in found):
            words += ["--dir", str(cwd)]
        for mount in found:
            words += ["--remount-ro", str(mount.path)] if mount.how == "mask" else []
        if not any(m.path == Path("/") for m in found):
            words += ["--remount-ro", "/"]
        return [*words, "--chdir", str(cwd), "--"]


def lent(services: Mapping[type, object]) -> Sandbox | None:
    """The sandbox among the services of a tool, where the manifest asks for one."""
    found = services.get(Sandbox)
    return found if isinstance(found, Sandbox) else None


def _words(mount: Mount) -> list[str]:
    path = str(mount.path)
    match mount.how:
        case "tmpfs":
            return ["--perms", "1777" if mount.path == _TMP else "0700", "--tmpfs", path]
        case "mask":
            return ["--perms", "0500", "--tmpfs", path]
        case "dir":
            return ["--dir", path]
        case _:
            return [f"--{mount.how}-try", path, path]


def _looked_at(places: Iterable[Path]) -> dict[str, str]:
    """Which file or folder each place is now; those that are links or gone, or lie below such a place, are left out."""
    seen: dict[str, str] = {}
    gone: list[Path] = []
    for place in places:
        try:
            info = os.lstat(place)
        except OSError:
            info = None
        if info is None or stat.S_ISLNK(info.st_mode) or _in(place, gone):
            gone.append(place)
        else:
            seen[str(place)] = f"{info.st_dev}:{info.st_ino}"
    return {place: which for place, which in seen.items() if not _in(Path(place), gone)}


def _if_unswapped(seen: Mapping[str, str], argv: Sequence[str]) -> list[str]:
    """`argv`, run only where these places are in the sandbox what they were outside."""
    if not seen:
        return list(argv)
    script = _CHECKED.format(places=" ".join(map(shlex.quote, seen)), code=REFUSED)
    return ["/bin/sh", "-c", script, "sh", "\n".join(seen.values()), *argv]


def _folders(root: Path) -> list[Path]:
    """The folders directly in a root, no links."""
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        looked_at = islice(entries, _FOLDERS_LOOKED_AT)
        return [root / entry.name for entry in looked_at if entry.is_dir(follow_symlinks=False)]
    return []


def _with_led_to(places: Iterable[Path]) -> Iterator[Path]:
    """Places, each with the folders that it stands for where it is none itself."""
    for place in places:
        yield place
        yield from led_to(place)


def _names(paths: Iterable[Path], cwd: Path) -> str:
    shown = (p.relative_to(cwd).as_posix() if p.is_relative_to(cwd) else str(p) for p in paths)
    return ", ".join(dict.fromkeys(shown))
