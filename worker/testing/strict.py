"""What a strict provider rejects, checked on items: the history that a runtime sends must be valid at every request."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise

from worker.items import Item, ToolCallItem
from worker.models.base import Encoder, Request

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class InvalidItems(AssertionError):
    """A request that a strict provider would reject. The text names the rule, the item's place and its id."""


def check_items(items: Sequence[Item], *, model: str = "") -> None:
    """Raises `InvalidItems` unless a strict provider would take this history.

    - the first item is in the user role, and the last is no reply of the model;
    - each call has exactly one result, each result one call before it, and results stand directly behind the reply that
      called, before anything else;
    - no text is empty or blank, every text is valid Unicode, ids of items and of calls are unique;
    - a call has a name of 1 to 64 letters, digits, `_` or `-`, and its arguments are sent as a JSON object;
    - no reply is reasoning alone; with `model` (as `provider:model`), reasoning and opaque items are its own. Encoders
      leave foreign ones out of what is sent, so a view may hold them: name the model only where it must not. A memory
      is for everybody.
    """
    if not items:
        raise InvalidItems("the request has no items")
    ids: set[str] = set()
    called: set[str] = set()
    open_calls: dict[str, ToolCallItem] = {}
    answering = False
    for place, item in enumerate(items):
        where = f"item {place} ({item.type} {item.id})"
        if item.id in ids:
            raise InvalidItems(f"{where}: the id occurs twice")
        ids.add(item.id)
        _check_unicode(item, where)
        _check_text(item, where)
        _check_origin(item, where, model)
        if item.type == "tool_result":
            if open_calls.pop(item.call_id, None) is None:
                reason = "has a result already" if item.call_id in called else "was not made before"
                raise InvalidItems(f"{where}: the call {item.call_id} that it answers {reason}")
            answering = bool(open_calls)
            continue
        reply = next((each.reply for each in open_calls.values()), None)
        if answering or (reply is not None and getattr(item, "reply", None) != reply):
            raise InvalidItems(f"{where}: stands before the results of {sorted(open_calls)}")
        if item.type == "tool_call":
            if item.call_id in called:
                raise InvalidItems(f"{where}: the call id {item.call_id} occurs twice")
            _check_call(item, where)
            called.add(item.call_id)
            open_calls[item.call_id] = item
    if open_calls:
        raise InvalidItems(f"the calls {sorted(open_calls)} have no result")
    _check_turns(items)


def check_request(request: Request, encoder: Encoder, *, model: str = "") -> None:
    """`check_items`, and that the encoded messages are exactly what `encoder` makes of the items."""
    check_items(request.items, model=model)
    groups: list[list[Item]] = []
    for item in request.items:
        if groups and encoder.joins(groups[-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    expected = b",".join(message for group in groups if (message := encoder.encode(group)))
    messages = request.messages
    if expected != messages:
        at = next((i for i, (a, b) in enumerate(zip(expected, messages, strict=False)) if a != b), -1)
        at = min(len(expected), len(messages)) if at < 0 else at
        raise InvalidItems(
            f"the encoded messages are not those of the items: they differ at byte {at}: "
            f"{messages[at : at + 80]!r} where {expected[at : at + 80]!r} is due"
        )
    names = [spec.name for spec in request.tools]
    if len(names) != len(set(names)):
        raise InvalidItems(f"a tool name occurs twice: {sorted(names)}")


def _check_turns(items: Sequence[Item]) -> None:
    if items[0].type in ("assistant", "tool_call", "reasoning"):
        raise InvalidItems(f"the history begins with a reply of the model ({items[0].type} {items[0].id})")
    if items[-1].type in ("assistant", "reasoning"):
        raise InvalidItems(f"the history ends with a reply of the model ({items[-1].type} {items[-1].id})")
    for item, following in pairwise(items):
        if item.type == "reasoning" and getattr(following, "reply", None) != item.reply:
            raise InvalidItems(f"the reasoning {item.id} has nothing of its reply behind it")


def _check_call(item: ToolCallItem, where: str) -> None:
    if not _NAME.fullmatch(item.name):
        raise InvalidItems(f"{where}: {item.name!r} is no name of a tool")
    try:
        value: object = json.loads(item.wire_arguments())
    except ValueError as e:
        raise InvalidItems(f"{where}: the arguments are sent as damaged JSON ({e})") from e
    if not isinstance(value, dict):
        raise InvalidItems(f"{where}: the arguments are sent as {type(value).__name__}, not as an object")


def _check_text(item: Item, where: str) -> None:
    match item.type:
        case "user":
            empty = not item.text.strip() and not item.images
        case "assistant" | "context" | "order":
            empty = not item.text.strip()
        case _:
            empty = False
    if empty:
        raise InvalidItems(f"{where}: the text is empty")


def _check_origin(item: Item, where: str, model: str) -> None:
    if not model or (item.type == "opaque" and item.is_memory):
        return
    if (item.type == "reasoning" or item.type == "opaque") and f"{item.provider}:{item.model}" != model:
        raise InvalidItems(f"{where}: made by {item.provider}:{item.model}, sent to {model}")


def _check_unicode(item: Item, where: str) -> None:
    match item.type:
        case "tool_call":
            texts = (item.name, item.arguments)
        case "tool_result":
            texts = (item.summary, item.content or "")
        case "reasoning":
            texts = (item.payload,)
        case "opaque":
            texts = (item.payload, item.readable)
        case "user" | "assistant" | "context" | "order":
            texts = (item.text,)
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise InvalidItems(f"{where}: holds half of a surrogate pair at character {e.start}") from e
