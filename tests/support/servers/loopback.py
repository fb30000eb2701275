"""A TCP port of the loopback interface in front of a Unix socket, for clients that know no Unix sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def port_of(path: str, host: str = "127.0.0.1") -> Iterator[int]:
    """Forward connections of this address to the socket; the port."""
    with socket.create_server((host, 0)) as server:
        threading.Thread(target=_accept, args=(server, path), daemon=True).start()
        yield server.getsockname()[1]


def _accept(server: socket.socket, path: str) -> None:
    with contextlib.suppress(OSError):  # the server is closed
        while True:
            client, _ = server.accept()
            behind = socket.socket(socket.AF_UNIX)
            behind.connect(path)
            for one, other in ((client, behind), (behind, client)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # one side went away
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
