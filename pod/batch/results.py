"""The results of a batch: a file with one JSON object for each task that ended, written once, whole and durably."""

from __future__ import annotations

import fcntl
import json
import math
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

from pod.batch.tasks import Task
from pod.errors import PodError, StoreError, UsageProblem
from pod.log.files import Files
from pod.result import EXIT, RunResult

Row: TypeAlias = dict[str, Any]
"""One line of the file."""

FOR_GOOD = frozenset({"finished", "failed"})
"""Ends that another run of the batch leaves as they are (failed ones unless it is told to try them again)."""


class ResultsBusy(PodError):
    """Another process writes results into this file."""

    exit_code = 75


def row_of(task: Task, result: RunResult, grade: Mapping[str, Any] | None = None) -> Row:
    """The line of a task that ended: figures of all its runs, those of tool calls, compactions and denials and the time of the last."""
    used = [figures for label, figures in result.usage.items() if label.startswith("worker:")]
    row: Row = {
        "index": task.index,
        "id": task.id,
        "pod": result.pod,
        "status": result.status,
        "text": result.text,
        "output": result.output,
        "error": result.error,
        "error_kind": result.error_kind,
        "usage": {
            "input_tokens": _sum(used, "prompt_tokens"),
            "cached_tokens": _sum(used, "cached_tokens"),
            "output_tokens": _sum(used, "output_tokens"),
        },
        "cost_usd": result.session_cost_usd,
        "requests": _sum(used, "requests"),
        "tool_calls": result.tool_calls,
        "compactions": result.compactions,
        "denials": result.denials,
        "duration_s": result.duration_s,
    }
    if result.approvals:
        row["approvals"] = list(result.approvals)
    if grade is not None:
        row["grade"] = dict(grade)
    return row


def _sum(used: Sequence[Mapping[str, float]], figure: str) -> int:
    return sum(int(each.get(figure, 0)) for each in used)


def grade_of(row: Row) -> dict[str, Any]:
    """What a grader gave; empty for a task that none was asked about."""
    return cast("dict[str, Any]", row.get("grade") or {})


def grade_error(row: Row) -> str:
    """Why a task has no grade; empty where it has one, or none was wanted."""
    return str(grade_of(row).get("error") or "")


@dataclass
class Results:
    """The file and what stands in it, by index. One process has it open for writing."""

    path: Path
    batch: str
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    files: Files = field(default_factory=Files)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _held: int | None = None

    @classmethod
    def open(cls, path: Path, batch: str, *, alone: bool = False) -> Results:
        """Reads what is there; a last line that a kill left half written is no result, and is cut off. Blocks.

        With `alone` no other process has it until `close`; the file is made. Raises `UsageProblem` where the file is something else,
        which is then as it was, `ResultsBusy`, `StoreError`.
        """
        results = cls(path, batch)
        try:
            if alone:
                results._hold()
            whole, rows = read_rows(path, batch)
            results.rows = rows
            if whole is not None:
                results.files.truncate(path, whole)
        except OSError as error:
            results.close()
            raise StoreError(path, "write", error) from error
        except BaseException:
            results.close()
            raise
        return results

    def _hold(self) -> None:
        """Locks the file itself, whatever home a batch has: anew where it is another one than it was. Raises `ResultsBusy`, `OSError`."""
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                same = self.path.exists() and os.path.samestat(os.fstat(fd), self.path.stat())
            except BlockingIOError:
                os.close(fd)
                raise ResultsBusy(
                    f"{self.path}: another process writes its results there; wait for its end, or name another file with --out"
                ) from None
            except BaseException:
                os.close(fd)
                raise
            if same:
                self.close()
                self._held = fd
                return
            os.close(fd)

    def close(self) -> None:
        """Others may have the file."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def add(self, row: Row) -> None:
        """Writes a task's line, durably; from any thread. A task that has one keeps it. Blocks. Raises `StoreError`."""
        with self._lock:
            if row["index"] in self.rows:
                return
            try:
                self._append(_line(row))
            except OSError as error:
                raise StoreError(self.path, "write", error) from error
            self.rows[row["index"]] = row

    def _append(self, line: bytes) -> None:
        new = not self.path.exists()
        fd = self.files.open_append(self.path, create=new)
        try:
            before = os.fstat(fd).st_size
            try:
                self.files.write(fd, line)
                self.files.sync(fd)
            except OSError:
                os.ftruncate(fd, before)
                raise
        finally:
            self.files.close(fd)
        if new:
            self.files.sync_folder(self.path.parent)

    def drop(self, indexes: Collection[int]) -> None:
        """Takes lines out, in one step: before it all stand there, after it none of these. Blocks. Raises `OSError`, `ResultsBusy`."""
        gone = set(indexes) & self.rows.keys()
        if not gone:
            return
        kept = {index: row for index, row in self.rows.items() if index not in gone}
        self.files.put(self.path, b"".join(map(_line, kept.values())))
        self.rows = kept
        if self._held is not None:
            self._hold()


def read_rows(path: Path, batch: str | None = None) -> tuple[int | None, dict[int, Row]]:
    """The lines of a file of results by index, and how many bytes of it are whole where the end is not (None: all). Blocks.

    Raises `UsageProblem` where it is no file of results, or one of another batch than `batch`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None, {}
    except OSError as error:
        raise UsageProblem(f"{path}: {error.strerror}") from None
    end = data.rfind(b"\n") + 1
    rows: dict[int, Row] = {}
    for number, line in enumerate(data[:end].splitlines(), 1):
        row = _row(line)
        if row is None:
            raise UsageProblem(
                f"{path}:{number}: not the result of a task; name another file for the results with --out"
            )
        pod = str(row["pod"])
        if batch is not None and pod.rpartition("/")[0] != batch:
            raise UsageProblem(
                f"{path}:{number}: a result of the batch {pod.rpartition('/')[0]!r}, not of {batch!r}; name another file with --out"
            )
        rows.setdefault(row["index"], row)
    return (end if end != len(data) else None), rows


def _line(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _row(line: bytes) -> Row | None:
    try:
        value: Any = json.loads(line, parse_constant=_none)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    row = cast("Row", value)
    return row if all(holds(row.get(key)) for key, holds in _HOLDS.items()) else None


def _none(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _figure(value: Any) -> bool:
    return value is None or (_number(value) and value >= 0)


def _said(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _usage(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(map(_figure, cast("Row", value).values())))


def _grade(value: Any) -> bool:
    if value is None:
        return True
    score: Any = cast("Row", value).get("score") if isinstance(value, dict) else ""
    return score is None or _number(score)


_HOLDS: dict[str, Callable[[Any], bool]] = {
    "index": lambda value: type(value) is int and value >= 0,
    "id": lambda value: isinstance(value, str),
    "pod": lambda value: isinstance(value, str),
    "status": lambda value: isinstance(value, str) and value in EXIT,
    **dict.fromkeys(("text", "error", "error_kind"), _said),
    **dict.fromkeys(("cost_usd", "requests", "tool_calls", "compactions", "denials", "duration_s"), _figure),
    "usage": _usage,
    "grade": _grade,
}
"""What a line's values are: whoever reads a file need not look again."""
