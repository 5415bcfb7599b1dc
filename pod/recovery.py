"""After a restart or a cancel: processes left behind are ended, open calls get the result that is true."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import anyio
import anyio.to_thread

from pod.log.entries import OrphanKilled
from pod.services import Services
from pod.session import Session
from worker.builtin.process_table import Target, end, look_at, survivors
from worker.history import OpenCall
from worker.items import ToolResultItem
from worker.records import ToolResult
from worker.tools import Tool

UNKNOWN = (
    "interrupted: outcome unknown. The runtime stopped while {name} was running: it may have had its effect, wholly or in part, "
    "or none. Look at what it did before doing it again."
)
NOT_RUN = (
    "interrupted: not run. The runtime stopped before {name} was started; make the call again if it is still needed."
)


async def end_survivors(session: Session, services: Services, *others: str) -> None:
    """Ends what a killed runtime's open calls left running: found by their environment, on record, and gone when this returns.

    `others` are labels of processes that belong to no call.
    """
    jobs = {job.pgid for job in services.processes.list() if job.status == "running"}
    started = [call.item.call_id for call in session.state.history.unresolved if call.started]
    for label in (*started, *filter(None, others)):
        pids = await anyio.to_thread.run_sync(survivors, label, services.processes.owner)
        groups = {found.pgid for pid in pids if (found := look_at(pid)) is not None} - jobs
        # All at once: a supervisor ends when what is below it has ended.
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for group in groups:
                    tasks.start_soon(partial(end, Target(group), grace=1.0))
        if groups:
            session.put(OrphanKilled(call_id=label, pids=tuple(pids)))


async def close_open_calls(session: Session, tools: Mapping[str, Tool]) -> None:
    """Closes calls that will not be run: started ones as unknown, others as not run. Approved ones and idempotent ones stay open."""
    changed = False
    for call in list(session.state.history.unresolved):
        text = closing(call, tools, asked=call.item.call_id in session.state.asked)
        if text is None:
            continue
        item = ToolResultItem(call_id=call.item.call_id, name=call.item.name, status="interrupted", summary=text)
        session.put(ToolResult(item=item, ran=call.started))
        changed = True
    if changed:
        await session.sync()


def closing(call: OpenCall, tools: Mapping[str, Tool], *, asked: bool) -> str | None:
    """The text that closes an open call, or None where it stays open: to be run again (idempotent) or after an answer."""
    name = call.item.name
    if call.started:
        tool = tools.get(name)
        return None if tool is not None and tool.idempotent else UNKNOWN.format(name=name)
    return None if asked else NOT_RUN.format(name=name)
