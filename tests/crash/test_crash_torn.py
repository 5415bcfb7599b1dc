"""What makes a boundary between two segments, torn at each byte: it is no boundary or the whole one, and nothing is lost or doubled."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from crash.crash_boundary import BACKENDS, drive, policies, record
from crash.crash_share import WHOLE
from crash.crash_torn import cuts, opens_once

from pod.testing import Op

pytestmark = pytest.mark.slow

KIND = re.compile(rb'"kind":"([a-z_]+)"')

SAMPLE = 61
"""Of a file that has no name yet, of a blob and of a compact worker's own log, one byte in so many: nothing refers to them."""

EDGE, INSIDE = 200, 9
"""Of an entry that is longer than two edges (a checkpoint), each byte at its edges and one in so many between them."""


def refers(op: Op) -> bool:
    """Whether what is written is looked at as soon as a byte of it stands there: the logs of the two segments, and the pointer."""
    name = op.path.rpartition("/")[2]
    return name.startswith(".pod.json.") or (name[0] != "." and name.endswith(".jsonl") and ".compact-" not in name)


ALIKE = {
    "yielded": "rollover",
    "compaction_started": "compact",
    "input": "checkpoint",
    "lease": "native",
    "": "rollover",
}
"""What each policy writes in the same form (the pointer has no kind), and the one under which each of its bytes is looked at. Under the
others it is its edges of `RIM` bytes, and one byte in so many between them.
"""

RIM = 20

DENSE = "rollover"
"""The policy under which the suite takes all of these bytes; under the others it is every third."""


def alike(op: Op, policy: str) -> bool:
    """Whether another policy's test looks at each byte of this."""
    kind = KIND.search(op.data)
    return ALIKE.get(kind[1].decode() if kind else "", policy) != policy


def looked_at(op: Op, at: int, policy: str) -> bool:
    if not refers(op):
        return at % SAMPLE == 1
    if policy != DENSE and not WHOLE and at % 3:
        return False
    edge = RIM if alike(op, policy) else EDGE
    return at <= edge or at >= len(op.data) - edge or at % INSIDE == 0


@policies
def test_a_boundary_that_was_torn_at_any_byte_is_none_or_the_whole_one(base: Path, policy: str) -> None:
    """Each byte of the old segment's last entries, of the pointer and of the new segment's lease, where all policies write them alike
    under one of these; a dense sample of long ones and a thin one of all other files. Under the policies but one the suite takes a
    third of that (`make soak` takes every byte of every file, under each policy).
    """
    files, within = record(base, policy)
    seen = Counter[int]()
    for cut in cuts(files, within, base.with_name("world"), policy, lambda op, at: looked_at(op, at, policy)):
        opens_once(cut)
        seen[cut.number] += 1
    writes = {number: files.ops[number] for number in within if files.ops[number].kind == "write"}
    short = {n: len(op.data) - 1 for n, op in writes.items() if refers(op) and len(op.data) <= 2 * EDGE}
    thinned = 1 if WHOLE or policy == DENSE else 3
    whole = {n: length // thinned for n, length in short.items() if not alike(writes[n], policy)}
    assert {n: seen[n] for n in whole} == whole and len(short) >= 6
    dense = all(seen[n] > length / INSIDE / thinned - 1 for n, length in short.items())
    assert len(short) - len(whole) <= len(ALIKE) - 1 and dense
    assert len({writes[n].path for n in short}) == 3, "two logs and the pointer"
    assert set(seen) == set(writes) - {n for n, op in writes.items() if len(op.data) < 2}


def test_what_all_policies_write_alike_is_looked_at_under_one_of_them() -> None:
    assert set(ALIKE.values()) <= set(BACKENDS)


@policies
def test_a_job_whose_boundary_was_torn_goes_on_and_makes_it_once(base: Path, policy: str) -> None:
    """The same process or another one takes the job up where it was cut off, and it ends complete."""
    files, within = record(base, policy)
    rest = 0
    for cut in cuts(
        files, within, base.with_name("world"), policy, lambda op, at: at % (97 if refers(op) else 997) == 50
    ):
        print("operation", cut.number, files.ops[cut.number].path, "at", cut.length)
        cut.world.check(drive(policy, cut.world.finish))
        rest += 1
    assert rest >= 15
