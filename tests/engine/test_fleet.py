"""Two nodes on one PostgreSQL, one on trio and one on asyncio, and what happens to them. The full sizes run in the soak."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.cli_rig import Rig
from engine.faults import cut_off, frozen, killed, restarted
from engine.fleet import Fleet, fleet
from store.pg_server import Server

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed: its tests are left out")

COUNT, WIDTH, LEASE, WITHIN = 20, 6, 3.0, 60.0


@pytest.fixture
def two(tmp_path: Path, postgres: Server, new_database: Callable[[], str]) -> Iterator[Fleet]:
    with fleet(Rig(tmp_path), postgres, new_database(), lease=LEASE) as made:
        yield made


def test_a_node_that_is_killed_leaves_nothing_undone_and_no_tool_runs_twice(two: Fleet) -> None:
    killed(two, COUNT, "trio", "asyncio", WIDTH, WITHIN)


def test_the_pods_of_a_frozen_node_go_on_elsewhere_within_two_leases_and_it_writes_nothing_when_it_wakes(
    two: Fleet,
) -> None:
    frozen(two, COUNT, "asyncio", "trio", WIDTH, WITHIN)


def test_a_server_that_is_killed_and_comes_back_loses_nothing(two: Fleet) -> None:
    restarted(two, COUNT, "trio", "asyncio", WIDTH, WITHIN, away=1.0)


def test_a_node_that_is_cut_off_is_fenced_and_goes_on_when_the_network_is_back(
    two: Fleet, record_property: Callable[[str, object], None]
) -> None:
    record_property("cut by", cut_off(two, COUNT, "asyncio", "trio", WIDTH, WITHIN, "relay"))
