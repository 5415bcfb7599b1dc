"""`pod fork`, `rewind`, `clear`, `rm` and `gc`."""

from __future__ import annotations

import argparse
import re
import shlex

import anyio

from pod.cli.failing import note
from pod.cli.output import show
from pod.cli.text import count, table
from pod.errors import UsageProblem
from pod.log.files import label_of
from pod.log.folder import default_home
from pod.operations import Changed, collect, remove
from pod.operations import clear as clear_pod
from pod.operations import fork as fork_pod
from pod.operations import rewind as rewind_pod
from worker.text import size

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def fork(args: argparse.Namespace) -> int:
    """A new pod from a point of another."""
    done = fork_pod(default_home(), args.name, args.new, args.at)
    _tell(done, f"forked from {args.name}")
    _tell_next(done)
    return 0


def rewind(args: argparse.Namespace) -> int:
    """Back to an earlier point."""
    done = anyio.run(rewind_pod, default_home(), args.name, args.to, backend="trio")
    _tell(done, "rewound")
    note(f"pod {done.name}: the files in its working folder stay as they are")
    _tell_next(done)
    return 0


def clear(args: argparse.Namespace) -> int:
    """The session begins anew."""
    done = anyio.run(clear_pod, default_home(), args.name, backend="trio")
    note(
        f"pod {done.name}: cleared; nothing of before is carried over but the totals. Nothing shows the logs of before any more; "
        f"the files stay on disk until `pod rm {done.name}`"
    )
    _tell_left(done)
    if done.notes is not None:
        note(
            f"pod {done.name}: the agent's notes stay in its working folder; new windows show only what is added to them, but "
            f"it can read the file as any other there. To remove it: rm {shlex.quote(str(done.notes))}"
        )
    return 0


def _tell(done: Changed, how: str) -> None:
    if done.rounded:
        note(f"pod {done.name}: entry {done.asked} is not a settled point (something is open there); rounded down")
    note(f"pod {done.name}: {how}, behind entry {done.point}, with {done.items} items")
    _tell_left(done)


def _tell_next(done: Changed) -> None:
    if done.unfinished:
        note(f"pod {done.name}: its task is unfinished there: `pod resume {done.name}` goes on with it")
    else:
        note(f'pod {done.name}: give it a message: pod resume {done.name} "..."')


def _tell_left(done: Changed) -> None:
    if done.left_behind:
        note(f"pod {done.name}: left behind: {', '.join(done.left_behind)}")


def rm(args: argparse.Namespace) -> int:
    """Removes a pod for good."""
    home = default_home()
    had = remove(home, args.name)
    what = f"{count(had.segments, 'segment')}, {count(had.files, 'file')}, {size(had.size)}"
    note(f"pod {args.name}: removed for good from {label_of(home)}: {what}")
    return 0


def gc(args: argparse.Namespace) -> int:
    """Removes old pods whose last run finished; without `--force` only says which."""
    if not args.older_than:
        raise UsageProblem("gc needs an age: pod gc --older-than 30d")
    seconds = parse_age(args.older_than)
    found = list(collect(default_home(), seconds, force=args.force, all_ended=args.all_ended))
    gone = [pod for pod in found if pod.removed]
    if found:
        words = "removed" if args.force else "would be removed"
        rows = [(p.name, words if p.removed else "stays", p.reason, size(p.size) if p.removed else "") for p in found]
        show(table(rows, ("NAME", "", "WHY", "SIZE")))
    total = size(sum(pod.size for pod in gone))
    note(f"{len(gone)} of {len(found)} {'removed' if args.force else 'would be removed (--force does it)'}, {total}")
    return 0


def parse_age(text: str) -> float:
    """Seconds of an age such as `12h`, `30d`, `8w`. Raises `UsageProblem`."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise UsageProblem(f"--older-than {text}: not an age; write it as 12h, 30d or 8w")
    return float(found[1]) * _SECONDS[found[2]]
