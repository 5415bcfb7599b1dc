"""What a batch came to, in figures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from pod.batch.results import Row
from pod.result import EXIT


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of the chosen tasks, and sums over those that ended. `left` have no end yet, `ran` ended in this run of the batch,
    `seconds` is how long that took. `cost_usd` is None where a price is not known. `grade` is the mean of `graded` scores.
    `spent` says that the limit on the cost of the whole batch ended it.
    """

    batch: str
    tasks: int
    by_status: dict[str, int] = field(default_factory=dict[str, int])
    by_error: dict[str, int] = field(default_factory=dict[str, int])
    left: int = 0
    ran: int = 0
    seconds: float = 0.0
    requests: int = 0
    compactions: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    grade: float | None = None
    graded: int = 0
    grade_errors: int = 0
    spent: bool = False

    @property
    def exit_code(self) -> int:
        """0 where all finished; 1 where any failed or has no end, 4 where a limit ended the batch or a task, 3 where some wait for a human."""
        by = self.by_status
        if by.get("failed"):
            return EXIT["failed"]
        if self.spent or by.get("limit"):
            return EXIT["limit"]
        if by.get("paused") or by.get("yielded"):
            return EXIT["paused"]
        return EXIT["finished"] if by.get("finished", 0) == self.tasks else EXIT["failed"]

    def as_json(self) -> dict[str, Any]:
        """The figures as plain values, with the exit code."""
        return {**asdict(self), "exit_code": self.exit_code}


def summary_of(
    batch: str,
    tasks: int,
    rows: Sequence[Row],
    touched: Collection[int] = (),
    seconds: float = 0.0,
    *,
    spent: bool = False,
) -> Summary:
    """The figures of these rows, of so many tasks."""
    by_status: dict[str, int] = {}
    by_error: dict[str, int] = {}
    sums = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "requests": 0, "compactions": 0}
    cost: float | None = 0.0
    scores: list[float] = []
    grade_errors = 0
    for row in rows:
        by_status[row["status"]] = by_status.get(row["status"], 0) + 1
        if row.get("error_kind"):
            by_error[row["error_kind"]] = by_error.get(row["error_kind"], 0) + 1
        usage = cast("dict[str, int]", row.get("usage") or {})
        for key in sums:
            sums[key] += int(usage.get(key) or row.get(key) or 0)
        known = row.get("cost_usd")
        cost = None if cost is None or (known is None and row.get("requests")) else cost + float(known or 0.0)
        grade = cast("dict[str, Any] | None", row.get("grade"))
        if grade is not None:
            scores += [grade["score"]] if grade.get("score") is not None else []
            grade_errors += grade.get("score") is None
    return Summary(
        batch=batch, tasks=tasks, by_status=by_status, by_error=by_error, left=tasks - len(rows), ran=len(touched),
        seconds=round(seconds, 3), cost_usd=None if cost is None else round(cost, 6),
        grade=sum(scores) / len(scores) if scores else None, graded=len(scores), grade_errors=grade_errors, spent=spent, **sums,
    )  # fmt: skip
