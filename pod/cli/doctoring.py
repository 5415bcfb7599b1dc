"""`pod doctor`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pod.cli.failing import note
from pod.cli.output import show, show_json
from pod.cli.text import count
from pod.errors import PodError, UsageProblem
from pod.log.doctor import examine, repair
from pod.log.files import label_of
from pod.log.findings import PodReport, Repair
from pod.log.folder import PodFolder, check_name, default_home
from worker.text import size


def doctor(args: argparse.Namespace) -> int:
    """Looks for damage; with `--repair` puts it aside. Exit code 1 where something is wrong or lost and stays so."""
    home = default_home()
    if args.name is not None:
        folder = PodFolder(home, check_name(args.name))
        if not folder.exists() and not folder.is_left_over():
            folder.pointer()  # says that there is none, and which name is near
    if args.repair:
        if args.name is None:
            raise UsageProblem("name the pod to repair: pod doctor NAME --repair")
        done = repair(home, args.name)
        _repaired(done, as_json=args.json)
        return 0 if done.after.whole else 1
    report = examine(home, args.name)
    if args.json:
        show_json(report.model_dump(mode="json"))
    else:
        for pod in report.pods:
            show(_text(pod))
        if not report.pods:
            note(f"no pods in {label_of(home)}")
    _sandbox(home, [pod.name for pod in report.pods])
    return 0 if all(pod.whole for pod in report.pods) else 1


def _sandbox(home: Path, names: Sequence[str]) -> None:
    """Says where a pod asks for a sandbox and there can be none here: what holds for one holds for all."""
    from pod.guarding import sandbox_trouble
    from pod.stored import kept

    for name in names:
        try:
            found = kept(PodFolder(home, name))
        except (PodError, OSError):
            continue  # damage is told above
        if found.manifest is None or found.manifest.sandbox.mode == "off" or not found.cwd:
            continue
        if Path(found.cwd).is_dir():
            if (why := sandbox_trouble(found.manifest, Path(found.cwd), home)) is not None:
                note(f"pod: warning: pod {name} can't go on here: {why}")
            return


def _text(pod: PodReport) -> str:
    entries = sum(segment.entries for segment in pod.segments)
    held = size(sum(segment.bytes for segment in pod.segments))
    busy = f", in use by process {pod.owner.get('pid', '?')}" if pod.busy else ""
    word = "fine" if pod.fine else "can be opened" if pod.ok else "DAMAGED"
    what = f"{count(len(pod.segments), 'segment')}, {count(entries, 'log line')}, {held}"
    lines = [f"{pod.name}: {word}: {what}{busy}"]
    if any(found.code == "left_over" for found in pod.findings):
        lines = [f"{pod.name}: no pod{busy}"]
    for found in pod.findings:
        line = f":{found.line}" if found.line is not None else ""
        place = f"{found.path}{line}" + (f" (byte {found.offset})" if found.offset is not None else "")
        cure = " (--repair mends it)" if found.repairable else ""
        lines.append(f"  {found.severity}: {place}: {found.text}{cure}")
    return "\n".join(lines)


def _repaired(done: Repair, *, as_json: bool) -> None:
    if as_json:
        show_json(done.model_dump(mode="json"))
        return
    for part in done.quarantined:
        kept = f"; kept as {part.kept_as}" if part.kept_as else ""
        show(f"put aside: {part.length} bytes at byte {part.offset} of {part.segment}, {part.numbers} entries{kept}")
    for path in done.kept_aside:
        show(f"put aside: {path}")
    if done.pointed_to:
        show(f"pod.json written anew: {done.pointed_to} is the active segment")
    for path in done.removed:
        show(f"removed: {path}")
    if not (done.quarantined or done.removed or done.kept_aside or done.pointed_to):
        show("nothing to repair")
    show(_text(done.after))
