"""Pages as text: pure."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.builtin.web_text import Kind, decoded, page_text

HTML = Kind("text/html", "")


def test_a_page_is_read_without_its_markup_and_with_whole_links() -> None:
    page = page_text(
        "<html><head><title>The &lt;title&gt;</title><style>p{}</style></head><body><nav><a href='#top'>up</a></nav><h2>Use</h2>"
        "<p>One <a href='../b?x=1'>two</a>\n three</p><script>if (a < b) x()</script><ul><li>a<li>b</ul><pre>k\n  v</pre>"
        "<table><tr><th>n<th>m</tr><tr><td>1<td>2</tr></table><img alt='a cat' src=x>AT&T",
        "https://docs.test/a/c",
    )
    assert page.title == "The <title>"
    assert page.text.split("\n") == [
        "up", "", "## Use", "", "One [two](https://docs.test/b?x=1) three", "", "- a", "- b", "", "k", "  v", "", "n | m", "1 | 2", "",
        "[image: a cat]AT&T",
    ]  # fmt: skip


@given(st.text())
def test_no_page_raises(text: str) -> None:
    page_text(text, "https://docs.test/")


HOSTILE = {
    "comments": "<!--",
    "tags": "<a ",
    "ends": "</",
    "instructions": "<?",
    "declarations": "<!",
    "entities": "&#",
    "nesting": "<div>",
    "hidden": "<svg></p>",
}


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_hostile_page_takes_time_in_proportion_to_its_size(piece: str) -> None:
    """A page of twice the size takes about twice as long: a quadratic one took four times, of minutes."""

    def seconds(count: int) -> float:
        text = HOSTILE[piece] * count
        started = time.process_time()
        page_text(text, "https://docs.test/")
        return time.process_time() - started

    small, large = (min(seconds(count) for _ in range(3)) for count in (20_000, 160_000))
    assert large < 24 * small + 0.05


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        ("é".encode("latin-1"), Kind.of("text/plain; charset=ISO-8859-1"), "é"),
        (b"<meta charset='latin-1'>" + b"\xe9", HTML, "<meta charset='latin-1'>é"),
        ("\ufeffé".encode(), HTML, "é"),
        (b"\xff", HTML, "\ufffd"),
        (b"a", Kind.of("text/plain; charset=bz2"), "a"),
        (b"a-", Kind.of("text/plain; charset=punycode"), "a-"),
        (b"a", Kind.of('text/plain; charset="no-such"'), "a"),
        (b"a", Kind.of("text/plain; charset=\0"), "a"),
    ],
)
def test_bytes_are_read_by_the_named_charset_or_as_utf_8(data: bytes, kind: Kind, text: str) -> None:
    assert decoded(data, kind) == text


@pytest.mark.parametrize(
    "name",
    [
        "text/html",
        "text/plain",
        "application/json",
        "application/ld+json",
        "application/xml",
        "image/svg+xml",
        "application/atom+xml",
    ],
)
def test_text_is_read(name: str) -> None:
    assert Kind.of(name).readable is (name != "image/svg+xml")


@pytest.mark.parametrize(
    "name", ["", "image/png", "application/pdf", "application/octet-stream", "application/zip", "video/mp4", "texthtml"]
)
def test_what_is_no_text_is_not_read(name: str) -> None:
    assert not Kind.of(name).readable
