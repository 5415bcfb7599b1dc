"""What a server sent, as text for a model: charsets, and HTML without its markup. Pure; linear in the size of the page."""

from __future__ import annotations

import codecs
import re
from html import unescape
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import urljoin

from worker.text import clipped

_TEXT = re.compile(
    r"text/[\w.+-]+|application/(?:[\w.-]+\+)?(?:json|xml|yaml|toml|javascript)|application/(?:ld\+json|x-yaml|xhtml\+xml|x-ndjson)"
)
_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_UNTRUE = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"})
_HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "head", "canvas"})
_BLOCKS = frozenset(
    [
        *("p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "body", "form", "fieldset"),
        *("ul", "ol", "li", "dl", "dt", "dd", "table", "tr", "figure", "figcaption", "blockquote", "address"),
        *("details", "summary", "hr", "pre", "h1", "h2", "h3", "h4", "h5", "h6"),
    ]
)
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}


class Kind(NamedTuple):
    """A content type: `name` in lower case without parameters, and the charset that it names."""

    name: str
    charset: str

    @classmethod
    def of(cls, header: str) -> Kind:
        """Reads the header `Content-Type`."""
        name, *parameters = header.split(";")
        charset = next((p.partition("=")[2] for p in parameters if p.strip().lower().startswith("charset=")), "")
        return cls(name.strip().lower(), charset.strip().strip("\"'").lower())

    @property
    def readable(self) -> bool:
        """Whether it is text in one way or another."""
        return _TEXT.fullmatch(self.name) is not None

    @property
    def html(self) -> bool:
        """Whether it is a page with markup."""
        return self.name in {"text/html", "application/xhtml+xml"}


def decoded(data: bytes, kind: Kind) -> str:
    """The bytes as text: by the charset of the header, else the page's own, else UTF-8. What does not fit becomes U+FFFD."""
    found = _META.search(data[:2048]) if kind.html and not kind.charset else None
    names = ("utf-8-sig", kind.charset or (found[1].decode("ascii", "replace") if found else ""))
    for name in reversed(names):
        if name and _known(name):
            return data.decode(name, "replace")
    return data.decode("utf-8", "replace")


def _known(charset: str) -> bool:
    try:
        name = codecs.lookup(charset).name
        return name not in _UNTRUE and bool(b"a".decode(name, "replace"))
    except (LookupError, ValueError):
        return False


class Page(NamedTuple):
    """A page's title and its text."""

    title: str
    text: str


def page_text(html: str, base: str) -> Page:
    """The readable text of a page: headings, lists, links (whole, from `base` on), tables row by row; no scripts, no styles."""
    reader = _Reader(base)
    reader.feed(html)
    reader.rest()
    text = "".join(reader.out)
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    return Page(" ".join("".join(reader.title).split()), text)


class _Reader(HTMLParser):
    """Collects text. `close` is never called: at the end of a broken page it looks at the same characters again and again."""

    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.out: list[str] = []
        self.title: list[str] = []
        self._base = base
        self._hidden = ""
        self._depth = 0
        self._in_title = False
        self._pre = 0
        self._links: list[str] = []
        self._fresh = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = self._hidden in {"", "head"}
            return
        if tag == "body" and self._hidden == "head":
            self._hidden = ""
        if self._hidden:
            self._depth += tag == self._hidden
            return
        if tag in _HIDDEN:
            self._hidden, self._depth = tag, 1
            return
        given = dict(attrs)
        if tag == "br":
            self._line()
        elif tag in _BLOCKS:
            self._line()
            self._write(_HEADINGS.get(tag, "- " if tag == "li" else ""))
        elif tag in {"td", "th"}:
            self._write("" if self._fresh else " | ")
        elif tag == "img" and given.get("alt"):
            self._write(f"[image: {' '.join(str(given['alt']).split())}]")
        elif tag == "a":
            self._links.append(self._target(given.get("href") or ""))
            self._write("[" if self._links[-1] else "")
        self._pre += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
            return
        if self._hidden:
            self._depth -= tag == self._hidden
            self._hidden = self._hidden if self._depth else ""
            return
        if tag == "a" and self._links:
            target = self._links.pop()
            self._write(f"]({target})" if target else "")
        elif tag in _BLOCKS:
            self._pre -= tag == "pre" and self._pre > 0
            self._line(blank=tag not in {"li", "tr", "dt", "dd"})

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            self._write(data if self._pre else self._squeezed(data))

    def rest(self) -> None:
        """What the parser held back at the end, where it is text."""
        if not self.rawdata.startswith("<") and not self._hidden:
            self._write(self._squeezed(unescape(self.rawdata)))

    def _squeezed(self, data: str) -> str:
        text = re.sub(r"\s+", " ", data)
        return text.lstrip() if self._fresh else text

    def _write(self, text: str) -> None:
        if text:
            self.out.append(text)
            self._fresh = text.endswith("\n")

    def _line(self, *, blank: bool = False) -> None:
        if self.out:
            self._write("\n\n" if blank else "" if self._fresh else "\n")

    def _target(self, href: str) -> str:
        if not href or href.startswith(("#", "javascript:", "data:")):
            return ""
        try:
            return clipped(urljoin(self._base, href.strip()), 500)
        except ValueError:
            return ""
