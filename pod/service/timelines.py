"""The timelines of pods for readers that come again and again: what was read once is not read again."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import takewhile
from threading import Lock
from typing import Any, NamedTuple

from pod.errors import LogDamaged
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.retrace import Stored
from pod.tail import Tail
from pod.timeline import Step, Timeline

FOLLOWED = 8
"""Pods whose timelines are kept."""

MOST_STEPS = 20_000
"""Steps that are kept of a pod; older ones are told no more."""

WORDS = 300
"""Characters of a text in a step: whole, it is in the events."""


class Stretch(NamedTuple):
    """Steps in order. `last` is what to give as `after` to go on; `more`, whether that gives something at once. `left_out` counts
    older steps that are told no more. `segments` are sums."""

    steps: list[Step]
    last: int
    more: bool
    left_out: int
    segments: list[dict[str, Any]]


@dataclass(eq=False)
class _Followed:
    """A timeline, read on by whoever asks; from one thread at a time."""

    owner: str
    tail: Tail
    timeline: Timeline
    steps: deque[tuple[int, bytes]] = field(default_factory=lambda: deque[tuple[int, bytes]](maxlen=MOST_STEPS))
    seen: int = 0
    lock: Lock = field(default_factory=Lock)

    def read_on(self) -> None:
        while lines := self.tail.read():
            for line in lines:
                try:
                    record = e.record_of(line)
                except LogDamaged:
                    continue
                step = None if record is None else self.timeline.add(line, record)
                if step is not None:
                    self.seen += 1
                    self.steps.append((line.seq, json.dumps(_short(step)).encode()))

    def since(self, after: int, most: int) -> Stretch:
        self.read_on()
        new = takewhile(lambda step: step[0] > after, reversed(self.steps))  # so that a look costs what is new
        found = [encoded for _, encoded in new][::-1]
        steps = [json.loads(each) for each in found[:most]]
        more = len(found) > most
        return Stretch(
            steps, steps[-1]["seq"] if steps else max(after, self.tail.after), more, self.seen - len(self.steps),
            [dict(vars(each)) for each in self.timeline.segments],
        )  # fmt: skip


@dataclass(eq=False)
class Timelines:
    """Those of a home. Each is folded once and then read on, so that looking again costs what is new."""

    _followed: OrderedDict[str, _Followed] = field(default_factory=OrderedDict[str, _Followed])
    _lock: Lock = field(default_factory=Lock)

    def since(self, folder: PodFolder, after: int, most: int) -> Stretch:
        """The steps after this entry, at most so many. Blocks. Raises `PodNotFound`, `LogDamaged`, `OSError`."""
        owner = folder.pointer().owner
        with self._lock:
            followed = self._followed.get(folder.name)
            if followed is None or followed.owner != owner:  # another pod that took the name
                followed = _Followed(owner, Tail(folder), Timeline(Stored(folder)))
                self._followed[folder.name] = followed
            self._followed.move_to_end(folder.name)
            while len(self._followed) > FOLLOWED:
                self._followed.popitem(last=False)
        with followed.lock:
            return followed.since(after, most)


def _short(step: Step) -> Step:
    return {key: value[:WORDS] if isinstance(value, str) else value for key, value in step.items()}
