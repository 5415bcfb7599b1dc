"""An attack on a whole pod: real tools on real files and processes, a scripted provider on a socket, and a look at every file
outside of what the attack may write, before and after."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pod import Pod, RunResult
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.manifest import Manifest
from pod.reading import SessionReader
from tests.wires.wires_rig import manifest as wires_manifest
from worker.items import ToolResultItem
from worker.records import Record, ToolResult
from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest, Step

SECRET = "the-secret-of-the-machine"
"""What stands in the file outside that no attack may read."""

KEY = "sk-redteam+/=0123456789"
"""The provider's key; other than itself once it is url-encoded."""

ALL_TOOLS = (
    "read_file", "list_files", "search_text", "find_files", "append_file", "edit_file", "write_file", "shell", "jobs", "tasks",
)  # fmt: skip


@dataclass
class Struck:
    """What became of an attack."""

    result: RunResult
    results: list[ToolResultItem]
    records: list[Record]
    bodies: list[bytes]
    changed: set[str]
    """Paths of the world that are other than before, by content, kind or mode; those below the pods' home apart."""

    @property
    def told(self) -> str:
        """All that the calls answered."""
        return "\n".join(item.text() for item in self.results)

    @property
    def wire(self) -> bytes:
        return b"\n".join(self.bodies)

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


@dataclass
class World:
    """A working folder of an agent (`work`), the machine around it (`outside`), the user's configuration and the pods' home."""

    root: Path
    bodies: list[bytes] = field(default_factory=list[bytes])

    def __post_init__(self) -> None:
        self.work.mkdir()
        for name, text in (("secret.txt", SECRET), ("target.txt", "before")):
            (self.outside / "deep").mkdir(parents=True, exist_ok=True)
            (self.outside / name).write_text(text)
        for folder, name in ((".git", "config"), (".pod", "config.toml"), ("src", "a.py")):
            (self.work / folder).mkdir()
            (self.work / folder / name).write_text("before = 1\n" if folder != ".pod" else "# nothing\n")
        (self.work / "own.txt").write_text("own\n")

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def seen(self) -> dict[str, str]:
        """Every file below the root but the pods, with its kind, mode and hash."""
        found: dict[str, str] = {}
        for parent, folders, files in os.walk(self.root):
            if Path(parent) == self.root and "home" in folders:
                folders.remove("home")
            for name in (*folders, *files):
                path = Path(parent) / name
                try:
                    found[str(path.relative_to(self.root))] = _looked_at(path)
                except OSError:
                    continue  # the test swaps it at this moment
        return found

    def manifest(self, server: ProviderServer, **tables: Any) -> Manifest:
        base: dict[str, Any] = {
            "tools": {"enable": ALL_TOOLS},
            "permissions": {"profile": "workspace-write", "when_headless": "deny"},
            "retry": {"max_attempts": 1},
        }
        for key, table in tables.items():
            base[key] = base.get(key, {}) | table if isinstance(table, dict) else table
        return wires_manifest(server, name="openai-chat:test-model", **base)

    def pod(self, made: Any, **options: Any) -> Pod:
        return Pod.open(made, name=options.pop("name", "p"), home=self.home, cwd=self.work, **options)

    @contextlib.contextmanager
    def server(self, *steps: Sequence[Call]) -> Iterator[ProviderServer]:
        """A provider that makes these calls, one reply each, and then is done."""
        served = iter(steps)

        def answer(request: RecordedRequest) -> Step:
            self.bodies.append(request.body)
            calls = next(served, None)
            return Answer("done") if calls is None else Answer(calls=list(calls))

        with ProviderServer(answer) as server:
            yield server

    async def strike(self, *calls: Call, tables: dict[str, Any] | None = None, **options: Any) -> Struck:
        """One run that makes these calls, each in a reply of its own."""
        before = self.seen()
        self.bodies = []
        with self.server(*([call] for call in calls)) as server:
            async with self.pod(self.manifest(server, **(tables or {})), **options) as pod:
                result = await pod.run("go")
        after = self.seen()
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        records = self.log(options.get("name", "p"))
        return Struck(result, self.results(options.get("name", "p")), records, list(self.bodies), changed)

    def log(self, name: str = "p") -> list[Record]:
        found = (e.record_of(line) for line in SessionReader(PodFolder(self.home, name)).lines())
        return [record for record in found if record is not None]

    def results(self, name: str = "p") -> list[ToolResultItem]:
        return [record.item for record in self.log(name) if isinstance(record, ToolResult)]

    def below_home(self) -> bytes:
        """Every byte that lies below the pods' home, names included."""
        files = [path for path in self.home.rglob("*") if path.is_file()]
        return b"\n".join(str(path.relative_to(self.home)).encode() + b"\n" + path.read_bytes() for path in files)


def _looked_at(path: Path) -> str:
    """A file's kind, mode and hash."""
    info = path.lstat()
    what = f"{stat.S_IFMT(info.st_mode):o} {stat.S_IMODE(info.st_mode):o}"
    if stat.S_ISREG(info.st_mode):
        what += hashlib.sha256(path.read_bytes()).hexdigest()
    elif stat.S_ISLNK(info.st_mode):
        what += str(path.readlink())
    return what
