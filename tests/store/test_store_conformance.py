"""Every store that ships keeps what the port promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from pod.store.jsonl import JsonlStore
from pod.store.memory import MemoryStore
from pod.store.port import SessionStore
from pod.testing.store_conformance import StoreConformance


class TestMemory(StoreConformance):
    def make(self, tmp_path: Path) -> SessionStore:
        return MemoryStore()


class TestJsonl(StoreConformance):
    def make(self, tmp_path: Path) -> SessionStore:
        return JsonlStore(tmp_path / "home")


class TestPostgres(StoreConformance):
    @pytest.fixture(autouse=True)
    def _database(self, shared_database: str) -> None:
        self.url = shared_database

    def make(self, tmp_path: Path) -> SessionStore:
        from pod.store.postgres import PostgresStore

        return PostgresStore(self.url)
