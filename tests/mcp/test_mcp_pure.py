"""What is decided of a server's words without asking it: names, schemas, results, effects, lines."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod.manifest.sections import SERVER_NAME
from tests.mcp.mcp_rig import listed
from worker.mcp.define import Server
from worker.mcp.definitions import LONGEST_SCHEMA, MOST_SCHEMAS, listing_of
from worker.mcp.lines import Lines, Tail, TooLong
from worker.mcp.naming import LONGEST, tool_name
from worker.mcp.results import LARGEST_PICTURE, MOST_PICTURES, output_of

SERVERS = st.from_regex(re.compile(SERVER_NAME), fullmatch=True).filter(lambda name: len(name) <= 32)
TOOLS = st.text(max_size=80) | st.sampled_from(["search", "a__b", "_b", "b.c", "b/c", "é", "x" * 70])


@given(st.tuples(SERVERS, TOOLS), st.tuples(SERVERS, TOOLS))
def test_b135_names_are_ones_that_providers_take_and_no_two_tools_have_the_same(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    for name in (tool_name(*one), tool_name(*other)):
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) and len(name) <= LONGEST
    assert (tool_name(*one) == tool_name(*other)) == (one == other)


def test_b135_a_plain_name_stands_as_it_is_and_an_unfit_one_ends_with_a_hash() -> None:
    assert tool_name("docs", "search") == "docs__search"
    assert re.fullmatch(r"docs__sear_ch_[0-9a-f]{8}", tool_name("docs", "sear/ch"))
    assert tool_name("docs", "sear/ch") != tool_name("docs", "sear.ch")


BAD: dict[str, Any] = {
    "a root of another type": {"type": "string"},
    "no object": "text",
    "nothing": None,
    "required inside properties": {"type": "object", "properties": {"required": ["a"]}},
    "a reference to nowhere": {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
    "alternatives at the root": {"type": "object", "anyOf": [{"required": ["a"]}]},
    "a property that providers refuse": {"type": "object", "properties": {"a b": {"type": "string"}}},
    "a reference to elsewhere": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}},
}


@pytest.mark.parametrize("schema", BAD.values(), ids=BAD)
def test_b137_a_bad_schema_costs_its_own_tool_and_no_other(schema: Any) -> None:
    found = listing_of([*listed("good"), {"name": "bad", "inputSchema": schema}])
    assert [each.tool for each in found.tools] == ["good"]
    ((name, why),) = found.unfit
    assert name == "bad" and why.startswith("its inputSchema ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(
    st.lists(JSON | st.fixed_dictionaries({"name": st.sampled_from(["a", "b", ""]), "inputSchema": JSON}), max_size=4)
)
def test_b137_nothing_that_a_server_lists_raises_and_what_is_offered_is_an_object(tools: list[Any]) -> None:
    found = listing_of(tools)
    assert all(each.schema["type"] == "object" and each.tool for each in found.tools)
    assert [each.tool for each in found.tools] == sorted({each.tool for each in found.tools})


def test_a_tool_that_is_listed_twice_is_offered_neither_way() -> None:
    found = listing_of(listed("a", "b", "a"))
    assert [each.tool for each in found.tools] == ["b"] and found.unfit == (("a", "it is listed twice"),)


def test_b135_tools_that_would_be_called_the_same_here_are_offered_neither_way() -> None:
    """A hash in a name is no proof: whichever of two was meant, a call could reach the other."""
    found = listing_of(listed("a", "b", "c"), lambda tool: "same" if tool != "b" else tool)
    assert [each.tool for each in found.tools] == ["b"]
    assert dict(found.unfit) == dict.fromkeys("ac", "another one would be called 'same' too")


def test_all_schemas_of_a_server_have_a_bound_together() -> None:
    schema = {"type": "object", "description": "x" * (LONGEST_SCHEMA - 100)}
    many = MOST_SCHEMAS // LONGEST_SCHEMA + 5
    found = listing_of([{"name": f"t{n:04}", "inputSchema": schema} for n in range(many)])
    assert MOST_SCHEMAS // LONGEST_SCHEMA <= len(found.tools) < many
    assert all("all schemas of its server" in why for _, why in found.unfit)


def test_the_word_of_the_user_decides_the_effect_and_the_longest_pattern_wins() -> None:
    program = Server("s", command=("x",), effects={"*": "write", "search_*": "read"})
    assert [program.effect_of(name) for name in ("search_all", "drop")] == ["read", "write"]
    assert (
        Server("s", command=("x",)).effect_of("a") == "process"
        and Server("s", url="https://x").effect_of("a") == "network"
    )


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_b134_structured_content_is_not_kept_beside_the_text_that_says_the_same() -> None:
    words = "x" * 80_000
    output = output_of([text(words)], {"result": words}, failed=False, label="s__t")
    assert output.content == words and len(output.summary) < 100
    assert output_of([], {"result": 3}, failed=False, label="s__t").summary == '{"result": 3}'


def test_pictures_are_shown_as_far_as_models_take_them_and_all_else_is_described() -> None:
    head = b"\x89PNG\r\n\x1a\n"
    png = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(head + b"p" * 30).decode()}
    large = {**png, "data": base64.b64encode(head + b"p" * LARGEST_PICTURE).decode()}
    none = {**png, "data": base64.b64encode(b"p" * 30).decode()}
    others: list[Any] = [
        {**png, "mimeType": "image/tiff"}, {**png, "data": "*"}, large, none, {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"},
        {"type": "resource_link", "name": "n", "uri": "file:///n"}, {"type": "resource", "resource": {"uri": "u:1", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "u:2", "blob": "AAAA"}}, {"type": "new"}, 7,
    ]  # fmt: skip
    output = output_of([*[png] * (MOST_PICTURES + 1), *others], None, failed=False, label="s__t")
    assert len(output.images) == MOST_PICTURES
    said = output.content or output.summary
    for words in (
        "image/tiff",
        "can't be read",
        "3.8 MB",
        "audio/wav",
        "file:///n",
        "inside",
        "u:2",
        "'new'",
        "at most 8",
        "no picture of this kind",
    ):
        assert words in said, words


def test_what_steers_a_terminal_does_not_come_through() -> None:
    assert output_of([text("a\x1b[31mb\x1b]0;t\x07c")], None, failed=False, label="t").summary == "abc"


@given(st.lists(st.binary(max_size=20), max_size=10), st.data())
def test_lines_come_whole_however_the_bytes_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    lines = [line.replace(b"\n", b" ") for line in lines]
    whole, cut, found = b"".join(line + b"\n" for line in lines), Lines(), list[bytes]()
    while whole:
        size = data.draw(st.integers(1, len(whole)))
        found += cut.feed(whole[:size])
        whole = whole[size:]
    assert found == lines


def test_a_message_without_an_end_is_refused_at_its_bound() -> None:
    lines = Lines(limit=100)
    assert lines.feed(b"x" * 60 + b"\n" + b"y" * 60) == [b"x" * 60]
    with pytest.raises(TooLong):
        lines.feed(b"y" * 60)


def test_the_tail_of_standard_error_is_bounded_and_begins_with_a_whole_line() -> None:
    tail = Tail(limit=30)
    for number in range(1_000):
        tail.feed(f"line {number}\n".encode())
    assert tail.text() == "line 997\nline 998\nline 999"
