"""An HTTP server on loopback that does what a test tells it, request by request; what it recorded is the oracle."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import orjson
import pytest


@dataclass(frozen=True)
class Received:
    """One request that was read completely."""

    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    client: tuple[str, int] = ("", 0)  # the same for all requests of one connection

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """What the server does with one request.

    Attributes:
        length: the Content-Length to claim; default: that of the body.
        delay: seconds before the answer.
        pause: seconds between the bytes of the body.
        reset: `unread`: RST before the request is read; `after`: RST once it was read and recorded.
        raw: these bytes instead of an HTTP answer.
        ends: the connection ends after them.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    delay: float = 0
    pause: float = 0
    reset: Literal["unread", "after"] | None = None
    raw: bytes | None = None
    ends: bool = True


def json_reply(document: Any, status: int = 200, **headers: str) -> Reply:
    """An answer in JSON."""
    return Reply(status, orjson.dumps(document), {"Content-Type": "application/json", **headers})


class HttpServer:
    """Answers with the scripted replies in their order, then with `default` (a reply, or a function of the request)."""

    def __init__(self, default: Reply | Callable[[Received], Reply] = Reply(), *, tls: ssl.SSLContext | None = None):
        self.default = default
        self.received: list[Received] = []
        self.connections = 0
        self._clients: set[tuple[str, int]] = set()
        self._script: list[Reply] = []
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._stopped = threading.Event()
        self._server = _Server(self, tls)
        scheme = "http" if tls is None else "https"
        self.port: int = self._server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def script(self, *replies: Reply) -> None:
        """The next replies, one for each request."""
        with self._lock:
            self._script += replies

    def next_reply(self) -> Reply | None:
        with self._lock:
            return self._script.pop(0) if self._script else None

    def record(self, request: Received) -> None:
        with self._lock:
            self.received.append(request)

    def connected(self, client: tuple[str, int]) -> None:
        with self._lock:
            self.connections += 1
            self._clients.add(client)
            self._changed.notify_all()

    def left(self, client: tuple[str, int]) -> None:
        with self._lock:
            self._clients.discard(client)
            self._changed.notify_all()

    def wait_for_connections(self, count: int) -> None:
        """Wait until so many were accepted: a client may be gone before the server notices it."""
        with self._lock:
            assert self._changed.wait_for(lambda: self.connections >= count, timeout=30)

    def wait_until_left(self) -> None:
        """Wait until the clients of processes that have ended are gone: what they sent last may still be under way."""
        with socket.create_connection(("127.0.0.1", self.port)) as behind_them, self._lock:
            assert self._changed.wait_for(lambda: self._clients == {behind_them.getsockname()}, timeout=30)

    def wait(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the server."""
        self._stopped.wait(seconds)

    def close(self) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@contextmanager
def http_server(
    default: Reply | Callable[[Received], Reply] = Reply(), *, tls: ssl.SSLContext | None = None
) -> Iterator[HttpServer]:
    server = HttpServer(default, tls=tls)
    try:
        yield server
    finally:
        server.close()


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, owner: HttpServer, tls: ssl.SSLContext | None) -> None:
        self.owner = owner
        self._tls = tls
        super().__init__(("127.0.0.1", 0), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.owner.connected(address)
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        super().process_request_thread(request, client_address)
        self.owner.left(client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        owner = self.server.owner
        self._reply: Reply | None = None
        if not isinstance(self.connection, ssl.SSLSocket):
            if not self.connection.recv(1, socket.MSG_PEEK):
                self.close_connection = True
                return
            self._reply = owner.next_reply()
            if self._reply is not None and self._reply.reset == "unread":
                self._reset()
                return
        super().handle_one_request()

    def _handle(self) -> None:
        owner = self.server.owner
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Received(self.command, self.path, headers, body, self.client_address)
        owner.record(request)
        reply = self._reply or (owner.default(request) if callable(owner.default) else owner.default)
        if reply.delay:
            owner.wait(reply.delay)
        if reply.reset == "after":
            self._reset()
        elif reply.raw is not None:
            self.wfile.write(reply.raw)
            self.close_connection = reply.ends
        else:
            self._answer(reply)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def _answer(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status != 204:
            self.send_header("Content-Length", str(len(reply.body) if reply.length is None else reply.length))
        self.end_headers()
        if reply.pause:
            for byte in reply.body:
                self.wfile.write(bytes([byte]))
                self.server.owner.wait(reply.pause)
        else:
            self.wfile.write(reply.body)
        if reply.length is not None and reply.length != len(reply.body) and self.command != "HEAD":
            self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Quiet."""


@pytest.fixture
def server() -> Iterator[HttpServer]:
    """One for each test."""
    with http_server() as running:
        yield running
