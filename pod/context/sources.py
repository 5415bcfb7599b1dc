"""What a checkpoint is made of: the items before the cut as the log holds them, each with its entry and run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pod.context.extract import Source
from pod.log import entries as e
from pod.log.items import ITEM_KINDS, items_of
from pod.log.segment import Damage, scan
from worker.items import Item
from worker.memory import read_by_others


def read_sources(path: Path, view: Sequence[Item]) -> list[Source]:
    """The items of a view, unpruned, in its order; one that the log does not hold stands as the view has it, a provider's
    memory by its text.

    Blocks. Raises `OSError`, `LogDamaged`.
    """
    wanted = {item.id for item in view}
    found: dict[str, Source] = {}
    run = ""
    for line in scan(path):
        if isinstance(line, Damage) or line.kind not in ITEM_KINDS | {"run_started"}:
            continue
        record = e.record_of(line, path)
        if record is None:
            continue
        started = isinstance(record, e.SegmentStarted)
        if isinstance(record, e.SegmentStarted):
            run = record.open_run.run if record.open_run else ""
        elif isinstance(record, e.RunStarted):
            run = record.run
        for item in items_of(record):
            if item.id in wanted:
                found.setdefault(item.id, Source(read_by_others(item), 0 if started else line.seq, run))
    return [found.get(item.id) or Source(read_by_others(item)) for item in view]
