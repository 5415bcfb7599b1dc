"""A fast scripted Chat Completions server for measurements: loopback only, one thread a connection, ends with its parent.

Answers request number n of a task with a call of the tool `echo` until N steps are made, then with a final text. It keeps no history: the step is
found by the last marker in the raw body. `GET /stats` gives requests, body bytes and a hash over all bodies.

    python echo_server.py STEPS      prints its port on a line
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import threading
import time

MARK = b"qzstep"


class Stats:
    """Counts over all connections."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests = 0
        self.body_bytes = 0
        self.largest = 0
        self.digest = hashlib.sha256()

    def add(self, body: bytes) -> None:
        with self.lock:
            self.requests += 1
            self.body_bytes += len(body)
            self.largest = max(self.largest, len(body))
            self.digest.update(hashlib.sha256(body).digest())

    def take(self) -> bytes:
        with self.lock:
            value = {
                "requests": self.requests, "body_bytes": self.body_bytes, "largest": self.largest, "sha256": self.digest.hexdigest(),
            }  # fmt: skip
            self.requests = self.body_bytes = self.largest = 0
            self.digest = hashlib.sha256()
        return json.dumps(value).encode()


def step_of(body: bytes) -> int:
    """The last step that the body tells of."""
    at = body.rfind(MARK)
    return int(body[at + len(MARK) : at + len(MARK) + 7]) if at >= 0 else 0


def sse(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def answer(step: int, steps: int, size: int) -> bytes:
    """The streamed reply to a request."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench"}

    def chunk(delta: object, finish: str | None = None) -> bytes:
        return sse({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    if step < steps:
        mark = f"{MARK.decode()}{step + 1:07d}"
        function = {"name": "echo", "arguments": ""}
        first = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"index": 0, "id": f"call_{mark}", "type": "function", "function": function}],
        }
        arguments = json.dumps({"text": mark})
        parts = [chunk(first)]
        half = len(arguments) // 2
        for piece in (arguments[:half], arguments[half:]):
            parts.append(chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}))
        parts.append(chunk({}, "tool_calls"))
    else:
        parts = [
            chunk({"role": "assistant", "content": "All steps are "}),
            chunk({"content": "done."}),
            chunk({}, "stop"),
        ]
    usage = {"prompt_tokens": size // 4, "completion_tokens": 24, "total_tokens": size // 4 + 24}
    parts.append(sse({**base, "choices": [], "usage": usage}))
    parts.append(b"data: [DONE]\n\n")
    return b"".join(parts)


def serve(connection: socket.socket, steps: int, stats: Stats) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, connection.makefile("rb") as reader:
        while head := reader.readline():
            length = 0
            while (line := reader.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if head.startswith(b"GET"):
                data = stats.take()
                kind = b"application/json"
            else:
                body = reader.read(length)
                stats.add(body)
                data = answer(step_of(body), steps, length)
                kind = b"text/event-stream"
            head_lines = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (kind, len(data))
            connection.sendall(head_lines + data)


def main() -> None:
    steps, stats = int(sys.argv[1]), Stats()
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listener.getsockname()[1], flush=True)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, steps, stats), daemon=True).start()


if __name__ == "__main__":
    main()
