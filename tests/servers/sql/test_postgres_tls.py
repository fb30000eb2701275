"""What the Postgres sink makes of TLS: who is let in, and what a connection that breaks off means."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import certifi
import pytest
import trustme

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.sql.dialects.postgres.session import connect_failure
from dbt_reverse_etl.sinks.sql.dialects.postgres.sink import PostgresSink
from dbt_reverse_etl.testing import deliver, opened, person
from tests.support.outcomes import DELIVERED, FATAL, RETRYABLE
from tests.support.servers.impostor import Impostor, ca_file
from tests.support.servers.postgres import NOBODY, PASSWORD, Database, new_database
from tests.support.servers.postgres_tls import BREAKS, SSL_REQUEST, TlsFront, tls_before
from tests.support.servers.proxy import proxy_before
from tests.support.sinks.people import a_task, people


@pytest.fixture
def db() -> Database:
    return new_database()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def context_of(authority: trustme.CA, host: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    return context


@pytest.fixture
def front(people_db: Database, authority: trustme.CA) -> Iterator[TlsFront]:
    with tls_before(people_db.socket, context_of(authority)) as front:
        yield front


@pytest.fixture
def verified(people_db: Database, front: TlsFront, authority: trustme.CA, tmp_path: Path) -> PostgresSink:
    """A sink that verifies the server."""
    return people_db.sink(
        host="127.0.0.1", port=front.port, sslmode="verify-full", sslrootcert=ca_file(authority, tmp_path)
    )


def test_a_verified_server_gets_the_rows(people_db: Database, verified: PostgresSink) -> None:
    with opened(verified, a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
        assert sink._connected().pgconn.ssl_in_use
    assert people_db.rows("SELECT id FROM people") == [(1,)]


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("of", ["certifi", "SSL_CERT_FILE"])
def test_without_a_ca_in_the_settings_a_server_of_a_public_authority_is_verified(
    of: str, people_db: Database, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = ca_file(authority, tmp_path)
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    if of == "certifi":
        monkeypatch.setattr(certifi, "where", lambda: public)
    else:
        monkeypatch.setenv(of, public)
    with tls_before(people_db.socket, context_of(authority)) as front:
        verified = people_db.sink(host="127.0.0.1", port=front.port, sslmode="verify-full")
        with opened(verified, a_task()) as sink:
            assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


@pytest.mark.parametrize(
    ("step", "how"),
    [*(("COPY", how) for how in BREAKS), *((step, "silent") for step in ("BEGIN", "INSERT INTO", "COMMIT\0"))],
)
def test_a_tls_connection_that_breaks_off_in_a_batch_is_retryable(
    step: str, how: str, verified: PostgresSink, front: TlsFront
) -> None:
    with opened(verified, a_task()) as sink:
        front.break_at(step, how)
        assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE]
        assert front.breaks == 1
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


@pytest.mark.parametrize("how", BREAKS)
def test_a_handshake_that_breaks_off_is_retryable(how: str, verified: PostgresSink, front: TlsFront) -> None:
    with opened(verified, a_task()) as sink:
        sink._drop_connection()
        front.break_at("handshake", how)
        assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE]
        assert front.breaks == 1
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("wrong", ["another host", "another authority", "public authorities", "no file"])
def test_a_server_that_cannot_be_verified_gets_no_login_and_no_rows(
    wrong: str, people_db: Database, authority: trustme.CA, tmp_path: Path
) -> None:
    root = {
        "another host": ca_file(authority, tmp_path),
        "another authority": ca_file(trustme.CA(), tmp_path, "other.pem"),
        "no file": str(tmp_path / "none.pem"),
    }.get(wrong)
    host = "db.example.com" if wrong == "another host" else "127.0.0.1"
    with tls_before(people_db.socket, context_of(authority, host)) as front:
        sink = people_db.sink(host="127.0.0.1", port=front.port, sslmode="verify-full", sslrootcert=root)
        with pytest.raises(DestinationError, match=r"certificate could not be verified \(sslrootcert"):
            sink.open(a_task())


AT = 'connection failed: connection to server at "certificate SSL.example" (1.2.3.4), port 5432 failed: '
TEXTS = [
    (AT + "Connection refused", RETRYABLE),
    (AT + "FATAL:  sorry, too many clients already", RETRYABLE),
    (AT + "FATAL:  the database system is starting up", RETRYABLE),
    (AT + "SSL SYSCALL error: EOF detected", RETRYABLE),
    (AT + "SSL SYSCALL error: Connection reset by peer", RETRYABLE),
    (AT + "SSL error: unexpected eof while reading", RETRYABLE),
    (AT + "SSL connection has been closed unexpectedly", RETRYABLE),
    (AT + "SSL error: certificate verify failed", FATAL),
    (AT + "SSL error: tlsv1 alert unknown ca", FATAL),
    (AT + "SSL error: unsupported protocol", FATAL),
    (AT + "server does not support SSL, but SSL was required", FATAL),
    (AT + 'FATAL:  role "x" does not exist', FATAL),
    (AT + 'FATAL:  role "SSL" is not permitted to log in', FATAL),
    (AT + 'FATAL:  database "role" does not exist', FATAL),
    (AT + 'FATAL:  database "role" is not accepting commands', RETRYABLE),
    (AT + 'FATAL:  too many connections for role "authentication failed"', RETRYABLE),
    ("failed to resolve host 'no-certificate.example': [Errno -2] Name or service not known", RETRYABLE),
]


@pytest.mark.parametrize(("text", "outcome"), TEXTS, ids=lambda value: str(value)[len(AT) :][:40])
def test_what_a_failed_connection_means_is_read_from_the_words_and_never_from_the_names(
    text: str, outcome: Outcome
) -> None:
    assert connect_failure(text)[0] is outcome


def test_a_user_that_does_not_exist_stops_the_sync(people_db: Database) -> None:
    with pytest.raises(DestinationError, match="no such user"):
        people_db.sink(user=NOBODY).check()


UNVERIFIED = "0.0.0.0"  # a name of this machine that the settings do not take for one


class TlsImpostor(Impostor):
    """A TLS server that asks for a login in a way of its own, and keeps what it gets."""

    def __init__(self, authority: trustme.CA, asks: bytes) -> None:
        self._context, self._asks = context_of(authority), asks
        super().__init__()

    def talk(self, client: socket.socket) -> None:
        assert client.recv(8, socket.MSG_WAITALL) == SSL_REQUEST
        client.sendall(b"S")
        with self._context.wrap_socket(client, server_side=True) as wrapped:
            wrapped.recv(4096)  # the name of the user
            wrapped.sendall(b"R" + struct.pack(">i", len(self._asks) + 4) + self._asks)
            self.got = wrapped.recv(4096)


LOGINS = {"in clear": struct.pack(">i", 3), "md5": struct.pack(">i", 5) + b"salt", "none": struct.pack(">i", 0)}


@pytest.mark.parametrize("asks", LOGINS.values(), ids=LOGINS)
def test_a_server_that_nobody_has_verified_gets_no_password_and_is_not_believed_without_one(
    asks: bytes, people_db: Database, authority: trustme.CA
) -> None:
    login = pytest.raises(DestinationError, match="another login than SCRAM")
    with closing(TlsImpostor(authority, asks)) as server, login:
        people_db.sink(host=UNVERIFIED, port=server.port, sslmode="require").check()
    assert server.got in (b"", b"X\0\0\0\4"), "nothing but that the client goes away"


def test_a_server_that_knows_the_password_is_enough_where_the_settings_ask_for_no_more(
    people_db: Database, front: TlsFront
) -> None:
    with opened(people_db.sink(host=UNVERIFIED, port=front.port, sslmode="require"), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


def test_a_verified_server_may_ask_for_a_password_in_clear(
    people_db: Database, authority: trustme.CA, tmp_path: Path
) -> None:
    root = ca_file(authority, tmp_path)
    with closing(TlsImpostor(authority, LOGINS["in clear"])) as server:
        sink = people_db.sink(host="127.0.0.1", port=server.port, sslmode="verify-full", sslrootcert=root)
        with pytest.raises(DestinationError, match="reached"):
            sink.check()
    assert PASSWORD.encode() in server.got


def test_with_a_ca_require_verifies_and_a_missing_file_is_an_error(
    people_db: Database, front: TlsFront, tmp_path: Path
) -> None:
    for root in (ca_file(trustme.CA(), tmp_path), str(tmp_path / "none.pem")):
        sink = people_db.sink(host=UNVERIFIED, port=front.port, sslmode="require", sslrootcert=root)
        with pytest.raises(DestinationError, match="certificate could not be verified"):
            sink.check()


@pytest.mark.guarantee("Postgres")
def test_a_server_without_tls_gets_nothing_where_tls_is_wanted(people_db: Database) -> None:
    with proxy_before(people_db.socket_file) as proxy, pytest.raises(DestinationError, match="no TLS"):
        people_db.behind(proxy.port, sslmode="require").check()
