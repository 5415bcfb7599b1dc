"""Looking a pod over, and putting damage aside.

`examine` only reads. `repair` moves damaged bytes to the pod's `quarantine` folder, offset and hash in the file's
name, and writes the log again without them: in their place stands a `repaired` entry with the first of the numbers
that were lost (see `pod.log.segment`), or, where no number was lost, one at the end of the active log. What stood
before the damage keeps its bytes, what stood behind it keeps its numbers. Calls whose results were lost are closed
when the log is loaded (`worker.history`). A pointer that is damaged or missing is made anew from the logs
(`pod.log.pointing`); altered texts go aside, and the next run makes lost ones anew (`pod.stored`). Both can be done
again: nothing more happens.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pod.errors import LogDamaged, NewerFormat, UsageProblem
from pod.log import entries as e
from pod.log.faults import Fault, Survey, survey
from pod.log.files import Files, files_of, named, odd_kind, open_file
from pod.log.findings import Code, Finding, PodReport, Quarantined, Repair, Report, SegmentReport, Severity
from pod.log.folder import PodFolder, Pointer, check_name, left_over_names, pod_names
from pod.log.lines import now, render
from pod.log.pointing import found_pointer
from pod.log.segment import CHUNK, SegmentWriter, entries, hash_range
from pod.log.texts import MADE_ANEW, NEEDED, PLURAL, USES, texts_of, way_out
from worker.ids import uuid7

STALE_AFTER = 3_600.0
"""Seconds after which a temporary file in the inbox is left over; the writer's own are, once the lock is free.
"""

MODES = 50
"""Findings about file modes that are given one by one."""


# -- examining ----------------------------------------------------------------------------------------------------


def examine(home: Path, name: str | None = None) -> Report:
    """Looks over one pod, or all of a home.

    Reads only; takes no lock. Raises `UsageProblem` for a name that can't be one.
    """
    names = [check_name(name)] if name is not None else _all_names(home)
    return Report(home=home, pods=tuple(_looked_over(PodFolder(home, n)) for n in names))


def _looked_over(folder: PodFolder) -> PodReport:
    """A pod that can't be read is a finding: the others are looked over all the same."""
    try:
        return _examine(folder)
    except OSError as error:
        text = f"it can't be looked over: {error.strerror or error}"
        path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else folder.path
        finding = Finding(code="unreadable", severity="error", path=path, text=text)
        return PodReport(name=folder.name, path=folder.path, findings=(finding,))


def _all_names(home: Path) -> list[str]:
    """Pods, and what is left of those that were begun to be made."""
    return sorted({*pod_names(home), *left_over_names(home)})


def _examine(folder: PodFolder) -> PodReport:
    findings: list[Finding] = []
    busy = folder.is_busy()
    if folder.is_left_over():
        findings.append(Finding(code="left_over", severity="note", path=folder.path, text=folder.left_over))
        return PodReport(name=folder.name, path=folder.path, busy=busy, findings=tuple(findings))
    try:
        pointer = folder.pointer()
    except (UsageProblem, NewerFormat) as error:
        code: Code = "newer_format" if isinstance(error, NewerFormat) else "pointer"
        text, mendable = str(error), False
        if code == "pointer":
            text, mendable = _pointer_finding(folder, text)
        findings.append(Finding(code=code, severity="error", path=folder.pointer_path, text=text, repairable=mendable))
        findings += _surroundings(folder, busy)
        return PodReport(name=folder.name, path=folder.path, busy=busy, findings=tuple(findings))
    segments = _segments(folder, pointer, findings, busy)
    findings += _blobs(folder, [s.id for s in segments if s.state in {"active", "earlier"}], pointer.segment)
    findings += _surroundings(folder, busy)
    return PodReport(
        name=folder.name, path=folder.path, session=pointer.session, segment=pointer.segment, busy=busy,
        owner=folder.owner() if busy else {}, segments=tuple(segments), findings=tuple(findings),
    )  # fmt: skip


def _pointer_finding(folder: PodFolder, problem: str) -> tuple[str, bool]:
    """What is wrong with the pointer, and whether the logs give it anew."""
    try:
        found = found_pointer(folder)
    except (UsageProblem, NewerFormat) as error:
        return f"{problem}; it can't be written anew: {error}", False
    lost = "damaged" if os.path.lexists(folder.pointer_path) else "missing"
    return f"{odd_kind(folder.pointer_path) or lost}; the logs say that {found.segment} is active", True


def _segments(folder: PodFolder, pointer: Pointer, findings: list[Finding], busy: bool) -> list[SegmentReport]:
    reports: list[SegmentReport] = []
    line, missing = _lineage(folder, pointer)
    findings += _odd_logs(folder, pointer.segment)
    path = folder.segment_path(pointer.segment)
    if not line and not os.path.lexists(path):
        text = (
            f"the active segment {pointer.segment} is missing, and nothing can replay this session; put its file back from a "
            "copy, or begin a new pod to go on with the work"
        )
        findings.append(Finding(code="segment_missing", severity="error", path=path, text=text))
    after: int | None = None
    floor: int | None = None
    for path in line:
        active = path == folder.segment_path(pointer.segment)
        try:
            found = survey(path)
        except NewerFormat as error:
            findings.append(Finding(code="newer_format", severity="error", path=path, text=str(error)))
            break
        findings += _faults(path, found, active=active, busy=busy)
        if after is not None and found.next_seq < after and not found.torn:
            text = f"entries {found.next_seq} to {after - 1} are missing at the end of this segment"
            findings.append(Finding(code="entries_missing", severity="warning", path=path, text=text))
        after = found.first_seq if found.start is not None and found.start.lineage.kind_ != "rewound_from" else None
        earlier = "origin" if path.parent == folder.origin else "earlier"
        reports.append(_segment_report(path, found, "active" if active else earlier))
        if floor is None and found.start is not None and found.start.lineage.kind_ == "cleared_from":
            floor = len(findings)
    if floor is not None:  # nothing goes back behind it: what is lost there is lost to nobody
        findings[floor:] = [f.model_copy(update={"severity": "note"}) for f in findings[floor:]]
    if line and missing is not None and not os.path.lexists(missing):
        text = "an older segment of this session is missing: what it held is lost; nothing needs it to go on"
        findings.append(Finding(code="segment_missing", severity="warning", path=missing, text=text))
    for path in _all_logs(folder):
        if path.with_name(f"{path.stem.split('.compact-')[0]}.jsonl") in line or odd_kind(path) is not None:
            continue
        findings.append(_outside(path, line))
        try:
            reports.append(_segment_report(path, survey(path), "orphan"))
        except NewerFormat as error:
            findings.append(Finding(code="newer_format", severity="note", path=path, text=str(error)))
    return reports


def _outside(path: Path, line: Sequence[Path]) -> Finding:
    """A log that the active segment does not descend from: one that a rewind left is in order."""
    rewinds = (log for log in line if (start := first_entry(log)) is not None and start.lineage.kind_ == "rewound_from")
    last = next(rewinds, None)
    if last is not None and path.parent == last.parent and path.name < last.name:  # names rise with time
        text = "left by a rewind; it is kept, and nothing is resumed from it"
        return Finding(code="rewound_segment", severity="note", path=path, text=text)
    text = "no pointer or lineage that reads refers to this log; it is kept, and nothing is resumed from it"
    return Finding(code="orphan_segment", severity="note", path=path, text=text)


def _odd_logs(folder: PodFolder, active: str) -> Iterator[Finding]:
    """What stands where logs should, and is no file."""
    for path in _all_logs(folder):
        if (kind := odd_kind(path)) is None:
            continue
        if path == folder.segment_path(active):
            text = (
                f"{kind}, where the active segment's log should be: its entries are lost, and nothing can replay this "
                "session; begin a new pod to go on with the work"
            )
            yield Finding(code="unreadable", severity="error", path=path, text=text)
        else:
            text = f"{kind}, where a log should be: what it held is lost; nothing needs it to go on"
            yield Finding(code="unreadable", severity="warning", path=path, text=text, repairable=True)


def _segment_report(
    path: Path, found: Survey, state: Literal["active", "earlier", "origin", "orphan"]
) -> SegmentReport:
    return SegmentReport(
        id=path.name.removesuffix(".jsonl"),
        state=state,
        entries=found.entries,
        bytes=found.size,
        whole=not found.faults,
    )


def _faults(path: Path, found: Survey, *, active: bool, busy: bool) -> Iterator[Finding]:
    if found.start is None:
        text = (
            "the first entry, from which this segment starts, is lost: it cannot be replayed, and nothing before it is "
            "known. Its other entries stay readable; begin a new pod to go on with the work"
        )
        yield Finding(
            code="beginning_lost", severity="error" if active else "warning", path=path, text=text, line=1, offset=0
        )
    for fault in found.faults:
        if fault.torn and active and not fault.committed:
            text = f"a torn tail: {fault.length} bytes ({fault.reason})"
            text += "; the writer may be writing it" if busy else "; the next run cuts it off and records that"
            severity: Severity = "note" if busy else "warning"
            code: Code = "torn_tail"
        else:
            lost = f"; {fault.numbers} entries are lost" if fault.numbers else ""
            text, code = f"{fault.length} damaged bytes ({fault.reason}){lost}", "damage"
            severity = "error" if active else "warning"
        yield Finding(
            code=code, severity=severity, path=path, text=text, line=fault.line, offset=fault.offset,
            length=fault.length, repairable=found.start is not None or not active,
        )  # fmt: skip


def _all_logs(folder: PodFolder) -> list[Path]:
    return [*sorted(folder.path.glob("*.jsonl")), *sorted(folder.origin.glob("*.jsonl"))]


def _lineage(folder: PodFolder, pointer: Pointer) -> tuple[list[Path], Path | None]:
    """The logs of all segments that the active one descends from, as far as their files are here, newest first, floors or
    not; and the one that should be here next, where a session should have it (not behind a floor).
    """
    found: list[Path] = []
    path, floor = folder.segment_path(pointer.segment), False
    while path not in found and path.is_file():
        found.append(path)
        start = first_entry(path)
        lineage = start.lineage if start is not None else e.Lineage()
        if (older := lineage.segment) is None:
            return found, None
        forked = lineage.kind_ == "forked_from"
        floor = floor or lineage.kind_ == "cleared_from" or (forked and not lineage.session)
        of_origin = forked or path.parent == folder.origin
        path = folder.origin_path(older) if of_origin else folder.segment_path(older)
    return found, None if floor or path in found else path


def first_entry(path: Path) -> e.SegmentStarted | None:
    """What a segment starts from; None where it does not read."""
    try:
        line = next(entries(path), None)
        record = e.record_of(line, path) if line is not None else None
    except (LogDamaged, NewerFormat):
        return None
    return record if isinstance(record, e.SegmentStarted) else None


def _blobs(folder: PodFolder, segments: Sequence[str], active: str) -> Iterator[Finding]:
    floor: str | None = None
    for label, use, digest in _texts(folder, segments):
        if floor is None and _begins_anew(folder, label):
            floor = label
        path = folder.path / "blobs" / digest
        if folder.holds(digest):
            continue
        made_anew = label == active and use in MADE_ANEW
        severity, then = "warning", "nothing needs it to go on"
        if label == active and use in NEEDED:
            severity = "warning" if made_anew else "error"
            then = f"{way_out(folder.name, (use,))} goes on{', and makes it anew' if made_anew else ''}"
        elif floor not in {None, label}:
            severity = "note"  # nothing goes back behind it
        what = f"the {USES.get(use, use)} of segment {label}"
        gone = not os.path.lexists(path)
        odd = odd_kind(path)
        wrong = (
            "missing" if gone else f"lost: {odd} stands in its place" if odd else "altered: its hash is not its name"
        )
        yield Finding(
            code="blob_missing" if gone else "blob_altered", severity=severity, path=path,
            text=f"{what} {'are' if use in PLURAL else 'is'} {wrong}; {then}", repairable=not gone, passing=made_anew,
        )  # fmt: skip


def _begins_anew(folder: PodFolder, segment: str) -> bool:
    start = first_entry(folder.segment_path(segment))
    return start is not None and start.lineage.kind_ == "cleared_from"


def _texts(folder: PodFolder, segments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Segment, use and hash of the texts in force at the end of each segment, each hash once."""
    seen: set[str] = set()
    for label in segments:
        try:
            blobs = texts_of(folder, label)
        except (LogDamaged, NewerFormat):
            continue
        for use, digest in blobs.items():
            if digest not in seen:
                seen.add(digest)
                yield label, use, digest


def _surroundings(folder: PodFolder, busy: bool) -> Iterator[Finding]:
    """A lock that can't be one, left-over temporary files, and modes wider than 0700 and 0600."""
    lock = folder.path / "lock"
    if os.path.lexists(lock) and not lock.is_file():
        text = "not a regular file: no writer can take it; remove it, and a new one is made"
        yield Finding(code="unreadable", severity="error", path=lock, text=text)
    wide = 0
    for path in _files(folder.path):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if _is_temporary(path) and _is_stale(path, status.st_mtime, writer_gone=not busy, folder=folder):
            text = "a temporary file that a killed process left; nothing reads it"
            yield Finding(code="stale_temporary", severity="note", path=path, text=text, repairable=True)
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077 and not stat.S_ISLNK(status.st_mode):
            wide += 1
            if wide <= MODES:
                text = f"mode {mode:04o}: others than its owner may use it; it is left as it is"
                yield Finding(code="mode", severity="warning", path=path, text=text)
    if wide > MODES:
        text = f"{wide - MODES} more files and folders have a mode wider than 0600 or 0700"
        yield Finding(code="mode", severity="warning", path=folder.path, text=text)


def _files(root: Path) -> Iterator[Path]:
    """The pod's folder and what is in it; not the pods of a group below it."""
    if not root.is_dir():
        return
    yield root
    for parent, folders, names in os.walk(root):
        here = Path(parent)
        folders[:] = [f for f in folders if not os.path.lexists(here / f / "pod.json")]
        yield from (here / n for n in sorted((*folders, *names)))


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".tmp")


def _is_stale(path: Path, changed: float, *, writer_gone: bool, folder: PodFolder) -> bool:
    by_writer = path.parent != folder.inbox
    return (by_writer and writer_gone) or time.time() - changed > STALE_AFTER


# -- repairing ----------------------------------------------------------------------------------------------------


def repair(home: Path, name: str, *, files: Files | None = None) -> Repair:
    """Puts damage aside, makes a lost pointer anew and removes left-over temporary files; modes and orphans are left.

    Raises `PodNotFound`, `PodBusy`, `NewerFormat`, `OSError`. Interrupted at any point, the pod is as it was or
    repaired, and what was damaged is in its place or in quarantine; doing it again completes it.
    """
    folder = PodFolder(home, check_name(name), files or files_of(home))
    if folder.is_left_over():
        return Repair(quarantined=(), removed=(), after=_examine(folder))
    if not folder.exists():
        folder.pointer()  # says that there is no such pod
    folder.lock()
    try:
        aside: list[Path] = []
        pointed_to = ""
        try:
            pointer = folder.pointer()
        except UsageProblem:
            pointer = found_pointer(folder)
            aside += _aside(folder, folder.pointer_path)
            folder.set_pointer(pointer)
            pointed_to = pointer.segment
        active = folder.segment_path(pointer.segment)
        for path in _all_logs(folder):
            if path != active and odd_kind(path) is not None:
                aside += _aside(folder, path)
        line, _ = _lineage(folder, pointer)
        done: list[Quarantined] = []
        after: int | None = None
        for path in line:
            found = survey(path)
            if found.faults and (found.start is not None or path != active):
                folder.expire_cursors()
                done += _repair_segment(folder, path, found, active, after)
            after = found.first_seq if found.start is not None else None
        for _, _, digest in _texts(folder, [path.stem for path in line if path.parent == folder.path]):
            if not folder.holds(digest):
                aside += _aside(folder, folder.path / "blobs" / digest)
        removed: list[Path] = []
        for path in [p for p in _files(folder.path) if _is_temporary(p)]:
            if _is_stale(path, path.lstat().st_mtime, writer_gone=True, folder=folder):
                folder.files.unlink(path)
                removed.append(path)
    finally:
        folder.unlock()
    return Repair(
        quarantined=tuple(done), removed=tuple(removed), kept_aside=tuple(aside), pointed_to=pointed_to,
        after=_examine(folder),
    )  # fmt: skip


def _aside(folder: PodFolder, path: Path) -> Iterator[Path]:
    """Keeps a whole file that is damaged in the quarantine under its hash, and what is no file under a name of its own."""
    if not os.path.lexists(path):
        return
    odd = odd_kind(path) is not None
    digest = uuid7()[-12:] if odd else hash_range(path, 0, path.stat().st_size)
    if path == folder.pointer_path and not odd:  # its place is never empty: the new one replaces it
        target = folder.quarantined(path, digest)
        folder.files.make_folder(target.parent)
        _write(folder.files, target, lambda put: _copy(path, 0, path.stat().st_size, put))
        yield target
    else:
        yield folder.set_aside(path, digest)


def _repair_segment(
    folder: PodFolder, path: Path, found: Survey, active: Path, after: int | None
) -> Iterator[Quarantined]:
    """Quarantines the faults of one segment, then writes it anew.

    `after` is the first number of the segment that follows.
    """
    label = path.stem
    inserts: dict[int, e.Repaired] = {}
    numbers: dict[int, int] = {}
    elsewhere: list[e.Repaired] = []
    for fault in found.faults:
        lost = _lost(fault, path == active, after)
        record = _put_aside(folder, path, fault, lost)
        if lost:
            inserts[fault.offset], numbers[fault.offset] = record, fault.first
        else:
            # Its text stays out: the active segment may stand behind a floor that this one is before.
            elsewhere.append(record.model_copy(update={"segment": label, "text": "", "numbers": 1}))
        yield Quarantined(segment=label, offset=fault.offset, length=fault.length, numbers=lost, kept_as=record.kept_as)
    appended: list[bytes] = []
    if path == active:
        seq = _next_seq(found, inserts, numbers)
        for record in elsewhere:
            appended.append(_line(seq, record))
            seq += 1
    elif elsewhere:
        _record(folder, active, elsewhere)
    pieces = ((f, _line(numbers[f.offset], inserts[f.offset]) if f.offset in inserts else b"") for f in found.faults)
    _rewrite(folder.files, path, found.size, pieces, appended)


def _lost(fault: Fault, active: bool, after: int | None) -> int:
    """How many numbers the `repaired` entry in the fault's place stands for; 0 where no number is free for one."""
    if not fault.torn:
        return fault.numbers
    if active:
        return max(fault.numbers, 1)
    return max(after - fault.first, 0) if after is not None else fault.numbers


def _next_seq(found: Survey, inserts: dict[int, e.Repaired], numbers: dict[int, int]) -> int:
    ends = [numbers[offset] + record.numbers for offset, record in inserts.items()]
    return max([found.next_seq, *ends])


def _put_aside(folder: PodFolder, path: Path, fault: Fault, lost: int) -> e.Repaired:
    digest = hash_range(path, fault.offset, fault.length)
    kept: str | None = None
    text = ""
    if fault.length:
        kept = f"{path.stem}.{fault.offset}.{digest[:12]}.bad"
        target = folder.path / "quarantine" / kept
        with open_file(path) as source:
            source.seek(fault.offset)
            text = source.read(min(fault.length, 400)).decode(errors="replace")
        if not target.exists():
            folder.files.make_folder(target.parent)
            _write(folder.files, target, lambda put: _copy(path, fault.offset, fault.length, put))
    return e.Repaired(
        offset=fault.offset,
        length=fault.length,
        sha256=digest,
        reason=fault.reason,
        text=text,
        numbers=max(lost, 1),
        kept_as=kept,
    )


def _record(folder: PodFolder, path: Path, records: Sequence[e.Repaired]) -> None:
    """Puts on record in the active log what is done to an earlier one, before it is done."""
    known: set[tuple[str | None, int, str]] = set()
    for line in entries(path):
        if line.kind == "repaired" and isinstance(record := e.record_of(line, path), e.Repaired):
            known.add((record.segment, record.offset, record.sha256))
    writer, _, _ = SegmentWriter.open(path, folder.files)
    try:
        for record in records:
            if (record.segment, record.offset, record.sha256) not in known:
                writer.write(record.kind, e.body_of(record))
        writer.sync_now()
    finally:
        writer.close()


def _line(seq: int, record: e.Repaired) -> bytes:
    return render(seq, record.kind, e.body_of(record), now())[1]


def _rewrite(
    files: Files, path: Path, size: int, pieces: Iterator[tuple[Fault, bytes]], appended: Sequence[bytes]
) -> None:
    def content(put: Callable[[bytes], None]) -> None:
        at = 0
        for fault, instead in pieces:
            _copy(path, at, fault.offset - at, put)
            put(instead)
            at = fault.offset + fault.length
        _copy(path, at, size - at, put)
        if appended and size > at and not _ends_with_newline(path, size):
            put(b"\n")
        for line in appended:
            put(line)

    _write(files, path, content, mode=stat.S_IMODE(path.stat().st_mode))


def _ends_with_newline(path: Path, size: int) -> bool:
    with open_file(path) as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"


def _copy(path: Path, offset: int, length: int, put: Callable[[bytes], None]) -> None:
    with open_file(path) as file:
        file.seek(offset)
        while length > 0 and (chunk := file.read(min(length, CHUNK))):
            put(chunk)
            length -= len(chunk)


def _write(files: Files, path: Path, content: Callable[[Callable[[bytes], None]], None], mode: int = 0o600) -> None:
    """`Files.put` for what is too large to hold; a mode that the operator widened stays."""
    temporary = path.with_name(f".{path.name}.{uuid7()}.tmp")
    fd = files.open_append(temporary, create=True)
    try:
        try:
            with named(path):
                os.fchmod(fd, mode)
                content(lambda data: files.write(fd, data) if data else None)
                files.sync(fd)
        finally:
            files.close(fd)
        files.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    files.sync_folder(path.parent)
