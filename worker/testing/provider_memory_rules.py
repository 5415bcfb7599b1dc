"""What a strict provider rejects of context management: each refusal with the code of the wire."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from worker.models.base import NativeWay
from worker.testing.provider_compaction import CLEAR, COMPACT, COMPACT_PATH, Block, edits, threshold
from worker.testing.provider_http import Http
from worker.testing.provider_seals import open_memory
from worker.testing.provider_wires import WireName, error_body, history

BETAS: dict[NativeWay, str] = {"summarize": "compact-2026-09-04", "threshold_edit": "compact-2026-01-12"}
CLEARING_BETA = "context-management-2025-06-27"
MIN_TRIGGER = 50_000

_TAKEN_BY_COMPACT = frozenset(
    {"model", "input", "instructions", "previous_response_id", "prompt_cache_key", "prompt_cache_options"}
    | {"prompt_cache_retention", "service_tier", "image"}
)


def memory_refusal(
    wire: WireName, path: str, headers: Mapping[str, str], body: dict[str, Any], ways: tuple[NativeWay, ...]
) -> Http | None:
    """The refusal of what a request says of compaction and clearing, None where it is right.

    `ways` are those that the server offers. Checked on `anthropic`: the beta names, what must not stand together, that
    nothing is open or empty, and that a block is the first, whole, and of this model. On `openai`: the fields of the
    endpoint, the place of the trigger, that no call is open, and whose the items are.
    """
    if wire == "anthropic":
        return _messages(set(headers.get("anthropic-beta", "").replace(" ", "").split(",")), body, ways)
    if wire == "openai":
        return _responses(path, body, ways)
    return None


def _coded(message: str, code: str) -> Http:
    """A refusal of Messages: the code stands among the details."""
    body = error_body("anthropic", message)
    body["error"]["details"] = {"error_code": code}
    return Http(400, body)


def _plain(message: str) -> Http:
    return Http(400, error_body("anthropic", message))


def _messages(betas: set[str], body: dict[str, Any], ways: tuple[NativeWay, ...]) -> Http | None:
    allowed = [way for way in ways if BETAS.get(way) in betas]
    blocks = history("anthropic", body)
    return _edits(betas, body, allowed) or _asked(body, blocks, allowed) or _placed(body, blocks, bool(allowed))


def _edits(betas: set[str], body: dict[str, Any], allowed: Iterable[str]) -> Http | None:
    if "context_management" not in body:
        return None
    known = {CLEAR: CLEARING_BETA in betas, COMPACT: "threshold_edit" in allowed}
    for edit in edits(body):
        if not known.get(str(edit.get("type"))):
            return _plain(f"context_management: Extra inputs are not permitted (edit {edit.get('type')})")
        if edit["type"] == COMPACT and threshold(edit) < MIN_TRIGGER:
            return _plain(f"context_management.edits.0.trigger.value: must be at least {MIN_TRIGGER}")
    return None if edits(body) else _plain("context_management.edits: field required")


def _asked(body: dict[str, Any], blocks: list[tuple[str, Block]], allowed: Iterable[str]) -> Http | None:
    if body.get("compaction") is None:
        return None
    if "summarize" not in allowed:
        return _plain("compaction: Extra inputs are not permitted")
    if cast("Block", body["compaction"]).get("type") != "summarize":
        return _plain("compaction.type: Input should be 'summarize'")
    wrong = [name for name in ("context_management", "stop_sequences", "output_format") if name in body]
    wrong += ["output_config.format"] if "format" in cast("Block", body.get("output_config") or {}) else []
    forced = cast("Block", body.get("tool_choice") or {}).get("type") in ("any", "tool")
    wrong += ["tool_choice"] if forced else []
    if wrong:
        return _plain(f"compaction: cannot be used together with {', '.join(wrong)}")
    asked = {block.get("id") for _, block in blocks if block.get("type") == "tool_use"}
    if asked - {block.get("tool_use_id") for _, block in blocks if block.get("type") == "tool_result"}:
        return _coded("the messages end with an unanswered tool call", "compaction_incomplete_turn")
    if all(block.get("type") == "compaction" for _, block in blocks):
        return _coded("there is nothing to summarize", "compaction_nothing_to_summarize")
    return None


def _placed(body: dict[str, Any], blocks: list[tuple[str, Block]], allowed: bool) -> Http | None:
    places = [place for place, (_, block) in enumerate(blocks) if block.get("type") == "compaction"]
    if not places:
        return None
    if not allowed:
        return _plain("messages.0.content.0: Input tag 'compaction' found using 'type' does not match any expected tag")
    if len(places) > 1:
        return _coded("there is more than one compaction block", "compaction_block_ambiguous")
    role, block = blocks[places[0]]
    if places != [0] or role != "assistant":
        return _coded("a compaction block must come first, in the assistant role", "compaction_block_misplaced")
    memory = open_memory(block)
    if memory is None or memory.model != body.get("model"):
        return _coded("the signature of the compaction block is not valid", "compaction_signature_invalid")
    if block.get("content") != memory.summary:
        return _coded("the content of the compaction block was changed", "compaction_content_mismatch")
    return None


def _responses(path: str, body: dict[str, Any], ways: tuple[NativeWay, ...]) -> Http | None:
    def refused(message: str, code: str | None = None) -> Http:
        return Http(400, error_body("openai", message, code=code))

    given = body.get("input")
    items = cast("list[Block]", given) if isinstance(given, list) else []
    kinds = [str(item.get("type")) for item in items]
    if path == COMPACT_PATH:
        unknown = sorted(body.keys() - _TAKEN_BY_COMPACT)
        if unknown:
            return refused(f"Unknown parameter: '{unknown[0]}'.", "unknown_parameter")
    if "compaction_trigger" in kinds:
        if "compaction_trigger" not in ways:
            return refused("Invalid value: 'compaction_trigger'. Supported values are: 'message', ...", "invalid_value")
        if kinds.index("compaction_trigger") != len(kinds) - 1:
            return refused("a compaction_trigger must be the last item of the input")
    if path == COMPACT_PATH or "compaction_trigger" in kinds:
        made = {item.get("call_id") for item in items if item.get("type") == "function_call"}
        made -= {item.get("call_id") for item in items if item.get("type") == "function_call_output"}
        if made:
            return refused(f"No tool output found for function call {json.dumps(sorted(map(str, made))[0])}.")
    for item in items:
        if item.get("type") != "compaction":
            continue
        memory = open_memory(item)
        if not ways or memory is None or memory.model != body.get("model"):
            message = f"The encrypted content for item {item.get('id')} could not be verified."
            return refused(message, "invalid_encrypted_content")
    return None
