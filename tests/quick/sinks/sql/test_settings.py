"""What profiles.yml may say to the sinks of databases, and what is refused before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Settings
from dbt_reverse_etl.sinks.sql.dialects.duckdb import DuckdbSink
from dbt_reverse_etl.sinks.sql.dialects.mysql.sink import MysqlSink
from dbt_reverse_etl.sinks.sql.dialects.postgres.session import parameters
from dbt_reverse_etl.sinks.sql.dialects.sqlalchemy import SqlalchemySink
from dbt_reverse_etl.sinks.sql.settings import (
    DuckdbSettings,
    MysqlSettings,
    PostgresSettings,
    SqlalchemySettings,
    SqliteSettings,
)
from dbt_reverse_etl.testing import deliver, next_run, opened, person
from tests.support.sinks.people import a_task, people

REMOTE = {"host": "db.example.com", "database": "crm", "user": "u"}
SECRET = "canary-p%40ss/word"


@pytest.mark.guarantee("SQL databases")
def test_away_from_this_machine_the_server_is_verified_by_default() -> None:
    remote = parameters(PostgresSettings.model_validate(REMOTE))
    assert (remote["sslmode"], remote["sslrootcert"]) == ("verify-full", "system")
    assert parameters(PostgresSettings.model_validate(REMOTE | {"sslmode": "require"}))["sslmode"] == "require"
    assert MysqlSettings.model_validate(REMOTE).tls == "verify_identity"
    assert MysqlSettings.model_validate(REMOTE | {"ssl_mode": "verify_ca", "ssl_ca": "/ca"}).tls == "verify_ca"
    for local in ("127.0.0.1", "::1", "localhost"):
        assert MysqlSettings.model_validate(REMOTE | {"host": local}).tls == "preferred"
        assert parameters(PostgresSettings.model_validate(REMOTE | {"host": local}))["sslmode"] == "prefer"


WRONG: list[tuple[type[Settings], dict[str, Any]]] = [
    *((PostgresSettings, {"sslmode": mode}) for mode in ("disable", "allow", "prefer", "verify-ca")),
    (PostgresSettings, {"sslcert": "/a"}),
    (PostgresSettings, {"host": "localhost,db.example.com"}),
    (PostgresSettings, {"host": "@abstract"}),
    *((MysqlSettings, {"ssl_mode": mode}) for mode in ("disabled", "preferred", "required", "verify_ca")),
    (MysqlSettings, {"ssl_cert": "/a"}),
    (MysqlSettings, {"host": "localhost", "ssl_ca": "/a"}),
    (MysqlSettings, {"host": "/run/mysqld/mysqld.sock", "ssl_ca": "/a"}),
    (MysqlSettings, {"local_infile": True}),
    *(
        (model, wrong)
        for model in (PostgresSettings, MysqlSettings)
        for wrong in ({"on_new_column": "add"}, {"database": "a\0b"})
    ),
]


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize(("model", "wrong"), WRONG, ids=str)
def test_settings_that_are_unsafe_or_contradict_each_other_are_refused(
    model: type[Settings], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(REMOTE | wrong)


def test_the_identity_names_host_port_and_database() -> None:
    for host, shown in (("DB.example.com", "db.example.com:3306/crm"), ("::1", "[::1]:3306/crm")):
        assert MysqlSink(MysqlSettings.model_validate(REMOTE | {"host": host})).identity == shown


@pytest.mark.parametrize("path", ["", ":memory:", "file:crm.sqlite?mode=ro", "md:crm", "a\0b"])
def test_only_a_file_is_a_destination(path: str) -> None:
    model = DuckdbSettings if path.startswith("md:") else SqliteSettings
    with pytest.raises(ValidationError):
        model(path=path)


def settings(**given: Any) -> SqlalchemySettings:
    return SqlalchemySettings.model_validate(given)


PARTS = {
    "drivername": "postgresql+psycopg",
    "host": "db.example.com",
    "database": "crm",
    "user": "push",
    "password": SECRET,
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "url, or drivername"),
    ({"url": "postgresql://u@db/crm", "host": "db"}, "url beside its parts"),
    ({"url": "not a url"}, "no URL that SQLAlchemy can read"),
    ({"url": f"mysql+pymysql://u:{SECRET}@db/crm"}, "type: mysql"),
    ({"url": "sqlite:///crm.db"}, "type: sqlite"),
    ({"url": f"mssql+pyodbc://u:{SECRET}@db/crm"}, "expected duckdb or postgresql"),
    ({"url": f"oracle+oracledb://u:{SECRET}@db/?service_name=crm"}, "expected duckdb or postgresql"),
    ({"url": "duckdb://"}, "name the file"),
    ({"url": "duckdb:///:memory:"}, "the path of a file"),
    ({"url": "duckdb:///md:crm"}, "the path of a file"),
    ({"url": "postgresql:///crm"}, "host: Field required"),
    ({"url": f"postgresql+psycopg://u:{SECRET}@db.example.com/crm?sslmode=prefer"}, "expected verify-full"),
    ({**PARTS, "query": {"options": SECRET}}, "found options in the query"),
]


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize(("given", "said"), REFUSED, ids=lambda value: str(value)[:50])
def test_a_url_that_could_not_work_or_is_not_safe_is_refused_without_showing_a_secret(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**given)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.guarantee("SQL databases")
@pytest.mark.parametrize(
    ("given", "identity"),
    [
        (PARTS, "postgresql://db.example.com:5432/crm"),
        ({"url": f"postgresql+psycopg://u:{SECRET}@DB.example.com:1/crm"}, "postgresql://db.example.com:1/crm"),
        ({"url": "postgresql+psycopg://u@[::1]/crm"}, "postgresql://[::1]:5432/crm"),
        ({"url": "duckdb:////tmp/crm.duckdb?threads=2"}, "duckdb:///tmp/crm.duckdb"),
    ],
)
def test_a_url_is_the_same_destination_as_ever_named_without_its_credentials(
    given: dict[str, Any], identity: str
) -> None:
    found = settings(**given)
    sink = SqlalchemySink(found)
    assert sink.identity == identity
    assert SECRET not in f"{found!r} {found} {found.model_dump_json()} {sink!r}"


def test_a_url_leads_to_the_settings_of_the_type_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative, absolute = settings(url="duckdb:///crm.duckdb"), settings(url=f"duckdb:///{tmp_path}/crm.duckdb")
    assert SqlalchemySink(relative).identity == SqlalchemySink(absolute).identity
    assert settings(url="duckdb:///x?threads=2").target == DuckdbSettings(
        path="x", config={"threads": "2"}, create_object=False
    )
    url = "postgresql+psycopg://push:p%40ss@db.example.com/crm?sslmode=verify-ca&sslrootcert=/ca"
    target = settings(url=url, timeout=7, state_schema="state").target
    assert target == PostgresSettings.model_validate(
        {
            **{"host": "db.example.com", "database": "crm", "user": "push", "password": "p@ss"},
            **{"sslmode": "verify-ca", "sslrootcert": "/ca", "statement_timeout": 7, "state_schema": "state"},
        }
    )
    assert settings(**PARTS).target.password.get_secret_value() == SECRET  # type: ignore[union-attr]


def test_a_profile_may_say_duckdb_where_it_said_sqlalchemy_and_the_position_stays(tmp_path: Path) -> None:
    file = tmp_path / "crm.duckdb"
    with opened(SqlalchemySink(settings(url=f"duckdb:///{file}", create_object=True)), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1))) == [Outcome.DELIVERED]
    later = DuckdbSink(DuckdbSettings(path=str(file)))
    assert later.identity == sink.identity
    with opened(later, next_run(a_task())):
        assert later.settle(["claim-1"]) == {"claim-1": True}
