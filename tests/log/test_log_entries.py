"""An entry on disk: written and read byte for byte, damage seen, every record type whole."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log.logs import batch, create, reopen, say
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pod.errors import LogDamaged, NewerFormat
from pod.log import entries as e
from pod.log.lines import Invalid, Line, now, parse, render
from pod.log.segment import Damage, check, entries, scan
from worker.items import UserItem
from worker.records import Input, Record, Warned

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation: models from their own fields, plain JSON for `Any`."""
    from types import UnionType
    from typing import Annotated, Literal, Union, get_args, get_origin

    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return values(args[0])
    if origin in (Union, UnionType):
        return st.one_of([values(a) for a in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        if args[-1] is not Ellipsis:
            return st.tuples(*(values(a) for a in args))
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if origin is list:
        return st.lists(values(args[0]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return models(hint)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXT,
        int: st.integers(-(2**53), 2**53),
        float: st.floats(allow_nan=False, allow_infinity=False, width=64),
        bool: st.booleans(),
        type(None): st.none(),
        Any: JSON,
    }
    return plain[hint]


def models(model: type[BaseModel]) -> st.SearchStrategy[Any]:
    def field(info: FieldInfo) -> st.SearchStrategy[Any]:
        return values(info.annotation)

    names = {n: field(i) for n, i in model.model_fields.items()}
    return st.fixed_dictionaries(names).map(lambda data: model(**data))


def record_line(record: Record) -> Line:
    _, data = render(3, record.kind, e.body_of(record), now())
    return parse(data[:-1], 0, 1)


@pytest.mark.parametrize("kind", sorted(e.KINDS))
def test_every_record_type_is_the_same_after_the_disk(kind: str) -> None:
    """B080: load(store(x)) == x, from the types themselves."""

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(models(e.KINDS[kind]))
    def holds(record: Record) -> None:
        loaded = e.record_of(record_line(record))
        assert loaded == record
        assert type(loaded) is type(record)
        assert loaded is not None and e.body_of(loaded) == e.body_of(record)

    holds()


def test_every_kind_has_a_name_of_its_own_that_the_envelope_takes() -> None:
    for kind, model in e.KINDS.items():
        assert model.kind == kind
        _, data = render(1, kind, b"{}", now())
        assert parse(data[:-1], 0, 1).kind == kind


@given(st.integers(1, 10**14), st.sampled_from(sorted(e.KINDS)), JSON)
def test_what_is_rendered_is_parsed_back(seq: int, kind: str, body: Any) -> None:
    raw = json.dumps(body).encode()
    label, data = render(seq, kind, raw, now())
    assert data.endswith(b"\n") and data.count(b"\n") == 1
    line = parse(data[:-1], 7, 2)
    assert (line.seq, line.kind, line.id, line.body) == (seq, kind, label, raw)
    assert (line.offset, line.length, line.number) == (7, len(data), 2)
    whole = json.loads(data)
    assert list(whole) == ["v", "seq", "id", "at", "kind", "body", "crc"]
    assert whole["body"] == body


@given(st.data())
def test_any_changed_byte_of_an_entry_is_seen(data: st.DataObject) -> None:
    _, whole = render(12, "warning", e.body_of(Warned(code="c", message="m")), now())
    raw = bytearray(whole[:-1])
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Invalid):
        parse(bytes(raw), 0, 1)


@pytest.fixture(scope="module")
def whole_log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    home = tmp_path_factory.mktemp("home")
    session = create(home)
    say(session, "Überprüfe 📦 alles")
    batch(session, "c1", "line\n" * 3)
    say(session, "and then?")
    session.close()
    return session.writer.path.read_bytes()


def test_a_log_cut_at_any_byte_gives_exactly_its_whole_entries(whole_log: bytes, tmp_path: Path) -> None:
    ends = [i + 1 for i, byte in enumerate(whole_log) if byte == 10]
    path = tmp_path / "cut.jsonl"
    for cut in range(len(whole_log) + 1):
        path.write_bytes(whole_log[:cut])
        # An entry that lacks its newline alone is whole (B066).
        count = sum(1 for end in ends if end - 1 <= cut)
        assert [line.seq for line in entries(path)] == list(range(1, count + 1)), cut
        checked = check(path)
        assert checked.lines == count and not checked.damage
        assert (checked.torn is None) == (cut in {0, *ends} or cut + 1 in ends)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_log_with_any_byte_changed_is_never_read_as_whole(
    whole_log: bytes, tmp_path_factory: Any, data: st.DataObject
) -> None:
    raw = bytearray(whole_log)
    at = data.draw(st.integers(0, len(raw) - 2))  # the last newline alone carries nothing
    raw[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("flip") / "x.jsonl"
    path.write_bytes(raw)
    found = list(scan(path))
    assert [f for f in found if isinstance(f, Damage)]
    original = {(line.offset, line.body) for line in scan(_written(path, whole_log)) if isinstance(line, Line)}
    assert {(f.offset, f.body) for f in found if isinstance(f, Line)} < original


def _written(beside: Path, data: bytes) -> Path:
    path = beside.with_name("original.jsonl")
    path.write_bytes(data)
    return path


def test_an_entry_of_a_newer_kind_is_kept_and_passed_over(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.writer.write("hologram", b'{"x":1}')
    say(session, "hello")
    session.close()
    again = reopen(tmp_path)
    assert [i.text for i in again.state.history.view if isinstance(i, UserItem)] == ["hello"]
    again.close()
    assert b'"kind":"hologram"' in session.writer.path.read_bytes()


def test_a_newer_format_refuses_writing_and_names_the_version(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.close()
    path = session.writer.path
    head = b'{"v":2,"seq":3,"id":"x","at":"2026-01-01T00:00:00.000000Z","kind":"warning","body":{}'
    before = path.read_bytes() + head + b',"crc":"%08x"}\n' % zlib.crc32(head)
    path.write_bytes(before)
    with pytest.raises(NewerFormat, match=r"format 2 .*\(1\)"):
        reopen(tmp_path)
    assert path.read_bytes() == before


def test_an_entry_that_does_not_read_is_named_by_file_line_and_byte(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.writer.write("input", b'{"item":{"text":7}}')
    session.close()
    with pytest.raises(LogDamaged) as caught:
        reopen(tmp_path)
    assert caught.value.line == 3 and caught.value.path == session.writer.path
    assert f"{session.writer.path}:3" in str(caught.value) and "pod doctor" in str(caught.value)


def test_an_old_log_with_half_a_character_still_loads(tmp_path: Path) -> None:
    """B145: a lone half in an escape becomes U+FFFD, the session goes on, the log keeps its bytes."""
    session = create(tmp_path)
    path = session.writer.path
    session.writer.write("input", b'{"item":{"id":"u1","type":"user","text":"a \\ud83d b \\ud83d\\udce6"}}')
    session.writer.write("admitted", b'{"ids":["u1"]}')
    session.close()
    before = path.read_bytes()
    again = reopen(tmp_path)
    (item,) = again.state.history.view
    assert isinstance(item, UserItem) and item.text == "a \ufffd b 📦"
    item.text.encode()
    again.close()
    assert path.read_bytes().startswith(before)


def test_b145_a_half_of_a_character_is_written_as_a_whole_one_that_stands_for_it(tmp_path: Path) -> None:
    """B145: what got so far, as a name on the disk may, ends no run; what was whole stays as it is."""
    session = create(tmp_path)
    session.put(Input(item=UserItem(text="a \ud83d b 📦 \\ud83d")))
    session.close()
    again = reopen(tmp_path)
    [queued] = again.state.queued
    assert queued.text == "a \ufffd b 📦 \\ud83d"
    again.close()
