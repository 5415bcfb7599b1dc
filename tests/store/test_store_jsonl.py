"""The store in files: who dies gives the lease free, what was torn does not count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pod.store.jsonl import JsonlStore
from pod.store.port import Entry, Held

HOLDS = """
import sys
from pathlib import Path
from pod.store.jsonl import JsonlStore
store = JsonlStore(Path(sys.argv[1]))
store.create("a")
store.append(store.acquire("a", "the child"), "log", 1, [b"one", b"two"])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lease_is_free_when_its_process_is_killed_and_not_before(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        store = JsonlStore(tmp_path)
        with pytest.raises(Held) as held:
            store.acquire("a", "me")
        assert held.value.owner == "the child"
        with pytest.raises(Held):
            store.acquire("a", "me", over=held.value.epoch)  # the kernel knows better
    finally:
        child.kill()
        child.communicate()
    lease = store.acquire("a", "me")
    assert lease.epoch == 2
    store.append(lease, "log", 3, [b"three"])
    assert [*store.load("a", "log")] == [Entry(1, b"one"), Entry(2, b"two"), Entry(3, b"three")]
    store.close()


def test_an_append_that_was_torn_counts_as_none(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path)
    store.create("a")
    lease = store.acquire("a", "me")
    store.append(lease, "log", 1, [b"one"])
    path = tmp_path / "pods/a/logs/log.jsonl"
    before = path.stat().st_size
    store.append(lease, "log", 2, [b"two", b"three"])
    store.close()
    whole = path.read_bytes()
    for end in range(before, len(whole) - 1, 11):
        path.write_bytes(whole[:end])
        store = JsonlStore(tmp_path)
        assert [*store.load("a", "log")] == [Entry(1, b"one")]
        store.append(store.acquire("a", "me"), "log", 2, [b"again"])
        assert [*store.load("a", "log")] == [Entry(1, b"one"), Entry(2, b"again")]
        store.close()
