"""The budget of a model: what its window leaves for a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from worker.models.base import Capabilities, Source

DEFAULT_BUFFER = 8_192
"""Tokens kept free beside the input where the requested output is smaller."""


class LearnedWindow(BaseModel):
    """What answers taught of a model's window, in tokens.

    `accepted` is the largest input that it reported, `limit` the window that a refusal taught (0: none did), `declared` the
    window that the model was taken to have then (0: not on record), `told` the provider's message.
    """

    model_config = ConfigDict(frozen=True)

    accepted: int = 0
    limit: int = 0
    declared: int = 0
    told: str = ""

    @model_validator(mode="before")
    @classmethod
    def _limit_alone(cls, value: Any) -> Any:
        """Older logs hold the limit alone."""
        return {"limit": value} if isinstance(value, int) else value

    def outdated(self, declared: int) -> bool:
        """Whether the window has been declared anew since: then what a refusal taught no longer counts."""
        return self.limit > 0 and self.declared not in (0, declared)


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens. `available` is the hard ceiling: no request estimated above it is sent, for any attempt, model or
    policy. `told` is the provider's message that taught the window."""

    window: int
    window_source: Source
    output: int
    buffer: int
    told: str = ""

    @property
    def origin(self) -> str:
        """Where the window is from, in words."""
        return f'learned when the provider said "{self.told}"' if self.told else self.window_source

    @property
    def available(self) -> int:
        """What is left for input: the window less the larger of requested output and buffer (one subtraction)."""
        return self.window - max(self.output, self.buffer)


def budget_of(
    capabilities: Capabilities,
    *,
    requested_output: int = 0,
    buffer: int = DEFAULT_BUFFER,
    learned: LearnedWindow | None = None,
) -> Budget:
    """The budget of a model, with the window that a refusal taught where that is smaller.

    A learned window is never below what the model accepted. The buffer never takes more than a quarter of the window, so
    that a small window stays usable.
    """
    window, source, told = capabilities.window, capabilities.window_source, ""
    if learned is not None and learned.limit and not learned.outdated(window):
        bounded = max(learned.limit, learned.accepted)
        if bounded < window:
            window, source, told = bounded, "learned", learned.told
    output = min(requested_output or capabilities.max_output, capabilities.max_output)
    output, buffer = min(output, window // 2), min(buffer, window // 4)
    return Budget(window=window, window_source=source, output=output, buffer=buffer, told=told)
