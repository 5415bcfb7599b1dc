"""Orders: what each pod on a queue is to do, durable in the home, so that any node can begin it or go on with it.

An order is a document by its pod's name, a manifest that orders name one by its digest. The engine knows names alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pod.engine.port import NORMAL, Activation, Reason
from pod.errors import PodError, UsageProblem
from pod.log.files import json_of
from pod.log.folder import check_name
from pod.log.lines import now
from pod.manifest import Loaded, Manifest
from pod.store.documents import Documents, documents_of
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
    documents: Documents = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "documents", documents_of(self.home))

    def read(self, session: str) -> Order | None:
        """An order; None where there is none. Raises `UsageProblem` where it does not read."""
        return self.read_all([session]).get(session)

    def read_all(self, sessions: Iterable[str]) -> dict[str, Order]:
        """The orders that there are of these pods. Raises `UsageProblem` where one does not read."""
        return {name: self._of(name, data) for name, data in self._data(sessions).items()}

    def read_each(self, sessions: Iterable[str]) -> dict[str, Order | None]:
        """The orders that there are of these pods; None for one that does not read. Raises `UsageProblem` where a file can't be read."""
        found: dict[str, Order | None] = {}
        for name, data in self._data(sessions).items():
            try:
                found[name] = self._of(name, data)
            except UsageProblem:
                found[name] = None
        return found

    def _data(self, sessions: Iterable[str]) -> dict[str, bytes]:
        names = [check_name(session) for session in sessions]
        try:
            return self.documents.read("order", names)
        except OSError as error:
            where = error.filename or ", ".join(self.documents.where("order", name) for name in names[:1])
            raise _unread(str(where), error.strerror or str(error)) from None

    def _of(self, session: str, data: bytes | None) -> Order:
        if data is None:
            raise UsageProblem(
                f"{session}: no pod of this name was put on a queue; `pod queue ls` lists those that were"
            )
        try:
            return Order.model_validate(json_of(data))
        except (ValueError, ValidationError):
            why = "it was not written by this version, or was altered"
            raise _unread(self.documents.where("order", session), why) from None

    def require(self, session: str) -> Order:
        """An order. Raises `UsageProblem` where there is none."""
        return self.read(session) or self._of(session, None)

    def keep(self, orders: Iterable[Order]) -> None:
        """Writes orders, durably, each whole."""
        self.documents.write("order", {check_name(order.session): _text(order) for order in orders})

    def keep_first(self, order: Order) -> Order:
        """The order of this pod that was there first, durably: this one, where there was none."""
        name = check_name(order.session)
        return self._of(name, self.documents.change("order", name, lambda before: before or _text(order)))

    def revise(self, before: Order, after: Order) -> Order:
        """The order with other values, durably; as it is now where anybody changed it since it was read as `before`."""
        return self._changed(after.session, lambda now: after if now == before else now)

    def change(self, session: str, **values: Any) -> Order:
        """An order with other values, durably. Raises `UsageProblem` where there is none."""
        return self._changed(session, lambda order: order.model_copy(update=values))

    def follow(self, activation: Activation, reason: Reason, **values: Any) -> Order:
        """The order with the number of the activation that goes on after this one; as it is where that was given already."""

        def following(order: Order) -> Order:
            if order.n != activation.n:
                return order
            times = order.times + 1 if order.reason == reason else 0
            return order.model_copy(update={"n": order.n + 1, "reason": reason, "times": times, **values})

        return self._changed(activation.session, following)

    def _changed(self, session: str, change: Callable[[Order], Order]) -> Order:
        data = self.documents.change(
            "order", check_name(session), lambda before: _text(change(self._of(session, before)))
        )
        return self._of(session, data)

    def sessions(self) -> Iterator[str]:
        """The names of all pods that have an order."""
        yield from self.documents.names("order")

    # -- manifests --------------------------------------------------------------------------------------------

    def keep_manifest(self, loaded: Loaded) -> str:
        """Keeps a manifest for the orders that name it, durably, also where what was kept of it does not read; its digest."""
        digest = loaded.manifest.digest
        if not self._keeps(digest):
            told = {
                "path": str(loaded.path),
                "files": [str(file) for file in loaded.files],
                "kept": loaded.manifest.kept_text(),
            }
            self.documents.write("manifest", {digest: json.dumps(told).encode()})
        return digest

    def loaded(self, order: Order) -> Loaded:
        """The manifest of an order, in its working folder. Raises `UsageProblem`, `ManifestError`."""
        try:
            kept, files, source = self._kept(order.manifest)
        except (OSError, ValueError, KeyError, TypeError):
            where = self.documents.where("manifest", order.manifest)
            raise UsageProblem(f"{where}: the manifest of {order.session!r} is lost; submit the task again") from None
        manifest = moved(Manifest.read_kept(kept), order.base, Path(order.cwd))
        return Loaded(manifest, {}, manifest.digest, Path(source), tuple(Path(file) for file in files), Path(order.cwd))

    def _kept(self, digest: str) -> tuple[str, list[str], str]:
        told: Any = json_of(self.documents.read("manifest", [digest])[digest])
        return str(told["kept"]), [str(file) for file in told["files"]], str(told["path"])

    def _keeps(self, digest: str) -> bool:
        try:
            return Manifest.read_kept(self._kept(digest)[0]).digest == digest
        except (PodError, OSError, ValueError, KeyError, TypeError):
            return False


def _text(order: Order) -> bytes:
    return order.model_dump_json().encode() + b"\n"


def _unread(where: str, why: str) -> UsageProblem:
    return UsageProblem(f"{where}: no order that can be read ({why}); submit the task again")
