"""One exchange over HTTP: bytes out, an answer or a failure back."""

from __future__ import annotations

import errno
import re
import socket
import ssl
import time
import urllib.error
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from http.client import HTTPException, ImproperConnectionState, InvalidURL, NotConnected, RemoteDisconnected
from urllib.parse import quote

import certifi
import requests
from requests.auth import AuthBase
from requests.structures import CaseInsensitiveDict
from urllib3.exceptions import ConnectTimeoutError, InvalidHeader, NewConnectionError, ProxyError, ReadTimeoutError

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.base.tls import lenient, why_refused
from dbt_reverse_etl.base.version import VERSION
from dbt_reverse_etl.sinks.http.answer import Answer, Failure, media_type
from dbt_reverse_etl.sinks.http.auth import Tokens, is_passing, signature
from dbt_reverse_etl.sinks.http.connection import MetadataHost, TooLarge, bounded, connect, decoded, new_session
from dbt_reverse_etl.sinks.http.python_auth import auth_of
from dbt_reverse_etl.sinks.http.request import Request
from dbt_reverse_etl.sinks.http.settings import ApiKey, HttpSettings, OAuth2, PythonAuth, StandardWebhooks

BODY_CAP = 16 * 2**20  # some APIs answer a batch with all its rows, and more
_OF_ACCEPTED = frozenset({404, 409, 422})  # beside 2xx: what is said of a row, once the token was looked at
# A server that ends its connections without a word would else meet the next request, too; of so many it may meet one.
_ALONE = 100
_NO_ANSWER = Failure(Outcome.UNKNOWN, "the connection ended without an answer")
MakeAuth = Callable[[], AuthBase]
_MOST_REFUSED = 3  # new tokens in a row: several senders that begin together replace each other's


class Client:
    """Sends requests from any number of threads. Each request in flight has its own session: an auth class may need one connection.

    An exchange takes at most the seconds to `connect` and to `read` an answer together; `auth` authenticates the requests of one session.
    """

    def __init__(
        self, connect: float, read: float, tls: ssl.SSLContext, body_cap: int = BODY_CAP, auth: MakeAuth | None = None
    ) -> None:
        self._timeout, self._seconds = (connect, read), connect + read
        self._tls, self._body_cap, self._auth = tls, body_cap, auth
        self._idle = deque([self._new_session()])  # here, because an auth class may refuse its arguments
        self._alone = 0  # so many requests to come have a connection each

    def close(self) -> None:
        """Close every connection."""
        while self._idle:
            self._idle.pop().close()

    def bounded(self) -> AbstractContextManager[None]:
        """Make one exchange of the requests inside."""
        return bounded(self._seconds, self._body_cap)

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Answer | Failure:
        """Send one request and read its answer; never raises for what the network or the destination does."""
        try:
            session = self._idle.pop()
        except IndexError:
            try:
                session = self._new_session()
            except Exception as error:  # of the auth class
                return _unauthenticated(error)
        alone = self._alone > 0 and session.auth is None  # an auth class may need several requests on one connection
        if alone:
            self._alone -= 1
            session.close()
            headers = {**headers, "Connection": "close"}
        try:
            with self.bounded():
                answer = self._exchanged(session, _prepared(method, url, headers, body))
        finally:
            if alone:  # nothing more may be sent on it (RFC 9112, 9.6), and the server may close it a little later
                session.close()
            self._idle.append(session)
        if answer is _NO_ANSWER:
            self._alone = _ALONE
        return answer

    def _new_session(self) -> requests.Session:
        session = new_session(self._timeout, self._tls)
        session.auth = self._auth() if self._auth else None
        return session

    def _exchanged(self, session: requests.Session, prepared: requests.PreparedRequest) -> Answer | Failure:
        try:
            if session.auth is not None:
                prepared.prepare_cookies({})  # some look for them
                prepared.prepare_auth(session.auth)
        except Exception as error:  # it may raise anything
            return _unauthenticated(error)
        answers: list[requests.Response] = []
        prepared.hooks["response"].insert(0, lambda response, **_: answers.append(response))
        try:
            response = session.send(prepared, stream=True)
        except Exception as error:
            failure = _failure(error)
            # An auth class failed after an answer: the request may have been applied.
            return replace(failure, outcome=Outcome.UNKNOWN) if answers else failure
        return self._answer(response)

    def _answer(self, response: requests.Response) -> Answer:
        headers, cut = response.headers, False
        content_type = media_type(headers.get("Content-Type", ""))
        body: bytes | None
        try:
            body, problem = decoded(response.content, headers.get("Content-Encoding", ""), self._body_cap)
        except Exception as error:
            body, (problem, cut) = None, _unreadable(error)
        finally:
            response.close()
        return Answer(response.status_code, content_type, body, problem, cut, headers)


def _prepared(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> requests.PreparedRequest:
    """Made by hand: requests would rewrite the path, and take three times as long."""
    prepared = requests.PreparedRequest()
    prepared.method, prepared.url, prepared.body = method, url, body
    fixed = {"User-Agent": f"dbt-reverse-etl/{VERSION}", "Accept-Encoding": "identity"}
    prepared.headers = CaseInsensitiveDict({**fixed, **headers})
    prepared.prepare_content_length(body)
    return prepared


class Transport:
    """Connections to one destination, with its credentials; safe for any number of threads.

    Raises OSError as `tls_context`, and DestinationError where the auth class cannot be used.
    """

    def __init__(self, settings: HttpSettings, body_cap: int = BODY_CAP) -> None:
        self._settings, self._auth, timeout = settings, settings.auth, settings.timeout
        self._tls = tls_context(settings)
        auth = partial(auth_of, self._auth, settings.origin) if isinstance(self._auth, PythonAuth) else None
        self._client = Client(timeout.connect, timeout.read, self._tls, body_cap, auth)
        self._refused: set[str] = set()  # new tokens that met a 401 since one was accepted
        self._secret_headers = settings.secret_headers()
        self._tokens: Tokens | None = None
        if isinstance(self._auth, OAuth2):
            self._tokens = Tokens(self._auth, partial(self._client.send, "POST", self._auth.token_url))

    def connect(self) -> Failure | None:
        """Open a connection and send nothing; why there is none, or None."""
        try:
            connect(self._settings.url, self._settings.timeout.connect, self._tls)
        except Exception as error:
            return _failure(error)
        return None

    def exchange(self, request: Request) -> Answer | Failure:
        """Send one request and read its answer; never raises for what the network or the destination does."""
        with self._client.bounded():
            if self._tokens is None:
                return self._send(request, None)
            token = self._tokens.get()
            answer = self._send(request, token)
            if not isinstance(token, str):
                return answer
            if isinstance(answer, Answer) and answer.status == 401:
                # 401 says that nothing was applied: once more, with a token that the destination may not have revoked.
                renewed = self._tokens.get(refused=token)
                answer = self._send(request, renewed)
                is_refused = isinstance(answer, Answer) and answer.status == 401
                if is_refused and isinstance(renewed, str) and renewed != token:
                    # Another sender of the same client may have renewed in between, where only its newest token lives.
                    # Tokens are counted, not requests: threads share one.
                    self._refused.add(renewed)
                    if len(self._refused) <= _MOST_REFUSED:
                        return Failure(Outcome.RETRYABLE, "HTTP 401 to a new token")
            if isinstance(answer, Answer) and (200 <= answer.status < 300 or answer.status in _OF_ACCEPTED):
                self._refused.clear()
            return answer

    def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def _send(self, request: Request, token: str | Failure | None) -> Answer | Failure:
        """The destination's headers win over the sync's, whatever their case."""
        if isinstance(token, Failure):
            return token
        headers: CaseInsensitiveDict[str] = CaseInsensitiveDict(request.headers)
        headers.update(self._secret_headers)
        url, path = self._settings.url, request.path
        url = f"{url.rstrip('/')}/{path}" if path and not path.startswith("?") else url + path
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        elif isinstance(self._auth, StandardWebhooks):
            headers.update(signature(self._auth.key, request.event, int(time.time()), request.body or b""))
        elif isinstance(self._auth, ApiKey) and self._auth.query is not None:
            key = quote(self._auth.value.get_secret_value(), safe="")
            url += f"{'&' if '?' in url else '?'}{self._auth.query}={key}"
        return self._client.send(request.method, url, headers, request.body)


# What a later login may not meet; of all other errors it meets the same.
_PASSING = (
    *(ConnectionError, TimeoutError, BlockingIOError, InterruptedError, socket.gaierror, socket.herror),
    *(ssl.SSLEOFError, ssl.SSLZeroReturnError, HTTPException),
    *(requests.ConnectionError, requests.Timeout, requests.exceptions.RetryError, requests.JSONDecodeError),
    *(requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError),
)
# A wrapper of the error of the TLS library, and what `http.client` says of a wrong call.
_NOT_PASSING = (requests.exceptions.SSLError, InvalidURL, ImproperConnectionState, NotConnected)
_OF_NETWORK = {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH}
_OF_NETWORK |= {errno.EADDRNOTAVAIL, errno.ENOTCONN, errno.ENOBUFS}
_OF_NETWORK |= {errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE}
# They mend themselves no more than a full disk, whatever was handled before.
_OF_FILES = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})\b")  # of `http.client`; no class says more
# Alerts of a peer in trouble, and damaged records: the next handshake may go well.
_PASSING_TLS = re.compile("ALERT_(INTERNAL_ERROR|DECODE_ERROR|USER_CANCEL)|BAD_RECORD_MAC|RECORD_LAYER_FAILURE")


def _unauthenticated(error: Exception) -> Failure:
    """Why an auth class that may raise anything failed before a request was sent. Its text may quote a secret."""
    # The first that decides it: what the class had handled before, such as a 401 to an old login, lies further in.
    again = next((passes for cause in _causes(error) if (passes := _passes(cause)) is not None), False)
    raised = error.__context__ or error if isinstance(error, DestinationError) else error  # of `auth_of`
    return Failure(Outcome.RETRYABLE if again else Outcome.FATAL, f"the auth class raises {type(raised).__name__}")


def _passes(error: BaseException) -> bool | None:
    """Whether a later login may succeed; None: this error alone does not decide it."""
    status = _status(error)
    if status is not None:
        return is_passing(status)
    if _tls_refusal([error]) or isinstance(error, _OF_FILES):
        return False
    if isinstance(error, ssl.SSLError) and _PASSING_TLS.search(getattr(error, "reason", None) or ""):
        return True
    is_passing_kind = isinstance(error, _PASSING) and not isinstance(error, _NOT_PASSING)
    return True if is_passing_kind or getattr(error, "errno", None) in _OF_NETWORK else None


def _status(error: BaseException) -> int | None:
    """The status of an HTTP error, by requests or by urllib, or of a proxy."""
    # A ProxyError is a ConnectionError of requests, also where the proxy answered; what it handled before is in its context.
    reason = getattr(next(iter(error.args), None), "reason", None)
    answered = reason if isinstance(reason, ProxyError) else None
    cause = answered.original_error if answered else error
    if type(cause) is OSError and (tunnel := _TUNNEL.match(str(cause))):
        return int(tunnel[1])
    if isinstance(error, requests.HTTPError):
        return None if error.response is None else error.response.status_code
    return error.code if isinstance(error, urllib.error.HTTPError) else None


def _unreadable(error: Exception) -> tuple[str, bool]:
    """Why a body could not be read, and whether it did not come to its end."""
    causes = list(_causes(error))
    if too_large := next((cause for cause in causes if isinstance(cause, TooLarge)), None):
        return str(too_large), False
    late = any(isinstance(cause, ReadTimeoutError) for cause in causes)
    return "the answer did not end in time" if late else "the connection ended before the answer did", True


# Only a connection that never stood proves that nothing was sent. No text of an error: it may quote the URL's key.
_FAILURES: tuple[tuple[type[BaseException], Failure], ...] = (
    (socket.gaierror, Failure(Outcome.RETRYABLE, "the host name was not found")),
    (NewConnectionError, Failure(Outcome.RETRYABLE, "no connection")),
    (ConnectTimeoutError, Failure(Outcome.RETRYABLE, "no connection in time")),
    (ReadTimeoutError, Failure(Outcome.UNKNOWN, "no answer in time")),
    (MetadataHost, Failure(Outcome.FATAL, "the host name leads to an address of cloud metadata")),
    (RemoteDisconnected, _NO_ANSWER),
    (HTTPException, Failure(Outcome.UNKNOWN, "an answer that is no HTTP")),
    (InvalidHeader, Failure(Outcome.UNKNOWN, "an answer that is no HTTP")),
    (ValueError, Failure(Outcome.FATAL, "a request that the client refuses to send")),
)
# Alerts by which a server ends a handshake: no request of the connection was read.
_CLIENT_REFUSED = re.compile(
    r"ALERT_(CERTIFICATE_(REQUIRED|EXPIRED|REVOKED|UNKNOWN)|BAD_CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE)"
)
_OLD_TLS = re.compile(r"ALERT_PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL")


def _failure(error: Exception) -> Failure:
    causes = list(_causes(error))
    if refusal := _tls_refusal(causes):
        return refusal
    for kind, failure in _FAILURES:
        if any(isinstance(cause, kind) for cause in causes):
            return failure
    return _NO_ANSWER


def _tls_refusal(causes: Sequence[BaseException]) -> Failure | None:
    """What one side of a TLS handshake does not accept of the other."""
    alerts = " ".join(str(getattr(cause, "reason", None)) for cause in causes if isinstance(cause, ssl.SSLError))
    if _CLIENT_REFUSED.search(alerts):
        return Failure(Outcome.FATAL, "the destination did not accept the client certificate")
    if _OLD_TLS.search(alerts):
        return Failure(Outcome.FATAL, "the destination offers no TLS 1.2 or newer")
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = f"the TLS certificate of the destination was not accepted{why_refused(cause)}"
            return Failure(Outcome.FATAL, reason)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The outermost first."""
    seen: set[int] = set()
    waiting: deque[object] = deque([error])
    while waiting:
        cause = waiting.popleft()
        if isinstance(cause, BaseException) and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            waiting += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]


def tls_context(settings: HttpSettings) -> ssl.SSLContext:
    """Whom this side trusts, and the certificate by which it is known. Raises OSError where a file of them cannot be read."""
    trusted = settings.verify
    context = ssl.create_default_context(cafile=trusted if isinstance(trusted, str) else certifi.where())
    # Not every build of Python has this as its default.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if isinstance(trusted, str):
        lenient(context)
    if trusted is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    own = settings.client_certificate
    if own is not None:
        # An empty password, or OpenSSL would ask for one on the terminal.
        password = "" if own.password is None else own.password.get_secret_value()
        context.load_cert_chain(own.cert, own.key, password)
    return context
