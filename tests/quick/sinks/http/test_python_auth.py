"""`auth: {type: python}`: classes of packages that know nothing of this one, against servers that verify what they sign."""

from __future__ import annotations

import base64
import errno
import logging
import pickle
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from http.client import (
    BadStatusLine,
    CannotSendRequest,
    HTTPException,
    IncompleteRead,
    InvalidURL,
    LineTooLong,
    UnknownProtocol,
)
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
import requests
import spnego
import yaml
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from pydantic import ValidationError
from requests.auth import AuthBase
from urllib3 import HTTPSConnectionPool
from urllib3.exceptions import MaxRetryError, ProtocolError, ProxyError

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.base.redaction import MASK, redact
from dbt_reverse_etl.config.destinations import PlanOnly, collect_destinations
from dbt_reverse_etl.config.profiles import DbtProject
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.sinks.http.transport import BODY_CAP
from dbt_reverse_etl.testing import batch_of
from tests.support.config.loaded import load_destinations
from tests.support.outcomes import DELIVERED, FATAL, RETRYABLE, UNKNOWN
from tests.support.servers.http import HttpServer, Received, Reply, free_port, http_server
from tests.support.sinks.http_sending import BATCH, CANARY, inserts, one, send, sending, settings_of, task_of

HERE = __name__
SIGV4 = "requests_aws4auth.AWS4Auth"


def sigv4(secret: str = CANARY) -> dict[str, Any]:
    return {"type": "python", "class": SIGV4, "args": ["AKIA", secret, "eu-west-1", "execute-api"]}


class Aws:
    """Verifies Signature Version 4 with AWS's own library; 403 for what was not signed with the secret."""

    def __init__(self, url: str, secret: str = CANARY) -> None:
        self._url = url
        self._signer = SigV4Auth(Credentials("AKIA", secret), "execute-api", "eu-west-1")  # type: ignore[no-untyped-call]

    def __call__(self, request: Received) -> Reply:
        found = re.search(r"SignedHeaders=([^,]+),\s*Signature=(\w+)", request.headers.get("authorization", ""))
        if found is None:
            return Reply(403)
        signed = {name: request.headers[name] for name in found[1].split(";")}
        again = AWSRequest(request.method, self._url + request.path, signed, request.body)  # type: ignore[no-untyped-call]
        again.context["timestamp"] = request.headers["x-amz-date"]
        canonical = self._signer.canonical_request(again)  # type: ignore[no-untyped-call]
        expected = self._signer.signature(self._signer.string_to_sign(again, canonical), again)  # type: ignore[no-untyped-call]
        return Reply(200 if found[2] == expected else 403)


@pytest.fixture
def aws(server: HttpServer) -> HttpServer:
    server.default = Aws(server.url)
    return server


class TestAwsSigV4:
    @pytest.mark.guarantee("HTTP")
    def test_requests_that_another_package_signs_are_accepted_by_an_independent_verifier(self, aws: HttpServer) -> None:
        assert send(aws.url, task_of(), *inserts(1, 2), ("delete", {"id": 3}), auth=sigv4()).results == ()
        assert send(aws.url, task_of(BATCH), *inserts(1, 2), auth=sigv4()).results == ()
        assert len(aws.received) == 4
        assert one(aws.url, auth=sigv4("another secret")) == (FATAL, "HTTP 403")

    @pytest.mark.guarantee("Secrets and row values")
    def test_what_comes_from_the_environment_is_a_secret_whatever_its_name(
        self, aws: HttpServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        auth = {**sigv4("{{ env_var('PLAIN_NAME') }}"), "session_token": "{{ env_var('OTHER_NAME') }}"}
        env = {"PLAIN_NAME": "3f9c-unlisted-positional", "OTHER_NAME": "7b1e-unlisted-by-name"}
        aws.default = Aws(aws.url, env["PLAIN_NAME"])
        written = {"dbt_reverse_etl": {"outputs": {"prod": {"aws": {"type": "http", "url": aws.url, "auth": auth}}}}}
        (tmp_path / "profiles.yml").write_text(yaml.safe_dump(written))
        found = load_destinations([tmp_path], "prod", env)
        assert not isinstance(found, PlanOnly)
        sink = found["aws"].sink(found["aws"].settings)
        sink.open(task_of())
        assert sink.deliver(batch_of(task_of(), inserts(1))).results == ()
        shown = repr((found, sink.__dict__, found["aws"].settings.model_dump())) + caplog.text
        assert not [secret for secret in env.values() if secret in shown]
        assert [redact(secret) for secret in env.values()] == [MASK, MASK]
        assert redact("eu-west-1 execute-api") == "eu-west-1 execute-api", "what is written there is no secret"

    def test_without_its_secrets_the_destination_can_still_be_named(self, tmp_path: Path) -> None:
        auth = {**sigv4("{{ env_var('PLAIN_NAME') }}"), "session_token": "{{ env_var('OTHER_NAME') }}"}
        block = {"type": "http", "url": "https://example.com", "auth": auth}
        (tmp_path / "profiles.yml").write_text(
            yaml.safe_dump({"dbt_reverse_etl": {"outputs": {"prod": {"aws": block}}}})
        )
        found = collect_destinations([tmp_path], "prod", {}, DbtProject())
        assert not isinstance(found, PlanOnly)
        assert [*found.destinations] == ["aws"]

    @pytest.mark.guarantee("HTTP")
    def test_a_task_in_another_process_signs_as_the_driver_does(self, aws: HttpServer) -> None:
        program = (
            "import pickle, sys; sink, task, batch = pickle.load(sys.stdin.buffer); "
            "sink = sink[0](sink[1]); sink.open(task); print(sink.deliver(batch).results); sink.close()"
        )
        sent = pickle.dumps(
            ((HttpSink, settings_of(aws.url, auth=sigv4())), task_of(), batch_of(task_of(), inserts(1)))
        )
        run = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True)
        assert run.stdout.strip() == b"()"
        assert len(aws.received) == 1


class NtlmServer:
    """Windows' challenge and response, by an implementation of its own; a connection is let in, not a request."""

    def __init__(self) -> None:
        self._shaking: dict[Any, Any] = {}
        self._all_there = threading.Barrier(4, timeout=30)
        self.let_in: set[Any] = set()

    def __call__(self, request: Received) -> Reply:
        if request.client in self.let_in:
            return Reply(200)
        token = request.headers.get("authorization", "").removeprefix("NTLM ")
        if not token:
            self._all_there.wait()
            return Reply(401, b"log in" * 100, {"WWW-Authenticate": "NTLM"})
        context = self._shaking.setdefault(
            request.client, spnego.server(protocol="ntlm", options=spnego.NegotiateOptions.use_ntlm)
        )
        answer = context.step(base64.b64decode(token))
        if context.complete:
            self.let_in.add(request.client)
            return Reply(200)
        return Reply(401, b"", {"WWW-Authenticate": f"NTLM {base64.b64encode(answer or b'').decode()}"})


@pytest.mark.guarantee("HTTP")
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_a_handshake_that_belongs_to_one_connection_holds_while_others_are_under_way(
    server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users").write_text(f"CORP:crm:{CANARY}\n")
    monkeypatch.setenv("NTLM_USER_FILE", str(tmp_path / "users"))
    server.default = ntlm = NtlmServer()
    auth = {"type": "python", "class": "requests_ntlm.HttpNtlmAuth", "username": "CORP\\crm", "password": CANARY}
    task = task_of()
    with sending(server.url, task, auth=auth, concurrency=4) as sink, ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda n: sink.deliver(batch_of(task, inserts(n))).results, range(40))
        assert [*results] == [()] * 40
    assert len(ntlm.let_in) == 4
    assert len(server.received) == 40 + 2 * 4, "each connection shakes hands once"


def python(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "python", "class": name if "." in name else f"{HERE}.{name}", **arguments}


DIGEST = python("requests.auth.HTTPDigestAuth", username="me", password=CANARY)
ASKS_FOR_DIGEST = {"WWW-Authenticate": 'Digest realm="crm", nonce="1", qop="auth"'}


class TestBounds:
    """An auth class reads answers and sends requests of its own: what holds for ours holds for them."""

    def test_an_answer_to_a_challenge_delivers_the_row_once(self, server: HttpServer) -> None:
        server.script(Reply(401, headers=ASKS_FOR_DIGEST))
        assert one(server.url, auth=DIGEST)[0] is DELIVERED
        assert [request.body for request in server.received] == [server.received[0].body] * 2
        assert server.received[1].headers["authorization"].startswith('Digest username="me"')

    @pytest.mark.guarantee("HTTP")
    def test_all_requests_of_an_auth_class_together_keep_the_deadline(self, server: HttpServer) -> None:
        server.script(Reply(401, b" " * 20, ASKS_FOR_DIGEST, pause=0.05))
        server.default = Reply(delay=30)
        began = time.monotonic()
        assert one(server.url, auth=DIGEST, timeout={"connect": 0.2, "read": 2})[0] is UNKNOWN
        assert time.monotonic() - began < 2.9
        assert len(server.received) == 2

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize("coding", ["identity", "gzip"])
    def test_an_answer_that_an_auth_class_reads_is_bounded(self, coding: str, server: HttpServer) -> None:
        server.script(Reply(401, b" " * 2 * BODY_CAP, {**ASKS_FOR_DIGEST, "Content-Encoding": coding}))
        assert one(server.url, auth=DIGEST)[0] is UNKNOWN
        assert len(server.received) == 1

    def test_a_redirect_is_not_followed(self, server: HttpServer) -> None:
        with http_server() as other:
            server.script(Reply(401, headers=ASKS_FOR_DIGEST))
            server.default = Reply(307, headers={"Location": other.url})
            assert one(server.url, auth=DIGEST)[0] is UNKNOWN
            assert other.connections == 0


def refused_with(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(CANARY, response=response)


class OfAnotherLibrary(Exception):
    """Its cause says what happened."""


def caused(cause: Exception) -> Exception:
    error = OfAnotherLibrary(CANARY)
    error.__cause__ = cause
    return error


def after(first: Exception, error: Exception) -> Exception:
    error.__context__ = first
    return error


def of_tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, CANARY)
    error.reason = reason
    return error


def by_proxy(error: Exception) -> requests.exceptions.ProxyError:
    """As requests and urllib3 wrap it."""
    pool = HTTPSConnectionPool("login.example")
    return requests.exceptions.ProxyError(MaxRetryError(pool, "/", ProxyError("Unable to connect to proxy", error)))


BEFORE: dict[str, tuple[Exception, Outcome]] = {
    "offline": (ConnectionError(CANARY), RETRYABLE),
    "offline, by requests": (requests.ConnectionError(CANARY), RETRYABLE),
    "offline, by another library": (caused(ConnectionRefusedError(CANARY)), RETRYABLE),
    "late": (requests.Timeout(CANARY), RETRYABLE),
    "no such host": (socket.gaierror(CANARY), RETRYABLE),
    "refused": (refused_with(401), FATAL),
    "limited": (refused_with(429), RETRYABLE),
    "down": (refused_with(503), RETRYABLE),
    "no answer": (requests.HTTPError(CANARY), FATAL),
    "no file": (FileNotFoundError(CANARY), FATAL),
    "no right": (PermissionError(CANARY), FATAL),
    "a folder": (IsADirectoryError(CANARY), FATAL),
    "no URL": (requests.exceptions.MissingSchema(CANARY), FATAL),
    "no network": (OSError(errno.ENETUNREACH, CANARY), RETRYABLE),
    "no way": (OSError(errno.EHOSTUNREACH, CANARY), RETRYABLE),
    "a cut handshake": (ssl.SSLEOFError(8, CANARY), RETRYABLE),
    "no trust": (requests.exceptions.SSLError(ssl.SSLCertVerificationError(1, CANARY)), FATAL),
    "a cut answer": (requests.exceptions.ChunkedEncodingError(CANARY), RETRYABLE),
    "a cut answer, by urllib": (IncompleteRead(CANARY.encode(), 9), RETRYABLE),
    "a cut answer, by urllib3": (caused(ProtocolError(CANARY, IncompleteRead(b"", 9))), RETRYABLE),
    "no HTTP, by urllib": (BadStatusLine(CANARY), RETRYABLE),
    "a header too long, by urllib": (LineTooLong(CANARY), RETRYABLE),
    "too many headers, by urllib": (HTTPException(CANARY), RETRYABLE),
    "another protocol, by urllib": (UnknownProtocol(CANARY), RETRYABLE),
    "no URL, by urllib": (InvalidURL(CANARY), FATAL),
    "a wrong call, by urllib": (CannotSendRequest(CANARY), FATAL),
    "no JSON": (requests.JSONDecodeError(CANARY, "", 0), RETRYABLE),
    "tried too often": (requests.exceptions.RetryError(CANARY), RETRYABLE),
    "down, by urllib": (HTTPError("", 503, CANARY, Message(), None), RETRYABLE),
    "refused, by urllib": (caused(HTTPError("", 401, CANARY, Message(), None)), FATAL),
    "offline, without a cache": (after(FileNotFoundError(CANARY), OSError(errno.ENETUNREACH, CANARY)), RETRYABLE),
    "offline, with an old login": (after(refused_with(401), requests.ConnectionError(CANARY)), RETRYABLE),
    "offline, after no trust": (after(ssl.SSLCertVerificationError(1, CANARY), ConnectionError(CANARY)), RETRYABLE),
    "no trust, after offline": (after(ConnectionError(CANARY), ssl.SSLCertVerificationError(1, CANARY)), FATAL),
    "refused, after offline": (after(ConnectionError(CANARY), refused_with(401)), FATAL),
    "refused, through a library, after offline": (caused(after(ConnectionError(CANARY), refused_with(401))), FATAL),
    "offline, with words of a former answer": (
        after(ConnectionError(CANARY), OfAnotherLibrary(after(refused_with(401), ValueError(CANARY)))),
        RETRYABLE,
    ),
    "no CA file": (OSError(CANARY), FATAL),
    "a broken certificate": (requests.exceptions.SSLError(ssl.SSLError(9, CANARY)), FATAL),
    "a cut handshake, by requests": (requests.exceptions.SSLError(ssl.SSLEOFError(8, CANARY)), RETRYABLE),
    "no header": (requests.exceptions.InvalidHeader(CANARY), FATAL),
    "redirects": (requests.TooManyRedirects(CANARY), FATAL),
    "a file in the way": (FileExistsError(CANARY), FATAL),
    "a full disk": (OSError(errno.ENOSPC, CANARY), FATAL),
    "too many files": (OSError(errno.EMFILE, CANARY), RETRYABLE),
    "no buffer": (OSError(errno.ENOBUFS, CANARY), RETRYABLE),
    "would block": (BlockingIOError(CANARY), RETRYABLE),
    "interrupted": (InterruptedError(CANARY), RETRYABLE),
    "no such address": (socket.herror(CANARY), RETRYABLE),
    "an alert": (requests.exceptions.SSLError(of_tls("TLSV1_ALERT_INTERNAL_ERROR")), RETRYABLE),
    "a damaged record": (of_tls("DECRYPTION_FAILED_OR_BAD_RECORD_MAC"), RETRYABLE),
    "an alert about the certificate": (of_tls("TLSV13_ALERT_CERTIFICATE_REQUIRED"), FATAL),
    "an alert that damages a record": (of_tls("SSLV3_ALERT_BAD_RECORD_MAC"), RETRYABLE),
    "an alert that is canceled": (of_tls("TLSV1_ALERT_USER_CANCELLED"), RETRYABLE),
    "an alert that cannot be read": (of_tls("TLSV1_ALERT_DECODE_ERROR"), RETRYABLE),
    "a record layer": (of_tls("RECORD_LAYER_FAILURE"), RETRYABLE),
    "an alert of a kind of certificate": (of_tls("SSLV3_ALERT_UNSUPPORTED_CERTIFICATE"), FATAL),
    "an alert that denies access": (requests.exceptions.SSLError(of_tls("TLSV1_ALERT_ACCESS_DENIED")), FATAL),
    "an alert of weak ciphers": (of_tls("TLSV1_ALERT_INSUFFICIENT_SECURITY"), FATAL),
    "a key of another certificate": (of_tls("KEY_VALUES_MISMATCH"), FATAL),
    "a proxy that is down": (URLError(OSError("Tunnel connection failed: 503 Service Unavailable")), RETRYABLE),
    "a proxy that refuses": (URLError(OSError("Tunnel connection failed: 407 Authentication Required")), FATAL),
    "a proxy that is down, by requests": (by_proxy(OSError("Tunnel connection failed: 503 x")), RETRYABLE),
    "a proxy that refuses, by requests": (by_proxy(OSError("Tunnel connection failed: 407 x")), FATAL),
    "no proxy, after one that refuses": (
        after(by_proxy(OSError("Tunnel connection failed: 407 x")), by_proxy(ConnectionRefusedError(CANARY))),
        RETRYABLE,
    ),
    "no proxy, by requests": (by_proxy(ConnectionRefusedError(CANARY)), RETRYABLE),
    "no file, after offline": (after(ConnectionError(CANARY), FileNotFoundError(CANARY)), FATAL),
    "no right, after an outage": (after(refused_with(503), PermissionError(CANARY)), FATAL),
}
MADE_LATER: dict[str, tuple[Exception, Outcome]] = {
    "made later, offline": (requests.ConnectionError(CANARY), RETRYABLE),
    "made later": (KeyError(CANARY), FATAL),
}
MEETING = threading.Barrier(1)


class Bad(AuthBase):
    """Fails as it is told."""

    made = 0

    def __init__(self, how: str, port: int = 0) -> None:
        if how == "made":
            raise KeyError(CANARY)
        Bad.made += 1
        if Bad.made > 1 and how in MADE_LATER:
            raise MADE_LATER[how][0]
        self._how, self._port = how, port

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._how == "called":
            raise KeyError(CANARY)
        if self._how in BEFORE:
            raise BEFORE[self._how][0]
        if self._how in MADE_LATER:
            MEETING.wait()
        r.register_hook("response", self._answered)
        return r

    def _answered(self, response: requests.Response, **more: Any) -> None:
        if self._how == "answered":
            raise ValueError(CANARY)
        again = response.request.copy()
        again.url = f"http://127.0.0.1:{self._port}"
        response.connection.send(again, **more)  # type: ignore[attr-defined]


class Alone(AuthBase):
    """Fails where a second request begins before the first one was answered."""

    def __init__(self) -> None:
        self._busy = False

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        assert not self._busy
        self._busy = True
        r.register_hook("response", self._answered)
        return r

    def _answered(self, *_: Any, **__: Any) -> None:
        self._busy = False


@pytest.mark.guarantee("HTTP")
def test_an_object_of_an_auth_class_serves_one_request_at_a_time(server: HttpServer) -> None:
    together = threading.Barrier(4, timeout=10)
    server.default = lambda _: Reply(200 if together.wait() >= 0 else 500)
    with sending(server.url, task_of(), auth=python("Alone"), concurrency=4) as sink, ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda n: sink.deliver(batch_of(task_of(), inserts(n))).results, range(8))] == [()] * 8


class TestFailures:
    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        ("how", "outcome", "sent"),
        [
            ("called", FATAL, 0),
            *((how, outcome, 0) for how, (_, outcome) in BEFORE.items()),
            ("answered", UNKNOWN, 1),
            ("elsewhere", UNKNOWN, 1),
        ],
    )
    def test_a_class_that_fails_before_a_request_sent_nothing_and_after_an_answer_nobody_knows(
        self, how: str, outcome: Outcome, sent: int, server: HttpServer
    ) -> None:
        found, reason = one(server.url, auth=python("Bad", how=how, port=free_port()))
        assert (found, len(server.received)) == (outcome, sent)
        assert CANARY not in reason

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize("how", [*MADE_LATER])
    def test_a_class_that_fails_while_it_is_made_for_a_later_connection_sent_nothing(
        self, how: str, server: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Bad, "made", 0)
        error, outcome = MADE_LATER[how]
        together, free = threading.Event(), threading.Event()

        class Meeting:
            def wait(self) -> None:
                together.set()
                assert free.wait(30)

        monkeypatch.setitem(globals(), "MEETING", Meeting())
        with sending(server.url, task_of(), auth=python("Bad", how=how)) as sink, ThreadPoolExecutor(1) as pool:
            pool.submit(sink.deliver, batch_of(task_of(), inserts(1)))
            assert together.wait(30)
            (failed,) = sink.deliver(batch_of(task_of(), inserts(2))).results
            free.set()
        assert (failed.outcome, failed.reason) == (outcome, f"the auth class raises {type(error).__name__}")

    @pytest.mark.parametrize(
        ("auth", "key", "found"),
        [
            (python("no_such_package.Auth"), "auth.class", "whose import raises ModuleNotFoundError"),
            (python("requests.auth.NoSuchAuth"), "auth.class", "whose import raises AttributeError"),
            (python("requests.Session"), "auth.class", "requests.Session, which is none; expected a subclass of"),
            (python("requests.auth.HTTPDigestAuth", username="me", pasword=CANARY), "auth", r"\(username, password\)"),
            (python("requests.auth.HTTPDigestAuth", args=["me", CANARY, "more"]), "auth", "arguments that"),
        ],
    )
    def test_a_class_that_cannot_be_used_is_said_before_anything_is_captured(
        self, auth: dict[str, Any], key: str, found: str, server: HttpServer
    ) -> None:
        sink = HttpSink(settings_of(server.url, auth=auth))
        for step, error in ((lambda: sink.validate(task_of()), ConfigurationError), (sink.check, DestinationError)):
            with pytest.raises(error, match=rf"^destination {server.url}: {key}: found .*{found}.*Next: ") as caught:
                step()
            assert CANARY not in str(caught.value)
        assert server.connections == 0

    @pytest.mark.parametrize("auth", [python("Bad", how="made"), {**sigv4(), "args": [CANARY]}])
    def test_values_that_the_class_refuses_are_said_before_anything_is_sent(
        self, auth: dict[str, Any], server: HttpServer
    ) -> None:
        sink = HttpSink(settings_of(server.url, auth=auth))
        sink.validate(task_of())
        for step in (sink.check, lambda: sink.open(task_of())):
            with pytest.raises(
                DestinationError, match=r"auth: found arguments that .*Next: correct the keys"
            ) as caught:
                step()
            assert CANARY not in str(caught.value)
        assert server.connections == 0

    @pytest.mark.parametrize(
        "auth",
        [{"type": "python"}, python("os.system "), python("open"), python("a.B", args=CANARY), python("a.B", args={})],
    )
    def test_what_names_no_class_is_refused_without_its_values(self, auth: dict[str, Any]) -> None:
        with pytest.raises(ValidationError) as caught:
            settings_of("https://example.com", auth={**auth, "class": auth.get("class", "").removeprefix(HERE + ".")})
        assert CANARY not in str(caught.value)
