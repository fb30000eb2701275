"""The MySQL sink on a real MariaDB server: what a lost connection, a lock, a lost fence and a killed server leave behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.sql.database import CLAIMS
from dbt_reverse_etl.sinks.sql.mysql.session import LOST, connect, run
from dbt_reverse_etl.sinks.sql.mysql.settings import MysqlSettings
from dbt_reverse_etl.sinks.sql.mysql.sink import MysqlSink
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.servers.mysql import Database, error_answer
from tests.support.servers.proxy import Proxy
from tests.support.sinks.people import a_task, people

DELIVERED, FATAL, REJECTED = Outcome.DELIVERED, Outcome.FATAL, Outcome.REJECTED
RETRYABLE, UNKNOWN = Outcome.RETRYABLE, Outcome.UNKNOWN


def count(db: Database, table: str = "people") -> int:
    rows: int = db.rows(f"SELECT count(*) FROM {table}")[0][0]
    return rows


def said(delivery: Delivery) -> set[tuple[Outcome, str]]:
    return {(result.outcome, result.reason) for result in delivery.results}


@pytest.mark.guarantee("MySQL and MariaDB", "The role needs no more than the documented grants")
def test_the_sink_can_do_its_work_and_nothing_else_with_the_documented_rights(mysql_db: Database) -> None:
    with opened(mysql_db.sink(), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
        for forbidden in (
            "TRUNCATE people",
            "DROP TABLE people",
            "CREATE TABLE x (y int)",
            "ALTER TABLE people ADD x int",
            "CREATE INDEX x ON people (score)",
        ):
            with pytest.raises(pymysql.err.OperationalError, match="denied"):
                run(sink._connected(), forbidden)


STEPS = [
    "CREATE TEMPORARY",
    "INSERT INTO `crm",
    "START TRANSACTION",
    "SELECT fence",
    "DELETE `",
    "ON DUPLICATE",
    CLAIMS,
]


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_connection_cut_at_any_step_before_the_commit_is_retryable_and_nothing_is_applied(
    step: str, after: bool, mysql_db: Database, mysql_proxy: Proxy
) -> None:
    changes = [*people(person(1)), ("delete", {"id": 2})]
    with opened(mysql_db.behind(mysql_proxy.port), a_task()) as sink:
        mysql_proxy.cut_at(step, after=after)
        assert deliver(sink, a_task(), changes) == [RETRYABLE] * 2
        assert mysql_proxy.cuts == 1
        assert count(mysql_db) == count(mysql_db, CLAIMS) == 0
        assert deliver(sink, a_task(), changes) == [DELIVERED] * 2
    assert (count(mysql_db), count(mysql_db, CLAIMS)) == (1, 1)


SURE, OPEN = [(1213, "40001"), (1290, "HY000")], [(1053, "08S01"), (1317, "70100"), (1180, "HY000")]


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize(("number", "state"), OPEN)
def test_an_error_at_the_commit_that_leaves_its_end_open_is_settled_by_the_record(
    number: int, state: str, mysql_db: Database, mysql_proxy: Proxy
) -> None:
    with opened(mysql_db.behind(mysql_proxy.port), a_task()) as sink:
        mysql_proxy.answer_at(mysql_db.COMMIT, error_answer(number, state))
        assert sink.deliver(batch_of(a_task(), people(person(1)))) == Delivery()
        assert mysql_proxy.cuts == 1


@pytest.mark.parametrize(("number", "state"), SURE)
def test_an_error_at_the_commit_that_says_that_it_was_rolled_back_is_retryable(
    number: int, state: str, mysql_db: Database, mysql_proxy: Proxy
) -> None:
    with opened(mysql_db.behind(mysql_proxy.port), a_task()) as sink:
        mysql_proxy.answer_at(mysql_db.COMMIT, error_answer(number, state))
        assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_killed_session_is_retryable_and_the_next_batch_reconnects(mysql_db: Database) -> None:
    with opened(mysql_db.sink(), a_task()) as sink:
        mysql_db.run(f"KILL {sink._connected().thread_id()}")
        assert said(sink.deliver(batch_of(a_task(), people(person(1))))) == {(RETRYABLE, LOST)}
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_lock_of_another_session_is_retryable(mysql_db: Database) -> None:
    with opened(mysql_db.sink(lock_timeout=1), a_task()) as sink:
        deliver(sink, a_task(), people(person(1)))
        with closing(mysql_db.owner()) as other:
            run(other, "START TRANSACTION")
            run(other, "UPDATE people SET score = 0")
            delivery = sink.deliver(batch_of(a_task(), [("update", person(1, "late"))]))
    assert said(delivery) == {(RETRYABLE, "lock wait timeout (1205)")}


def test_a_schema_lock_of_another_session_is_retryable(mysql_db: Database) -> None:
    with opened(mysql_db.sink(lock_timeout=1), a_task()) as sink, closing(mysql_db.owner()) as other:
        run(other, "LOCK TABLES people WRITE")
        delivery = sink.deliver(batch_of(a_task(), people(person(1))))
    assert said(delivery) == {(RETRYABLE, "lock wait timeout (1205)")}


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize(("others", "outcome"), [(0, DELIVERED), (300, RETRYABLE)])
def test_in_a_deadlock_the_batch_is_retryable_if_the_server_chose_it_and_never_hangs(
    others: int, outcome: Outcome, mysql_db: Database
) -> None:
    """The server rolls back whoever has changed less."""
    changes = [("update", person(1, "x")), ("update", person(2, "x"))]
    with opened(mysql_db.sink(), a_task()) as sink, closing(mysql_db.owner()) as other, ThreadPoolExecutor(2) as pool:
        deliver(sink, a_task(), people(person(1), person(2)))
        run(other, "START TRANSACTION")
        run(other, "UPDATE people SET score = 0 WHERE id = 2")
        for number in range(others):
            run(other, f"INSERT INTO people VALUES ({100 + number}, 'x', 1)")
        ours = pool.submit(deliver, sink, a_task(), changes)
        mysql_db.wait_for_waiters()
        theirs = pool.submit(quietly, other, "UPDATE people SET score = 0 WHERE id = 1")
        theirs.result(20)
        quietly(other, "ROLLBACK")
        assert ours.result(20) == [outcome] * 2
        assert deliver(sink, a_task(), changes) == [DELIVERED] * 2


def quietly(connection: pymysql.connections.Connection[Any], statement: str) -> None:
    try:
        run(connection, statement)
    except pymysql.Error:
        run(connection, "ROLLBACK")


@contextmanager
def read_only(db: Database) -> Iterator[None]:
    db.run("SET GLOBAL read_only = 1")
    try:
        yield
    finally:
        db.run("SET GLOBAL read_only = 0")


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_server_that_became_read_only_is_retryable_until_it_takes_writes_again(mysql_db: Database) -> None:
    with opened(mysql_db.sink(), a_task()) as sink:
        with read_only(mysql_db):
            delivery = sink.deliver(batch_of(a_task(), people(person(1))))
            with pytest.raises(DestinationError, match="takes no writes"):
                mysql_db.sink().check()
        assert said(delivery) == {(RETRYABLE, "option prevents statement (1290)")}
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_a_server_that_is_killed_in_the_middle_of_a_batch_or_after_it_keeps_all_of_it_or_nothing(
    mysql_db: Database, mysql_proxy: Proxy
) -> None:
    with mysql_db.server.always_started(), opened(mysql_db.behind(mysql_proxy.port), a_task()) as sink:
        for step in ("ON DUPLICATE", CLAIMS):
            mysql_proxy.cut_and_stall_at(step, mysql_db.server.kill)
            assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE]
            assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE], "nobody listens"
            mysql_db.server.start()
            assert count(mysql_db) == count(mysql_db, CLAIMS) == 0
        mysql_proxy.cut_and_stall_at(mysql_db.COMMIT, mysql_db.server.kill)
        assert deliver(sink, a_task(), people(person(1))) == [UNKNOWN]
        mysql_db.server.start()
        assert deliver(sink, a_task(), people(person(2))) == [DELIVERED]
        mysql_db.server.kill()
    with opened(mysql_db.sink(), next_run(a_task())) as sink:
        assert sink.settle(["claim-1"]) == {"claim-1": True}
    assert mysql_db.rows("SELECT id FROM people") == [(2,)]


@pytest.mark.guarantee("MySQL and MariaDB")
def test_nothing_of_the_environment_and_of_option_files_changes_where_and_how_we_connect(
    mysql_db: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".my.cnf").write_text("[client]\nhost=203.0.113.1\nuser=root\npassword=wrong\nssl-ca=/none\n")
    elsewhere = {"HOME": str(tmp_path), "MYSQL_HOME": str(tmp_path), "MYSQL_HOST": "203.0.113.1", "MYSQL_PWD": "wrong"}
    elsewhere |= {"MYSQL_TCP_PORT": "1", "MYSQL_UNIX_PORT": "/none", "USER": "root", "LOGNAME": "root"}
    for name, value in elsewhere.items():
        monkeypatch.setenv(name, value)
    with opened(mysql_db.sink(), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1, "zwölf 😀"))) == [DELIVERED]
        assert run(sink._connected(), "SELECT CURRENT_USER()").fetchone() == ("crm_push@%",)
    assert mysql_db.rows("SELECT name FROM people") == [("zwölf 😀",)]
    with pytest.raises(pymysql.err.OperationalError):
        connect(MysqlSettings.model_validate(mysql_db.settings(password=None)))


DEFAULTS = {
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
    "time_zone": "'-07:00'",
    "autocommit": "0",
    "completion_type": "2",
    "sql_safe_updates": "1",
    "foreign_key_checks": "0",
    "transaction_isolation": "'SERIALIZABLE'",
}


@pytest.mark.guarantee("MySQL and MariaDB")
def test_no_default_of_the_server_changes_what_a_batch_does(mysql_db: Database) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("boss", pa.int64())]
    )
    mysql_db.table(
        "CREATE TABLE staff (id int PRIMARY KEY, name text, at timestamp(6) NULL, boss int, "
        "FOREIGN KEY (boss) REFERENCES staff (id)) CHARACTER SET utf8mb4",
        "staff",
    )
    task, noon = a_task(schema, object="staff"), datetime(2024, 7, 1, 12, tzinfo=timezone.utc)
    row = {"id": 0, "name": 'it\'s \\ "x"', "at": noon, "boss": None}
    known = {"transaction_isolation": "tx_isolation"}  # until MariaDB 11
    before = {name: mysql_db.rows(f"SELECT @@GLOBAL.{known.get(name, name)}")[0][0] for name in DEFAULTS}
    try:
        for name, value in DEFAULTS.items():
            mysql_db.run(f"SET GLOBAL {known.get(name, name)} = {value}")
        with opened(mysql_db.sink(), task) as sink:
            for number in range(2):
                assert deliver(sink, task, people(row | {"id": number})) == [DELIVERED]
            assert deliver(sink, task, people(row | {"id": 2, "boss": 99})) == [REJECTED]
            assert deliver(sink, task, [("delete", {"id": 0})]) == [DELIVERED]
    finally:
        for name, value in before.items():
            mysql_db.run(f"SET GLOBAL {known.get(name, name)} = {value!r}")
    instant = "UNIX_TIMESTAMP(at)"
    assert mysql_db.rows(f"SELECT id, name, {instant} FROM staff") == [(1, row["name"], noon.timestamp())]


REMOTE = {"host": "db.example.com", "database": "crm", "user": "u"}


@pytest.mark.guarantee("MySQL and MariaDB")
def test_away_from_this_machine_the_server_is_verified_by_default() -> None:
    assert MysqlSettings.model_validate(REMOTE).tls == "verify_identity"
    assert MysqlSettings.model_validate(REMOTE | {"ssl_mode": "verify_ca", "ssl_ca": "/ca"}).tls == "verify_ca"
    for local in ("127.0.0.1", "::1", "localhost"):
        assert MysqlSettings.model_validate(REMOTE | {"host": local}).tls == "preferred"


@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize(
    "wrong",
    [
        {"ssl_mode": "disabled"},
        {"ssl_mode": "preferred"},
        {"ssl_mode": "required"},
        {"ssl_mode": "verify_ca"},
        {"ssl_cert": "/a"},
        {"host": "localhost", "ssl_ca": "/a"},
        {"host": "/run/mysqld/mysqld.sock", "ssl_ca": "/a"},
        {"on_new_column": "add"},
        {"database": "a\0b"},
        {"local_infile": True},
    ],
    ids=str,
)
def test_settings_that_are_unsafe_or_contradict_each_other_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MysqlSettings.model_validate(REMOTE | wrong)


def test_the_identity_names_host_port_and_database() -> None:
    for host, shown in (("DB.example.com", "db.example.com:3306/crm"), ("::1", "[::1]:3306/crm")):
        assert MysqlSink(MysqlSettings.model_validate(REMOTE | {"host": host})).identity == shown


def test_check_says_what_is_wrong_with_the_login(mysql_db: Database) -> None:
    for wrong, words in (
        ({"password": "x"}, "password"),
        ({"user": "nobody"}, "password or the user"),
        ({"database": "no"}, "no such database|may not use the database"),
        ({"host": "127.0.0.1", "port": 1}, "reached"),
    ):
        with pytest.raises(DestinationError, match=words):
            mysql_db.sink(**wrong).check()


def test_the_password_and_row_values_are_in_no_log_and_no_error(
    mysql_db: Database, mysql_proxy: Proxy, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    caplog.set_level(logging.DEBUG)
    mysql_db.run("ALTER TABLE people ADD UNIQUE (name(100))")
    sink, texts = mysql_db.behind(mysql_proxy.port), list[str]()
    with opened(sink, a_task()):
        rows = people(person(1, "canary-row"), person(2, "canary-row"))
        texts += [r.reason for r in sink.deliver(batch_of(a_task(), rows)).results]
        mysql_proxy.cut_at("canary-row", after=False)
        mysql_proxy.down = True
        texts += [r.reason for r in sink.deliver(batch_of(a_task(), people(person(1, "canary-row")))).results]
    with pytest.raises(DestinationError) as caught:
        sink.check()
    texts += [str(caught.value), repr(caught.value), repr(sink), sink.identity, repr(caught.value.__cause__)]
    texts += [caplog.text, *(str(warning.message) for warning in recwarn)]
    assert len(texts) >= 8
    assert not [text for text in texts if "canary" in text]
