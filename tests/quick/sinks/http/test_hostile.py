"""Servers that mean no good, or know no better."""

from __future__ import annotations

import getpass
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trustme

from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.gate import StopKind
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.wave import WavePart
from dbt_reverse_etl.sinks.hosts import is_metadata_host
from dbt_reverse_etl.sinks.http import connection
from dbt_reverse_etl.testing import batch_of, outcomes
from tests.support.delivery.clock import FakeClock
from tests.support.outcomes import DELIVERED, FATAL, REJECTED, RETRYABLE, UNKNOWN
from tests.support.servers.http import HttpServer, Received, Reply, http_server
from tests.support.sinks.http_sending import BATCH, inserts, one, send, sending, task_of


@pytest.mark.guarantee("HTTP")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_server_that_speaks_only_an_old_tls_gets_no_row(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    context.set_ciphers("ALL:@SECLEVEL=0")
    for newest, outcome in ((ssl.TLSVersion.TLSv1_1, FATAL), (ssl.TLSVersion.TLSv1_2, DELIVERED)):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, newest
        with http_server(tls=context) as server:
            assert one(server.url, verify=str(tmp_path / "ca.pem"))[0] is outcome
            assert len(server.received) == (outcome is DELIVERED)


class TestDeepAnswers:
    DEEP: ClassVar = b"[" * 500_000 + b"]" * 500_000
    JSON: ClassVar = {"Content-Type": "application/json"}

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        "options",
        [
            {"success": {"json": {"path": "ok", "equals": True}}},
            {**BATCH, "results": {"ok": {"path": "ok", "equals": True}}},
        ],
    )
    def test_an_answer_nested_without_end_is_no_acknowledgement(
        self, options: dict[str, Any], server: HttpServer
    ) -> None:
        server.default = Reply(200, self.DEEP, self.JSON)
        assert outcomes(send(server.url, task_of(options), *inserts(1)), 1) == [UNKNOWN]

    def test_a_refusal_nested_without_end_is_a_refusal_without_a_code(self, server: HttpServer) -> None:
        server.default = Reply(422, self.DEEP, self.JSON)
        assert one(server.url, task_of({"error": "error.code"}))[1] == "HTTP 422"


@pytest.mark.guarantee("Refusals and outages")
def test_a_token_that_dies_during_the_run_stops_it_after_the_requests_under_way() -> None:
    def answer(request: Received) -> Reply:
        return Reply(200 if int(request.path.rsplit("/", 1)[1]) < 50 else 401)

    with http_server(answer) as server:
        task = task_of()
        with sending(server.url, task, concurrency=4, auth={"type": "bearer", "token": "t"}) as sink:
            engine = Engine(sink, task, Policy(), FakeClock(), lambda: True)
            result = engine.deliver_wave(WavePart("wave", batch_of(task, inserts(*range(1000))).rows))
    assert result.stop is not None
    assert result.stop.kind is not StopKind.INTERRUPTED
    assert result.counts.rejected.total == 0, "it is no row's fault"
    assert result.counts.delivered.total == 50
    assert len(server.received) <= 50 + 2 * 4


@pytest.mark.guarantee("HTTP")
def test_the_requests_say_who_sends_them_and_nothing_of_this_machine(server: HttpServer) -> None:
    assert one(server.url)[0] is DELIVERED
    (request,) = server.received
    assert re.fullmatch(r"dbt-reverse-etl(/[\w.+]+)?", request.headers["user-agent"])
    said = " ".join(request.headers[name] for name in request.headers if name not in ("host", "idempotency-key"))
    assert not [name for name in (socket.gethostname(), getpass.getuser()) if name in said]


@dataclass
class Dripping:
    """Sends a header, byte by byte, and tells whether the client stayed to its end."""

    url: str
    stayed: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def serve(self, connection: socket.socket, pieces: int, pause: float) -> None:
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            for _ in range(pieces):
                connection.sendall(b"a")
                time.sleep(pause)
            self.stayed = True
        self.over.set()


@contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        yield listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


def read_request(connection: socket.socket) -> None:
    with connection.makefile("rb") as sent:
        length = next(int(line.split()[1]) for line in sent if line.lower().startswith(b"content-length"))
        next(line for line in sent if not line.strip())
        sent.read(length)


def answer_and_close(listener: socket.socket, closed: threading.Semaphore) -> None:
    """Nothing in the answer tells that the connection ends with it."""
    for _ in range(5):
        connection, _address = listener.accept()
        with connection:
            read_request(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        closed.release()


@pytest.mark.guarantee("HTTP")
def test_a_connection_that_the_server_closed_without_a_word_is_opened_again() -> None:
    closed, task = threading.Semaphore(0), task_of()
    with listening() as (listener, url):
        threading.Thread(target=answer_and_close, args=(listener, closed), daemon=True).start()
        with sending(url, task) as sink:
            for number in range(5):
                assert sink.deliver(batch_of(task, inserts(number))).results == ()
                assert closed.acquire(timeout=30)


def answer_with_late_body(listener: socket.socket, headers: bytes) -> None:
    """204 to the first request; to the second a refusal, before which a late body comes if it is on the same connection."""
    late = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    connection, _address = listener.accept()
    with connection:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n" + headers + b"\r\n")
        if connection.recv(1, socket.MSG_PEEK):
            read_request(connection)
            connection.sendall(late + REFUSAL)
            return
    connection, _address = listener.accept()
    with connection:
        read_request(connection)
        connection.sendall(REFUSAL)


@pytest.mark.guarantee("HTTP")
@pytest.mark.parametrize("headers", [b"Content-Length: 38\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_late_body_where_none_may_be_is_not_taken_for_the_answer_to_the_next_row(headers: bytes) -> None:
    task = task_of()
    with listening() as (listener, url):
        threading.Thread(target=answer_with_late_body, args=(listener, headers), daemon=True).start()
        with sending(url, task) as sink:
            assert outcomes(sink.deliver(batch_of(task, inserts(1))), 1) == [DELIVERED]
            assert outcomes(sink.deliver(batch_of(task, inserts(2))), 1) == [REJECTED]


@pytest.mark.guarantee("HTTP")
def test_headers_that_trickle_do_not_hold_the_worker() -> None:
    with listening() as (listener, url):
        server = Dripping(url)
        threading.Thread(target=lambda: server.serve(listener.accept()[0], 100, 0.1), daemon=True).start()
        assert one(url, timeout={"read": 0.3}) == (UNKNOWN, "no answer in time")
        assert server.over.wait(30)
        assert not server.stayed


@pytest.mark.guarantee("HTTP")
def test_a_server_that_accepts_no_connection_was_surely_not_reached() -> None:
    with listening() as (listener, url), socket.create_connection(listener.getsockname()):
        assert one(url, timeout={"connect": 0.2})[0] is RETRYABLE


@pytest.mark.guarantee("HTTP")
def test_a_server_that_never_shakes_hands_does_not_hold_the_worker() -> None:
    with listening() as (_, url):
        assert one(url.replace("http:", "https:"), timeout={"connect": 0.3, "read": 0.3})[0] in (RETRYABLE, UNKNOWN)


@pytest.mark.guarantee("HTTP")
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_name_that_leads_to_cloud_metadata_gets_no_byte(
    name: str, server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://{name}:{server.port}"
    assert one(url)[0] is DELIVERED
    monkeypatch.setattr(connection, "is_metadata_host", lambda address: address == "127.0.0.1")  # none can be bound
    assert one(url) == (FATAL, "the host name leads to an address of cloud metadata")
    assert len(server.received) == 1


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "fd00:0ec2:0::254%eth0",
        "fd20:ce::254",
        "100.100.100.200",
        "fd00:42::42",
        "192.0.0.192",
        "2002:a9fe:a9fe::1",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:a9:fe:a9fe::",
        "64:ff9b:1:0:a9:fea9:fe00::",
        "0x646464c8",
    ],
)
def test_addresses_of_cloud_metadata_are_known_in_every_form(address: str) -> None:
    assert is_metadata_host(address)
    assert not any(
        map(
            is_metadata_host,
            ["127.0.0.1", "10.0.0.1", "::1", "2001:db8::1", "2002:a00:1::1", "64:ff9b:1::a00:1", "crm.example.com"],
        )
    )
