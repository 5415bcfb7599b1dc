"""The arguments of `pod node` and `pod queue`, and those that `pod batch` shares with them."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, _ArgumentGroup  # pyright: ignore[reportPrivateUsage]

from pod.cli.numbers import lease, whole
from pod.cli.telemetry import add_otel


def queue_name(text: str) -> str:
    """A name that a queue can have."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text) is None:
        raise ArgumentTypeError(
            f"should be letters, digits, '.', '_' and '-', beginning with a letter or digit, not {text[:80]!r}"
        )
    return text


def partition_key(text: str) -> str:
    """A key that a partition can have."""
    if re.fullmatch(r"\S.{0,127}", text) is None or not text.isprintable():
        raise ArgumentTypeError(f"should be 1 to 128 characters that can be shown, not {text[:80]!r}")
    return text


def add_db(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Where the queues are."""
    parser.add_argument(
        "--db",
        metavar="URL",
        help="the file of the queues: a path, or sqlite:///PATH (default: engine.sqlite in POD_HOME; where that is a database, they lie there)",
    )


def add_node(parser: ArgumentParser) -> None:
    """Those of `pod node`."""
    parser.add_argument(
        "--queue",
        metavar="QUEUE",
        type=queue_name,
        action="append",
        required=True,
        help="a queue to serve; may be repeated",
    )
    parser.add_argument(
        "--engine", choices=("dbos",), default="dbos", help="what the queues are kept by (default: dbos)"
    )
    add_db(parser)
    parser.add_argument(
        "--concurrency", type=whole, default=10, metavar="N",
        help="pods of a queue that run here at once (default 10); nodes of the same queue have that of the one that started last",
    )  # fmt: skip
    parser.add_argument(
        "--lease", type=lease, default=None, metavar="SECONDS",
        help="a node that gives no sign of life for so long is taken for dead (default 15, or that of a database); the same for all",
    )  # fmt: skip
    parser.add_argument(
        "--until-empty", action="store_true", help="end when nothing is left on these queues but what waits for a human"
    )
    parser.add_argument("--asyncio", action="store_true", help="run on asyncio instead of trio")
    add_otel(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing on standard error")


def add_queue(parser: ArgumentParser) -> None:
    """Those of `pod queue`."""
    from pod.cli.parser import ACTIONS, ActionParser
    from pod.cli.schedule_arguments import add_limit, add_schedule

    inner = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=ActionParser)
    for words, (about, _) in ACTIONS.items():
        command, _, name = words.partition(" ")
        if command != "queue":
            continue
        one = inner.add_parser(name, help=about)
        if name == "ls":
            one.add_argument("--queue", metavar="QUEUE", type=queue_name, help="one queue (default: all)")
            one.add_argument(
                "--phase",
                choices=("queued", "delayed", "running", "ended"),
                help="only what is there (default: what has not ended)",
            )
            one.add_argument("--all", action="store_true", help="what ended too")
            one.add_argument(
                "--limit", type=whole, default=50, metavar="N", help="N at most, of each state the newest (default 50)"
            )
        elif name == "limit":
            add_limit(one)
        elif name == "schedule":
            add_schedule(one)
        else:
            told = (
                "a pod's name, or a pattern such as 'nightly/*' for all that waits or runs"
                if name == "cancel"
                else "a pod's name"
            )
            one.add_argument("names", metavar="NAME", nargs=1 if name == "show" else "+", help=told)
        add_db(one)
        one.add_argument("--json", action="store_true", help="print JSON")
