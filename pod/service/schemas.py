"""What requests hold and what answers give, for the checks and for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from interceptors.approvals import ApprovalScope
from pod.names import NAME_PATTERN, unfit_name
from pod.service.access import Role

PAGE, MOST = 100, 500
"""Rows of a page unless asked otherwise, and at most."""

STEPS = 2_000
"""Steps of a timeline that are told at once at most."""

WAIT = 55.0
"""Seconds for which an answer is waited for at most."""

Name = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$", max_length=515)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=900_000, pattern=r"\S")]
Line = Annotated[str, StringConstraints(max_length=2_000)]


def complaint(error: ValidationError) -> str:
    """What is wrong with what was given, for people: a pattern is told in words."""
    parts = [f"{'.'.join(str(part) for part in each['loc']) or 'body'}: {_what(each)}" for each in error.errors()[:5]]
    return "; ".join(parts)[:1_000]


def _what(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return "nothing of this name is taken; GET /openapi.json describes what is"
    if error["type"] != "string_pattern_mismatch":
        return error["msg"]
    named = NAME_PATTERN in error["msg"]
    return (unfit_name(str(error["input"])) if named else None) or "it is blank"


class Given(BaseModel):
    """A request's body: nothing else may stand in it."""

    model_config = ConfigDict(extra="forbid")


class NewPod(Given):
    """A pod to be made. `name` is how it is found again, a new one where it is left out; with a `task` it begins at once."""

    manifest: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    name: Name | None = None
    task: Text | None = None


class Message(Given):
    """A message for the agent. It joins at the next request; a pod that nobody runs begins with it."""

    text: Text


class Answer(Given):
    """An answer to a question. `scope`: this call alone, or its kind for the rest of the run. `message` reaches the model."""

    approve: bool
    scope: ApprovalScope | None = None
    message: Line = ""


class Compact(Given):
    """A compaction by hand. `dry_run` tells what it would do, and changes nothing."""

    dry_run: bool = False
    focus: Annotated[str, StringConstraints(max_length=2_000)] | None = None


class Stop(Given):
    """The run ends before its next request, and can be gone on with."""

    reason: Line = ""


class Nothing(Given):
    """No arguments."""


class Fork(Given):
    """A new pod that begins where this one stood after entry `at` (the newest where it is left out)."""

    name: Name
    at: Annotated[int, Field(ge=1, le=10**15)] | None = None


class Rewind(Given):
    """Back to where the pod stood after entry `to`; the log before stays, and so do the files of the working folder."""

    to: Annotated[int, Field(ge=1, le=10**15)]


class Paging(Given):
    """`after` is the name that the last page ended with."""

    after: str = Field(default="", max_length=515)
    limit: int = Field(default=PAGE, ge=1, le=MOST)


class Following(Given):
    """`after` is the number of the last event that is known. Without `text/event-stream`: at most `limit` events, for the first of
    which up to `wait` seconds are waited."""

    after: int = Field(default=0, ge=0, le=10**15)
    limit: int = Field(default=PAGE, ge=1, le=MOST)
    wait: float = Field(default=0.0, ge=0.0, le=WAIT)


class Stepping(Given):
    """`after` is the number of the last entry whose step is known; at most `limit` steps."""

    after: int = Field(default=0, ge=0, le=10**15)
    limit: int = Field(default=MOST, ge=1, le=STEPS)


class Reading(Given):
    """`whole`: up to a million characters of the entry, in place of a few thousand."""

    whole: bool = False


class Waiting(Given):
    """Up to `wait` seconds are waited for the end of the run, or for a question where questions are asked for."""

    wait: float = Field(default=0.0, ge=0.0, le=WAIT)


class Looking(Given):
    """`action` as the agent's own tool `session_history` has it."""

    action: Literal["list_windows", "list_items", "search", "read_item"] = "list_items"
    query: str | None = Field(default=None, max_length=500)
    item: str | None = Field(default=None, max_length=80)
    window: str | None = Field(default=None, max_length=80)
    offset: int = Field(default=0, ge=0, le=10**12)
    limit: int | None = Field(default=None, ge=1, le=100)
    cursor: str | None = Field(default=None, max_length=2_000)


class Problem(BaseModel):
    """Why a request was refused: `error` for programs, `message` for people."""

    error: str
    message: str


class Caller(BaseModel):
    """Whom the token belongs to, and what it may."""

    name: str
    role: Role


class Manifests(BaseModel):
    """From which manifests pods can be made; what each says of itself, where it does."""

    manifests: list[str]
    descriptions: dict[str, str]


class PodRow(BaseModel):
    """A pod in a list. Costs in US dollars; `partial`: there may be more of what is counted. `tokens` are those of its newest
    request, `available` what one may have, `trigger` where something is done about it."""

    model_config = ConfigDict(extra="allow")

    name: str
    status: str
    at: str = ""
    created: str = ""
    requests: int | None = None
    cost_usd: float | None = None
    tokens: int | None = None
    available: int | None = None
    trigger: int | None = None
    model: str = ""


class Pods(BaseModel):
    """Pods by name. `next` is what to give as `after` for the next page, null at the end."""

    pods: list[PodRow]
    next: str | None


class Made(BaseModel):
    """A pod that was made; `new` is false where this very request made it before."""

    pod: str
    new: bool


class Facts(BaseModel):
    """What there is to say of a pod: as `pod show --json`."""

    model_config = ConfigDict(extra="allow")

    name: str
    status: str


class EventPage(BaseModel):
    """Events in order. `last` is what to give as `after` to go on."""

    events: list[dict[str, Any]]
    last: int


class Steps(BaseModel):
    """What happened, with figures: as `pod inspect --json`, long texts cut. `last` is what to give as `after` to go on, `more`
    whether that gives something at once; `left_out` counts older steps that are told no more. `categories` are what a request is made
    of, `marks` the types of steps that stand out, each with its word."""

    categories: list[str]
    marks: dict[str, str]
    steps: list[dict[str, Any]]
    segments: list[dict[str, Any]]
    last: int
    more: bool
    left_out: int


class EntryText(BaseModel):
    """An entry of the log as lines for a reader: secrets masked, payloads left out. `content` is what the model reads of it, where the
    entry is the result of a call. `cut`: there is more of it."""

    seq: int
    at: str
    kind: str
    text: str
    content: str
    cut: bool


class Stored(BaseModel):
    """A message is durable. `stored` is false where it was there before under this key."""

    id: str
    stored: bool


class Questions(BaseModel):
    """What waits for a human, oldest first."""

    approvals: list[dict[str, Any]]


class Taken(BaseModel):
    """An order is taken; the pod follows it at its next step. `running`: whether somebody has the pod open: it is durable then."""

    id: str
    running: bool


class Context(BaseModel):
    """What fills the context, its limits, and what would go next: as `pod context --json`."""

    model_config = ConfigDict(extra="allow")


class Outcome(BaseModel):
    """How a pod stands, and the result of its last run where that is over."""

    status: str
    result: dict[str, Any] | None


class Forked(BaseModel):
    """A new pod, and the entry after which it begins."""

    pod: str
    point: int


class Rewound(BaseModel):
    """The entry that the pod stands behind now (where the one that was asked for was not settled, the last before it that was), and
    what does not go along. `unfinished`: a task is under way there, which `resume` goes on with.
    """

    pod: str
    point: int
    asked: int
    items: int
    left_behind: list[str]
    unfinished: bool


class Cleared(BaseModel):
    """The session begins anew behind entry `point`. `notes` is a file of the working folder with the agent's notes: it stays."""

    pod: str
    point: int
    left_behind: list[str]
    notes: str | None


class Removed(BaseModel):
    """What went for good: logs of segments, files in all, and their bytes."""

    pod: str
    segments: int
    files: int
    bytes: int


class Found(BaseModel):
    """What the session's own record holds, as data without authority."""

    text: str
    status: Literal["ok", "error"]
