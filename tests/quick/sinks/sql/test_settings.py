"""What profiles.yml may say to the sinks of databases, and what is refused before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from psycopg import pq
from pydantic import ValidationError

from dbt_reverse_etl.sinks.base import Settings
from dbt_reverse_etl.sinks.sql.dialects.mysql.sink import MysqlSink
from dbt_reverse_etl.sinks.sql.dialects.postgres.session import parameters
from dbt_reverse_etl.sinks.sql.dialects.postgres.sink import PostgresSink
from dbt_reverse_etl.sinks.sql.settings import DuckdbSettings, MysqlSettings, PostgresSettings, SqliteSettings

REMOTE = {"host": "db.example.com", "database": "crm", "user": "u"}
SECRET = "canary-p%40ss/word"


@pytest.mark.guarantee("SQL databases")
def test_away_from_this_machine_the_server_is_verified_by_default() -> None:
    remote = parameters(PostgresSettings.model_validate(REMOTE))
    assert remote["sslmode"] == "verify-full"
    assert parameters(PostgresSettings.model_validate(REMOTE | {"sslmode": "require"}))["sslmode"] == "require"
    assert MysqlSettings.model_validate(REMOTE).tls == "verify_identity"
    assert MysqlSettings.model_validate(REMOTE | {"ssl_mode": "verify_ca", "ssl_ca": "/ca"}).tls == "verify_ca"
    for local in ("127.0.0.1", "::1", "localhost"):
        assert MysqlSettings.model_validate(REMOTE | {"host": local}).tls == "preferred"
        assert parameters(PostgresSettings.model_validate(REMOTE | {"host": local}))["sslmode"] == "prefer"


@pytest.mark.parametrize(
    ("build", "names", "is_system"),
    [
        ("binary", None, False),
        ("binary", "SSL_CERT_FILE", True),
        ("binary", "SSL_CERT_DIR", True),
        ("c", None, True),
        ("python", None, True),
    ],
)
def test_the_public_authorities_of_postgres_are_a_file_that_is_there_or_those_that_its_library_finds(
    build: str, names: str | None, is_system: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(variable, "/authorities" if variable == names else "")
    monkeypatch.setattr(pq, "__impl__", build)
    root = parameters(PostgresSettings.model_validate(REMOTE))["sslrootcert"]
    assert root == "system" if is_system else "BEGIN CERTIFICATE" in Path(root).read_text()
    named = parameters(PostgresSettings.model_validate(REMOTE | {"sslrootcert": "/ca"}))
    assert named["sslrootcert"] == "/ca"


@pytest.mark.parametrize("model", [PostgresSettings, MysqlSettings])
@pytest.mark.parametrize("key", ["host", "database", "user", "password"])
def test_a_line_break_at_an_end_is_refused_with_where_to_look(key: str, model: type[Settings]) -> None:
    given = REMOTE | {"password": SECRET}
    model.model_validate(given)
    with pytest.raises(ValidationError, match="look for a line break at the end of the variable"):
        model.model_validate(given | {key: f"{given[key]}\n"})


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


def test_a_table_of_mysql_is_one_object_under_destinations_of_several_databases() -> None:
    def place(database: str, written: str, sink: type[MysqlSink | PostgresSink] = MysqlSink) -> str:
        return sink(sink.settings_model.model_validate(REMOTE | {"database": database})).place_of(written)  # type: ignore[arg-type]

    assert place("crm", "people") == place("other", "crm.people") == place("other", "`crm`.people")
    assert place("crm", "people") != place("other", "people")
    assert place("crm", "people", PostgresSink) != place("other", "public.people", PostgresSink)


@pytest.mark.parametrize("path", ["", ":memory:", "file:crm.sqlite?mode=ro", "md:crm", "a\0b"])
def test_only_a_file_is_a_destination(path: str) -> None:
    model = DuckdbSettings if path.startswith("md:") else SqliteSettings
    with pytest.raises(ValidationError):
        model(path=path)
