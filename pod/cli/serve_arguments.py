"""The arguments of `pod serve`."""

from __future__ import annotations

from argparse import ArgumentParser

from pod.cli.numbers import port, whole
from pod.cli.telemetry import add_otel


def add_serve(parser: ArgumentParser) -> None:
    """Those of `pod serve`."""
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="the address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=port, default=8421, metavar="N", help="the port (default: 8421; 0 takes a free one)"
    )
    parser.add_argument("--uds", metavar="PATH", help="listen on a Unix socket of this user in the place of an address")
    parser.add_argument(
        "--tokens",
        metavar="FILE",
        help="who may what: a TOML file with [tokens.NAME], each with a role and a token or its sha256",
    )
    parser.add_argument(
        "--webhooks", metavar="FILE",
        help="whom to tell of ends of runs and of questions: a TOML file with [webhooks.NAME], each with a url and a secret",
    )  # fmt: skip
    parser.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[],
        help="a name under which the service is asked, beside this machine's own and its address; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--manifests", metavar="DIR", help="pods can be made from the manifests of this folder, NAME.toml"
    )
    parser.add_argument(
        "--shipped", metavar="NAME", action="append", default=[],
        help="and from this shipped manifest; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "-C",
        "--directory",
        metavar="DIR",
        default=".",
        help="the working folder of pods that are made (default: the current one)",
    )
    parser.add_argument("--own-folders", action="store_true", help="give each pod a folder of its own below that")
    parser.add_argument(
        "--concurrency",
        type=whole,
        default=50,
        metavar="N",
        help="pods that run here at once (default 50); others wait",
    )
    parser.add_argument(
        "--max-connections", type=whole, metavar="N",
        help="connections at once (default 4096, fewer where this user may not have so many files open); one more is refused (503)",
    )  # fmt: skip
    parser.add_argument(
        "--no-adopt",
        action="store_true",
        help="don't go on with the pods that the service had in its care when it ended",
    )
    parser.add_argument("--asyncio", action="store_true", help="run on asyncio instead of trio")
    add_otel(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing on standard error but a new token")
