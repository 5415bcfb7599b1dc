"""The hooks around a run and around a compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pod.hooks.asking import Hooks
from pod.hooks.inputs import PostCompact, PreCompact, RunStart, Stop
from worker.results import Failed, Finished, LimitReached, Outcome

if TYPE_CHECKING:
    from pod.context.policy import Plan

BLOCKED = "hook_blocked"
"""The kind of a failure by which a hook ended a run."""


async def may_begin(hooks: Hooks, run: str) -> tuple[Failed | None, tuple[str, ...]]:
    """Whether a run may begin: the failure that it ends with where not, and what the model is told."""
    if not hooks.about("RunStart"):
        return None, ()
    waiting = tuple(item.text for item in hooks.session.state.queued)
    heard = await hooks.ask(RunStart(input=waiting), run=run)
    if heard.refusal is None:
        return None, heard.notices
    message = f"{heard.refusal}. Nothing was sent; `pod resume` asks again."
    return Failed(BLOCKED, message, details={"hook": heard.refusal.hook.label, "event": "RunStart"}), ()


async def may_end(hooks: Hooks, outcome: Finished) -> Outcome | None:
    """The outcome of a run whose agent ended its turn; None where a hook makes it go on."""
    if not hooks.about("Stop"):
        return outcome
    heard = await hooks.ask(Stop(text=outcome.text))
    if heard.refusal is None:
        return outcome
    hook, times = heard.refusal.hook, hooks.stops(heard.refusal.hook.label)
    if times > hook.max_blocks:
        often = "once" if hook.max_blocks == 1 else f"{hook.max_blocks} times"
        message = (
            f"{heard.refusal}; it had kept the run from ending {often} already, which is its bound "
            f"([[hooks]] max_blocks = {hook.max_blocks})"
        )
        return LimitReached("hooks.max_blocks", message, {"hook": hook.label, "max_blocks": hook.max_blocks})
    hooks.notify([f"The work is not done yet: {heard.refusal}. Go on with the task."])
    await hooks.session.sync()
    return None


async def may_compact(hooks: Hooks, plan: Plan, focus: str | None) -> str:
    """Why a compaction must not be; nothing where it may."""
    if not hooks.about("PreCompact"):
        return ""
    heard = await hooks.ask(PreCompact(trigger=plan.trigger, tokens=plan.before.tokens, focus=focus))
    return "" if heard.refusal is None else str(heard.refusal)


async def compacted(hooks: Hooks, plan: Plan, rung: str) -> None:
    """Tells of a new segment."""
    state = hooks.session.state
    if state.accepted is not None and hooks.about("PostCompact"):
        await hooks.ask(
            PostCompact(
                trigger=plan.trigger, rung=rung, before=state.accepted.before, after=state.accepted.after,
                segment=state.start.segment,
            )
        )  # fmt: skip
