"""`pod log`: the events of a session, as lines or as JSON, and what comes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from pod.cli.failing import note
from pod.cli.output import show, write_json
from pod.cli.progress import Lines
from pod.cli.sending import folder_of
from pod.errors import LogDamaged
from pod.events import Event, event_of
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.segment import Damage
from pod.losses import losses
from pod.reading import SessionReader

POLL = 0.3
"""Seconds between two looks at a log that is followed."""


def log(args: argparse.Namespace) -> int:
    """Prints the events; with `-f` goes on until interrupted."""
    folder = folder_of(args.name)
    if args.item is not None:
        from pod.cli.items import show_item

        return show_item(folder, args.item, as_json=args.json)
    lines = Lines(verbose=True, width=400)
    after = args.after
    told: set[tuple[str, int]] = set()
    for loss in losses(folder):
        note(f"pod: warning: {loss}")
    while True:
        for seq, event in events(folder, after, told):
            after = seq
            if event is None:
                continue
            if args.json:
                _json(event)
                continue
            text = lines.of(event)
            if text := _plain(event) if text is None else text:
                show(f"{event.seq:>6}  {event.at[:19]}Z  {text}")
        if not args.follow:
            _hint(folder, args.name, quiet=args.json)
            return 0
        time.sleep(POLL)


def _hint(folder: PodFolder, name: str, *, quiet: bool) -> None:
    """Where the summary that the active segment began with can be read."""
    from pod.peek import glance

    if not quiet and glance(folder).lineage == "compacted_from":
        note(
            f"pod {name}: `pod show {name} --summary` prints what was summarised last; `pod show {name} --item N`, what entry N holds"
        )


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
    return None if event.type == "tool.started" else event.type.replace(".", " ")


def _json(event: Event) -> None:
    write_json(event.model_dump_json() + "\n", sys.stdout)
