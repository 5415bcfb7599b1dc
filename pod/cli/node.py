"""`pod node`: serves queues until it is told to end."""

from __future__ import annotations

import argparse

import anyio

from pod.cli.failing import note
from pod.cli.files import open_files
from pod.cli.signals import Stopping, handled
from pod.engine.activation import QUARANTINE
from pod.engine.node import NodeWork
from pod.engine.opening import engine_at
from pod.engine.port import QueueSpec
from pod.log.folder import default_home


def node(args: argparse.Namespace) -> int:
    """Serves; 0 where it ended as it was told to."""
    open_files(args.concurrency)
    return anyio.run(_node, args, backend="asyncio" if args.asyncio else "trio")


async def _node(args: argparse.Namespace) -> int:
    home = default_home()

    def tell(text: str) -> None:
        if not args.quiet:
            note(f"pod node: {text}")

    async with engine_at(args.db, home, lease=args.lease, tell=tell) as engine:
        queues = [
            QueueSpec(name, 1 if name == QUARANTINE else args.concurrency, engine.place.interval)
            for name in dict.fromkeys(args.queue)
        ]
        work = NodeWork(engine, home, queues, _command(args), args.until_empty, tell)
        tell(
            f"{engine.worker} serves {', '.join(q.name for q in queues)}, at most {args.concurrency} at once, from {engine.place.label}"
        )
        words = "each run ends before its next request, and others go on. Once more ends now."
        async with handled(Stopping(end=work.end, words=words, tell=tell)):
            await work.run()
    return 0


def _command(args: argparse.Namespace) -> list[str]:
    """The words of the node of the quarantine; none where this is one."""
    if QUARANTINE in args.queue:
        return []
    words = ["--queue", QUARANTINE, "--until-empty"]
    words += ["--db", args.db] if args.db else []
    words += ["--lease", str(args.lease)] if args.lease else []
    words += ["--otel"] if args.otel else []
    return [*words, *(["--asyncio"] if args.asyncio else []), *(["--quiet"] if args.quiet else [])]
