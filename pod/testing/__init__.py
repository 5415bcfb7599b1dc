"""Test doubles of the file layer, for whoever wants to know that nothing is lost: pods that crash, disks that forget.

A pod takes its file operations from `pod.log.files.Files`. Give it one of these instead:

    files = RecordingFiles(home)
    session = Session.create(home, "a", blobs={}, manifest="", files=files)
    session.put(...)
    session.writer.sync_now()
    files.point("acknowledged")
    for state in replay_prefixes(files, tmp_path):
        ...  # `state` is the home as a power cut after one more operation leaves it

`RecordingFiles` does the real thing and notes each operation; `replay_prefixes` builds, for every number of
operations, what is on disk if the power fails then. `CrashingFiles` ends the process at its n-th operation, or at a
named point; run it in a process of its own. `FailingFiles` lets the n-th operation raise `OSError` (a full disk,
say).
"""

from __future__ import annotations

from pod.testing.crashing import CRASHED, CrashingFiles, FailingFiles
from pod.testing.recording import Op, RecordingFiles, replay_prefixes

__all__ = ["CRASHED", "CrashingFiles", "FailingFiles", "Op", "RecordingFiles", "replay_prefixes"]
