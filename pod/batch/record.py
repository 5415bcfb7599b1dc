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
from pod.log.files import json_of
from pod.log.folder import check_name
from pod.log.lines import now
from pod.store.documents import Documents, documents_of

FORMAT = 1


class BatchBusy(PodError):
    """Another process runs this batch."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class BatchFolder:
    """A batch of a home, by its name. Its record holds the digest of each task, and where results and tasks lie."""

    home: Path
    name: str
    documents: Documents = field(init=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        object.__setattr__(self, "documents", documents_of(self.home))
        if "/" in self.name:
            raise UsageProblem(
                f"{self.name!r} can't be a batch's name: its pods are named {self.name}/0, {self.name}/1 and so on"
            )

    @property
    def where(self) -> str:
        """What the batch was begun with, as people are told of it."""
        return self.documents.where("batch", self.name)

    def pod(self, index: int) -> str:
        """The name of a task's pod."""
        return f"{self.name}/{index}"

    def known(self) -> dict[str, Any] | None:
        """What is on record; None for a batch that was never begun. Raises `UsageProblem` where it does not read."""
        try:
            data = self.documents.read("batch", [self.name]).get(self.name)
            if data is None:
                return None
            value: Any = json_of(data)
        except (OSError, ValueError) as error:
            raise UsageProblem(
                f"{self.where}: not the record of a batch ({error}); give the batch another --name"
            ) from None
        if not isinstance(value, dict) or cast("dict[str, Any]", value).get("format") != FORMAT:
            raise UsageProblem(
                f"{self.where}: not the record of a batch that this version reads; give the batch another --name"
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
            self.documents.write("batch", {self.name: json.dumps(told).encode() + b"\n"})

    @contextmanager
    def alone(self) -> Generator[None]:
        """While it is open, no other process runs the batch. Raises `BatchBusy`."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.documents.alone("batch", self.name))
            except BlockingIOError:
                raise BatchBusy(
                    f"another process runs the batch {self.name!r}; wait for its end, or give this one another --name"
                ) from None
            yield


def batch_names(home: Path) -> list[str]:
    """The names of all batches, sorted."""
    try:
        return documents_of(home).names("batch")
    except OSError:
        return []
