"""`pod queue schedule`: pods that begin at times of their own."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from pod.batch.queued import QUEUE
from pod.cli.failing import note
from pod.cli.given import task_of
from pod.cli.near import did_you_mean
from pod.cli.output import show, show_json
from pod.cli.text import figures, one_line, span, table
from pod.engine.cron import local
from pod.engine.firing import Firing, still_open
from pod.engine.opening import engine_at
from pod.engine.orders import Orders
from pod.engine.port import NORMAL, Engine
from pod.engine.schedules import Kept, Schedule, changed, pod_by_hand
from pod.errors import PodError, UsageProblem
from pod.log.folder import default_home
from pod.manifest import Loaded
from pod.names import unfit_name
from worker.text import visible

NEXT = 5
"""Times to come that are shown."""

TRIES = 20
"""How often a change is tried where nodes change the schedule at the same time."""

_ADDS = (
    "cron", "zone", "missed", "overlap", "manifest", "task", "cwd", "set", "attempts", "queue", "priority", "partition", "replace",
)  # fmt: skip


def schedule(args: argparse.Namespace) -> int:
    """Does one of the seven."""
    wanted = _looked_at(args)
    return anyio.run(_schedule, args, wanted, backend="asyncio")


def _looked_at(args: argparse.Namespace) -> _Wanted | None:
    """What `add` is to make; None for the others. All is looked at before anything is opened. Raises `PodError`."""
    if args.what != "ls" and args.name is None:
        raise UsageProblem(f"which schedule? `pod queue schedule {args.what} NAME`; `pod queue schedule ls` lists them")
    if args.what == "ls" and args.name is not None:
        raise UsageProblem(f"`pod queue schedule ls` lists all; `pod queue schedule show {args.name}` tells of one")
    if args.what == "add":
        return _wanted(args)
    given = [f"--{name}" for name in _ADDS if getattr(args, name)]
    if given:
        raise UsageProblem(f"{', '.join(given)}: for `pod queue schedule add`, which also replaces one (--replace)")
    return None


async def _schedule(args: argparse.Namespace, wanted: _Wanted | None) -> int:
    orders = Orders(default_home())
    async with engine_at(args.db, orders.home) as engine:
        match args.what:
            case "add":
                assert wanted is not None
                await _add(args, engine, orders, wanted)
            case "ls":
                await _ls(args, engine)
            case "show":
                await _show(args, engine, orders)
            case "run":
                await _run(args, engine, orders)
            case "remove":
                if not await engine.schedules.remove(args.name):
                    await _found(engine, args.name)
                _say(args, f"schedule {args.name} is gone; what it began goes on")
            case what:
                await _hold(args, engine, paused=what == "pause")
    return 0


# -- add ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A schedule that can be made, and the manifest that is to be kept for it."""

    schedule: Schedule
    loaded: Loaded


def _wanted(args: argparse.Namespace) -> _Wanted:
    from pod.cli.parts import check_parts
    from pod.cli.run import Plan, folder_of, overrides_of, prove
    from pod.manifest import load_manifest

    lacks = [f"--{name}" for name in ("cron", "manifest", "task") if getattr(args, name) is None]
    if lacks:
        raise UsageProblem(
            f"a schedule needs {' and '.join(lacks)}: pod queue schedule add {args.name} --cron '0 2 * * *' --manifest coder.toml "
            "--task 'What each pod does'"
        )
    if (why := unfit_name(pod_by_hand(args.name, 0.0))) is not None:
        raise UsageProblem(f"{args.name[:200]!r} can't name a schedule, whose pods are NAME/TIME: {why}")
    cwd = folder_of(args.cwd)
    made = Schedule(
        name=args.name, cron=args.cron, zone=args.zone or "UTC", queue=args.queue or QUEUE, priority=args.priority or NORMAL,
        partition=args.partition or "", task=task_of(args.task) or "", manifest="", base=str(cwd), cwd=str(cwd),
        attempts=args.attempts or 3, missed=args.missed or "once", overlap=args.overlap or "skip",
    )  # fmt: skip
    _ = made.times
    loaded = load_manifest(args.manifest, overrides_of(args), cwd=cwd, more=check_parts)
    for warning in loaded.warnings:
        note(f"pod: warning: {visible(str(warning))}")
    if loaded.manifest.pod.name is not None:
        note(f"pod: warning: the manifest's pod.name is left out: the pods of a schedule are named {args.name}/TIME")
    prove(Plan(loaded, None, default_home(), cwd, made.task, exists=False), args)
    return _Wanted(made, loaded)


async def _add(args: argparse.Namespace, engine: Engine, orders: Orders, wanted: _Wanted) -> None:
    for _ in range(TRIES):
        kept = await engine.schedules.read()
        now, old = kept.now, _of(kept, args.name)
        if old is not None and not args.replace:
            raise UsageProblem(
                f"there is a schedule {args.name!r} already; --replace puts this one in its place, `pod queue schedule show {args.name}` "
                "tells of it"
            )
        digest = await anyio.to_thread.run_sync(orders.keep_manifest, wanted.loaded)
        made = wanted.schedule.model_copy(
            update={"manifest": digest, "source": str(wanted.loaded.path), "decided": now}
        )
        if old is not None:
            stays = {
                "made": old.made,
                "version": old.version + 1,
                "due": old.due,
                "open": old.open,
                "paused": old.paused,
            }
            told = {"fired": old.fired, "pod": old.pod, "skipped": old.skipped, "why": old.why}
            made = made.model_copy(update={**stays, **told})
        if await engine.schedules.put(made):
            break
    else:
        raise _busy(args.name)
    _say(args, f"schedule {made.name}: {_next(made, now)}", made, now)
    await _note_unserved(engine, [made])


# -- looking --------------------------------------------------------------------------------------------------


async def _ls(args: argparse.Namespace, engine: Engine) -> None:
    now, schedules, unread = await engine.schedules.read()
    for name, why in unread.items():
        note(f"pod: warning: {visible(str(_unread(name, why)))}")
    if not schedules and not unread and not args.json:
        show("there are no schedules; `pod queue schedule add` makes one")
        return
    rows = list[Any]()
    for each in schedules:
        try:
            rows.append(_json(each, now) if args.json else _row(each, now))
        except UsageProblem as error:  # this machine does not know its zone
            note(f"pod: warning: schedule {each.name}: {visible(str(error))}")
    if args.json:
        show_json(rows)
        return
    if rows:
        show(table(rows, ("schedule", "cron", "zone", "queue", "next", "last")))
    await _note_unserved(engine, schedules)


async def _show(args: argparse.Namespace, engine: Engine, orders: Orders) -> None:
    now, made = await _found(engine, args.name)
    running = await still_open(engine, orders, made)
    if args.json:
        show_json({**_json(made, now), "running": running})
        return
    rows = [
        ("schedule", made.name), ("cron", made.cron), ("zone", made.zone), ("queue", made.queue), ("priority", str(made.priority)),
        *([("partition", made.partition)] if made.partition else []),
        ("manifest", made.source), ("folder", made.cwd), ("task", one_line(made.task, 200)), ("missed times", made.missed),
        ("overlap", made.overlap), ("last", _last(made)),
        *([("left out", f"{_time(made.skipped, made.zone)}, {made.why}")] if made.skipped is not None else []),
        ("not over", ", ".join(running) or "none"), ("state", "paused" if made.paused else "active"),
    ]  # fmt: skip
    rows += [
        ("next" if not n else "then", f"{_time(at, made.zone)} (in {span(at - now)})")
        for n, at in enumerate(_times(made, now))
    ]
    show(figures(rows))
    await _note_unserved(engine, [made])


def _row(made: Schedule, now: float) -> tuple[str, ...]:
    return made.name, made.cron, made.zone, made.queue, _next(made, now), _last(made)


def _times(made: Schedule, now: float) -> list[float]:
    return list(itertools.islice(made.times.times(now), NEXT))


def _next(made: Schedule, now: float) -> str:
    if made.paused:
        return "paused"
    following = made.times.after(now)
    return "never" if following is None else f"{_time(following, made.zone)} (in {span(following - now)})"


def _last(made: Schedule) -> str:
    return "none" if made.fired is None else f"{made.pod} at {_time(made.fired, made.zone)}"


def _time(moment: float, zone: str) -> str:
    return f"{local(moment, zone):%Y-%m-%d %H:%M:%S %Z}"


def _json(made: Schedule, now: float) -> dict[str, Any]:
    hidden = {"format", "version", "made", "due", "open", "decided"}
    times = [] if made.paused else [local(at, made.zone).isoformat() for at in _times(made, now)]
    return {**made.model_dump(mode="json", exclude=hidden), "next": times}


def _say(args: argparse.Namespace, text: str, made: Schedule | None = None, now: float = 0.0) -> None:
    if args.json:
        show_json(
            {"schedule": args.name, "said": text, **({"next": _json(made, now)["next"]} if made is not None else {})}
        )
    else:
        show(text)


async def _note_unserved(engine: Engine, schedules: list[Schedule]) -> None:
    """A schedule is looked after by the nodes of its queue."""
    served = {queue for node in await engine.nodes() for queue in node.queues}
    for queue in sorted({each.queue for each in schedules if not each.paused} - served):
        note(f"pod: no node serves the queue {queue!r}: nothing begins until `pod node --queue {queue}` does")


# -- changing -------------------------------------------------------------------------------------------------


async def _found(engine: Engine, name: str) -> tuple[float, Schedule]:
    """The time, and a schedule. Raises `UsageProblem` where there is none of this name."""
    kept = await engine.schedules.read()
    if (found := _of(kept, name)) is not None:
        return kept.now, found
    hint = did_you_mean(name, [each.name for each in kept.schedules]) or "`pod queue schedule ls` lists them"
    raise UsageProblem(f"there is no schedule {name[:200]!r}; {hint}")


def _of(kept: Kept, name: str) -> Schedule | None:
    """The schedule of a name; None where there is none. Raises `UsageProblem` where it does not read."""
    if name in kept.unread:
        raise _unread(name, kept.unread[name])
    return next((each for each in kept.schedules if each.name == name), None)


def _unread(name: str, why: str) -> UsageProblem:
    return UsageProblem(f"schedule {name}: {why}; `pod queue schedule remove {name}` takes it away")


async def _hold(args: argparse.Namespace, engine: Engine, *, paused: bool) -> None:
    for _ in range(TRIES):
        now, made = await _found(engine, args.name)
        if made.paused == paused:
            _say(args, f"schedule {made.name} is {'paused' if paused else 'active'} already", made, now)
            return
        # What came while it was held is not missed: nobody wanted it.
        made = changed(made, paused=paused, **({} if paused else {"decided": now}))
        if await engine.schedules.put(made):
            words = "is paused; what it began goes on" if paused else f"goes on: {_next(made, now)}"
            _say(args, f"schedule {made.name} {words}", made, now)
            return
    raise _busy(args.name)


async def _run(args: argparse.Namespace, engine: Engine, orders: Orders) -> None:
    firing = Firing(engine, orders, ())
    for _ in range(TRIES):
        now, made = await _found(engine, args.name)
        if made.due is not None and (placed := await firing.place(made)) is not None:
            made = placed
        running = await still_open(engine, orders, made)
        begun = made.begun(pod_by_hand(made.name, now), now, running).model_copy(update={"version": made.version + 1})
        if begun.due is not None and await engine.schedules.put(begun):
            await firing.place(begun)
            _say(args, f"schedule {made.name}: {begun.due} is on the queue {made.queue}")
            await _note_unserved(engine, [made.model_copy(update={"paused": False})])
            return
    raise _busy(args.name)


def _busy(name: str) -> PodError:
    return PodError(f"schedule {name!r} was changed by others {TRIES} times meanwhile; try again")
