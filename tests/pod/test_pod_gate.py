"""A secret of the environment is in no file of a pod, in no request and in nothing that is told, whichever way it comes (B083)."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from interceptors.approvals import ApprovalAsked
from interceptors.facts import canonical
from pod.events import Event
from pod.hooks import GoOn, Hook
from pod.log.inbox import Command, post, post_message
from pod.manifest import Manifest, ManifestError, load_manifest
from tests.pod.pod_rig import Agent, Rig, caller, compacting, filler, manifest, summariser, summary, users
from worker.errors import AuthFailed
from worker.interceptor import CallContext, Interceptor, RequestContext
from worker.items import ToolCallItem, ToolOutput
from worker.models.base import Reply
from worker.records import Input, ReplyRecord, ToolResult, Warned
from worker.testing import ScriptedModel, call, fail, say
from worker.text import sha256
from worker.tools import tool

pytestmark = pytest.mark.anyio
KEY = 'sk-live/7Zq"pX+09\\Lm=ab'
MARK = "[secret SHOP_API_KEY]"
TOKEN = "ghp_aB3dE6gH9jK2mN5pQ8sT1vW4xY7zaB3dE6gH"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", KEY)


def written(home: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


def spelled(key: str = KEY) -> list[str]:
    """The value as it is and as it stands in JSON, twice in it, in a URL and in base64."""
    once = json.dumps(key)[1:-1]
    return [key, once, json.dumps(once)[1:-1], quote(key, safe=""), base64.b64encode(key.encode()).decode()[:-4]]


def assert_nowhere(rig: Rig, *told: object) -> None:
    files, texts = written(rig.home), "\n".join(map(repr, told))
    for form in spelled():
        assert form.encode() not in files, form
        assert form not in texts and repr(form)[1:-1] not in texts, form


def sent(agent: Agent) -> bytes:
    return b"".join(recorded.messages for recorded in agent.requests)


async def test_b083_a_message_is_masked_in_the_log_and_in_the_request_and_the_human_is_told(rig: Rig) -> None:
    agent = Agent(lambda request, n: say("ok"))
    async with rig.open(agent) as pod:
        result = await pod.run(f"use {KEY} now")
    assert [str(getattr(item, "text", item)) for item in users(agent.requests[0])] == [f"use {MARK} now"]
    (warned,) = [w for w in rig.of(Warned) if w.code == "secret_masked"]
    assert "SHOP_API_KEY" in warned.message and "redact = false" in warned.message
    assert_nowhere(rig, result, warned)


async def test_b083_a_message_without_a_secret_is_stored_byte_for_byte_and_warns_of_nothing(rig: Rig) -> None:
    text = "the key is sk-live/7Zq and its hash is \u200bAＢ"
    async with rig.open(Agent(lambda request, n: say("ok"))) as pod:
        await pod.run(text)
    assert rig.of(Input)[0].item.text == text and not rig.of(Warned)


async def test_a_model_that_writes_the_value_is_masked_for_all_but_the_tool_that_it_calls(rig: Rig) -> None:
    """The call runs with what was written; the log, the next request, events, hooks and the result have the mark."""
    got: list[str] = []
    seen: list[object] = []

    class Hook(Interceptor):
        name = "hook"

        async def after_request(self, ctx: RequestContext, reply: Reply) -> None:
            seen.append(reply)

        async def after_tool(self, ctx: CallContext, output: ToolOutput) -> ToolOutput:
            seen.append((ctx.call, output))
            return output.model_copy(update={"content": f"and {os.environ['SHOP_API_KEY']}"})

    @tool
    def login(password: str) -> str:
        """Logs in."""
        got.append(password)
        return f"in with {password}"

    agent = Agent(lambda request, n: call("login", password=KEY) if n == 1 else say(f"it was {KEY}"))
    events: list[Event] = []
    async with rig.open(agent, tools=[login], interceptors=[Hook()], observers=[events.append]) as pod:
        result = await pod.run("go")
    assert got == [KEY] and result.text == f"it was {MARK}"
    first = next(item for item in rig.of(ReplyRecord)[0].items if isinstance(item, ToolCallItem))
    assert first.masked and first.parsed == {"password": MARK}
    assert MARK.encode() in sent(agent)
    assert "".join(e.text for e in events if e.type == "text.delta").endswith(f"it was {MARK}")
    assert_nowhere(rig, result, events, seen, sent(agent).decode())


async def test_a_restart_sends_the_same_bytes_and_does_not_run_a_call_without_its_secret(rig: Rig) -> None:
    """What the call needs is in no file: after a restart it is answered, not run with the mark in its place."""
    ran: list[str] = []

    @tool(effect="process")
    def deploy(command: str) -> str:
        """Deploys."""
        ran.append(command)
        return "done"

    asks = manifest(permissions={"rules": [{"tool": "deploy", "action": "ask"}]})
    agent = Agent(lambda request, n: call("deploy", command=f"login {KEY}"))
    async with rig.open(agent, asks, tools=[deploy], headless=False) as pod:
        assert (await pod.run("go")).status == "paused"
        question = pod.approvals[0].id if hasattr(pod.approvals[0], "id") else pod.approvals[0]
    assert_nowhere(rig, rig.of(ApprovalAsked))
    again = Agent(lambda request, n: say("ok"))
    async with rig.open(again, asks, tools=[deploy], headless=False) as pod:
        await pod.approve(str(question))
        result = await pod.resume()
    assert result.status == "finished" and ran == []
    (answered,) = rig.of(ToolResult)
    assert answered.item.status == "error" and "environment variable" in answered.item.summary
    before, after = agent.requests[0].messages, again.requests[0].messages
    assert after.startswith(before[: before.rindex(b"}")])


async def test_a_page_that_cuts_a_secret_in_two_shows_neither_half(rig: Rig) -> None:
    @tool(max_output=2_000)
    def page(n: int) -> str:
        """A page."""
        return f"{'x' * 3_000}{KEY[:12]}\n[... 900 bytes left out; they are not kept anywhere ...]\n{KEY[12:]}{'y' * 3_000}{KEY[:12]}"

    agent = Agent(caller(1, "page"))
    async with rig.open(agent, tools=[page]) as pod:
        await pod.run("go")
    for part in (KEY[:12], KEY[12:]):
        assert json.dumps(part)[1:-1].encode() not in written(rig.home) + sent(agent)


async def test_a_spooled_output_has_no_secret_that_two_pieces_of_it_make(rig: Rig) -> None:
    """The shell's output is kept as it comes; the value stands where one write ends and the next begins."""
    rig.file(
        "say.py",
        f"import sys, time\nfor _ in range(200):\n    sys.stdout.write('x' * 997 + {KEY!r} + '\\n'); sys.stdout.flush()\n",
    )
    agent = Agent(lambda request, n: call("shell", command="python3 say.py") if n == 1 else say("ok"))
    made = manifest(tools={"enable": ["shell"]}, permissions={"rules": [{"tool": "shell", "action": "allow"}]})
    async with rig.open(agent, made) as pod:
        result = await pod.run("go")
    artifacts = list(rig.folder().artifacts.iterdir())
    assert len(artifacts) == 1 and artifacts[0].read_text().count(MARK) == 200, rig.of(ToolResult)
    assert_nowhere(rig, result, sent(agent).decode())


async def test_errors_of_a_provider_are_masked_on_record_and_in_the_result(rig: Rig) -> None:
    agent = Agent(lambda request, n: fail(AuthFailed(f"no route with {KEY}")))
    async with rig.open(agent) as pod:
        result = await pod.run("go")
    assert result.status == "failed" and MARK in (result.error or "")
    assert_nowhere(rig, result)


async def test_instructions_notes_and_files_read_again_are_masked_too(rig: Rig) -> None:
    rig.file("AGENTS.md", f"Log in with {KEY}.")
    rig.file("settings.txt", f"key: {KEY}\n")
    play = caller(12)

    @tool
    async def fetch(n: int) -> str:
        """Fetches."""
        return f"{filler(1_200, f'page {n}')} {KEY}"

    agent = Agent(play)
    model = summariser(summary(current=f"The key is {KEY}; next is the page after."))
    async with rig.open(agent, manifest(compaction=compacting(9_000)), tools=[fetch], compact_model=model) as pod:
        result = await pod.run("go")
    assert result.compactions >= 1
    system = "".join(str(recorded.system) for recorded in agent.requests)
    assert MARK in system and KEY not in system
    assert_nowhere(rig, result, sent(agent).decode(), sent(model).decode())


async def test_what_another_process_leaves_in_the_inbox_is_masked_before_it_lies_there(rig: Rig) -> None:
    async with rig.open(Agent(lambda request, n: say("ok"))) as pod:
        await pod.run("go")
    folder = rig.folder()
    command = Command(id="m-1", kind="send", args={"text": f"take {KEY}"})
    assert post_message(folder, command) and not post_message(folder, command)
    post(folder, Command(kind="stop", args={"reason": KEY}))
    assert_nowhere(rig)


async def test_redact_false_keeps_values_as_they_are(rig: Rig) -> None:
    agent = Agent(lambda request, n: say(f"it is {KEY}"))
    async with rig.open(agent, manifest(log={"redact": False})) as pod:
        result = await pod.run(f"use {KEY}")
    post(rig.folder(), Command(id="m-2", kind="send", args={"text": KEY}))
    assert (
        result.text == f"it is {KEY}"
        and json.dumps(KEY)[1:-1].encode() in (rig.folder().inbox / "m-2.json").read_bytes()
    )
    assert rig.of(Input)[0].item.text == f"use {KEY}"


async def test_a_key_of_a_known_shape_is_masked_in_what_tools_and_models_say_and_not_in_the_users_words(
    rig: Rig,
) -> None:
    """Nobody configured it: a token in an output or a reply; the user's own words stay byte for byte, in a summary too."""

    @tool
    def show() -> str:
        """Shows."""
        return f"the token is {TOKEN}\nand the rest"

    play = [call("show"), say(f"it was {TOKEN}")]
    agent = Agent(lambda request, n: play[n - 1])
    events: list[Event] = []
    async with rig.open(agent, tools=[show], observers=[events.append]) as pod:
        result = await pod.run("go")
    assert result.text == "it was [secret]" and b"the token is [secret]" in sent(agent)
    assert TOKEN.encode() not in written(rig.home) + sent(agent) and TOKEN not in repr(events)
    async with rig.open(Agent(lambda request, n: say("ok"))) as pod:
        await pod.run(f"use {TOKEN}")
    assert rig.of(Input)[-1].item.text == f"use {TOKEN}" and not rig.of(Warned)


async def test_a_yes_for_the_run_to_a_call_with_a_secret_holds_for_no_call_with_another_one(rig: Rig) -> None:
    """In the log both calls look the same; the hash there is one of what the log holds."""
    ran: list[str] = []

    @tool(effect="process")
    def deploy(command: str) -> str:
        """Deploys."""
        ran.append(command)
        return "done"

    commands = [f"login {TOKEN}", f"login {TOKEN[:-1]}Z"]
    asks = manifest(permissions={"rules": [{"tool": "deploy", "action": "ask"}]})
    agent = Agent(lambda request, n: call("deploy", command=commands[n - 1]))
    async with rig.open(agent, asks, tools=[deploy], headless=False) as pod:
        assert (await pod.run("go")).status == "paused"
        await pod.approve(rig.of(ApprovalAsked)[0].id, scope="run")
        assert (await pod.resume()).status == "paused"
    assert ran == commands[:1]
    first, second = rig.of(ApprovalAsked)
    assert first.summary == second.summary and first.arguments_sha256 != second.arguments_sha256
    for command in commands:
        assert sha256(canonical({"command": command})).encode() not in written(rig.home)


async def test_hooks_are_told_without_secrets_and_what_they_say_is_masked(rig: Rig) -> None:
    told: list[object] = []

    def look(given: Any) -> GoOn:
        told.append(given)
        return GoOn(additional_context=f"beside: {KEY} {TOKEN}")

    @tool
    def show(password: str) -> str:
        """Shows."""
        return f"{KEY} {TOKEN}"

    play = [call("show", password=KEY), say("ok")]
    agent = Agent(lambda request, n: play[n - 1])
    hooks = [Hook("PreToolUse", call=look, name="a"), Hook("PostToolUse", call=look, name="b")]
    async with rig.open(agent, tools=[show], hooks=hooks) as pod:
        await pod.run(f"use {KEY}")
    assert len(told) == 2 and f"beside: {MARK} [secret]".encode() in sent(agent)
    assert_nowhere(rig, told, sent(agent).decode())
    assert TOKEN.encode() not in written(rig.home) and TOKEN not in repr(told)


async def test_frozen_instructions_are_kept_masked_and_are_the_same_after_a_restart(rig: Rig) -> None:
    rig.file("AGENTS.md", f"Log in with {KEY}.")
    async with rig.open(Agent(lambda request, n: fail(AuthFailed("no")))) as pod:
        await pod.run("go")
    again = Agent(lambda request, n: say("ok"))
    async with rig.open(again) as pod:
        await pod.resume()
    assert MARK in str(again.requests[0].system) and again.requests[0].messages.count(b"Log in with") == 0
    assert_nowhere(rig)


def test_a_kept_manifest_holds_a_mark_for_what_a_variable_put_into_it_and_is_whole_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_TOKEN", "gate/way-0123456789")
    path = tmp_path / "pod.toml"
    path.write_text(
        'version = 1\n[model]\nname = "openai-chat:m"\nbase_url = "https://h.example/${GATEWAY_TOKEN}/v1"\ncontext_window = 32000\n'
    )
    made = load_manifest(path).manifest
    kept = made.kept_text()
    assert "way-0123456789" in str(made.model.base_url) and "way-0123456789" not in kept
    assert Manifest.read_kept(kept) == made and made.digest == sha256(kept)
    path.write_text('version = 1\n[model]\nname = "offline:x"\n[worker]\nsystem_prompt = "say gate/way-0123456789"\n')
    with pytest.raises(ManifestError) as refused:
        load_manifest(path)
    assert "[worker] system_prompt" in str(refused.value) and "GATEWAY_TOKEN" in str(refused.value)
    assert "way-0123456789" not in str(refused.value)


async def test_a_mark_never_takes_the_place_of_the_secret_in_a_file(rig: Rig) -> None:
    """What the model was shown holds a mark; an edit of it says why it does not match, a whole file is not replaced."""
    rig.file("settings.txt", f"a = 1\nkey = {KEY}\nb = 2\n")
    play = [
        call("read_file", path="settings.txt"),
        call("edit_file", path="settings.txt", old=f"key = {MARK}", new="key = none"),
        call("write_file", path="settings.txt", content=f"a = 2\nkey = {MARK}\nb = 2\n"),
        call("edit_file", path="settings.txt", old="a = 1", new="a = 3"),
        say("ok"),
    ]
    agent = Agent(lambda request, n: play[n - 1])
    made = manifest(
        tools={"enable": ["read_file", "edit_file", "write_file"]},
        permissions={"rules": [{"tool": "*", "action": "allow"}]},
    )
    async with rig.open(agent, made) as pod:
        await pod.run("go")
    read, edited, replaced, mended = [r.item for r in rig.of(ToolResult)]
    assert read.content is not None and MARK in read.content
    assert edited.status == replaced.status == "error" and mended.status == "ok"
    assert f"holds {MARK}" in edited.summary and "not shown" in edited.summary and "edit_file" in replaced.summary
    assert (rig.cwd / "settings.txt").read_text() == f"a = 3\nkey = {KEY}\nb = 2\n"
    assert_nowhere(rig, sent(agent).decode())


async def test_a_secret_that_is_a_word_of_the_program_breaks_no_record(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type or a status is written by the program alone: a value that is a part of one must not end the session."""
    monkeypatch.setenv("SITE_PASSWORD", "tool_call")
    with ScriptedModel([call("peek"), say("a tool_call was made")]) as model:
        async with rig.open(model, manifest(), tools=[_peek()]) as pod:
            result = await pod.run("look")
    assert result.status == "finished" and result.text == "a [secret SITE_PASSWORD] was made"


def _peek() -> Any:
    @tool(effect="read")
    def peek() -> str:
        """Looks."""
        return "the next tool_call"

    return peek
