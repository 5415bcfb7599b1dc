"""`offline:summarizer`: plays the compact worker by rules, deciding only from the request it is given.

It knows nothing of what was being worked on. A fact, to it, is any line of the agent's own text that begins with
`FINDING `; what follows is kept as it is, and so are the findings of the previous summary. A fact that is written as
a JSON list has its first element as its subject, and a newer fact on the same subject replaces the older one. Where
it continues the conversation itself (`write_summary` takes `reread`), all of it is in view; where it starts from an
overview, it searches the session for facts that the overview leaves out and reads them. It looks up how long the file
is that the agent wrote last and has its end read again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.estimate import estimate_text
from worker.items import AssistantItem, Item, ToolCallItem, ToolResultItem, make_call
from worker.models.base import Reply, Request
from worker.testing.function_model import make_reply

FACT = "FINDING "
"""Begins a line that states a fact."""

MAX_TOKENS = 3_000
"""Tokens of a summary where the order does not name a limit."""

ROOM = 0.95
"""Share of the limit that is used, and of what a refusal leaves of it."""

REPLIES = 12
"""Replies after which nothing more is looked up."""

HITS = 50
"""Hits that one search asks for."""

SPAN = 80
"""Items that one reading asks for at most."""

END_LINES = 2
"""Lines at the end of the file written last that are read again."""

DIRECTIVE_CHARS = 600
"""Characters up to which a line of the user's is quoted; a longer one is not cut but left out."""

_LIMIT = re.compile(r"\bsummary_max_tokens=(\d+)")
_SUBJECT = re.compile(r'\[("(?:[^"\\]|\\.)*"),.*\]')
_TOO_LONG = re.compile(r"has ([\d,]+) tokens, more than summary_max_tokens=(\d+)")
_BLOCK = re.compile(r"^\[item (\d+), ([^\]\n]+)\]\n", re.MULTILINE)
_CUT = re.compile(r"(?:… \([\d,]+ more characters\)|\[cut here[^\n]*\])\s*$")
_PREVIOUS = "The previous summary, to be updated:\n"
_AFTER_MESSAGES = re.compile(
    r"\n\n(?=(?:\[items? |Tool calls, the newest|Files touched last|Task list as|The previous summary))"
)
_HIT = re.compile(r"^item (\d+) \((assistant|context: summary[^)]*)\):", re.MULTILINE)
_NEXT_HITS = re.compile(r"\bgo on with offset=(\d+)")
_WRITTEN = re.compile(r"\b(?:append_file|write_file|edit_file) (\S+): ")
_COUNT_OF_LINES = re.compile(r"\bof (\d+)\b")
_DIRECTIVE = re.compile(
    r"\b(?:must|never|always|do not|don't|only|please|keep|use|order|title|last line|when you|write|avoid|prefer)\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"^- 「(.+)」", re.MULTILINE)
_LEFT_OUT = re.compile(r"\d+ older facts did not fit here")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_WRITERS = ("append_file", "write_file", "edit_file")


@dataclass(slots=True)
class Material:
    """What is known of the conversation: texts in order, and the calls that touched files."""

    users: list[str] = field(default_factory=list[str])
    said: list[str] = field(default_factory=list[str])
    previous: str = ""
    last_calls: list[str] = field(default_factory=list[str])
    written: list[str] = field(default_factory=list[str])
    read: list[str] = field(default_factory=list[str])
    calls: int = 0

    def facts(self) -> list[str]:
        """All facts, oldest first, each once. Of those on one subject only the newest is kept."""
        entries = (line.strip().removeprefix("- ") for line in section(self.previous, "Findings").split("\n"))
        old = (entry.removeprefix(FACT) for entry in entries if entry != "none" and not _LEFT_OUT.match(entry))
        new = (line.removeprefix(FACT) for text in self.said for line in text.split("\n") if line.startswith(FACT))
        kept: dict[str, str] = {}
        for fact in (*old, *new):
            if fact.strip():
                kept.pop(subject(fact), None)
                kept[subject(fact)] = fact.strip()
        return list(kept.values())


@dataclass(slots=True)
class Looked:
    """What was looked up since the order: calls with their results, and how often a summary was refused."""

    pairs: list[tuple[ToolCallItem, ToolResultItem]] = field(default_factory=list[tuple[ToolCallItem, ToolResultItem]])
    replies: int = 0
    refusals: int = 0
    shrunk: float = 1.0
    recorded: bool = False
    told_to_finish: bool = False

    def of(self, name: str) -> list[tuple[dict[str, Any], ToolResultItem]]:
        """Arguments and results of the calls of one tool."""
        return [(call.parsed or {}, result) for call, result in self.pairs if call.name == name]


def is_asked(request: Request) -> bool:
    """Whether the runtime has ordered a summary: an order names the limit, and there is a tool to hand it over."""
    return _order_at(request.items) is not None and any(spec.name == "write_summary" for spec in request.tools)


def summarize(request: Request) -> Reply:
    """The next reply of a compact worker: a pure function of the request."""
    at = _order_at(request.items)
    if at is None or not is_asked(request):
        return make_reply(AssistantItem(text="I write summaries when the runtime orders one."))
    tools = {spec.name: spec.parameters.get("properties", {}) for spec in request.tools}
    looked = _looked(request.items[at:])
    if looked.recorded:
        return make_reply(AssistantItem(text="The summary is recorded; nothing more is needed in view."))
    whole = "reread" in tools["write_summary"]
    first = next((i for i, item in enumerate(request.items) if item.type in ("assistant", "tool_call")), at)
    material = _whole(request.items[:at]) if whole else _from_overview(request.items[: max(first, at)], looked)
    calls: list[tuple[str, dict[str, Any]]] = []
    if not looked.refusals and not looked.told_to_finish and looked.replies < REPLIES:
        calls = [] if whole else _search(looked)
        calls += _measure(material, looked, tools)
    if not calls:
        limit = _limit(request.items)
        text = write(material, int(limit * ROOM * looked.shrunk))
        calls = _hand_over(text, material, looked, whole)
    seed = f"{request.items[-1].id}/{looked.replies}"
    return make_reply(*(_call(seed, number, name, arguments) for number, (name, arguments) in enumerate(calls)))


def write(material: Material, limit: int) -> str:
    """The summary, within `limit` tokens: facts that do not fit are left out, the oldest first, and counted."""
    facts = material.facts()
    room = limit - _tokens(_text(material, [], 0)) - 24
    kept: list[str] = []
    for fact in reversed(facts):
        room -= _tokens(f"- {fact}\n")
        if room < 0:
            break
        kept.append(fact)
    return _text(material, kept[::-1], len(facts) - len(kept))


def subject(fact: str) -> str:
    """What a fact is about: the first element of a fact that is written as a JSON list of text and more, else all of
    it."""
    found = _SUBJECT.match(fact.strip())
    return found.group(1) if found else fact.strip()


def _tokens(text: str) -> int:
    return estimate_text(text, "o200k")


def section(summary: str, name: str) -> str:
    """The body of one section of a summary."""
    found = re.search(rf"^## {re.escape(name)}[ \t]*\n(.*?)(?=^## |\Z)", summary, re.MULTILINE | re.DOTALL)
    return found.group(1).strip() if found else ""


def _text(material: Material, facts: Sequence[str], left_out: int) -> str:
    newest = material.users[-1] if material.users else material.previous
    goal = next((line.strip() for line in newest.split("\n") if line.strip()), "the task in the user's words")[:160]
    number = max(len(material.users), 1)
    prose = [line for text in material.said for line in text.split("\n") if line.strip() and not line.startswith(FACT)]
    decisions = [line for line in prose if line.lower().startswith("decision")]
    done = [f"- {material.calls} calls of tools so far"] if material.calls else []
    done += [f"- files written: {', '.join(material.written[-5:])}"] if material.written else []
    old_decisions = section(material.previous, "Key Decisions")
    work = [line[:300] for line in prose[-2:]]
    work += [f"Last calls: {'; '.join(material.last_calls[-4:])}"] if material.last_calls else []
    findings = [f"- {fact}" for fact in facts] + ([f"- {left_out} older facts did not fit here"] if left_out else [])
    parts = {
        "Completed Tasks": section(material.previous, "Completed Tasks") or "- nothing is finished yet",
        "Active Task": "\n".join([f"### [T{number}] {goal}", "- Goal: what the user asked for, in their words", *done]),
        "Key Decisions": "\n".join([old_decisions, *(f"- {line}" for line in decisions)]).strip(),
        "User Directives": "\n".join(f"- 「{line}」" for line in _directives(material)),
        "Findings": "\n".join(findings),
        "Current Work": "\n".join(work),
    }
    return "\n\n".join(f"## {name}\n{body or '- none'}" for name, body in parts.items()) + "\n"


def _directives(material: Material) -> list[str]:
    """Those of the previous summary, then what the user's messages add."""
    before = _QUOTED.findall(section(material.previous, "User Directives"))
    lines = (line.strip() for text in material.users for line in text.split("\n"))
    sentences = (part for line in lines for part in ([line] if len(line) <= DIRECTIVE_CHARS else _SENTENCE.split(line)))
    wanted = [part for part in sentences if _DIRECTIVE.search(part) and len(part) <= DIRECTIVE_CHARS]
    return list(dict.fromkeys([*before, *wanted]))[:40]


# What the request shows.


def _order_at(items: Sequence[Item]) -> int | None:
    """The place of the order for a summary."""
    return next((i for i, item in enumerate(items) if item.type == "order" and _LIMIT.search(item.text)), None)


def _limit(items: Sequence[Item]) -> int:
    found = [int(number) for item in items if item.type == "order" for number in _LIMIT.findall(item.text)]
    return found[-1] if found else MAX_TOKENS


def _looked(items: Sequence[Item]) -> Looked:
    looked = Looked()
    calls: dict[str, ToolCallItem] = {}
    reply: str | None = None
    for place, item in enumerate(items):
        match item.type:
            case "tool_call":
                calls[item.call_id] = item
                looked.replies += item.reply != reply
                reply = item.reply
            case "tool_result" if item.call_id in calls:
                looked.pairs.append((calls[item.call_id], item))
                if item.name == "write_summary":
                    looked.recorded |= item.status == "ok"
                    looked.refusals += item.status != "ok"
                    looked.shrunk *= 1.0 if item.status == "ok" else _shrinking(item.summary)
            case "order" if place:
                looked.told_to_finish = True
            case _:
                pass
    return looked


def _shrinking(refusal: str) -> float:
    """By how much the next summary must be smaller."""
    found = _TOO_LONG.search(refusal)
    has, may = (int(number.replace(",", "")) for number in found.groups()) if found else (1, 1)
    return ROOM * min(may / max(has, 1), 1.0)


def _whole(items: Sequence[Item]) -> Material:
    """The conversation itself, as the request shows it."""
    material = Material()
    for item in items:
        match item.type:
            case "user":
                material.users.append(item.text)
            case "assistant":
                material.said.append(item.text)
            case "context":
                if item.kind == "user_words" and item.trust == "user":
                    material.users.append(item.text)
                elif item.kind == "summary":
                    material.previous = item.text
            case "tool_call":
                arguments = item.parsed or {}
                path = str(arguments.get("path", ""))
                material.calls += 1
                material.last_calls.append(f"{item.name} {path}".strip()[:120])
                if path:
                    _touch(material.written if item.name in _WRITERS else material.read, path)
            case _:
                pass
    return material


def _from_overview(items: Sequence[Item], looked: Looked) -> Material:
    """What an overview and later readings show: messages by their number, the longest form of each."""
    overview = "\n\n".join(item.text for item in items if item.type == "user" or item.type == "context")
    blocks = _blocks(_before(overview, _PREVIOUS))
    for _, result in looked.of("read_session_items"):
        for number, (label, text) in _blocks(result.content or "").items():
            if number not in blocks or len(text) > len(blocks[number][1]):
                blocks[number] = (label, text)
    material = Material(previous=overview.partition(_PREVIOUS)[2])
    for _, (label, text) in sorted(blocks.items()):
        complete = _CUT.search(text) is None
        if label == "user" or label.startswith("context: user_words"):
            material.users += [text] if complete else []
        elif label == "assistant":
            lines = text.split("\n")
            material.said.append("\n".join(lines if complete else lines[:-1]))
        elif label.startswith("context: summary") and complete:
            material.previous = text
    for path in _WRITTEN.findall(overview):
        _touch(material.written, path)
    material.last_calls = [line[2:122] for line in overview.split("\n") if line.startswith("- [item ")]
    material.calls = len(material.last_calls)
    files = _before(overview.partition("Files touched last, newest first:\n")[2], "\n\n")
    material.read = [line.removeprefix("- ") for line in reversed(files.split("\n")) if line.startswith("- ")]
    return material


def _blocks(text: str) -> dict[int, tuple[str, str]]:
    found = list(_BLOCK.finditer(text))
    ends = [each.start() for each in found[1:]] + [len(text)]
    blocks: dict[int, tuple[str, str]] = {}
    for each, end in zip(found, ends, strict=True):
        body = _AFTER_MESSAGES.split(text[each.end() : end], maxsplit=1)[0].rstrip("\n")
        blocks[int(each.group(1))] = (each.group(2), body)
    return blocks


def _before(text: str, mark: str) -> str:
    return text.partition(mark)[0]


def _touch(paths: list[str], path: str) -> None:
    if path in paths:
        paths.remove(path)
    paths.append(path)


# What is still to be looked up, and what is handed over.


def _search(looked: Looked) -> list[tuple[str, dict[str, Any]]]:
    """Searches for facts, then readings of the items that hold them, as long as some are missing."""
    searches = looked.of("search_session_log")
    if not searches:
        return [("search_session_log", {"query": FACT.strip(), "limit": HITS})]
    calls: list[tuple[str, dict[str, Any]]] = []
    more = _NEXT_HITS.search(searches[-1][1].summary)
    if more:
        calls.append(("search_session_log", {"query": FACT.strip(), "offset": int(more.group(1)), "limit": HITS}))
    wanted = sorted({int(hit.group(1)) for _, result in searches for hit in _HIT.finditer(result.content or "")})
    shown: dict[int, bool] = {}
    for arguments, result in looked.of("read_session_items"):
        for number, (_, text) in _blocks(result.content or "").items():
            shown[number] = arguments.get("mode") == "full" or _CUT.search(text) is None
    asked = [arguments for arguments, _ in looked.of("read_session_items")]
    missing = [number for number in wanted if number not in shown]
    readings = [{"offset": a, "limit": b - a + 1, "mode": "brief"} for a, b in _spans(missing)]
    readings += [{"offset": n, "limit": 1, "mode": "full"} for n in wanted if shown.get(n) is False]
    calls += [("read_session_items", reading) for reading in readings if reading not in asked]
    return calls[:6]


def _spans(numbers: Sequence[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number - spans[-1][0] < SPAN and number - spans[-1][1] <= SPAN // 4:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def _measure(material: Material, looked: Looked, tools: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Asks how long the file is that the agent wrote last."""
    if not material.written or "read_file" not in tools or looked.of("read_file"):
        return []
    return [("read_file", {"path": material.written[-1], "offset": 1, "limit": 1})]


def _hand_over(text: str, material: Material, looked: Looked, whole: bool) -> list[tuple[str, dict[str, Any]]]:
    marks: list[dict[str, Any]] = []
    for arguments, result in looked.of("read_file"):
        lines = _COUNT_OF_LINES.search(result.summary) if result.status == "ok" else None
        if lines:
            marks.append({"path": str(arguments["path"]), "offset": max(int(lines.group(1)) - END_LINES + 1, 1)})
    named = [(path, "written by the agent") for path in reversed(material.written[-4:])]
    named += [(path, "read lately") for path in reversed(material.read[-3:])]
    marked = {mark["path"] for mark in marks}
    references = [{"path": path, "reason": why} for path, why in dict(reversed(named)).items() if path not in marked]
    if whole:
        return [("write_summary", {"text": text, "reread": marks, "references": references})]
    before = [] if looked.refusals else [("mark_read_required", mark) for mark in marks]
    before += [] if looked.refusals else [("add_reference", reference) for reference in references]
    return [*before, ("write_summary", {"text": text})]


def _call(seed: str, number: int, name: str, arguments: dict[str, Any]) -> ToolCallItem:
    label = hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()[:20]
    return make_call(f"call_{label}", name, json.dumps(arguments, ensure_ascii=False))
