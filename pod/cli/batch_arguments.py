"""The arguments of `pod batch`."""

from __future__ import annotations

from argparse import ArgumentParser

from pod.cli.numbers import dollars, whole
from pod.cli.queue_arguments import add_db, queue_name
from pod.cli.telemetry import add_otel

PROFILES = ("safe", "workspace-write", "read-only", "unattended")


def add(parser: ArgumentParser) -> None:
    """Adds all of them."""
    parser.add_argument(
        "tasks", metavar="TASKS",
        help="a .jsonl, .json, .csv or .tsv file, or a folder with a file for each task; `report` reports on a batch instead",
    )  # fmt: skip
    parser.add_argument(
        "of", metavar="BATCH", nargs="?", help="behind `report`: the name of a batch, or its file of results"
    )
    parser.add_argument("--manifest", metavar="MANIFEST", help="a file, or the name of a shipped manifest")
    parser.add_argument(
        "--out", metavar="FILE",
        help="the results, one JSON object a line (default: NAME.results.jsonl here); a page for reading is written beside it",
    )  # fmt: skip
    parser.add_argument(
        "--name", metavar="NAME",
        help="the batch's name (default: that of TASKS without its ending); its pods are NAME/0, NAME/1 and so on",
    )  # fmt: skip
    parser.add_argument(
        "--template", metavar="TEXT",
        help="what each pod is told: $field, ${a field}, $id, $index stand for what the task has, $$ for a dollar; @FILE reads it from a file "
        "(default: the field `task`)",
    )  # fmt: skip
    parser.add_argument("-C", "--cwd", metavar="DIR", help="the working folder (default: this one)")
    parser.add_argument(
        "--workspace", choices=("none", "copy", "git-worktree"),
        help="where each task works: in the working folder itself (default), in a copy of it, or in a worktree of its repository",
    )  # fmt: skip
    parser.add_argument(
        "--workspaces",
        metavar="DIR",
        help="where the copies or worktrees lie, in a folder of the batch's name (default: beside POD_HOME)",
    )
    _which(parser)
    _how(parser)
    _instead(parser)
    group = parser.add_argument_group("output")
    group.add_argument("-p", "--print", action="store_true", help="no live display: a line for each task that ends")
    group.add_argument("--json", action="store_true", help="print the figures as JSON")
    group.add_argument("--html", metavar="FILE", help="with `report`: write the page there")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    parser.set_defaults(output=None, output_format=None, verbose=False)


def _which(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("which tasks")
    group.add_argument("--limit", type=whole, metavar="N", help="the first N of what is chosen")
    group.add_argument("--sample", type=whole, metavar="N", help="N at random")
    group.add_argument("--shuffle", action="store_true", help="in an order at random")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="for --sample and --shuffle (default 0)")
    group.add_argument("--retry-failed", action="store_true", help="try those that failed again")
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="show what would be run, and what the first tasks are told; begin nothing",
    )


def _how(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("how")
    group.add_argument("--concurrency", type=whole, default=10, metavar="N", help="pods that run at once (default 10)")
    group.add_argument(
        "--max-cost", dest="cap", type=dollars, metavar="USD",
        help="US dollars of the whole batch, earlier runs of it included",
    )  # fmt: skip
    group.add_argument(
        "--attempts", type=whole, default=3, metavar="N",
        help="how often a task is begun whose process ends before anything comes of it (default 3)",
    )  # fmt: skip
    group.add_argument(
        "--grade", metavar="MODULE:FUNCTION",
        help="a function of a task's fields and its result, which gives true, false or a number; FILE.py:FUNCTION takes it from a file. "
        "What finished without a score is graded too",
    )  # fmt: skip
    group.add_argument("--regrade", action="store_true", help="with --grade: grade all that finished anew")
    group.add_argument("--asyncio", action="store_true", help="run on asyncio instead of trio")
    add_otel(group)
    _engine(parser)


def _engine(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("on several nodes")
    group.add_argument(
        "--engine", choices=("local", "dbos"), default="local",
        help="local: in this process (default). dbos: on a queue that any number of `pod node` serve; where none does, this command "
        "starts one for as long as it takes",
    )  # fmt: skip
    group.add_argument("--queue", metavar="QUEUE", type=queue_name, help="the queue (default: batch)")
    group.add_argument("--priority", type=whole, metavar="N", help="from 1 on; the smaller goes first (default 200)")
    group.add_argument(
        "--partition", metavar="TEXT",
        help="each task's partition of the queue: a key, or $field for what the task has there; `pod queue limit --each-partition` bounds "
        "what runs of each",
    )  # fmt: skip
    add_db(group)


def _instead(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("instead of what the manifest says")
    group.add_argument("--model", metavar="PROVIDER:MODEL", help="another model")
    group.add_argument("--profile", choices=PROFILES, help="another profile")
    group.add_argument("--max-requests", type=int, metavar="N", help="requests to the model in each task")
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="time of each task")
    group.add_argument("--output-schema", metavar="FILE", help="a JSON Schema that each answer must meet")
    group.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any other key; may be repeated"
    )
