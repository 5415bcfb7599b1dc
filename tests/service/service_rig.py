"""A service on a real socket, with a client that has its token."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2

from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.reading import SessionReader
from pod.service import Tokens, create_app
from pod.service.app import Service
from pod.service.connections import Connections
from pod.service.serving import listening, serve
from worker.models.base import Request
from worker.testing import ScriptedModel, say
from worker.testing.scripted import Step

TOKEN = "the-token-of-the-tests"
WITH = {"authorization": f"Bearer {TOKEN}"}


def answering(play: Callable[[Request], Step] = lambda request: say("done")) -> ScriptedModel:
    """A model that answers each request with what `play` makes of it."""
    return ScriptedModel([play], strict=False, name="offline:agent")


@dataclass
class Up:
    """A service that runs."""

    service: Service
    url: str
    client: httpx2.AsyncClient

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        """GET."""
        return await self.client.get(path, **options)

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """POST of JSON; headers by their names with `_`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, json={} if body is None else body, headers=named)

    async def make(self, name: str = "p", task: str | None = "go", manifest: str = "plain") -> None:
        """A pod."""
        body = {"manifest": manifest, "name": name, **({} if task is None else {"task": task})}
        answer = await self.post("/v1/pods", body)
        assert answer.status_code == 201, answer.text

    async def until(self, name: str, *statuses: str) -> dict[str, Any]:
        """Waits until a pod stands so; what is said of it then."""
        with anyio.fail_after(20):
            while True:
                facts = (await self.get(f"/v1/pods/{name}")).json()
                if facts["status"] in statuses:
                    return facts
                await anyio.sleep(0.02)

    @asynccontextmanager
    async def events(self, name: str, **headers: str) -> AsyncGenerator[Stream]:
        """A reader."""
        named = {"accept": "text/event-stream", **{key.replace("_", "-"): value for key, value in headers.items()}}
        async with self.client.stream("GET", f"/v1/pods/{name}/events", headers=named) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield Stream(answer)


@dataclass
class Stream:
    """Server-sent events as they come."""

    answer: httpx2.Response
    seen: list[tuple[int | None, dict[str, Any]]] = field(default_factory=list[tuple[int | None, dict[str, Any]]])
    _lines: Any = None

    async def next(self) -> tuple[int | None, dict[str, Any]] | None:
        """Number and event; None at the end. Waits so long as a test may."""
        with anyio.fail_after(20):
            return await self._next()

    async def _next(self) -> tuple[int | None, dict[str, Any]] | None:
        self._lines = self._lines or self.answer.aiter_lines()
        number: int | None = None
        async for line in self._lines:
            key, _, value = line.partition(": ")
            if key == "id":
                number = int(value)
            elif key == "data":
                self.seen.append((number, json.loads(value)))
                return self.seen[-1]
        return None

    async def until(self, kind: str) -> list[int]:
        """Reads on to an event of this type; the numbers of all that came."""
        with anyio.fail_after(20):
            while (found := await self.next()) is not None:
                if found[1]["type"] == kind:
                    return self.numbers
        raise AssertionError(f"no {kind}: {[event['type'] for _, event in self.seen]}")

    @property
    def numbers(self) -> list[int]:
        """The numbers so far."""
        return [number for number, _ in self.seen if number is not None]


class Rig:
    """A home, a folder of manifests, a working folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.home, self.cwd, self.manifests = folder / "home", folder / "work", folder / "manifests"
        for each in (self.cwd, self.manifests):
            each.mkdir()
        self.manifest("plain")

    def manifest(self, name: str, text: str = "") -> Path:
        """Puts a manifest on the shelf."""
        path = self.manifests / f"{name}.toml"
        path.write_text(f'version = 1\n[model]\nname = "offline:surveyor"\n[tools]\nenable = []\n{text}')
        return path

    def app(self, **options: Any) -> Service:
        """The service, not running."""
        given: dict[str, Any] = {
            "tokens": Tokens.single(TOKEN), "manifests": self.manifests, "home": self.home, "cwd": self.cwd,
            "state": self.root / "state", "model": answering(),
        }  # fmt: skip
        return create_app(**{**given, **options})

    @asynccontextmanager
    async def up(
        self, stalled: float = 30.0, connections: Connections | None = None, **options: Any
    ) -> AsyncGenerator[Up]:
        """A service that runs until the block ends."""
        service = self.app(**options)
        listener, ended = listening("127.0.0.1", 0, None, stalled=stalled), anyio.Event()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(partial(serve, service, listener, ended, connections=connections))
                limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
                async with httpx2.AsyncClient(
                    base_url=url, headers=WITH, timeout=60, trust_env=False, limits=limits
                ) as client:
                    yield Up(service, url, client)
                ended.set()
        finally:
            listener.close()

    def folder(self, name: str = "p") -> PodFolder:
        """A pod's folder."""
        return PodFolder(self.home, name)

    def told(self, name: str = "p") -> list[int]:
        """The numbers of all events that the log of a pod gives."""
        from pod.events import event_of

        found = []
        for line in SessionReader(self.folder(name)).lines():
            record = e.record_of(line)
            if record is not None and event_of(line, record) is not None:
                found.append(line.seq)
        return found
