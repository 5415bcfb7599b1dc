"""Small documents of a home beside its pods: what is due on queues, what a batch consists of. In files, or in the home's database."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from pod.log.files import Files, files_of, read_file
from pod.log.locking import exclusive

Kind: TypeAlias = Literal["order", "manifest", "batch", "aside"]
"""Of an order by its pod's name, of a manifest by its digest, of a batch and of what it set aside by its name."""

_PLACES: dict[Kind, tuple[str, str]] = {
    "order": ("queue/orders", ".json"),
    "manifest": ("queue/manifests", ".json"),
    "batch": ("batches", "/batch.json"),
    "aside": ("batches", "/aside.json"),
}


class Documents(Protocol):
    """Everything blocks; everything that is written is durable when it returns. Raises `OSError`."""

    def where(self, kind: Kind, name: str) -> str:
        """A document as people are told of it."""
        ...

    def read(self, kind: Kind, names: Iterable[str]) -> dict[str, bytes]:
        """Documents by name; those that are not there are left out."""
        ...

    def write(self, kind: Kind, documents: Mapping[str, bytes]) -> None:
        """Puts documents in the place of what was there, each whole."""
        ...

    def change(self, kind: Kind, name: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Puts what `change` makes of a document in its place; meanwhile nobody else changes one. May be asked twice; what it raises
        goes on.
        """
        ...

    def names(self, kind: Kind) -> list[str]:
        """The names of all, sorted."""
        ...

    @contextmanager
    def alone(self, kind: Kind, name: str) -> Generator[None]:
        """While it is open, nobody else holds this name. Raises `BlockingIOError` where somebody does."""
        yield


def documents_of(home: Path) -> Documents:
    """Those of a home, wherever it is."""
    files = files_of(home)
    return files.documents() or FolderDocuments(home, files)


@dataclass(frozen=True, slots=True)
class FolderDocuments:
    """`queue/orders/NAME.json`, `queue/manifests/NAME.json`, `batches/NAME/batch.json` and `aside.json` beside it in a home."""

    home: Path
    files: Files = field(default_factory=Files)

    def path(self, kind: Kind, name: str) -> Path:
        """A document's file."""
        folder, end = _PLACES[kind]
        return self.home / folder / f"{name}{end}"

    def where(self, kind: Kind, name: str) -> str:
        """Its path."""
        return str(self.path(kind, name))

    def read(self, kind: Kind, names: Iterable[str]) -> dict[str, bytes]:
        """As the port says."""
        found: dict[str, bytes] = {}
        for name in names:
            try:
                found[name] = read_file(self.path(kind, name))
            except (FileNotFoundError, NotADirectoryError):
                continue
        return found

    def write(self, kind: Kind, documents: Mapping[str, bytes]) -> None:
        """As the port says."""
        written = {self.path(kind, name): data for name, data in documents.items()}
        for folder in dict.fromkeys(path.parent for path in written):
            self.files.make_folder(folder)
        self.files.put_all(written)

    def change(self, kind: Kind, name: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """As the port says."""
        folder = self.home / _PLACES[kind][0].partition("/")[0]
        self.files.make_folder(folder)
        with exclusive(folder / "lock"):
            before = self.read(kind, [name]).get(name)
            after = change(before)
            if after != before:
                self.write(kind, {name: after})
        return after

    def names(self, kind: Kind) -> list[str]:
        """As the port says."""
        folder, end = _PLACES[kind]
        base = self.home / folder
        found = base.rglob(f"*{end}") if "/" not in end else base.glob(f"*{end}")
        return sorted(
            path.relative_to(base).as_posix().removesuffix(end)
            for path in found
            if path.is_file() and not path.name.startswith(".")
        )

    @contextmanager
    def alone(self, kind: Kind, name: str) -> Generator[None]:
        """As the port says, on this machine. Makes the folder."""
        folder = self.home / _PLACES[kind][0] / name
        self.files.make_folder(folder)
        with exclusive(folder / "lock", wait=False):
            yield
