"""A TLS server before a Postgres server that speaks in clear, as a server with certificates looks from outside; it can break off."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

SSL_REQUEST = struct.pack(">ii", 8, 80_877_103)
BREAKS = ("silent", "goodbye", "reset")  # EOF without and with TLS's own end, a TCP reset


class TlsFront:
    """Breaks off once: when `word` passes, before it reaches the server, or, with the word "handshake", at the first TLS message."""

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        self._server, self._context = server, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._word, self._how = b"", ""
        self.breaks = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def break_at(self, word: str, how: str) -> None:
        """Arm the next break."""
        self._word, self._how = word.encode(), how

    def close(self) -> None:
        """Accept nothing any more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            if client.recv(8, socket.MSG_WAITALL) != SSL_REQUEST:
                return
            client.sendall(b"S")
            if self._breaks_off(b"handshake"):
                client.recv(1)
                self._end(client)
                return
            with (
                self._context.wrap_socket(client, server_side=True) as wrapped,
                socket.socket(socket.AF_UNIX) as server,
            ):
                server.connect(self._server)
                self._forward(wrapped, server)

    def _forward(self, client: ssl.SSLSocket, server: socket.socket) -> None:
        while True:
            ready = [client] if client.pending() else select.select([client, server], [], [])[0]
            for source in ready:
                data = source.recv(65536)
                if source is client and self._breaks_off(data):
                    self._end(client)
                    return
                if not data:
                    return
                (server if source is client else client).sendall(data)

    def _breaks_off(self, data: bytes) -> bool:
        if not self._word or self._word not in data:
            return False
        self._word, self.breaks = b"", self.breaks + 1
        return True

    def _end(self, client: Any) -> None:
        if self._how == "goodbye" and isinstance(client, ssl.SSLSocket):
            client.settimeout(0.1)
            with suppress(OSError):
                client.unwrap()
        if self._how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.close(client.detach())


@contextmanager
def tls_before(socket_folder: str, context: ssl.SSLContext) -> Iterator[TlsFront]:
    """A TLS server before the server that listens in a folder."""
    front = TlsFront(f"{socket_folder}/.s.PGSQL.5432", context)
    try:
        yield front
    finally:
        front.close()
