"""The Postgres sink on a real server: what a lost connection, a lock, a lost fence and a failover leave behind."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.sql.database import CLAIMS
from dbt_reverse_etl.sinks.sql.postgres.session import connect
from dbt_reverse_etl.sinks.sql.postgres.settings import PostgresSettings
from dbt_reverse_etl.testing import batch_of, deliver, opened, person
from tests.support.servers.postgres import PASSWORD, Database
from tests.support.servers.proxy import Proxy
from tests.support.sinks.people import a_task, people

DELIVERED, FATAL, RETRYABLE, UNKNOWN = Outcome.DELIVERED, Outcome.FATAL, Outcome.RETRYABLE, Outcome.UNKNOWN


def count(people_db: Database, table: str = "people") -> int:
    rows: int = people_db.rows(f"SELECT count(*) FROM {table}")[0][0]
    return rows


@pytest.mark.guarantee("Postgres", "The role needs no more than the documented grants")
def test_the_sink_can_do_its_work_and_nothing_else_with_the_documented_rights(people_db: Database) -> None:
    with opened(people_db.sink(), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
        for forbidden in (
            "TRUNCATE people",
            "DROP TABLE people",
            "CREATE TABLE x (y int)",
            "ALTER TABLE people ADD x int",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                sink._connected().execute(forbidden.encode())


STEPS = ["BEGIN", "SELECT fence", "CREATE TEMPORARY", "COPY", "SAVEPOINT", "INSERT INTO", "SET CONSTRAINTS", CLAIMS]


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_connection_cut_at_any_step_before_the_commit_is_retryable_and_nothing_is_applied(
    step: str, after: bool, people_db: Database, proxy: Proxy
) -> None:
    with opened(people_db.behind(proxy.port), a_task()) as sink:
        proxy.cut_at(step, after=after)
        assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE]
        assert proxy.cuts == 1
        assert count(people_db) == count(people_db, CLAIMS) == 0
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
    assert (count(people_db), count(people_db, CLAIMS)) == (1, 1)


@pytest.mark.guarantee("Postgres")
def test_a_terminated_backend_is_retryable_and_the_next_batch_reconnects(people_db: Database) -> None:
    with opened(people_db.sink(), a_task()) as sink:
        pid = sink._connected().info.backend_pid
        people_db.rows(f"SELECT pg_terminate_backend({pid}, 5000)")
        assert deliver(sink, a_task(), people(person(1))) == [RETRYABLE]
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]


@pytest.mark.guarantee("Postgres")
def test_a_lock_of_another_session_is_retryable(people_db: Database) -> None:
    with opened(people_db.sink(lock_timeout=0.05), a_task()) as sink:
        deliver(sink, a_task(), people(person(1)))
        with people_db.owner() as other, other.transaction():
            other.execute("UPDATE people SET score = 0")
            delivery = sink.deliver(batch_of(a_task(), [("update", person(1, "late"))]))
        assert {(r.outcome, r.reason) for r in delivery.results} == {(RETRYABLE, "lock not available (55P03)")}


@pytest.mark.guarantee("Postgres")
def test_in_a_deadlock_with_another_session_the_batch_is_retryable_or_delivered_and_never_hangs(
    people_db: Database,
) -> None:
    with opened(people_db.sink(lock_timeout=4), a_task()) as sink, people_db.owner() as other:
        deliver(sink, a_task(), people(person(1), person(2)))
        other.execute("SET deadlock_timeout = '1h'")
        other.execute("BEGIN")
        other.execute("UPDATE people SET score = 0 WHERE id = 2")
        answers: list[Outcome] = []
        changes = [("update", person(1, "x")), ("update", person(2, "x"))]
        ours = threading.Thread(target=lambda: answers.extend(deliver(sink, a_task(), changes)))
        ours.start()
        people_db.wait_for_waiters(1)  # the other one closes the circle before a second is over, when ours looks for it
        other_waits = threading.Thread(target=lambda: other.execute("UPDATE people SET score = 0 WHERE id = 1"))
        other_waits.start()
        ours.join()
        other_waits.join()
        other.execute("ROLLBACK")
        assert answers in ([RETRYABLE] * 2, [DELIVERED] * 2)
        assert deliver(sink, a_task(), changes) == [DELIVERED] * 2


@pytest.mark.guarantee("Postgres")
def test_a_database_that_became_read_only_is_retryable_until_it_takes_writes_again(people_db: Database) -> None:
    with opened(people_db.sink(), a_task()) as sink:
        for read_only, outcome in (("on", RETRYABLE), ("off", DELIVERED)):
            with people_db.owner(options="-c default_transaction_read_only=off") as owner:
                owner.execute(
                    f"ALTER DATABASE {people_db.name} SET default_transaction_read_only = {read_only}".encode()
                )
            sink._drop_connection()
            delivery = sink.deliver(batch_of(a_task(), people(person(1))))
            assert [(r.outcome, r.reason) for r in delivery.results] == (
                [(outcome, "read only sql transaction (25006)")] if outcome is RETRYABLE else []
            )


ENVIRONMENT = {
    "PGHOST": "203.0.113.1",
    "PGHOSTADDR": "203.0.113.1",
    "PGPORT": "1",
    "PGDATABASE": "elsewhere",
    "PGUSER": "postgres",
    "PGPASSWORD": "wrong",
    "PGSSLMODE": "verify-full",
    "PGREQUIREAUTH": "none",
    "PGOPTIONS": "-c no.such=1 -c junk",
    "PGTARGETSESSIONATTRS": "standby",
    "PGCONNECT_TIMEOUT": "x",
    "PGREQUIREPEER": "nobody",
    "PGCHANNELBINDING": "require",
    "PGMINPROTOCOLVERSION": "3.2",
    "PGSERVICE": "elsewhere",
    "PGCLIENTENCODING": "LATIN1",
    "PGDATESTYLE": "German",
    "PGTZ": "Asia/Tokyo",
}


@pytest.mark.guarantee("Postgres")
def test_nothing_of_the_environment_changes_where_and_how_we_connect(
    people_db: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    service = tmp_path / "services"
    service.write_text("[elsewhere]\nhost=203.0.113.1\ndbname=elsewhere\nuser=postgres\npassword=wrong\n")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    with opened(people_db.sink(), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1, "zwölf"))) == [DELIVERED]
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)
    assert people_db.rows("SELECT name FROM people") == [("zwölf",)]


@pytest.mark.guarantee("Postgres")
def test_no_password_file_gives_a_password(
    people_db: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passfile = tmp_path / ".pgpass"
    passfile.write_text(f"*:*:*:*:{PASSWORD}\n")
    passfile.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.raises(psycopg.OperationalError):
        connect(PostgresSettings.model_validate(people_db.settings(password=None)))
    assert os.environ["PGPASSWORD"] == PASSWORD


REMOTE = {"host": "db.example.com", "database": "crm", "user": "u"}


@pytest.mark.guarantee("Postgres")
def test_away_from_this_machine_the_server_is_verified_by_default() -> None:
    remote = PostgresSettings.model_validate(REMOTE).parameters()
    assert (remote["sslmode"], remote["sslrootcert"]) == ("verify-full", "system")
    assert PostgresSettings.model_validate(REMOTE | {"sslmode": "require"}).parameters()["sslmode"] == "require"
    for local in ("127.0.0.1", "::1", "localhost", "/run/postgresql"):
        assert PostgresSettings.model_validate(REMOTE | {"host": local}).parameters()["sslmode"] == "prefer"


@pytest.mark.parametrize(
    "wrong",
    [
        {"sslmode": "disable"},
        {"sslmode": "allow"},
        {"sslmode": "prefer"},
        {"sslmode": "verify-ca"},
        {"sslcert": "/a"},
        {"host": "localhost,db.example.com"},
        {"host": "@abstract"},
        {"on_new_column": "add"},
        {"database": "a\0b"},
    ],
)
def test_settings_that_are_unsafe_or_contradict_each_other_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PostgresSettings.model_validate(REMOTE | wrong)


@pytest.mark.guarantee("Postgres")
def test_a_server_without_tls_gets_nothing_where_tls_is_wanted(people_db: Database, proxy: Proxy) -> None:
    sink = people_db.behind(proxy.port, sslmode="require")
    with pytest.raises(DestinationError, match="no TLS"):
        sink.check()


def test_check_says_what_is_wrong_with_the_login(people_db: Database) -> None:
    for wrong, said in (
        ({"password": "x"}, "password"),
        ({"database": "no"}, "no such database"),
        ({"port": 1}, "reached"),
    ):
        with pytest.raises(DestinationError, match=said):
            people_db.sink(**wrong).check()


@pytest.mark.guarantee("Secrets and row values")
def test_the_password_and_row_values_are_in_no_log_and_no_error(
    people_db: Database, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    people_db.run("ALTER TABLE people ADD CHECK (name <> 'canary-row')")
    sink, said = people_db.behind(proxy.port), list[str]()
    with opened(sink, a_task()):
        said += [r.reason for r in sink.deliver(batch_of(a_task(), people(person(1, "canary-row")))).results]
        proxy.cut_at("COPY", after=False)
        proxy.down = True
        said += [r.reason for r in sink.deliver(batch_of(a_task(), people(person(1, "canary-row")))).results]
    with pytest.raises(DestinationError) as caught:
        sink.check()
    said += [
        str(caught.value),
        repr(caught.value),
        repr(sink),
        sink.identity,
        repr(caught.value.__cause__),
        caplog.text,
    ]
    assert len(said) == 8
    assert not [text for text in said if "canary" in text]
