"""Where the retained tail begins: pure, at settled points only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.items import AssistantItem, Item, OpaqueItem, ReasoningItem, ToolCallItem, ToolResultItem
from worker.memory import memory_of

_OF_A_REPLY = AssistantItem | ReasoningItem | ToolCallItem | OpaqueItem


@dataclass(frozen=True, slots=True)
class Cut:
    """Items before `at` are summarised, the others kept. `tokens` is the tail's size, `mandatory` where the part begins that must stay."""

    at: int
    tokens: int
    mandatory: int


def group_starts(view: Sequence[Item]) -> list[int]:
    """Where the view can be parted: before each item that is not the inside of a reply with its results.

    A reply (reasoning, text, calls) and the results of its calls are one group and are never split (cases B013, B014, B020).
    A provider's memory is nobody's reply.
    """
    starts: list[int] = []
    reply: str | None = None
    for at, item in enumerate(view):
        if isinstance(item, OpaqueItem) and item.is_memory:
            starts.append(at)
            reply = None
        elif isinstance(item, _OF_A_REPLY):
            if reply is None or item.reply != reply:
                starts.append(at)
            reply = item.reply
        elif not isinstance(item, ToolResultItem):
            starts.append(at)
            reply = None
        elif reply is None and (at == 0 or not isinstance(view[at - 1], ToolResultItem)):
            starts.append(at)
    return starts


def find_cut(
    view: Sequence[Item], tokens: Sequence[int], retained: int, *, unanswered: int = 0, newest_batch: int = 0
) -> Cut:
    """The longest tail of whole groups that has at most `retained` tokens, and at least what the model has not answered.

    `unanswered` is the place (counted from 1; 0 for none) of the first admitted input without a reply, `newest_batch` where the
    newest reply begins (0 where this segment has none yet: then the last one of the carried tail counts); its batch is mandatory
    while its results have not been answered. A provider's memory at the beginning is never a part of the tail: it stands first,
    or in what is summarised.
    """
    least = 1 if memory_of(view) is not None else 0
    starts = [start for start in group_starts(view) if start >= least]
    end = len(view)
    newest_batch = newest_batch or next((s for s in reversed(starts) if isinstance(view[s], _OF_A_REPLY)), end)
    mandatory = end
    if unanswered:
        mandatory = min(mandatory, unanswered - 1)
    if view and any(isinstance(item, ToolResultItem) for item in view[newest_batch:]):
        mandatory = min(mandatory, newest_batch)
    mandatory = max((s for s in starts if s <= mandatory), default=least) if mandatory < end else end
    at, size = end, 0
    for start in reversed(starts):
        group = sum(tokens[start:at])
        if start < mandatory and size + group > retained:
            break
        at, size = start, size + group
    return Cut(at=at, tokens=size, mandatory=mandatory)
