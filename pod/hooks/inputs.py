"""What a hook is told: one JSON object by event, without secrets and of bounded size."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from worker.text import clean

LARGEST = 1_048_576
"""Bytes that the JSON of one input has at most."""

LONGEST = 65_536
"""Characters that one text of an input keeps where the whole would be larger than `LARGEST`."""


class Common(BaseModel):
    """`hook` is the name of the hook that is asked, `cwd` the agent's working folder, in which it runs. `cut` says that the
    input was too large: texts were cut, or left out.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    hook: str = ""
    pod: str = ""
    session: str = ""
    run: str = ""
    cwd: str = ""
    cut: bool = False


class RunStart(Common):
    """A run is about to begin; nothing was sent. `input` are the messages that wait for a reply, oldest first.

    To block ends the run as failed (`hook_blocked`, exit code 1); the messages stay, and a resume asks again.
    """

    event: Literal["RunStart"] = "RunStart"
    input: tuple[str, ...] = ()


class PreToolUse(Common):
    """A call is about to run that the permissions allow, or that they would ask a human about. All calls of a reply are looked at
    before the first of them runs. `arguments` are those that the tool gets.

    To block denies the call, with the reason as its result.
    """

    event: Literal["PreToolUse"] = "PreToolUse"
    tool: str
    effect: str
    call_id: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


class PostToolUse(Common):
    """A tool was run. `status` is `ok` or `error`; `summary` and `content` are what the model is shown of it.

    To block undoes nothing: the model is told the reason beside the result.
    """

    event: Literal["PostToolUse"] = "PostToolUse"
    tool: str
    effect: str
    call_id: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    status: Literal["ok", "error"] = "ok"
    summary: str = ""
    content: str | None = None


class PreCompact(Common):
    """A compaction is about to begin. `trigger` is its reason, `tokens` the size of the next request, `focus` what the summary is
    asked to be about.

    To block leaves the context as it is: the run goes on where its requests fit, and the next try comes after a tenth more growth;
    at the ceiling it ends as failed (`hook_blocked`).
    """

    event: Literal["PreCompact"] = "PreCompact"
    trigger: str
    tokens: int
    focus: str | None = None


class PostCompact(Common):
    """A new segment began. `rung` made it; `before` and `after` are the sizes of the next request in tokens.

    To block undoes nothing: the model is told the reason.
    """

    event: Literal["PostCompact"] = "PostCompact"
    trigger: str
    rung: str
    before: int
    after: int
    segment: str


class Stop(Common):
    """The agent ended its turn with `text`: its run is about to finish. Not asked where a run fails, is cancelled or meets a limit.
    `blocks` is how often this hook has kept the run from ending already.

    To block makes the agent go on, with the reason as a notice, at most `max_blocks` times in a run.
    """

    event: Literal["Stop"] = "Stop"
    text: str
    blocks: int = 0


HookInput: TypeAlias = Annotated[
    RunStart | PreToolUse | PostToolUse | PreCompact | PostCompact | Stop, Field(discriminator="event")
]
adapter: TypeAdapter[HookInput] = TypeAdapter(HookInput, config=ConfigDict(defer_build=True))

Mask: TypeAlias = Callable[[str], str]
"""Takes the secrets out of a text."""


_LEFT_OUT: dict[str, Any] = {"content": None, "arguments": {}, "input": ()}


def told(given: HookInput, mask: Mask) -> HookInput:
    """The input as a hook gets it: a copy of its own, masked whole, then cut where it is too large. Linear in its size."""
    values = cast("dict[str, Any]", _masked(given.model_dump(), mask))
    if not _small(values):
        values = cast("dict[str, Any]", _cut(values, LONGEST)) | {"cut": True}
        for name, nothing in _LEFT_OUT.items():
            if name in values and not _small(values):
                values[name] = nothing
    return adapter.validate_python(values)


def _small(values: Mapping[str, Any]) -> bool:
    return len(json.dumps(values)) <= LARGEST


def _masked(value: object, mask: Mask) -> object:
    return _mapped(value, lambda text: mask(clean(text)))


def _cut(value: object, most: int) -> object:
    return _mapped(value, lambda text: text[:most])


def _mapped(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in cast("list[object]", value)]
    if isinstance(value, dict):
        return {change(key): _mapped(inner, change) for key, inner in cast("dict[str, object]", value).items()}
    return value
