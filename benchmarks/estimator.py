"""How good the token estimates are on recorded sessions: `make bench-estimator SESSIONS=FOLDER`.

Each session is replayed through the runtime's own history, request by request, and each estimate is compared with the
truth: o200k_base counts of what is recorded (rows `tokenizer`), and the usage that the session itself recorded (rows
`usage`). The first reports only calibrate. A row holds where the sum of its estimates lies within 10 % of the truth
and no request is under-counted beyond the buffer; the exit code is 1 where a row with a bound does not hold.

Recorded usage also counts what the session does not hold (injected reminders, images, another system prompt): its rows
have the bound on the sum only, and what is beyond the buffer there is shown.

    python benchmarks/estimator.py FOLDER [--only NAME] [--json FILE]
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from worker.budget import DEFAULT_BUFFER
from worker.history import History
from worker.items import AssistantItem, UserItem
from worker.models.base import Usage
from worker.models.table import known
from worker.records import ReplyRecord
from worker.tokenizer import count_blocking, load

BOUND = 0.10
"""How far the sum of the estimates of a session may be from the truth."""

CALIBRATES = 3
"""Reports at the start of a session that are not compared."""

SHRUNK = 0.7
"""A reported input below this share of the one before it means that the session was compacted there."""

CHUNK = 10_000
"""Characters of a format that is not read otherwise that make a request."""

COUNTED_AS = "gpt-4.1"
"""The model of the `tokenizer` rows."""


@dataclass
class Step:
    """One request: what came since the last one, and the reply. Tokens as recorded, where they are."""

    new: list[str]
    reply: list[str] = field(default_factory=list)
    model: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass
class Row:
    """A session against one truth. `ratio` is the sum of the estimates over the sum of the truth, `growth` the same for
    what came since the report before, which alone is estimated, `whole` for one estimate of all that the session holds,
    with what was learned."""

    session: str
    truth: str
    model: str
    requests: int
    ratio: float
    lowest: float
    highest: float
    factor: float
    growth: float
    whole: float
    beyond: int
    bounded: bool

    @property
    def held(self) -> bool:
        return abs(self.ratio - 1) <= BOUND and (not self.bounded or self.beyond == 0)


# -- reading --------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> Iterator[Any]:
    """The JSON values of a file: one a line, or the parts of one document. What cannot be read is passed over."""
    if path.name.endswith(".tar.gz"):
        yield from archived(path)
        return
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
    try:
        whole = json.loads(text)
    except ValueError:
        for line in text.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
        return
    yield from longest_list(whole) or [whole]


def archived(path: Path) -> Iterator[Any]:
    """The events of an archive, one a file, in order."""
    with tarfile.open(path) as archive:
        for member in sorted((m for m in archive if "/event-" in m.name and m.isfile()), key=lambda m: m.name):
            file = archive.extractfile(member)
            if file is not None:
                yield json.load(file)


def longest_list(value: Any) -> list[Any]:
    """The longest list inside a document: its messages or events."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    lists = [value] if isinstance(value, list) else []
    return max([*lists, *(longest_list(each) for each in inner)], key=len, default=[])


def texts(value: Any) -> list[str]:
    """All texts inside a value, in order, but for images, opaque payloads and labels."""
    if isinstance(value, str):
        return [] if value.startswith("data:") else [value]
    if isinstance(value, dict) and not {"media_type", "mimeType"} & value.keys():
        return [t for key, each in value.items() if key not in _NOT_READ for t in texts(each)]
    return [t for each in value for t in texts(each)] if isinstance(value, list) else []


_NOT_READ = frozenset(
    [
        "signature",
        "thinkingSignature",
        "encrypted_content",
        "reasoningOpaque",
        "type",
        "id",
        "role",
        "uuid",
        "tool_use_id",
        "call_id",
        "toolCallId",
        "parentId",
        "parentUuid",
        "timestamp",
        "status",
    ]
)


def claude_code(values: Iterable[Any]) -> Iterator[Step]:
    """Claude Code: fragments of a message carry its id; usage excludes what was cached."""
    pending: list[str] = []
    steps: dict[str, Step] = {}
    for value in values:
        if not isinstance(value, dict) or value.get("isSidechain"):
            continue
        message = value.get("message") or {}
        if value.get("type") == "attachment":
            pending += texts(value.get("attachment"))
        elif value.get("type") == "user":
            pending += texts(message.get("content"))
        elif value.get("type") == "assistant" and message.get("model") != "<synthetic>":
            usage = message.get("usage") or {}
            step = steps.get(message.get("id"))
            if step is None:
                step = steps[message.get("id")] = Step(pending, model=message.get("model", ""))
                pending = []
            step.reply += texts(message.get("content"))
            cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
            total = (usage.get("input_tokens") or 0) + cached
            step.usage = Usage(
                input_tokens=total or None, output_tokens=max(usage.get("output_tokens") or 0, step.usage.output_tokens)
            )
    yield from steps.values()


def codex(values: Iterable[Any]) -> Iterator[Step]:
    """Codex: usage comes behind the items of the response and their results; it includes what was cached."""
    pending: list[str] = []
    step: Step | None = None
    model, total = "", None
    for value in values:
        payload = value.get("payload") or {}
        kind = payload.get("type", "")
        if value.get("type") == "turn_context":
            model = payload.get("model", model)
        elif value.get("type") == "session_meta":
            pending += texts(payload.get("base_instructions"))
        elif value.get("type") == "compacted":
            pending = texts(payload.get("replacement_history"))
        elif kind == "token_count" and payload.get("info"):
            last, now = payload["info"]["last_token_usage"], payload["info"]["total_token_usage"]
            if step is not None and now != total:
                step.usage = Usage(
                    input_tokens=last["input_tokens"] or None,
                    output_tokens=last["output_tokens"],
                    reasoning_tokens=last.get("reasoning_output_tokens") or 0,
                )
                yield step
                step = None
            total = now
        elif value.get("type") == "response_item":
            made = kind in ("reasoning", "function_call", "custom_tool_call", "web_search_call") or (
                kind == "message" and payload.get("role") == "assistant"
            )
            if made:
                if step is None:
                    step, pending = Step(pending, model=model), []
                step.reply += texts(payload)
            else:
                pending += texts(payload)
    if step is not None:
        yield step


def opencode(values: Iterable[Any]) -> Iterator[Step]:
    """OpenCode: call and result are one part; usage excludes what was cached."""
    pending: list[str] = []
    for value in values:
        info, parts = value.get("info") or {}, value.get("parts") or []
        if info.get("role") == "user":
            pending += [t for part in parts for t in texts(part.get("text"))]
            continue
        step = Step(pending, model=info.get("modelID", ""))
        pending = []
        for part in parts:
            state = part.get("state") or {}
            step.reply += texts(part.get("text")) + texts(state.get("input"))
            pending += texts(state.get("output") or state.get("error"))
        tokens = info.get("tokens") or {}
        cache = tokens.get("cache") or {}
        step.usage = Usage(
            input_tokens=(tokens.get("input", 0) + cache.get("read", 0) + cache.get("write", 0)) or None,
            output_tokens=tokens.get("output", 0) + tokens.get("reasoning", 0), reasoning_tokens=tokens.get("reasoning", 0),
        )  # fmt: skip
        yield step


def pi(values: Iterable[Any]) -> Iterator[Step]:
    """Pi: usage excludes what was cached."""
    pending: list[str] = []
    for value in values:
        if value.get("type") == "compaction":
            pending += texts(value.get("summary"))
        message = value.get("message") or {}
        if value.get("type") != "message":
            continue
        if message.get("role") != "assistant":
            pending += texts(message.get("content")) + texts(message.get("output"))
            continue
        usage = message.get("usage") or {}
        total = usage.get("input", 0) + usage.get("cacheRead", 0) + usage.get("cacheWrite", 0)
        told = Usage(input_tokens=total or None, output_tokens=usage.get("output", 0))
        yield Step(pending, texts(message.get("content")), message.get("model", ""), told)
        pending = []


def chat(values: Iterable[Any]) -> Iterator[Step]:
    """Anything else: chat messages, where a reply ends a step, or values whose texts are all that is known of them."""
    pending: list[str] = []
    for value in values:
        said = texts(value.get("content") if isinstance(value, dict) and "role" in value else value)
        if not (isinstance(value, dict) and value.get("role") == "assistant"):
            pending += said
            if sum(map(len, pending)) < CHUNK or (isinstance(value, dict) and "role" in value):
                continue
            said = []
        response = (value.get("extra") or {}).get("response") or {} if isinstance(value, dict) else {}
        usage = response.get("usage") or {}
        calls = texts(value.get("tool_calls")) if isinstance(value, dict) else []
        told = Usage(input_tokens=usage.get("prompt_tokens"), output_tokens=usage.get("completion_tokens") or 0)
        yield Step(pending, [*said, *calls], response.get("model") or "", told)
        pending = []


READABLE = re.compile(r"\.(json|jsonl|traj)(\.gz)?$|\.tar\.gz$")

READERS: dict[str, Callable[[Iterable[Any]], Iterator[Step]]] = {
    "claude-code": claude_code, "codex": codex, "opencode": opencode, "pi": pi,
}  # fmt: skip
"""By the folder that a session lies in; others are read as chats."""


def steps_of(path: Path) -> list[Step]:
    """The requests of a recorded session."""
    values = list(lines_of(path))
    if len(values) < 20 and path.parent.name not in READERS:
        values = [each for value in values for each in (longest_list(value) or [value])]
    return list(READERS.get(path.parent.name, chat)(values))


# -- comparing ------------------------------------------------------------------------------------------------------


def counted(steps: Iterable[Step]) -> list[Step]:
    """The same requests with the tokenizer's counts as the truth."""
    total = 0
    made: list[Step] = []
    for step in steps:
        total += sum(count_blocking(text) or 0 for text in step.new) + 4 * len(step.new)
        said = sum(count_blocking(text) or 0 for text in step.reply)
        made.append(Step(step.new, step.reply, COUNTED_AS, Usage(input_tokens=total or None, output_tokens=said)))
        total += said + 4
    return made


def compare(name: str, truth: str, steps: Iterable[Step], *, bounded: bool) -> Row | None:
    """Replays a session and compares each estimate with what was reported; None where nothing was."""
    history, model, reports = History(), "", 0
    estimates, reported, shares, beyond = 0, 0, list[float](), 0
    whole = true = grown = growth = 0
    for step in steps:
        family = row.family if (row := known(step.model)) else "unknown"
        usage, base = step.usage, history.baseline
        shrunk = base is not None and usage.input_tokens is not None and usage.input_tokens < SHRUNK * base.reported
        if step.model and (step.model != model or shrunk):
            history, reports = _begun(history, model, step.model), 0
            history.set_family(family)
            model = step.model
        history.extend(UserItem(text=text) for text in step.new)
        number = history.occupancy(model, 0)
        if usage.input_tokens:
            reports += 1
            if reports > CALIBRATES:
                estimates += number.tokens
                reported += usage.input_tokens
                grown += number.tokens - number.known
                growth += usage.input_tokens - number.known
                shares.append(number.tokens / usage.input_tokens)
                beyond += usage.input_tokens > number.tokens + DEFAULT_BUFFER
            whole, true = history.total, usage.input_tokens
        reply = (AssistantItem(text="".join(step.reply) or "-"),)
        history.apply(
            ReplyRecord(items=reply, usage=usage, model=model, provenance=number.provenance,
                        estimate=number.tokens if reports > CALIBRATES else 0)
        )  # fmt: skip
    if not shares:
        return None
    factor = history.calibration.factor(model)
    return Row(
        name, truth, model, len(shares), round(estimates / reported, 4), round(min(shares), 4), round(max(shares), 4),
        factor, round(grown / growth, 4) if growth > 0 else 0.0, round(whole * factor / true, 4), beyond, bounded,
    )  # fmt: skip


def _begun(old: History, model: str, new: str) -> History:
    """A history that starts anew with what was learned."""
    return History(calibration=old.calibration)


def rows_of(path: Path, name: str) -> Iterator[Row]:
    """A session against each truth that there is for it."""
    steps = steps_of(path)
    if load() is not None:
        row = compare(name, "tokenizer", counted(steps), bounded=True)
        if row is not None:
            yield row
    row = compare(name, "usage", steps, bounded=False)
    if row is not None:
        yield row


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="recorded sessions, in folders named after their format")
    parser.add_argument("--only", default="", help="sessions whose path holds this")
    parser.add_argument("--json", type=Path, help="write the rows there")
    args = parser.parse_args(argv)
    rows: list[Row] = []
    print(
        f"{'session':<52}{'truth':<11}{'requests':>8}{'ratio':>8}{'lowest':>8}{'highest':>8}{'factor':>8}{'growth':>8}{'whole':>7}{'beyond':>7}"
    )
    for path in sorted(p for p in args.folder.rglob("*") if p.is_file() and READABLE.search(p.name)):
        name = path.relative_to(args.folder).as_posix()
        for row in rows_of(path, name) if args.only in name else ():
            rows.append(row)
            print(
                f"{row.session[-50:]:<52}{row.truth:<11}{row.requests:>8}{row.ratio:>8.3f}{row.lowest:>8.2f}{row.highest:>8.2f}"
                f"{row.factor:>8.2f}{row.growth:>8.2f}{row.whole:>7.2f}{row.beyond:>7}{'' if row.held else '  NOT HELD'}", flush=True,
            )  # fmt: skip
    failed = [row for row in rows if not row.held]
    for truth in sorted({row.truth for row in rows}):
        grown = sorted(row.growth for row in rows if row.truth == truth)
        print(f"{truth}: growth alone from {grown[0]:.2f} to {grown[-1]:.2f}, median {grown[len(grown) // 2]:.2f}")
    print(
        f"{len(rows)} rows, {len(failed)} do not hold: within {BOUND:.0%} in sum, none under-counted beyond {DEFAULT_BUFFER:,}"
    )
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
