"""What commands need of files: a home that is a folder, and enough that may be open."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from pod.errors import UsageProblem
from pod.log.folder import default_home, is_shared


def files_home(what: str) -> Path:
    """The home, where it is a folder. `what` says what is kept in files there. Raises `UsageProblem` for a database."""
    if is_shared(os.environ.get("POD_HOME", "")):
        raise UsageProblem(f"{what} in files, and POD_HOME is a database: set POD_HOME to a folder")
    return default_home()


def open_files(pods: int) -> None:
    """Each pod has some files open: where the soft limit is too low, it is raised as far as it may be. Raises `UsageProblem`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 256 + 16 * pods
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        raise UsageProblem(
            f"--concurrency {pods}: this user may have {hard} files open, and so many pods need {wanted}; take fewer, or raise `ulimit -n`"
        )
