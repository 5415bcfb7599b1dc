"""A session as one page of HTML that asks nothing of anyone: figures and entries stand in it as data, never as markup.

Its policy forbids every request and every script and style but its own two, which it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any, cast

from pod.log.lines import Line
from pod.page.telling import ENTRY_MOST, entry_text
from pod.timeline import CATEGORIES, Step, Stretch
from worker.masking import Masker
from worker.records import Record
from worker.text import byte_prefix, visible

MOST_STEPS = 20_000
"""Steps that a page holds; older ones are left out and counted."""

ENTRIES_MOST = 4_000_000
"""Bytes of all entries together; where they would be more, each is cut at the same length."""

WORDS_MOST = 100
"""Characters of what a step says in a line."""

MARKS = {
    "context.pruned": "prune",
    "compaction.completed": "compaction",
    "compaction.failed": "compaction",
    "segment.started": "segment",
    "run.ended": "run end",
    "context.window_learned": "overflow",
}
"""Steps that stand in the chart, and the row they stand in."""

_PLACE = re.compile(r"\{\{(\w+)\}\}")


@dataclass
class Page:
    """Collects steps with their entries, and gives the page.

    `words` says what a step tells in a line, `masker` hides secrets in all that is shown.
    """

    words: Callable[[Step], str]
    masker: Masker = field(default_factory=lambda: Masker({}))
    most: int = MOST_STEPS
    _steps: deque[tuple[Step, str, str]] = field(init=False)
    _seen: int = 0

    def __post_init__(self) -> None:
        self._steps = deque(maxlen=self.most)

    def add(self, step: Step, line: Line, record: Record) -> None:
        """A step with the entry that it tells of."""
        self._seen += 1
        # Masked whole, cut afterwards: half a secret would not be known any more.
        said = visible(self.words(cast("Step", _masked(step, self.masker))))
        text = entry_text(line.kind, record, self.masker)
        self._steps.append((step, said if len(said) <= WORDS_MOST else said[: WORDS_MOST - 3] + "...", text))

    def html(self, name: str, facts: Mapping[str, str], segments: Sequence[Stretch], ended: str = "") -> str:
        """The page. `facts` stand at its head; `ended` is told where the session goes back no further."""
        data = {
            "pod": visible(name),
            "facts": [[visible(key), visible(self.masker.mask(value)[0])] for key, value in facts.items()],
            "leftOut": self._seen - len(self._steps),
            "ended": visible(ended),
            "categories": [*CATEGORIES, "reserve"],
            "marks": list(dict.fromkeys(MARKS.values())),
            "segments": [_segment(stretch) for stretch in segments[-self.most :]],
            **self._columns(),
        }
        style, script = part("common.css", "page.css"), part("dom.js", "charts.js", "page.js")
        policy = (
            f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; "
            "form-action 'none'"
        )
        parts = {
            "policy": policy, "title": escape(visible(name)), "style": style, "script": script, "data": as_data(data),
        }  # fmt: skip
        return _PLACE.sub(lambda found: parts[found[1]], part("page.html"))

    def _columns(self) -> dict[str, Any]:
        """Requests and steps as columns, which are short and quick to read."""
        steps = list(self._steps)
        requests = [(at, step) for at, (step, _, _) in enumerate(steps) if step["type"] == "request.completed"]
        names = list(dict.fromkeys(name for _, step in requests for name in step["triggers"]))
        kinds = list(dict.fromkeys(step["type"] for step, _, _ in steps))
        seen = 0
        places: list[int] = []
        for step, _, _ in steps:
            places.append(seen)
            seen += step["type"] == "request.completed"
        limit = cut_at([len(text.encode()) for _, _, text in steps], ENTRIES_MOST)
        entries = [byte_prefix(text, limit) for _, _, text in steps]
        return {
            "kinds": [[kind, MARKS.get(kind, "")] for kind in kinds],
            "steps": {
                "seq": [step["seq"] for step, _, _ in steps],
                "at": [step["at"][:19] + "Z" for step, _, _ in steps],
                "kind": [kinds.index(step["type"]) for step, _, _ in steps],
                "place": places,
                "words": [f"[rejected] {words}" if "rejected" in step else words for step, words, _ in steps],
                "entry": entries,
                "cut": [at for at, (_, _, text) in enumerate(steps) if len(text) >= ENTRY_MOST or entries[at] != text],
            },
            "requests": {
                "step": [at for at, _ in requests],
                **{key: [step[key] for _, step in requests] for key in _REQUEST},
                "cost": [step["cost_usd"] for _, step in requests],
                "sum": [round(step["cost_so_far"], 6) for _, step in requests],
                "parts": [[step["categories"].get(name, 0) for _, step in requests] for name in CATEGORIES],
            },
            "triggers": [[name, [step["triggers"].get(name) for _, step in requests]] for name in names],
        }


_REQUEST = ("number", "input", "estimate", "reported", "cached", "output", "seconds", "window", "available", "reserve")


def _segment(s: Stretch) -> list[Any]:
    began = s.began_by or s.lineage.replace("_", " ")
    figures = [s.first, s.requests, s.largest, s.prompt, s.cached, s.output, s.tools, s.prunes, s.saved, s.cost]
    return [visible(s.segment), visible(began), *figures]


def _masked(value: object, masker: Masker) -> object:
    if isinstance(value, str):
        return masker.mask(value)[0]
    if isinstance(value, list):
        return [_masked(inner, masker) for inner in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _masked(inner, masker) for key, inner in cast("dict[str, object]", value).items()}
    return value


def cut_at(sizes: Sequence[int], most: int) -> int:
    """The largest length at which texts of these sizes, each cut there, are at most `most` together."""
    left, rest = most, len(sizes)
    for size in sorted(sizes):
        if size * rest > left:
            return left // rest
        left -= size
        rest -= 1
    return max(sizes, default=0)


def as_data(value: object) -> str:
    """A value as JSON that no parser of HTML takes for markup."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def part(*names: str) -> str:
    """Files of the page, one behind the other."""
    return "\n".join(files("pod.page").joinpath(name).read_text(encoding="utf-8") for name in names)
