"""The door of the service: what a request must be before anybody looks at what it asks for."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio

from pod.service.access import Hosts, Tokens, is_same_origin

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 1024 * 1024
"""Bytes of a request's body at most."""

BODY_SECONDS = 10.0
"""Seconds within which a body must have come."""

OPEN = ("/healthz", "/readyz", "/", "/page/")
"""What is given without a token: signs of life, and the page, which holds nothing and asks for one. A `/` at the end stands for
all below it."""

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every answer that does not set them itself."""


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    """A request that is answered at the door."""

    status: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Door:
    """An ASGI app around another one."""

    app: App
    tokens: Tokens
    hosts: Hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers what may not come in; hands everything else on, its body read, its holder in `scope["holder"]`."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        outgoing = _with_headers(send)
        try:
            headers = _headers(scope)
            self._may_come(scope, headers)
            scope["holder"] = self._holder(scope, headers)
            body = await _body(scope, headers, receive)
        except Refused as refused:
            return await answer(outgoing, refused.status, refused.kind, refused.message)
        return await self.app(scope, _again(body, receive), outgoing)

    def _may_come(self, scope: Scope, headers: dict[str, list[str]]) -> None:
        hosts = headers.get("host", [])
        if not self.hosts.knows(hosts):
            raise Refused(
                403, "wrong_host", "this service is not asked under that name; `pod serve --allow-host NAME` adds one"
            )
        origins = headers.get("origin", [])
        if any(not is_same_origin(origin, hosts[0], scope.get("scheme", "http")) for origin in origins):
            raise Refused(403, "foreign_origin", "a page of another origin may not ask this service")
        site = headers.get("sec-fetch-site", [])
        if any(each in {"cross-site", "same-site"} for each in site) and not self._is_open(scope):
            raise Refused(403, "foreign_origin", "a page of another origin may not ask this service")

    def _is_open(self, scope: Scope) -> bool:
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))  # where it is mounted
        return path in OPEN or any(each != "/" and each.endswith("/") and path.startswith(each) for each in OPEN)

    def _holder(self, scope: Scope, headers: dict[str, list[str]]) -> Any:
        given = headers.get("authorization", [])
        if self._is_open(scope) and not given:
            return None
        scheme, _, token = (given[0] if len(given) == 1 else "").partition(" ")
        holder = self.tokens.holder(token.strip() if scheme.lower() == "bearer" else None)
        if holder is None:
            raise Refused(401, "no_token", "a token is needed: Authorization: Bearer TOKEN")
        return holder


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


async def _body(scope: Scope, headers: dict[str, list[str]], receive: Receive) -> bytes:
    """The body, bounded in size and time. What carries one says that it is JSON: a form of a foreign page can't."""
    if scope["method"] in {"GET", "HEAD", "OPTIONS"}:
        return b""
    told = headers.get("content-length", ["0"])[0]
    if told.isdigit() and int(told) > MAX_BODY:
        raise Refused(413, "too_large", f"a body has at most {MAX_BODY:,} bytes")
    body = bytearray()
    with anyio.move_on_after(BODY_SECONDS) as scope_of_time:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "incomplete", "the body did not come whole")
            body += message.get("body", b"")
            if len(body) > MAX_BODY:
                raise Refused(413, "too_large", f"a body has at most {MAX_BODY:,} bytes")
            if not message.get("more_body", False):
                break
    if scope_of_time.cancelled_caught:
        raise Refused(408, "too_slow", f"the body did not come within {BODY_SECONDS:g} seconds")
    kind = headers.get("content-type", [""])[0].partition(";")[0].strip().lower()
    if (body or kind or headers.get("origin")) and kind != "application/json":
        raise Refused(415, "not_json", "a request that changes something has Content-Type: application/json")
    return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, then whatever comes."""
    left = [body]

    async def next_message() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return next_message


def _with_headers(send: Send) -> Send:
    async def outgoing(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in given]
            message = {**message, "headers": [*message["headers"], *more]}
        with suppress(OSError):  # the other end is gone: the server says so in its own way
            await send(message)

    return outgoing


async def answer(send: Send, status: int, kind: str, message: str) -> None:
    """An error as JSON: `error` for programs, `message` for people."""
    body = json.dumps({"error": kind, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
