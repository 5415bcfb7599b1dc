from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.builtin.artifacts import Artifacts
from worker.items import ToolOutput
from worker.masking import Masker
from worker.tool_output import cap, head_and_tail, serialised_prefix, serialised_size, serialised_suffix

pytestmark = pytest.mark.anyio
text = st.text(st.sampled_from('ab\n"\\é漢😀\x01'), max_size=120)


@given(text, st.integers(0, 200))
def test_cuts_keep_the_limit_and_whole_characters(value: str, limit: int) -> None:
    start, end = serialised_prefix(value, limit), serialised_suffix(value, limit)
    assert value.startswith(start)
    assert value.endswith(end)
    for part, longer in (
        (start, value[: len(start) + 1]),
        (end, value[len(value) - len(end) - 1 :] if len(end) < len(value) else end),
    ):
        assert serialised_size(part) <= limit
        assert part == value or serialised_size(longer) > limit, "it is the longest such part"


@given(text)
def test_the_size_is_that_of_the_json(value: str) -> None:
    assert serialised_size(value) == len(json.dumps(value, ensure_ascii=False).encode()) - 2
    dumped = ToolOutput(summary=value).model_dump_json(include={"summary"})
    assert serialised_size(value) == len(dumped.encode()) - len('{"summary":""}')


@given(text, st.integers(0, 300))
def test_head_and_tail_keep_the_limit_and_count_what_is_missing(value: str, limit: int) -> None:
    shown = head_and_tail(value, value, len(value.encode()), limit, "gone")
    assert serialised_size(shown) <= max(limit, serialised_size("\n[... 1000 bytes left out; gone ...]\n"))


async def test_small_outputs_stay_as_they_are(tmp_path: Path) -> None:
    output = ToolOutput(summary="s", content="x" * 100)
    assert await cap(output, 100, Artifacts(tmp_path / "a"), "c1") is output
    assert not (tmp_path / "a").exists()


async def test_a_large_content_keeps_head_tail_and_the_name_of_the_whole(tmp_path: Path) -> None:
    store = Artifacts(tmp_path / "a")
    content = "\n".join(f"Zeile {i} ü" for i in range(1000))
    output = await cap(ToolOutput(summary="s", content=content), 1000, store, "call/1")
    assert output.artifact == "call_1-output.txt"
    assert store.path(output.artifact).read_text() == content
    assert output.content is not None
    assert 900 < serialised_size(output.content) <= 1000
    assert output.content.startswith("Zeile 0 ü\n")
    assert output.content.endswith("Zeile 999 ü")
    assert 'read_file(path="artifact:call_1-output.txt")' in output.content


async def test_what_counts_is_the_size_as_sent(tmp_path: Path) -> None:
    output = await cap(ToolOutput(summary="s", content='"' * 600), 1000, Artifacts(tmp_path / "a"), "c1")
    assert output.artifact is not None


async def test_an_artifact_of_the_tool_itself_is_not_stored_twice(tmp_path: Path) -> None:
    store = Artifacts(tmp_path / "a")
    output = await cap(ToolOutput(summary="s", content="x" * 5000, artifact="mine.txt"), 1000, store, "c1")
    assert output.artifact == "mine.txt"
    assert output.content is not None
    assert "artifact:mine.txt" in output.content
    assert store.names() == []


async def test_an_overlong_summary_is_cut_and_becomes_content(tmp_path: Path) -> None:
    output = await cap(ToolOutput(summary="x" * 1000), 65_536, None, "c1")
    assert len(output.summary) == 400
    assert output.content == "x" * 1000


async def test_without_a_store_or_with_a_broken_one_the_loss_is_said(tmp_path: Path) -> None:
    output = await cap(ToolOutput(summary="s", content="x" * 5000), 1000, None, "c1")
    assert output.content is not None
    assert "they are not kept anywhere" in output.content
    (tmp_path / "file").write_text("")
    output = await cap(ToolOutput(summary="s", content="x" * 5000), 1000, Artifacts(tmp_path / "file"), "c1")
    assert output.content is not None
    assert "could not be kept" in output.content
    assert output.artifact is None


def test_names_of_artifacts_are_safe_and_never_used_twice(tmp_path: Path) -> None:
    store = Artifacts(tmp_path / "a")
    names = [store.store("../../x" + "y" * 300, "out put.txt", b"1") for _ in range(3)]
    assert len(set(names)) == 3
    assert all("/" not in name and len(name) < 100 and not name.startswith(".") for name in names)
    assert store.names() == sorted(names)
    assert oct((tmp_path / "a").stat().st_mode)[-3:] == "700"
    assert oct(store.path(names[0]).stat().st_mode)[-3:] == "600"


def test_a_growing_artifact_keeps_its_limit_and_counts_the_rest(tmp_path: Path) -> None:
    store = Artifacts(tmp_path / "a")
    writer = store.writer("c1", "log.txt", limit=5)
    writer.write(b"abc")
    writer.write(b"defgh")
    writer.close()
    assert store.path(writer.name).read_bytes() == b"abcde"
    assert (writer.size, writer.dropped) == (5, 3)


WIDE = "".join(chr(ord(char) + 0xFEE0) for char in "secret-value-0123456789")


@pytest.mark.parametrize("size", [1, 3, 7, 64, 4_096])
def test_b083_a_long_output_on_the_disk_hides_no_secret_behind_what_a_reader_looks_through(
    tmp_path: Path, size: int
) -> None:
    """B083: full-width letters, invisible ones, in pieces of any size; bytes that are no text stay as they are."""
    store = Artifacts(tmp_path / "a", Masker({"A_TOKEN": "secret-value-0123456789"}))
    hidden = [WIDE, "\u200b".join("secret-value-0123456789"), "secret-value-0123456789", "𝐬𝐞𝐜𝐫𝐞𝐭-𝐯𝐚𝐥𝐮𝐞-0123456789"]
    data = b"\xff\xfe caf\xc3\xa9 \xe4\xb8\xad " + " and ".join(hidden).encode() + b" \xc3"
    writer = store.writer("c1", "out.txt")
    for at in range(0, len(data), size):
        writer.write(data[at : at + size])
    writer.close()
    masked = " and ".join(["[secret A_TOKEN]"] * 4).encode()
    assert (tmp_path / "a" / writer.name).read_bytes() == b"\xff\xfe caf\xc3\xa9 \xe4\xb8\xad " + masked + b" \xc3"
