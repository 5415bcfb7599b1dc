"""How many files this process may have open."""

from __future__ import annotations

import resource

from pod.errors import UsageProblem

SPARE = 256
"""Files that a process has open for itself."""


def open_files(pods: int, connections: int | None = 0, *, usual: int = 0) -> int:
    """Each pod has some files open, each connection one: where the soft limit is too low, it is raised as far as it may be.

    Returns for how many connections there is room: all that were asked for; where no number was (None), the `usual` one, or
    fewer where the limit has no room for that. Raises `UsageProblem` where there is too little.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = SPARE + 16 * pods
    wanted = least + (usual if connections is None else connections)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted - least
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most == wanted or (connections is None and most > least):
        return most - least
    flags = f"--concurrency {pods}" + (f" with --max-connections {connections}" if connections else "")
    raise UsageProblem(
        f"{flags}: this user may have {hard} files open, and so many pods need {wanted}; take fewer, or raise `ulimit -n`"
    )
