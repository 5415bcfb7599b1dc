"""Promises of the one estimator: what it counts, how near it is to a real tokenizer, and that nothing makes it slow."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import estimate, tokenizer
from worker.estimate import HEURISTIC_FACTOR, MARGINS, estimate_item, estimate_spec, estimate_text
from worker.items import (
    AssistantItem,
    ContextItem,
    Image,
    OpaqueItem,
    OrderItem,
    ReasoningItem,
    ToolResultItem,
    UserItem,
    make_call,
)
from worker.memory import reading_tokens
from worker.models.base import Capabilities, Family, ToolSpec
from worker.testing import FunctionModel, make_reply

STDLIB = Path(os.__file__).parent
FAMILIES: tuple[Family, ...] = get_args(Family)

PROSE = (STDLIB / "LICENSE.txt", STDLIB / "this.py", STDLIB / "lib2to3" / "Grammar.txt")
JAPANESE = (
    "長時間動くエージェントは、会話が長くなると文脈の窓に収まらなくなる。そのため、古い出力を取り除き、"
    "残りを要約に置き換える。利用者の指示はそのまま残す。次の作業は記録から続けられる。"
)


def python_source() -> str:
    files = sorted((STDLIB / "asyncio").glob("*.py")) + sorted((STDLIB / "email").glob("*.py"))
    return "".join(f.read_text(encoding="utf-8") for f in files)


def json_records() -> str:
    rows = [
        {"name": f"file_{n}.py", "size": n * 37, "tags": ["source", "python"], "description": "A module of the library"}
        for n in range(400)
    ]
    return json.dumps(rows, indent=2)


def prose() -> str:
    import email
    import logging

    doc = "\n".join(str(x.__doc__) for x in (email, logging, json, hashlib, base64, pytest.raises, str, dict, print))
    return doc * 3


def hexadecimal() -> str:
    return "\n".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(400))


SAMPLES = {
    "python": (python_source, 0.9, 1.15),
    "json": (json_records, 0.75, 1.3),
    "prose": (prose, 0.85, 1.25),
    "japanese": (lambda: JAPANESE * 40, 0.85, 1.45),
    "hex": (hexadecimal, 0.8, 1.25),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_estimate_is_near_the_real_tokenizer_for_each_kind_of_text(kind: str) -> None:
    make, low, high = SAMPLES[kind]
    text = make()
    truth = tokenizer.count_blocking(text)
    assert truth is not None, "the ranks of o200k_base are part of the test installation"
    assert low <= estimate_text(text, "o200k") / truth <= high


def test_a_mixed_context_is_within_a_tenth_of_the_real_tokenizer() -> None:
    text = "".join(make() for make, _, _ in SAMPLES.values())
    truth = tokenizer.count_blocking(text)
    assert truth is not None
    assert 0.9 <= estimate_text(text, "o200k") / truth <= 1.1


def test_the_factor_covers_every_sample() -> None:
    for make, _, _ in SAMPLES.values():
        text = make()
        truth = tokenizer.count_blocking(text)
        assert truth is not None
        assert estimate_text(text, "unknown") * HEURISTIC_FACTOR >= 0.97 * truth


def test_an_image_has_a_fixed_cost_whatever_its_length() -> None:
    """B045: a 3 MiB picture is not counted as text."""
    data = base64.b64encode(bytes(3 * 1024 * 1024)).decode()
    item = UserItem(text="look", images=(Image(media_type="image/png", data=data),))
    small = UserItem(text="look", images=(Image(media_type="image/png", data="AAAA"),))
    for family in FAMILIES:
        assert estimate_item(item, family) == estimate_item(small, family)
        assert 1_000 < estimate_item(item, family) < 2_500


def test_images_in_a_tool_result_are_counted_each() -> None:
    picture = Image(media_type="image/png", data="AAAA")
    bare = ToolResultItem(call_id="c", name="t", status="ok", summary="three")
    full = bare.model_copy(update={"images": (picture, picture, picture)})
    assert estimate_item(full) - estimate_item(bare) == 3 * estimate.IMAGE_TOKENS


def test_japanese_text_is_not_counted_as_four_characters_a_token() -> None:
    """B047: 60,000 Japanese characters in a tool result are at least 50,000 tokens before sending."""
    text = (JAPANESE * 700)[:60_000]
    item = ToolResultItem(call_id="c", name="t", status="ok", summary="", content=text)
    assert estimate_item(item, "unknown") * HEURISTIC_FACTOR >= 50_000
    truth = tokenizer.count_blocking(text)
    assert truth is not None
    assert estimate_item(item, "o200k") * HEURISTIC_FACTOR >= truth


def test_tool_schemas_are_counted() -> None:
    """B049: schemas of some 30,000 tokens are seen before the first request."""
    parameter = {"type": "string", "description": "the name of the thing to look at"}
    properties = {f"parameter_{n}": parameter for n in range(100)}
    specs = [ToolSpec(f"tool_{n}", "Does a thing.", {"type": "object", "properties": properties}) for n in range(15)]
    total = sum(estimate_spec(spec, "o200k") for spec in specs)
    truth = tokenizer.count_blocking("".join(json.dumps(spec.parameters) for spec in specs))
    assert truth is not None
    assert truth > 25_000
    assert 0.75 * truth <= total <= 1.35 * truth


def test_tool_descriptions_are_counted() -> None:
    """B053: three tools with a description of 20 KiB each and no parameters are not free."""
    description = (prose() * 10)[: 20 * 1024]
    specs = [ToolSpec(f"tool_{n}", description, {"type": "object", "properties": {}}) for n in range(3)]
    assert sum(estimate_spec(spec, "o200k") for spec in specs) >= 3 * 3_500


def test_the_name_of_a_tool_is_counted() -> None:
    long = ToolSpec("a_rather_long_name_of_a_tool_that_does_things", "", {})
    assert estimate_spec(long) > estimate_spec(ToolSpec("a", "", {}))


def test_opaque_reasoning_is_counted_by_its_size() -> None:
    """B050: 8,000 bytes of an encrypted payload are 2,000 tokens, although reports may leave them out."""
    payload = "x" * 8_000
    reasoning = ReasoningItem(provider="p", model="m", payload=payload, text="for people only " * 500)
    opaque = OpaqueItem(provider="p", model="m", payload=payload)
    for family in FAMILIES:
        assert 2_000 <= estimate_item(reasoning, family) <= 2_010
        assert 2_000 <= estimate_item(opaque, family) <= 2_010


def test_an_opaque_item_that_names_its_tokens_costs_at_least_those() -> None:
    assert estimate_item(OpaqueItem(provider="p", model="m", payload="x" * 40, tokens=900)) >= 900


def test_a_memory_costs_its_own_model_what_it_sends_and_others_what_they_read() -> None:
    """B056: a switch of the model must not put a request above its ceiling."""
    for readable, tokens, payload in (
        ("word " * 4_000, 10, "x" * 40),
        ("short", 5_000, "x"),
        ("short", 0, "x" * 20_000),
    ):
        item = OpaqueItem(provider="p", model="m", payload=payload, tokens=tokens, source_hash="h", readable=readable)
        for family in FAMILIES:
            own = estimate_item(item, family)
            assert own >= tokens
            maker, other = (
                FunctionModel(name, lambda _: make_reply(), capabilities=Capabilities(family=family))
                for name in ("p:m", "q:m")
            )
            assert reading_tokens([item], maker) == 0
            assert own + reading_tokens([item], other) == estimate_item(item.as_summary(), family)


def test_a_call_costs_its_name_and_its_arguments() -> None:
    bare = make_call("1", "write_file", "{}")
    full = make_call("1", "write_file", json.dumps({"content": python_source()[:40_000]}))
    assert estimate_item(full, "o200k") - estimate_item(bare, "o200k") > 8_000


def test_a_damaged_call_costs_what_is_sent_of_it() -> None:
    damaged = make_call("1", "write_file", '{"content": "' + "word " * 1_000)
    assert damaged.error
    assert estimate_item(damaged, "o200k") > 900


def test_a_pruned_result_costs_its_summary_only() -> None:
    full = ToolResultItem(call_id="c", name="t", status="ok", summary="read a.py", content="word " * 5_000)
    assert estimate_item(full.model_copy(update={"content": None}), "o200k") < 30


def test_every_kind_of_item_has_a_framing_of_its_own() -> None:
    items = (
        UserItem(text=""),
        AssistantItem(text=""),
        ContextItem(kind="notice", text=""),
        OrderItem(text="", tag="t"),
        make_call("1", "", ""),
        ToolResultItem(call_id="1", name="", status="ok", summary=""),
    )
    assert all(0 < estimate_item(item) < 50 for item in items)


def test_the_margins_are_ordered_by_trust() -> None:
    assert list(MARGINS.values()) == sorted(MARGINS.values())
    assert MARGINS["usage"] == 0.01
    assert MARGINS["heuristic"] == pytest.approx(HEURISTIC_FACTOR - 1)


def test_an_unknown_family_costs_the_larger_of_the_two_current_ones() -> None:
    for text in (python_source()[:5_000], JAPANESE, "12 34 56", "ÄÖÜ äöü", "مرحبا بالعالم"):
        assert estimate_text(text) == max(estimate_text(text, "o200k"), estimate_text(text, "claude"))


def test_text_and_its_bytes_cost_the_same() -> None:
    assert estimate_text(JAPANESE, "claude") == estimate_text(JAPANESE.encode(), "claude")


def test_a_lone_surrogate_does_not_raise() -> None:
    assert estimate_text("a\ud800b") > 0


TEXT = st.one_of(st.text(max_size=80), st.text(alphabet="aA0. \n\tあé", max_size=80))


@given(TEXT, TEXT, st.sampled_from(FAMILIES))
def test_joining_costs_at_most_a_few_tokens_more_than_the_parts(a: str, b: str, family: Family) -> None:
    assert estimate_text(a + b, family) <= estimate_text(a, family) + estimate_text(b, family) + 10


@given(TEXT, TEXT, st.sampled_from(FAMILIES))
def test_appending_never_lowers_the_estimate(a: str, b: str, family: Family) -> None:
    assert estimate_text(a + b, family) >= estimate_text(a, family)


@given(TEXT, st.sampled_from(FAMILIES))
def test_only_the_empty_text_is_free(text: str, family: Family) -> None:
    assert (estimate_text(text, family) == 0) == (text == "")


@pytest.mark.parametrize("unit", [" ", "\n", " \n", "a", "A", "AAa", "a0", "あ", "=", "\u00a0", "😀"])
def test_no_input_makes_it_slow(unit: str) -> None:
    """At least 15 MB of text a second of CPU (the fastest of three tries), also for runs that hurt real tokenizers."""
    text = unit * (2_000_000 // len(unit.encode()))
    best = 1e9
    for _ in range(3):
        started = time.process_time()
        estimate_text(text, "o200k")
        best = min(best, time.process_time() - started)
    assert len(text.encode()) / best >= 15e6


def test_the_cost_is_linear_in_the_length() -> None:
    text = python_source()[:200_000]
    one = estimate_text(text, "o200k")
    assert estimate_text(text * 10, "o200k") == pytest.approx(10 * one, rel=0.001)
