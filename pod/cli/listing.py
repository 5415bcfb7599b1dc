"""`pod ls`."""

from __future__ import annotations

import argparse
import sys
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from shutil import get_terminal_size

from pod.cli.failing import note
from pod.cli.output import show, show_json
from pod.cli.text import age, fitted, money, table
from pod.errors import UsageProblem
from pod.log.files import label_of
from pod.log.folder import check_name, default_home, pod_names
from pod.peek import Glance, glances, row_of


def ls(args: argparse.Namespace) -> int:
    """Lists all pods; of each log only a bounded head and tail is read (`+`: there may be more), and for `--names` nothing."""
    home = default_home()
    if args.names and not args.json:
        show_names(home, args.pods)
        return 0
    found = sorted(glances(home, partial(is_meant, args.pods)), key=lambda look: look.at, reverse=True)
    if args.json:
        show_json([row_of(look) for look in found])
        return 0
    if not found:
        note(
            f"no pods in {label_of(home)}"
            if args.pods is None
            else f"no pods of the name {args.pods!r} in {label_of(home)}"
        )
        return 0
    heads = ("NAME", "STATUS", "ACTIVE", "REQUESTS", "COST", "MODEL", "FOLDER")
    rows = [_row(look) for look in found]
    if sys.stdout.isatty():
        rows = fitted(rows, heads, get_terminal_size().columns)
    show(table(rows, heads[: len(rows[0])]))
    return 0


def is_meant(given: str | None, name: str) -> bool:
    """Whether a pod is the one given, below it, or matches it as a pattern; all are where nothing is given."""
    return given is None or name == given or name.startswith(f"{given.rstrip('/')}/") or fnmatchcase(name, given)


def show_names(home: Path, given: str | None = None) -> None:
    """The names of pods, one a line; a folder whose name no pod can have is passed over: shells expand what they get."""
    for name in filter(partial(is_meant, given), pod_names(home)):
        try:
            show(check_name(name))
        except UsageProblem:
            continue


def status_of(look: Glance) -> str:
    """The status in words, with what belongs to it."""
    if look.status == "compacting":
        return f"compacting ({age(look.since).removesuffix(' ago')})"
    status = "waiting for a human" if look.status == "waiting" else look.status
    more = f", {look.waiting} in the inbox" if look.waiting and look.status != "queued" else ""
    return status + more


def _row(look: Glance) -> tuple[str, ...]:
    if look.status == "unreadable":
        return look.name, "unreadable", "-", "-", "-", "-", look.problem
    more = "+" if look.partial else ""
    requests = "-" if look.requests is None else f"{look.requests}{more}"
    cost = "-" if look.cost_usd is None else f"{money(look.cost_usd)}{more}"
    return look.name, status_of(look), age(look.at), requests, cost, look.model or "-", look.cwd
