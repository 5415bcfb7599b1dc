"""Every byte of every file that a boundary between two segments writes: its blobs, the new segment under its first name, the logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash.crash_boundary import first, policies, record
from crash.crash_shards import workplace
from crash.crash_torn import cuts, opens_once


@policies
@pytest.mark.slow
def test_a_boundary_that_was_torn_at_any_byte_of_any_file_is_none_or_the_whole_one(tmp_path: Path, policy: str) -> None:
    with workplace(tmp_path) as place:
        files, within = record(first(place / "base", policy), policy)
        seen = 0
        for cut in cuts(files, within, place / "world", policy, lambda op, at: True):
            opens_once(cut)
            seen += 1
        assert seen == sum(len(files.ops[n].data) - 1 for n in within if files.ops[n].kind == "write") > 10_000
