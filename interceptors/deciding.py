"""Whether a call is allowed, asked about or denied: a pure function of its facts, the settings, and what a human granted.

All tools are decided here: built-in ones, those of the user's own, and what a compact worker reads.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypeAlias

from interceptors.approvals import ApprovalScope
from interceptors.facts import CallFacts, names_of
from worker.addresses import AddressFilter, address_of_url, url_or_host_matches
from worker.builtin.path_filter import PathFilter
from worker.tools import Effect

Profile: TypeAlias = Literal["safe", "workspace-write", "read-only", "unattended"]
Action: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: `tool` is a glob on the tool's name, `match` one on the command, the path, or the host or URL."""

    tool: str
    match: str = "*"
    action: Action = "deny"

    def __str__(self) -> str:
        return f'{{ tool = "{self.tool}", match = "{self.match}", action = "{self.action}" }}'


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
    ruled = _by_rule(facts, rules)
    if ruled is None:
        verdict = _by_profile(facts, profile, writes_granted)
        return verdict if verdict.action == "allow" else replace(verdict, reason=verdict.reason + _missed(facts, rules))
    if ruled.action == "ask" and profile == "unattended":
        return Verdict("deny", f"{ruled.reason}, and the profile 'unattended' never asks")
    return ruled


def _missed(facts: CallFacts, rules: Sequence[Rule]) -> str:
    """Why rules that allow calls of this tool do not allow this one, to be said behind the verdict; nothing where there are none."""
    if not any(rule.action == "allow" and fnmatchcase(facts.tool, rule.tool) for rule in rules):
        return ""
    if facts.effect == "process" and not facts.plain:
        return " (no rule with a pattern allows a line with a substitution, redirection, group or open quote)"
    if len(facts.parts) > 1:
        return " (no rules allow each part of it)"
    return " (no rule allows it)"


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


def nothing_allowed(
    tool: str, effect: Effect, profile: Profile, rules: Sequence[Rule] = (), *, pattern: bool = False
) -> bool:
    """Whether each call of a tool is denied: by the profile, and no rule allows one or has it asked about. Pure.

    With `pattern`, `tool` stands for all tools whose names match it; a rule about some of them counts.
    """
    facts = CallFacts(tool=tool, effect=effect)
    if _by_profile(facts, profile, writes_granted=False).action != "deny":
        return False
    lets = ("allow",) if profile == "unattended" else ("allow", "ask")
    mine = (rule for rule in rules if rule.action in lets)
    return not any(fnmatchcase(tool, rule.tool) or (pattern and fnmatchcase(rule.tool, tool)) for rule in mine)


def hidden_by(rules: Sequence[Rule], tool: str, path: Path, cwd: Path, actions: Container[str]) -> bool:
    """Whether a tool that walks must keep back a path that its call does not name.

    The rules are those for this tool and those for `read_file`: what may not be read may not be found in a search. A
    rule for every path (`*`) is one on the call itself. Pure.
    """
    names = names_of(path, cwd)
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
    if profile == "unattended":
        return Verdict("deny", f"{name}: a {facts.effect} call needs a rule that allows it")
    return Verdict("ask", f"{name}: each {facts.effect} call asks")
