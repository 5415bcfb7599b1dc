"""The one token estimator: what a text, an item or a tool costs, without a tokenizer and without the network.

It counts byte classes and the transitions between them (facts, providers 5.3): each UTF-8 byte is mapped to a class
by a table, and the tokens are a weighted sum of how often some twenty-five patterns of one to three classes occur.
That is pure standard library, linear, and has no slow inputs. Measured on mixed agent contexts it is within 3 % of
o200k_base; single kinds of text lie between 0.72 and 1.3 of the truth, so a caller that has nothing better multiplies
by `HEURISTIC_FACTOR`.

Every figure is in tokens. The functions are pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias, cast

from worker.items import Image, Item, OpaqueItem
from worker.models.base import Family, ToolSpec

Provenance: TypeAlias = Literal["usage", "usage-adjusted", "provider count", "tokenizer", "heuristic"]

MARGINS: Mapping[Provenance, float] = {
    "usage": 0.01,
    "usage-adjusted": 0.02,
    "provider count": 0.02,
    "tokenizer": 0.05,
    "heuristic": 0.15,
}
"""The uncertainty of a count by where it comes from, as a share of it (facts, providers 5.4). `Occupancy` applies it."""

HEURISTIC_FACTOR = 1 + MARGINS["heuristic"]
"""What a caller multiplies an estimate by when the estimate is its only source (facts, providers 5.3)."""

IMAGE_TOKENS = 1_600
"""Tokens of one image, whatever the length of its data (case B045). Reports by the provider correct it (case B046)."""

OPAQUE_BYTES_PER_TOKEN = 4
"""Reasoning and other opaque payloads are counted from their size, since reports may leave them out (case B050)."""

MEMORY_BYTES_PER_TOKEN = 16
"""Bytes of a sealed memory for each token that it has at least, whatever its provider reports: a seal is larger than what
it holds, but not four times as large."""

OVER = 1.3
"""By how much the estimate of a text may be too high, where only a lower bound is wanted."""

MESSAGE_TOKENS = 4
"""Framing of one item: its role, and the marks around it."""

CALL_TOKENS = 8
"""Framing of a tool call or its result: role, id, and the marks around name and arguments."""

CONTEXT_TOKENS = 28
"""Framing of a context item or an order: the wrapper that names its kind, source and trust."""

SPEC_TOKENS = 8
"""Framing of one tool: the marks around its name, description and schema."""


def _classes() -> bytes:
    table = bytearray(b"." * 256)
    ranges = (
        ("a", range(0x61, 0x7B)), ("A", range(0x41, 0x5B)), ("0", range(0x30, 0x3A)), ("s", (0x20, 0x09)),
        ("n", (0x0A, 0x0D)), ("c", range(0x80, 0xC0)), ("d", range(0xC0, 0xE0)), ("i", (0xE0, 0xE1)),
        ("y", (0xE2, 0xEE, 0xEF)), ("k", range(0xE3, 0xEE)), ("w", range(0xF0, 0x100)),
        ("x", (*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F)),
    )  # fmt: skip
    for name, members in ranges:
        for byte in members:
            table[byte] = ord(name)
    return bytes(table)


_TABLE = _classes()
"""Byte to class: a lower, A upper, 0 digit, s blank, n line end, x control character (of a terminal's output, each
nearly a token), `.` other ASCII; lead bytes d i y k w; c the rest."""

_O200K = """
0 .10  . .30  d .35  k .78  y .47  i .45  w 2.34  aA .95  a0 1.03  0a 1.13  A0 1.91  .a 1.04  .A 1.36  .0 1.81
sa 1.07  sA 1.22  s0 2.21  s. .54  na 1.32  ns .96  nA 1.83  n. .41  .s .20  ss .05  AAa 2.83  a .02  A .01  x 1.00  xa .80
"""

_CLAUDE = """
0 .15  . .59  d .61  k 1.07  y .50  i .95  w 2.86  aA 1.94  a0 2.32  .a 1.45  .A 2.35  .0 1.40  sa 1.33  sA .58
s0 2.45  ns 1.49  nA 3.77  n. 2.88  .s .15  ss .14  AAa 2.10  a .09  A .52  x 1.20  xa .95
"""

_CLAUDE_OLD = """
0 .07  . .26  d .61  k 1.08  y .49  i .95  w 2.86  aA 1.88  a0 1.75  0a .61  .a 1.68  .A 2.44  .0 1.95  sa 1.34
sA .66  s0 2.75  s. .62  na .20  ns .95  nA 3.21  n. 1.98  ss .18  AAa 4.69  a .01  A .03  x 1.10  xa .90
"""


def _coefficients(text: str) -> tuple[tuple[bytes, float], ...]:
    words = text.split()
    return tuple((pattern.encode(), float(weight)) for pattern, weight in zip(words[::2], words[1::2], strict=True))


COEFFICIENTS: Mapping[Family, tuple[tuple[bytes, float], ...]] = {
    "o200k": _coefficients(_O200K),
    "claude": _coefficients(_CLAUDE),
    "claude_old": _coefficients(_CLAUDE_OLD),
}
"""Weights of the class patterns by family (facts, providers 5.3). None is negative: a longer text never costs less."""


def estimate_text(text: str | bytes, family: Family = "unknown") -> int:
    """Tokens of a text. An unknown family costs the larger of o200k and claude.

    At least 1 for a text that is not empty. Appending never lowers it, and a joined text costs at most a few tokens
    more than its parts.
    """
    if not text:
        return 0
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    classes = data.translate(_TABLE)
    present = frozenset(classes)
    if family == "unknown":
        counts = {pattern: classes.count(pattern) for pattern in _occurring(present)}
        return max(_weighed(counts.__getitem__, present, "o200k"), _weighed(counts.__getitem__, present, "claude"))
    return _weighed(classes.count, present, family)


def _weighed(count: Callable[[bytes], int], present: frozenset[int], family: Family) -> int:
    total = sum([weight * count(pattern) for pattern, weight in _terms(present, family)])
    return max(math.ceil(total - 1e-9), 1)


@lru_cache(maxsize=2048)
def _terms(present: frozenset[int], family: Family) -> tuple[tuple[bytes, float], ...]:
    """The terms of the sum that are not 0 in a text of these classes: of most texts less than half."""
    return tuple(term for term in COEFFICIENTS[family] if present.issuperset(term[0]))


@lru_cache(maxsize=2048)
def _occurring(present: frozenset[int]) -> frozenset[bytes]:
    """What an unknown family is counted by, each once."""
    return frozenset(pattern for family in ("o200k", "claude") for pattern, _ in _terms(present, family))


def estimate_opaque(payload: str | bytes) -> int:
    """Tokens of a payload that only its provider can read, from its size in bytes."""
    size = len(payload.encode()) if isinstance(payload, str) else len(payload)
    return math.ceil(size / OPAQUE_BYTES_PER_TOKEN)


def estimate_images(images: Iterable[Image]) -> int:
    """Tokens of images: a fixed cost for each."""
    return IMAGE_TOKENS * sum(1 for _ in images)


def estimate_item(item: Item, family: Family = "unknown") -> int:
    """Tokens of an item as it is sent: its text with its share of the framing."""
    return item_tokens(item, lambda text: estimate_text(text, family))


def item_tokens(item: Item, measure: Callable[[str], int]) -> int:
    """Tokens of an item where `measure` tells those of a text.

    The text that a person may be shown of reasoning is not sent, so it costs nothing.
    """
    match item.type:
        case "user":
            return MESSAGE_TOKENS + measure(item.text) + estimate_images(item.images)
        case "assistant":
            return MESSAGE_TOKENS + measure(item.text)
        case "reasoning":
            return MESSAGE_TOKENS + estimate_opaque(item.payload)
        case "tool_call":
            return CALL_TOKENS + measure(item.name) + measure(item.wire_arguments())
        case "tool_result":
            return CALL_TOKENS + measure(item.text()) + estimate_images(item.images)
        case "context" | "order":
            return CONTEXT_TOKENS + measure(item.text)
        case "opaque":
            # The seal of a memory is no part of what its model reads; for another one see `worker.memory.reading_tokens`.
            reported = item.is_memory and item.tokens
            least = _least_of_memory(item, measure) if reported else estimate_opaque(item.payload)
            return MESSAGE_TOKENS + max(item.tokens, least)


def _least_of_memory(item: OpaqueItem, measure: Callable[[str], int]) -> int:
    """Tokens that a memory has at least, by the text that stands in its payload or by the payload's size."""
    try:
        held = cast("object", json.loads(item.payload))
    except ValueError:
        held = None
    text = cast("dict[str, object]", held).get("content") if isinstance(held, dict) else None
    if isinstance(text, str):
        return int(measure(text) / OVER)
    return len(item.payload.encode("utf-8", "surrogatepass")) // MEMORY_BYTES_PER_TOKEN


def estimate_items(items: Iterable[Item], family: Family = "unknown") -> int:
    """Tokens of several items."""
    return sum(estimate_item(item, family) for item in items)


def estimate_spec(spec: ToolSpec, family: Family = "unknown") -> int:
    """Tokens of a tool as the model is told of it: name, description and schema (cases B049, B053)."""
    return spec_tokens(spec, lambda text: estimate_text(text, family))


def spec_tokens(spec: ToolSpec, measure: Callable[[str], int]) -> int:
    """Tokens of a tool where `measure` tells those of a text."""
    schema = json.dumps(spec.parameters, ensure_ascii=False, separators=(",", ":"))
    return SPEC_TOKENS + measure(spec.name) + measure(spec.description) + measure(schema)
