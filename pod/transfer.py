"""A pod as one portable file: a tar archive that begins with the hashes of all that follows.

    contents.json                 format, session, and name, size and SHA-256 of each part, in order
    pod.json                      the pointer
    SEGMENT.jsonl                 each segment of the session, the active one first, down to the privacy floor
    SEGMENT.compact-N.jsonl       the logs of its compact workers
    blobs/HASH  artifacts/NAME    what these logs refer to

What `pod clear` or `pod rewind` left behind stays behind, with the blobs and artifacts that only it refers to. So do
background jobs, commands in the inbox, and the lock. `pod.importing` reads the file.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field

from pod.errors import LogDamaged, NotSettled, UsageProblem
from pod.importing import Imported, import_pod
from pod.log import entries as e
from pod.log.files import Files
from pod.log.folder import PodFolder, Pointer, check_name
from pod.log.segment import entries, hash_range
from pod.reading import End, Segment, SessionReader
from worker.ids import uuid7
from worker.records import ToolsChanged

__all__ = ["Exported", "Imported", "export_pod", "import_pod"]
