"""A function from a request to a reply, as a model of this runtime has it, put behind the wire of a provider.

    agent = ProviderAgent("anthropic", function, summarize=lambda request: "What happened: ...")
    with ProviderServer(agent, wire="anthropic", strict=True, bind_reasoning=True, compacts=agent.compact) as server:
        ...

So a whole agent that needs no key runs through the real adapters, streams and checks, also through compactions by the
provider. What the wire does not carry is lost, as it is for every model: a tool result is its text, whose first line is
taken for the summary, and on `openai` and `openai-chat` it has no status. On `openai-chat` the texts of the user's side
between two replies are one message: what the runtime wrapped is found in it again, the user's own messages in between are one.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias, cast, get_args

from worker.items import (
    AssistantItem,
    ContextItem,
    ContextKind,
    Item,
    OrderItem,
    ReasoningItem,
    ResultStatus,
    ToolCallItem,
    ToolResultItem,
    UserItem,
    make_call,
)
from worker.models.base import Reply, Request, ToolSpec
from worker.testing.function_model import COUNTED
from worker.testing.provider_compaction import seen
from worker.testing.provider_http import RecordedRequest
from worker.testing.provider_steps import Answer
from worker.testing.provider_wires import Call, Tokens, WireName

ReplyFunction: TypeAlias = Callable[[Request], Reply]

_WRAPPED = re.compile(
    r'<(?:context kind="(?P<kind>\w+)"(?: source="(?P<source>[^"]*)")?|order tag="(?P<tag>[^"]*)")>\n'
    r"(?P<text>.*)\n</(?:context|order)>",
    re.DOTALL,
)
_PIECES = re.compile(
    r"(?:\A|(?<=\n\n))<(?P<tag>context|order) [^>\n]*>\n.*?\n</(?P=tag)>(?=\n\n|\Z)",
    re.DOTALL,
)
"""What is wrapped in a text that joins several by blank lines."""


class ProviderAgent:
    """Answers the requests of a `ProviderServer` by a function. Stateless: it may serve several servers at once.

    `summarize` makes the summaries of `compact`; without it they are the texts of the user's side, in order.
    `status_of` tells the status of a tool result from its text, where the wire does not say it.
    """

    def __init__(
        self,
        wire: WireName,
        function: ReplyFunction,
        *,
        summarize: Callable[[Request], str] | None = None,
        status_of: Callable[[str], ResultStatus] = lambda _: "ok",
    ) -> None:
        self.wire: WireName = wire
        self._function = function
        self._summarize = summarize or _texts
        self._status_of = status_of

    def __call__(self, request: RecordedRequest) -> Answer:
        """The function's reply as a step."""
        reply = self._function(self.request(request))
        text = "\n\n".join(item.text for item in reply.items if item.type == "assistant")
        reasoning = "\n\n".join(item.text for item in reply.items if item.type == "reasoning")
        calls = [Call(item.name, item.arguments, item.call_id) for item in reply.items if item.type == "tool_call"]
        used = reply.usage
        usage: Tokens | Literal["auto"] | None = "auto"
        if used is not COUNTED:
            shares = (used.output_tokens, used.cached_tokens, used.cache_write_tokens)
            usage = None if used.input_tokens is None else Tokens(used.input_tokens, *shares)
        stop = None if reply.stop in ("end", "tool_calls", "unknown") else reply.stop
        return Answer(text, calls=calls, reasoning=reasoning, usage=usage, stop=stop)

    def compact(self, request: RecordedRequest) -> str:
        """The summary of what a request holds, for a server's `compacts`."""
        return self._summarize(self.request(request))

    def request(self, request: RecordedRequest) -> Request:
        """A recorded request as the function sees it: memories opened, in items that have the same ids each time."""
        body = seen(self.wire, request.json).body
        match self.wire:
            case "openai":
                system, items = body.get("instructions"), _responses_items(body, self._status_of)
            case "anthropic":
                system, items = body.get("system"), _messages_items(body)
            case "openai-chat":
                system, items = _chat_system(body), _chat_items(body, self._status_of)
        longest = (body.get(key) for key in ("max_output_tokens", "max_completion_tokens", "max_tokens"))
        return Request(
            system=_text(system),
            tools=tuple(_spec(tool.get("function") or tool) for tool in _blocks(body.get("tools"))),
            items=tuple(_named(items)),
            encoded=json.dumps(body.get("input" if self.wire == "openai" else "messages")).encode(),
            max_output_tokens=next((int(tokens) for tokens in longest if tokens), 0),
            cache_key=str(body.get("prompt_cache_key", "")),
        )


def _named(items: Iterator[Item]) -> Iterator[Item]:
    """The items with ids that follow from all that stands before them."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(item.model_dump_json(exclude={"id"}).encode())
        yield item.model_copy(update={"id": digest.hexdigest()[:32]})


def _messages_items(body: dict[str, Any]) -> Iterator[Item]:
    names: dict[str, str] = {}
    for number, message in enumerate(_blocks(body.get("messages"))):
        for block in _blocks(message["content"]):
            match block.get("type"):
                case "text" if message["role"] == "user":
                    yield _said(block["text"])
                case "text":
                    yield AssistantItem(text=block["text"], reply=f"r{number}")
                case "thinking":
                    yield _thought(block, block.get("thinking", ""), f"r{number}")
                case "tool_use":
                    names[block["id"]] = block["name"]
                    yield _call(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False), number)
                case "tool_result":
                    text = _text(block.get("content"))
                    yield _result(block["tool_use_id"], names, text, "error" if block.get("is_error") else "ok")
                case _:
                    pass


def _responses_items(body: dict[str, Any], status_of: Callable[[str], ResultStatus]) -> Iterator[Item]:
    names: dict[str, str] = {}
    replies, inside = 0, False
    for item in _blocks(body.get("input")):
        kind = item.get("type", "message")
        of_model = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        replies += of_model and not inside
        inside = of_model
        match kind:
            case "message" if of_model:
                yield AssistantItem(text=_text(item["content"]), reply=f"r{replies}")
            case "message":
                for part in _blocks(item["content"]):
                    if part.get("type") == "input_text":
                        yield _said(part["text"])
            case "reasoning":
                yield _thought(item, _text(item.get("summary")), f"r{replies}")
            case "function_call":
                names[item["call_id"]] = item["name"]
                yield _call(item["call_id"], item["name"], item["arguments"], replies)
            case "function_call_output":
                text = _text(item["output"])
                yield _result(item["call_id"], names, text, status_of(text))
            case _:
                pass


def _chat_system(body: dict[str, Any]) -> str:
    messages = _blocks(body.get("messages"))
    return "\n\n".join(_text(x.get("content")) for x in messages if x["role"] in ("system", "developer"))


def _chat_items(body: dict[str, Any], status_of: Callable[[str], ResultStatus]) -> Iterator[Item]:
    names: dict[str, str] = {}
    for number, message in enumerate(_blocks(body.get("messages"))):
        text = _text(message.get("content"))
        match message["role"]:
            case "user":
                yield from (_said(piece) for piece in _pieces(text) if piece)
            case "assistant":
                if text:
                    yield AssistantItem(text=text, reply=f"r{number}")
                for call in _blocks(message.get("tool_calls")):
                    made = call["function"]
                    names[call["id"]] = made["name"]
                    yield _call(call["id"], made["name"], made["arguments"], number)
            case "tool":
                yield _result(message["tool_call_id"], names, text, status_of(text))
            case _:
                pass


def _pieces(text: str) -> Iterator[str]:
    """What the runtime wrapped in a text, and what stands between."""
    at = 0
    for found in _PIECES.finditer(text):
        yield text[at : found.start()].removesuffix("\n\n")
        yield found[0]
        at = found.end() + 2
    yield text[at:]


def _spec(tool: dict[str, Any]) -> ToolSpec:
    return ToolSpec(tool["name"], tool.get("description", ""), tool.get("parameters") or tool["input_schema"])


def _said(text: str) -> Item:
    """A text of the user's side: what the runtime has wrapped is what it was before, all else are the user's words."""
    found = _WRAPPED.fullmatch(text)
    if found is None:
        return UserItem(text=text)
    if found["tag"] is not None:
        return OrderItem(text=found["text"], tag=html.unescape(found["tag"]))
    if found["kind"] not in get_args(ContextKind):
        return UserItem(text=text)
    kind = cast("ContextKind", found["kind"])
    trust = "user" if kind == "user_words" else "runtime"
    return ContextItem(kind=kind, text=found["text"], source=html.unescape(found["source"] or ""), trust=trust)


def _thought(block: dict[str, Any], text: str, reply: str) -> ReasoningItem:
    return ReasoningItem(provider="", model="", payload=json.dumps(block), text=text, reply=reply)


def _call(call_id: str, name: str, arguments: str, reply: int) -> ToolCallItem:
    return make_call(call_id, name, arguments).model_copy(update={"reply": f"r{reply}"})


def _result(call_id: str, names: dict[str, str], text: str, status: ResultStatus) -> ToolResultItem:
    summary, found, content = text.partition("\n")
    return ToolResultItem(
        call_id=call_id, name=names.get(call_id, ""), status=status, summary=summary, content=content if found else None
    )


def _texts(request: Request) -> str:
    return "\n\n".join(item.text for item in request.items if item.type == "user" or item.type == "context")


def _blocks(value: object) -> list[dict[str, Any]]:
    """The objects of a list; a text is one block."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    return cast("list[dict[str, Any]]", value) if isinstance(value, list) else []


def _text(value: object) -> str:
    return "".join(str(block.get("text", "")) for block in _blocks(value))
