"""The arguments of `pod queue schedule` and `pod queue limit`."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

from pod.cli.numbers import span_of_starts, whole
from pod.cli.queue_arguments import partition_key, queue_name

NONE = "none"
"""What takes a limit away."""

T = TypeVar("T")


def add_schedule(parser: ArgumentParser) -> None:
    """Those of `pod queue schedule`."""
    parser.add_argument(
        "what", choices=("add", "ls", "show", "pause", "resume", "run", "remove"), metavar="WHAT",
        help="`add` makes one, `ls` lists all, `show` tells of one with its next times, `pause` and `resume` hold it and let it go, "
        "`run` has a pod begin now, `remove` takes it away; what it began goes on",
    )  # fmt: skip
    parser.add_argument("name", metavar="SCHEDULE", nargs="?", help="its name; its pods are SCHEDULE/TIME, in UTC")
    group = parser.add_argument_group("when (with add)")
    group.add_argument(
        "--cron", metavar="TEXT",
        help="minute, hour, day, month, weekday; with six fields the first are seconds; or a word such as @daily",
    )  # fmt: skip
    group.add_argument("--zone", metavar="ZONE", help="the time zone, such as Europe/Berlin (default: UTC)")
    group.add_argument(
        "--missed", choices=("once", "skip"),
        help="times that came while no node served the queue: one pod for all of them (once, the default), or none",
    )  # fmt: skip
    group.add_argument(
        "--overlap", choices=("skip", "allow"),
        help="where a former pod is not over, one that waits for a human included: leave the time out (skip, the default), or begin all "
        "the same",
    )  # fmt: skip
    group = parser.add_argument_group("what (with add)")
    group.add_argument(
        "--manifest", metavar="MANIFEST", help="a file, or the name of a shipped manifest; kept as it is now"
    )
    group.add_argument("--task", metavar="TEXT", help="what each pod is told; `-` reads it from standard input")
    group.add_argument("-C", "--cwd", metavar="DIR", help="the working folder (default: this one)")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any key of the manifest; may be repeated",
    )
    group.add_argument(
        "--attempts", type=whole, metavar="N", help="how often a pod is begun with nothing coming of it (default 3)"
    )
    group.add_argument("--queue", metavar="QUEUE", type=queue_name, help="the queue (default: batch)")
    group.add_argument("--priority", type=whole, metavar="N", help="from 1 on; the smaller goes first (default 100)")
    group.add_argument("--partition", metavar="KEY", type=partition_key, help="the partition of the queue")
    group.add_argument("--replace", action="store_true", help="put it in the place of the schedule that has this name")
    parser.set_defaults(output=None)


def add_limit(parser: ArgumentParser) -> None:
    """Those of `pod queue limit`."""
    parser.add_argument(
        "queue", metavar="QUEUE", type=queue_name, help="the queue; without options its limits are shown"
    )
    for flag, about in (
        ("--together", "pods that run at once, over all nodes"),
        ("--each-node", "pods that run at once on each node, whatever its --concurrency says"),
        ("--each-partition", "pods of each partition that run at once, over all nodes"),
        ("--starts", "starts in any time as long as --per says, over all nodes"),
    ):
        parser.add_argument(flag, type=_or_none(whole), metavar="N", help=f"{about}; `none` takes the limit away")
    parser.add_argument(
        "--per", type=span_of_starts, metavar="SECONDS", help="the time in which starts are counted, a day at most"
    )


def _or_none(read: Callable[[str], T]) -> Callable[[str], T | str]:
    def value(text: str) -> T | str:
        if text == NONE:
            return NONE
        try:
            return read(text)
        except ArgumentTypeError as error:
            raise ArgumentTypeError(str(error).replace(", not", " or `none`, not")) from None

    return value
