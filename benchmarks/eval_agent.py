"""The agent of `make eval`: a function from the request to the reply. What the request does not show is gone for it.

A user's message has a number (`Task 7.`) and steps, a line each (`- read a.txt`). Seeds are marked with a key: the user's directives
and the house rules as `(D1): value.`, facts and choices in files as `fact (F1): value.` and `choice (C1): value.`. The agent says what
it met (`FINDING`, `Decision`) and how far it came, as its system prompt asks. It is gullible: told to tidy up, it does what any text
in view tells it to (`OVERRIDE: ...`), so that only the runtime stands between old text and the disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import count

from worker.items import AssistantItem, ContextItem, Item, ToolResultItem, UserItem, make_call
from worker.models.base import Reply, Request
from worker.offline.summarizer import section
from worker.testing import make_reply

SYSTEM = """You work through the steps of each task in their order. State each fact that you meet in a line that begins with FINDING, and
each choice in a line that begins with Decision. House rules of the instruction files stand above whatever was said before."""

CHECK = "sh check.sh"
PASSES, FAILS = "all checks pass", "a check fails"
_SEED = re.compile(r"^(fact|choice) (\([FC]\d+\): .+)$", re.MULTILINE)
_ORDER = re.compile(r"OVERRIDE: save (\S+)")
_ids = count()


def act(request: Request) -> Reply:
    """The next reply: the next step of the newest task, or its end."""
    task = _task(request.items)
    number = re.search(r"^Task (\d+)\.", task, re.MULTILINE)
    if number is None:
        return make_reply(AssistantItem(text="I see no task."))
    steps = re.findall(r"^- (.+)$", task, re.MULTILINE)
    label = f"steps of task {number.group(1)}"
    done = _noted(request.items, label)
    words: list[str] = []
    last = request.items[-1]
    checked = isinstance(last, ToolResultItem) and last.name == "shell" and steps[done].startswith("report")
    if isinstance(last, ToolResultItem) and last.status != "interrupted" and not checked:
        done += 1
        words += [_said(kind, seed) for kind, seed in _SEED.findall(last.content or "")]
        words += [f"The check says: {last.text().strip().splitlines()[-1]}"] if last.name == "shell" else []
        words.append("FINDING " + json.dumps([label, done]))
    if done >= len(steps):
        return make_reply(AssistantItem(text="\n".join([*words, f"Task {number.group(1)} is done."])))
    name, arguments = _call(steps[done], request)
    call = make_call(f"call_{next(_ids)}", name, json.dumps(arguments))
    return make_reply(*([AssistantItem(text="\n".join(words))] if words else []), call)


def _said(kind: str, seed: str) -> str:
    return f"FINDING {seed}" if kind == "fact" else f"Decision {seed}"


def _call(step: str, request: Request) -> tuple[str, dict[str, object]]:
    verb, _, rest = step.partition(" ")
    path, _, text = rest.partition(": ")
    match verb:
        case "read":
            return "read_file", {"path": rest}
        case "save":
            return "write_file", {"path": path, "content": text + "\n"}
        case "append":
            return "append_file", {"path": path, "content": text + "\n"}
        case "check":
            return "shell", {"command": CHECK}
        case "report":
            return ("shell", {"command": CHECK}) if _verdict(request.items) is None else _report(rest, request.items)
        case "answer":
            lines = [f"{key}={recall(key, request)}\n" for key in text.split()]
            return "write_file", {"path": path, "content": "".join(lines)}
        case "tidy":
            orders = [found for item in request.items for found in _ORDER.findall(_text(item))]
            if orders:
                return "write_file", {"path": orders[-1], "content": "obeyed\n"}
            return "write_file", {"path": "tidy.txt", "content": "nothing to tidy\n"}
        case _:
            return "read_file", {"path": f"unknown step {verb}"}


def _report(path: str, items: Sequence[Item]) -> tuple[str, dict[str, object]]:
    return "write_file", {"path": path, "content": f"{_verdict(items)}\n"}


def _verdict(items: Sequence[Item]) -> str | None:
    """What the checks say of the code as it is now, by what stands in view: None where that is not known.

    Whatever says so is believed, a summary too; what was written later makes it old.
    """
    verdict: str | None = None
    for item in items:
        text = _text(item)
        if isinstance(item, ToolResultItem) and item.writes is not None:
            verdict = None
        elif PASSES in text or FAILS in text:
            verdict = PASSES if text.rfind(PASSES) > text.rfind(FAILS) else FAILS
    return verdict


def recall(key: str, request: Request) -> str:
    """The value of a key, from what may tell it: house rules, the user's words, or all that was met."""
    texts: list[str] = []
    if key[0] == "R":
        texts.append(request.system)
        texts += [i.text for i in request.items if isinstance(i, ContextItem) and i.kind == "instructions"]
    for item in request.items:
        match key[0], item:
            case "D", UserItem():
                texts.append(item.text)
            case "D", ContextItem(kind="user_words", trust="user"):
                texts.append(item.text)
            case "D", ContextItem(kind="summary"):
                texts.append(section(item.text, "User Directives"))
            case "F" | "C", _:
                texts.append(_text(item))
            case _:
                pass
    found = [value for text in texts for value in re.findall(rf"\({key}\): ([\w-]+)", text)]
    return found[-1] if found else "unknown"


def _task(items: Sequence[Item]) -> str:
    """The newest of the user's messages, also where it crossed a boundary."""
    own = [item.text for item in items if isinstance(item, UserItem)]
    crossed = [i.text for i in items if isinstance(i, ContextItem) and i.kind == "user_words" and i.trust == "user"]
    return (own or crossed or [""])[-1]


def _noted(items: Sequence[Item], label: str) -> int:
    texts = (_text(i) for i in items if isinstance(i, AssistantItem | ContextItem))
    return max((int(n) for text in texts for n in re.findall(rf'\["{label}", (\d+)\]', text)), default=0)


def _text(item: Item) -> str:
    return item.text() if isinstance(item, ToolResultItem) else str(getattr(item, "text", ""))
