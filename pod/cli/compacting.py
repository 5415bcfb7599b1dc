"""`pod compact`."""

from __future__ import annotations

import argparse
from pathlib import Path

import anyio

from pod.cli.failing import note
from pod.cli.given import valid_text
from pod.cli.output import Output, output_of, show, show_json
from pod.cli.progress import progress_of
from pod.cli.pulse import Pulse
from pod.cli.sending import folder_of, order
from pod.cli.signals import Stopping, handled
from pod.cli.text import figures
from pod.events import Event
from pod.log.folder import PodFolder
from pod.stored import stored_manifest


def compact(args: argparse.Namespace) -> int:
    """Compacts now, or shows what would be done."""
    folder = folder_of(args.name)
    if args.dry_run:
        return _dry(folder, as_json=args.json)
    backend = "asyncio" if args.asyncio else "trio"
    focus = None if args.focus is None else valid_text(args.focus, "--focus")

    def here() -> int:
        with output_of(args) as output:
            return anyio.run(_compact, folder, focus, output, backend=backend)

    return order(folder, "compact", {"focus": focus}, here)


def _dry(folder: PodFolder, *, as_json: bool) -> int:
    from pod.outlook import outlook
    from pod.views import compaction_of

    view = outlook(folder)
    if as_json:
        show_json(compaction_of(view))
        return 0
    plan = view.plan()
    accepted = view.acceptance(plan)
    checkpoint = view.checkpoint
    rows = [
        (
            "occupancy now",
            f"{plan.before.tokens:,} tokens ({plan.before.provenance}), {plan.before.overhead:,} of it overhead",
        ),
        ("would summarise", f"{plan.summarised_items} items, {plan.summarised_tokens:,} tokens"),
        ("would keep", f"{plan.retained_items} items, {plan.retained_tokens:,} tokens"),
        (
            "expected after",
            f"{view.least(plan):,} to {plan.expected:,} tokens, by the length of the summary; must lie under "
            f"{plan.limits.most:,} and a tenth below now",
        ),
        ("accepted", _ACCEPTED[accepted]),
    ]
    if view.native is not None:
        from pod.cli.contexts import native_line

        rows.insert(1, ("native memory", native_line(view.native)))
    if checkpoint is not None:
        from pod.cli.contexts import checkpoint_line

        rows.insert(1, ("checkpoint", checkpoint_line(checkpoint)))
    show(figures(rows) if plan.possible else f"not possible: {plan.reason}\n{figures(rows[:1])}")
    return 0


_ACCEPTED = {
    "yes": "yes, by these figures",
    "maybe": "maybe: only where the summary is short enough",
    "no": "no: what must stay is too much, however short the summary is",
}


async def _compact(folder: PodFolder, focus: str | None, output: Output) -> int:
    from pod.pod import Pod

    manifest, cwd = stored_manifest(folder)
    progress = progress_of(output)
    stopping = Stopping(before_exit=progress.close)
    pulse = Pulse()
    done = False
    last = ""

    def follow(event: Event) -> None:
        nonlocal last
        match event.type:
            case "warning":
                last = event.message
            case "compaction.failed":
                last = event.reason
            case _:
                pass
        pulse.follow(event)
        progress.event(event)

    async def tell(event: Event) -> None:
        progress.event(event)

    async with handled(stopping):
        try:
            async with Pod.open(manifest, name=folder.name, home=folder.home, cwd=Path(cwd), observers=[follow]) as pod:
                progress.begin(pod.init_event(), fresh=False)
                async with anyio.create_task_group() as group:
                    group.start_soon(pulse.beat, tell)
                    done = await pod.compact(focus)
                    group.cancel_scope.cancel()
                occupancy = pod.running.worker.sender.occupancy()
        finally:
            progress.close()
        if output.format != "text":
            import json

            reason = "" if done else last
            output.json(
                json.dumps({"pod": folder.name, "compacted": done, "occupancy": occupancy.tokens, "reason": reason})
            )
        elif done:
            output.text(f"compacted: {occupancy.tokens:,} tokens now")
        else:
            note(f"pod {folder.name}: not compacted: {last}")
        return 0 if done else 1
    return stopping.exit_code
