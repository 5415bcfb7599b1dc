"""How many files this process may have open."""

from __future__ import annotations

import resource

from pod.errors import UsageProblem


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
