"""A relay on loopback in front of a server, that can lose one answer and the connection with it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager


class Proxy:
    """Relays connections to a port; `lose_next()` lets one request through and drops its answer."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._armed = False
        self.lost = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next(self) -> None:
        self._armed = True

    def close(self) -> None:
        self._listener.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            asked = threading.Event()
            threading.Thread(target=self._relay, args=(client, server, asked, False), daemon=True).start()
            threading.Thread(target=self._relay, args=(server, client, asked, True), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, asked: threading.Event, answers: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if not answers and self._armed:
                    asked.set()
                if answers and self._armed and asked.is_set():
                    self._armed = False
                    self.lost += 1
                    break
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@contextmanager
def proxy(target: int) -> Generator[Proxy]:
    made = Proxy(target)
    try:
        yield made
    finally:
        made.close()
