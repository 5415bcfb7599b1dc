"""Orders: what each pod on a queue is to do, durable in the home, so that any node can begin it or go on with it.

`queue/orders/POD.json` is an order, `queue/manifests/DIGEST.json` a manifest that orders name. The engine knows names alone.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pod.engine.port import NORMAL, Activation, Reason
from pod.errors import UsageProblem
from pod.log.files import Files, json_of, read_file
from pod.log.folder import check_name
from pod.log.lines import now
from pod.log.locking import exclusive
from pod.manifest import Loaded, Manifest
from pod.stored import moved

KEY = "queued-task"
"""The idempotency key of an order's message in its pod, where it names none."""


class Order(BaseModel):
    """What a pod is to do. `n` is the number of its newest activation, `reason` why there is that one, and `times` how often in a row.

    `queue`, `priority` and `partition` are where it was put first, `quarantined` says that it now waits in the quarantine. `manifest` is a digest,
    `base` the folder that the manifest was loaded for, `cwd` where the pod works. `attempts` is how often it may be begun with nothing
    coming of it.
    """

    model_config = ConfigDict(frozen=True)

    format: int = 1
    session: str
    n: int = 1
    reason: Reason = "start"
    times: int = 0
    queue: str
    priority: int = NORMAL
    partition: str = ""
    task: str
    key: str = KEY
    manifest: str
    base: str
    cwd: str
    attempts: int = 3
    quarantined: bool = False
    cancelled: bool = False
    made: str = Field(default_factory=now)

    @property
    def activation(self) -> Activation:
        """The newest one."""
        return Activation(self.session, self.n, self.reason, self.times)


@dataclass(frozen=True, slots=True)
class Orders:
    """All orders of a home. Everything blocks."""

    home: Path
    files: Files = field(default_factory=Files)

    @property
    def folder(self) -> Path:
        """Where they lie."""
        return self.home / "queue"

    def path(self, session: str) -> Path:
        """An order's file."""
        return self.folder / "orders" / f"{check_name(session)}.json"

    def read(self, session: str) -> Order | None:
        """An order; None where there is none. Raises `UsageProblem` where it does not read."""
        path = self.path(session)
        try:
            value: Any = json_of(read_file(path))
            return Order.model_validate(value)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else "it was not written by this version, or was altered"
            raise UsageProblem(f"{path}: no order that can be read ({why}); submit the task again") from None

    def require(self, session: str) -> Order:
        """An order. Raises `UsageProblem` where there is none."""
        order = self.read(session)
        if order is None:
            raise UsageProblem(
                f"{session}: no pod of this name was put on a queue; `pod queue ls` lists those that were"
            )
        return order

    def keep(self, orders: Iterable[Order]) -> None:
        """Writes orders, durably, each whole."""
        written = {self.path(order.session): order.model_dump_json().encode() + b"\n" for order in orders}
        for folder in dict.fromkeys(path.parent for path in written):
            self.files.make_folder(folder)
        self.files.put_all(written)

    def keep_first(self, order: Order) -> Order:
        """The order of this pod that was there first, durably: this one, where there was none."""
        with self.alone():
            found = self.read(order.session)
            if found is None:
                self.keep([order])
            return found or order

    def change(self, session: str, **values: Any) -> Order:
        """An order with other values, durably. Raises `UsageProblem` where there is none."""
        with self.alone():
            order = self.require(session).model_copy(update=values)
            self.keep([order])
        return order

    def follow(self, activation: Activation, reason: Reason, **values: Any) -> Order:
        """The order with the number of the activation that goes on after this one; as it is where that was given already."""
        with self.alone():
            order = self.require(activation.session)
            if order.n == activation.n:
                times = order.times + 1 if order.reason == reason else 0
                order = order.model_copy(update={"n": order.n + 1, "reason": reason, "times": times, **values})
                self.keep([order])
        return order

    @contextmanager
    def alone(self) -> Generator[None]:
        """While it is open, no other process changes an order."""
        self.files.make_folder(self.folder)
        with exclusive(self.folder / "lock"):
            yield

    def sessions(self) -> Iterator[str]:
        """The names of all pods that have an order."""
        base = self.folder / "orders"
        for path in sorted(base.rglob("*.json")):
            if not path.name.startswith("."):
                yield str(path.relative_to(base))[: -len(".json")]

    # -- manifests --------------------------------------------------------------------------------------------

    def keep_manifest(self, loaded: Loaded) -> str:
        """Keeps a manifest for the orders that name it, durably; its digest."""
        digest = loaded.manifest.digest
        folder = self.folder / "manifests"
        path = folder / f"{digest}.json"
        if not path.exists():
            self.files.make_folder(folder)
            told = {
                "path": str(loaded.path),
                "files": [str(file) for file in loaded.files],
                "kept": loaded.manifest.kept_text(),
            }
            self.files.put(path, json.dumps(told).encode())
        return digest

    def loaded(self, order: Order) -> Loaded:
        """The manifest of an order, in its working folder. Raises `UsageProblem`, `ManifestError`."""
        path = self.folder / "manifests" / f"{order.manifest}.json"
        try:
            told: Any = json_of(read_file(path))
            kept, files, source = told["kept"], told["files"], told["path"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageProblem(f"{path}: the manifest of {order.session!r} is lost; submit the task again") from None
        manifest = moved(Manifest.read_kept(kept), order.base, Path(order.cwd))
        return Loaded(manifest, {}, manifest.digest, Path(source), tuple(Path(file) for file in files), Path(order.cwd))
