"""`pod queue ls | show | cancel | retry`, and the way to `limit` and `schedule`."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

import anyio
import anyio.to_thread

from pod.cli.output import show, show_json
from pod.cli.text import figures, one_line, span, table
from pod.engine.opening import engine_at
from pod.engine.orders import Orders
from pod.engine.placing import cancel, newest, retry
from pod.engine.port import ActivationStatus, Engine
from pod.log.folder import default_home


def queue(args: argparse.Namespace) -> int:
    """Does one of them."""
    if args.action == "limit":
        from pod.cli.limiting import limit

        return limit(args)
    if args.action == "schedule":
        from pod.cli.schedule import schedule

        return schedule(args)
    return anyio.run(_queue, args, backend="asyncio")


async def _queue(args: argparse.Namespace) -> int:
    orders = Orders(default_home())
    if args.action != "ls":
        for name in args.names:  # a mistake in one name touches none
            await anyio.to_thread.run_sync(orders.require, name)
    async with engine_at(args.db, orders.home) as engine:
        match args.action:
            case "ls":
                await _ls(args, engine)
            case "show":
                await _show(args, engine, orders)
            case action:
                said = [await (cancel if action == "cancel" else retry)(engine, orders, name) for name in args.names]
                if args.json:
                    show_json([{"pod": name, "said": words} for name, words in zip(args.names, said, strict=True)])
                else:
                    show("\n".join(said))
    return 0


async def _ls(args: argparse.Namespace, engine: Engine) -> None:
    phases: Any = [args.phase] if args.phase else [] if args.all else ["queued", "delayed", "running"]
    found = [each async for each in engine.list(queue=args.queue, phases=phases, limit=args.limit)]
    nodes = [node for node in await engine.nodes() if args.queue is None or args.queue in node.queues]
    limits = {name: each for name, each in (await engine.limits()).items() if args.queue in (None, name)}
    if args.json:
        bounds = {name: each.as_json() for name, each in limits.items()}
        nodes_json = [asdict(node) for node in nodes]
        show_json({"activations": [_json(each) for each in found], "nodes": nodes_json, "limits": bounds})
        return
    rows = [
        (each.activation.id, _where(each), _state(each), str(each.priority), span(max(time.time() - _since(each), 0.0)),
         one_line(each.detail, 80) or (each.worker if each.phase == "running" else "") or "")
        for each in found
    ]  # fmt: skip
    lines = [
        table(rows, ("activation", "queue", "state", "priority", "for", "")) if rows else "nothing is on the queues"
    ]
    lines += [f"queue {name}: {each.words()}" for name, each in limits.items()]
    lines += [f"node {node.id} serves {', '.join(node.queues)}" for node in nodes] or ["no node serves"]
    show("\n".join(lines))


async def _show(args: argparse.Namespace, engine: Engine, orders: Orders) -> None:
    order, now = await newest(engine, orders, args.names[0])
    runs = [each async for each in engine.list(session=order.session)]
    if args.json:
        show_json({"order": order.model_dump(mode="json"), "activations": [_json(each) for each in runs]})
        return
    state = "not on a queue" if now is None else _state(now)
    show(figures([
        ("pod", order.session), ("queue", order.queue), *([("partition", order.partition)] if order.partition else []),
        ("priority", str(order.priority)), ("folder", order.cwd),
        ("task", one_line(order.task, 200)), ("state", f"{state}{f': {now.detail}' if now is not None and now.detail else ''}"),
    ]))  # fmt: skip
    rows = [
        (each.activation.id, each.activation.reason, _state(each), each.worker or "", one_line(each.detail, 80))
        for each in runs
    ]
    if rows:
        show(f"\n{table(rows, ('activation', 'because', 'state', 'node', ''))}")


def _where(status: ActivationStatus) -> str:
    return f"{status.queue}/{status.partition}" if status.partition else status.queue


def _state(status: ActivationStatus) -> str:
    if status.phase == "delayed" and status.activation.reason == "parked":
        return "waits for a human"
    return status.outcome or status.phase


def _since(status: ActivationStatus) -> float:
    return status.ended or (status.started if status.phase == "running" else None) or status.created


def _json(status: ActivationStatus) -> dict[str, Any]:
    return {
        "id": status.activation.id,
        **asdict(status.activation),
        **{k: v for k, v in asdict(status).items() if k != "activation"},
    }
