"""The one way in which state changes: a record passes the gate, goes to the journal, then into the history and to whoever
observes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from worker import tracing
from worker.gate import Gate
from worker.history import History
from worker.interceptor import Interceptor, failure, overrides
from worker.records import Journal, Record, Syncing
from worker.results import Failed

R = TypeVar("R", bound=Record)


class Ledger:
    """A journal with the folds that follow it. Where the journal raises, memory does not advance.

    `fault` is set where an interceptor's `observe` raised: its state is wrong from then on, so the loop ends the run. `gate` masks
    secrets; by default it lets everything through as it is.
    """

    def __init__(
        self,
        journal: Journal,
        history: History,
        interceptors: Sequence[Interceptor] = (),
        gate: Gate | None = None,
    ) -> None:
        self.journal = journal
        self.history = history
        self.gate = gate or Gate()
        self.fault: Failed | None = None
        self._observers = [i for i in interceptors if overrides(i, "observe")]

    def put(self, record: R) -> R:
        """Writes a record and folds it, as the gate lets it through; returns that. Not yet durable: see `sync`."""
        admitted = self.gate.admit(record)
        self.journal.write(admitted)
        self.fold(admitted)
        tracing.told(admitted)
        if (warning := self.gate.warning(record, admitted)) is not None:
            self.put(warning)
        return admitted

    def fold(self, record: Record) -> None:
        """Folds a record that is already in the journal."""
        self.history.apply(record)
        self.tell(record)

    def tell(self, record: Record) -> None:
        """Tells the observers alone (at a restart, when the history is already folded)."""
        for observer in self._observers:
            try:
                observer.observe(record)
            except Exception as error:
                self.fault = self.fault or failure(observer, error)

    def begin_sync(self) -> None:
        """Starts making durable what was put, without waiting for it."""
        self.journal.begin_sync()

    def syncing(self) -> Syncing | None:
        """A sync of what was put, for another thread to wait for; None where `sync` must be awaited."""
        return self.journal.syncing()

    async def sync(self) -> None:
        """Makes all that was put durable. Raises the store's typed error."""
        await self.journal.sync()
