"""Running the calls of a reply: checked, permitted, put on record, run, capped, answered in order."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from worker import interceptor as ic
from worker import tracing
from worker.cancelling import really_cancelled
from worker.errors import alone, holds, told
from worker.history import History, OpenCall
from worker.items import ResultStatus, ToolCallItem, ToolOutput, ToolResultItem
from worker.ledger import Ledger
from worker.records import Syncing, ToolResult, ToolStarted
from worker.results import Failed, Outcome, Paused
from worker.text import clipped, untagged
from worker.tool_output import ArtifactStore, cap
from worker.tools import Tool, ToolContext, ToolFault

CONCURRENT_READS = 8
"""Calls with effect `read` that run side by side."""

LONGEST_NAME = 200
"""Characters of a name that no tool has that the model is told again."""

NOT_KEPT = (
    "{name} was not run: its arguments held a secret, which the log does not keep, and the process that knew them has ended. "
    "Make the call again, with the environment variable in the place of its value"
)
"""The result of a call that another process would have had to run."""

UNKNOWN = "{name} was started and then interrupted: its outcome is unknown, look at what it did before doing it again"
"""The result of a call that may have run: it is never run again by itself (case B063)."""


@dataclass(slots=True)
class Ready:
    """A call that may run now."""

    call: ToolCallItem
    tool: Tool
    arguments: dict[str, Any]
    context: ic.CallContext


@dataclass(slots=True)
class Caller:
    """Runs open calls. `tools` is what the model was offered, by name."""

    ledger: Ledger
    tools: Mapping[str, Tool]
    interceptors: Sequence[ic.Interceptor]
    cwd: Path
    tag: str
    deps: Any = None
    services: Mapping[type, object] = field(default_factory=dict[type, object])
    artifacts: ArtifactStore | None = None
    clock: Callable[[], float] = time.monotonic
    point: Callable[[str], None] = lambda _: None

    @property
    def history(self) -> History:
        """The history that holds the open calls."""
        return self.ledger.history

    async def run(self) -> Outcome | None:
        """Answers every open call, or says why it could not: a pause, a stop, an interceptor's failure.

        Cancelled, running tools are cancelled and leave an open, started call on record.
        """
        waiting: list[str] = []
        ready: list[Ready] = []
        ended: Outcome | None = None
        for open_call in self.history.unresolved:
            match await self._decide(open_call):
                case ToolResultItem() as item:
                    self.ledger.put(ToolResult(item=item, ran=open_call.started))
                case ic.Pause(approval=approval, record=record):
                    if record is not None:
                        self.ledger.put(record)
                    waiting.append(approval)
                case ic.Stop(outcome=ended):
                    break
                case Ready() as allowed:
                    ready.append(allowed)
        for group in _groups(ready) if ended is None else ():
            ended = await self._run_group(group) or self.ledger.fault
            if ended is not None:
                break
        if ended is None and waiting:
            ended = Paused(tuple(waiting))
        if ended is not None:
            await self.ledger.sync()
        return ended

    def close(self, reason: str) -> None:
        """Answers every open call without running it."""
        for open_call in self.history.unresolved:
            item = self._error(open_call.item, f"{open_call.item.name} was not run: {reason}")
            self.ledger.put(ToolResult(item=item, ran=open_call.started))

    async def _decide(self, open_call: OpenCall) -> Ready | ToolResultItem | ic.Pause | ic.Stop:
        call = open_call.item
        tool = self.tools.get(call.name)
        if open_call.started and not (tool and tool.idempotent):
            return self._result(call, tool, ToolOutput(summary=UNKNOWN.format(name=call.name)), "interrupted")
        if tool is None:
            return self._error(call, self._unknown(call.name))
        if call.error is not None:
            return self._error(call, f"{call.name} was not run: {call.error}", tool)
        original = self.ledger.gate.original(call)
        if original is None and open_call.started:
            return self._result(call, tool, ToolOutput(summary=UNKNOWN.format(name=call.name)), "interrupted")
        if original is None:
            return self._error(call, NOT_KEPT.format(name=call.name), tool)
        arguments = original.parsed or {}
        try:
            complaint = tool.check(arguments)
        except BaseException as e:
            if holds(e, KeyboardInterrupt):
                raise
            complaint = f"the arguments of {tool.name} could not be checked: {type(e).__name__}: {told(e)}"
        if complaint:
            return self._error(call, complaint, tool)
        context = ic.CallContext(call, tool, arguments, self.history, self.tag, self.deps)
        for interceptor in self.interceptors:
            if not ic.overrides(interceptor, "before_tool"):
                continue
            try:
                decision = await interceptor.before_tool(context)
            except Exception as e:
                return ic.Stop(ic.failure(interceptor, e))
            match decision:
                case ic.Allow():
                    continue
                case ic.Deny(message=message, record=record):
                    if record is not None:
                        self.ledger.put(record)
                    return self._result(call, tool, ToolOutput.from_text(message), "denied")
                case ic.Answer(output=output):
                    output = await self._capped(call, tool, self.ledger.gate.output(output))
                    return self._result(call, tool, output, "error" if output.is_error else "ok")
                case ic.Pause() | ic.Stop():
                    return decision
                case _:
                    # A check that forgot its answer must not let the call through.
                    return ic.Stop(ic.failure(interceptor, TypeError(f"before_tool returned {decision!r}")))
        return Ready(call, tool, arguments, context)

    async def _run_group(self, group: Sequence[Ready]) -> Failed | None:
        for ready in group:
            self.ledger.put(ToolStarted(call_id=ready.call.call_id))
        if len(group) == 1:
            tool = group[0].tool
            # A timeout is the tool's own: the disk does not use it up.
            syncing = self.ledger.syncing() if tool.threaded and tool.timeout is None else None
            if syncing is None:
                await self.ledger.sync()
            return await self._run_one(group[0], syncing)
        await self.ledger.sync()
        limiter = anyio.CapacityLimiter(CONCURRENT_READS)
        failed: list[Failed] = []
        errors: list[Exception] = []

        async def limited(ready: Ready) -> None:
            async with limiter:
                try:
                    if (ended := await self._run_one(ready)) is not None:
                        failed.append(ended)
                except Exception as e:
                    errors.append(e)
                    tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for ready in group:
                tasks.start_soon(limited, ready)
        # The journal's own error, not a group of it.
        if errors:
            raise errors[0]
        return failed[0] if failed else None

    async def _run_one(self, ready: Ready, syncing: Syncing | None = None) -> Failed | None:
        """Runs a call whose start is on record; with `syncing` it is durable once the tool's thread has waited for it."""
        with tracing.doing(tracing.ToolWork(ready.call, ready.tool)):
            return await self._run_traced(ready, syncing)

    async def _run_traced(self, ready: Ready, syncing: Syncing | None) -> Failed | None:
        call, tool = ready.call, ready.tool
        started = self.clock()
        self.point(f"tool.{tool.name}.before")
        output = await self._output(ready, syncing)
        self.point(f"tool.{tool.name}.after")
        output, failed = await self._after(ready, output)
        output = await self._capped(call, tool, output)
        item = self._result(call, tool, output, "error" if output.is_error else "ok")
        self.ledger.put(ToolResult(item=item, seconds=round(self.clock() - started, 4)))
        if tool.effect != "read":
            # An effect that is on record can't be doubled; a read that a power cut takes back is only made again.
            self.ledger.begin_sync()
        return failed

    async def _after(self, ready: Ready, output: ToolOutput) -> tuple[ToolOutput, Failed | None]:
        """The output as the interceptors leave it, who see it without secrets. Where one raises, the tool has run all the same, and what it said is
        withheld: the interceptor may have been there to redact it."""
        gate = self.ledger.gate
        output = gate.output(output)
        for interceptor in self.interceptors:
            if not ic.overrides(interceptor, "after_tool"):
                continue
            try:
                changed = _as_changed(await interceptor.after_tool(ready.context, output))
                output = output if changed is output else gate.output(changed)
            except Exception as e:
                note = f"{ready.tool.name} ran, but its output is withheld: the interceptor {interceptor.name} failed on it"
                withheld = {"summary": note, "content": None, "images": (), "is_error": True}
                return output.model_copy(update=withheld), ic.failure(interceptor, e)
        return output, None

    async def _capped(self, call: ToolCallItem, tool: Tool, output: ToolOutput) -> ToolOutput:
        return await cap(output, tool.max_output, self.artifacts, call.call_id, name=f"{tool.name}.txt")

    async def _output(self, ready: Ready, syncing: Syncing | None) -> ToolOutput:
        if syncing is None:
            return await self._ran(ready, None)
        try:
            output = await self._ran(ready, syncing.wait)
        except BaseException:
            syncing.leave()
            raise
        syncing.settle()
        return output

    async def _ran(self, ready: Ready, before: Callable[[], None] | None) -> ToolOutput:
        tool, call = ready.tool, ready.call
        context = ToolContext(call.call_id, tool.name, self.cwd, self.deps, self.services, before)
        task = anyio.get_current_task().id
        try:
            with anyio.move_on_after(tool.timeout) as scope:
                return await tool.run(dict(ready.arguments), context)
        except Exception as e:
            return self._failure(tool, e)
        except BaseException as e:
            if _is_not_the_tools(e, task):
                raise
            return self._failure(tool, e)
        assert scope.cancelled_caught
        return ToolOutput(summary=f"{tool.name} timed out after {tool.timeout:g} s and was stopped", is_error=True)

    def _failure(self, tool: Tool, error: BaseException) -> ToolOutput:
        error = alone(error)
        text, kind = told(error), type(error).__name__
        if isinstance(error, ToolFault):
            return ToolOutput.from_text(text or f"{tool.name} failed", is_error=True)
        return ToolOutput.from_text(": ".join(x for x in (f"{tool.name} failed", kind, text) if x), is_error=True)

    def _error(self, call: ToolCallItem, message: str, tool: Tool | None = None) -> ToolResultItem:
        return self._result(call, tool, ToolOutput.from_text(message), "error")

    def _result(
        self, call: ToolCallItem, tool: Tool | None, output: ToolOutput, status: ResultStatus
    ) -> ToolResultItem:
        content = output.content
        return ToolResultItem(
            call_id=call.call_id,
            name=call.name,
            status=status,
            summary=untagged(output.summary, self.tag) or f"{call.name}: no output",
            content=None if content is None else untagged(content, self.tag),
            images=output.images,
            prunable=tool.prunable if tool else True,
            artifact=output.artifact,
            reads=output.reads,
            writes=output.writes,
            state=output.state,
        )

    def _unknown(self, name: str) -> str:
        name = clipped(name, LONGEST_NAME)
        near = difflib.get_close_matches(name, self.tools, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"there is no tool named {name!r}.{hint} Available: {', '.join(sorted(self.tools)) or 'none'}"


def _is_not_the_tools(error: BaseException, task: int) -> bool:
    """Whether a tool only passes the error on: the user's interrupt, a real cancellation, the end of the event loop."""
    if holds(error, KeyboardInterrupt):
        return True
    if isinstance(error, GeneratorExit):
        return not _is_current(task)
    return holds(error, anyio.get_cancelled_exc_class()) and really_cancelled()


def _is_current(task: int) -> bool:
    """Whether this runs in the task: a coroutine that is thrown away is closed from outside of any."""
    try:
        return anyio.get_current_task().id == task
    except RuntimeError:
        return False


def _groups(ready: Sequence[Ready]) -> list[list[Ready]]:
    """Calls in order; neighbours that only read and lock nothing stand in one group."""
    groups: list[list[Ready]] = []
    free = False
    for each in ready:
        reads = each.tool.effect == "read" and not each.tool.resource
        if reads and free:
            groups[-1].append(each)
        else:
            groups.append([each])
        free = reads
    return groups


def _as_changed(changed: object) -> ToolOutput:
    if not isinstance(changed, ToolOutput):
        raise TypeError(f"after_tool returned {changed!r}: it must return a ToolOutput")
    return changed
