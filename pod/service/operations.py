"""The operations of the service: each with its role, what it takes, and the answers that it can give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import BaseModel

from pod.service import schemas as s
from pod.service.access import Role
from pod.service.api import Answered, Api, Asked

Handler: TypeAlias = Callable[[Api, Asked], Awaitable[Answered]]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation. `answers` gives the model of each good answer by its status, `refusals` the statuses of others, beside those that
    any request can get. `again` says whether it does no harm to do it twice under one id. One without a handler is answered by the app
    itself, in another form than JSON.
    """

    name: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    role: Role
    says: str
    handler: Handler | None = None
    answers: dict[int, type[BaseModel]]
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    refusals: tuple[int, ...] = ()
    media: str = "application/json"
    again: bool = True

    @property
    def writes(self) -> bool:
        """Whether it changes something, and so takes an Idempotency-Key."""
        return self.method != "GET"


_POD = "/v1/pods/{name}"

EVENTS, EXPORT = "readEvents", "export"
"""Those that can answer with more than JSON."""

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="showCaller", method="GET", path="/v1/caller", role="read", handler=Api.caller,
        says="Whom this token belongs to, and its role.", answers={200: s.Caller},
    ),
    Operation(
        name="listManifests", method="GET", path="/v1/manifests", role="read", handler=Api.manifests,
        says="From which manifests pods can be made.", answers={200: s.Manifests},
    ),
    Operation(
        name="listPods", method="GET", path="/v1/pods", role="read", handler=Api.pods,
        says="The pods, by name.", answers={200: s.Pods}, query=s.Paging, refusals=(422,),
    ),
    Operation(
        name="makePod", method="POST", path="/v1/pods", role="operate", handler=Api.make,
        says="Makes a pod, and begins with its task.", answers={201: s.Made, 200: s.Made}, body=s.NewPod, refusals=(404,),
    ),
    Operation(
        name=EVENTS, method="GET", path=f"{_POD}/events", role="read", handler=Api.events,
        says="The events of a pod: a page of them, or with `Accept: text/event-stream` all that come (`Last-Event-ID` goes on).",
        answers={200: s.EventPage}, query=s.Following, refusals=(404, 409, 422, 429),
    ),
    Operation(
        name="sendMessage", method="POST", path=f"{_POD}/messages", role="operate", handler=Api.message,
        says="Leaves a message for the agent, durable when it is answered.", answers={202: s.Stored}, body=s.Message, refusals=(404,),
    ),
    Operation(
        name="listApprovals", method="GET", path=f"{_POD}/approvals", role="read", handler=Api.approvals,
        says="What waits for a human.", answers={200: s.Questions}, query=s.Waiting, refusals=(404, 409, 422),
    ),
    Operation(
        name="answerApproval", method="POST", path=f"{_POD}/approvals/{{id}}", role="operate", handler=Api.answer,
        says="Answers a question; the pod goes on.", answers={202: s.Taken}, body=s.Answer, refusals=(404,),
    ),
    Operation(
        name="readContext", method="GET", path=f"{_POD}/context", role="read", handler=Api.context,
        says="What fills the context, and what would go next.", answers={200: s.Context}, refusals=(404, 409, 422),
    ),
    Operation(
        name="compact", method="POST", path=f"{_POD}/compact", role="operate", handler=Api.compact,
        says="Compacts now, or tells what that would do.", answers={200: s.Context, 202: s.Taken}, body=s.Compact, refusals=(404,),
    ),
    Operation(
        name="stop", method="POST", path=f"{_POD}/stop", role="operate", handler=Api.stop,
        says="Ends the run before its next request.", answers={202: s.Taken}, body=s.Stop, refusals=(404,),
    ),
    Operation(
        name="resume", method="POST", path=f"{_POD}/resume", role="operate", handler=Api.resume,
        says="Goes on with a run that ended early.", answers={202: s.Taken}, body=s.Nothing, refusals=(404,),
    ),
    Operation(
        name="fork", again=False, method="POST", path=f"{_POD}/fork", role="operate", handler=Api.fork,
        says="A new pod that begins where this one stood.", answers={201: s.Forked}, body=s.Fork, refusals=(404,),
    ),
    Operation(
        name="rewind", again=False, method="POST", path=f"{_POD}/rewind", role="operate", handler=Api.rewind,
        says="Takes a pod that does not run back to an earlier point.", answers={200: s.Rewound}, body=s.Rewind, refusals=(404,),
    ),
    Operation(
        name="clear", again=False, method="POST", path=f"{_POD}/clear", role="operate", handler=Api.clear,
        says="Begins the session of a pod that does not run anew; nothing of before is carried over.", answers={200: s.Cleared},
        body=s.Nothing, refusals=(404,),
    ),
    Operation(
        name="readResult", method="GET", path=f"{_POD}/result", role="read", handler=Api.result,
        says="How the pod stands, and the result of its last run.", answers={200: s.Outcome}, query=s.Waiting, refusals=(404, 409, 422),
    ),
    Operation(
        name="searchHistory", method="GET", path=f"{_POD}/history", role="read", handler=Api.history,
        says="Lists, searches and reads what the session recorded.", answers={200: s.Found}, query=s.Looking, refusals=(404, 409, 422),
    ),
    Operation(
        name="readTimeline", method="GET", path=f"{_POD}/timeline", role="read", handler=Api.timeline,
        says="What happened, with figures: requests and what filled them, prunes, compactions, segments.", answers={200: s.Steps},
        query=s.Stepping, refusals=(404, 409, 422),
    ),
    Operation(
        name="readEntry", method="GET", path=f"{_POD}/entries/{{seq}}", role="read", handler=Api.entry,
        says="An entry of the log.", answers={200: s.EntryText}, query=s.Reading, refusals=(404, 409, 422),
    ),
    Operation(
        name=EXPORT, method="GET", path=f"{_POD}/export", role="admin",
        says="The pod as one file, for `pod import`.", answers={}, refusals=(404, 409, 422), media="application/x-tar",
    ),
    Operation(
        name="showPod", method="GET", path=_POD, role="read", handler=Api.show,
        says="What there is to say of a pod.", answers={200: s.Facts}, refusals=(404, 409, 422),
    ),
    Operation(
        name="removePod", again=False, method="DELETE", path=_POD, role="admin", handler=Api.remove,
        says="Removes a pod that does not run, for good.", answers={200: s.Removed}, refusals=(404,),
    ),
)  # fmt: skip
"""All of them, in the order in which paths are looked up."""
