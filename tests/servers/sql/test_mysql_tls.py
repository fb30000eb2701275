"""Whom the MySQL sink lets in: TLS with a real MariaDB server, and servers that are none."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.sql.dialects.mysql.session import run
from dbt_reverse_etl.sinks.sql.dialects.mysql.sink import MysqlSink
from dbt_reverse_etl.testing import deliver, opened, person
from tests.support.outcomes import DELIVERED
from tests.support.servers.impostor import Impostor, ca_file
from tests.support.servers.loopback import port_of
from tests.support.servers.mysql import PASSWORD, Database
from tests.support.sinks.people import a_task, people

VERIFIED = "verify_identity"


def over_tls(db: Database, ssl_ca: str | None, host: str = "127.0.0.1", mode: str = VERIFIED) -> MysqlSink:
    return db.sink(host=host, port=db.server.port, ssl_mode=mode, ssl_ca=ssl_ca)


def cipher(sink: MysqlSink) -> str:
    row = run(sink._connected(), "SHOW SESSION STATUS LIKE 'Ssl_cipher'").fetchone()
    return str(row[1]) if row else ""


@pytest.mark.parametrize("mode", [VERIFIED, "verify_ca"])
def test_a_verified_server_gets_the_rows(mode: str, mysql_db: Database, tmp_path: Path) -> None:
    ca = ca_file(mysql_db.server.authority, tmp_path)
    with opened(over_tls(mysql_db, ca, mode=mode), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
        assert cipher(sink)
    assert mysql_db.rows("SELECT id FROM people") == [(1,)]


def test_on_this_machine_tls_is_used_where_the_server_offers_it(mysql_db: Database) -> None:
    for mode, encrypted in ((None, True), ("required", True), ("disabled", False)):
        with opened(mysql_db.sink(host="127.0.0.1", port=mysql_db.server.port, ssl_mode=mode), a_task()) as sink:
            assert bool(cipher(sink)) is encrypted


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize("wrong", ["another authority", "the public authorities"])
@pytest.mark.parametrize("mode", [VERIFIED, "verify_ca"])
def test_a_server_of_another_authority_gets_no_login_and_no_rows(
    wrong: str, mode: str, mysql_db: Database, tmp_path: Path
) -> None:
    ca = ca_file(trustme.CA(), tmp_path) if wrong == "another authority" or mode == "verify_ca" else None
    with pytest.raises(DestinationError, match="certificate could not be verified"):
        over_tls(mysql_db, ca, mode=mode).check()


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_certificate_of_another_host_is_refused(mysql_db: Database, tmp_path: Path) -> None:
    ca = ca_file(mysql_db.server.authority, tmp_path)
    other = "127.0.0.2"  # the server's address, but not a name of its certificate
    with port_of(mysql_db.server.socket, other) as port:
        sink = mysql_db.sink(host=other, port=port, ssl_mode=VERIFIED, ssl_ca=ca)
        with pytest.raises(DestinationError, match="certificate could not be verified"):
            sink.check()


def test_a_ca_file_that_is_not_there_is_an_error(mysql_db: Database, tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match="ssl_ca, ssl_cert or ssl_key cannot be read"):
        over_tls(mysql_db, str(tmp_path / "none.pem")).check()


class Reader(Impostor):
    """Speaks as a MySQL server without TLS, takes every login, and asks for a file instead of an answer."""

    FILE = b"\xfb/etc/passwd"
    OK = b"\0\0\0\2\0\0\0"

    def talk(self, client: socket.socket) -> None:
        client.sendall(_packet(0, _greeting()))
        self._hear(client)
        client.sendall(_packet(2, self.OK))
        while self._hear(client):
            client.sendall(_packet(1, self.FILE))

    def _hear(self, client: socket.socket) -> bytes:
        data = client.recv(65536)
        self.got += data
        return data


def _packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body))[:3] + bytes([number]) + body


def _greeting() -> bytes:
    capabilities = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x80000  # all but SSL
    low, high = capabilities & 0xFFFF, capabilities >> 16
    fixed = struct.pack("<HBHHB", low, 45, 2, high, 21)
    return b"\x0a8.0.0\0" + bytes(4) + b"salt8888\0" + fixed + bytes(10) + b"saltsaltsalt\0mysql_native_password\0"


@pytest.fixture
def impostor() -> Iterator[Reader]:
    with closing(Reader()) as server:
        yield server


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize("mode", ["required", "verify_identity"])
def test_a_server_without_tls_gets_nothing_where_tls_is_wanted(
    mode: str, impostor: Impostor, mysql_db: Database
) -> None:
    with pytest.raises(DestinationError, match="no TLS"):
        mysql_db.sink(host="127.0.0.1", port=impostor.port, ssl_mode=mode).check()
    impostor.close()
    assert impostor.got == b""


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_server_that_asks_for_a_file_of_this_machine_gets_none(impostor: Impostor, mysql_db: Database) -> None:
    with pytest.raises(DestinationError, match="no MySQL server"):
        mysql_db.sink(host="127.0.0.1", port=impostor.port, ssl_mode="disabled").check()
    impostor.close()
    assert b"SET NAMES" in impostor.got
    assert b"root:" not in impostor.got
    assert PASSWORD.encode() not in impostor.got


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\1\0\0\0\x0a", b""])
def test_what_is_no_mysql_server_is_an_error_that_a_user_can_read(greeting: bytes, mysql_db: Database) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer() -> None:
            with listener.accept()[0] as client:
                client.sendall(greeting)

        threading.Thread(target=answer, daemon=True).start()
        sink = mysql_db.sink(host="127.0.0.1", port=listener.getsockname()[1], connect_timeout=2)
        with pytest.raises(DestinationError, match=r"no MySQL server|was lost|reached"):
            sink.check()
