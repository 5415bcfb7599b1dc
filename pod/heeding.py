"""Which yields of the user's own interceptors a pod follows: never one `compact` after another without work between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pod import codes
from pod.context.facts import trigger_of
from pod.context.policy import Limits
from pod.session import Session
from worker.interceptor import Interceptor
from worker.records import Warned
from worker.results import Yielded
from worker.sending import Sender


@dataclass(frozen=True, slots=True)
class Heeding:
    """Decides on each yield of an interceptor (`worker.loop.Heed`).

    The built-in interceptors bound themselves. A `compact` of the user's own (`users`) is passed over where it could only repeat
    what was just done, and the request goes on its way: the other interceptors are still asked. A warning says so, once a segment.
    """

    session: Session
    sender: Sender
    users: Sequence[Interceptor]
    limits: Callable[[], Limits]

    def __call__(self, interceptor: Interceptor, said: Yielded) -> bool:
        """Whether the yield is followed."""
        if said.reason != "compact" or not any(interceptor is user for user in self.users):
            return True
        why = self._vain(said)
        if why and not self.session.state.passed_over:
            message = (
                f"interceptor {interceptor.name}: its yield 'compact' is passed over, and the request goes on: {why}"
            )
            self.session.put(
                Warned(code=codes.YIELD_PASSED_OVER, message=message, figures={"interceptor": interceptor.name})
            )
        return not why

    def _vain(self, said: Yielded) -> str:
        """Why a compaction could only repeat what was just done; nothing where it may do more."""
        state, trigger = self.session.state, trigger_of(said.detail)
        if trigger in state.fruitless:
            return "the one before it made no new segment, and there was no reply or message since"
        tokens = self.sender.occupancy().decides
        renewed = state.start.lineage.kind_ in {"compacted_from", "rolled_over_from"}
        if renewed and not state.progressed and tokens <= self.limits().lowest:
            return "a new segment has just begun, and there was no reply or message in it"
        if trigger not in {"overflow", "ceiling"} and tokens <= state.least_trigger:
            return (
                f"one at {state.held_tokens:,} tokens could not make room; it is tried again after a tenth more growth"
            )
        return ""
