"""Permissions: whether a call may run, must be asked about, or may not.

The decision is `decide`, a pure function of the call's facts, the settings and what a human granted. Nothing that a
model, a file, a tool or a summary says is looked at: grants come from `ApprovalAnswered` records alone (cases B039,
B040).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from anyio import to_thread

from interceptors.approvals import ApprovalAnswered, ApprovalAsked, ApprovalScope, PermissionDenied, settled_by
from interceptors.commands import readings, split
from interceptors.preview import SHOWN_BYTES, write_preview
from worker.addresses import AddressFilter, address_of, address_of_url, url_or_host_matches
from worker.builtin.path_filter import PathFilter
from worker.builtin.scope import LONGEST_PATH, home_expanded
from worker.ids import uuid7
from worker.interceptor import ALLOW, CallContext, Deny, Interceptor, Pause, ToolDecision
from worker.records import Record, ToolResult
from worker.text import clean, sha256
from worker.tools import Effect, ToolFault

__all__ = [
    "ApprovalAnswered",
    "ApprovalAsked",
    "CallFacts",
    "PathScope",
    "PermissionDenied",
    "Permissions",
    "Reach",
    "Rule",
    "Verdict",
    "decide",
]

Profile: TypeAlias = Literal["safe", "workspace-write", "read-only", "unattended"]
Action: TypeAlias = Literal["allow", "ask", "deny"]

PATH_ARGUMENTS = ("path", "paths", "file", "file_path", "folder", "directory", "source", "destination")
"""Arguments of file tools that name a path."""

ARTIFACT = "artifact:"
"""Paths that begin so name the pod's own artifacts, which are readable."""

SUMMARY_CHARS = 400
"""Characters of a call that a human is shown."""

LONG_COMMAND = 10_000
"""Characters of a command from which on it is looked at in a thread, so that other runs of the process go on."""


class PathScope(Protocol):
    """What decides on paths; `worker.builtin.scope.Scope` is one."""

    cwd: Path

    def resolve(self, path: str | Path, use: Literal["read", "write"] = "read") -> Path:
        """The real path, after links. Blocks; raises `ToolFault` where it is out of scope."""
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: `tool` is a glob on the tool's name, `match` one on the command, the path, or the host or URL."""

    tool: str
    match: str = "*"
    action: Action = "deny"

    def __str__(self) -> str:
        return f'{{ tool = "{self.tool}", match = "{self.match}", action = "{self.action}" }}'


@dataclass(frozen=True, slots=True)
class Reach:
    """A `PathScope` made of two predicates on resolved paths, for who has no `Scope`."""

    in_read: Callable[[str], bool]
    in_write: Callable[[str], bool]
    cwd: Path = field(default_factory=Path.cwd)

    def resolve(self, path: str | Path, use: Literal["read", "write"] = "read") -> Path:
        """The real path, after links. Raises `ToolFault` where the predicate says no."""
        if len(str(path)) > LONGEST_PATH:
            raise ToolFault(f"{str(path)[:80]}...: the path is too long")
        try:
            real = Path(os.path.realpath(self.cwd / home_expanded(str(path))))
        except (OSError, ValueError) as e:
            raise ToolFault(f"not a path: {str(path)[:80]!r} ({e})") from e
        if not (self.in_write if use == "write" else self.in_read)(str(real)):
            raise ToolFault(
                f"{path} is outside the {use} scope; choose a path in it, or add the folder to [scope] {use}"
            )
        return real


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What a decision looks at.

    A rule that forbids or asks matches where any of `readings` does. Rules that allow must match a name of each of
    `parts`, and only where `plain` says that the parts are all there is. `outside` is why a path is out of scope.
    """

    tool: str
    effect: Effect
    readings: frozenset[str] = frozenset()
    parts: tuple[frozenset[str], ...] = ()
    plain: bool = True
    outside: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Allow, ask or deny, and why. `scope` is how far an approval would reach."""

    action: Action
    reason: str
    scope: ApprovalScope = "once"


def decide(facts: CallFacts, profile: Profile, rules: Sequence[Rule] = (), *, writes_granted: bool = False) -> Verdict:
    """What happens to a call: scope first, then rules (deny over ask over allow), then the profile.

    `writes_granted` says that a human allowed writes in scope for this run. The profile `unattended` never asks: where
    it would, it denies.
    """
    if facts.outside is not None:
        return Verdict("deny", facts.outside)
    verdict = _by_rule(facts, rules) or _by_profile(facts, profile, writes_granted)
    if verdict.action == "ask" and profile == "unattended":
        return Verdict("deny", f"{verdict.reason}, and the profile 'unattended' never asks")
    return verdict


def _by_rule(facts: CallFacts, rules: Sequence[Rule]) -> Verdict | None:
    mine = [rule for rule in rules if fnmatchcase(facts.tool, rule.tool)]
    for action in ("deny", "ask"):
        for rule in mine:
            if rule.action != action:
                continue
            if rule.match == "*" or any(fnmatchcase(reading, rule.match) for reading in facts.readings):
                return Verdict(action, f"the rule {rule}")
    allowing = [rule for rule in mine if rule.action == "allow"]
    for rule in allowing:
        if rule.match == "*":
            return Verdict("allow", f"the rule {rule}")
    if allowing and facts.plain and facts.parts:
        covers = url_or_host_matches if facts.effect == "network" else fnmatchcase
        found = [
            next((rule for rule in allowing if any(covers(name, rule.match) for name in part)), None)
            for part in facts.parts
        ]
        if all(rule is not None for rule in found):
            return Verdict("allow", f"the rule {found[0]}")
    return None


def hidden_by(rules: Sequence[Rule], tool: str, path: Path, cwd: Path, actions: Container[str]) -> bool:
    """Whether a tool that walks must keep back a path that its call does not name.

    The rules are those for this tool and those for `read_file`: what may not be read may not be found in a search. A
    rule for every path (`*`) is one on the call itself. Pure.
    """
    names = _names(path, cwd)
    return any(
        rule.action in actions
        and rule.match != "*"
        and (fnmatchcase(tool, rule.tool) or fnmatchcase("read_file", rule.tool))
        and any(fnmatchcase(name, rule.match) for name in names)
        for rule in rules
    )


def path_filter(rules: Sequence[Rule], cwd: Path) -> PathFilter:
    """The rules as the service that walking tools ask: what would be denied or asked about one by one is left out."""
    cwd = Path(os.path.realpath(cwd))
    mine = tuple(rule for rule in rules if rule.action != "allow" and rule.match != "*")
    if not mine:
        return PathFilter()
    return PathFilter(
        hides=lambda tool, path: hidden_by(mine, tool, path, cwd, ("deny", "ask")),
        denies=lambda tool, path: hidden_by(mine, tool, path, cwd, ("deny",)),
    )


def address_filter(rules: Sequence[Rule]) -> AddressFilter:
    """The rules as the service that tools ask which follow redirects: what would be denied or asked about is not asked for."""
    mine = tuple(rule for rule in rules if rule.action != "allow" and rule.match != "*")

    def refuses(tool: str, url: str) -> str:
        address = address_of_url(url)
        names = {url, *(address[:2] if address is not None else ())}
        for rule in mine:
            if fnmatchcase(tool, rule.tool) and any(fnmatchcase(name, rule.match) for name in names):
                return f"the rule {rule}"
        return ""

    return AddressFilter(refuses) if mine else AddressFilter()


def _by_profile(facts: CallFacts, profile: Profile, writes_granted: bool) -> Verdict:
    name = f"the profile {profile!r}"
    if facts.effect == "read":
        return Verdict("allow", f"{name}: reads in scope are free")
    if profile == "read-only":
        return Verdict("deny", f"{name} allows nothing but reads in scope")
    if facts.effect == "write":
        if profile != "safe":
            return Verdict("allow", f"{name}: writes in scope are free")
        if writes_granted:
            return Verdict("allow", "writes in scope were approved for this run")
        return Verdict("ask", f"{name}: the first write of a run asks", "run")
    return Verdict("ask", f"{name}: each {facts.effect} call asks")


def canonical(arguments: dict[str, Any]) -> str:
    """Arguments as JSON text that does not depend on the order of keys."""
    return clean(json.dumps(arguments, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str))


def facts_of(ctx: CallContext, scope: PathScope | None) -> CallFacts:
    """The facts of a call. Blocks: paths are resolved on the disk."""
    tool, arguments = ctx.tool, ctx.arguments
    if tool.effect in ("read", "write"):
        if paths := path_arguments(arguments, tool.effect, tool.resource):
            return _file_facts(tool.name, tool.effect, paths, scope)
    elif tool.effect == "process" and isinstance(command := arguments.get("command"), str):
        commands = split(command)
        parts = tuple(frozenset({part}) for part in commands.parts)
        return CallFacts(tool.name, tool.effect, readings(command), parts, commands.plain)
    elif tool.effect == "network" and (address := address_of(arguments)):
        names = frozenset(name for name in (address.host, address.url) if name)
        raw = {value for key in ("url", "host") if isinstance(value := arguments.get(key), str)}
        return CallFacts(tool.name, tool.effect, names | raw, (names,), address.plain)
    text = frozenset({canonical(arguments)})
    return CallFacts(tool.name, tool.effect, text, (text,))


def path_arguments(arguments: dict[str, Any], effect: Effect, resource: str | None = None) -> list[str]:
    """The paths that a call of a file tool names. Artifacts of the pod are no paths, and only read."""
    found: list[str] = []
    for key in dict.fromkeys((*PATH_ARGUMENTS, *((resource,) if resource else ()))):
        value: Any = arguments.get(key)
        values: list[Any] = [*value] if isinstance(value, list | tuple) else [value]
        found.extend(str(path) for path in values if isinstance(path, str | Path) and str(path))
    return [path for path in found if effect != "read" or not path.startswith(ARTIFACT)]


def _file_facts(tool: str, effect: Effect, paths: Sequence[str], scope: PathScope | None) -> CallFacts:
    seen: set[str] = set(paths)
    parts: list[frozenset[str]] = []
    outside: str | None = None
    for path in paths:
        if scope is None:
            parts.append(frozenset({path}))
            continue
        seen |= _names(Path(os.path.normpath(scope.cwd / home_expanded(path))), scope.cwd)
        try:
            real = _names(scope.resolve(path, "write" if effect == "write" else "read"), scope.cwd)
        except ToolFault as e:
            outside = str(e)
            continue
        seen |= real
        parts.append(real)
    return CallFacts(tool, effect, frozenset(seen), tuple(parts), True, outside)


def _names(path: Path, cwd: Path) -> frozenset[str]:
    names = {str(path)}
    if path.is_relative_to(cwd):
        names.add(path.relative_to(cwd).as_posix())
    return frozenset(names)


def describe(tool: str, facts: CallFacts, arguments: dict[str, Any]) -> str:
    """A call in one line for a human, at most 400 characters."""
    command = arguments.get("command")
    if facts.effect == "process" and isinstance(command, str):
        text = f"{tool}: {command}"
    elif facts.effect in ("read", "write") and facts.parts and canonical(arguments) not in facts.parts[0]:
        text = f"{tool}: {', '.join(min(part, key=len) for part in facts.parts)}"
    else:
        text = f"{tool}: {arguments.get('url') or canonical(arguments)}"
    return text if len(text) <= SUMMARY_CHARS else f"{text[: SUMMARY_CHARS - 1]}…"


def question_of(
    ctx: CallContext, facts: CallFacts, verdict: Verdict, digest: str, scope: PathScope | None
) -> ApprovalAsked:
    """What a human is asked about a call. Blocks: the file that a write changes is read."""
    diff = None
    if facts.effect == "write":
        diff = write_preview(ctx.tool, ctx.arguments, _current(ctx, facts, scope))
    return ApprovalAsked(
        id=uuid7(),
        call_id=ctx.call.call_id,
        tool=ctx.tool.name,
        arguments_sha256=digest,
        summary=describe(ctx.tool.name, facts, ctx.arguments),
        diff=diff,
        effect=facts.effect,
        reason=verdict.reason,
        scope=verdict.scope,
    )


def _current(ctx: CallContext, facts: CallFacts, scope: PathScope | None) -> bytes | None:
    """What the file of a write holds now, nothing where there is none; None where that is not looked at."""
    path = ctx.arguments.get(ctx.tool.resource or "path")
    if scope is None or facts.outside is not None or not isinstance(path, str):
        return None
    try:
        real = scope.resolve(path, "write")
        if not real.exists():
            return b""
        if not real.is_file() or real.stat().st_size > SHOWN_BYTES:
            return None
        return real.read_bytes()
    except (OSError, ToolFault):
        return None


@dataclass(eq=False)
class Permissions(Interceptor):
    """Asks, allows or denies each call before it runs.

    `headless` says that nobody is there to be asked now: a question then pauses the run durably, or denies, by
    `when_headless`. An approval is bound to the very call: its id, its tool and the hash of its arguments. Once
    answered it holds for that call, through restarts, until its result is on record; an identical later call asks again
    (case B041). A question stays asked until it is answered, whatever settings come later. Only an approval of scope
    `run` reaches further: to writes in scope, or to calls of the same tool with the same arguments.
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
        touches_disk = (
            self.scope is not None
            and ctx.tool.effect in ("read", "write")
            and bool(path_arguments(ctx.arguments, ctx.tool.effect, ctx.tool.resource))
        )
        if touches_disk or len(ctx.call.arguments) > LONG_COMMAND:
            facts, verdict = await to_thread.run_sync(self._judge, ctx)
        else:
            facts, verdict = self._judge(ctx)
        digest = sha256(canonical(ctx.arguments))
        asked = self._asked.get(ctx.call.call_id)
        if asked is not None and (asked.tool, asked.arguments_sha256) != (ctx.tool.name, digest):
            asked = None
        answer = self._answers.get(asked.id) if asked is not None else None
        if answer is not None and not answer.approved:
            # A no to this very call outweighs whatever was granted elsewhere.
            return self._refused(ctx, facts, answer)
        if asked is not None and answer is None:
            # Settings that came after the question are no answer to it.
            return Pause(asked.id)
        if verdict.action == "deny":
            return self._deny(ctx, facts, verdict.reason)
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


def _denied(ctx: CallContext, facts: CallFacts, reason: str) -> PermissionDenied:
    summary = describe(ctx.tool.name, facts, ctx.arguments)
    return PermissionDenied(call_id=ctx.call.call_id, tool=ctx.tool.name, reason=reason, summary=summary)


def _key(tool: str, digest: str) -> str:
    return f"{tool} {digest}"
