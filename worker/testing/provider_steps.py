"""The steps of a provider server's script: what a request can get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from worker.testing.checked import as_json, at_least, listed, of_type, one_of, texts
from worker.testing.provider_http import Fault, Http
from worker.testing.provider_wires import Call, Tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed reply.

    `usage` is counted from the request where it is left out; None reports none. `stop` is `end`, `tool_calls`,
    `length`, `refusal`, `pause`, or a wire's own word; left out it follows from the calls; an empty one is sent as
    null. `refusal` says that the text is the wire's refusal. `pings` are sent before each event. `split` is the size in
    bytes of the pieces that are written, so that characters are cut. `fault` ends the stream early, after `after`
    events (all but the terminal ones where left out). `pause` is the number of seconds between events. `headers` are sent before the
    stream, as those about limits are.
    """

    text: str = ""
    calls: Sequence[Call] = ()
    reasoning: str = ""
    usage: Tokens | Literal["auto"] | None = "auto"
    stop: str | None = None
    refusal: bool = False
    pings: int = 0
    split: int = 0
    fault: Fault | None = None
    after: int | None = None
    pause: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        texts("Answer.headers", self.headers)
        for name in ("text", "reasoning"):
            of_type(f"Answer.{name}", getattr(self, name), str, "a text")
        listed("Answer.calls", self.calls, Call, "a Call")
        if self.usage is not None and self.usage != "auto":
            of_type("Answer.usage", self.usage, Tokens, 'Tokens, "auto" or None')
            for name, value in self.usage._asdict().items():
                at_least(f"Answer.usage.{name}", value, 0)
        if self.stop is not None:
            of_type("Answer.stop", self.stop, str, "a text")
        one_of("Answer.fault", self.fault, (None, *get_args(Fault)))
        for name in ("pings", "split"):
            at_least(f"Answer.{name}", getattr(self, name), 0)
        if self.after is not None:
            at_least("Answer.after", self.after, 0)
        at_least("Answer.pause", self.pause, 0, whole=False)


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An error event inside a stream of status 200, after the text of `before`."""

    error: Mapping[str, Any]
    before: str = ""

    def __post_init__(self) -> None:
        of_type("ErrorEvent.error", self.error, Mapping, 'an object such as {"type": ..., "message": ...}')
        as_json("ErrorEvent.error", dict(self.error))
        of_type("ErrorEvent.before", self.before, str, "a text")


@dataclass(frozen=True, slots=True)
class Empty:
    """Status 200, an event stream, and nothing in it."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A stream of these events as they are: JSON values, `[DONE]`, or bytes that are written without a frame."""

    events: Sequence[object]
    split: int = 0

    def __post_init__(self) -> None:
        listed("Raw.events", self.events, object, "an event")
        for number, event in enumerate(self.events):
            if not isinstance(event, bytes):
                as_json(f"Raw.events[{number}]", event)
        at_least("Raw.split", self.split, 0)


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection is closed before any answer."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a request to compact gets: `summary`, sealed in the form of the wire.

    None is a summary that failed: null content on `anthropic`, no compaction among the output on `openai`. `beside` is
    a text of the model in the same reply, which no right answer has. `usage` is counted from the request where it is
    left out. `fault` ends the answer early, after `after` events (all but the terminal ones where left out), `split` is
    as that of `Answer`.
    """

    summary: str | None
    beside: str = ""
    usage: Tokens | Literal["auto"] = "auto"
    fault: Fault | None = None
    after: int | None = None
    split: int = 0

    def __post_init__(self) -> None:
        if self.summary is not None:
            of_type("Compaction.summary", self.summary, str, "a text or None")
        of_type("Compaction.beside", self.beside, str, "a text")
        if self.usage != "auto":
            of_type("Compaction.usage", self.usage, Tokens, 'Tokens or "auto"')
        one_of("Compaction.fault", self.fault, (None, *get_args(Fault)))
        if self.after is not None:
            at_least("Compaction.after", self.after, 0)
        at_least("Compaction.split", self.split, 0)


Step: TypeAlias = Answer | Http | ErrorEvent | Empty | Raw | Drop
CompactionStep: TypeAlias = Compaction | Http | ErrorEvent | Empty | Raw | Drop
"""What a request to compact can get."""
