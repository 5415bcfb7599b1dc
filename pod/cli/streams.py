"""Standard streams that the caller closed: nothing is there to read, and what is written goes nowhere."""

from __future__ import annotations

import io
import os
import sys


class Nowhere(io.StringIO):
    """Takes what is written and keeps nothing."""

    def write(self, text: str, /) -> int:
        """Nothing."""
        return len(text)


def stand_in() -> None:
    """Puts something in the place of each closed stream, so that no file opened later gets its number (0, 1, 2): what a
    child prints would go into that file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
    # The interpreter leaves None for a stream that was closed when it started.
    given: dict[str, object] = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    if given["stdin"] is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO())
    if given["stdout"] is None:
        sys.stdout = Nowhere()
    if given["stderr"] is None:
        sys.stderr = Nowhere()
