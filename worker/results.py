"""How a worker's stretch of work ends. An expected end is never an exception, a failed one never a success."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Finished:
    """The model ended its turn. `empty` marks a legal end without text (after a tool result)."""

    text: str
    output: Any = None
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Yielded:
    """An interceptor said *yield*. The pod gives the reason its meaning; the run goes on or is resumable."""

    reason: str
    detail: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Paused:
    """Calls wait for a human. `approvals` are their ids."""

    approvals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LimitReached:
    """A configured limit ended the run; resumable. `limit` is its key, `figures` what was measured."""

    limit: str
    message: str
    figures: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The run was cancelled; state is durable. `withdrawn` lists inputs given back because nothing came of them."""

    withdrawn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The run failed. `kind` is a stable word (`auth`, `overflow`, `refused`, `empty_replies`, …), `text` what the model
    had said."""

    kind: str
    message: str
    text: str = ""
    details: dict[str, Any] = field(default_factory=dict[str, Any])


Outcome: TypeAlias = Finished | Yielded | Paused | LimitReached | Cancelled | Failed
