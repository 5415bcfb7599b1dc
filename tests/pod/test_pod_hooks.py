"""Hooks of a pod: what they are asked, what their answers do, and what becomes of them when something goes wrong."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from interceptors.approvals import PermissionDenied
from pod import Block, GoOn, Hook, Manifest, ManifestError, Pod, RunResult, UsageProblem, load_manifest
from pod.cli.main import main as pod_main
from pod.hooks import PostToolUse, PreToolUse, RunStart, Stop
from pod.log import entries as e
from tests.pod.pod_rig import Agent, Counted, Rig, caller, compacting, contexts, manifest
from worker.builtin.process_table import with_environment
from worker.records import Warned
from worker.testing import call, say

pytestmark = pytest.mark.anyio


def program(rig: Rig, text: str, name: str = "hook.py") -> list[str]:
    """A hook as a program in Python; `asked` is its input."""
    rig.file(name, f"import json, os, sys, time\nasked = json.load(sys.stdin)\n{text}\n")
    return [sys.executable, name]


def hooked(*hooks: dict[str, Any], **sections: Any) -> Manifest:
    return manifest(hooks=list(hooks), **sections)


async def run(
    rig: Rig, made: Manifest, play: Any, *, fetch: Counted | None = None, text: str = "go", **options: Any
) -> RunResult:
    agent = play if isinstance(play, Agent) else Agent(play)
    async with rig.open(agent, made, tools=[(fetch or Counted(10)).tool], **options) as pod:
        return await pod.run(text)


# -- before and after calls ----------------------------------------------------------------------------------------


async def test_a_program_that_exits_with_2_denies_the_call_with_its_standard_error_and_the_agent_goes_on(
    rig: Rig,
) -> None:
    guard = program(rig, "if asked['arguments']['n'] == 1: sys.stderr.write('page 1 is \\x1b[31mclosed'); sys.exit(2)")
    fetch, agent = Counted(10), Agent(caller(2))
    result = await run(rig, hooked({"event": "PreToolUse", "command": guard, "match": "fet*"}), agent, fetch=fetch)
    assert result.status == "finished" and result.denials == 1 and fetch.calls == [2]
    (denied,) = rig.of(PermissionDenied)
    assert denied.reason == "the hook 'hook.py' (PreToolUse) said no: page 1 is closed"
    told = [item.text() for item in agent.requests[1].items if item.type == "tool_result"]
    assert told == [f"fetch was not run: {denied.reason}"]
    assert [(r.event, r.outcome, r.blocked) for r in rig.of(e.HookRan)] == [
        ("PreToolUse", "blocked", True), ("PreToolUse", "passed", False)
    ]  # fmt: skip


async def test_a_program_gets_the_call_as_json_in_the_working_folder_and_none_of_the_runtimes_keys(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-very-secret-value")
    keep = "open('seen.json', 'w').write(json.dumps({'asked': asked, 'keys': [k for k in os.environ if 'API' in k]}))"
    await run(rig, hooked({"event": "PostToolUse", "command": program(rig, keep)}), caller(1))
    seen = json.loads((rig.cwd / "seen.json").read_text())
    asked = seen["asked"]
    assert (asked["event"], asked["tool"], asked["arguments"], asked["status"]) == (
        "PostToolUse",
        "fetch",
        {"n": 1},
        "ok",
    )
    assert asked["pod"] == "p" and asked["cwd"] == str(rig.cwd) and asked["hook"] == "hook.py" and asked["run"]
    assert asked["summary"].startswith("page 1 begins")
    assert seen["keys"] == []


async def test_what_a_hook_is_told_and_what_it_says_holds_no_secret(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-very-secret-value")
    asked: list[PreToolUse] = []

    def hook(given: PreToolUse) -> Block:
        asked.append(given)
        return Block("sk-very-secret-value is " + "in it")

    agent = Agent(lambda request, n: call("fetch", n=1) if n == 1 else say("done"))
    await run(rig, manifest(), agent, hooks=[Hook("PreToolUse", hook)], text="go")
    assert "sk-very" not in json.dumps([r.model_dump(mode="json") for r in rig.of(e.HookRan)])
    assert "sk-very" not in str(agent.requests[-1].items)


async def test_a_hook_never_sees_a_call_that_the_permissions_refuse_and_can_not_allow_one(rig: Rig) -> None:
    asked: list[str] = []

    def hook(given: PreToolUse) -> GoOn:
        asked.append(given.tool)
        return GoOn()

    fetch = Counted(10, effect="network")
    rules = {"profile": "safe", "rules": [{"tool": "fetch", "action": "deny"}]}
    result = await run(rig, manifest(permissions=rules), caller(1), fetch=fetch, hooks=[Hook("PreToolUse", hook)])
    assert asked == [] and fetch.calls == [] and result.denials == 1


async def test_a_hook_is_asked_before_a_human_and_again_before_the_approved_call(rig: Rig) -> None:
    asked: list[int] = []

    def hook(given: PreToolUse) -> Block | None:
        asked.append(given.arguments["n"])
        return Block("not 1") if given.arguments["n"] == 1 else None

    fetch, made = Counted(10, effect="network"), manifest(permissions={"profile": "safe"})
    async with rig.open(Agent(caller(2)), made, tools=[fetch.tool], hooks=[Hook("PreToolUse", hook)]) as pod:
        first = await pod.run("go")
        assert first.status == "paused" and asked == [1, 2] and fetch.calls == []
        again = await pod.resume()
        assert again.status == "paused" and asked == [1, 2], "a question that stands is not asked about anew"
        await pod.approve(first.approvals[0])
        result = await pod.resume()
    assert result.status == "finished" and asked == [1, 2, 2] and fetch.calls == [2]


async def test_context_and_objections_after_a_call_reach_the_model_as_data_once(rig: Rig) -> None:
    def adds(given: PostToolUse) -> GoOn | Block:
        return GoOn(f"page {given.arguments['n']} is old") if given.arguments["n"] == 1 else Block("not formatted")

    fetch, agent = Counted(10), Agent(caller(2))
    await run(rig, manifest(), agent, fetch=fetch, hooks=[Hook("PostToolUse", adds)])
    assert fetch.calls == [1, 2]
    assert contexts(agent.requests[1], "notice") == [
        "The hook 'adds', asked at PostToolUse of fetch, adds: page 1 is old"
    ]
    assert contexts(agent.requests[2], "notice")[1:] == [
        "The hook 'adds', asked at PostToolUse of fetch, said no: not formatted"
    ]


async def test_what_waits_to_be_told_survives_the_end_of_the_process(rig: Rig) -> None:
    """The notice is on record with the hook's answer, so a restart before the next request tells it all the same."""

    running: list[Pod] = []

    def hook(_: PostToolUse) -> GoOn:
        running[0].running.orders.stop = "the process is about to end"
        return GoOn("remember me")

    async with rig.open(Agent(caller(3)), tools=[Counted(10).tool], hooks=[Hook("PostToolUse", hook)]) as pod:
        running.append(pod)
        assert (await pod.run("go")).status == "cancelled"
    assert not any(kind == "context_added" for kind in rig.kinds())
    agent = Agent(lambda request, n: say("done"))
    async with rig.open(agent, tools=[Counted(10).tool], hooks=[Hook("PostToolUse", lambda _: None)]) as pod:
        await pod.resume()
    assert any("remember me" in text for text in contexts(agent.requests[0], "notice"))


# -- no answer -----------------------------------------------------------------------------------------------------

BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "crash": ("sys.exit(3)", {}, "exit code 3"),
    "no json": ("print('fine')", {}, "no JSON"),
    "too slow": ("time.sleep(60)", {"timeout": 0.5}, "no answer within 0.5 s"),
    "killed": ("os.kill(os.getpid(), 9)", {}, "signal 9"),
    "too much": ("print('{' + ' ' * 200_000)", {}, "65,536 are read"),
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_hook_that_gives_no_answer_blocks_what_it_guards_unless_it_is_to_be_ignored(
    rig: Rig, fault: str
) -> None:
    text, more, why = BROKEN[fault]
    hook = {"event": "PreToolUse", "command": program(rig, text), **more}
    fetch = Counted(10)
    result = await run(rig, hooked(hook), caller(1), fetch=fetch)
    (ran,) = rig.of(e.HookRan)
    assert (
        fetch.calls == []
        and result.denials == 1
        and why in ran.reason
        and (ran.outcome, ran.blocked) == ("failed", True)
    )
    result = await run(rig, hooked({**hook, "on_error": "ignore"}), caller(1), fetch=fetch, name="q")
    (ran,) = rig.of(e.HookRan, "q")
    assert fetch.calls == [1] and result.denials == 0 and (ran.outcome, ran.blocked) == ("failed", False)


async def test_a_program_that_is_not_there_is_named_with_its_folder(rig: Rig) -> None:
    await run(rig, hooked({"event": "PreToolUse", "command": ["./absent"]}), caller(1))
    (ran,) = rig.of(e.HookRan)
    assert ran.reason == f"./absent can't be started in {rig.cwd}: No such file or directory"


@pytest.mark.parametrize(
    ("text", "mode", "way"),
    [("exit 0\n", 0o755, "begins with a line such as #!/bin/sh"), ("#!/bin/sh\n", 0o644, "chmod +x")],
)
async def test_a_program_that_the_system_does_not_start_is_told_with_the_way_out(
    text: str, mode: int, way: str, rig: Rig
) -> None:
    rig.file("guard", text).chmod(mode)
    await run(rig, hooked({"event": "PreToolUse", "command": ["./guard"]}), caller(1))
    (ran,) = rig.of(e.HookRan)
    assert ran.reason.startswith("./guard can't be started") and way in ran.reason


async def test_a_function_that_raises_returns_nonsense_or_hangs_gives_no_answer(rig: Rig) -> None:
    async def hangs(_: PreToolUse) -> None:
        await anyio.sleep_forever()

    def raises(_: PreToolUse) -> None:
        raise KeyError("x")

    hooks = [
        Hook("PreToolUse", hangs, timeout=0.1, on_error="ignore"),
        Hook("PreToolUse", raises, on_error="ignore"),
        Hook("PreToolUse", lambda _: True, on_error="ignore", name="says true"),
    ]
    fetch = Counted(10)
    await run(rig, manifest(), caller(1), fetch=fetch, hooks=hooks)
    assert fetch.calls == [1]
    assert [(r.name, r.outcome) for r in rig.of(e.HookRan)] == [
        ("hangs", "failed"),
        ("raises", "failed"),
        ("says true", "failed"),
    ]


async def test_b086_a_cancelled_run_ends_its_hook_and_all_that_it_started(rig: Rig) -> None:
    text = "import subprocess; subprocess.Popen(['sleep', '987'], start_new_session=True); open('up', 'w').close(); time.sleep(987)"
    made = hooked({"event": "PreToolUse", "command": program(rig, text)})
    fetch = Counted(10)
    async with rig.open(Agent(caller(1)), made, tools=[fetch.tool]) as pod:
        owner = pod.running.session.pointer.owner
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pod.run, "go")
            with anyio.fail_after(30):
                while not (rig.cwd / "up").exists():
                    await anyio.sleep(0.02)
            assert with_environment({"POD_OWNER": owner})
            tasks.cancel_scope.cancel()
        assert with_environment({"POD_OWNER": owner}) == [] and fetch.calls == []
    assert rig.of(e.HookRan) == []


# -- runs ----------------------------------------------------------------------------------------------------------


async def test_a_run_that_a_hook_refuses_sends_nothing_and_a_resume_asks_again(rig: Rig) -> None:
    closed = [True]
    asked: list[RunStart] = []

    def hook(given: RunStart) -> Block | GoOn:
        asked.append(given)
        return Block("out of hours") if closed[0] else GoOn("it is Monday")

    agent = Agent(lambda request, n: say("done"))
    async with rig.open(agent, hooks=[Hook("RunStart", hook)]) as pod:
        result = await pod.run("do it")
        assert (result.status, result.error_kind, result.exit_code) == ("failed", "hook_blocked", 1)
        assert "out of hours" in (result.error or "") and agent.requests == [] and result.requests == 0
        closed[0] = False
        result = await pod.resume()
    assert result.status == "finished" and [given.input for given in asked] == [("do it",), ("do it",)]
    assert any("it is Monday" in text for text in contexts(agent.requests[0], "notice"))


async def test_a_stop_hook_keeps_the_agent_at_work_and_is_told_how_often(rig: Rig) -> None:
    def hook(given: Stop) -> Block | None:
        return Block("a test fails") if given.blocks < 2 else None

    agent = Agent(lambda request, n: say(f"done {n}"))
    result = await run(rig, manifest(), agent, hooks=[Hook("Stop", hook)])
    assert (result.status, result.text, result.requests) == ("finished", "done 3", 3)
    notice = "The work is not done yet: the hook 'hook' (Stop) said no: a test fails. Go on with the task."
    assert contexts(agent.requests[2], "notice") == [notice, notice]


async def test_a_stop_hook_that_always_blocks_ends_the_run_at_its_bound(rig: Rig) -> None:
    result = await run(
        rig,
        hooked({"event": "Stop", "command": program(rig, "sys.exit(2)"), "max_blocks": 2}),
        lambda r, n: say("done"),
    )
    assert (result.status, result.error_kind, result.exit_code, result.requests) == ("limit", "hooks.max_blocks", 4, 3)
    assert "max_blocks = 2" in (result.error or "") and "'hook.py'" in (result.error or "")


# -- compactions ---------------------------------------------------------------------------------------------------


async def test_a_hook_that_blocks_every_compaction_neither_thrashes_nor_lets_a_request_pass_the_ceiling(
    rig: Rig,
) -> None:
    """Invariants 5 and 9: the run goes on until the next request would not fit, and its end names the hook."""
    asked: list[int] = []

    def hook(given: Any) -> Block:
        asked.append(given.tokens)
        return Block("keep it all")

    agent, fetch = Agent(caller(100), window=24_000), Counted(1_000)
    made = manifest(compaction=compacting(8_000))
    result = await run(rig, made, agent, fetch=fetch, hooks=[Hook("PreCompact", hook)])
    assert (result.status, result.error_kind) == ("failed", "hook_blocked")
    assert "keep it all" in (result.error or "") and len(rig.segments()) == 1
    assert 2 <= len(asked) <= 15 and all(after >= before * 1.1 for before, after in pairwise(asked[:-1]))
    assert len(fetch.calls) > 10 and all(r.held or r.mandatory for r in rig.of(e.CompactionFailed))


async def test_a_compaction_by_hand_that_a_hook_blocks_leaves_the_segment_and_says_why(rig: Rig) -> None:
    made, hook = manifest(compaction=compacting(None)), Hook("PreCompact", lambda _: Block("not now"))
    async with rig.open(Agent(caller(8)), made, tools=[Counted(2_000).tool], hooks=[hook]) as pod:
        await pod.run("go")
        assert not await pod.compact()
    assert len(rig.segments()) == 1
    (warned,) = rig.of(Warned)
    assert warned.code == "compaction.blocked" and "said no: not now" in warned.message


async def test_what_a_hook_says_after_a_compaction_is_told_in_the_new_segment(rig: Rig) -> None:
    seen: list[Any] = []

    def hook(given: Any) -> GoOn:
        seen.append(given)
        return GoOn("the plan is in plan.md")

    agent = Agent(caller(12))
    made = manifest(compaction=compacting(8_000), context={"ladder": ["checkpoint"], "buffer_tokens": 1_000})
    result = await run(rig, made, agent, fetch=Counted(1_000), hooks=[Hook("PostCompact", hook)])
    assert result.status == "finished" and len(rig.segments()) > 1
    assert seen[0].rung == "checkpoint" and seen[0].after < seen[0].before
    assert any("the plan is in plan.md" in text for request in agent.requests for text in contexts(request, "notice"))


# -- where they come from ------------------------------------------------------------------------------------------

MODEL = "version = 1\n[model]\nname = 'offline:surveyor'\n"


class Guard:
    """A hook as a class."""

    def __call__(self, given: PreToolUse) -> Block:
        return Block("by class")


def guard(given: PreToolUse) -> Block:
    return Block("by function")


def takes_nothing() -> None: ...


@pytest.mark.parametrize(("use", "said"), [("Guard", "by class"), ("guard", "by function")])
async def test_a_manifest_names_a_function_or_class(rig: Rig, use: str, said: str) -> None:
    await run(rig, hooked({"event": "PreToolUse", "use": f"{__name__}:{use}"}), caller(1))
    assert rig.of(e.HookRan)[0].reason == said


async def test_an_installed_hook_acts_only_where_the_manifest_names_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [EntryPoint("installed-guard", f"{__name__}:guard", "pod.hooks")]

    def found(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [point for point in points if group == "pod.hooks" and name in (None, point.name)]

    monkeypatch.setattr("pod.hooks.define.entry_points", found)
    await run(rig, manifest(), caller(1))
    assert rig.of(e.HookRan) == []
    await run(rig, hooked({"event": "PreToolUse", "use": "installed-guard"}), caller(1), name="q")
    assert [r.name for r in rig.of(e.HookRan, "q")] == ["installed-guard"]
    with pytest.raises(UsageProblem, match=r"no installed package offers a hook 'other' .*installed-guard"):
        await run(rig, hooked({"event": "PreToolUse", "use": "other"}), caller(1), name="r")
    assert not rig.folder("r").exists()


@pytest.mark.parametrize(
    ("use", "why"),
    [
        ("absent_pkg:x", "can't be loaded"),
        (f"{__name__}:MODEL", "can't be called"),
        (f"{__name__}:takes_nothing", "takes other"),
    ],
)
async def test_what_can_not_be_a_hook_is_refused_before_a_pod_is_made(rig: Rig, use: str, why: str) -> None:
    with pytest.raises(UsageProblem, match=why):
        await run(rig, hooked({"event": "PreToolUse", "use": use}), caller(1))
    assert not rig.folder().exists()


async def test_what_is_given_in_code_and_is_no_hook_is_named(rig: Rig) -> None:
    for wrong in (guard, [guard], "x", None):
        with pytest.raises(UsageProblem, match="hooks="):
            async with rig.open(Agent(caller(1)), hooks=wrong):
                pass
    with pytest.raises(UsageProblem, match="did you mean 'PreToolUse'"):
        Hook("PreTool", guard)  # type: ignore[arg-type]
    with pytest.raises(UsageProblem, match="either a function or a command"):
        Hook("Stop")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("event = 'PreToolUse'", "neither command nor use"),
        ("event = 'PreToolUse'\ncommand = ['x']\nuse = 'a:b'", "both command and use"),
        ("event = 'Stop'\ncommand = ['x']\nmatch = 'shell'", "match is about tools"),
        ("event = 'PreTool'\ncommand = ['x']", "event"),
        ("event = 'Stop'\ncommand = []", "should not be empty"),
        ("event = 'Stop'\ncommand = ['x']\non_error = 'pass'", "on_error"),
        ("event = 'Stop'\ncommand = ['x']\ntimeout = 0", "timeout"),
    ],
)
def test_a_hook_in_a_manifest_that_can_not_be_meant_is_named_with_its_place(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(f"{MODEL}[[hooks]]\n{text}\n")
    with pytest.raises(ManifestError) as caught:
        load_manifest(path, cwd=tmp_path, env={})
    (problem,) = caught.value.problems
    assert why in str(problem) and "[hooks #1]" in str(problem) and problem.line


def test_hooks_of_all_layers_add_up_and_a_project_that_is_not_trusted_adds_none(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(f"{MODEL}[[hooks]]\nevent = 'Stop'\ncommand = ['mine']\n")
    config = tmp_path / "config" / "pod" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[[hooks]]\nevent = 'Stop'\ncommand = ['everywhere']\n")
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    found = load_manifest(path, cwd=tmp_path, env=env).manifest.hooks
    assert [hook.command for hook in found] == [("everywhere",), ("mine",)]
    project = tmp_path / ".pod" / "config.toml"
    project.parent.mkdir()
    project.write_text("[[hooks]]\nevent = 'PreToolUse'\ncommand = ['./evil']\n")
    untrusted = load_manifest(path, cwd=tmp_path, env=env)
    assert [hook.command for hook in untrusted.manifest.hooks] == [("everywhere",), ("mine",)]
    assert untrusted.project is not None and [each.path[0] for each in untrusted.project.left_out] == ["hooks"]
    assert len(load_manifest(path, cwd=tmp_path, env=env, trusted=True).manifest.hooks) == 3


async def test_pod_log_and_inspect_show_each_hook_with_its_time(
    rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    await run(rig, manifest(), caller(1), hooks=[Hook("PreToolUse", guard), Hook("Stop", lambda _: None, name="ends")])
    monkeypatch.setenv("POD_HOME", str(rig.home))
    for command in ("log", "inspect"):
        await anyio.to_thread.run_sync(pod_main, [command, "p"])
        shown = capsys.readouterr().out
        assert "hook guard (PreToolUse fetch) blocked in " in shown and "hook ends (Stop) passed in " in shown
