"""A provider's own memory: an opaque item that stands for the items before it, and what everybody else reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker.estimate import estimate_item
from worker.items import Item, OpaqueItem
from worker.models.base import JudgesMemories, Model

MOST_REJECTED = 2
"""How many memories in a row a provider may reject before it is not asked for another."""


def memory_of(view: Sequence[Item]) -> OpaqueItem | None:
    """The memory that a view begins with; none stands anywhere else."""
    first = view[0] if view else None
    return first if isinstance(first, OpaqueItem) and first.is_memory else None


def maker_of(memory: OpaqueItem) -> str:
    """The model that made it and alone can read it, as `provider:model`."""
    return f"{memory.provider}:{memory.model}"


def read_by_others(item: Item) -> Item:
    """The item as a reader that is not its own model gets it: a memory as a summary, anything else as it is."""
    return item.as_summary() if isinstance(item, OpaqueItem) and item.is_memory else item


def reads_in_words(model: Model, memory: OpaqueItem) -> bool:
    """Whether a model is sent a memory as a summary: it did not make it, or it cannot go back."""
    if maker_of(memory) != model.name or memory.is_damaged:
        return True
    return isinstance(model, JudgesMemories) and model.rejects(memory)


def distrust(model: Model) -> str:
    """Why no more memories are worth asking a model's provider for, empty where they are."""
    if isinstance(model, JudgesMemories) and model.memories_rejected >= MOST_REJECTED:
        return f"the provider of {model.name} does not take its own memories back: its memories are not accepted"
    return ""


def reading_tokens(view: Sequence[Item], model: Model) -> int:
    """Raw tokens that a view costs a model more where it reads a memory in words; below 0: less."""
    memory, family = memory_of(view), model.capabilities.family
    if memory is None or not reads_in_words(model, memory):
        return 0
    return estimate_item(read_by_others(memory), family) - estimate_item(memory, family)


def provenance(memory: OpaqueItem, tokens: int) -> dict[str, Any]:
    """What a memory is, for display and for the log's figures: model, tokens, hashes; no content."""
    return {
        "model": maker_of(memory),
        "tokens": tokens,
        "payload_sha256": memory.digest,
        "source_hash": memory.source_hash,
        "readable_characters": len(memory.readable),
    }
