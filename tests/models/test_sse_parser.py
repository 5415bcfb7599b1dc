"""Server-sent events from bytes cut anywhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.models import sse
from worker.models.sse import Event, EventTooLarge, SSEParser


def parse(chunks: list[bytes], *, close: bool = True) -> list[Event]:
    parser = SSEParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + (parser.close() if close else [])


def test_events_comments_and_names() -> None:
    body = b": ping\n\nevent: a\ndata: 1\n\ndata: 2\nid: 7\nretry: 5\n\nevent: empty\n\ndata:3\n\n"
    assert parse([body]) == [Event("a", "1"), Event("", "2"), Event("", "3")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_kind_of_line_end_at_each_cut(end: str) -> None:
    body = f"event: x{end}data: é𝄞{end}data: two{end}{end}data: last{end}{end}".encode()
    for size in range(1, len(body) + 1):
        chunks = [body[i : i + size] for i in range(0, len(body), size)]
        assert parse(chunks) == [Event("x", "é𝄞\ntwo"), Event("", "last")], size


@given(st.lists(st.text(), max_size=5), st.lists(st.integers(1, 40), max_size=30))
def test_any_cut_of_the_bytes_gives_the_same_events(texts: list[str], cuts: list[int]) -> None:
    body = "".join(f"data: {json.dumps(text, ensure_ascii=False)}\n\n" for text in texts).encode(
        "utf-8", "surrogatepass"
    )
    chunks: list[bytes] = []
    rest = body
    for cut in cuts:
        chunks.append(rest[:cut])
        rest = rest[cut:]
    assert parse([*chunks, rest]) == parse([body])
    assert len(parse([body])) == len(texts)


def test_a_last_event_without_its_blank_line_counts_at_the_end_of_the_body() -> None:
    assert parse([b"data: [DONE]"]) == [Event("", "[DONE]")]
    assert parse([b"data: [DONE]\n"], close=False) == []


def test_a_byte_order_mark_is_no_part_of_a_field() -> None:
    assert parse([b"\xef\xbb\xbfdata: 1\n\n"]) == [Event("", "1")]


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    with pytest.raises(EventTooLarge):
        parse([b"data: " + b"x" * 60, b"x" * 60])
    with pytest.raises(EventTooLarge):
        parse([b"data: " + b"x" * 50 + b"\n"] * 3)
