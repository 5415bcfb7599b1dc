"""HTTP/1.1 by hand for the provider server: whole requests in, plain and chunked answers out, broken ones too."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from worker.testing.checked import as_json, at_least, texts

MAX_REQUEST = 64 * 1024 * 1024
"""Bytes of one request."""

Fault: TypeAlias = Literal["cut", "reset", "eof", "silence"]
"""How a stream ends too early: `cut` closes in the middle of the chunked body, `reset` sends a TCP reset, `eof` ends
the body cleanly without the terminal event, `silence` sends nothing more and waits for the client to leave."""


@dataclass(frozen=True, slots=True)
class Http:
    """A plain answer: any status with a JSON value, text or bytes as its body. `Http(200, {"error": ...})` is an error
    dressed as a success.
    """

    status: int
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        at_least("Http.status", self.status, 100)
        if self.status > 599:
            raise ValueError(f"Http.status must be at most 599, not {self.status}")
        if not isinstance(self.body, bytes):
            as_json("Http.body", self.body)
        texts("Http.headers", self.headers)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it arrived. Header names are in lower case. `left` is set when the client closes its connection."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    left: threading.Event = field(default_factory=threading.Event)

    @property
    def json(self) -> dict[str, Any]:
        """The body as an object. Raises `ValueError` where it is none."""
        return cast("dict[str, Any]", json.loads(self.body))


class Connection:
    """HTTP/1.1 on one socket: reads requests, writes plain and chunked answers."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""

    def read(self) -> RecordedRequest | None:
        """The next request, None where the client has left."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                return None
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if length > MAX_REQUEST:
            return None
        parts, have = [rest], len(rest)
        while have < length:
            piece = self._sock.recv(min(length - have, 1 << 20))
            if not piece:
                return None
            parts.append(piece)
            have += len(piece)
        data = b"".join(parts)
        self._buffer = data[length:]
        return RecordedRequest(method, path, headers, data[:length])

    def _more(self) -> bool:
        piece = self._sock.recv(1 << 16)
        self._buffer += piece
        return bool(piece) and len(self._buffer) <= MAX_REQUEST

    def plain(self, step: Http, number: int) -> bool:
        """An answer in one piece."""
        body = step.body
        kind = "application/json"
        if body is None:
            data = b""
        elif isinstance(body, bytes):
            data = body
        elif isinstance(body, str):
            data, kind = body.encode(), "text/html"
        else:
            data = json.dumps(body).encode()
        headers = {"content-type": kind, "x-request-id": f"req_{number}", **step.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {step.status} Scripted\r\n{lines}content-length: {len(data)}\r\n\r\n"
        self._sock.sendall(head.encode("latin-1") + data)
        return True

    def stream(
        self,
        events: Sequence[bytes],
        number: int,
        *,
        split: int = 0,
        fault: Fault | None = None,
        pause: float = 0.0,
        stopping: threading.Event | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """An event stream, one chunk for each piece."""
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._sock.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\nx-request-id: req_%d\r\n%b\r\n" % (number, more.encode("latin-1"))
        )
        data = list(events)
        if split:
            whole = b"".join(data)
            data = [whole[i : i + split] for i in range(0, len(whole), split)]
        for piece in data:
            if pause and stopping is not None:
                stopping.wait(pause)
            self._sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        match fault:
            case None | "eof":
                self._sock.sendall(b"0\r\n\r\n")
                return True
            case "cut":
                self._sock.sendall(b"ff\r\ndata: {")
                return False
            case "reset":
                # A zero linger time makes the close a TCP reset.
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            case "silence":
                self._sock.recv(1)
                return False
