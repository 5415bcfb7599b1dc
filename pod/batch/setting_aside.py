"""What the requests of a batch under way may cost, on record before they are sent: a kill makes none of them free."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread

from interceptors.purse import Aside
from pod.errors import StoreError, UsageProblem
from pod.log.files import json_of
from pod.store.documents import Documents

FORMAT = 1


@dataclass
class AsideRecord:
    """The record of one batch. `lost` is what requests may have cost that a kill cut off, US dollars, by their pods."""

    documents: Documents
    batch: str
    lost: dict[str, float] = field(default_factory=dict[str, float])
    _wanted: int = 0
    _written: int = 0
    _lock: anyio.Lock = field(default_factory=anyio.Lock)

    def take_up(self, costs: Mapping[str, float]) -> None:
        """Reads what the process before left: a request whose figures are not in `costs`, by pod, counts with all that was set aside for it.
        Blocks. Raises `UsageProblem` where the record does not read, `OSError`.
        """
        data = self.documents.read("aside", [self.batch]).get(self.batch)
        if data is None:
            return
        self.lost, aside = self._read(data)
        for pod, each in aside.items():
            if math.isclose(costs.get(pod, 0.0), each.at_usd, abs_tol=1e-9):
                self.lost[pod] = self.lost.get(pod, 0.0) + each.ahead_usd
        if aside:
            self._write({})

    @property
    def lost_usd(self) -> float:
        """What is lost of all, US dollars."""
        return sum(self.lost.values())

    async def keep(self, aside: Callable[[], Mapping[str, Aside]]) -> None:
        """Has on record what is set aside now; those who ask together share a write. Cancelled, it may be there. Raises `StoreError`."""
        self._wanted += 1
        mine = self._wanted
        async with self._lock:
            if self._written < mine:
                upto = self._wanted
                await anyio.to_thread.run_sync(self._write, dict(aside()))
                self._written = upto

    async def close(self) -> None:
        """Nothing is set aside any more. Raises `StoreError`."""
        if self._written:
            await self.keep(dict)

    def _write(self, aside: Mapping[str, Aside]) -> None:
        told = {
            "format": FORMAT, "lost": self.lost, "aside": {pod: [each.ahead_usd, each.at_usd] for pod, each in aside.items()},
        }  # fmt: skip
        try:
            self.documents.write("aside", {self.batch: json.dumps(told).encode() + b"\n"})
        except OSError as error:
            raise StoreError(Path(self.documents.where("aside", self.batch)), "write", error) from error

    def _read(self, data: bytes) -> tuple[dict[str, float], dict[str, Aside]]:
        try:
            value = cast("dict[str, Any]", json_of(data))
            if value["format"] != FORMAT:
                raise ValueError
            lost = {str(pod): _usd(usd) for pod, usd in value["lost"].items()}
            return lost, {str(pod): Aside(_usd(ahead), _usd(at)) for pod, (ahead, at) in value["aside"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            where = self.documents.where("aside", self.batch)
            raise UsageProblem(
                f"{where}: not the record of what a batch set aside; remove it where its cost need not count, or give the batch another --name"
            ) from None


def _usd(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError("not US dollars")
    return float(value)
