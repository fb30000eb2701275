"""Sessions of requests whose connections keep a deadline, bound an answer, and refuse addresses of cloud metadata."""

from __future__ import annotations

import io
import logging
import math
import re
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.errors import MissingHeaderBodySeparatorDefect
from functools import partial
from http.client import BadStatusLine, HTTPResponse, RemoteDisconnected, parse_headers
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.response import BaseHTTPResponse

from dbt_reverse_etl.sinks.hosts import is_metadata_host

_GZIP, _MEMBERS = b"\x1f\x8b", 100  # how a member begins; so many are read
_NO_BODY = frozenset({204, 304})  # http.client reads none after these
_NAME = re.compile(rb"^([!-9;-~]+)[ \t]+:")  # blanks after it are dropped: RFC 9112, 5.1
_REPEATED = re.compile(
    rb"^(Content-Length:[ \t]*(\d+))([ \t]*,[ \t]*\2)+\s*$", re.IGNORECASE
)  # one length: RFC 9110, 8.6


class MetadataHost(ValueError):
    """The host name resolved to an address of cloud metadata."""


class TooLarge(Exception):
    """The answer has more bytes than may be read; the text says so."""


def too_large(size: float) -> str:
    """Why an answer was not read to its end."""
    return f"the answer is larger than {size / 2**20:g} MiB: lower batch.rows"


def decoded(body: bytes, encoding: str, cap: int) -> tuple[bytes | None, str]:
    """Undo gzip and deflate, which nobody asked for, without ever holding more than the cap."""
    name = encoding.strip().lower()
    if name in ("", "identity") or not body:
        return body, ""
    if name not in ("gzip", "x-gzip", "deflate"):
        return None, "the answer has a content encoding that was not asked for"
    plain, rest, ends, members = b"", body, True, 0
    try:
        # What follows the end, such as padding, says nothing; of members each copies the rest.
        while (not members or rest.startswith(_GZIP)) and ends and len(plain) <= cap and members < _MEMBERS:
            members += 1
            inflater = zlib.decompressobj(wbits=47 if name != "deflate" or body[:1] == b"\x78" else -15)
            plain += inflater.decompress(rest, cap + 1 - len(plain))
            rest, ends = inflater.unused_data, inflater.eof
    except zlib.error:
        return None, "the compressed answer is damaged"
    if len(plain) > cap:
        return None, too_large(cap)
    if not ends or rest.startswith(_GZIP):
        return None, "the compressed answer is damaged"
    return plain, ""


class _Exchange(threading.local):
    """Limits of the exchange of this thread, for requests of auth classes too: its end on the monotonic clock, bytes of an answer."""

    until = size = math.inf


_exchange = _Exchange()


@contextmanager
def bounded(seconds: float, size: float) -> Iterator[None]:
    """Limit every connection of this thread. An outer exchange keeps its own limits."""
    if _exchange.until < math.inf:
        yield
        return
    _exchange.until, _exchange.size = time.monotonic() + seconds, size
    try:
        yield
    finally:
        _exchange.until = math.inf


def _is_loud(_record: logging.LogRecord) -> bool:
    return _exchange.until == math.inf


# urllib3 logs the path of each request, and with it the row's key: silence it in our threads, and only there.
for _name in ("urllib3.connectionpool", "urllib3.connection", "urllib3.response", "urllib3.util.retry"):
    logging.getLogger(_name).addFilter(_is_loud)


class _Bounded(io.RawIOBase):
    """Reads a connection until the deadline or the size limit; a socket's own timeout restarts with each byte.

    Attributes:
        left: bytes that may come.
        in_head: the answer may not end yet: for http.client the end of the connection ends a line, and the headers.
    """

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, until: float) -> None:
        self._raw, self._until = raw, until
        self._sock = sock  # where auth classes look for the certificate of the server
        self.left, self.in_head = math.inf, True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._sock.settimeout(seconds)
        size = self._raw.readinto(buffer)
        if size == 0 and self.in_head:
            raise RemoteDisconnected("")
        self.left -= size or 0
        if self.left < 0:
            raise TooLarge(too_large(_exchange.size))
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Lines(io.BufferedReader):
    """Reads header lines as http.client wants them."""

    def readline(self, size: int | None = -1) -> bytes:
        return _REPEATED.sub(rb"\1\r\n", _NAME.sub(rb"\1:", super().readline(size)))


class _Response(HTTPResponse):
    """The whole answer has to come within one read timeout, and within the exchange."""

    def __init__(self, sock: socket.socket, *arguments: Any, **more: Any) -> None:
        super().__init__(sock, *arguments, **more)
        until = min(_exchange.until, time.monotonic() + (sock.gettimeout() or math.inf))
        self._bounded = _Bounded(self.fp.detach(), sock, until)
        self.fp = _Lines(self._bounded)

    def _read_status(self) -> tuple[str, int, str]:
        """Of the final answer (RFC 9110, 15.2): http.client takes every interim one but 100 for it."""
        version, status, reason = super()._read_status()  # type: ignore[misc]
        while 101 < status < 200:
            parse_headers(self.fp)
            version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, status, reason

    def begin(self) -> None:
        super().begin()
        if any(isinstance(defect, MissingHeaderBodySeparatorDefect) for defect in self.msg.defects):
            raise BadStatusLine("")  # http.client takes a line that is no header, and those after it, for the body
        self._bounded.in_head = False
        self._bounded.left = _exchange.size
        if self.status in _NO_BODY and (self.getheader("Content-Length", "0") != "0" or self.chunked):
            # A body that comes in spite of that would be taken for the next answer.
            self.will_close, self.chunked = True, False
            del self.msg["Transfer-Encoding"]


class _Connection(HTTPConnection):
    response_class = _Response

    def connect(self) -> None:
        """What ends or hangs in a TLS handshake, too, is no connection: no byte of a request has left."""
        try:
            super().connect()
        except TimeoutError as error:
            raise ConnectTimeoutError from error
        except OSError as error:
            raise NewConnectionError(self, "") from error

    def _new_conn(self) -> socket.socket:
        """Check the address of the connection before the first byte: a name may resolve to another address each time."""
        connected = super()._new_conn()
        if is_metadata_host(connected.getpeername()[0]):
            connected.close()
            raise MetadataHost
        return connected


class _TlsConnection(_Connection, HTTPSConnection):
    """The same check, before the handshake."""


class _Adapter(HTTPAdapter):
    """Uses our timeouts and our TLS, whatever an auth class passes, and no proxy."""

    def __init__(self, timeout: tuple[float, float], tls: ssl.SSLContext) -> None:
        self._timeout, self._tls = timeout, tls
        super().__init__()

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **more: Any) -> None:
        super().init_poolmanager(connections, maxsize, block, ssl_context=self._tls, **more)

    def get_connection_with_tls_context(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> Any:
        pool: Any = self.poolmanager.connection_from_url(request.url or "")
        pool.ConnectionCls = _TlsConnection if pool.scheme == "https" else _Connection
        return pool

    def cert_verify(self, *_: Any) -> None:
        """The TLS context verifies."""

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        if time.monotonic() >= _exchange.until:
            raise ConnectTimeoutError  # another request of the exchange took all of its time
        return super().send(request, stream=True, timeout=self._timeout)

    def build_response(self, req: requests.PreparedRequest, resp: BaseHTTPResponse) -> requests.Response:
        response = super().build_response(req, resp)
        resp.headers.pop("Content-Encoding", None)  # nobody asked for one: `decoded` undoes it within bounds
        return response


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: no redirect is followed."""


def new_session(timeout: tuple[float, float], tls: ssl.SSLContext) -> requests.Session:
    """A session without environment, cookies and redirects; for one thread at a time."""
    session = _Session()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    session.headers.clear()
    session.adapters.clear()
    session.mount("http", _Adapter(timeout, tls))  # the beginning of both schemes
    return session


def connect(url: str, seconds: float, tls: ssl.SSLContext) -> None:
    """Open a connection, with TLS where the URL says so, and send nothing. Raises as a session does."""
    place = urlsplit(url)
    of_scheme: Any = partial(_TlsConnection, ssl_context=tls) if place.scheme == "https" else _Connection
    with bounded(seconds, 0), closing(of_scheme(place.hostname, place.port, timeout=seconds)) as connection:
        connection.connect()
