"""The programs that a manifest names, for hooks and for servers: whether they are there to be started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pod import setup
from pod.cli.placing import placed
from pod.manifest import Loaded, Problem
from worker.builtin.sandbox import SYSTEM
from worker.builtin.shell_environment import shell_environment


def absent(loaded: Loaded) -> Iterator[Problem]:
    """Programs of hooks and servers that can't be started as things are. They may still come, so these are warnings."""
    for number, section in enumerate(loaded.manifest.hooks):
        if section.command and (why := trouble(section.command[0], loaded.cwd)):
            (hook,) = setup.user_hooks(loaded.manifest.model_copy(update={"hooks": (section,)}), ())
            then = "what it is asked about is blocked" if hook.blocks_on_error else "it is passed over"
            yield placed(loaded, ("hooks", number, "command"), f"{why}: {then}", warning=True)
    for number, server in enumerate(loaded.manifest.mcp):
        if not server.command:
            continue
        then = "nothing begins without the server" if server.required else "the agent goes without its tools"
        key = ("mcp", number, "command")
        if why := trouble(server.command[0], loaded.cwd):
            yield placed(loaded, key, f"{why}: {then}", warning=True)
        elif folder := _outside_of_the_sandbox(loaded, server.command[0]):
            message = f"{server.command[0]} is not there in the sandbox: {then}"
            yield placed(
                loaded, key, message, f'name {folder} in [scope] read, or take [sandbox] mode = "off"', warning=True
            )


def trouble(program: str, cwd: Path) -> str | None:
    """Why a program can't be started in a working folder, in words; None where nothing speaks against it. Blocks."""
    if "/" not in program:
        return None if _found(program, cwd) else f"{program} is not in PATH"
    path = cwd / program
    if not path.exists():
        where = "" if Path(program).is_absolute() else f" in the working folder {cwd}"
        return f"{program} is not there{where}"
    if path.is_dir():
        return f"{program} is a folder, and no program"
    if not os.access(path, os.X_OK):
        return f"{program} may not be executed (chmod +x {program})"
    return None


def _found(program: str, cwd: Path) -> str | None:
    return shutil.which(cwd / program if "/" in program else program, path=shell_environment()["PATH"])


def _outside_of_the_sandbox(loaded: Loaded, program: str) -> str | None:
    """The folder that the sandbox would have to show for a program; None where it shows it, or where there is no sandbox."""
    if loaded.manifest.sandbox.mode == "off" or (found := _found(program, loaded.cwd)) is None:
        return None
    scope = loaded.manifest.scope
    shown = [Path(root) for root in (*scope.read, *scope.write, *SYSTEM)]
    for path in (Path(found), Path(os.path.realpath(found))):
        if not any(path.is_relative_to(root) for root in (loaded.cwd, *shown)):
            return str(path.parent)
    return None
