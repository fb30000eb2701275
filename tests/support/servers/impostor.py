"""A server that is not what it says, and the authority that a client trusts."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import trustme


class Impostor:
    """Talks to one client on loopback.

    Attributes:
        got: what the client said.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.got = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def talk(self, client: socket.socket) -> None:
        """Until the client goes away."""
        raise NotImplementedError

    def close(self) -> None:
        self._listener.close()
        self._thread.join(20)

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        client.settimeout(20)
        with suppress(OSError), client:
            self.talk(client)


def ca_file(authority: trustme.CA, folder: Path, name: str = "ca.pem") -> str:
    """Its certificate, as a file of this folder."""
    file = folder / name
    file.write_bytes(authority.cert_pem.bytes())
    return str(file)
