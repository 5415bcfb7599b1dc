"""What happens to a fleet of two nodes, at any size: the normal suite runs it small, the soak as large as it is meant."""

from __future__ import annotations

import signal
import time
from typing import Any

from engine.fleet import Fleet, Node, cable, until


def began(fleet: Fleet, backend: str, other: str, width: int) -> tuple[Node, Node, Any]:
    """The victim, the other node and the batch, when the victim has something and marks have been left."""
    victim = fleet.node(backend, width)
    rest = fleet.node(other, width)
    fleet.serving()
    batch = fleet.batch()
    until(lambda: fleet.held_by(victim) and any(pid == victim.pid for *_, pid in fleet.marks()), 30, "the victim works")
    return victim, rest, batch


def killed(fleet: Fleet, count: int, backend: str, other: str, width: int, within: float) -> None:
    """SIGKILL of one of two nodes."""
    fleet.prepare(count)
    victim, _, batch = began(fleet, backend, other, width)
    victim.send(signal.SIGKILL)
    taken = fleet.held_by(victim)
    took = fleet.elsewhere(taken, victim, 2 * fleet.lease)
    print(f"{len(taken)} pods of the killed node went on elsewhere within {took:.1f} s (lease {fleet.lease:g} s)")
    fleet.check(batch, within)
    fleet.end()


def frozen(fleet: Fleet, count: int, backend: str, other: str, width: int, within: float) -> None:
    """SIGSTOP of one of two nodes for three lease lengths, then SIGCONT."""
    fleet.prepare(count)
    victim, _, batch = began(fleet, backend, other, width)
    victim.send(signal.SIGSTOP)
    stopped = time.monotonic()
    taken = fleet.held_by(victim)
    took = fleet.elsewhere(taken, victim, 2 * fleet.lease)
    print(f"{len(taken)} pods of the frozen node went on elsewhere within {took:.1f} s (lease {fleet.lease:g} s)")
    marks = len([1 for *_, pid in fleet.marks() if pid == victim.pid])
    until(lambda: time.monotonic() - stopped >= 3 * fleet.lease, 4 * fleet.lease, "three leases")
    assert len([1 for *_, pid in fleet.marks() if pid == victim.pid]) == marks
    victim.send(signal.SIGCONT)
    fleet.check(batch, within)
    fleet.end()


def restarted(fleet: Fleet, count: int, backend: str, other: str, width: int, within: float, away: float) -> None:
    """PostgreSQL is killed with -9, all of it, and comes back after a while."""
    fleet.prepare(count)
    _, _, batch = began(fleet, backend, other, width)
    fleet.server.crash()
    down = time.monotonic()
    until(lambda: time.monotonic() - down >= away, away + 5, "the outage")
    fleet.server.control("start", *fleet.server.options())
    fleet.check(batch, within)
    fleet.end()


def cut_off(fleet: Fleet, count: int, backend: str, other: str, width: int, within: float, how: str) -> str:
    """The way between one node and the database is cut for three lease lengths; how it was cut."""
    with cable(fleet, count, how) as (way, url):
        victim = fleet.node(backend, width, url=url, prefix=way.prefix)
        fleet.node(other, width)
        fleet.serving()
        batch = fleet.batch()
        until(lambda: fleet.held_by(victim) and any(p == victim.pid for *_, p in fleet.marks()), 30, "the victim works")
        way.cut()
        cut = time.monotonic()
        taken = fleet.held_by(victim)
        took = fleet.elsewhere(taken, victim, 2 * fleet.lease)
        print(f"cut by {way.how}: {len(taken)} pods went on elsewhere within {took:.1f} s (lease {fleet.lease:g} s)")
        until(lambda: time.monotonic() - cut >= 3 * fleet.lease, 4 * fleet.lease, "three leases")
        way.mend()
        fleet.check(batch, within)
        fleet.end()
        return way.how


def replaced(fleet: Fleet, count: int, backend: str, other: str, width: int, within: float) -> None:
    """A new version comes to one node after the other: each is told to end, and another one takes its place."""
    fleet.prepare(count)
    first, second, batch = began(fleet, backend, other, width)
    for node, kind in ((first, other), (second, backend)):
        assert node.end() == 0, "".join(node.said)
        fleet.node(kind, width)
        until(lambda: len(fleet.rows("SELECT id FROM pod_engine.pod_node")) == 2, 60, "the new one serves")
    fleet.check(batch, within)
    fleet.end()
