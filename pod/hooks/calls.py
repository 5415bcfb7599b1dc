"""The hooks around calls, as an interceptor, and what hooks leave for the next request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread

from interceptors.permissions import PathScope, PermissionDenied, Permissions, describe, facts_of
from pod.hooks.asking import BY, Hooks, Refusal, items_of
from pod.hooks.inputs import PostToolUse, PreToolUse
from pod.log.entries import HookRan
from worker.interceptor import (
    ALLOW,
    CONTINUE,
    Append,
    CallContext,
    Decision,
    Deny,
    Interceptor,
    RequestContext,
    ToolDecision,
)
from worker.items import ToolOutput
from worker.records import ContextAdded, Record


@dataclass(eq=False)
class CallHooks(Interceptor):
    """Asks hooks about each call that the permissions would not deny, right before these are asked: a hook never sees a call
    that they refuse, a human is never asked about one that a hook refuses, and theirs is the last word.

    What waits to be told to the model, and how often each hook kept this run from ending, is a fold of the log.
    """

    hooks: Hooks
    permissions: Permissions
    scope: PathScope
    _notices: list[str] = field(default_factory=list[str], init=False, repr=False)
    _stops: dict[str, int] = field(default_factory=dict[str, int], init=False, repr=False)

    name = BY

    def stops(self, hook: str) -> int:
        """How often a hook kept this run from ending."""
        return self._stops.get(hook, 0)

    async def before_request(self, ctx: RequestContext) -> Decision:
        """An `Append` of what hooks left for the model."""
        return Append(items_of(self._notices)) if self._notices else CONTINUE

    async def before_tool(self, ctx: CallContext) -> ToolDecision:
        """`Deny` where a hook blocks. Cancelled, the hook is ended and the call has not begun."""
        tool = ctx.tool
        if not self.hooks.about("PreToolUse", tool.name):
            return ALLOW
        expected = await self.permissions.before_tool(ctx)
        # A question that stands already was put after its hooks had been asked; they are asked again once it is answered.
        if not self._asks(expected):
            return ALLOW
        given = PreToolUse(tool=tool.name, effect=tool.effect, call_id=ctx.call.call_id, arguments=ctx.arguments)
        heard = await self.hooks.ask(given)
        return ALLOW if heard.refusal is None else await self._denied(ctx, heard.refusal)

    @staticmethod
    def _asks(expected: ToolDecision) -> bool:
        return not isinstance(expected, Deny) and getattr(expected, "record", ALLOW) is not None

    async def _denied(self, ctx: CallContext, refusal: Refusal) -> Deny:
        facts = await to_thread.run_sync(facts_of, ctx, self.scope)
        record = PermissionDenied(
            call_id=ctx.call.call_id, tool=ctx.tool.name, reason=str(refusal),
            summary=self.hooks.mask(describe(ctx.tool, facts, ctx.arguments).text),
        )  # fmt: skip
        return Deny(f"{ctx.tool.name} was not run: {refusal}", record=record)

    async def after_tool(self, ctx: CallContext, output: ToolOutput) -> ToolOutput:
        """The output as it is. Cancelled, the hook is ended; the call then counts as interrupted."""
        tool = ctx.tool
        if self.hooks.about("PostToolUse", tool.name):
            await self.hooks.ask(
                PostToolUse(
                    tool=tool.name, effect=tool.effect, call_id=ctx.call.call_id, arguments=ctx.arguments,
                    status="error" if output.is_error else "ok", summary=output.summary, content=output.content,
                )
            )  # fmt: skip
        return output

    def observe(self, record: Record) -> None:
        """Follows what hooks said and what of it was told."""
        match record:
            case HookRan(event="Stop", blocked=True):
                self._stops[record.name] = self.stops(record.name) + 1
            case HookRan() if record.notice:
                self._notices.append(record.notice)
            case ContextAdded() if record.by == self.name:
                self._notices.clear()
            case _:
                pass

    def carry(self) -> dict[str, Any] | None:
        """What waits, and the counts of this run."""
        return {"notices": list(self._notices), "stops": dict(self._stops)}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `carry` gave."""
        self._notices = list(state.get("notices", ()))
        self._stops = dict(state.get("stops", {}))

    def begin_run(self) -> None:
        """The counts begin anew; what waits is told all the same."""
        self._stops = {}
