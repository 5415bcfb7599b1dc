"""`pod log`: the events of a session, as lines or as JSON, and what comes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from pod.cli.failing import note
from pod.cli.output import show
from pod.cli.progress import Lines
from pod.cli.sending import folder_of
from pod.cli.text import safe_json
from pod.errors import LogDamaged
from pod.events import Event, event_of
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.segment import Damage
from pod.reading import SessionReader

POLL = 0.3
"""Seconds between two looks at a log that is followed."""


def log(args: argparse.Namespace) -> int:
    """Prints the events; with `-f` goes on until interrupted."""
    folder = folder_of(args.name)
    lines = Lines(verbose=True, width=400)
    after = args.after
    told: set[tuple[str, int]] = set()
    while True:
        for seq, event in events(folder, after, told):
            after = seq
            if event is None:
                continue
            if args.json:
                _json(event)
            elif (text := lines.of(event)) is not None or (text := _plain(event)) is not None:
                show(f"{event.seq:>6}  {event.at[:19]}Z  {text}")
        if not args.follow:
            return 0
        time.sleep(POLL)


def events(
    folder: PodFolder, after: int = 0, told: set[tuple[str, int]] | None = None
) -> Iterator[tuple[int, Event | None]]:
    """Number and event of each entry (None for bookkeeping); damage is passed over and said once."""
    seen: set[tuple[str, int]] = set() if told is None else told

    def damaged(segment: str, damage: Damage) -> None:
        if (segment, damage.offset) not in seen:
            seen.add((segment, damage.offset))
            note(
                f"pod: warning: {folder.segment_path(segment)}:{damage.number} (byte {damage.offset}): "
                f"{damage.reason}; passed over"
            )

    for line in SessionReader(folder).lines(after, damaged):
        try:
            record = e.record_of(line)
        except LogDamaged as error:
            note(f"pod: warning: entry {line.seq}: {error.reason}")
            continue
        yield line.seq, None if record is None else event_of(line, record)


def _plain(event: Event) -> str | None:
    match event.type:
        case "tool.started":
            return None
        case "run.started":
            return "run started"
        case _:
            return event.type


def _json(event: Event) -> None:
    import sys

    buffer = getattr(sys.stdout, "buffer", None)
    line = safe_json(event.model_dump_json()) + "\n"
    if buffer is None:
        sys.stdout.write(line)
    else:
        buffer.write(line.encode("utf-8", "replace"))
    sys.stdout.flush()
