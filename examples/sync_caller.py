"""Agents behind a synchronous web application (Django, Flask, plain WSGI): one event loop in a thread of its own, for all threads.

    python examples/sync_caller.py          # then: curl -d 'Is it open?' http://127.0.0.1:8000/

`Pod.run_sync` starts an event loop for each call, which is right for a script. A server with many threads starts one loop when it
starts, and its views hand their work over: connections and rate limits are shared, at most `at_once` agents run, and an orderly
stop ends them all, resumable. In Django make `Agents` where a worker process starts (after it was forked), and end it in its
`atexit`; the view below becomes a view function as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self
from uuid import uuid4
from wsgiref.simple_server import make_server

from anyio.from_thread import BlockingPortal, start_blocking_portal
from pydantic import BaseModel

from pod import Manifest, PodHost, RunResult
from worker import AssistantItem
from worker.models.base import Model, Reply, Request
from worker.testing import FunctionModel, make_reply

MANIFEST = Manifest.model_validate({"tools": {"enable": []}})

LONGEST = 10_000
"""Bytes of a question at most."""


class Answer(BaseModel):
    """What the visitor reads."""

    text: str
    sure: bool


class Agents:
    """Agents for synchronous code. Use it as a context manager; every thread may call `ask` meanwhile."""

    def __init__(
        self, home: Path, *, model: Model | None = None, at_once: int = 8, backend: str = "asyncio", drain: float = 10.0
    ) -> None:
        self._home, self._model, self._backend, self._drain = home, model, backend, drain
        self._host = PodHost(concurrency=at_once)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        self._portal = self._stack.enter_context(start_blocking_portal(self._backend))
        self._stack.enter_context(self._portal.wrap_async_context_manager(self._host))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._portal is not None
        self._portal.call(self._host.drain, self._drain)
        self._stack.close()

    def ask(self, question: str) -> RunResult[Answer]:
        """Blocks until the answer is there. An expected end (a limit, a failure) is a result too, not an exception."""
        assert self._portal is not None, "Agents is used as a context manager"
        return self._portal.call(self._ask, question)

    async def _ask(self, question: str) -> RunResult[Answer]:
        name = f"questions/{uuid4().hex}"  # a pod for each question: its log stays, `pod inspect` shows it
        hosted = self._host.start(
            MANIFEST, question, name=name, home=self._home, cwd=self._home, model=self._model, output_type=Answer
        )
        return await hosted.wait()


def application(agents: Agents) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """A WSGI application: the body of a POST is a question."""

    def view(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        question = environ["wsgi.input"].read(min(length, LONGEST)).decode(errors="replace")
        if not question.strip():
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [b"Ask something.\n"]
        result = agents.ask(question)
        if result.output is None:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [f"No answer now ({result.status}). It is kept as {result.pod}.\n".encode()]
        start_response("200 OK", [("Content-Type", "application/json")])
        return [result.output.model_dump_json().encode()]

    return view


def parrot(request: Request) -> Reply:
    """Plays the model, without a key: says the question again."""
    asked = next(item.text for item in reversed(request.items) if item.type == "user")
    return make_reply(AssistantItem(text=Answer(text=f"You asked: {asked}", sure=True).model_dump_json()))


def main() -> None:
    with (
        TemporaryDirectory() as folder,
        Agents(Path(folder), model=FunctionModel("offline:parrot", parrot)) as agents,
        make_server("127.0.0.1", int(os.environ.get("PORT", "8000")), application(agents)) as server,
    ):
        print(f"listening on http://127.0.0.1:{server.server_port}/ until Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")


if __name__ == "__main__":
    main()
