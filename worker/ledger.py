"""The one way in which state changes: a record goes to the journal, then into the history and to whoever observes."""

from __future__ import annotations

from collections.abc import Sequence

from worker.history import History
from worker.interceptor import Interceptor, failure, overrides
from worker.records import Journal, Record, Syncing
from worker.results import Failed


class Ledger:
    """A journal with the folds that follow it. Where the journal raises, memory does not advance.

    `fault` is set where an interceptor's `observe` raised: its state is wrong from then on, so the loop ends the run.
    """

    def __init__(self, journal: Journal, history: History, interceptors: Sequence[Interceptor] = ()) -> None:
        self.journal = journal
        self.history = history
        self.fault: Failed | None = None
        self._observers = [i for i in interceptors if overrides(i, "observe")]

    def put(self, record: Record) -> None:
        """Writes a record and folds it. Not yet durable: see `sync`."""
        self.journal.write(record)
        self.fold(record)

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
