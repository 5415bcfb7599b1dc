"""Whether a segment has moved on since an interceptor left the loop: without that, leaving again would be an endless
loop."""

from __future__ import annotations

from dataclasses import dataclass

from worker.history import History
from worker.records import Admitted, Record, ReplyRecord

TRIGGERS = frozenset({"request_threshold", "overflow", "ceiling"})
"""Why an interceptor leaves the loop for a compaction; one that was asked for by hand is none of them."""

_FRESH = frozenset({"lease", "run_started", "compaction_interrupted"})


def progressed(history: History) -> bool:
    """Whether this segment saw a reply or a user input. Both are 0 at its start, whatever its starting items are."""
    return history.newest_batch > 0 or history.unanswered > 0


@dataclass(slots=True)
class Progress:
    """Remembers that the loop was left for a compaction, until a reply, an input or another segment comes.

    Feed it each record. Entries of a log count too: `yielded` (the loop was left), and those after which one more try
    is right (another process, another run, a compaction that died).
    """

    left: bool = False
    _history: History | None = None

    def observe(self, record: Record) -> None:
        """Follows what happened."""
        if isinstance(record, ReplyRecord | Admitted) or record.kind in _FRESH:
            self.left = False
        elif record.kind == "yielded" and getattr(record, "reason", "") == "compact":
            self.left = getattr(record, "detail", {}).get("trigger") in TRIGGERS

    def look(self, history: History) -> bool:
        """Whether the loop was already left in this segment without progress since. Another history is another
        segment."""
        if self._history is not None and self._history is not history:
            self.left = False
        self._history = history
        return self.left
