"""The supervisor of one background job: a small process of its own, so that the job outlasts the runtime.

`python -I -S supervise.py FOLDER LIMIT COMMAND...` leaves the caller's session, prints its process id, runs the
command with its input at end of file, and writes its output as plain text into FOLDER, at most LIMIT bytes of it, without the secrets
that its own standard input names (JSON: `secrets` by name, `shapes`). When
all writers are gone it records the command's exit code. Where the system can (Linux), all orphans of the command become
its children, and it ends with the last of them. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

# Started by its path and isolated (-I), it finds its package by where it stands.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from worker.builtin.job_files import JobWriter
from worker.builtin.supervise_call import adopt_orphans
from worker.builtin.terminal import PlainText
from worker.masking import MaskedStream, Masker


def _stay(_number: int, _frame: FrameType | None) -> None:
    """The command dies of these signals; the supervisor stays to record how."""


def main() -> None:
    folder, limit, *command = sys.argv[1:]
    masks = json.load(sys.stdin.buffer)
    if os.fork():
        os._exit(0)
    os.setsid()
    adopt_orphans()
    # Handlers, unlike "ignore", are not inherited by the command.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stay)
    read_end, write_end = os.pipe()
    writer = JobWriter(Path(folder), int(limit))
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end)
    except OSError as e:
        os.write(1, f"error {e.strerror}\n".encode())
        return
    os.close(write_end)
    os.write(1, f"{os.getpid()}\n".encode())
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    plain, masked = PlainText(), MaskedStream(Masker(**masks)) if masks else None
    while data := os.read(read_end, 65_536):
        text = plain.feed(data)
        writer.write((masked.feed(text) if masked else text).encode())
    text = plain.finish()
    writer.write((masked.feed(text) + masked.end() if masked else text).encode())
    writer.end(child.wait(), plain.not_text)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main()
