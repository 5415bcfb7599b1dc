"""`pod batch`: many tasks with one manifest, and the report of what came of them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from pod.cli.failing import note
from pod.cli.files import open_files
from pod.cli.given import valid_text
from pod.cli.output import Output, is_terminal, output_of
from pod.cli.pages import write_page
from pod.cli.run import folder_of, overrides_of
from pod.cli.signals import Stopping, handled
from pod.cli.text import money
from pod.errors import UsageProblem
from pod.log.files import label_of
from pod.log.folder import default_home, local_home
from pod.manifest import load_manifest
from pod.names import as_name
from pod.store.mounting import url_of
from worker.text import visible

REPORT = "report"
"""The word that asks for the report of a batch instead of running one."""

HALT_SECONDS = 20.0
"""How long runs may take to come to a request boundary after the first signal."""


def batch(args: argparse.Namespace) -> int:
    """Runs what is due of a batch, or reports what came of one."""
    with output_of(args) as output:
        return _batch(args, output)


def _batch(args: argparse.Namespace, output: Output) -> int:
    if args.tasks == REPORT and args.of is not None:
        return _report(args, output)
    if args.of is not None:
        raise UsageProblem(
            f"a batch has one file or folder of tasks; what is {args.of!r} for? (`pod batch report {args.tasks}` reports)"
        )
    if args.manifest is None:
        raise UsageProblem("a batch needs a manifest: pod batch TASKS --manifest coder.toml")
    _check_engine(args)
    if args.html is not None:
        raise UsageProblem("--html is for `pod batch report`: a batch writes its page beside its results")
    if args.regrade and args.grade is None:
        raise UsageProblem("--regrade: with which function? --grade MODULE:FUNCTION or --grade FILE.py:FUNCTION says")
    return _run(args, output)


def _check_engine(args: argparse.Namespace) -> None:
    """Raises `UsageProblem` for options that the engine does not go with."""
    if args.engine == "dbos":
        if args.cap is not None:
            raise UsageProblem(
                "--max-cost bounds the pods of one process, and with --engine dbos they run in several; bound each task with "
                "--set limits.max_cost_usd=USD"
            )
        return
    given = [
        flag
        for flag, value in (
            ("--queue", args.queue),
            ("--priority", args.priority),
            ("--partition", args.partition),
            ("--db", args.db),
        )
        if value is not None
    ]
    if given:
        raise UsageProblem(f"{', '.join(given)}: for queues; give --engine dbos as well")


# -- running --------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace, output: Output) -> int:
    from pod.batch.batch import Batch
    from pod.batch.partitions import partitions_of
    from pod.batch.tasks import read_tasks
    from pod.cli.batch_preview import cautions, preview, preview_json
    from pod.cli.batching import display_of

    cwd = folder_of(args.cwd)
    source = Path(args.tasks)
    tasks = read_tasks(source, _template(args.template))
    partitions = partitions_of(tasks, args.partition)
    settings = _settings(args, cwd, source, tasks)
    for caution in cautions(settings, chosen_folder=args.workspace is not None):
        note(f"pod: warning: {visible(caution)}")
    if args.dry_run:
        if output.format == "json":
            output.json(json.dumps(preview_json(settings)))
        else:
            output.text(preview(settings))
        note("pod batch: nothing was begun (--dry-run)")
        return 0
    open_files(settings.concurrency)
    with ExitStack() as stack:
        stack.enter_context(settings.folder.alone())
        display = display_of(output)
        backend = "asyncio" if args.asyncio else "trio"
        if args.engine == "dbos":
            from pod.batch.queued import QueuedBatch

            made = QueuedBatch.prepare(settings, display)
            display.begin(made)
            code = anyio.run(_drive_queued, args, made, partitions, display, backend=backend)
        else:
            made = Batch.prepare(settings, display)
            display.begin(made)
            if made.aside is not None and made.aside.lost:
                lost = f"{money(made.aside.lost_usd)} of requests that were cut off"
                display.say(f"{lost} count against --max-cost: what they came to is not known")
            code = anyio.run(_drive, made, display, backend=backend)
    return _conclude(made, code, output)


def _settings(args: argparse.Namespace, cwd: Path, source: Path, tasks: list[Any]) -> Any:
    """All that the command says, looked at before anything is written. Raises `UsageProblem`."""
    from pod.batch.batch import Settings, choose
    from pod.batch.grading import Grader
    from pod.batch.record import BatchFolder
    from pod.batch.results import read_rows
    from pod.batch.workspaces import Workspaces
    from pod.cli.parts import check_parts

    folder = BatchFolder(default_home(), args.name or _name(source))
    folder.check(tasks)
    loaded = load_manifest(args.manifest, overrides_of(args), cwd=cwd, more=check_parts)
    for warning in loaded.warnings:
        note(f"pod: warning: {visible(str(warning))}")
    if loaded.manifest.pod.name is not None:
        note(
            f"pod: warning: the manifest's pod.name is left out: the pods of a batch are named {folder.name}/0, {folder.name}/1 and so on"
        )
    _prove(loaded, tasks, cwd, args.cap)
    out = _out(args.out, folder.name, source)
    read_rows(out, folder.name)
    workspaces = Workspaces(args.workspace or "none", cwd, _work(args.workspaces, folder), folder.name).checked()
    chosen = choose(len(tasks), limit=args.limit, sample=args.sample, shuffle=args.shuffle, seed=args.seed)
    return Settings(
        manifest=loaded, tasks=tasks, chosen=chosen, folder=folder, workspaces=workspaces, source=source.absolute(),
        out=out, concurrency=args.concurrency, max_cost_usd=args.cap, attempts=args.attempts,
        retry_failed=args.retry_failed, grader=Grader.load(args.grade) if args.grade else None,
        regrade=args.regrade,
    )  # fmt: skip


def _prove(loaded: Any, tasks: list[Any], cwd: Path, cap: float | None) -> None:
    """Looks whether the pods can work at all, with the longest of the tasks."""
    from pod.proof import check_keys, check_native, check_numbers, check_prices, numbers_of

    manifest = loaded.manifest
    if cap is not None:
        limits = manifest.limits.model_copy(update={"max_cost_usd": cap})
        check_prices(manifest.model_copy(update={"limits": limits}))
    check_prices(manifest)
    check_native(manifest)
    check_numbers(numbers_of(manifest, cwd, max((task.text for task in tasks), key=len)))
    for warning in check_keys(manifest):
        note(f"pod: warning: {warning}")


def _template(given: str | None) -> str | None:
    if given is None or not given.startswith("@"):
        return None if given is None else valid_text(given, "--template")
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageProblem(f"--template {given}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def _name(source: Path) -> str:
    name = as_name(Path(os.path.realpath(source)).stem)
    if not name:
        raise UsageProblem(
            f"{source}: a batch is named after it, and nothing of this makes a name; give one with --name"
        )
    return name


def _out(given: str | None, name: str, source: Path) -> Path:
    out = Path(given or f"{name}.results.jsonl").absolute()
    if out.is_dir():
        raise UsageProblem(f"--out {given}: a folder; name a file")
    if not out.parent.is_dir():
        raise UsageProblem(f"--out {given}: there is no folder {out.parent}")
    if os.path.lexists(out) and not out.is_file():
        raise UsageProblem(f"{out}: no file that results can lie in; name another one with --out")
    if source.is_dir() and source.samefile(out.parent) and not out.name.startswith("."):
        raise UsageProblem(
            f"{out}: there it would be taken for a task when the same command is run again; name a file outside of {source} with --out"
        )
    if source.exists() and out.exists() and out.samefile(source):
        raise UsageProblem(f"--out {given} is the file of the tasks; name another one")
    return out


def _work(given: str | None, folder: Any) -> Path:
    """Where the working folders of tasks lie: beside the home of this machine, since no tool writes inside of it."""
    home = folder.home if url_of(folder.home) is None else local_home()
    root = Path(given).resolve() if given else home.with_name(f"{home.name}-work").absolute()
    return root / folder.name


async def _drive_queued(args: argparse.Namespace, made: Any, partitions: list[str], display: Any) -> int | None:
    """The same on an engine, with a node of this command's own for as long as no other serves."""
    from pod.batch.queued import QUEUE
    from pod.engine.opening import engine_at
    from pod.engine.port import BATCH

    made.queue, made.priority = args.queue or QUEUE, BATCH if args.priority is None else args.priority
    made.partitions, made.say = partitions, display.say
    made.node = ["--db", args.db] if args.db else []
    made.node += ["--asyncio"] if args.asyncio else []
    made.node += ["--otel"] if args.otel else []
    async with engine_at(args.db, made.settings.folder.home) as engine:
        made.engine = engine
        return await _drive(made, display)


async def _drive(made: Any, display: Any) -> int | None:
    """Runs the batch; the exit code where a signal ended it."""
    stopping = Stopping(before_exit=display.close, words=f"{made.halting} Once more ends now.", tell=display.say)
    stopping.end = partial(made.halt, HALT_SECONDS)
    async with handled(stopping):
        try:
            display.summary = await made.run()
        finally:
            display.close()
    return None if stopping.name is None else stopping.exit_code


def _conclude(made: Any, signalled: int | None, output: Output) -> int:
    """The summary, the page, and the exit code."""
    from pod.cli.batch_page import page

    s = made.settings
    summary = made.watcher.summary
    code: int = summary.exit_code if signalled is None or not summary.left else signalled
    html = s.out.with_name(f"{s.out.name.removesuffix('.jsonl')}.html")
    rows = [made.results.rows[index] for index in sorted(made.results.rows.keys() & set(s.chosen))]
    write_page(html, page(summary, rows), "--out")
    if output.format == "json":
        output.json(json.dumps({**summary.as_json(), "exit_code": code, "results": str(s.out), "report": str(html)}))
    else:
        _show(output, summary, [("results", str(s.out)), ("report", str(html))])
    for line in ways_on(made, summary, signalled):
        note(line)
    return code


def _show(output: Output, summary: Any, more: list[tuple[str, str]]) -> None:
    from pod.cli.batch_page import facts
    from pod.cli.text import figures

    output.text(figures([("batch", summary.batch), *facts(summary), *more]))


def ways_on(made: Any, summary: Any, signalled: int | None) -> list[str]:
    """What can be done about tasks that did not finish, one line each."""
    by, name = summary.by_status, summary.batch
    lines: list[str] = []
    if by.get("failed"):
        kinds = ", ".join(
            f"{kind} {many}" for kind, many in sorted(summary.by_error.items(), key=lambda pair: -pair[1])[:4]
        )
        lines.append(
            f"pod batch: {by['failed']} failed ({kinds}); the same command with --retry-failed tries them again"
        )
    if by.get("paused"):
        lines.append(
            f"pod batch: {by['paused']} wait for a human; `pod approve {name}/INDEX` answers, and the same command goes on"
        )
    if summary.spent:
        lines.append(
            "pod batch: the limit on the cost of the whole batch is reached; the same command with a higher --max-cost goes on"
        )
    elif by.get("limit"):
        lines.append(f"pod batch: {by['limit']} came to a limit of their own; the same command goes on with them")
    if by.get("cancelled"):
        lines.append(f"pod batch: {by['cancelled']} were cancelled; the same command goes on with them")
    if summary.grade_errors:
        lines.append(
            f"pod batch: {summary.grade_errors} could not be graded (first: {_grade_error(made)}); the same command grades them again"
        )
    if summary.left and not summary.spent:
        why = "" if signalled is not None else " (another process has their pods)"
        lines.append(f"pod batch: {summary.left} have no end yet{why}; the same command goes on")
    return lines


def _grade_error(made: Any) -> str:
    from pod.batch.results import grade_error
    from pod.cli.text import one_line

    errors = (grade_error(made.results.rows[index]) for index in made.settings.chosen if index in made.results.rows)
    return one_line(next(filter(None, errors), ""), 200)


# -- reporting ------------------------------------------------------------------------------------------------


def _report(args: argparse.Namespace, output: Output) -> int:
    """The summary of a batch (or of a file of results), and its page where one is asked for."""
    from pod.batch.record import BatchFolder, batch_names
    from pod.batch.results import read_rows
    from pod.batch.summary import summary_of
    from pod.cli.batch_page import page
    from pod.log.folder import suggestion

    given = args.of
    if args.manifest is not None or args.out is not None:
        raise UsageProblem(
            "`pod batch report` takes the name of a batch or a file of results, and --html FILE or --json alone"
        )
    path = Path(given)
    tasks: int | None = None
    name = ""
    if not path.is_file():
        known = BatchFolder(default_home(), given).known() if "/" not in given else None
        if known is None:
            near = suggestion(given, iter(batch_names(default_home())))
            raise UsageProblem(f"{given}: neither a file of results nor a batch in {label_of(default_home())}.{near}")
        path, tasks, name = Path(str(known["out"])), len(known["tasks"]), given
        if not path.is_file():
            raise UsageProblem(
                f"the results of batch {given!r} are gone: {path}; the same `pod batch` command writes them anew from the logs"
            )
    _, rows = read_rows(path)
    if not rows:
        raise UsageProblem(f"{path}: no task has ended yet")
    ordered = [rows[index] for index in sorted(rows)]
    name = name or str(ordered[0]["pod"]).rpartition("/")[0]
    summary = summary_of(name, len(ordered) if tasks is None else tasks, ordered)
    if args.html is not None:
        write_page(Path(args.html), page(summary, ordered), "--html")
    if output.format == "json":
        output.json(json.dumps({**summary.as_json(), "results": str(path)}))
    else:
        _show(output, summary, [("results", str(path))])
        _failures(output, ordered)
    return 0


def _why(row: dict[str, Any]) -> str:
    """Why a task did not finish, or has no grade."""
    from pod.batch.results import grade_error

    ungraded = grade_error(row)
    return str(row.get("error") or (f"no grade: {ungraded}" if ungraded else ""))


def _failures(output: Output, rows: list[dict[str, Any]]) -> None:
    """The tasks that did not finish or could not be graded, one line each, the first fifty."""
    from pod.batch.results import grade_error
    from pod.cli.text import columns, in_columns, shortened, table

    bad = [row for row in rows if row["status"] != "finished" or grade_error(row)]
    if not bad:
        return
    width = os.get_terminal_size().columns if is_terminal(sys.stdout) else 160
    names = [(shortened(str(row["id"]), max(width // 3, 12)), str(row["status"])) for row in bad[:50]]
    left = width - max(columns(name) for name, _ in names) - max(len(status) for _, status in names) - 4
    cells = [(*name, in_columns(_why(row), max(left, 12))) for name, row in zip(names, bad[:50], strict=True)]
    more = f"\n... and {len(bad) - 50} more" if len(bad) > 50 else ""
    output.text(f"\n{table(cells, ('task', 'status', 'why'))}{more}")
