"""A scripted model provider on a real socket: the wire test double.

    with ProviderServer([Http(429, headers={"retry-after": "1"}), Answer("hello")], wire="openai-chat") as server:
        settings = ModelSettings(base_url=server.url)
        ...
    assert len(server.requests) == 2

Each request takes the next step of the script. A script can also be a function from the request to a step. With
`strict=True` the server rejects with a 400 what a strict provider rejects (see `provider_rules.problem`); a rejected
request takes no step.

It listens on loopback only, holds a bounded number of connections and bytes, every wait has a limit, and leaving the
`with` block closes all sockets and ends all threads. It uses no event loop, so it serves code on asyncio and trio
alike.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast, get_args

from worker.models.base import NativeWay
from worker.models.table import WAYS
from worker.testing.checked import listed, of_type, one_of
from worker.testing.provider_compaction import COMPACT_PATH, compaction_answer, seen, size, way_of
from worker.testing.provider_http import Connection, Http, RecordedRequest
from worker.testing.provider_memory_rules import memory_refusal
from worker.testing.provider_rules import problem
from worker.testing.provider_seals import broken_seals, chain, seal
from worker.testing.provider_steps import (
    Answer,
    Compaction,
    CompactionStep,
    Drop,
    Empty,
    ErrorEvent,
    Raw,
    Step,
)
from worker.testing.provider_wires import (
    COUNT_PATHS,
    FRAMES,
    PATHS,
    STOPS,
    Call,
    Content,
    Tokens,
    WireName,
    count_body,
    error_body,
    error_event,
    history,
    overflow_body,
    sse,
)

__all__ = [
    "Answer",
    "Call",
    "Compaction",
    "CompactionStep",
    "Drop",
    "Empty",
    "ErrorEvent",
    "Http",
    "ProviderServer",
    "Raw",
    "RecordedRequest",
    "Step",
    "Tokens",
]

MAX_CONNECTIONS = 128
SOCKET_LIMIT = 30.0
"""Seconds that any wait on a socket may take, silence included."""


T = TypeVar("T")

Count: TypeAlias = int | Http | Drop
"""What a request to count gets: the tokens, an error, or nothing."""
Compacts: TypeAlias = str | Callable[[RecordedRequest], str | CompactionStep]
"""How requests to compact are answered: the summary, or a function to a summary or a step."""


class ProviderServer:
    """See the module. A wrong step or wire raises `TypeError` or `ValueError` when it is made.

    `url` is the base URL for the wire's adapter, `requests` what arrived, rejected requests too.

    `bind_reasoning` signs reasoning with what stands before it: on `anthropic` a signature over another prefix is a
    400, unless the request asks for such blocks to be dropped; on `openai` such an item is dropped and reported.
    `max_input_tokens` is the window: a request of more (its bytes divided by four) gets the wire's overflow error.
    `counts` answers requests to count tokens; without it there is no such endpoint. They take no step and stand in
    `counted`.
    `compacts` makes compactions by the `ways` of the wire (all of them where left out); without it the server knows
    none. Requests to compact take no step and stand in `compacted`. The summary is sealed: only this kind of server
    opens it again, for the model that asked; `seen` shows a later request with the summary in the block's place. A
    kept turn's bound reasoning stays valid directly behind a memory, and behind nothing else.
    """

    def __init__(
        self,
        steps: Iterable[Step] | Callable[[RecordedRequest], Step],
        *,
        wire: WireName = "openai-chat",
        strict: bool = False,
        bind_reasoning: bool = False,
        max_input_tokens: int | None = None,
        counts: Callable[[RecordedRequest], Count] | None = None,
        compacts: Compacts | None = None,
        ways: tuple[NativeWay, ...] | None = None,
    ) -> None:
        self.wire: WireName = wire
        self.compacted: list[RecordedRequest] = []
        if compacts is not None and not callable(compacts):
            of_type("compacts", compacts, str, "a summary or a function")
        self._compacts = compacts
        offered = WAYS.get(wire, ()) if ways is None else ways
        self._ways: tuple[NativeWay, ...] = () if compacts is None else offered
        self.counted: list[RecordedRequest] = []
        self._counts = counts
        self.requests: list[RecordedRequest] = []
        self.rejected: list[str] = []
        """The reasons of the requests that strict mode refused."""
        self._responder = steps if callable(steps) else None
        one_of("wire", wire, tuple(FRAMES))
        if not callable(steps):
            of_type("a script", steps, Iterable, "a list of steps or a function")
        self._steps: list[Step] = [] if callable(steps) else list(steps)
        listed("steps", self._steps, get_args(Step), "a step (Answer, Http, ErrorEvent, Empty, Raw or Drop)")
        self._taken = 0
        self._number = 0
        self._strict = strict
        self._bind = bind_reasoning
        self._window = max_input_tokens
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self._stopping = threading.Event()

    @property
    def url(self) -> str:
        """The base URL, as a manifest's `base_url` wants it."""
        if self._listener is None:
            raise RuntimeError("the server runs inside its with block only")
        port = self._listener.getsockname()[1]
        return f"http://127.0.0.1:{port}" + ("" if self.wire == "anthropic" else "/v1")

    @property
    def remaining(self) -> int:
        """Steps of the script that no request has taken."""
        return len(self._steps) - self._taken

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        with self._lock:
            return len(self._open)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS)
        self._start(self._accept, self._listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        listener, self._listener = self._listener, None
        with self._lock:
            self._stopping.set()
            sockets = [*self._open, *([listener] if listener else [])]
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if listener is not None:
            listener.close()
        # The first is the one that accepts: once it has ended, no other begins.
        for thread in self._threads[:1]:
            thread.join(SOCKET_LIMIT)
        for thread in list(self._threads):
            thread.join(SOCKET_LIMIT)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                # One that is accepted while the server stops would be missed by the end of the block.
                turned_away = self._stopping.is_set() or len(self._open) >= MAX_CONNECTIONS
                if not turned_away:
                    self._open.add(conn)
            if turned_away:
                conn.close()
                continue
            conn.settimeout(SOCKET_LIMIT)
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._serve, conn)

    def _serve(self, conn: socket.socket) -> None:
        connection = Connection(conn)
        last: RecordedRequest | None = None
        try:
            while not self._stopping.is_set():
                request = connection.read()
                if request is None:
                    break
                last = request
                if not self._respond(connection, request):
                    break
        except OSError:
            # The client left or the server stops: both are ordinary ends of a connection.
            pass
        finally:
            if last is not None and not self._stopping.is_set():
                last.left.set()
            with self._lock:
                self._open.discard(conn)
            conn.close()

    def _respond(self, connection: Connection, request: RecordedRequest) -> bool:
        """Answers one request; says whether the connection may serve another."""
        path = request.path.partition("?")[0]
        counting = COUNT_PATHS.get(path) == self.wire and request.method == "POST"
        body = _body(request)
        way = None if counting else way_of(self.wire, path, body)
        with self._lock:
            kept = self.counted if counting else self.compacted if way else self.requests
            kept.append(request)
            self._number += not counting
            number = len(kept) if counting else self._number
        if counting:
            return self._count(connection, request, number)
        refusal = self._refuse(request, path, body)
        if refusal is not None:
            return connection.plain(refusal, number)
        transformations: list[dict[str, Any]] = []
        if self._bind:
            refusal = self._check_seals(body, transformations)
            if refusal is not None:
                return connection.plain(refusal, number)
        step = self._compaction(request) if way else self._next(request)
        match step:
            case Http():
                return connection.plain(step, number)
            case Compaction():
                return self._compact(connection, way, step, body, number)
            case Drop():
                return False
            case Empty():
                return connection.stream([], number)
            case Raw():
                events = [x if isinstance(x, bytes) else sse(x) for x in step.events]
                return connection.stream(events, number, split=step.split)
            case ErrorEvent():
                frames = FRAMES[self.wire](self._content(Answer(step.before), body, number, []))
                before = frames.events[: frames.end] if step.before else []
                return connection.stream([*before, error_event(self.wire, dict(step.error))], number)
            case Answer():
                frames = FRAMES[self.wire](self._content(step, body, number, transformations))
                events = frames.events
                if step.fault is not None:
                    events = events[: frames.end if step.after is None else step.after]
                ping = sse({"type": "ping"}, "ping") if self.wire == "anthropic" else b": ping\n\n"
                pings = [ping] * step.pings
                events = [piece for event in events for piece in (*pings, event)]
                return connection.stream(
                    events, number, split=step.split, fault=step.fault, pause=step.pause, stopping=self._stopping,
                    headers=step.headers,
                )  # fmt: skip

    def _count(self, connection: Connection, request: RecordedRequest, number: int) -> bool:
        answer = Http(404, error_body(self.wire, "no such path", kind="not_found_error"))
        match self._ask(self._counts, request) if self._counts else answer:
            case Drop():
                return False
            case Http() as made:
                return connection.plain(made, number)
            case tokens:
                return connection.plain(Http(200, count_body(self.wire, tokens)), number)

    def _compaction(self, request: RecordedRequest) -> CompactionStep:
        made: object = self._ask(self._compacts, request) if callable(self._compacts) else self._compacts
        if isinstance(made, str):
            return Compaction(made)
        if isinstance(made, Compaction | Http | ErrorEvent | Empty | Raw | Drop):
            return made
        message = f"the function of the test server gave no compaction, but {type(made).__name__} {made!r:.80}"
        return Http(400, error_body(self.wire, message))

    def _compact(
        self, connection: Connection, way: NativeWay | None, step: Compaction, body: dict[str, Any], number: int
    ) -> bool:
        answer = compaction_answer(way or "summarize", step, body, number)
        if isinstance(answer, dict):
            if step.fault is None:
                return connection.plain(Http(200, answer), number)
            text = json.dumps(answer).encode()
            return connection.stream([text[: len(text) // 2]], number, fault=step.fault)
        events = answer.events
        if step.fault is not None:
            events = events[: answer.end if step.after is None else step.after]
        return connection.stream(events, number, split=step.split, fault=step.fault)

    def _refuse(self, request: RecordedRequest, path: str, body: dict[str, Any]) -> Http | None:
        known = PATHS.get(path) == self.wire or (path == COMPACT_PATH and "responses.compact" in self._ways)
        if not known or request.method != "POST":
            return Http(404, error_body(self.wire, f"no such path: {request.method} {path}", kind="not_found_error"))
        refusal = memory_refusal(self.wire, path, request.headers, body, self._ways)
        if refusal is not None:
            self.rejected.append(json.dumps(refusal.body))
            return refusal
        if self._strict:
            wrong = problem(self.wire, request.body)
            if wrong is not None:
                self.rejected.append(wrong)
                return Http(400, error_body(self.wire, wrong))
        tokens = len(request.body) // 4
        if self._window is not None and tokens > self._window:
            return Http(400, overflow_body(self.wire, tokens, self._window))
        return None

    def _next(self, request: RecordedRequest) -> Step:
        if self._responder is not None:
            made: object = self._ask(self._responder, request)
            if isinstance(made, get_args(Step)):
                return made
            message = f"the function of the test server gave no step, but {type(made).__name__} {made!r:.80}"
            return Http(400, error_body(self.wire, message))
        with self._lock:
            if self._taken < len(self._steps):
                self._taken += 1
                return self._steps[self._taken - 1]
        return Http(400, error_body(self.wire, "the script of the test server has no step for this request"))

    def _ask(self, function: Callable[[RecordedRequest], T], request: RecordedRequest) -> T | Http:
        """What a user's function makes of a request; a refusal that says so where it raises."""
        try:
            return function(request)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(at.filename).name}:{at.lineno}"
            message = f"the function of the test server raised {type(error).__name__}: {error} ({where})"
            return Http(400, error_body(self.wire, message))

    def _content(
        self, step: Answer, body: dict[str, Any], number: int, transformations: list[dict[str, Any]]
    ) -> Content:
        stop = step.stop
        if stop is None:
            stop = "tool_calls" if step.calls else ("refusal" if step.refusal else "end")
        usage = step.usage
        shown = seen(self.wire, body)
        if usage == "auto":
            usage = Tokens(size(shown.body), max((len(step.text) + len(step.reasoning)) // 4, 1))
        blocks = history(self.wire, body)

        def sign(content: list[Any]) -> str:
            return seal(body, chain([*blocks, *(("assistant", block) for block in content)])[-1])

        return Content(
            model=str(body.get("model", "")),
            number=number,
            pieces=_pieces(step.text),
            reasoning=step.reasoning,
            calls=[
                (call.id or f"call_{number:06d}_{i:06d}_{'x' * 8}", call.name, _pieces(call.text()))
                for i, call in enumerate(step.calls)
            ],
            usage=usage,
            stop=STOPS[self.wire].get(stop, stop),
            refusal=step.refusal and self.wire != "anthropic",
            sign=sign if self._bind and step.reasoning else None,
            transformations=transformations,
            applied=shown.applied,
        )

    def _check_seals(self, body: dict[str, Any], transformations: list[dict[str, Any]]) -> Http | None:
        blocks = history(self.wire, body)
        dropped = broken_seals(body, blocks)
        if not dropped:
            return None
        thinking = cast("dict[str, Any]", body.get("thinking") or {})
        binding = cast("dict[str, Any]", thinking.get("block_binding") or {})
        if self.wire == "openai":
            transformations += [
                {"id": blocks[i][1].get("id"), "action": "removed", "reason": "prefix_mismatch", "type": "reasoning"}
                for i in dropped
            ]
        elif binding.get("prefix_mismatch_behavior") == "drop_block":
            transformations += [
                {"type": "thinking_dropped", "path": f"block {i}", "reason": "prefix_binding_mismatch"} for i in dropped
            ]
        else:
            message = "this thinking block is bound to a different conversation than the one it was sent in"
            return Http(400, error_body(self.wire, message))
        return None


def _body(request: RecordedRequest) -> dict[str, Any]:
    """The object in a request, empty where it holds none: strict mode says what is wrong with it."""
    try:
        value: object = json.loads(request.body)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _pieces(text: str) -> list[str]:
    """A text in at least two pieces where it has two characters, as a model would stream it."""
    if not text:
        return []
    size = max((len(text) + 7) // 8, 1)
    return [text[i : i + size] for i in range(0, len(text), size)]
