"""Every store that ships keeps what the port promises."""

from __future__ import annotations

from pathlib import Path

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
