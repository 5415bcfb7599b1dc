"""Two hundred tasks over two nodes on one PostgreSQL: killed, frozen, cut off, and a server that dies. Some minutes in all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.cli_rig import Rig
from engine.conftest import made_database as made_database
from engine.conftest import new_database as new_database
from engine.faults import cut_off, frozen, killed, replaced, restarted
from engine.fleet import Fleet, fleet
from store.conftest import postgres as postgres
from store.pg_server import Server

COUNT, WIDTH, LEASE, WITHIN = 200, 10, 8.0, 240.0

BOTH = pytest.mark.parametrize(("victim", "other"), [("trio", "asyncio"), ("asyncio", "trio")], ids=["trio", "asyncio"])


@pytest.fixture
def two(tmp_path: Path, postgres: Server, new_database: Callable[[], str]) -> Iterator[Fleet]:
    with fleet(Rig(tmp_path), postgres, new_database(), lease=LEASE, pace=0.4) as made:
        yield made


@BOTH
def test_two_hundred_tasks_and_a_node_that_is_killed(two: Fleet, victim: str, other: str) -> None:
    killed(two, COUNT, victim, other, WIDTH, WITHIN)


@BOTH
def test_two_hundred_tasks_and_a_node_that_is_frozen_for_three_leases(two: Fleet, victim: str, other: str) -> None:
    frozen(two, COUNT, victim, other, WIDTH, WITHIN)


@BOTH
def test_two_hundred_tasks_and_a_server_that_dies(two: Fleet, victim: str, other: str) -> None:
    restarted(two, COUNT, victim, other, WIDTH, WITHIN, away=10.0)


@BOTH
@pytest.mark.parametrize("how", ["namespace", "relay"])
def test_two_hundred_tasks_and_a_node_that_is_cut_off_for_three_leases(
    two: Fleet, victim: str, other: str, how: str
) -> None:
    cut_off(two, COUNT, victim, other, WIDTH, WITHIN, how)


@BOTH
def test_two_hundred_tasks_and_nodes_that_are_replaced_one_after_the_other(two: Fleet, victim: str, other: str) -> None:
    replaced(two, COUNT, victim, other, WIDTH, WITHIN)
