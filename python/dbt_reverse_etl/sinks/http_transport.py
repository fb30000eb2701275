"""One exchange over HTTP: bytes out, an answer or a failure back. The only file that uses requests.

It uses the adapter of requests, not a session: nothing of the environment (proxies, .netrc, CA bundles), no cookies,
no redirects and no retries can get in.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from dbt_reverse_etl.outcome import Outcome
from dbt_reverse_etl.sinks.http_answer import Answer
from dbt_reverse_etl.sinks.http_settings import HttpSettings

BODY_CAP = 2**20
_PIECE = 2**16


@dataclass(frozen=True)
class Failure:
    """No answer came: what that says about every row of the request."""

    outcome: Outcome
    reason: str


class Transport:
    """Connections to one destination, safe for as many threads as `settings.concurrency`."""

    def __init__(self, settings: HttpSettings) -> None:
        self._url = settings.url.rstrip("/") + "/"
        self._timeout = (settings.timeout.connect, settings.timeout.read)
        self._verify = settings.verify
        self._secret_headers = settings.secret_headers()
        self._adapter = HTTPAdapter(
            pool_connections=1, pool_maxsize=settings.concurrency, max_retries=0, pool_block=True
        )
        _hush_urllib3()

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, *, wants_body: bool = True
    ) -> Answer | Failure:
        """Send one request and read its answer; never raises for what the network or the destination does."""
        try:
            request = requests.Request(method, self._url + path, headers=self._headers(headers), data=body).prepare()
        except requests.RequestException:
            return Failure(Outcome.FATAL, "a request that the client refuses to send")
        with _quiet():
            try:
                response = self._adapter.send(
                    request, stream=True, timeout=self._timeout, verify=self._verify, proxies={}
                )
            except (OSError, HTTPError, HTTPException) as error:  # of requests, urllib3 and http.client
                return _failure(error)
            return self._answer(response.raw, wants_body=wants_body)

    def close(self) -> None:
        """Close every connection."""
        self._adapter.close()

    def _headers(self, own: Mapping[str, str]) -> dict[str, str]:
        """The destination's headers win over the sync's, whatever their case."""
        taken = {name.lower() for name in self._secret_headers}
        headers = {name: value for name, value in own.items() if name.lower() not in taken}
        fixed = {"User-Agent": user_agent(), "Accept-Encoding": "identity"}
        return fixed | headers | self._secret_headers

    def _answer(self, raw: Any, *, wants_body: bool) -> Answer:
        status, headers = int(raw.status), raw.headers
        common = {
            "content_type": headers.get("Content-Type", "").partition(";")[0].strip().lower(),
            "retry_after": headers.get("Retry-After"),
        }
        cut = False
        try:
            sent_bytes = _read(raw, time.monotonic() + self._timeout[1])
            body, problem = decoded(sent_bytes, headers.get("Content-Encoding", "")) if wants_body else (b"", "")
        except _BodyError as error:
            body, problem, cut = None, str(error), error.cut
        except (OSError, HTTPError, HTTPException):
            body, problem, cut = None, "the connection ended before the answer did", True
        if body is None:
            raw.close()
        else:
            raw.release_conn()
        return Answer(status=status, body=body, body_problem=problem, cut=cut, **common)


class _BodyError(Exception):
    """A body that cannot be used; `cut`: it did not end in time."""

    def __init__(self, reason: str, *, cut: bool) -> None:
        super().__init__(reason)
        self.cut = cut


def _read(raw: Any, deadline: float) -> bytes:
    """The body as it was sent, at most `BODY_CAP` bytes; a trickle does not hold the worker longer than the timeout."""
    read = getattr(raw, "read1", raw.read)
    pieces: list[bytes] = []
    size = 0
    while piece := read(_PIECE, decode_content=False):
        pieces.append(piece)
        size += len(piece)
        if size > BODY_CAP:
            raise _BodyError("the answer is larger than 1 MiB", cut=False)
        if time.monotonic() > deadline:
            raise _BodyError("the answer did not end in time", cut=True)
    return b"".join(pieces)


def decoded(body: bytes, encoding: str) -> tuple[bytes | None, str]:
    """Undo gzip and deflate, which nobody asked for, without ever holding more than the cap."""
    name = encoding.strip().lower()
    if name in ("", "identity") or not body:
        return body, ""
    if name not in ("gzip", "x-gzip", "deflate"):
        return None, "the answer has a content encoding that was not asked for"
    try:
        inflater = zlib.decompressobj(wbits=47 if name != "deflate" or body[:1] == b"\x78" else -15)
        plain = inflater.decompress(body, BODY_CAP + 1)
    except zlib.error:
        return None, "the compressed answer is damaged"
    if len(plain) > BODY_CAP:
        return None, "the answer is larger than 1 MiB"
    return (plain, "") if inflater.eof else (None, "the compressed answer is damaged")


# Only a connection that never stood proves that nothing was sent. No text of an error: it may quote the URL's key.
_FAILURES: tuple[tuple[type[BaseException], Failure], ...] = (
    (ssl.SSLCertVerificationError, Failure(Outcome.FATAL, "the TLS certificate of the destination was not accepted")),
    (requests.exceptions.InvalidURL, Failure(Outcome.FATAL, "a request that the client refuses to send")),
    (socket.gaierror, Failure(Outcome.RETRYABLE, "the host name was not found")),
    (NewConnectionError, Failure(Outcome.RETRYABLE, "no connection")),
    (ConnectTimeoutError, Failure(Outcome.RETRYABLE, "no connection in time")),
    (requests.Timeout, Failure(Outcome.UNKNOWN, "no answer in time")),
)


def _failure(error: Exception) -> Failure:
    causes = list(_causes(error))
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
    """The trust of the adapter, for `check`, which only connects.

    Raises:
        OSError: the CA file cannot be read.
    """
    if settings.verify is False:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=DEFAULT_CA_BUNDLE_PATH if settings.verify is True else settings.verify)


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
