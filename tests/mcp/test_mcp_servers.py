"""Servers of a pod as real processes: started within their time, called, lost, ended."""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio
import pytest

from interceptors.approvals import ApprovalAsked
from pod import Manifest, ManifestError
from pod.cli.main import main as pod_main
from pod.errors import ServerUnavailable
from pod.log import entries as e
from pod.proof import DoesNotFit
from tests.mcp.mcp_rig import listed, raw, sdk, seen
from tests.pod.pod_rig import Agent, Rig, compacting, filler, manifest, results, summariser, until
from worker.builtin.process_table import with_environment
from worker.items import ToolResultItem
from worker.records import ToolResult, ToolsChanged, ToolStarted, Warned
from worker.testing import call, calls, say

pytestmark = pytest.mark.anyio

ADD = '@server.tool()\ndef add(a: int, b: int) -> int:\n    "Adds two numbers."\n    return a + b\n'


def served(*servers: dict[str, Any], **sections: Any) -> Manifest:
    """A manifest with servers whose calls are free, but for what a test says otherwise."""
    return manifest(mcp=[{"effect": "read", "start_timeout": 20, **server} for server in servers], **sections)


def steps(*made: Any) -> Any:
    """An agent that takes these steps, then ends."""
    return lambda _, number: made[number - 1] if number <= len(made) else say("done")


def told(rig: Rig, server: str) -> e.ServerTold:
    """What the log says of a server last."""
    return [each for each in rig.of(e.ServerTold) if each.server == server][-1]


def answers(rig: Rig) -> list[ToolResultItem]:
    """All results in the log."""
    return [record.item for record in rig.of(ToolResult)]


async def test_a_tool_of_a_server_is_called_like_any_other(rig: Rig) -> None:
    agent = Agent(steps(call("calc__add", a=2, b=3)))
    async with rig.open(agent, served({"name": "calc", "command": sdk(rig.cwd, "calc", ADD)})) as pod:
        result = await pod.run("go")
    assert result.status == "finished" and [item.summary for item in answers(rig)] == ["5"]
    (spec,) = [spec for spec in agent.requests[0].tools if spec.name == "calc__add"]
    assert spec.description == "Adds two numbers." and spec.parameters["required"] == ["a", "b"]
    assert told(rig, "calc").state == "up" and not rig.of(Warned)


async def test_b131_servers_that_do_not_start_are_named_with_their_standard_error_and_the_others_serve(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    mute = "import sys; print('still thinking', file=sys.stderr, flush=True); sys.stdin.read()"
    gone = "import sys; sys.exit('no licence found')"
    made = served(
        {"name": "s1", "command": [sys.executable, "-c", mute], "start_timeout": 0.5},
        {"name": "s2", "command": [sys.executable, "-c", gone]},
        {"name": "s3", "command": raw(rig.cwd, "s3")},
        {"name": "s4", "command": ["no-such-program-here"]},
    )
    agent = Agent(steps(call("s3__work")))
    async with rig.open(agent, made) as pod:
        result = await pod.run("go")
    assert result.status == "finished" and [item.summary for item in answers(rig)] == ["work"]
    why = {name: told(rig, name).why for name in ("s1", "s2", "s3", "s4")}
    assert "did not answer within 0.5 s" in why["s1"] and "still thinking" in why["s1"]
    assert "exited with code 1" in why["s2"] and "no licence found" in why["s2"]
    assert "can't be started: No such file" in why["s4"] and why["s3"] == ""
    warned = [record.figures["server"] for record in rig.of(Warned) if record.code == "mcp.server"]
    assert warned == ["s1", "s2", "s4"]
    assert pod_main(["show", "p"]) == 2  # another home
    os.environ["POD_HOME"] = str(rig.home)
    try:
        assert pod_main(["show", "p"]) == 0
    finally:
        del os.environ["POD_HOME"]
    shown = capsys.readouterr().out
    assert "no licence found" in shown and "still thinking" in shown


async def test_b131_nothing_begins_without_a_server_that_is_required(rig: Rig) -> None:
    made = served({"name": "s", "command": [sys.executable, "-c", "import sys; sys.exit('no key')"], "required": True})
    agent = Agent(steps())
    with pytest.raises(ServerUnavailable, match=r"'s' is not running: it exited with code 1.*no key") as failed:
        async with rig.open(agent, made):
            pass
    assert failed.value.exit_code == 69 and not agent.requests and not rig.folder().exists()


async def test_b132_a_silent_call_is_given_up_in_its_time_the_server_is_told_and_the_run_goes_on(rig: Rig) -> None:
    silent = "if name == 'work': return\nsend(id=id, result=text('here'))"
    command = raw(rig.cwd, "s", silent, listed("work", "other"))
    agent = Agent(steps(call("s__work"), call("s__other")))
    async with rig.open(agent, served({"name": "s", "command": command, "call_timeout": 0.3})) as pod:
        result = await pod.run("go")
    first, second = answers(rig)
    assert result.status == "finished" and (first.status, second.summary) == ("error", "here")
    assert "timed out after 0.3 s" in first.summary
    assert "cancelled" in seen(rig.cwd, "s")


async def test_b132_a_pipe_that_closes_is_an_error_at_once_and_the_next_call_starts_the_server_again(rig: Rig) -> None:
    once = (
        "if not os.path.exists('died'):\n    open('died', 'w').close()\n"
        "    sys.stderr.write('out of memory')\n    os._exit(9)\nsend(id=id, result=text('back'))"
    )
    agent = Agent(steps(call("s__work"), call("s__work")))
    with anyio.fail_after(30):
        async with rig.open(
            agent, served({"name": "s", "command": raw(rig.cwd, "s", once), "call_timeout": 60})
        ) as pod:
            result = await pod.run("go")
    first, second = answers(rig)
    assert result.status == "finished" and (first.status, second.status, second.summary) == ("error", "ok", "back")
    said = first.text()
    assert "outcome is unknown" in said and "exited with code 9" in said and "out of memory" in said
    assert [each.state for each in rig.of(e.ServerTold)] == ["up", "down", "up"]


async def test_b132_a_server_that_keeps_failing_is_left_alone_and_the_run_goes_on(rig: Rig) -> None:
    dies = "open('dead', 'w').close()\nos._exit(1)"
    command = raw(rig.cwd, "s", dies)
    program = rig.cwd / "s.py"
    program.write_text(
        "import os\nif os.path.exists('dead'): open('tried', 'a').write('x'); os._exit(1)\n" + program.read_text()
    )
    agent = Agent(steps(*[call("s__work") for _ in range(6)]))
    made = served({"name": "s", "command": command}, limits={"repeat_call": {"remind": [], "stop": 50}})
    async with rig.open(agent, made) as pod:
        result = await pod.run("go")
    assert result.status == "finished" and {item.status for item in answers(rig)} == {"error"}
    assert (rig.cwd / "tried").read_text() == "xxx" and "left alone" in answers(rig)[-1].text()


async def test_b132_calls_that_lose_a_server_at_once_each_say_so_and_one_start_serves_those_after(rig: Rig) -> None:
    dies = (
        "if not os.path.exists('died'):\n    sys.stdin.readline()\n    open('died', 'w').close()\n    os._exit(9)\n"
        "send(id=id, result=text('back'))"
    )
    command = raw(rig.cwd, "s", dies, listed("a", "b"))
    twice = calls([call("s__a"), call("s__b")])
    async with rig.open(Agent(steps(twice, twice)), served({"name": "s", "command": command})) as pod:
        result = await pod.run("go")
    assert result.status == "finished" and [item.status for item in answers(rig)] == ["error", "error", "ok", "ok"]
    assert sum(line.startswith("started") for line in seen(rig.cwd, "s")) == 2
    assert all("outcome is unknown" in item.text() for item in answers(rig)[:2])


async def test_b133_four_results_of_two_megabytes_keep_head_and_tail_and_stay_whole_elsewhere(rig: Rig) -> None:
    big = "send(id=id, result=text('HEAD' + 'ä' * 1_000_000 + 'TAIL'))"
    command = raw(rig.cwd, "s", big, listed("a", "b", "c", "d"))
    agent = Agent(steps(calls([call(f"s__{name}") for name in "abcd"])))
    async with rig.open(agent, served({"name": "s", "command": command, "max_output": 4_000})) as pod:
        result = await pod.run("go")
    assert result.status == "finished" and len(answers(rig)) == 4
    for item in answers(rig):
        content = item.content or ""
        assert "HEAD" in content and "TAIL" in content and "bytes left out" in content
        assert len(content.encode()) <= 4_000 and item.artifact
        kept = next(rig.folder().artifacts.rglob(item.artifact.split("/")[-1]))
        assert kept.stat().st_size >= 2_000_008


@pytest.mark.parametrize(
    "part", ["result=text(chr(0xd800) + ' seen')", "error={'code': 1, 'message': chr(0xd800) + ' seen'}"]
)
async def test_b145_an_answer_with_half_a_character_is_an_answer(rig: Rig, part: str) -> None:
    """B145: it is not dropped, and waited for until the call times out."""
    server = {"name": "s", "command": raw(rig.cwd, "s", f"send(id=id, {part})"), "call_timeout": 600}
    with anyio.fail_after(60):
        async with rig.open(Agent(steps(call("s__work"))), served(server)) as pod:
            await pod.run("go")
    [item] = answers(rig)
    assert "\ufffd seen" in item.text()


async def test_b134_the_log_grows_by_a_result_once(rig: Rig) -> None:
    words = "'y' * 60_000"
    body = f"send(id=id, result={{**text({words}), 'structuredContent': {{'result': {words}}}}})"
    async with rig.open(
        Agent(steps(call("s__work"))), served({"name": "s", "command": raw(rig.cwd, "s", body)})
    ) as pod:
        await pod.run("go")
    assert rig.segments()[0].read_bytes().count(b"y" * 60_000) == 1
    assert rig.segments()[0].stat().st_size < 100_000


async def test_b135_tools_of_one_name_are_kept_apart_and_the_built_in_one_is_never_shadowed(rig: Rig) -> None:
    who = "send(id=id, result=text(NAME + ' ' + name))"
    made = served(
        {"name": "one", "command": raw(rig.cwd, "one", who, listed("search"))},
        {"name": "two", "command": raw(rig.cwd, "two", who, listed("search"))},
        {"name": "three", "command": raw(rig.cwd, "three", who, listed("read_file", "sea/rch"))},
        tools={"enable": ["read_file"]},
    )
    rig.file("here.txt", "the real file")
    agent = Agent(
        steps(call("one__search"), call("two__search"), call("three__read_file"), call("read_file", path="here.txt"))
    )
    async with rig.open(agent, made) as pod:
        await pod.run("go")
    said = [item.text() for item in answers(rig)]
    assert said[:3] == ["one search", "two search", "three read_file"] and "the real file" in said[3]
    names = [spec.name for spec in agent.requests[0].tools]
    assert names.index("read_file") < names.index("one__search") and len(names) == len(set(names))
    twice = manifest(mcp=[{"name": "a", "command": ["x"]}, {"name": "a", "command": ["y"]}])
    with pytest.raises(ManifestError, match="two servers are named 'a'"):
        rig.open(agent, twice, "q")


async def test_b136_definitions_that_do_not_fit_are_refused_before_any_request_with_the_tokens_of_each_server(
    rig: Rig,
) -> None:
    many = [
        {"name": f"tool_{n}", "description": filler(600, f"t{n}"), "inputSchema": {"type": "object"}}
        for n in range(741)
    ]
    made = [
        {"name": "cloud", "command": raw(rig.cwd, "cloud", tools=many)},
        {"name": "small", "command": raw(rig.cwd, "small")},
    ]
    agent = Agent(steps(call("cloud__tool_1")))
    with pytest.raises(DoesNotFit) as refused:
        async with rig.open(agent, served(*made)):
            pass
    lines = {line.label: line.tokens for line in refused.value.lines}
    assert lines["tools of the server cloud"] > 400_000 and lines["tools of the server small"] < 200
    assert "[[mcp]] tools" in str(refused.value) and not agent.requests and not rig.folder().exists()
    # The way out is one.
    async with rig.open(agent, served({**made[0], "tools": ["tool_1", "tool_2"]}, made[1])) as pod:
        assert (await pod.run("go")).status == "finished"


async def test_b137_a_bad_schema_disables_its_tool_alone_with_a_warning_and_no_request_is_refused(rig: Rig) -> None:
    tools = [
        {"name": "root", "inputSchema": {"type": "string"}},
        {"name": "inside", "inputSchema": {"type": "object", "properties": {"required": ["a"]}}},
        {"name": "ref", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}}},
        *listed("good"),
    ]
    agent = Agent(steps(call("s__good")))
    async with rig.open(agent, served({"name": "s", "command": raw(rig.cwd, "s", tools=tools)})) as pod:
        result = await pod.run("go")
    assert result.status == "finished" and answers(rig)[0].summary == "good"
    assert [spec.name for spec in agent.requests[0].tools if spec.name.startswith("s__")] == ["s__good"]
    assert set(told(rig, "s").unfit) == {"root", "inside", "ref"}
    (warned,) = rig.of(Warned)
    assert all(name in warned.message for name in ("'root'", "'inside'", "'ref'")) and warned.code == "mcp.server"


async def test_a_list_that_changed_is_offered_with_the_next_segment_and_not_before(rig: Rig) -> None:
    grows = (
        "if len(TOOLS) == 1: TOOLS.append({'name': 'later', 'inputSchema': {'type': 'object'}})\n"
        "send(method='notifications/tools/list_changed')\nsend(id=id, result=text(' '.join(map(str, range(1000)))))"
    )
    command = raw(rig.cwd, "s", grows)

    def play(request: Any, number: int) -> Any:
        if any(spec.name == "s__later" for spec in request.tools) or number > 40:
            return say("done")
        return call("s__work", n=number)

    agent = Agent(play)
    made = served(
        {"name": "s", "command": command},
        compaction=compacting(6_000),
        limits={"repeat_call": {"remind": [], "stop": 50}},
    )
    async with rig.open(agent, made, compact_model=summariser()) as pod:
        result = await pod.run("go")
    assert result.status == "finished" and len(rig.segments()) == 2
    by_segment = [{spec.name for spec in request.tools} for request in agent.requests]
    assert "s__later" in by_segment[-1] and all("s__later" not in names for names in by_segment[:-1])
    waits = [each.waiting for each in rig.of(e.ServerTold)]
    assert True in waits and waits[-1] is False and not rig.of(ToolsChanged)


async def test_what_a_server_says_of_its_own_tools_allows_nothing(rig: Rig) -> None:
    hints = {"annotations": {"readOnlyHint": True, "destructiveHint": False}}
    command = raw(rig.cwd, "s", tools=listed("work", **hints))
    made = manifest(mcp=[{"name": "s", "command": command}], permissions={"profile": "safe"})
    async with rig.open(Agent(steps(call("s__work"))), made) as pod:
        first = await pod.run("go")
        (asked,) = rig.of(ApprovalAsked)
        assert first.status != "finished" and (asked.tool, asked.effect) == ("s__work", "process")
        assert not any(line.startswith("call") for line in seen(rig.cwd, "s"))
        await pod.approve(asked.id)
        result = await pod.resume()
    assert result.status == "finished" and "call work" in seen(rig.cwd, "s")


async def test_a_rule_on_a_server_denies_its_calls(rig: Rig) -> None:
    rules = [{"tool": "s__*", "action": "deny"}]
    made = served({"name": "s", "command": raw(rig.cwd, "s")}, permissions={"rules": rules})
    async with rig.open(Agent(steps(call("s__work"))), made) as pod:
        result = await pod.run("go")
    assert result.denials == 1 and not any(line.startswith("call") for line in seen(rig.cwd, "s"))


async def test_a_server_gets_the_variables_that_are_named_and_no_other_and_what_it_says_of_secrets_is_masked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCS_TOKEN", "tok-123456789-abc")
    monkeypatch.setenv("OTHER_TOKEN", "tok-987654321-abc")
    tells = "send(id=id, result=text(os.environ['DOCS_TOKEN']))"
    made = served({"name": "s", "command": raw(rig.cwd, "s", tells), "env": ["DOCS_TOKEN"]})
    async with rig.open(Agent(steps(call("s__work"))), made) as pod:
        await pod.run("go")
    assert seen(rig.cwd, "s")[0].endswith("mcp ['DOCS_TOKEN']")
    assert answers(rig)[0].summary == "[secret DOCS_TOKEN]"
    assert b"tok-123456789" not in rig.segments()[0].read_bytes()


async def test_requests_of_a_server_are_refused_and_the_call_goes_on(rig: Rig) -> None:
    asks = (
        "send(id='r1', method='sampling/createMessage', params={'messages': [], 'maxTokens': 5})\n"
        "send(id='r2', method='roots/list')\nnote(sys.stdin.readline())\nnote(sys.stdin.readline())\nsend(id=id, result=text('ok'))"
    )
    async with rig.open(
        Agent(steps(call("s__work"))), served({"name": "s", "command": raw(rig.cwd, "s", asks)})
    ) as pod:
        result = await pod.run("go")
    assert result.status == "finished" and answers(rig)[0].summary == "ok"
    assert sum('"error"' in line for line in seen(rig.cwd, "s")) == 2


async def test_lines_that_are_no_messages_disturb_nothing(rig: Rig) -> None:
    noisy = "print('loading...', flush=True)\nprint('{\"half\": ', flush=True)\nprint('[]', flush=True)\nsend(id=id, result=text('ok'))"
    async with rig.open(
        Agent(steps(call("s__work"))), served({"name": "s", "command": raw(rig.cwd, "s", noisy)})
    ) as pod:
        await pod.run("go")
    assert answers(rig)[0].summary == "ok"


async def test_a_result_that_is_none_is_an_error_of_that_call(rig: Rig) -> None:
    odd = "send(id=id, result={'content': 7})"
    async with rig.open(Agent(steps(call("s__work"))), served({"name": "s", "command": raw(rig.cwd, "s", odd)})) as pod:
        result = await pod.run("go")
    assert result.status == "finished" and "no result of a call" in answers(rig)[0].summary


async def test_b085_a_cancelled_call_tells_the_server_and_returns_at_once(rig: Rig) -> None:
    command = raw(rig.cwd, "s", "return")
    with anyio.fail_after(20):
        async with rig.open(Agent(steps(call("s__work"))), served({"name": "s", "command": command})) as pod:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pod.run, "go")
                await until(lambda: "call work" in seen(rig.cwd, "s"))
                tasks.cancel_scope.cancel()
            await until(lambda: "cancelled" in seen(rig.cwd, "s"))


async def test_b086_nothing_of_a_server_outlives_the_pod(rig: Rig) -> None:
    stays = (
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True,"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\nsend(id=id, result=text('ok'))"
    )
    async with rig.open(
        Agent(steps(call("s__work"))), served({"name": "s", "command": raw(rig.cwd, "s", stays)})
    ) as pod:
        await pod.run("go")
        owner = rig.folder().pointer().owner
        assert len(with_environment({"POD_CALL_ID": "mcp", "POD_OWNER": owner})) >= 2
    assert with_environment({"POD_CALL_ID": "mcp", "POD_OWNER": owner}) == []


KILLED = """
import os, signal, sys
from pathlib import Path
import anyio
from tests.mcp.mcp_rig import raw
from tests.pod.pod_rig import Agent, manifest
from pod import Pod
from worker.testing import call, say

home, cwd = map(Path, sys.argv[1:3])
stays = (
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True,"
    " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\\n"
    f"os.kill({os.getpid()}, 9)"
)
made = manifest(mcp=[{"name": "s", "command": raw(cwd, "s", stays), "effect": "read"}])

async def main():
    async with Pod.open(made, name="p", home=home, cwd=cwd, model=Agent(lambda _, n: call("s__work"))) as pod:
        await pod.run("go")

anyio.run(main)
"""


async def test_after_a_kill_the_call_is_unknown_never_made_again_and_what_the_server_left_is_ended(rig: Rig) -> None:
    rig.run_in_process(KILLED, check=-9)
    owner = rig.folder().pointer().owner
    assert with_environment({"POD_CALL_ID": "mcp", "POD_OWNER": owner})
    made = served({"name": "s", "command": raw(rig.cwd, "s")})
    async with rig.open(Agent(steps()), made) as pod:
        result = await pod.resume()
    assert result.status == "finished" and len(rig.of(ToolStarted)) == 1
    (item,) = answers(rig)
    assert item.status == "interrupted" and "outcome unknown" in item.summary
    assert seen(rig.cwd, "s").count("call work") == 1
    assert [each.call_id for each in rig.of(e.OrphanKilled)] == ["mcp"]
    assert with_environment({"POD_CALL_ID": "mcp", "POD_OWNER": owner}) == []


async def test_hooks_are_asked_about_calls_of_servers(rig: Rig) -> None:
    guard = [
        sys.executable,
        "-c",
        "import sys; sys.exit('closed today') if 0 else (sys.stderr.write('closed'), sys.exit(2))",
    ]
    made = served(
        {"name": "s", "command": raw(rig.cwd, "s")}, hooks=[{"event": "PreToolUse", "match": "s__*", "command": guard}]
    )
    async with rig.open(Agent(steps(call("s__work"))), made) as pod:
        result = await pod.run("go")
    assert result.denials == 1 and not any(line.startswith("call") for line in seen(rig.cwd, "s"))


def test_without_the_package_the_way_out_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from worker.errors import ConfigError
    from worker.mcp import servers as module
    from worker.mcp.connection import Place
    from worker.mcp.define import Server

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '/path/to/checkout\[mcp\]'"):
        module.Servers([Server("s", command=("x",))], Place(rig.cwd))


def test_a_pattern_that_covers_no_tool_of_its_server_is_named_with_what_it_lists(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ", ".join(f'"{word}"' for word in raw(rig.cwd, "s", tools=listed("forecast", "history")))
    head = f'version = 1\n[model]\nname = "offline:surveyor"\n[[mcp]]\nname = "s"\ncommand = [{command}]\n'
    rig.file("m.toml", head + 'tools = ["forcast", "hist*"]\n')
    assert pod_main(["tools", str(rig.cwd / "m.toml"), "-C", str(rig.cwd)]) == 1
    out, err = capsys.readouterr()
    assert "s__history" in out and "s__forecast" not in out
    assert "'forcast': it lists no tool of this name; it lists forecast, history" in err and "hist*" not in err


def test_pod_tools_lists_the_tools_of_a_manifest_and_names_servers_that_fail(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *rest = raw(rig.cwd, "s")
    rig.file(
        "m.toml",
        f'version = 1\n[model]\nname = "offline:surveyor"\n[tools]\nenable = ["read_file"]\n'
        f'[[mcp]]\nname = "s"\ncommand = ["{first}", "{rest[0]}"]\n',
    )
    assert pod_main(["tools", str(rig.cwd / "m.toml"), "-C", str(rig.cwd)]) == 0
    shown = capsys.readouterr().out
    assert "s__work" in shown and "read_file" in shown and "the server s: up, 1 tool," in shown
    rig.file(
        "m.toml",
        (rig.cwd / "m.toml").read_text()
        + '[[mcp]]\nname = "dead"\ncommand = ["sh", "-c", "echo broken >&2; exit 3"]\n',
    )
    assert pod_main(["tools", str(rig.cwd / "m.toml"), "-C", str(rig.cwd)]) == 1
    assert "broken" in capsys.readouterr().err


async def test_a_call_that_repeats_itself_is_guarded_as_any_other(rig: Rig) -> None:
    agent = Agent(lambda _, n: call("s__work") if n < 30 else say("done"))
    made = served({"name": "s", "command": raw(rig.cwd, "s")}, limits={"repeat_call": {"remind": [2], "stop": 4}})
    async with rig.open(agent, made) as pod:
        result = await pod.run("go")
    assert result.status != "finished" and len(seen(rig.cwd, "s")) < 8 and results(agent.requests[-1])


async def test_a_server_runs_in_the_sandbox_that_the_manifest_asks_for(rig: Rig, tmp_path: Any) -> None:
    if trouble(rig):
        pytest.skip("bubblewrap can't be used here")
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    # The interpreter of the tests lies outside of every scope: the system's own is there.
    tries = f"send(id=id, result=text(str(os.path.exists({str(outside)!r}))))"
    raw(rig.cwd, "s", tries)
    made = served({"name": "s", "command": ["/usr/bin/python3", "s.py"]}, sandbox={"mode": "workspace"})
    async with rig.open(Agent(steps(call("s__work"))), made) as pod:
        await pod.run("go")
    assert told(rig, "s").why == "" and answers(rig)[0].summary == "False"


def trouble(rig: Rig) -> str | None:
    """Why there is no sandbox here."""
    from pathlib import Path

    from pod.guarding import sandbox_trouble

    if not Path("/usr/bin/python3").exists():
        return "no python of the system's own"
    return sandbox_trouble(manifest(sandbox={"mode": "workspace"}), rig.cwd, rig.home)
