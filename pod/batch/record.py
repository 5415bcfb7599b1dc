"""A batch's own folder: what it was begun with, and the lock that makes one process its writer."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pod.batch.tasks import Task
from pod.errors import PodError, UsageProblem
from pod.log.files import Files, json_of, read_file
from pod.log.folder import check_name
from pod.log.lines import now
from pod.log.locking import exclusive

FORMAT = 1


class BatchBusy(PodError):
    """Another process runs this batch."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class BatchFolder:
    """The folder `batches/NAME` of a home. `batch.json` holds the digest of each task, and where results and tasks lie."""

    home: Path
    name: str
    files: Files = field(default_factory=Files)

    def __post_init__(self) -> None:
        check_name(self.name)
        if "/" in self.name:
            raise UsageProblem(
                f"{self.name!r} can't be a batch's name: its pods are named {self.name}/0, {self.name}/1 and so on"
            )

    @property
    def path(self) -> Path:
        """The folder."""
        return self.home / "batches" / self.name

    @property
    def record_path(self) -> Path:
        """What the batch was begun with."""
        return self.path / "batch.json"

    def pod(self, index: int) -> str:
        """The name of a task's pod."""
        return f"{self.name}/{index}"

    def known(self) -> dict[str, Any] | None:
        """What is on record; None for a batch that was never begun. Raises `UsageProblem` where it does not read."""
        try:
            value: Any = json_of(read_file(self.record_path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise UsageProblem(
                f"{self.record_path}: not the record of a batch ({error}); give the batch another --name"
            ) from None
        if not isinstance(value, dict) or cast("dict[str, Any]", value).get("format") != FORMAT:
            raise UsageProblem(
                f"{self.record_path}: not the record of a batch that this version reads; give the batch another --name"
            )
        return cast("dict[str, Any]", value)

    def check(self, tasks: Sequence[Task]) -> None:
        """Raises `UsageProblem` where the batch was begun with other tasks: their results would be mixed up. Blocks; writes nothing."""
        known = self.known()
        if known is None:
            return
        before = cast("list[str]", known.get("tasks") or [])
        for task, digest in zip(tasks, before, strict=False):
            if task.digest != digest:
                raise UsageProblem(
                    f"{task.place}: not the task that the batch {self.name!r} was begun with in this place; give this batch another "
                    f"--name, or put the tasks of before in their places again (new ones may follow them)"
                )
        if len(tasks) < len(before):
            raise UsageProblem(
                f"the batch {self.name!r} was begun with {len(before)} tasks, and here are {len(tasks)}; give this batch another --name, "
                "or run a part of it with --limit"
            )

    def keep(self, tasks: Sequence[Task], source: Path, out: Path) -> None:
        """Puts on record, durably, what the batch consists of. Blocks."""
        known = self.known() or {}
        told = {
            "format": FORMAT, "batch": self.name, "begun": known.get("begun") or now(), "source": str(source), "out": str(out),
            "tasks": [task.digest for task in tasks],
        }  # fmt: skip
        if told != known:
            self.files.make_folder(self.path)
            self.files.put(self.record_path, json.dumps(told).encode() + b"\n")

    @contextmanager
    def alone(self) -> Generator[None]:
        """While it is open, no other process runs the batch. Makes the folder. Raises `BatchBusy`."""
        self.files.make_folder(self.path)
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(self.path / "lock", wait=False))
            except BlockingIOError:
                raise BatchBusy(
                    f"another process runs the batch {self.name!r}; wait for its end, or give this one another --name"
                ) from None
            yield


def batch_names(home: Path) -> list[str]:
    """The names of all batches, sorted."""
    try:
        return sorted(path.name for path in (home / "batches").iterdir() if (path / "batch.json").is_file())
    except OSError:
        return []
