"""What is asked of the queues by commands: put pods there, put them there again, take them off."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import anyio.to_thread

from pod.engine.activation import QUARANTINE
from pod.engine.orders import Order, Orders
from pod.engine.port import CONTINUE, GOES_ON, ActivationStatus, Engine
from pod.log.folder import PodFolder
from pod.standing import ALONE_FROM, standing_of


async def place(engine: Engine, orders: Orders, wanted: Sequence[Order]) -> list[Order]:
    """Has these pods on their queues, each once; the orders as they are now. What waits or runs already goes on; what ended is put
    there again. Cancelled, some may be there and some not: place them again.
    """
    before = await _thread(orders.read_each, [order.session for order in wanted])
    known = {order.activation.id: order for order in before.values() if order is not None}
    status = {each.activation.id: each for each in await engine.status(known)}
    placed: list[Order] = []
    for order in wanted:
        old = before.get(order.session)
        if old is None:
            if order.session in before:  # what stands there does not read: its place is taken by a number of its own
                order = order.model_copy(update=await _anew(engine, orders, order))
            placed.append(order)
            continue
        now = status.get(old.activation.id)
        kept: dict[str, object] = {
            "n": old.n, "reason": old.reason, "times": old.times, "quarantined": old.quarantined, "made": old.made,
            "attempts": max(old.attempts, order.attempts),
        }  # fmt: skip
        if now is not None and (now.phase == "ended" or old.cancelled):
            kept |= await _thread(_again, old, orders.home)
        after = order.model_copy(update=kept)
        # Nodes go on with it meanwhile: what one of them wrote since stands.
        placed.append(old if after == old else await _thread(orders.revise, old, after))
    await _thread(orders.keep, [order for order in placed if before.get(order.session) is None])
    due = [order for order in placed if order.activation.id not in status]
    for queue in dict.fromkeys(_queue(order) for order in due):
        for priority in dict.fromkeys(order.priority for order in due):
            acts = [order.activation for order in due if _queue(order) == queue and order.priority == priority]
            if acts:
                partitions = {order.session: order.partition for order in due}
                await engine.submit(acts, queue=queue, priority=priority, partitions=partitions)
    return placed


async def place_once(engine: Engine, orders: Orders, wanted: Order) -> None:
    """Has a pod on its queue that never was on one; one that ever was stays as it is. Cancelled, it may be there: place it again."""
    order = await _thread(orders.keep_first, wanted)
    if order.n == 1:
        await _submit(engine, order, order.priority)


async def retry(engine: Engine, orders: Orders, session: str) -> str:
    """Puts a pod on its queue again; what that came to, in words. Raises `UsageProblem` where it never was on one."""
    order = await _thread(orders.require, session)
    found = await engine.status([order.activation.id])
    if found and found[0].phase in {"queued", "running"} and not order.cancelled:
        return f"{session} is {found[0].phase} already"
    if found and found[0].phase == "delayed" and not order.cancelled:
        await engine.wake(order.activation.id)
        return f"{session} goes on now"
    if found:
        again = await _thread(_again, order, orders.home)
        order = await _thread(partial(orders.change, session, **again))
    await _submit(engine, order, CONTINUE)
    return f"{session} is queued again, as {order.activation.id}"


async def matching(engine: Engine, orders: Orders, pattern: str) -> list[str]:
    """The pods that match a pattern (`nightly/*`) and are not over, in order."""
    names = await _thread(lambda: sorted(name for name in orders.sessions() if fnmatchcase(name, pattern)))
    found = await _thread(orders.read_all, names)
    statuses = await engine.status([order.activation.id for order in found.values()])
    over = {each.activation.session for each in statuses if each.phase == "ended" and each.outcome not in GOES_ON}
    return [name for name in names if name in found and name not in over]


async def cancel(engine: Engine, orders: Orders, session: str) -> str:
    """Takes a pod off its queue, or ends its run; what that came to, in words. Raises `UsageProblem` where it never was on one."""
    order = await _thread(orders.require, session)
    found = await engine.status([order.activation.id])
    if found and found[0].phase == "ended" and found[0].outcome not in GOES_ON:
        return f"{session} has ended already ({found[0].outcome})"
    # First our own word: whatever begins it again finds that it is cancelled.
    order = await _thread(partial(orders.change, session, cancelled=True))
    await engine.cancel([order.activation.id])
    return f"{session} is cancelled; `pod queue retry {session}` goes on with it"


async def newest(engine: Engine, orders: Orders, session: str) -> tuple[Order, ActivationStatus | None]:
    """The order of a pod, and where its newest activation is."""
    order = await _thread(orders.require, session)
    found = await engine.status([order.activation.id])
    return order, found[0] if found else None


async def _anew(engine: Engine, orders: Orders, order: Order) -> dict[str, object]:
    """What an order says whose place is taken by one that does not read: it follows the activations that there are of it."""
    there = [status.activation.n async for status in engine.list(session=order.session)]
    return await _thread(_again, order.model_copy(update={"n": max(there, default=0)}), orders.home)


def _again(order: Order, home: Path) -> dict[str, object]:
    """What changes in an order that is put on a queue again. What brought its process down is tried once more, alone. Blocks."""
    standing = standing_of(PodFolder(home, order.session))
    starts = 0 if standing is None else standing.starts
    return {
        "n": order.n + 1, "reason": "retry", "times": 0, "cancelled": False, "quarantined": starts >= ALONE_FROM,
        "attempts": max(order.attempts, starts + 1),
    }  # fmt: skip


async def _submit(engine: Engine, order: Order, priority: int) -> None:
    partitions = {order.session: order.partition}
    await engine.submit([order.activation], queue=_queue(order), priority=priority, partitions=partitions)


def _queue(order: Order) -> str:
    return QUARANTINE if order.quarantined else order.queue


_thread = anyio.to_thread.run_sync
