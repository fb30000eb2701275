"""The http sink on a hostile network: broken connections, proxies, false certificates; nothing leaks."""

from __future__ import annotations

import gzip
import logging
import socket
import ssl
import struct
import subprocess
import threading
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.http.answer import Failure
from dbt_reverse_etl.sinks.http.connection import decoded, too_large
from dbt_reverse_etl.sinks.http.request import Request
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.sinks.http.transport import BODY_CAP, Transport
from dbt_reverse_etl.testing import batch_of, outcomes
from tests.support.outcomes import DELIVERED, FATAL, REJECTED, RETRYABLE, UNKNOWN
from tests.support.servers.http import HttpServer, Reply, free_port, http_server
from tests.support.sinks.http_sending import CANARY, inserts, one, send, sending, settings_of, task_of


class TestNetwork:
    @pytest.mark.guarantee("HTTP")
    def test_a_refused_connection_is_surely_not_sent(self) -> None:
        assert one(f"http://127.0.0.1:{free_port()}") == (RETRYABLE, "no connection")

    def test_a_host_that_does_not_exist_is_surely_not_sent(self) -> None:
        outcome, reason = one("https://does-not-exist.invalid")
        assert outcome is RETRYABLE
        assert reason in ("the host name was not found", "no connection in time")

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize("reset", ["unread", "after"])
    def test_a_reset_is_unknown_and_is_never_repeated_by_the_sink(self, reset: Any, server: HttpServer) -> None:
        server.default = Reply(reset=reset)
        server.script(Reply(reset=reset))
        assert one(server.url)[0] is UNKNOWN
        assert server.connections == 1
        assert len(server.received) == (reset == "after")

    @pytest.mark.guarantee("HTTP")
    def test_no_answer_in_time_is_unknown(self, server: HttpServer) -> None:
        server.default = Reply(delay=30)
        assert one(server.url, timeout={"read": 0.2}) == (UNKNOWN, "no answer in time")
        assert len(server.received) == 1

    def test_what_is_no_http_is_unknown(self, server: HttpServer) -> None:
        server.default = Reply(raw=b"SSH-2.0-OpenSSH_9.9\r\n")
        assert one(server.url)[0] is UNKNOWN

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        "head",
        [
            b"HTTP/1.1 abc OK\r\n",
            b"HTTP/2 200\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
            b"HTTP/1.1 200 OK\r\nno header\r\nContent-Type: text/html\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 101,
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2**16 + b"\r\n",
        ],
    )
    def test_an_answer_that_nobody_can_read_says_nothing_of_its_rows(self, head: bytes, server: HttpServer) -> None:
        server.default = Reply(raw=head + b"\r\n")
        assert one(server.url) == (UNKNOWN, "an answer that is no HTTP")

    @pytest.mark.parametrize(
        "field", [b"Content-Length : 15", b"Content-Length: 15, 15", b"X \t: y\r\ncontent-length:15 ,15 "]
    )
    def test_blanks_before_a_colon_and_a_length_that_is_repeated_are_read(
        self, field: bytes, server: HttpServer
    ) -> None:
        head = b"HTTP/1.1 200 OK\r\n" + field + b"\r\nContent-Type : application/json\r\n\r\n"
        server.default = Reply(raw=head + b'{"status":"ok"}', ends=False)
        task = task_of({"success": {"json": {"path": "status", "equals": "ok"}}})
        assert one(server.url, task, timeout={"read": 2})[0] is DELIVERED

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize("interim", [b"", b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"])
    @pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found"])
    def test_an_answer_that_ends_before_its_headers_do_says_nothing_of_its_rows(
        self, status: bytes, interim: bytes, server: HttpServer
    ) -> None:
        head = interim + b"HTTP/1.1 " + status + b"\r\nX: y\r\n\r\n"
        for size in range(len(interim), len(head)):
            server.default = Reply(raw=head[:size])
            (outcome,) = outcomes(send(server.url, task_of(), ("delete", {"id": 1})), 1)
            assert outcome is UNKNOWN, head[:size]
        server.default = Reply(raw=head)
        assert send(server.url, task_of(), ("delete", {"id": 1})).results == ()

    @pytest.mark.parametrize("kind", ["multipart/mixed", "message/rfc822"])
    def test_an_answer_whose_body_would_have_parts_is_one(self, kind: str, server: HttpServer) -> None:
        server.default = Reply(headers={"Content-Type": kind})
        assert one(server.url)[0] is DELIVERED

    @pytest.mark.guarantee("HTTP")
    def test_interim_answers_are_passed_over_and_never_taken_for_that_of_the_next_row(self, server: HttpServer) -> None:
        interim = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
        server.script(
            Reply(raw=interim + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ends=False),
            Reply(raw=interim + b"HTTP/1.1 422 No\r\nContent-Length: 0\r\n\r\n", ends=False),
        )
        task = task_of()
        with sending(server.url, task) as sink:
            found = [sink.deliver(batch_of(task, inserts(number))).results for number in range(2)]
        assert (found[0], [result.outcome for result in found[1]]) == ((), [REJECTED])

    def test_an_answer_that_breaks_off_is_no_acknowledgement(self, server: HttpServer) -> None:
        body = b'{"status": "ok"}'
        task = task_of({"success": {"json": {"path": "status", "equals": "ok"}}})
        server.default = Reply(body=body, headers={"Content-Type": "application/json"}, length=len(body) + 50)
        broken = (UNKNOWN, "HTTP 200, but the connection ended before the answer did")
        assert [one(server.url, task), one(server.url)] == [broken, broken]

    @pytest.mark.guarantee("HTTP")
    def test_a_trickling_answer_does_not_hold_the_worker(self, server: HttpServer) -> None:
        body = b'{"status": "ok"}' + b" " * 5000
        server.default = Reply(body=body, headers={"Content-Type": "application/json"}, pause=0.05)
        task = task_of({"success": {"json": {"path": "status", "equals": "ok"}}})
        assert one(server.url, task, timeout={"read": 0.3})[0] is UNKNOWN

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize("compress", [False, True])
    def test_an_answer_above_the_cap_is_not_read(self, compress: bool, server: HttpServer) -> None:
        body = b'{"status": "ok", "x": "' + b"a" * (2 * BODY_CAP if not compress else 2**26) + b'"}'
        headers = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if compress else {})
        server.default = Reply(body=gzip.compress(body) if compress else body, headers=headers)
        task = task_of({"success": {"json": {"path": "status", "equals": "ok"}}})
        outcome, reason = one(server.url, task)
        assert (outcome, reason) == (UNKNOWN, "HTTP 200, but the answer is larger than 16 MiB: lower batch.rows")
        assert one(server.url)[0] is DELIVERED

    @pytest.mark.guarantee("HTTP")
    def test_a_compressed_bomb_takes_no_more_memory_than_the_cap(self) -> None:
        bomb = gzip.compress(b"a" * 2**26)
        tracemalloc.start()
        try:
            body, problem = decoded(bomb, "gzip", BODY_CAP)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (body, problem) == (None, "the answer is larger than 16 MiB: lower batch.rows")
        assert peak < 4 * BODY_CAP

    @pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "identity", "br", "gzip, gzip"])
    def test_a_compressed_answer_is_read_or_refused(self, encoding: str, server: HttpServer) -> None:
        plain = b'{"status":"ok"}'
        coded = (
            zlib.compress(plain) if encoding == "deflate" else plain if encoding == "identity" else gzip.compress(plain)
        )
        headers = {"Content-Type": "application/json; charset=utf-8", "Content-Encoding": encoding}
        server.default = Reply(body=coded, headers=headers)
        task = task_of({"success": {"json": {"path": "status", "equals": "ok"}}})
        assert one(server.url, task)[0] is (UNKNOWN if encoding in ("br", "gzip, gzip") else DELIVERED)

    def test_a_gzip_of_several_members_is_read_whole_and_what_follows_them_says_nothing(self) -> None:
        first, second = gzip.compress(b'{"status":'), gzip.compress(b'"ok"}')
        assert decoded(first + second, "gzip", BODY_CAP) == (b'{"status":"ok"}', "")
        assert decoded(first + second, "gzip", 14) == (None, too_large(14))
        damaged = (None, "the compressed answer is damaged")
        for body in (first + second[:-1], first + first[:2], gzip.compress(b"") * 80_000):
            assert decoded(body, "gzip", BODY_CAP) == damaged
        for body, name in ((second, "gzip"), (zlib.compress(b'"ok"}'), "deflate")):
            for padding in (b"\0" * 10, b"\n"):
                assert decoded(body + padding, name, BODY_CAP) == (b'"ok"}', "")

    @pytest.mark.guarantee("HTTP")
    def test_a_connection_that_was_closed_while_idle_is_opened_again(self, server: HttpServer) -> None:
        server.script(Reply(200, headers={"Connection": "close"}))
        task = task_of()
        with sending(server.url, task) as sink:
            assert [sink.deliver(batch_of(task, inserts(number))).results for number in range(2)] == [(), ()]

    @pytest.mark.guarantee("HTTP")
    def test_after_a_connection_that_ended_without_an_answer_a_hundred_requests_have_one_each(
        self, server: HttpServer
    ) -> None:
        # A server that ends no connection as soon as it was asked to: that is the client's part.
        server.default = Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ends=False)
        server.script(Reply(), Reply(reset="after"))
        task = task_of()
        with sending(server.url, task) as sink:
            for number in range(104):
                sink.deliver(batch_of(task, inserts(number)))
        first, lost, *alone, last, after = [(one.client, one.headers.get("connection")) for one in server.received]
        assert first == lost
        assert {said for _, said in alone} == {"close"}
        assert server.connections == 102, "each on its own"
        assert last == after == (last[0], None)


class TestSafety:
    @pytest.mark.guarantee("HTTP")
    def test_proxies_and_netrc_and_ca_bundles_of_the_environment_have_no_effect(
        self, server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login evil password evil\n")
        (tmp_path / ".netrc").chmod(0o600)
        with http_server() as proxy:
            for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            monkeypatch.setenv("HOME", str(tmp_path))
            monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
            assert one(server.url, auth={"type": "bearer", "token": CANARY})[0] is DELIVERED
            assert one(server.url)[0] is DELIVERED
            assert proxy.connections == 0
        first, second = server.received
        assert first.headers["authorization"] == f"Bearer {CANARY}"
        assert "authorization" not in second.headers

    @pytest.mark.guarantee("HTTP")
    def test_cookies_of_an_answer_are_not_sent_back(self, server: HttpServer) -> None:
        server.default = Reply(200, headers={"Set-Cookie": "session=1"})
        task = task_of()
        with sending(server.url, task) as sink:
            for number in range(2):
                sink.deliver(batch_of(task, inserts(number)))
        assert all("cookie" not in request.headers for request in server.received)

    @pytest.mark.guarantee("Secrets and row values")
    def test_no_secret_and_no_value_is_in_any_reason_text_or_log(
        self, server: HttpServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        schema = pa.schema([("id", pa.string())])
        auth = {"type": "bearer", "token": CANARY}
        texts: list[str] = []
        replies = [Reply(status, CANARY.encode()) for status in (200, 207, 302, 400, 401, 429, 500)]
        for reply in (*replies, Reply(reset="after"), Reply(raw=CANARY.encode()), Reply(delay=9)):
            server.script(reply)
            delivery = send(
                server.url, task_of(schema=schema), ("insert", {"id": "pii-31415"}), auth=auth, timeout={"read": 0.2}
            )
            texts.append(repr(delivery))
        delivery = send(f"http://127.0.0.1:{free_port()}", task_of(schema=schema), ("insert", {"id": "pii-31415"}))
        sink = HttpSink(settings_of(server.url, auth=auth))
        texts += [repr(delivery), repr(sink), repr(sink.__dict__), caplog.text]
        assert "pii-31415" in server.received[0].path
        assert not [text for text in texts if CANARY in text or "pii-31415" in text]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Self-signed certificates: for 127.0.0.1, for another host, and one that has expired."""
    home = tmp_path_factory.mktemp("tls")
    wanted = {"good": ("IP:127.0.0.1", "2"), "other": ("DNS:other.example", "2"), "expired": ("IP:127.0.0.1", "-1")}
    for name, (subject, days) in wanted.items():
        (home / f"{name}.ext").write_text(f"subjectAltName={subject}")
        for command in (
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=x -keyout {0}.key -out {0}.req",
            "x509 -req -in {0}.req -signkey {0}.key -days {1} -extfile {0}.ext -out {0}.pem",
        ):
            arguments = command.format(name, days).split()
            subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True)
    return {name: home / f"{name}.pem" for name in wanted}


@pytest.mark.guarantee("HTTP")
@pytest.mark.parametrize("end", ["closed", "reset", "silent", "no TLS"])
def test_a_connection_that_ends_or_hangs_in_its_handshake_is_surely_not_sent(end: str) -> None:
    done = threading.Event()

    def accept() -> None:
        connection = listener.accept()[0]
        if end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif end == "closed":
            connection.recv(2**16)
        elif end == "no TLS":
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        elif end == "silent":
            assert done.wait(30)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        transport = Transport(settings_of(url, timeout={"connect": 0.3}))
        request = Request("PUT", "contacts/1", {}, b"{}")
        for connects in (transport.connect, lambda: transport.exchange(request)):
            accepted = pool.submit(accept)
            found = connects()
            done.set()
            accepted.result(30)
            done.clear()
            assert found == Failure(RETRYABLE, "no connection in time" if end == "silent" else "no connection")
        transport.close()


@pytest.mark.guarantee("HTTP")
@pytest.mark.parametrize(
    ("shown", "trusted", "outcome"),
    [
        ("good", "good", DELIVERED),
        ("good", None, FATAL),
        ("good", "other", FATAL),
        ("other", "other", FATAL),
        ("expired", "expired", FATAL),
    ],
)
def test_only_a_verified_certificate_gets_any_row(
    shown: str, trusted: str | None, outcome: Outcome, certificates: dict[str, Path]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates[shown], certificates[shown].with_suffix(".key"))
    verify: Any = str(certificates[trusted]) if trusted else True
    with http_server(tls=context) as server:
        assert one(server.url, verify=verify)[0] is outcome
        assert len(server.received) == (outcome is DELIVERED)
        sink = HttpSink(settings_of(server.url, verify=verify))
        if outcome is DELIVERED:
            sink.check()
        else:
            with pytest.raises(DestinationError, match="certificate of the destination was not accepted"):
                sink.check()


def test_verification_may_be_off_for_this_machine_only(certificates: dict[str, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates["other"], certificates["other"].with_suffix(".key"))
    with http_server(tls=context) as server:
        assert one(server.url, verify=False)[0] is DELIVERED


@pytest.mark.guarantee("HTTP")
def test_no_value_but_false_itself_switches_verification_off(certificates: dict[str, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates["other"], certificates["other"].with_suffix(".key"))
    with http_server(tls=context) as server:
        for verify in ("", None, 0):
            transport = Transport(settings_of(server.url).model_copy(update={"verify": verify}))
            answer = transport.exchange(Request("PUT", "contacts/1", {}, b"{}"))
            transport.close()
            assert (answer.outcome if isinstance(answer, Failure) else answer) is FATAL
        assert not server.received
