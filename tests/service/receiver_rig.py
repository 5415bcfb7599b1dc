"""A receiver of webhooks on a real socket, and a check of signatures that knows nothing of the code that makes them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


@dataclass(frozen=True)
class Heard:
    """A request as it came."""

    headers: dict[str, str]
    raw: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass(frozen=True)
class Says:
    """What is answered."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""


Play = Callable[[Heard], Says]


class Receiver:
    """Answers each request with what `play` makes of it, in a thread of its own. `accepted` are those answered with 2xx."""

    def __init__(self, play: Play, port: int = 0) -> None:
        self.play = play
        self.heard: list[Heard] = []
        self.accepted: list[Heard] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                heard = Heard({name.lower(): value for name, value in self.headers.items()}, raw)
                outer.heard.append(heard)
                says = outer.play(heard)
                if 200 <= says.status < 300:
                    outer.accepted.append(heard)
                try:
                    self.send_response(says.status)
                    for name, value in {"content-length": str(len(says.body)), **says.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(says.body)
                except OSError:
                    self.close_connection = True  # whoever asked is gone

            def log_message(self, format: str, *args: Any) -> None:
                pass

        ThreadingHTTPServer.allow_reuse_address = True
        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def kinds(self) -> list[str]:
        """What it accepted, by type."""
        return [heard.body["type"] for heard in self.accepted]


@contextmanager
def receiving(play: Play = lambda heard: Says(), port: int = 0) -> Generator[Receiver]:
    """A receiver for a while."""
    made = Receiver(play, port)
    made.thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.thread.join()
        made.server.server_close()


def is_signed(heard: Heard, key: bytes = KEY) -> bool:
    """Whether one of its signatures is of this key, over exactly what came."""
    text = f"{heard.id}.{heard.headers['webhook-timestamp']}.".encode() + heard.raw
    mark = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    return f"v1,{mark}" in heard.headers["webhook-signature"].split(" ")
