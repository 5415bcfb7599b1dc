"""What went wrong, in one line with the way out, and the exit code.

A traceback goes to a file, never to the terminal.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
import traceback
from pathlib import Path

from pod.cli.text import hidden
from worker.errors import alone
from worker.text import visible

_EXPLAINED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOENT, errno.ENOTDIR,
                        errno.EISDIR, errno.ENAMETOOLONG, errno.EEXIST,
                        errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # fmt: skip
"""Errors of the system that need no traceback: the path and the reason say it all."""


_NO_ROOM = "free some space, and run the command again"
_NOT_ALLOWED = "give this user access to it, or take another folder (POD_HOME names where pods lie)"
_WAYS_OUT = {errno.ENOSPC: _NO_ROOM, errno.EDQUOT: _NO_ROOM, errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
             errno.EROFS: "take another folder (POD_HOME names where pods lie)", errno.EACCES: _NOT_ALLOWED, errno.EPERM: _NOT_ALLOWED}  # fmt: skip
"""What a user can do about an error of the system."""


def report(error: BaseException) -> int:
    """Prints what a user needs to know of an error; the exit code."""
    error = alone(error)
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    code = expected(error)
    if code is not None:
        complain(str(error))
        return code
    from pod.errors import FOLDER_IS_GONE, folder_is_gone

    if isinstance(error, FileNotFoundError) and not _is_whole(error.filename) and folder_is_gone():
        complain(f"{FOLDER_IS_GONE} (-C names the working folder)")
        return 2
    if isinstance(error, OSError) and error.errno in _EXPLAINED:
        complain(_explained(error))
        return 1
    where = _keep_traceback(error)
    what = _explained(error) if isinstance(error, OSError) else f"unexpected {type(error).__name__}: {error}"
    complain(f"{what}{f'; the traceback is in {where}' if where else ''}")
    return 1


def _is_whole(name: object) -> bool:
    """Whether a path says where it is without the current folder."""
    return isinstance(name, str) and name.startswith("/")


def _explained(error: OSError) -> str:
    """The file, where one is known, and the system's reason."""
    reason = error.strerror or str(error) or type(error).__name__
    way_out = _WAYS_OUT.get(error.errno or 0, "")
    said = reason if error.filename is None else f"{os.fsdecode(error.filename)}: {reason}"
    return f"{said}; {way_out}" if way_out else said


def expected(error: BaseException) -> int | None:
    """The exit code of an error that the runtime raises on purpose; None for all others."""
    from pod.errors import PodError

    if isinstance(error, PodError):
        return error.exit_code
    if "pod.manifest.errors" in sys.modules:
        from pod.manifest.errors import ManifestError

        if isinstance(error, ManifestError):
            return error.exit_code
    if "worker.errors" in sys.modules:
        from worker.errors import ConfigError

        if isinstance(error, ConfigError):
            return 2
    return None


def complain(text: str) -> None:
    """`pod: error: ...` on standard error; each line of a text with several."""
    for line in _LONG.sub(_cut, visible(text)).splitlines() or [""]:
        note(f"pod: error: {line}" if not line.startswith(" ") else f"pod:   {line}")


_LONG = re.compile(r"\S{1001,}")


def _cut(found: re.Match[str]) -> str:
    """A word that may be of any length, as far as it helps."""
    return f"{found[0][:250]}...{found[0][-100:]}"


def note(text: str) -> None:
    """Lines on standard error, all of them shown as `visible` does; a standard error that is gone is no reason to stop."""
    try:
        print(visible(hidden(text)), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def _keep_traceback(error: BaseException) -> Path | None:
    from pod.log.files import Files
    from pod.log.folder import local_home

    try:
        folder = local_home() / "crash"
        Files().make_folder(folder)
        path = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.txt"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(hidden("".join(traceback.format_exception(error))))
    except OSError:
        return None
    return path
