"""One exchange over HTTP: bytes out, an answer or a failure back.

It uses pools of urllib3, and nothing above them: nothing of the environment (proxies, .netrc, CA bundles), no cookies, no
redirects and no retries can get in.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import quote

import certifi
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError
from urllib3.util import Timeout, parse_url

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.http.answer import Answer, Failure
from dbt_reverse_etl.sinks.http.auth import Tokens, signature
from dbt_reverse_etl.sinks.http.connection import POOLS, MetadataHost
from dbt_reverse_etl.sinks.http.request import Request
from dbt_reverse_etl.sinks.http.settings import ApiKey, HttpSettings, OAuth2, StandardWebhooks

BODY_CAP = 2**20
_PIECE = 2**16


class Transport:
    """Connections to one destination, safe for as many threads as `settings.concurrency`.

    Args:
        body_cap: bytes of the largest answer that is read.

    Raises:
        OSError: the CA file, or the client certificate or its key, cannot be read.
    """

    def __init__(self, settings: HttpSettings, body_cap: int = BODY_CAP) -> None:
        self._settings, self._body_cap = settings, body_cap
        self._timeout = Timeout(connect=settings.timeout.connect, read=settings.timeout.read)
        self._base = settings.base.path.rstrip("/") + "/"
        self._pool = self._pool_of(settings.url, settings.concurrency)
        self._secret_headers = settings.secret_headers()
        self._taken = {name.lower() for name in self._secret_headers}
        self._fixed = {"User-Agent": user_agent(), "Accept-Encoding": "identity"}
        self._auth = settings.auth
        self._token_pool, self._tokens = self._token_source(settings.auth)
        _hush_urllib3()

    def exchange(self, request: Request, *, wants_body: bool = True) -> Answer | Failure:
        """Send one request and read its answer; never raises for what the network or the destination does."""
        if self._tokens is None:
            return self._send(request, None, wants_body=wants_body)
        token = self._tokens.get()
        answer = token if isinstance(token, Failure) else self._send(request, token, wants_body=wants_body)
        if isinstance(token, str) and isinstance(answer, Answer) and answer.status == 401:
            # 401 says that nothing was applied: once more, with a token that the destination may not have revoked.
            token = self._tokens.get(refused=token)
            answer = token if isinstance(token, Failure) else self._send(request, token, wants_body=wants_body)
        return answer

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()
        if self._token_pool is not None:
            self._token_pool.close()

    def _pool_of(self, url: str, size: int) -> HTTPConnectionPool:
        place, context = parse_url(url), tls_context(self._settings)
        more: dict[str, Any] = {"ssl_context": context} if place.scheme == "https" else {}
        return POOLS[place.scheme or ""](place.host or "", place.port, maxsize=size, block=True, retries=False, **more)

    def _token_source(self, auth: object) -> tuple[HTTPConnectionPool | None, Tokens | None]:
        if not isinstance(auth, OAuth2):
            return None, None
        pool, target = self._pool_of(auth.token_url, 1), parse_url(auth.token_url).request_uri

        def post(headers: Mapping[str, str], form: bytes) -> Answer | Failure:
            return self._over(pool, Request("POST", target, self._fixed | dict(headers), form))

        return pool, Tokens(auth, post)

    def _send(self, request: Request, token: str | None, *, wants_body: bool) -> Answer | Failure:
        """The destination's headers win over the sync's, whatever their case."""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in self._taken}
        headers = self._fixed | headers | self._secret_headers
        target = self._base + request.path
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        elif isinstance(self._auth, StandardWebhooks):
            headers |= signature(self._auth.key, request.event, int(time.time()), request.body or b"")
        elif isinstance(self._auth, ApiKey) and self._auth.query is not None:
            key = quote(self._auth.value.get_secret_value(), safe="")
            target += f"{'&' if '?' in target else '?'}{self._auth.query}={key}"
        if request.body is None and request.method != "GET":
            headers["Content-Length"] = "0"  # some servers wait for a body of a DELETE otherwise
        return self._over(self._pool, Request(request.method, target, headers, request.body), wants_body=wants_body)

    def _over(self, pool: HTTPConnectionPool, request: Request, *, wants_body: bool = True) -> Answer | Failure:
        """Send it as it is: its path is what the server gets."""
        with _quiet():
            try:
                raw = pool.urlopen(
                    request.method,
                    request.path,
                    request.body,
                    request.headers,
                    redirect=False,
                    assert_same_host=False,
                    timeout=self._timeout,
                    preload_content=False,
                    decode_content=False,
                )
            except (OSError, HTTPError, HTTPException, ValueError) as error:  # of urllib3 and http.client
                return _failure(error)
            return self._answer(raw, wants_body=wants_body)

    def _answer(self, raw: Any, *, wants_body: bool) -> Answer:
        status, headers = int(raw.status), raw.headers
        content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        cut = False
        try:
            cap = self._body_cap
            sent_bytes = _read(raw, time.monotonic() + self._settings.timeout.read, cap)
            body, problem = decoded(sent_bytes, headers.get("Content-Encoding", ""), cap) if wants_body else (b"", "")
        except _UnreadableBody as error:
            body, problem, cut = None, str(error), error.cut
        except (OSError, HTTPError, HTTPException):
            body, problem, cut = None, "the connection ended before the answer did", True
        if body is None:
            raw.close()
        else:
            raw.release_conn()
        return Answer(status, content_type, body, problem, cut, headers)


class _UnreadableBody(Exception):
    """A body that cannot be used; `cut`: it did not end in time."""

    def __init__(self, reason: str, *, cut: bool) -> None:
        super().__init__(reason)
        self.cut = cut


def _too_large(cap: int) -> str:
    return f"the answer is larger than {cap // 2**20} MiB"


def _read(raw: Any, deadline: float, cap: int) -> bytes:
    """The body as it was sent, at most `cap` bytes; a trickle does not hold the worker longer than the timeout."""
    read = getattr(raw, "read1", raw.read)
    pieces: list[bytes] = []
    size = 0
    while piece := read(_PIECE, decode_content=False):
        pieces.append(piece)
        size += len(piece)
        if size > cap:
            raise _UnreadableBody(_too_large(cap), cut=False)
        if time.monotonic() > deadline:
            raise _UnreadableBody("the answer did not end in time", cut=True)
    return b"".join(pieces)


def decoded(body: bytes, encoding: str, cap: int = BODY_CAP) -> tuple[bytes | None, str]:
    """Undo gzip and deflate, which nobody asked for, without ever holding more than the cap."""
    name = encoding.strip().lower()
    if name in ("", "identity") or not body:
        return body, ""
    if name not in ("gzip", "x-gzip", "deflate"):
        return None, "the answer has a content encoding that was not asked for"
    try:
        inflater = zlib.decompressobj(wbits=47 if name != "deflate" or body[:1] == b"\x78" else -15)
        plain = inflater.decompress(body, cap + 1)
    except zlib.error:
        return None, "the compressed answer is damaged"
    if len(plain) > cap:
        return None, _too_large(cap)
    return (plain, "") if inflater.eof else (None, "the compressed answer is damaged")


_REFUSED = Failure(Outcome.FATAL, "a request that the client refuses to send")
# Only a connection that never stood proves that nothing was sent. No text of an error: it may quote the URL's key.
_FAILURES: tuple[tuple[type[BaseException], Failure], ...] = (
    (ssl.SSLCertVerificationError, Failure(Outcome.FATAL, "the TLS certificate of the destination was not accepted")),
    (socket.gaierror, Failure(Outcome.RETRYABLE, "the host name was not found")),
    (NewConnectionError, Failure(Outcome.RETRYABLE, "no connection")),
    (ConnectTimeoutError, Failure(Outcome.RETRYABLE, "no connection in time")),
    (ReadTimeoutError, Failure(Outcome.UNKNOWN, "no answer in time")),
    (MetadataHost, Failure(Outcome.FATAL, "the host name leads to an address of cloud metadata")),
    (ValueError, _REFUSED),
)
# Alerts by which a server ends a handshake: no request of the connection was read.
_CLIENT_REFUSED = re.compile(
    r"ALERT_(CERTIFICATE_(REQUIRED|EXPIRED|REVOKED|UNKNOWN)|BAD_CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE)"
)
_OLD_TLS = re.compile(r"ALERT_PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL")


def _failure(error: Exception) -> Failure:
    causes = list(_causes(error))
    alerts = " ".join(cause.reason or "" for cause in causes if isinstance(cause, ssl.SSLError))
    if _CLIENT_REFUSED.search(alerts):
        return Failure(Outcome.FATAL, "the destination did not accept the client certificate")
    if _OLD_TLS.search(alerts):
        return Failure(Outcome.FATAL, "the destination offers no TLS 1.2 or newer")
    for kind, failure in _FAILURES:
        if any(isinstance(cause, kind) for cause in causes):
            return failure
    return Failure(Outcome.UNKNOWN, "the connection ended without an answer")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        cause = waiting.pop()
        if isinstance(cause, BaseException) and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            waiting += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]


def tls_context(settings: HttpSettings) -> ssl.SSLContext:
    """Whom this side trusts, and the certificate by which it is known.

    Raises:
        OSError: the CA file, or the client certificate or its key, cannot be read.
    """
    trusted = settings.trusted
    context = ssl.create_default_context(cafile=trusted if isinstance(trusted, str) else certifi.where())
    # Not every build of Python has this as its default.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if trusted is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    own = settings.client_certificate
    if own is not None:
        # An empty password, or OpenSSL would ask for one on the terminal.
        password = "" if own.password is None else own.password.get_secret_value()
        context.load_cert_chain(own.cert, own.key, password)
    return context


def user_agent() -> str:
    """Name and version of this package."""
    try:
        return f"dbt-reverse-etl/{version('dbt-reverse-etl')}"
    except PackageNotFoundError:
        return "dbt-reverse-etl"


_local = threading.local()


def _is_loud(_record: logging.LogRecord) -> bool:
    return not getattr(_local, "quiet", False)


def _hush_urllib3() -> None:
    """urllib3 logs the path of each request, and with it the row's key: silence it in our threads, and only there."""
    for name in ("urllib3.connectionpool", "urllib3.connection", "urllib3.response", "urllib3.util.retry"):
        logging.getLogger(name).addFilter(_is_loud)


@contextmanager
def _quiet() -> Iterator[None]:
    _local.quiet = True
    try:
        yield
    finally:
        _local.quiet = False
