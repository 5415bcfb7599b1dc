"""A FastAPI service that has agents in it: its own endpoint streams a run as it happens, and all pods have an interface beside it.

    POD_TOKEN=a-token-of-at-least-16 uvicorn --factory fastapi_service:create     # in this folder
    curl -N -H "Authorization: Bearer $POD_TOKEN" -H "Content-Type: application/json" \\
         -d '{"text": "Order 17 came broken."}' http://127.0.0.1:8000/reviews

`POST /reviews` gives one JSON object a line: what the agent does, and last its verdict, as an object of a type. A caller that goes
away ends nothing: the run goes on, and `/agents/v1/pods/NAME/events` tells the same events again. One host runs the pods of both;
when the service ends they come to a halt at a request boundary, and can be gone on with. The model is played, so it needs no key.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal
from uuid import uuid4

import anyio
import uvicorn
from anyio.streams.memory import MemoryObjectSendStream
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field

from pod import Manifest, Pod, PodHost, RunResult
from pod.service import Tokens, create_app
from worker import AssistantItem, tool
from worker.items import make_call
from worker.models.base import Model, Reply, Request
from worker.testing import FunctionModel, make_reply

MANIFEST = Manifest.model_validate(
    {"worker": {"system_prompt": "You judge what customers write."}, "tools": {"enable": []}}
)

PATIENCE = 30
"""Seconds without taking a line after which a caller is told no more."""

ORDERS = {17: "a vase, sent on Monday", 18: "a book, sent on Tuesday"}


class Asked(BaseModel):
    """What a customer wrote."""

    text: str = Field(min_length=1, max_length=10_000)


class Verdict(BaseModel):
    """What is to be done about it."""

    reason: str
    mood: Literal["content", "angry"]


@tool
def order(number: int, deps: dict[int, str]) -> str:
    """Looks an order up.

    Args:
        number: Its number.
    """
    return deps.get(number, "there is no such order")


class Line(BaseModel):
    """One line of the stream. `verdict` is set in the last one alone, and only where there is one."""

    pod: str
    what: str
    text: str = ""
    verdict: Verdict | None = None


def create(home: Path | None = None, *, token: str | None = None, model: Model | None = None) -> FastAPI:
    """The app. `home` is where pods lie, `token` what callers must have (default `$POD_HOME`, `$POD_TOKEN`)."""
    token = token or os.environ.get("POD_TOKEN")
    if not token:
        raise SystemExit("POD_TOKEN is not set: it holds the token that callers must have, of at least 16 characters")
    model = model or FunctionModel("offline:judge", judge)
    host = PodHost(concurrency=50)
    agents = create_app(host, tokens=Tokens.single(token), home=home, model=model, adopt=False)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncGenerator[None]:
        async with host, anyio.create_task_group() as app.state.group, agents.running():
            try:
                yield
            finally:
                agents.end()  # readers are let go
                with anyio.CancelScope(shield=True):
                    await host.drain(5)

    app = FastAPI(lifespan=life)
    app.mount("/agents", agents)

    def known(given: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> None:
        if not secrets.compare_digest(given.credentials.encode(), token.encode()):
            raise HTTPException(401, "the token is wrong")

    @app.post("/reviews", dependencies=[Depends(known)])
    async def review(asked: Asked) -> StreamingResponse:  # pyright: ignore[reportUnusedFunction]  (FastAPI uses it)
        name = f"reviews/{uuid4().hex}"
        send, receive = anyio.create_memory_object_stream[Line](16)

        def opens() -> Pod[Verdict]:
            return Pod.open(
                MANIFEST, name=name, home=home, model=model, tools=[order], deps=ORDERS, output_type=Verdict
            )

        async def drive(pod: Pod[Verdict]) -> RunResult[Verdict]:
            async with pod.start(asked.text) as run:
                async for event in run:
                    if event.type == "tool.completed":
                        await tell(send, Line(pod=name, what=event.type, text=event.summary))
                return run.result

        async def follow() -> None:
            async with send:
                result = await host.take(name, opens, drive).wait()
                await tell(send, Line(pod=name, what=result.status, text=result.error or "", verdict=result.output))

        async def lines() -> AsyncIterator[str]:
            async with receive:
                async for line in receive:
                    yield line.model_dump_json(exclude_defaults=True) + "\n"

        app.state.group.start_soon(follow)  # of the app, not of the request: the caller may go away
        return StreamingResponse(lines(), media_type="application/x-ndjson")

    return app


async def tell(to: MemoryObjectSendStream[Line], line: Line) -> None:
    """Tells the caller at its own speed; nobody, where it has gone away or takes nothing any more."""
    try:
        with anyio.fail_after(PATIENCE):
            await to.send(line)
    except TimeoutError:
        to.close()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass


def judge(request: Request) -> Reply:
    """Plays the model, without a key."""
    last, said = request.items[-1], next(item.text for item in request.items if item.type == "user")
    if last.type != "tool_result" and (number := re.search(r"\d+", said)) is not None:
        return make_reply(make_call("", "order", f'{{"number": {number[0]}}}'))
    mood = "angry" if "broken" in said else "content"
    return make_reply(AssistantItem(text=Verdict(reason="So it reads.", mood=mood).model_dump_json()))


if __name__ == "__main__":
    uvicorn.run(create())
