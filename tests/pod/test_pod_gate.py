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
from pod.events import Event
from pod.log.inbox import Command, post, post_message
from tests.pod.pod_rig import Agent, Rig, caller, compacting, filler, manifest, summariser, summary, users
from worker.errors import AuthFailed
from worker.interceptor import CallContext, Interceptor, RequestContext
from worker.items import ToolCallItem, ToolOutput
from worker.models.base import Reply
from worker.records import Input, ReplyRecord, ToolResult, Warned
from worker.testing import call, fail, say
from worker.tools import tool

pytestmark = pytest.mark.anyio
KEY = 'sk-live/7Zq"pX+09\\Lm=ab'
MARK = "[secret SHOP_API_KEY]"


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


def streamed(pieces: list[str], masker: Any) -> str:
    stream = masker.stream()
    return "".join([*(stream.feed(piece) for piece in pieces), stream.end()])
