"""Paths of any spelling, in the code that decides; and rules on paths, in tools that walk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from interceptors.deciding import Rule, decide, path_filter
from interceptors.facts import Reach, facts_of
from interceptors.permissions import Permissions
from worker.builtin import matchers
from worker.builtin.path_filter import PathFilter
from worker.builtin.registry import builtin_tool
from worker.builtin.scope import Scope
from worker.history import History
from worker.interceptor import Allow, CallContext, Deny, Pause
from worker.items import ToolOutput, make_call
from worker.tools import Tool, ToolContext, ToolFault, tool

pytestmark = pytest.mark.anyio

STRANGE = {
    "an unknown user's home": "~nouser/x",
    "an office lock file": "~$report.docx",
    "tildes": "~" * 50,
    "NUL": "a\0b",
    "NUL alone": "\0",
    "half a character": "a\ud800b",
    "a byte that is not UTF-8": "a\udcffb",
    "a long name": "x" * 5_000,
    "a long path": "x/" * 50_000,
    "a very long path": "../" * 100_000,
    "blanks": " ",
    "a line end": "a\nb",
    "a bracket": "[",
}


def context(name: str, effect: Any, arguments: dict[str, Any]) -> CallContext:
    tool = Tool(name=name, description="", parameters={}, call=lambda a, c: None, effect=effect)
    return CallContext(make_call("c1", name, "{}"), tool, arguments, History(), "tag")


@pytest.mark.parametrize("effect", ["read", "write"])
@pytest.mark.parametrize("what", STRANGE)
@pytest.mark.parametrize("home", ["/home/x", None])
async def test_no_path_makes_the_permission_code_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: Any, what: str, home: str | None
) -> None:
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    arguments = {"path": STRANGE[what], "paths": [STRANGE[what], "~nouser"], "content": "x"}
    for scope in (Scope(tmp_path, write=["."]), Reach(lambda p: True, lambda p: True, tmp_path), None):
        permissions = Permissions(profile="safe", rules=[Rule("*", "~*", "ask"), Rule("*", "[a", "deny")], scope=scope)
        decision = await permissions.before_tool(context("any", effect, arguments))
        assert isinstance(decision, Allow | Deny | Pause)


@pytest.mark.parametrize("what", STRANGE)
@pytest.mark.parametrize("tool", ["read_file", "list_files", "search_text", "find_files", "write_file"])
async def test_no_path_makes_a_file_tool_raise_more_than_a_fault(tmp_path: Path, what: str, tool: str) -> None:
    """A fault is what the model gets as an error result; strange names may be written, but lie in the folder."""
    extra = {"search_text": {"pattern": "x"}, "find_files": {"pattern": "*"}, "write_file": {"content": "x"}}
    try:
        await run(tmp_path, tool, [], path=STRANGE[what], **extra.get(tool, {}))
    except ToolFault as e:
        assert str(e)
    else:
        assert tool == "write_file" and len(os.listdir(tmp_path)) == 1


def test_a_name_that_begins_with_a_tilde_is_a_name(tmp_path: Path) -> None:
    facts = facts_of(context("read_file", "read", {"path": "~$report.docx"}), Scope(tmp_path))
    assert facts.outside is None
    assert "~$report.docx" in facts.readings


async def test_a_long_command_is_looked_at_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on while it is."""
    from interceptors import permissions as module

    names: list[str] = []
    real = module.facts_of

    def noted(ctx: CallContext, scope: Any) -> Any:
        import threading

        names.append(threading.current_thread().name)
        return real(ctx, scope)

    monkeypatch.setattr(module, "facts_of", noted)
    for command in ("true", "echo " + "a" * 100_000):
        arguments = {"command": command}
        ctx = context("shell", "process", arguments)
        ctx = CallContext(make_call("c1", "shell", f'{{"command": "{command}"}}'), ctx.tool, arguments, History(), "t")
        await Permissions(profile="unattended").before_tool(ctx)
    assert names[0] == "MainThread"
    assert names[1] != "MainThread"


# -- tools that walk -------------------------------------------------------------------------------------------------


@dataclass
class Pod:
    """Just a folder."""

    root: Path

    def file(self, path: str, text: str = "needle\n") -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


async def run(root: Path, name: str, rules: Sequence[Rule], **arguments: Any) -> ToolOutput:
    scope, filter = Scope(root, write=["."]), path_filter(rules, root)
    from worker.builtin.seen import SeenFiles

    services = {Scope: scope, PathFilter: filter, SeenFiles: SeenFiles()}
    made = builtin_tool(name)
    assert made.check(dict(arguments)) is None
    return await made.run(arguments, ToolContext("c1", name, root, services=services))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    pod = Pod(tmp_path)
    for path in ("open.txt", ".env", "a.key", "deep/b.key", "sub/one.txt", "sub/deep/two.txt"):
        pod.file(path)
    os.symlink(".env", tmp_path / "harmless")
    return tmp_path


RULES = {
    ".env": ([".env"], 1),
    "*.key": (["a.key", "b.key"], 2),
    "sub/*": (["one.txt", "two.txt"], 2),
}
BOTH = pytest.mark.parametrize("program", ["ripgrep", "python"])


def text_of(output: ToolOutput) -> str:
    return f"{output.summary}\n{output.content}"


@BOTH
@pytest.mark.parametrize("action", ["deny", "ask"])
@pytest.mark.parametrize("tool", ["*", "search_text", "read_file"])
@pytest.mark.parametrize("match", RULES)
async def test_a_search_keeps_back_what_a_rule_denies(
    tree: Path, monkeypatch: pytest.MonkeyPatch, program: str, action: Any, tool: str, match: str
) -> None:
    if program == "python":
        monkeypatch.setattr(matchers, "ripgrep", lambda: None)
    elif matchers.ripgrep() is None:
        pytest.skip("no ripgrep here")
    rules = [Rule(tool, match, action)]
    output = await run(tree, "search_text", rules, pattern="needle", ignored=True)
    hidden, count = RULES[match]
    assert "open.txt" in text_of(output)
    assert not [name for name in hidden if name in text_of(output)]
    assert "denied path" in output.summary
    assert len((output.content or "").splitlines()) == 6 - count


@pytest.mark.parametrize("tool", ["*", "find_files", "read_file"])
@pytest.mark.parametrize("match", RULES)
async def test_finding_and_listing_keep_back_the_names(tree: Path, tool: str, match: str) -> None:
    hidden, count = RULES[match]
    output = await run(tree, "find_files", [Rule(tool, match)], pattern="*", ignored=True)
    assert not [name for name in hidden if name in text_of(output)]
    assert f"{count} denied path" in output.summary
    for folder in (".", "deep", "sub"):
        rule = Rule("list_files" if tool == "find_files" else tool, match)
        assert not [name for name in hidden if name in text_of(await run(tree, "list_files", [rule], path=folder))]


async def test_a_link_to_what_is_denied_is_not_listed_with_its_target(tree: Path) -> None:
    assert "harmless -> .env" in text_of(await run(tree, "list_files", []))
    assert "harmless" not in text_of(await run(tree, "list_files", [Rule("*", ".env")]))


async def test_a_rule_for_another_tool_hides_nothing(tree: Path) -> None:
    output = await run(tree, "search_text", [Rule("write_file", ".env"), Rule("*", ".env", "allow")], pattern="needle")
    assert ".env" in text_of(output)


@pytest.mark.parametrize("tool", ["search_text", "find_files", "list_files"])
async def test_a_denied_path_that_the_call_names_is_not_opened(tree: Path, tool: str) -> None:
    more = {"search_text": {"pattern": "needle"}, "find_files": {"pattern": "*"}}.get(tool, {})
    path, match = (".env", ".env") if tool == "search_text" else ("sub/deep", "sub/*")
    with pytest.raises(ToolFault, match="permission rule denies"):
        await run(tree, tool, [Rule("read_file", match)], path=path, **more)


async def test_a_denied_folder_is_not_gone_into(tree: Path) -> None:
    output = await run(tree, "find_files", [Rule("*", "sub")], pattern="*")
    assert "one.txt" not in text_of(output)


async def test_a_missing_file_is_not_answered_with_a_denied_name(tree: Path) -> None:
    scope = Scope(tree)
    with pytest.raises(ToolFault, match=r"\.env\?"):
        await anyio.to_thread.run_sync(scope.open_read, "env")
    scope.hidden = lambda path: path_filter([Rule("*", ".env")], tree).hides("read_file", path)
    with pytest.raises(ToolFault) as raised:
        await anyio.to_thread.run_sync(scope.open_read, "env")
    assert ".env" not in str(raised.value)


# -- tools of the user's own -----------------------------------------------------------------------------------------


class Copy(BaseModel):
    origin: Path
    note: str = ""


@tool(effect="write")
def copy_all(copies: list[Copy], into: Path | None = None) -> str:
    """Copies files."""
    return ""


@tool(effect="network")
def download(url: str, to: Path) -> str:
    """Downloads a file."""
    return ""


@tool(effect="process")
def build(target: str, logs: list[Path] = []) -> str:  # noqa: B006
    """Builds."""
    return ""


@tool(effect="read")
def compare(paths: list[list[str]] = [], named: dict[str, Path] | None = None) -> str:  # noqa: B006
    """Compares files."""
    return ""


@pytest.mark.parametrize(
    ("made", "arguments"),
    [
        (compare, {"paths": [["a"], ["b", "/etc/passwd"]]}),
        (compare, {"paths": [["artifact:x/../../etc/passwd"]]}),
        (compare, {"named": {"one": "a", "other": "/etc/passwd"}}),
        (copy_all, {"copies": [{"origin": "a"}, {"origin": "/etc/passwd"}]}),
        (copy_all, {"copies": [], "into": "../elsewhere"}),
        (copy_all, {"copies": [{"origin": "a", "path": "/etc/passwd"}]}),
        (download, {"url": "https://docs.test/", "to": "/etc/cron.d/x"}),
        (build, {"target": "all", "logs": ["a", "/var/log/x"]}),
    ],
)
def test_a_path_of_a_tool_of_the_users_own_is_in_scope_wherever_it_stands_and_whatever_a_rule_allows(
    made: Tool, arguments: dict[str, Any], tmp_path: Path
) -> None:
    scope = Scope(tmp_path, write=["."])
    ctx = CallContext(make_call("c1", made.name, "{}"), made, arguments, History(), "tag")
    verdict = decide(facts_of(ctx, scope), "workspace-write", [Rule("*", "*", "allow")])
    assert verdict.action == "deny" and "scope" in verdict.reason


def test_arguments_that_are_no_paths_are_not_taken_for_some(tmp_path: Path) -> None:
    ctx = CallContext(make_call("c1", "build", "{}"), build, {"target": "/all", "logs": ["a"]}, History(), "tag")
    assert facts_of(ctx, Scope(tmp_path)).outside is None
    ctx = CallContext(
        make_call("c1", "copy_all", "{}"), copy_all, {"copies": [{"origin": "a", "note": "/x"}]}, History(), "tag"
    )
    assert facts_of(ctx, Scope(tmp_path, write=["."])).outside is None
