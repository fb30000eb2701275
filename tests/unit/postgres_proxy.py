"""A TCP proxy before a Postgres server that can cut the connection before or after a statement reaches the server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Cuts once: when `word` passes; `after`: once the server has it and has answered, else before it reaches the server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self.down = False
        self._word, self._after = b"", False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_at(self, word: str, *, after: bool) -> None:
        """Arm the next cut."""
        self._word, self._after = word.encode(), after

    def close(self) -> None:
        """Accept nothing any more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.down:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            answer_is_lost = threading.Event()
            for target, source, sink in ((self._forward, client, server), (self._answer, server, client)):
                threading.Thread(target=target, args=(source, sink, answer_is_lost), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        while data := _read(client):
            if self._word and self._word in data:
                self._word, self.cuts = b"", self.cuts + 1
                if not self._after:
                    break
                lost.set()
            with suppress(OSError):
                server.sendall(data)
        if not lost.is_set():
            _end(client, server)

    def _answer(self, server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
        while data := _read(server):
            if lost.is_set():
                break
            with suppress(OSError):
                client.sendall(data)
        _end(client, server)


def _read(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextmanager
def proxy_before(socket_folder: str) -> Iterator[Proxy]:
    """A proxy before the server that listens in a folder."""
    proxy = Proxy(f"{socket_folder}/.s.PGSQL.5432")
    try:
        yield proxy
    finally:
        proxy.close()
