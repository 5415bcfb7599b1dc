"""The encoded messages of a view that grows: each item is encoded once, a body is one join."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

from worker.items import Item
from worker.models.base import Encoder


class _Run(NamedTuple):
    """Finished messages, joined: those before message `end` and behind the run before it."""

    end: int
    joined: bytes


class Wire:
    """Keeps the messages of a view as bytes.

    Items that the encoder joins form one message. A message is encoded when the next one begins or when a body is asked
    for, so appending costs what the new items cost and nothing for the old. A message that encodes to nothing becomes
    part of the one before it, so that its neighbours can join over it and roles keep alternating.

    After any sequence of `extend` and `replace` the body equals that of a new `Wire` over the same items.
    """

    def __init__(self, encoder: Encoder, items: Iterable[Item] = ()) -> None:
        self._encoder = encoder
        self._items: list[Item] = []
        self._starts: list[int] = []
        self._parts: list[bytes | None] = []
        self._runs: list[_Run] = []
        self._pieces: tuple[bytes, ...] | None = ()
        self.encoded = 0
        """Items encoded so far, each time counted: what a test holds against the length of a run."""
        self.extend(items)

    def __len__(self) -> int:
        return len(self._items)

    def extend(self, items: Iterable[Item]) -> None:
        """Appends items."""
        for item in items:
            self._items.append(item)
            self._place(len(self._items) - 1, self._starts, self._parts, {})
            self._pieces = None

    def replace(self, index: int, item: Item) -> None:
        """Puts another item in the place of one; only the message concerned is encoded again. Raises `IndexError`."""
        if not 0 <= index < len(self._items):
            raise IndexError(f"no item {index} among {len(self._items)}")
        self._items[index] = item
        self._pieces = None
        group = bisect_right(self._starts, index) - 1
        first = max(group - 1, 0)
        near = zip(
            self._starts[first : group + 2],
            [*self._starts[first + 1 : group + 3], len(self._items)],
            self._parts[first : group + 2],
            strict=False,
        )
        keep = {(start, end): part for start, end, part in near if part is not None and not start <= index < end}
        self._keep_runs(first)
        starts = [self._starts[first]]
        parts: list[bytes | None] = [None]
        following = first + 1
        for i in range(starts[0] + 1, len(self._items)):
            while following < len(self._starts) and self._starts[following] < i:
                following += 1
            opened = self._place(i, starts, parts, keep)
            # Where a message begins at an old border behind the change, all that follows is grouped as before.
            if opened and i > index and following < len(self._starts) and self._starts[following] == i:
                starts.pop()
                parts.pop()
                break
        else:
            following = len(self._starts)
        self._starts[first:following] = starts
        self._parts[first:following] = parts

    def reset(self, items: Iterable[Item]) -> None:
        """Begins again with these items."""
        self._items.clear()
        self._starts.clear()
        self._parts.clear()
        self._runs.clear()
        self._pieces = ()
        self.extend(items)

    def body(self) -> bytes:
        """The messages joined by commas, without brackets."""
        return b"".join(self.pieces())

    def pieces(self) -> tuple[bytes, ...]:
        """The same in a few pieces that follow each other. Asked again without a change, the same object.

        Finished messages are kept joined, in runs that double in size, so that a body is one copy of few large pieces.
        """
        if self._pieces is None:
            if self._parts and self._parts[-1] is None:
                self._parts[-1] = self._encode(self._starts[-1], len(self._items))
            # An empty last message may still give its place to what stands before it.
            finished = max(len(self._parts) - 2, 0)
            self._keep_runs(finished)
            self._join(finished)
            parts = cast("list[bytes]", self._parts[finished:])
            # Only the first and the last message can be empty: an empty one between two becomes part of the one before.
            last = b",".join(part for part in parts if part)
            pieces = [run.joined for run in self._runs if run.joined]
            if last:
                pieces.append(last)
            self._pieces = tuple(
                piece for n, found in enumerate(pieces) for piece in ((b",", found) if n else (found,))
            )
        return self._pieces

    def _keep_runs(self, end: int) -> None:
        """Forgets the runs that reach behind message `end`."""
        while self._runs and self._runs[-1].end > end:
            self._runs.pop()

    def _join(self, end: int) -> None:
        """Joins the messages up to `end` that are in no run yet, and runs that are not larger than what follows them."""
        start = self._runs[-1].end if self._runs else 0
        if start == end:
            return
        joined = b",".join(part for part in self._parts[start:end] if part)
        while self._runs and len(self._runs[-1].joined) <= 2 * len(joined):
            before = self._runs.pop().joined
            joined = b",".join((before, joined)) if before and joined else before or joined
        self._runs.append(_Run(end, joined))

    def _place(
        self, i: int, starts: list[int], parts: list[bytes | None], keep: Mapping[tuple[int, int], bytes]
    ) -> bool:
        """Puts item `i` into the open message or opens one; says whether it opened one."""
        item = self._items[i]
        if starts:
            if self._encoder.joins(self._items[starts[-1] : i], item):
                parts[-1] = None
                return False
            if parts[-1] is None:
                parts[-1] = keep.get((starts[-1], i)) or self._encode(starts[-1], i)
            if not parts[-1] and len(starts) > 1:
                starts.pop()
                parts.pop()
                if self._encoder.joins(self._items[starts[-1] : i], item):
                    parts[-1] = None
                    return False
                parts[-1] = keep.get((starts[-1], i)) or self._encode(starts[-1], i)
        starts.append(i)
        parts.append(None)
        return True

    def _encode(self, start: int, end: int) -> bytes:
        self.encoded += end - start
        return self._encoder.encode(self._items[start:end])
