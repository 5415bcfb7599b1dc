"""Putting pods on their queues while nodes go on with them, and where what was kept of them does not read."""

from __future__ import annotations

import errno
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from pod.engine.activation import _puts_off  # pyright: ignore[reportPrivateUsage]
from pod.engine.memory import MemoryEngine
from pod.engine.orders import Order, Orders
from pod.engine.placing import place
from pod.engine.port import Activation
from pod.errors import PodBusy, StoreError
from pod.manifest import load_manifest
from pod.store.port import Unreachable

pytestmark = pytest.mark.anyio


def order(name: str, **more: Any) -> Order:
    return Order(session=name, queue="work", task="x", manifest="m", base="/", cwd="/", **more)


class Meanwhile(MemoryEngine):
    """Has something happen between what is read of the orders and what is written."""

    happens: Any = None

    async def status(self, ids: Collection[str]) -> Any:
        found = await super().status(ids)
        if self.happens is not None:
            self.happens()
        return found


@pytest.mark.parametrize("what", ["parked", "cancelled"])
async def test_what_a_node_or_a_user_writes_while_a_batch_is_placed_again_stands(tmp_path: Path, what: str) -> None:
    orders, engine = Orders(tmp_path), Meanwhile()
    await place(engine, orders, [order("b/0"), order("b/1")])

    def happens() -> None:
        if what == "parked":
            orders.follow(Activation("b/0", 1), "parked")
        else:
            orders.change("b/0", cancelled=True)

    engine.happens = happens
    placed = await place(engine, orders, [order("b/0", priority=7), order("b/1", priority=7)])
    now = orders.require("b/0")
    assert (now.n, now.reason, now.cancelled) == ((2, "parked", False) if what == "parked" else (1, "start", True))
    assert placed[0] == now and placed[1].priority == 7 == orders.require("b/1").priority


async def test_an_order_that_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    orders, engine = Orders(tmp_path), MemoryEngine()
    await place(engine, orders, [order("b/0", attempts=5)])
    path = tmp_path / "queue" / "orders" / "b" / "0.json"
    before = path.stat().st_ino
    await place(engine, orders, [order("b/0", attempts=3)])
    assert path.stat().st_ino == before and orders.require("b/0").attempts == 5, "a retry had given it more"


@pytest.mark.parametrize("text", ["garbage", "{}", "\0\0"])
async def test_an_order_that_does_not_read_is_submitted_again_and_holds_no_other_up(tmp_path: Path, text: str) -> None:
    orders, engine = Orders(tmp_path), MemoryEngine()
    await place(engine, orders, [order("b/0"), order("b/1")])
    (tmp_path / "queue" / "orders" / "b" / "0.json").write_text(text)
    placed = await place(engine, orders, [order("b/0"), order("b/1"), order("b/2")])
    assert [each.activation.id for each in placed] == ["b/0@2", "b/1@1", "b/2@1"]
    assert orders.require("b/0").reason == "retry"
    waiting = [status.activation.id async for status in engine.list(phases=["queued"])]
    assert sorted(waiting) == ["b/0@1", "b/0@2", "b/1@1", "b/2@1"], "the first one finds that the second goes on"


@pytest.mark.parametrize("text", ["", "{}", '{"kept": "{}", "files": [], "path": "x"}'])
def test_a_manifest_that_does_not_read_is_kept_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.toml").write_text('version = 1\n[model]\nname = "offline:surveyor"\n')
    loaded = load_manifest(tmp_path / "m.toml", cwd=tmp_path)
    orders = Orders(tmp_path)
    digest = orders.keep_manifest(loaded)
    orders.documents.write("manifest", {digest: text.encode()})
    assert orders.keep_manifest(loaded) == digest
    kept = orders.loaded(
        order("b/0").model_copy(update={"manifest": digest, "base": str(tmp_path), "cwd": str(tmp_path)})
    )
    assert kept.manifest == loaded.manifest


def test_what_passes_by_itself_puts_a_pod_off_and_what_does_not_fails_it() -> None:
    def store(number: int) -> StoreError:
        return StoreError(Path("x"), "write", OSError(number, "why"))

    for error in (
        PodBusy("x", {}),
        store(errno.ENOSPC),
        store(errno.EDQUOT),
        StoreError(Path("x"), "write", Unreachable("db", "gone")),
    ):
        assert _puts_off(error)
    for error in (store(errno.EACCES), store(errno.EIO), ValueError("x")):
        assert not _puts_off(error)
