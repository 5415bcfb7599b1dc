"""What one receiver of webhooks is still to be told: read from the logs of pods, with a durable mark for each pod.

An end of a run stands in the pod's log before anybody is told of it. The mark says up to which entry the log was read, and what of
that has not been accepted yet. So nothing is lost where the process dies in between, and nothing that was accepted is sent again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from interceptors.approvals import ApprovalAsked
from pod.errors import LogDamaged, PodError, PodNotFound
from pod.log import entries as e
from pod.log.files import Files
from pod.log.folder import PodFolder, check_name
from pod.log.lines import Line
from pod.log.segment import scan
from pod.reading import SessionReader
from pod.result import EXIT, EXIT_BY_KIND
from pod.service.webhooks import Webhook, body_of
from pod.session import load
from pod.tail import Tail

logger = logging.getLogger("pod.service")

MOST_WAITING = 500
"""Events of one pod that wait at once; what comes after them is read from its log when there is room."""

TAILS = 256
"""Pods whose place in the log is remembered while the service runs; that of others is looked for again."""


@dataclass
class Due:
    """An event that one receiver is to be told. `data` is what it is told in any case; the rest stands in the pod's log, as entry `seq`
    at `offset` of its segment. `since` and `next` are seconds since 1970: of the first attempt that was due, and of the next one.
    """

    id: str
    pod: str
    kind: str
    at: str
    seq: int
    data: dict[str, Any]
    offset: int
    since: float
    next: float
    tries: int = 0


@dataclass
class _Mark:
    """What is known of one pod: whose it is, up to which entry its log was read, the run under way there, and what waits."""

    pod: str
    owner: str
    after: int
    run: str = ""
    seen: list[Any] = field(default_factory=list[Any])
    waiting: list[Due] = field(default_factory=list[Due])

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, data: bytes) -> _Mark:
        value: dict[str, Any] = json.loads(data)
        value["waiting"] = [Due(**due) for due in value["waiting"]]
        return cls(**value)


@dataclass(eq=False)
class Outbox:
    """Of one receiver, over the pods of a home. Everything blocks, and is called by one thread at a time."""

    folder: Path
    home: Path
    webhook: Webhook
    files: Files = field(default_factory=Files)
    _known: dict[str, _Mark] | None = field(default=None, init=False)
    _tails: OrderedDict[str, Tail] = field(default_factory=OrderedDict[str, Tail], init=False)

    def begin(self) -> list[Due]:
        """What waits since before."""
        return [due for mark in self._marks.values() for due in mark.waiting]

    @property
    def _marks(self) -> dict[str, _Mark]:
        """By the names of pods, read at the first use."""
        if self._known is None:
            self._known = {}
            for path in sorted(self.folder.glob("*.json")):
                try:
                    mark = _Mark.read(path.read_bytes())
                    self._known[check_name(mark.pod)] = mark
                except (OSError, ValueError, KeyError, TypeError, PodError) as error:
                    logger.warning("webhook %s: %s does not read (%s): left alone", self.webhook.name, path, error)
        return self._known

    def watch(self, name: str) -> None:
        """From now on what happens to a pod is told, durably. What was before is not. Raises `PodError`, `OSError`."""
        folder = PodFolder(self.home, name)
        pointer = folder.pointer()
        mark = self._marks.get(name)
        if mark is not None and mark.owner == pointer.owner:
            return
        state = load(folder.segment_path(pointer.segment))
        made = _Mark(name, pointer.owner, state.last_seq, state.run or "", waiting=[] if mark is None else mark.waiting)
        self._put(made)
        self._marks[name] = made
        self._tails.pop(name, None)

    def changed(self) -> list[str]:
        """The pods whose logs hold more than was read, or that are gone."""
        return [name for name, mark in self._marks.items() if self._seen(name) != mark.seen]

    def take(self, name: str) -> list[Due]:
        """What is new in the log of a pod, on record here when it returns. Nothing for a pod that is not watched."""
        mark = self._marks.get(name)
        if mark is None:
            return []
        try:
            return self._taken(mark)
        except PodNotFound:
            self._gone(mark)
        except PodError as error:
            logger.warning("webhook %s: the log of a pod can't be read on: %s", self.webhook.name, error)
            mark.seen = self._seen(name)  # until it changes
        return []

    def _taken(self, mark: _Mark) -> list[Due]:
        folder = PodFolder(self.home, mark.pod)
        if (owner := folder.pointer().owner) != mark.owner:
            # Another pod of that name: all of it is new.
            mark.owner, mark.after, mark.run, mark.seen = owner, 0, "", []
            self._tails.pop(mark.pod, None)
        seen = self._seen(mark.pod)
        if seen == mark.seen or len(mark.waiting) >= MOST_WAITING:
            return []
        tail = self._tails.pop(mark.pod, None) or Tail(folder, mark.after)
        found: list[Due] = []
        while not (full := len(mark.waiting) + len(found) >= MOST_WAITING) and (lines := tail.read()):
            for line in lines:
                found += self._of(mark, line)
        mark.after, mark.seen = tail.after, [] if full else seen
        mark.waiting += found
        self._put(mark)
        self._tails[mark.pod] = tail
        while len(self._tails) > TAILS:
            self._tails.popitem(last=False)
        return found

    def _of(self, mark: _Mark, line: Line) -> Iterator[Due]:
        if line.kind not in {"segment_started", "run_started", "run_ended", "approval_asked"}:
            return
        try:
            record = e.record_of(line)
        except LogDamaged:
            return
        match record:
            case e.SegmentStarted():
                mark.run = record.open_run.run if record.open_run is not None else ""
                return
            case e.RunStarted():
                mark.run = record.run
                return
            case e.RunEndedEntry():
                kind, data, mark.run = "run.ended", _of_run(record), ""
            case ApprovalAsked():
                kind = "approval.asked"
                data = {"run": mark.run, "id": record.id, "tool": record.tool, "effect": record.effect}
            case _:
                return
        if kind not in self.webhook.events:
            return
        now = time.time()
        label = f"msg_{hashlib.sha256(mark.owner.encode()).hexdigest()[:32]}_{line.seq}"
        data = {"pod": mark.pod, "session": PodFolder(self.home, mark.pod).pointer().session, "seq": line.seq, **data}
        yield Due(label, mark.pod, kind, line.at, line.seq, data, line.offset, now, now)

    def body(self, due: Due) -> bytes:
        """What is sent of an event. Where what was said is wanted and can be read no more (after `pod clear`), it is left out."""
        data = dict(due.data)
        if self.webhook.content:
            with suppress(PodError, OSError):
                data |= self._said(due)
        return body_of(due.kind, due.at, data)

    def _said(self, due: Due) -> dict[str, Any]:
        for segment in SessionReader(PodFolder(self.home, due.pod)).walk():
            if segment.seq <= due.seq:
                line = next(scan(segment.path, due.offset), None)
                own = (
                    isinstance(line, Line) and line.seq == due.seq and (segment.upto is None or due.seq <= segment.upto)
                )
                return _content(e.record_of(line)) if isinstance(line, Line) and own else {}
        return {}

    def over(self, due: Due) -> bool:
        """An event was accepted, or is given up: it is never sent again. Whether more of its pod is to be taken. Raises `OSError`."""
        mark = self._marks.get(due.pod)
        if mark is None:
            return False
        mark.waiting = [each for each in mark.waiting if each.id != due.id]
        self._put(mark)
        return not mark.seen

    def later(self, due: Due) -> None:
        """When an event is tried again is on record. Raises `OSError`."""
        if (mark := self._marks.get(due.pod)) is not None:
            self._put(mark)

    def _gone(self, mark: _Mark) -> None:
        """A pod was removed: its mark goes once nothing of it waits."""
        mark.seen = []
        if not mark.waiting:
            self._tails.pop(mark.pod, None)
            del self._marks[mark.pod]
            with suppress(OSError):
                self.files.unlink(self._path(mark.pod))

    def _seen(self, name: str) -> list[Any]:
        """How far a pod's log reaches: the active segment and its bytes."""
        folder = PodFolder(self.home, name)
        try:
            segment = folder.pointer().segment
            return [segment, folder.segment_path(segment).stat().st_size]
        except (PodError, OSError):
            return ["", 0]

    def _put(self, mark: _Mark) -> None:
        self.files.make_folder(self.folder)
        self.files.put(self._path(mark.pod), mark.dump())

    def _path(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:40]}.json"


def _of_run(record: e.RunEndedEntry) -> dict[str, Any]:
    kind = str(record.result.get("kind") or record.result.get("limit") or "")
    code = EXIT_BY_KIND.get(kind, EXIT.get(record.status, 1))
    return {"run": record.run, "status": record.status, "exit_code": code, "error_kind": kind or None}


def _content(record: Any) -> dict[str, Any]:
    """What was said, as far as a record holds it."""
    if isinstance(record, e.RunEndedEntry):
        said = record.result
        return {"text": said.get("text") or None, "output": said.get("output"), "error": said.get("message") or None}
    if isinstance(record, ApprovalAsked):
        return {"summary": record.summary, "reason": record.reason}
    return {}


def labels(webhooks: Sequence[Webhook]) -> dict[str, Webhook]:
    """Each webhook by the name of its folder: a mark outlives a change of the address."""
    return {hashlib.sha256(each.name.encode()).hexdigest()[:16]: each for each in webhooks}
