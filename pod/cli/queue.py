"""`pod queue ls | show | cancel | retry`, and the way to `limit` and `schedule`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from dataclasses import asdict
from shutil import get_terminal_size
from typing import Any

import anyio
import anyio.to_thread

from pod.cli.output import show, show_json
from pod.cli.text import figures, fitted, one_line, span, table
from pod.engine.opening import engine_at
from pod.engine.orders import Orders
from pod.engine.placing import cancel, matching, newest, retry
from pod.engine.port import ActivationStatus, Engine, Phase
from pod.errors import UsageProblem
from pod.log.folder import default_home

PHASES = ("running", "queued", "delayed", "ended")
"""The order in which they are shown."""


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
            if not (args.action == "cancel" and _is_pattern(name)):
                await anyio.to_thread.run_sync(orders.require, name)
    async with engine_at(args.db, orders.home) as engine:
        match args.action:
            case "ls":
                await _ls(args, engine)
            case "show":
                await _show(args, engine, orders)
            case action:
                names = [name for given in args.names for name in await _meant(given, engine, orders)]
                said = [await (cancel if action == "cancel" else retry)(engine, orders, name) for name in names]
                if args.json:
                    show_json([{"pod": name, "said": words} for name, words in zip(names, said, strict=True)])
                else:
                    show("\n".join(said))
    return 0


def _is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")


async def _meant(given: str, engine: Engine, orders: Orders) -> list[str]:
    """The pods that a name or a pattern means. Raises `UsageProblem` where it means none."""
    if not _is_pattern(given):
        return [given]
    found = await matching(engine, orders, given)
    if not found:
        raise UsageProblem(f"{given}: nothing of this name waits or runs; `pod queue ls` lists what does")
    return found


async def _ls(args: argparse.Namespace, engine: Engine) -> None:
    found = await _listed(args, engine)
    found, more = found[: args.limit], len(found) > args.limit
    nodes = [node for node in await engine.nodes() if args.queue is None or args.queue in node.queues]
    limits = {name: each for name, each in (await engine.limits()).items() if args.queue in (None, name)}
    if args.json:
        bounds = {name: each.as_json() for name, each in limits.items()}
        nodes_json = [asdict(node) for node in nodes]
        show_json({"activations": [_json(each) for each in found], "more": more, "nodes": nodes_json, "limits": bounds})
        return
    heads = ("activation", "queue", "state", "priority", "for", "")
    rows = [
        (each.activation.id, _where(each), _state(each), str(each.priority), span(max(time.time() - _since(each), 0.0)),
         one_line(each.detail, 80) or (each.worker if each.phase == "running" else "") or "")
        for each in found
    ]  # fmt: skip
    if sys.stdout.isatty():
        rows = fitted(rows, heads, get_terminal_size().columns)
    lines = [table(rows, heads[: len(rows[0])]) if rows else "nothing is on the queues"]
    lines += [f"... and more; --limit N shows N of them (here {args.limit})"] if more else _counts(found)
    lines += [f"queue {name}: {each.words()}" for name, each in limits.items()]
    lines += [f"node {node.id} serves {', '.join(node.queues)}" for node in nodes] or ["no node serves"]
    show("\n".join(lines))


async def _listed(args: argparse.Namespace, engine: Engine) -> list[ActivationStatus]:
    """What is asked for, up to one more than wanted of each phase: what runs first, then what is begun next."""
    wanted: list[Phase] = (
        [args.phase] if args.phase else ["delayed", "queued", "running", *(["ended"] if args.all else [])]
    )
    found: dict[str, ActivationStatus] = {}
    for phase in wanted:  # in the order in which they follow each other: what moves on meanwhile is seen, and once
        async for each in engine.list(queue=args.queue, phases=[phase], limit=args.limit + 1):
            found[each.activation.id] = each
    return sorted(found.values(), key=_place)


def _place(status: ActivationStatus) -> tuple[Any, ...]:
    number = tuple(int(part) if part.isdigit() else -1 for part in re.split(r"(\d+)", status.activation.id))
    if status.phase == "ended":
        return PHASES.index(status.phase), -(status.ended or 0.0)
    return PHASES.index(status.phase), status.priority, status.created, number, status.activation.id


def _counts(found: list[ActivationStatus]) -> list[str]:
    """How many are in each state, for each queue; nothing where a look at the rows says it."""
    by: dict[str, Counter[str]] = {}
    for each in found:
        by.setdefault(each.queue or "-", Counter())[_state(each)] += 1
    return [
        f"{queue}: {', '.join(f'{many:,} {state}' for state, many in states.items())}"
        for queue, states in sorted(by.items())
    ]


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
    queue = status.queue or "-"  # the engine forgets the queue of what was cancelled before it ran
    return f"{queue}/{status.partition}" if status.partition else queue


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
