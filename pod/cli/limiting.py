"""`pod queue limit`: what bounds a queue over all nodes."""

from __future__ import annotations

import argparse
from typing import Any

import anyio

from pod.cli.output import show, show_json
from pod.cli.schedule_arguments import NONE
from pod.engine.limits import NO_LIMITS
from pod.engine.opening import engine_at
from pod.log.folder import default_home


def limit(args: argparse.Namespace) -> int:
    """Sets what is given, and tells what holds."""
    return anyio.run(_limit, args, backend="asyncio")


async def _limit(args: argparse.Namespace) -> int:
    given: dict[str, Any] = {
        name: None if value == NONE else value
        for name in ("together", "each_node", "each_partition", "starts", "per")
        if (value := getattr(args, name)) is not None
    }
    async with engine_at(args.db, default_home()) as engine:
        limits = (await engine.limits()).get(args.queue, NO_LIMITS)
        if given:
            limits = limits.changed(**given)
            await engine.limit(args.queue, limits)
    if args.json:
        show_json({"queue": args.queue, "limits": limits.as_json()})
    else:
        show(f"queue {args.queue}: {limits.words() or 'no limits over all nodes'}")
    return 0
