"""A TCP proxy before the Unix socket of a server that can cut the connection before or after a statement reaches the server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Does its harm once, when `word` passes."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self.down = False
        self._word: bytes | None = None
        self._passes, self._after, self._ends, self._says = 1, False, False, b""
        self._stall: Callable[[], None] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_at(self, word: str, *, after: bool, which: int = 1, ends: bool = False) -> None:
        """Cut; `after`: once the server has it and has answered, else before it reaches the server.

        Args:
            word: nothing stands for whatever passes.
            which: at its which occurrence.
            ends: no connection is accepted after it.
        """
        self._harm(word, after=after, which=which, ends=ends)

    def cut_and_stall_at(self, word: str, stall: Callable[[], None]) -> None:
        """Cut the client's side alone, without an answer, while the server, which `stall` has stopped, has the word to read."""
        self._harm(word, stall=stall)

    def answer_at(self, word: str, said: bytes) -> None:
        """Let the server carry it out, but give another answer, on a connection that stands; as a pooler might."""
        self._harm(word, says=said)

    def calm(self) -> None:
        """No harm from now on."""
        self._word, self.down = None, False

    def close(self) -> None:
        """Accept nothing any more."""
        self._listener.close()

    def _harm(
        self,
        word: str,
        *,
        after: bool = True,
        which: int = 1,
        ends: bool = False,
        stall: Callable[[], None] | None = None,
        says: bytes = b"",
    ) -> None:
        self._after, self._passes, self._ends, self._stall, self._says = after, which, ends, stall, says
        self._word = word.encode()

    def _is_due(self, data: bytes) -> bool:
        if self._word is None or self._word not in data:
            return False
        self._passes -= 1
        if self._passes:
            return False
        self._word, self.cuts, self.down = None, self.cuts + 1, self.down or self._ends
        return True

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
            try:
                server.connect(self._server)
            except OSError:
                _end(client, server)
                continue
            answer_is_lost = threading.Event()
            for target, source, sink in ((self._forward, client, server), (self._answer, server, client)):
                threading.Thread(target=target, args=(source, sink, answer_is_lost), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        while data := _read(client):
            if self._is_due(data):
                if not self._after:
                    break
                lost.set()
                if self._stall:
                    self._stall()
                    with suppress(OSError):
                        server.sendall(data)
                    _end(client)
                    return
            with suppress(OSError):
                server.sendall(data)
        if not lost.is_set():
            _end(client, server)

    def _answer(self, server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
        while data := _read(server):
            if lost.is_set():
                if not self._says:
                    break
                data, self._says = self._says, b""
                lost.clear()
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
def proxy_before(server: str) -> Iterator[Proxy]:
    """A proxy before the server that listens on a Unix socket."""
    proxy = Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
