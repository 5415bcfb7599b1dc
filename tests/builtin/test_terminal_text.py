from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.builtin.terminal import PlainText


def plain(*pieces: bytes) -> str:
    stream = PlainText()
    return "".join(stream.feed(piece) for piece in pieces) + stream.finish()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07after", "after"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1b]52;c;aGVsbG8=\x07", ""),
        (b"\x1bPq#0;2;0;0;0\x1b\\sixel", "sixel"),
        (b"\x1b(B\x1b=\x1b7x\x1b8", "x"),
        ("\x9b31mred".encode(), "red"),
        (b"10%\r20%\rdone\r\n", "10%\n20%\ndone\n"),
        (b"a\x08b\x07c\x00d", "abc\ufffdd"),
        (b"\x1b]0;never closed\nnext line", "\nnext line"),
        (b"\x1b[31\x00mx", "\ufffdmx"),
        (b"tab\tand \xc3\xa9 \xf0\x9f\x98\x80", "tab\tand é 😀"),
        (b"cut \xe6\xbc", "cut \ufffd\ufffd"),
        (b"open \x1b[3", "open "),
    ],
)
def test_sequences_leave_no_remnant(data: bytes, text: str) -> None:
    """B093."""
    assert plain(data) == text


_PARTS = [
    b"\x1b",
    b"[",
    b"31",
    b"m",
    b"]8;;u",
    b"\x07",
    b"\\",
    b"\n",
    b"\r",
    b"x",
    b"\xc3",
    b"\xa9",
    b"\x00",
    b"P",
    b"\xc2\x9b",
    b"\x18",
]


@given(st.lists(st.sampled_from(_PARTS), max_size=30), st.lists(st.integers(0, 60), max_size=6))
def test_the_text_does_not_depend_on_how_the_bytes_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    """B093."""
    data = b"".join(parts)
    borders = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(borders)]
    whole = plain(data)
    assert plain(*pieces) == whole
    assert plain(*(data[i : i + 1] for i in range(len(data)))) == whole
    assert not any(c in whole for c in "\x1b\x07\x00\r\x9b\x18")


def test_a_string_that_is_never_closed_takes_bounded_memory_and_one_line() -> None:
    stream = PlainText()
    shown = stream.feed(b"before \x1b]1337;File=")
    for _ in range(100):
        shown += stream.feed(b"QUJD" * 10_000)
        assert len(stream._held) < 200_000  # pyright: ignore[reportPrivateUsage]
    assert shown + stream.feed(b"\x07after\n") + stream.finish() == "before after\n"


def test_bytes_that_are_not_text_are_counted() -> None:
    """B092."""
    stream = PlainText()
    assert stream.feed(b"\xf0\xff\x00\xfe\n") + stream.finish() == "\ufffd" * 4 + "\n"
    assert stream.not_text == 4
