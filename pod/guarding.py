"""What no tool of an agent may write, and what its processes are kept to: found from the manifest and where it came from."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pod.errors import UsageProblem
from pod.log.folder import default_home, local_home
from pod.log.texts import USES, way_out
from pod.manifest import Manifest
from pod.session import Session
from worker.builtin.sandbox import Sandbox
from worker.builtin.scope import Scope

_LONGEST_NAME = 255
"""Bytes of a file's name that systems take."""


def of_the_home(home: Path, roots: Iterable[Path]) -> list[Path]:
    """What of the folder of all pods is protected: all of it; where the agent works inside it, what the runtime keeps there."""
    home = Path(os.path.realpath(home))
    if not any(root.is_relative_to(home) for root in roots):
        return [home]
    return [home / name for name in ("pods", "crash", "trust")]


def protected_places(manifest: Manifest, home: Path, cwd: Path, files: Sequence[Path] = ()) -> list[Path]:
    """Files and folders that decide what the agent is, may do, or has run: no tool writes them.

    `files` are those that the manifest was read from. Every `.git` and `.pod` is protected by its name besides. Instruction
    files are not among them: what an agent writes there holds from the next run on, and is on record.
    """
    roots = [Path(os.path.realpath(cwd / root)) for root in (".", *manifest.scope.write)]
    found = [*of_the_home(home, roots), *_of_the_user(), *files]
    found += [Path(each) for each in (manifest.worker.system_prompt_file, manifest.worker.output_schema_file) if each]
    for command in (*(server.command for server in manifest.mcp), *(hook.command for hook in manifest.hooks)):
        found += _programs(command or (), cwd)
    for reference in (
        *manifest.tools.python,
        *(each.use for each in (*manifest.interceptors, *manifest.hooks) if each.use),
    ):
        found += _modules(reference.partition(":")[0])
    return [*dict.fromkeys(found)]


def files_text(files: Sequence[Path]) -> dict[str, str]:
    """The files of a manifest as a text of its own use among those of a segment; none where there are no files."""
    return {"files": json.dumps([str(file) for file in files])} if files else {}


def manifest_files(session: Session) -> tuple[Path, ...]:
    """The files that a session's manifest was read from. Blocks. Raises `UsageProblem` where the list of them is lost: nothing would
    keep the agent's tools from them."""
    label = session.state.blobs.get("files", "")
    if not label:
        return ()
    if not session.folder.holds(label):
        name = session.folder.name
        raise UsageProblem(
            f"pod {name!r} can't go on by itself: its {USES['files']} is lost, and its tools could write them; "
            f"{way_out(name, ('files',))} goes on"
        )
    found: Any = json.loads(session.folder.blob(label))
    return tuple(Path(each) for each in found)


def _of_the_user() -> tuple[Path, ...]:
    """What belongs to this user of this machine, wherever pods lie: the decisions about trust, and the configuration."""
    return local_home() / "trust", _user_folder()


def _user_folder() -> Path:
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(configured) if Path(configured).is_absolute() else Path(os.path.expanduser("~")) / ".config"  # noqa: PTH111
    return base / "pod"


def _programs(command: Sequence[str], cwd: Path) -> Iterator[Path]:
    """The program of a command, and files among its arguments: a script that an interpreter is given. One that is not there yet is among
    them: whoever made it would decide what runs."""
    for number, word in enumerate(command):
        if number == 0 and "/" not in word:
            where = shutil.which(word)
            if where is not None:
                yield Path(where)
            continue
        name = Path(word.partition("=")[2] if word.startswith("-") else word)
        if not name.parts or any(len(os.fsencode(part)) > _LONGEST_NAME or "\0" in part for part in name.parts):
            continue  # a program's text (`python -c`), or nothing
        place = cwd / name
        looks_like_one = number == 0 or len(name.parts) > 1 or bool(name.suffix) or word.startswith("./")
        if place.is_file() or (looks_like_one and not os.path.lexists(place)):
            yield place


def _modules(name: str) -> Iterator[Path]:
    """The files of a module that was imported, and of the packages around it."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        file = getattr(sys.modules.get(".".join(parts[:length])), "__file__", None)
        if isinstance(file, str):
            yield Path(file)


def sandbox_of(manifest: Manifest, home: Path, cwd: Path, scope: Scope | None = None) -> Sandbox | None:
    """The sandbox that a manifest asks for, None where it asks for none. Blocks; raises nothing, also where there can be none."""
    asked = manifest.sandbox
    if asked.mode == "off":
        return None
    scope = scope or Scope(cwd, read=manifest.scope.read, write=manifest.scope.write)
    hidden = of_the_home(home, (scope.cwd, *scope.write_roots))
    own = [*hidden, *(Path(os.path.realpath(place)) for place in _of_the_user())]
    reached = scope.write_roots if asked.mode == "workspace" else ()
    return Sandbox(
        mode=asked.mode,
        cwd=scope.cwd,
        read=scope.read_roots,
        write=scope.write_roots,
        guarded=tuple(place for place in scope.protected if place not in hidden),
        hidden=tuple(place for place in hidden if place.exists() or any(map(place.is_relative_to, reached))),
        kept=tuple(own),
        network=asked.network,
        git=asked.git,
    )


def sandbox_trouble(manifest: Manifest, cwd: Path, home: Path | None = None) -> str | None:
    """Why the sandbox that a manifest asks for can't be had here, with the way out. Blocks: one is made for a moment."""
    made = sandbox_of(manifest, home or default_home(), cwd)
    return None if made is None else made.trouble()


def check_sandbox(manifest: Manifest, cwd: Path, home: Path | None = None) -> None:
    """A sandbox that is asked for must be had: nothing runs without it. Blocks. Raises `UsageProblem`."""
    if (why := sandbox_trouble(manifest, cwd, home)) is not None:
        raise UsageProblem(why)
