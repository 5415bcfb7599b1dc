"""The key locator finds each key of any valid TOML text, and nothing else."""

from __future__ import annotations

import string
import tomllib
from typing import Any

import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from pod.manifest.locate import Position, locate


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """Each key of parsed TOML, and each entry of an array that is a table."""
    found: set[tuple[str | int, ...]] = set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= {(*path, key)} | paths_of(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            if isinstance(inner, dict):
                found.add((*path, number))
            found |= paths_of(inner, (*path, number))
    return found


EVERYTHING = '''\
# first
title = "a # no comment ] }"
a.b . "c d".'e' = 1            # dotted
"quoted \\"key\\" \\u00e9" = 'literal \\'

[table] # header
multi = """
x = 1
[not.a.table]
\\""" still inside
ends with two quotes"""""
literal = \'\'\'
y = 2\'\'\'
when = 1979-05-27 07:32:00
list = [ # comment ]
  "]", \'[\',
  { k = 1, "m.n" = { o = [1, 2] } }, # {
  [ { deep = true } ],
]
point = { x = 1, y.z = 2 }

  [ table . sub ]
  k=1

[[many]]
n = 1
[many.inner]
v = 1
[[many.more]]
w = 1
[[many.more]]
w = 2
[[many]]
n = 2
'''


def test_every_way_to_write_a_key_is_found() -> None:
    found = locate(EVERYTHING)
    assert set(found) == paths_of(tomllib.loads(EVERYTHING))
    lines = EVERYTHING.split("\n")

    def line(*path: str | int) -> str:
        return lines[found[path].line - 1]

    assert line("a", "b", "c d", "e").startswith("a.b")
    assert line('quoted "key" é').startswith('"quoted')
    assert line("table", "literal").startswith("literal")
    assert line("table", "when").startswith("when")
    assert line("table", "list", 2, "m.n", "o").strip().startswith("{ k = 1")
    assert line("table", "list", 3, 0, "deep").strip().startswith("[ { deep")
    assert line("table", "point", "y", "z").startswith("point")
    assert line("table", "sub", "k").strip() == "k=1"
    assert line("many", 0, "more", 1, "w") == "w = 2"
    assert line("many", 1, "n") == "n = 2"
    assert found[("title",)] == Position(2, 1)
    assert found[("table", "sub", "k")].column == 3
    assert found[("a", "b", "c d", "e")].column == len('a.b . "c d".\'')


def test_crlf_gives_the_same_places() -> None:
    assert locate(EVERYTHING.replace("\n", "\r\n")) == locate(EVERYTHING)


KEYS = st.one_of(
    st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=6),
    st.text(st.characters(codec="utf-8"), max_size=6),
)
TEXTS = st.text(st.one_of(st.sampled_from("\"'\\#=[]{}\n,. "), st.characters(codec="utf-8")), max_size=12)
LEAVES = st.one_of(
    TEXTS, st.integers(-(2**40), 2**40), st.booleans(), st.floats(allow_nan=False), st.dates(), st.times()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)


@given(data=DOCUMENTS, multiline=st.booleans())
def test_all_keys_of_any_document_are_found_where_they_stand(data: dict[str, Any], multiline: bool) -> None:
    text = tomli_w.dumps(data, multiline_strings=multiline)
    parsed = tomllib.loads(text)
    found = locate(text)
    assert set(found) == paths_of(parsed)
    lines = text.replace("\r\n", "\n").split("\n")
    for path, place in found.items():
        assert 1 <= place.line <= len(lines)
        if isinstance(path[-1], str) and path[-1].isascii() and path[-1].isalnum():
            assert path[-1] in lines[place.line - 1]


SPACE = st.sampled_from(["", " ", "\t", "  "])


@st.composite
def written(draw: st.DrawFn) -> str:
    """A flat document with dotted and quoted keys, comments, blanks and inline tables, as a person may write it."""
    lines: list[str] = []
    for number in range(draw(st.integers(0, 6))):
        key = f"k{number}"
        for part in draw(st.lists(KEYS, max_size=2)):
            quoted = tomli_w.dumps({part: 1}).removesuffix(" = 1\n")
            key += draw(SPACE) + "." + draw(SPACE) + quoted
        value = tomli_w.dumps({"v": draw(st.lists(LEAVES, max_size=2))}).removeprefix("v = ").rstrip("\n")
        if draw(st.booleans()):
            value = f"{{{draw(SPACE)}i = {value.replace(chr(10), ' ')}, j.{key[:2]} = 1 }}"
        comment = draw(st.sampled_from(["", " # a = 1", "#[x]", ' # """']))
        lines.append(f"{draw(SPACE)}{key}{draw(SPACE)}={draw(SPACE)}{value}{comment}")
        if draw(st.booleans()):
            lines.append(draw(st.sampled_from(["", "# [t]", f"[t{number}]", f"[[a{number}]]"])))
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines)


@given(written())
def test_hand_written_documents_are_located_too(text: str) -> None:
    assert set(locate(text)) == paths_of(tomllib.loads(text))
