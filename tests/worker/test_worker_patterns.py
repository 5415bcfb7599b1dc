"""Patterns that look at what others wrote take time in proportion to its length, whatever it is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from compact_worker.sections import parse
from interceptors.stubs import excerpt
from worker.builtin.terminal import PlainText
from worker.models.classify import classify

MEGABYTE = 1_000_000
TEXTS = {
    "digits": "1" * MEGABYTE,
    "digits and commas": "1," * (MEGABYTE // 2),
    "sums": "1 + " * (MEGABYTE // 4),
    "blanks": "x" + " " * MEGABYTE + "y",
    "a heading with blanks": "## a" + " " * MEGABYTE + "b",
    "a heading of marks": "# a" + "#" * MEGABYTE + "b",
    "marks": "#" * MEGABYTE,
    "two halves of a phrase": "must be <= 1 " * (MEGABYTE // 13),
    "the other halves": "max_new_tokens " * (MEGABYTE // 15),
    "a word of the models": "model " * (MEGABYTE // 6),
    "tool words": "tool_use " * (MEGABYTE // 9),
    "open tags": "<" * MEGABYTE,
    "paths": "a/" * (MEGABYTE // 2),
    "open strings": "\x90" * (MEGABYTE // 2) + "\x07",
    "open sequences": "\x1b[" * (MEGABYTE // 2),
    "numbers in a sequence": "\x1b[" + "1;" * (MEGABYTE // 2),
}
READERS: dict[str, Callable[[str], object]] = {
    "an error's meaning": lambda text: classify(400, {"error": {"message": text, "code": text}}),
    "a page in the place of an error": lambda text: classify(502, text),
    "the excerpt of a stub": lambda text: excerpt(text, 200),
    "the sections of a summary": parse,
    "a terminal's text": lambda text: PlainText().feed(text.encode()),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", TEXTS)
def test_a_megabyte_is_read_in_a_moment(what: str, reader: str) -> None:
    for _ in range(3):
        started = time.process_time()
        READERS[reader](TEXTS[what])
        if time.process_time() - started < 0.8:
            return
    pytest.fail(f"{reader} takes too long")


def test_a_heading_without_closing_marks_is_the_same_heading() -> None:
    for line in ("## Findings", "##Findings", "  ## Findings ##  ", "# Findings", "## **Findings:**"):
        assert parse(f"{line}\n- a\n").bodies == {"Findings": "- a"}
    assert parse("### Findings\n- a\n").bodies == {}


def test_a_limit_at_the_end_of_a_long_body_is_found() -> None:
    error = classify(400, "x" * MEGABYTE + " maximum context length is 4,096 tokens")
    assert getattr(error, "limit", None) == 4_096


@pytest.mark.parametrize("number", ["9" * 5_000, "²", "٣"])
def test_a_code_that_is_no_status_is_no_status(number: str) -> None:
    assert classify(None, {"error": {"message": "odd", "code": number}}).kind
