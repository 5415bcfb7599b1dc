"""The scripted server's context management: what it refuses, what it seals, what its model sees."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.models.anthropic import CLEARING_BETA, COMPACT_BETAS
from worker.testing.provider_compaction import CLEARED, compaction_answer, seen
from worker.testing.provider_seals import broken_seals, chain, open_memory, seal, seal_memory
from worker.testing.provider_server import Answer, Compaction, ProviderServer
from worker.testing.provider_wires import history

MESSAGES, RESPONSES, COMPACT = "/v1/messages", "/responses", "/responses/compact"
SUMMARIZE, THRESHOLD = COMPACT_BETAS["summarize"], COMPACT_BETAS["threshold_edit"]
BOTH = f"{SUMMARIZE},{THRESHOLD}"
USER = {"role": "user", "content": "hi"}
USE = {"type": "tool_use", "id": "a", "name": "t", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "r"}


def post(server: ProviderServer, path: str, body: object, betas: str = "") -> tuple[int, Any]:
    headers = {"content-type": "application/json", **({"anthropic-beta": betas} if betas else {})}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.loads(e.read())["error"]


def messages(*parts: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 10, "messages": list(parts), **rest}


def says(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def block(model: str = "m", summary: str = "S") -> dict[str, Any]:
    body = messages(USER) | {"model": model}
    return {
        "type": "compaction",
        "content": summary,
        "signature": seal_memory(body, history("anthropic", body), summary),
    }


def item(model: str = "m") -> dict[str, Any]:
    body = {"model": model, "input": []}
    return {"type": "compaction", "id": "cmp", "encrypted_content": seal_memory(body, [], "S")}


ASK: dict[str, Any] = {"type": "message", "role": "user", "content": "x"}
FC: dict[str, Any] = {"type": "function_call", "call_id": "a", "name": "t", "arguments": "{}"}
ON_DEMAND: dict[str, Any] = {"compaction": {"type": "summarize"}}


def edit(kind: str, trigger: int, **rest: Any) -> dict[str, Any]:
    return {
        "context_management": {"edits": [{"type": kind, "trigger": {"type": "input_tokens", "value": trigger}, **rest}]}
    }


CLEAR = edit("clear_tool_uses_20250919", 10)

WRONG: dict[str, tuple[Any, str, str]] = {
    "a compaction without its beta": (messages(USER, **ON_DEMAND), "", "Extra inputs are not permitted"),
    "a compaction with the other beta": (messages(USER, **ON_DEMAND), THRESHOLD, "Extra inputs"),
    "a compaction of another type": (messages(USER, compaction={"type": "x"}), BOTH, "should be 'summarize'"),
    "both at once": (messages(USER, **ON_DEMAND, **CLEAR), f"{BOTH},{CLEARING_BETA}", "used together with context_management"),
    "stop sequences": (messages(USER, **ON_DEMAND, stop_sequences=["x"]), BOTH, "stop_sequences"),
    "an output format": (messages(USER, **ON_DEMAND, output_config={"format": {}}), BOTH, "output_config.format"),
    "a forced tool": (messages(USER, **ON_DEMAND, tool_choice={"type": "any"}), BOTH, "tool_choice"),
    "an open call": (messages(USER, says(USE), **ON_DEMAND), BOTH, "compaction_incomplete_turn"),
    "nothing to compact": (messages(says(block()), **ON_DEMAND), BOTH, "compaction_nothing_to_summarize"),
    "a block without a beta": (messages(says(block()), USER), "", "does not match any expected tag"),
    "a block that is not first": (messages(USER, says(block()), USER), BOTH, "compaction_block_misplaced"),
    "a block behind a text": (messages(says({"type": "text", "text": "x"}, block()), USER), BOTH, "misplaced"),
    "a block of the user": (messages({"role": "user", "content": [block()]}), BOTH, "compaction_block_misplaced"),
    "two blocks": (messages(says(block(), block()), USER), BOTH, "compaction_block_ambiguous"),
    "an altered text": (messages(says(block() | {"content": "T"}), USER), BOTH, "compaction_content_mismatch"),
    "an altered seal": (messages(says(block() | {"signature": "memory-e30=.0"}), USER), BOTH, "signature_invalid"),
    "no seal": (messages(says({"type": "compaction", "content": "S"}), USER), BOTH, "compaction_signature_invalid"),
    "another model's block": (messages(says(block("n")), USER), BOTH, "compaction_signature_invalid"),
    "clearing without its beta": (messages(USER, **CLEAR), BOTH, "clear_tool_uses_20250919"),
    "a threshold without its beta": (messages(USER, **edit("compact_20260112", 60_000)), SUMMARIZE, "compact_20260112"),
    "a threshold too low": (messages(USER, **edit("compact_20260112", 9)), BOTH, "must be at least 50000"),
    "no edits": (messages(USER, context_management={}), BOTH, "field required"),
}  # fmt: skip

WRONG_ITEMS: dict[str, tuple[str, Any, str]] = {
    "an altered item": (RESPONSES, [item() | {"encrypted_content": "gAAA"}, ASK], "invalid_encrypted_content"),
    "another model's item": (RESPONSES, [item("n"), ASK], "invalid_encrypted_content"),
    "a trigger that is not last": (RESPONSES, [{"type": "compaction_trigger"}, ASK], "must be the last"),
    "a trigger with an open call": (RESPONSES, [ASK, FC, {"type": "compaction_trigger"}], "No tool output found"),
    "an open call": (COMPACT, [ASK, FC], "No tool output found"),
}


@pytest.mark.parametrize("name", WRONG)
def test_messages_with_a_wrong_compaction_are_refused_with_their_code(name: str) -> None:
    body, betas, words = WRONG[name]
    with ProviderServer([Answer("ok")], wire="anthropic", strict=True, compacts="S") as server:
        status, error = post(server, MESSAGES, body, betas)
        assert status == 400 and words in json.dumps(error), error
        assert len(server.rejected) == 1 and server.remaining == 1


@pytest.mark.parametrize("name", WRONG_ITEMS)
def test_responses_with_a_wrong_compaction_are_refused_with_their_code(name: str) -> None:
    path, items, words = WRONG_ITEMS[name]
    with ProviderServer([Answer("ok")], wire="openai", strict=True, compacts="S") as server:
        status, error = post(server, path, {"model": "m", "input": items})
        assert status == 400 and words in json.dumps(error), error
        assert len(server.rejected) == 1 and server.remaining == 1


def test_the_endpoint_takes_its_own_fields_only() -> None:
    with ProviderServer([], wire="openai", compacts="S") as server:
        status, error = post(server, COMPACT, {"model": "m", "input": [ASK], "tools": []})
        assert (status, error["code"]) == (400, "unknown_parameter")


def test_a_server_without_compaction_knows_none_of_it() -> None:
    with ProviderServer([], wire="openai") as server:
        assert post(server, COMPACT, {"model": "m", "input": [ASK]})[0] == 404
        status, error = post(server, RESPONSES, {"model": "m", "input": [ASK, {"type": "compaction_trigger"}]})
        assert (status, error["code"]) == (400, "invalid_value")
    with ProviderServer([], wire="anthropic") as server:
        assert "Extra inputs" in post(server, MESSAGES, messages(USER, **ON_DEMAND), BOTH)[1]["message"]
        assert post(server, MESSAGES, messages(says(block()), USER), BOTH)[0] == 400


def test_what_follows_a_block_may_begin_in_either_role() -> None:
    with ProviderServer([Answer("ok")] * 2, wire="anthropic", strict=True, compacts="S") as server:
        assert post(server, MESSAGES, messages(says(block()), USER), BOTH)[0] == 200
        kept = (says(USE), {"role": "user", "content": [RESULT]})
        assert post(server, MESSAGES, messages(says(block()), *kept), SUMMARIZE)[0] == 200
        assert post(server, MESSAGES, messages(says(block()), *kept, USER), BOTH)[0] == 400, "only behind the block"


def test_requests_to_compact_take_no_step_and_one_below_the_threshold_is_an_ordinary_one() -> None:
    below, above = edit("compact_20260112", 60_000), edit("compact_20260112", 50_000)
    with ProviderServer([Answer("ok")], wire="anthropic", strict=True, compacts="S") as server:
        assert b'"stop_reason": "compaction"' in post(server, MESSAGES, messages(USER, **ON_DEMAND), BOTH)[1]
        long = {"role": "user", "content": "x" * 220_000}
        assert b'"stop_reason": "compaction"' in post(server, MESSAGES, messages(long, **above), BOTH)[1]
        assert server.remaining == 1 and len(server.compacted) == 2
        assert b'"stop_reason": "end_turn"' in post(server, MESSAGES, messages(long, **below), BOTH)[1]
        assert server.remaining == 0 and len(server.requests) == 1


def test_a_function_that_gives_no_compaction_is_named_in_the_answer() -> None:
    with ProviderServer([], wire="openai", compacts=lambda _: Answer("x")) as server:  # type: ignore[arg-type, return-value]
        status, error = post(server, COMPACT, {"model": "m", "input": [ASK]})
    assert status == 400 and "gave no compaction, but Answer" in error["message"]


@pytest.mark.parametrize(("value", "words"), [(3, "compacts must be"), (["S"], "compacts must be")])
def test_a_wrong_compacts_raises_where_it_is_made(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        ProviderServer([], wire="openai", compacts=value)
    with pytest.raises(TypeError, match=r"Compaction\.summary"):
        Compaction(value)
    with pytest.raises(ValueError, match=r"Compaction\.fault"):
        Compaction("x", fault="slow")  # type: ignore[arg-type]


# -- seals


blocks = st.lists(
    st.tuples(st.sampled_from(["user", "assistant"]), st.fixed_dictionaries({"text": st.text()})), max_size=6
)


@given(blocks, blocks, st.text())
def test_what_follows_a_memory_directly_is_bound_as_before(source: Any, kept: Any, summary: str) -> None:
    body: dict[str, Any] = {"model": "m", "system": "s", "tools": ["t"]}
    thought = {"type": "thinking", "signature": seal(body, chain([*source, *kept])[-1])}
    sealed = {"type": "compaction", "signature": seal_memory(body, source, summary)}
    opened = open_memory(sealed)
    assert opened is not None and (opened.summary, opened.model) == (summary, "m")
    behind = [("assistant", sealed), *kept, ("assistant", thought)]
    assert broken_seals(body, behind) == []
    between = [behind[0], ("user", {"text": "between"}), *behind[1:]]
    assert broken_seals(body, between) == [len(between) - 1]
    assert broken_seals(body | {"system": "other"}, behind) == [len(behind) - 1]


@given(st.text(), st.integers(0), st.characters(blacklist_categories=["Cs"]))
def test_a_seal_that_was_changed_does_not_open(summary: str, at: int, other: str) -> None:
    text = seal_memory({"model": "m"}, [], summary)
    place = len("memory-") + at % (len(text) - len("memory-"))
    changed = text[:place] + other + text[place + 1 :]
    assert (open_memory({"signature": changed}) is not None) == (changed == text)


# -- what the model sees


def test_a_later_request_is_seen_with_the_summary_in_the_blocks_place() -> None:
    shown = seen("anthropic", messages(says(block(), USE), {"role": "user", "content": [RESULT]})).body["messages"]
    assert [m["role"] for m in shown] == ["user", "assistant", "user"] and shown[1] == says(USE)
    assert shown[0]["content"][0]["text"] == '<context kind="summary" source="the provider">\nS\n</context>'
    items = seen("openai", {"model": "m", "input": [ASK, item(), ASK, {"type": "compaction_trigger"}]}).body["input"]
    assert [x["type"] for x in items] == ["message", "message"] and "S" in items[0]["content"][0]["text"]
    assert items[1] == ASK, "what stands before the memory is in it"


def test_old_results_are_cleared_where_that_was_asked_for() -> None:
    rounds: list[dict[str, Any]] = [USER]
    for n in range(4):
        use = USE | {"id": f"c{n}", "name": "keep" if n == 1 else "t"}
        rounds += [says(use), {"role": "user", "content": [RESULT | {"tool_use_id": f"c{n}", "content": "x" * 400}]}]
    rest: dict[str, Any] = {"keep": {"type": "tool_uses", "value": 1}, "exclude_tools": ["keep"]}
    body = messages(*rounds, **edit("clear_tool_uses_20250919", 100, **rest))
    shown = seen("anthropic", body)
    texts = [b["content"] == CLEARED for _, b in history("anthropic", shown.body) if b["type"] == "tool_result"]
    assert texts == [True, False, True, False], "the newest and those of the excluded tool stay"
    assert shown.applied == [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2, "cleared_input_tokens": 200}]
    for trigger, least in ((10_000, 0), (100, 500)):
        asked = edit("clear_tool_uses_20250919", trigger, clear_at_least={"value": least}, **rest)
        assert seen("anthropic", body | asked) == (body | asked, [])


def test_the_endpoint_answers_with_the_users_messages_and_the_compaction() -> None:
    body = {"model": "m", "input": [ASK, FC, {"type": "function_call_output", "call_id": "a", "output": "r"}, ASK]}
    answer = compaction_answer("responses.compact", Compaction("S"), body, 1)
    assert isinstance(answer, dict) and answer["object"] == "response.compaction"
    assert [x["type"] for x in answer["output"]] == ["message", "message", "compaction"]
