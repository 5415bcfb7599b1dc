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
from worker.cancelling import really_cancelled
from worker.history import History, OpenCall
from worker.items import ToolCallItem, ToolOutput, ToolResultItem
from worker.ledger import Ledger
from worker.records import ToolResult, ToolStarted
from worker.results import Failed, Outcome, Paused
from worker.tool_output import ArtifactStore, cap
from worker.tools import Tool, ToolContext, ToolFault

CONCURRENT_READS = 8
"""Calls with effect `read` that run side by side."""


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
        stopped: Outcome | None = None
        batch: list[Ready] = []
        plan: list[list[Ready]] = []
        for open_call in self.history.unresolved:
            decided = await self._decide(open_call)
            if isinstance(decided, ToolResultItem):
                self.ledger.put(ToolResult(item=decided, ran=False))
            elif isinstance(decided, ic.Pause):
                if decided.record is not None:
                    self.ledger.put(decided.record)
                waiting.append(decided.approval)
            elif isinstance(decided, ic.Stop):
                stopped = decided.outcome
                break
            elif decided.tool.effect == "read" and not decided.tool.resource:
                batch.append(decided)
            else:
                plan += [batch, [decided]] if batch else [[decided]]
                batch = []
        plan += [batch] if batch else []
        if stopped is None:
            for group in plan:
                await self._run_group(group)
        if stopped is not None or waiting:
            await self.ledger.sync()
        return stopped if stopped is not None else Paused(tuple(waiting)) if waiting else None

    async def _decide(self, open_call: OpenCall) -> Ready | ToolResultItem | ic.Pause | ic.Stop:
        call = open_call.item
        tool = self.tools.get(call.name)
        if tool is None:
            return self._error(call, self._unknown(call.name))
        if call.error is not None:
            return self._error(call, f"{call.name} was not run: {call.error}", tool)
        arguments = call.parsed or {}
        if complaint := tool.check(arguments):
            return self._error(call, complaint, tool)
        context = ic.CallContext(call, tool, arguments, self.history, self.tag)
        for interceptor in self.interceptors:
            if not ic.overrides(interceptor, "before_tool"):
                continue
            try:
                decision = await interceptor.before_tool(context)
            except Exception as e:
                message = f"interceptor {interceptor.name}: {type(e).__name__}: {e}"
                return ic.Stop(Failed("interceptor", message))
            match decision:
                case ic.Allow():
                    continue
                case ic.Deny(message=message, record=record):
                    if record is not None:
                        self.ledger.put(record)
                    return self._result(call, tool, ToolOutput.from_text(message), status="denied")
                case ic.Answer(output=output):
                    return self._result(call, tool, output, status="error" if output.is_error else "ok")
                case ic.Pause() | ic.Stop():
                    return decision
        return Ready(call, tool, arguments, context)

    async def _run_group(self, group: Sequence[Ready]) -> None:
        for ready in group:
            self.ledger.put(ToolStarted(call_id=ready.call.call_id))
        await self.ledger.sync()
        if len(group) == 1:
            await self._run_one(group[0])
            return
        limiter = anyio.CapacityLimiter(CONCURRENT_READS)

        async def limited(ready: Ready) -> None:
            async with limiter:
                await self._run_one(ready)

        async with anyio.create_task_group() as tasks:
            for ready in group:
                tasks.start_soon(limited, ready)

    async def _run_one(self, ready: Ready) -> None:
        started = self.clock()
        self.point(f"tool.{ready.tool.name}.before")
        output = await self._output(ready)
        self.point(f"tool.{ready.tool.name}.after")
        for interceptor in self.interceptors:
            if ic.overrides(interceptor, "after_tool"):
                output = await interceptor.after_tool(ready.context, output)
        output = await cap(output, ready.tool.max_output, self.artifacts, ready.call.call_id, name=f"{ready.tool.name}.txt")
        item = self._result(ready.call, ready.tool, output, status="error" if output.is_error else "ok")
        self.ledger.put(ToolResult(item=item, seconds=round(self.clock() - started, 4)))

    async def _output(self, ready: Ready) -> ToolOutput:
        tool, call = ready.tool, ready.call
        context = ToolContext(call.call_id, tool.name, self.cwd, self.deps, self.services)
        try:
            with anyio.move_on_after(tool.timeout) as scope:
                return await tool.run(dict(ready.arguments), context)
        except ToolFault as e:
            return ToolOutput.from_text(str(e) or f"{tool.name} failed", is_error=True)
        except Exception as e:
            return self._failure(tool, e)
        except anyio.get_cancelled_exc_class() as e:
            if really_cancelled():
                raise
            return self._failure(tool, e)
        assert scope.cancelled_caught
        return ToolOutput(summary=f"{tool.name} timed out after {tool.timeout:g} s and was stopped", is_error=True)

    def _failure(self, tool: Tool, error: BaseException) -> ToolOutput:
        text = str(error).strip()
        kind = type(error).__name__
        return ToolOutput.from_text(f"{tool.name} failed: {kind}: {text}" if text else f"{tool.name} failed: {kind}", is_error=True)

    def _error(self, call: ToolCallItem, message: str, tool: Tool | None = None) -> ToolResultItem:
        return self._result(call, tool, ToolOutput.from_text(message), status="error")

    def _result(self, call: ToolCallItem, tool: Tool | None, output: ToolOutput, *, status: Any) -> ToolResultItem:
        return ToolResultItem(
            call_id=call.call_id,
            name=call.name,
            status=status,
            summary=self._untagged(output.summary) or f"{call.name}: no output",
            content=self._untagged(output.content),
            images=output.images,
            prunable=tool.prunable if tool else True,
            artifact=output.artifact,
            reads=output.reads,
            writes=output.writes,
            state=output.state,
        )

    def _untagged(self, text: Any) -> Any:
        """The session's tag marks orders of the runtime; in data it is broken up."""
        return text.replace(self.tag, self.tag[:4] + "-" + self.tag[4:]) if text and self.tag and self.tag in text else text

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.tools, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"there is no tool named {name!r}.{hint} Available: {', '.join(sorted(self.tools)) or 'none'}"
