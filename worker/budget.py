"""The budget of a model: what its window leaves for a request."""

from __future__ import annotations

from dataclasses import dataclass

from worker.models.base import Capabilities, Source

DEFAULT_BUFFER = 8_192
"""Tokens kept free beside the input where the requested output is smaller."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens. `available` is the hard ceiling: no request estimated above it is sent, for any attempt, model or
    policy."""

    window: int
    window_source: Source
    output: int
    buffer: int

    @property
    def available(self) -> int:
        """What is left for input: the window less the larger of requested output and buffer (one subtraction)."""
        return self.window - max(self.output, self.buffer)


def budget_of(
    capabilities: Capabilities, *, requested_output: int = 0, buffer: int = DEFAULT_BUFFER, learned: int | None = None
) -> Budget:
    """The budget of a model, with the window that a refusal taught where that is smaller.

    The buffer never takes more than a quarter of the window, so that a small window stays usable.
    """
    window, source = capabilities.window, capabilities.window_source
    if learned is not None and learned < window:
        window, source = learned, "learned"
    output = min(requested_output or capabilities.max_output, capabilities.max_output)
    return Budget(window=window, window_source=source, output=min(output, window // 2), buffer=min(buffer, window // 4))
