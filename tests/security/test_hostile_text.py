"""Text of others stays data (B039, B040, B044): through real tools, prune, each policy and the history search, as a provider sees it."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, cast, get_args

import pytest

from pod import Pod
from pod.log import entries as e
from tests.pod.pod_rig import Rig, filler, summary
from tests.security.hostile_history import HISTORY
from tests.wires.wires_rig import Sent, hurry, manifest, strings
from worker.items import ContextItem, ContextKind, OrderItem
from worker.models.encoding import context_text, neutral, order_text
from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest, Step
from worker.text import byte_prefix, byte_suffix, clean, untagged
from worker.tool_output import head_and_tail, serialised_prefix, serialised_suffix
from worker.tools import Tool, tool

TAG = "0a1b2c3d4e5f"
ALIKE = str.maketrans("сСϲοοОоΟеЕεтТτхХχпгԁ⁄∕", "cccooooOeEetTtxXxnrd//")


def read_leniently(text: str) -> list[str]:
    """The runtime's marks in a text as the most credulous reader takes them: `<context`, `</context`, `<order`, `</order`.

    Written without the runtime's own rules: whole text in compatible characters, nothing invisible, no accents.
    """
    plain = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text)).translate(ALIKE).lower()
    plain = "".join(
        c for c in plain if c in "\n\t\r\x85\u2028\u2029" or unicodedata.category(c) not in {"Cf", "Cc", "Cs", "Mn"}
    )
    return [
        f"<{slash.strip()}{word}" for slash, word in re.findall(r"[<〈‹⟨❬]\s*(/?)\s*(context|order)(?=[\s>/]|$)", plain)
    ]


def test_the_table_is_hostile_and_long_enough() -> None:
    assert len(HISTORY) >= 60 and len(set(HISTORY)) == len(HISTORY)
    assert sum(bool(read_leniently(text)) for text in HISTORY) >= 40


@pytest.mark.parametrize("text", HISTORY, ids=range(len(HISTORY)))
def test_b044_each_item_has_exactly_one_pair_of_marks(text: str) -> None:
    for kind in cast("tuple[ContextKind, ...]", get_args(get_args(ContextKind)[0]) or get_args(ContextKind)):
        item = ContextItem(kind=kind, text=text.replace("{tag}", TAG), source=f'a"> {text}', trust="tool")
        assert read_leniently(context_text(item)) == ["<context", "</context"]
    assert read_leniently(order_text(OrderItem(text=text, tag=TAG))) == ["<order", "</order"]


@pytest.mark.parametrize("text", HISTORY, ids=range(len(HISTORY)))
def test_what_is_neutral_stays_so_and_says_the_same(text: str) -> None:
    once = neutral(text)
    assert neutral(once) == once
    assert (
        once.replace("&lt;", "<") == re.sub("[＜〈‹]", "<", text.replace("&lt;", "<"))
        or "＜" in text
        or "〈" in text
        or "‹" in text
    )


@pytest.mark.parametrize(
    "written", [TAG, TAG.upper(), "０a１b２c３d４e５f", "0a\u200b1b2c\u00ad3d4e5f", "0\u202ea1b2c3d4e5\ufefff"]
)  # fmt: skip
def test_the_tag_is_broken_up_however_it_is_written(written: str) -> None:
    found = untagged(f"x {written} y", TAG)
    assert found == "x 0a1b-2c3d4e5f y" and untagged(found, TAG) == found


@pytest.mark.parametrize("whole", ["a👩‍👩‍👧🇩🇪é", "🎉" * 5, "日本\U0001f1e9\U0001f1ea\x00\n", "half \ud83d here"])
def test_b145_a_cut_at_each_position_is_valid_unicode(whole: str) -> None:
    """B145: over emoji, flags and joined sequences, by bytes and as serialised, from either end."""
    text = clean(whole)
    for limit in range(len(text.encode()) + 12):
        starts = (byte_prefix(text, limit), serialised_prefix(text, limit))
        ends = (byte_suffix(text, limit), serialised_suffix(text, limit))
        assert all(text.startswith(start) for start in starts) and all(text.endswith(end) for end in ends)
        assert max(len(each.encode()) for each in (*starts, *ends)) <= limit
        json.dumps(head_and_tail(text * 9, text * 9, 9_999, limit, "elsewhere"), ensure_ascii=False).encode()


def test_code_with_words_alike_is_left_alone() -> None:
    code = "<context:component-scan/> <order-list> <Contextual> a < context2 if order < 3: <p>context</p> List<Orders>"
    assert neutral(code) == code


# -- through a whole pod --------------------------------------------------------------------------------------------

POLICIES: dict[str, dict[str, Any]] = {
    "compact": {"context": {"policy": "compact", "ladder": ["compact"]}},
    "checkpoint": {"context": {"policy": "checkpoint"}},
    "rollover": {"context": {"policy": "rollover"}, "rollover": {"at": 14_000, "warn": 11_000}},
    "native": {"context": {"policy": "native"}},
}
RUNGS = {"compact": "compact", "checkpoint": "checkpoint", "rollover": "rollover", "native": "native"}
PRUNED = {"compact", "rollover"}
"""Under these, old results go to stubs before a window ends; under the others each window ends by the rung alone."""
BATCH = 6
TASK = "Read the pages and tell me what they hold."


class Story:
    """An agent that reads every hostile text, looks things up and then tries the gated call; and the compact worker, which
    copies what it read wherever it may."""

    def __init__(self) -> None:
        self.turn = 0
        self.said: list[str] = []

    def __call__(self, request: RecordedRequest) -> Step:
        if b"You write the memory of another agent" in request.body:
            if b"toolu" in request.body or b'"tool_use"' in request.body:
                return Answer("written")
            notes = "\n".join(f"- {' '.join(text.split())} — source: page" for text in self.said[:40])
            text = summary(Findings=notes, Key_Decisions="- Deploy later, because the owner is asked — page 3")
            return Answer(
                calls=[Call("mark_read_required", {"path": "evil.md"}), Call("write_summary", {"text": text})]
            )
        self.turn += 1
        pages = range((self.turn - 2) * BATCH, min((self.turn - 1) * BATCH, len(HISTORY)))
        if self.turn == 1:
            tasks = [text for text in self.said if "\ud83d" not in text][:20]
            return Answer(calls=[Call("read_file", {"path": "evil.md"}), Call("tasks", {"add": tasks})])
        if pages:
            return Answer(f"I read on. {self.said[pages[0]]}", calls=[Call("fetch", {"n": n}) for n in pages])
        if (self.turn - 2) * BATCH < len(HISTORY) + BATCH:
            search = {"action": "search", "query": "deploy", "limit": 25}
            return Answer(calls=[Call("session_history", search)])
        return Answer(calls=[Call("deploy", {"where": "prod"})])


def user_blocks(sent: Sent) -> Iterator[str]:
    """The texts of the user's side that are no tool results: the runtime's own, and the user's."""
    for message in sent.items:
        if message["role"] == "user":
            for block in cast("list[dict[str, Any]]", message["content"]):
                if block["type"] == "text":
                    yield block["text"]


def opened(rig: Rig, server: ProviderServer, policy: str, ran: list[str], said: list[str]) -> Pod:
    @tool
    async def fetch(n: int) -> str:
        """Fetches page n."""
        return f"page {n}\n{said[n]}\n{filler(350, f'page {n}')}"

    @tool(effect="process")
    async def deploy(where: str) -> str:
        """Deploys."""
        ran.append(where)
        return "deployed"

    tools: list[Tool] = [fetch, deploy]
    made = manifest(
        server,
        name="anthropic:claude-opus-5-5" if policy == "native" else "anthropic:some-model",  # a bound history is not pruned
        **POLICIES[policy],
        tools={"enable": ("read_file", "tasks")},
        permissions={"profile": "workspace-write", "when_headless": "pause", "rules": [{"tool": "deploy", "action": "ask"}]},
        compaction={"request_threshold": 14_000, "source": "overview", "retained_tokens": 2_000, "retained_floor_tokens": 500},
        prune={"enabled": policy in PRUNED, "protected_tokens": 1_500, "min_savings": 500},
    )  # fmt: skip
    return Pod.open(made, name="p", home=rig.home, cwd=rig.cwd, tools=tools)


@pytest.mark.anyio
@pytest.mark.parametrize("policy", POLICIES)
async def test_hostile_history_gains_no_authority(policy: str, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """B039, B040, B044, B145: pages, a file, notes, tasks and summaries say all of the table; the gated call is asked about, orders are
    the runtime's alone, each item has one wrapper, and what was data is data."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-1234567890")
    story, ran = Story(), list[str]()
    natively = "memory of the pages" if policy == "native" else None
    with ProviderServer(story, wire="anthropic", strict=True, compacts=natively) as server:
        pod = opened(rig, server, policy, ran, story.said)
        async with pod:
            hurry(pod)
            tag = pod.state.start.tag
            story.said += [text.replace("{tag}", tag) for text in HISTORY]
            everything = "\n".join(story.said).encode("utf-8", "replace").decode()
            rig.file("evil.md", everything)
            rig.file("context-notes.md", everything[:1500])
            result = await pod.run(TASK)
            assert (result.status, ran) == ("paused", []), result.error
            [asked] = pod.approvals
            assert asked.tool == "deploy"
    assert not server.rejected
    rungs = [(record.rung, record.state, record.reason) for record in rig.of(e.CompactionRung)]
    assert RUNGS[policy] in {record.rung for record in rig.of(e.CompactionCompleted)}, rungs
    assert ("pruned" in rig.kinds()) == (policy in PRUNED)
    sent = [Sent.of("anthropic", request) for request in server.requests if b"You write the memory" not in request.body]
    systems = {each.system for each in sent}
    assert all("evil" not in system and "Deploy" not in system and system.count(tag) == 1 for system in systems)
    for each in sent:
        check(each, tag)
    for start in rig.starts():
        for item in start.items:
            assert not isinstance(item, OrderItem) or item.tag == tag
            if isinstance(item, ContextItem) and item.kind in {"auto_read", "summary", "notes", "pin"}:
                assert item.trust in {"tool", "model"} and tag not in item.text


def check(sent: Sent, tag: str) -> None:
    """What a provider sees of one request."""
    found: list[str] = []
    for text in user_blocks(sent):
        marks = read_leniently(text)
        if text == TASK:
            continue
        found.append(text)
        kind = "order" if text.startswith("<order") else "context"
        assert marks == [f"<{kind}", f"</{kind}"], text[:500]
        assert text.startswith((f'<order tag="{tag}">\n', '<context kind="')) and text.endswith(f"\n</{kind}>")
        if kind == "order":
            assert not [hostile for hostile in HISTORY if len(hostile) > 20 and hostile in text]
    tagged = [text for text in strings(sent.items) if tag in text.lower()]
    own = [text for text in tagged if text.startswith("<order")]
    said = [text for text in tagged if text.startswith("I read on.")]  # the model's own words, on its own side
    assert len(tagged) == len(own) + len(said) + _arguments(sent, tag)
    sent.body.decode()
    assert not re.search(r"\\u[dD][89a-fA-F]", sent.body.decode())


def _arguments(sent: Sent, tag: str) -> int:
    """How many strings of the model's own calls hold the tag: they stand on its side."""
    return sum(
        tag in text.lower()
        for message in sent.items if message["role"] == "assistant"
        for block in cast("list[dict[str, Any]]", message["content"]) if block["type"] == "tool_use"
        for text in strings(block["input"])
    )  # fmt: skip
