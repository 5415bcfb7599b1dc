"""What is allowed, asked and denied: profiles and rules, on plain facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interceptors.deciding import Rule, decide
from interceptors.facts import CallFacts, Reach, facts_of, paths_of
from worker.addresses import Address, address_of
from worker.builtin.registry import builtin_tool
from worker.builtin.scope import Scope
from worker.history import History
from worker.interceptor import CallContext
from worker.items import make_call
from worker.tools import Tool


def context(name: str, effect: Any, arguments: dict[str, Any], resource: str | None = None) -> CallContext:
    tool = Tool(name=name, description="", parameters={}, call=lambda a, c: None, effect=effect, resource=resource)
    return CallContext(make_call("c1", name, "{}"), tool, arguments, History(), "tag")


def act(
    name: str, effect: Any, arguments: dict[str, Any], rules: Any = (), profile: Any = "safe", scope: Any = None
) -> str:
    return decide(facts_of(context(name, effect, arguments), scope), profile, rules).action


EFFECTS = ("read", "write", "process", "network")
TABLE = {
    "safe": ("allow", "ask", "ask", "ask"),
    "workspace-write": ("allow", "allow", "ask", "ask"),
    "read-only": ("allow", "deny", "deny", "deny"),
    "unattended": ("allow", "allow", "deny", "deny"),
}


@pytest.mark.parametrize("profile", list(TABLE))
def test_each_profile_decides_on_each_effect(profile: Any) -> None:
    found = tuple(decide(CallFacts("t", effect), profile).action for effect in EFFECTS)  # type: ignore[arg-type]
    assert found == TABLE[profile]


def test_the_first_write_of_a_run_asks_and_then_covers_the_run() -> None:
    first = decide(CallFacts("t", "write"), "safe")
    assert (first.action, first.scope) == ("ask", "run")
    assert decide(CallFacts("t", "write"), "safe", writes_granted=True).action == "allow"
    assert decide(CallFacts("t", "process"), "safe", writes_granted=True).action == "ask"
    assert decide(CallFacts("t", "process"), "safe").scope == "once"


@pytest.mark.parametrize("profile", list(TABLE))
@pytest.mark.parametrize("effect", ["read", "write"])
def test_out_of_scope_is_denied_whatever_rules_and_grants_say(profile: Any, effect: Any) -> None:
    facts = CallFacts("t", effect, outside="outside the scope: /etc")
    verdict = decide(facts, profile, [Rule("*", "*", "allow")], writes_granted=True)
    assert (verdict.action, verdict.reason) == ("deny", "outside the scope: /etc")


def test_deny_wins_over_ask_and_ask_over_allow_in_any_order() -> None:
    rules = [Rule("shell", "git *", "allow"), Rule("shell", "git push*", "ask"), Rule("shell", "*--force*", "deny")]
    for order in (rules, rules[::-1]):
        assert act("shell", "process", {"command": "git status"}, order) == "allow"
        assert act("shell", "process", {"command": "git push"}, order) == "ask"
        assert act("shell", "process", {"command": "git push --force"}, order) == "deny"
        assert act("shell", "process", {"command": "make"}, order) == "ask"


def test_a_verdict_names_its_rule() -> None:
    verdict = decide(
        facts_of(context("shell", "process", {"command": "git push"}), None), "safe", [Rule("sh*", "git push*")]
    )
    assert verdict.reason == 'the rule { tool = "sh*", match = "git push*", action = "deny" }'


def test_rules_come_before_the_profile() -> None:
    assert act("shell", "process", {"command": "make"}, [Rule("shell", "make", "allow")], "read-only") == "allow"
    assert act("read_file", "read", {"path": "a"}, [Rule("read_*", "*", "deny")]) == "deny"


def test_the_unattended_profile_never_asks() -> None:
    assert act("edit_file", "write", {"path": "a"}, [Rule("edit_file", "*", "ask")], "unattended") == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf x",
        "git status && rm x",
        "git status\nrm x",
        "git status $(rm x)",
        "git status > x",
        "git status | sh",
    ],
)
def test_an_allowed_command_does_not_carry_another(command: str) -> None:
    assert act("shell", "process", {"command": command}, [Rule("shell", "git status*", "allow")]) == "ask"


def test_a_line_of_allowed_commands_is_allowed() -> None:
    rules = [Rule("shell", "git status*", "allow"), Rule("shell", "make *", "allow")]
    assert act("shell", "process", {"command": "git status && make test"}, rules) == "allow"


@pytest.mark.parametrize("command", ["git push", "cd x && git push -f", "X=1 git push", "echo $(git push)"])
def test_a_forbidden_command_is_found_inside_a_line(command: str) -> None:
    assert act("shell", "process", {"command": command}, [Rule("shell", "git push*")], "workspace-write") == "deny"


def test_paths_are_matched_as_they_resolve(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("k")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "link").symlink_to(tmp_path / "secrets")
    scope = Scope(tmp_path, read=["."], write=["."])
    deny, allow = [Rule("*", "secrets/*", "deny")], [Rule("edit_file", "src/*", "allow")]
    for path in (
        "secrets/key",
        "./secrets/key",
        "src/../secrets/key",
        "src/link/key",
        str(tmp_path / "secrets" / "key"),
    ):
        assert act("read_file", "read", {"path": path}, deny, scope=scope) == "deny", path
        assert act("edit_file", "write", {"path": path}, allow, scope=scope) == "ask", path
    assert act("edit_file", "write", {"path": "src/a.py"}, allow, scope=scope) == "allow"
    assert act("read_file", "read", {"path": "src/a.py"}, deny, scope=scope) == "allow"


def test_paths_out_of_scope_are_denied_after_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    scope = Scope(tmp_path / "in", read=["."], write=[])
    assert act("read_file", "read", {"path": "a"}, scope=scope) == "allow"
    assert act("read_file", "read", {"path": "link/a"}, scope=scope) == "deny"
    assert act("write_file", "write", {"path": "a"}, scope=scope, profile="workspace-write") == "deny"
    assert act("copy", "write", {"source": "a", "destination": "/tmp/x"}, scope=scope) == "deny"


def test_two_predicates_serve_as_a_scope(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    reach = Reach(lambda path: Path(path).is_relative_to(root), lambda path: False, cwd=root)
    assert act("read_file", "read", {"path": "a"}, scope=reach) == "allow"
    assert act("read_file", "read", {"path": "../a"}, scope=reach) == "deny"
    assert act("write_file", "write", {"path": "a"}, scope=reach) == "deny"


def test_artifacts_are_no_paths_to_a_tool_that_reads_them_and_to_no_other() -> None:
    """A tool of the user's own opens `artifact:x/../..` as the path that it is."""
    reading, writing = (context("t", effect, {}, "target").tool for effect in ("read", "write"))
    assert paths_of(builtin_tool("read_file"), {"path": "artifact:x.txt"}) == []
    assert paths_of(reading, {"path": "artifact:x.txt"}) == ["artifact:x.txt"]
    assert paths_of(writing, {"path": "artifact:x.txt"}) == ["artifact:x.txt"]
    assert paths_of(reading, {"target": "a", "paths": ["b", "c"]}) == ["a", "b", "c"]


def test_network_rules_match_the_host_or_the_url() -> None:
    rules = [Rule("fetch_url", "*.example.org", "allow"), Rule("fetch_url", "https://docs.test/api/*", "allow")]
    assert act("fetch_url", "network", {"url": "https://WWW.Example.org/x"}, rules) == "allow"
    assert act("fetch_url", "network", {"url": "https://docs.test/api/v1"}, rules) == "allow"
    assert act("fetch_url", "network", {"url": "https://docs.test/other"}, rules) == "ask"
    assert act("fetch_url", "network", {"url": "https://evil.test/?www.example.org"}, rules) == "ask"
    assert act("fetch_url", "network", {"url": "https://docs.test/api/x@evil.test/"}, rules) == "allow"
    assert act("fetch_url", "network", {"url": "https://docs.test@evil.test/api/"}, rules) == "ask"
    assert act("fetch_url", "network", {"url": "https://docs.test/api/%2e%2e/other"}, rules) == "ask"
    wide = [Rule("fetch_url", "https://*.docs.test/*", "allow")]
    assert act("fetch_url", "network", {"url": "https://a.docs.test/x"}, wide) == "allow"
    assert act("fetch_url", "network", {"url": "https://evil.test/a.docs.test/x"}, wide) == "ask"
    assert act("fetch_url", "network", {"url": "https://A.evil.test/x"}, [Rule("fetch_url", "*.evil.test")]) == "deny"


def test_an_allowed_command_may_name_an_address() -> None:
    assert act("shell", "process", {"command": "curl https://x.test"}, [Rule("shell", "curl *", "allow")]) == "allow"


def test_a_rule_without_a_match_is_about_every_call() -> None:
    assert act("shell", "process", {"command": ""}, [Rule("shell")], "workspace-write") == "deny"


def test_addresses_leave_user_and_password_out() -> None:
    found = address_of({"url": "https://me:secret@Host.test:8443/p?q=1"})
    assert found == Address("host.test", "https://host.test:8443/p?q=1")
    assert address_of({"url": "http://[::1"}) is None
    assert address_of({"host": "A.test"}) == Address("a.test")


def test_other_arguments_are_matched_as_canonical_json() -> None:
    rules = [Rule("deploy", '*"env":"prod"*', "deny")]
    assert act("deploy", "network", {"env": "prod", "a": 1}, rules) == "deny"
    assert act("deploy", "network", {"env": "test", "a": 1}, rules) == "ask"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("git log && rm x", "no rules allow each part of it"),
        ("git log > all.txt", "no rule with a pattern allows a line with"),
        ("make", "no rule allows it"),
    ],
)
@pytest.mark.parametrize("profile", ["safe", "unattended"])
def test_a_call_that_no_rule_allows_whole_is_told_why(command: str, why: str, profile: Any) -> None:
    facts = facts_of(context("shell", "process", {"command": command}), None)
    assert why in decide(facts, profile, [Rule("shell", "git *", "allow")]).reason
    assert "no rule" not in decide(facts, profile, [Rule("other", "*", "allow")]).reason


def test_unattended_says_what_a_denied_call_needs() -> None:
    verdict = decide(CallFacts("t", "network"), "unattended")
    assert verdict.reason == "the profile 'unattended': a network call needs a rule that allows it"
