"""Permissions: whether a call may run, must be asked about, or may not.

The decision is `decide`, a pure function of the call's facts, the settings and what a human granted. Nothing that a
model, a file, a tool or a summary says is looked at: grants come from `ApprovalAnswered` records alone (cases B039,
B040).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from anyio import to_thread

from interceptors.approvals import ApprovalAnswered, ApprovalAsked, PermissionDenied, settled_by
from interceptors.deciding import Profile, Rule, Verdict, decide
from interceptors.facts import CallFacts, PathScope, canonical, describe, facts_of, paths_of
from interceptors.preview import SHOWN_BYTES, details, write_preview
from worker.ids import uuid7
from worker.interceptor import ALLOW, CallContext, Deny, Interceptor, Pause, ToolDecision
from worker.records import Record, ToolResult
from worker.text import sha256
from worker.tools import ToolFault

LONG_COMMAND = 10_000
"""Characters of a command from which on it is looked at in a thread, so that other runs of the process go on."""


def question_of(
    ctx: CallContext, facts: CallFacts, verdict: Verdict, digest: str, scope: PathScope | None
) -> ApprovalAsked:
    """What a human is asked about a call. Blocks: the file that a write changes is read."""
    diff = before = None
    if facts.effect == "write":
        target = _target(ctx, facts, scope)
        shown = _current(target)
        diff = write_preview(ctx.tool, ctx.arguments, shown)
        before = _digest(target) if shown is None else sha256(shown)
    told = describe(ctx.tool, facts, ctx.arguments)
    return ApprovalAsked(
        id=uuid7(),
        call_id=ctx.call.call_id,
        tool=ctx.tool.name,
        arguments_sha256=digest,
        summary=told.text,
        details=details(ctx.tool, ctx.arguments, told.shown),
        diff=diff,
        effect=facts.effect,
        reason=verdict.reason,
        scope=verdict.scope,
        before_sha256=before,
    )


def _target(ctx: CallContext, facts: CallFacts, scope: PathScope | None) -> Path | None:
    """The file that a write is about; None where the call names none that can be looked at. Blocks."""
    path = ctx.arguments.get(ctx.tool.resource or "path")
    if scope is None or facts.outside is not None or not isinstance(path, str):
        return None
    try:
        real = scope.resolve(path, "write")
        return real if real.is_file() or not real.exists() else None
    except (OSError, ToolFault):
        return None


def _digest(target: Path | None) -> str | None:
    """The hash of what the file of a write holds now; None where that can't be looked at."""
    try:
        if target is None:
            return None
        with target.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return sha256(b"")
    except OSError:
        return None


def _current(target: Path | None) -> bytes | None:
    """What the file of a write holds now, nothing where there is none; None where that is not looked at."""
    try:
        if target is None or target.stat().st_size > SHOWN_BYTES:
            return None
        return target.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError:
        return None


@dataclass(eq=False)
class Permissions(Interceptor):
    """Asks, allows or denies each call before it runs.

    `headless` says that nobody is there to be asked now: a question then pauses the run durably, or denies, by
    `when_headless`. An approval is bound to the very call: its id, its tool and the hash of its arguments. Once
    answered it holds for that call, through restarts, until its result is on record; an identical later call asks again
    (case B041), and so does the call itself where the file that it writes has changed since the question. A question
    stays asked until it is answered, whatever settings come later; under the profile `unattended`, which waits for nobody,
    its call is denied. Only an approval of scope `run` reaches further: to writes in scope, or to calls of the same tool with
    the same arguments; one that held a secret is like no other.
    """

    profile: Profile = "safe"
    rules: Sequence[Rule] = ()
    when_headless: Literal["pause", "deny"] = "pause"
    headless: bool = False
    scope: PathScope | None = None
    _asked: dict[str, ApprovalAsked] = field(default_factory=dict[str, ApprovalAsked], init=False, repr=False)
    _answers: dict[str, ApprovalAnswered] = field(default_factory=dict[str, ApprovalAnswered], init=False, repr=False)
    _writes: bool = field(default=False, init=False, repr=False)
    _same: set[str] = field(default_factory=set[str], init=False, repr=False)

    async def before_tool(self, ctx: CallContext) -> ToolDecision:
        """`Allow`, `Deny` or `Pause`, with what goes on record. Cancelled, nothing is decided."""
        touches_disk = self.scope is not None and bool(paths_of(ctx.tool, ctx.arguments))
        if touches_disk or len(ctx.call.arguments) > LONG_COMMAND:
            facts, verdict = await to_thread.run_sync(self._judge, ctx)
        else:
            facts, verdict = self._judge(ctx)
        digest = _bound_to(ctx)
        asked = self._asked.get(ctx.call.call_id)
        if asked is not None and (asked.tool, asked.arguments_sha256) != (ctx.tool.name, digest):
            asked = None
        answer = self._answers.get(asked.id) if asked is not None else None
        if answer is not None and not answer.approved:
            # A no to this very call outweighs whatever was granted elsewhere.
            return self._refused(ctx, facts, answer)
        if asked is not None and answer is None:
            if self.profile == "unattended":
                reason = "it was asked about, nobody has answered, and the profile 'unattended' never waits"
                return self._deny(ctx, facts, reason)
            # Settings that came after the question are no answer to it.
            return Pause(asked.id)
        if verdict.action == "deny":
            return self._deny(ctx, facts, verdict.reason)
        if verdict.action != "allow" and asked is not None and asked.before_sha256 is not None:
            # What was said yes to is the diff of a file that may be another one by now: then it is asked again.
            now = await to_thread.run_sync(lambda: _digest(_target(ctx, facts, self.scope)))
            answer = answer if now == asked.before_sha256 else None
        if answer is not None or verdict.action == "allow" or _key(ctx.tool.name, digest) in self._same:
            return ALLOW
        if self.headless and self.when_headless == "deny":
            reason = f"{verdict.reason}, and nobody is there to be asked (when_headless = 'deny')"
            return self._deny(ctx, facts, reason)
        question = await to_thread.run_sync(question_of, ctx, facts, verdict, digest, self.scope)
        return Pause(question.id, record=question)

    def _judge(self, ctx: CallContext) -> tuple[CallFacts, Verdict]:
        facts = facts_of(ctx, self.scope)
        return facts, decide(facts, self.profile, self.rules, writes_granted=self._writes)

    def observe(self, record: Record) -> None:
        """Follows questions, answers, and the calls that they were about."""
        match record:
            case ApprovalAsked():
                self._asked[record.call_id] = record
            case ApprovalAnswered():
                self._answer(record)
            case ToolResult(item=item):
                if (asked := self._asked.pop(item.call_id, None)) is not None:
                    self._answers.pop(asked.id, None)
            case _:
                pass

    def _answer(self, answer: ApprovalAnswered) -> None:
        asked = next((a for a in self._asked.values() if a.id == answer.id), None)
        if asked is None or answer.id in self._answers:
            return
        self._answers[answer.id] = answer
        if answer.approved and (answer.scope or asked.scope) == "run":
            if asked.scope == "run":
                self._writes = True
            else:
                self._same.add(_key(asked.tool, asked.arguments_sha256))
            settled = settled_by(asked, self._asked.values())
            self._asked = {
                call: other for call, other in self._asked.items() if other not in settled or other.id in self._answers
            }

    def _deny(self, ctx: CallContext, facts: CallFacts, reason: str) -> Deny:
        way = "Do it another way, or say what you need so that the user can allow it."
        message = f"{ctx.tool.name} was not run: {reason.rstrip('.')}. {way}"
        return Deny(message, record=_denied(ctx, facts, reason))

    def _refused(self, ctx: CallContext, facts: CallFacts, answer: ApprovalAnswered) -> Deny:
        who = answer.by or "the user"
        said = f": {answer.message}" if answer.message else ""
        record = _denied(ctx, facts, f"denied by {who}{said}")
        return Deny(f"{ctx.tool.name} was not run: {who} denied this call{said}. Do not make it again.", record=record)

    def carry(self) -> dict[str, Any] | None:
        """What was granted for the run. Questions do not cross: with an open call there is no new segment."""
        return {"writes": self._writes, "same": sorted(self._same)}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `carry` gave."""
        self._writes = bool(state.get("writes"))
        self._same = set(state.get("same", ()))

    def begin_run(self) -> None:
        """Grants end with the run that they were given in."""
        self._writes = False
        self._same = set()


def _bound_to(ctx: CallContext) -> str:
    """The hash of a call's arguments, as the log may know them. Where a secret was masked in them, two calls may look the same that are
    not: then it is of this call alone.
    """
    if ctx.call.masked:
        return sha256(canonical({"call": ctx.call.call_id, "arguments": ctx.call.parsed}))
    return sha256(canonical(ctx.arguments))


def _denied(ctx: CallContext, facts: CallFacts, reason: str) -> PermissionDenied:
    summary = describe(ctx.tool, facts, ctx.arguments).text
    return PermissionDenied(call_id=ctx.call.call_id, tool=ctx.tool.name, reason=reason, summary=summary)


def _key(tool: str, digest: str) -> str:
    return f"{tool} {digest}"
