"""`pod serve`: the pods of a home through HTTP, until it is told to end."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from pod.cli.failing import note
from pod.cli.files import open_files
from pod.cli.signals import Stopping, handled
from pod.errors import UsageProblem
from pod.host import PodHost
from worker.errors import way_to_install

if TYPE_CHECKING:
    from pod.service.access import Tokens

TOKEN = "POD_TOKEN"
"""The variable with the token, which may everything."""


def serve(args: argparse.Namespace) -> int:
    """Serves; 0 where it ended as it was told to."""
    try:
        from pod.service.app import create_app
        from pod.service.connections import MOST, Connections
        from pod.service.serving import listening
        from pod.service.serving import serve as answer
        from pod.service.webhooks import webhooks_of_file
    except ModuleNotFoundError as error:
        if error.name not in {"starlette", "hypercorn", "prometheus_client"}:
            raise
        raise UsageProblem(f"`pod serve` needs the extra `service`: {way_to_install('service')}") from None

    def tell(text: str) -> None:
        if not args.quiet:
            note(f"pod serve: {text}")

    known, new = _tokens(args)
    webhooks = () if args.webhooks is None else webhooks_of_file(Path(args.webhooks))
    connections = Connections(open_files(args.concurrency, args.max_connections, usual=MOST))
    service = create_app(
        PodHost(concurrency=args.concurrency), tokens=known, manifests=args.manifests, shipped=args.shipped, cwd=args.directory,
        own_folders=args.own_folders, hosts=_hosts(args), adopt=not args.no_adopt, webhooks=webhooks,
    )  # fmt: skip
    unfit = dict(service.care.shelf.unfit(args.directory or Path.cwd()))
    offered = _offered(args, [name for name in service.care.shelf.names() if name not in unfit])
    listener = listening(args.host, args.port, None if args.uds is None else Path(args.uds))

    async def main() -> None:
        ended = anyio.Event()

        async def end() -> None:
            ended.set()

        words = "each run ends before its next request, and can be gone on with. Once more ends now."
        async with handled(Stopping(end=end, words=words, tell=tell)), service.host:
            tell(f"listens on {_where(args, listener)}")
            tell(offered)
            for name, why in unfit.items():
                tell(f"warning: no pod can be made from the manifest {name}: {why}")
            if new:
                note(f"pod serve: the token, for this time only: {new}")
                note(f"pod serve: its page: {_where(args, listener)}#token={new}")
            elif args.uds is None:
                tell("the same address in a browser is its page")
            await answer(service, listener, ended, connections=connections)

    try:
        anyio.run(main, backend="asyncio" if args.asyncio else "trio")
    finally:
        listener.close()
        if args.uds is not None:
            Path(args.uds).unlink(missing_ok=True)
    return 0


def _tokens(args: argparse.Namespace) -> tuple[Tokens, str]:
    """Who may what, and the token that was made because none was given. Raises `UsageProblem`."""
    from pod.service.access import LOOPBACK, Tokens

    given = os.environ.get(TOKEN)
    if args.tokens is not None:
        if given is not None:
            raise UsageProblem(f"--tokens and ${TOKEN} are both given: unset one of them")
        return Tokens.of_file(Path(args.tokens)), ""
    if given is not None:
        try:
            return Tokens.single(given), ""
        except UsageProblem as problem:
            raise UsageProblem(f"${TOKEN}: {problem}") from None
    if args.uds is not None:
        return Tokens(), ""
    if args.host in {*LOOPBACK, "::1"}:
        return Tokens.generated()
    raise UsageProblem(
        f"--host {args.host}: others can reach the service there, so a token is needed: ${TOKEN}, or --tokens FILE"
    )


def _offered(args: argparse.Namespace, names: Sequence[str]) -> str:
    """What pods can be made from, and what to do where that is nothing."""
    if names:
        left = f" and {len(names) - 10} more" if len(names) > 10 else ""
        return f"pods can be made from {', '.join(names[:10])}{left}"
    why = "no manifest is offered" if args.manifests is None else f"no NAME.toml in {args.manifests} is a manifest"
    return f"{why}, so no pod can be made here: --manifests DIR or --shipped NAME offers some"


def _hosts(args: argparse.Namespace) -> list[str]:
    """The names under which it is asked: the address it listens on is one, unless that stands for all."""
    own = [] if args.host in {"0.0.0.0", "::"} else [f"[{args.host}]" if ":" in args.host else args.host]
    return [*args.allow_host, *own]


def _where(args: argparse.Namespace, listener: socket.socket) -> str:
    if args.uds is not None:
        return f"unix:{args.uds}"
    name = listener.getsockname()
    return f"http://{f'[{name[0]}]' if ':' in name[0] else name[0]}:{name[1]}/"
