"""The seals of the provider server: reasoning bound to what stands before it, and memories that only it can open.

All that was sent is a chain of digests, block by block. A signature of reasoning is made of system prompt, tools and
the chain before it. A memory holds the chain of what it stands for, so that reasoning of turns which follow it directly
stays valid, and reasoning behind anything else does not.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

Blocks: TypeAlias = Sequence[tuple[str, dict[str, Any]]]

_KEY = b"of the provider server"


class Memory(NamedTuple):
    """What a seal holds: the model that it is for, the summary, and where the chain stood."""

    model: str
    summary: str
    chain: str


def seal_memory(body: dict[str, Any], blocks: Blocks, summary: str) -> str:
    """A memory of the blocks of a request, as text that says nothing to a reader."""
    memory = Memory(str(body.get("model", "")), summary, chain(blocks)[-1])
    text = base64.urlsafe_b64encode(json.dumps(memory).encode("utf-8", "surrogatepass")).decode()
    return f"memory-{text}.{_mac(text)}"


def open_memory(block: dict[str, Any]) -> Memory | None:
    """The memory in a compaction block; None where this server did not seal it, or somebody changed it."""
    text, _, mac = str(block.get("encrypted_content") or block.get("signature") or "").partition(".")
    text = text.removeprefix("memory-")
    if not mac or not hmac.compare_digest(mac.encode(), _mac(text).encode()):
        return None
    return Memory(*cast("list[str]", json.loads(base64.urlsafe_b64decode(text))))


def chain(blocks: Blocks) -> list[str]:
    """The digest before each block, and behind the last."""
    found = [""]
    for role, block in blocks:
        memory = open_memory(block) if block.get("type") == "compaction" else None
        found.append(memory.chain if memory is not None else _digest([found[-1], role, block]))
    return found


def seal(body: dict[str, Any], before: str) -> str:
    """A signature bound to system prompt, tools and the chain before it."""
    return f"seal-{_digest([body.get('system', body.get('instructions')), body.get('tools'), before])}"


def broken_seals(body: dict[str, Any], blocks: Blocks) -> list[int]:
    """The places of the reasoning that is bound to something else than what stands before it."""
    before = chain(blocks)
    return [
        place
        for place, (_, block) in enumerate(blocks)
        if block.get("type") in ("thinking", "reasoning")
        and block.get("signature", block.get("encrypted_content")) != seal(body, before[place])
    ]


def _digest(value: Iterable[object]) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _mac(text: str) -> str:
    return hmac.new(_KEY, text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()[:32]
