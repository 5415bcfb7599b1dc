"""With the profile `unattended` a run never waits for anybody, whatever tools are called and whatever rules ask."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from interceptors.approvals import ApprovalAsked, PermissionDenied
from pod.setup import POD_TOOLS
from tests.security.redteam_rig import World
from worker.builtin.registry import BUILTIN
from worker.testing.provider_server import Call
from worker.tools import Tool, tool

pytestmark = pytest.mark.anyio

CALLS: dict[str, dict[str, Any]] = {
    "read_file": {"path": "own.txt"}, "list_files": {}, "find_files": {"pattern": "*"}, "search_text": {"pattern": "own"},
    "write_file": {"path": "new.txt", "content": "x"}, "append_file": {"path": "new.txt", "content": "x"},
    "edit_file": {"path": "own.txt", "old": "own", "new": "other"}, "shell": {"command": "touch ran"}, "jobs": {"action": "list"},
    "tasks": {"add": ["a"]}, "context": {"action": "list"}, "fetch_url": {"url": "https://docs.test/"}, "new_context": {},
    "session_history": {"action": "list"}, "own_read": {}, "own_write": {}, "own_process": {}, "own_network": {"url": "https://docs.test/"},
}  # fmt: skip
"""A call of each tool, those of the user's own by effect among them."""

RULES: dict[str, list[dict[str, str]]] = {
    "no rule": [],
    "ask about everything": [{"tool": "*", "action": "ask"}],
    "ask about each command": [{"tool": "shell", "match": "touch *", "action": "ask"}],
    "ask about each path": [{"tool": "*_file", "match": "*.txt", "action": "ask"}],
    "ask beside allow": [{"tool": "*", "action": "allow"}, {"tool": "*", "action": "ask"}],
    "ask behind allow": [{"tool": "*", "action": "ask"}, {"tool": "*", "match": "x*", "action": "allow"}],
    "ask about hosts": [{"tool": "*", "match": "docs.test", "action": "ask"}],
    "allow everything": [{"tool": "*", "action": "allow"}],
}


def own_tools(ran: list[str]) -> list[Tool]:
    def made(effect: Any) -> Tool:
        @tool(name=f"own_{effect}", effect=effect)
        async def act(url: str = "") -> str:
            """Acts."""
            ran.append(effect)
            return "done"

        return act

    return [made(effect) for effect in ("read", "write", "process", "network")]


def tables(profile: str, rules: list[dict[str, str]], headless: str) -> dict[str, dict[str, Any]]:
    return {
        "tools": {"enable": (*BUILTIN, *POD_TOOLS), "fetch_url": {"hosts": ["docs.test"]}},
        "permissions": {"profile": profile, "when_headless": headless, "rules": rules},
        "scope": {"write": ["."]},
    }  # fmt: skip


def test_each_built_in_tool_is_called() -> None:
    assert {*BUILTIN, *POD_TOOLS} <= {*CALLS}


@pytest.mark.parametrize("headless", ["pause", "deny"])
@pytest.mark.parametrize("rules", RULES)
async def test_b122_an_unattended_run_ends_by_itself(rules: str, headless: str, world: World) -> None:
    """Nothing is asked, each refusal is told to the model and counted, and what rules allow runs."""
    ran: list[str] = []
    with anyio.fail_after(60):
        struck = await world.strike(
            *[Call(name, dict(arguments)) for name, arguments in CALLS.items()],
            tables=tables("unattended", RULES[rules], headless), tools=own_tools(ran),
        )  # fmt: skip
    assert (struck.result.status, struck.result.exit_code) == ("finished", 0)
    assert len(struck.results) == len(CALLS) and not struck.of(ApprovalAsked)
    denied = {item.name for item in struck.results if item.status == "denied"}
    assert struck.result.denials == len(denied) == len(struck.of(PermissionDenied))
    gated = {"shell", "jobs", "fetch_url", "own_process", "own_network"}
    if rules == "allow everything":
        assert not denied and {"process", "network"} <= {*ran}
    else:
        assert gated <= denied and not {"process", "network"} & {*ran} and not (world.work / "ran").exists()
    if rules == "no rule":
        assert denied == gated


@pytest.mark.parametrize(
    "name", ["shell", "jobs", "fetch_url", "own_process", "own_network", "write_file", "own_write"]
)
async def test_the_same_call_waits_where_a_human_is_to_be_asked(name: str, world: World) -> None:
    """The negative control: under `safe` with `pause` the run waits, with exit code 3."""
    ran: list[str] = []
    struck = await world.strike(
        Call(name, dict(CALLS[name])), tables=tables("safe", [], "pause"), tools=own_tools(ran), name="waits"
    )
    assert (struck.result.status, struck.result.exit_code) == ("paused", 3)
    assert [asked.tool for asked in struck.of(ApprovalAsked)] == [name] and not ran
