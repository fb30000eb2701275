"""What profiles.yml may say to the SQLAlchemy sink, and what is refused before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.sinks.sql.sqlalchemy.settings import SqlalchemySettings
from dbt_reverse_etl.sinks.sql.sqlalchemy.sink import SqlalchemySink
from tests.support.sinks.people import a_task

SECRET = "canary-p%40ss/word"


def settings(**given: Any) -> SqlalchemySettings:
    return SqlalchemySettings.model_validate(given)


PARTS = {"drivername": "mssql+pyodbc", "host": "db.example.com", "database": "crm", "user": "push", "password": SECRET}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "url, or drivername"),
    ({"url": "mssql+pyodbc://db/crm", "host": "db"}, "url beside its parts"),
    ({"url": "not a url"}, "no URL that SQLAlchemy can read"),
    ({"url": f"mysql+pymysql://u:{SECRET}@db/crm"}, "type: mysql"),
    ({"url": "sqlite:///crm.db"}, "type: sqlite"),
    ({"url": f"firebird://u:{SECRET}@db/crm"}, "expected one of duckdb, mssql, oracle, postgresql"),
    ({"url": "duckdb://"}, "name the file"),
    ({"url": "duckdb:///:memory:"}, "name the file"),
    ({"url": "duckdb:///md:crm"}, "name the file"),
    ({"url": "mssql+pyodbc:///?odbc_connect=x"}, "no host"),
    ({"url": "oracle+oracledb://db.example.com"}, "no database"),
    ({"url": f"postgresql+psycopg://u:{SECRET}@db.example.com/crm"}, "sslmode=verify-full"),
    ({"url": "postgresql+psycopg://db.example.com/crm?sslmode=require"}, "sslmode=verify-full"),
    ({**PARTS, "query": {"TrustServerCertificate": "yes"}}, "not verified"),
    ({**PARTS, "query": {"Encrypt": "no"}}, "not verified"),
]


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize(("given", "said"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_could_not_work_or_is_not_safe_is_refused_without_showing_a_secret(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**given)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize(
    ("given", "identity"),
    [
        (PARTS, "mssql://db.example.com:1433/crm"),
        ({"url": f"mssql+pyodbc://u:{SECRET}@DB.example.com:1/crm?driver=x"}, "mssql://db.example.com:1/crm"),
        ({"url": "oracle+oracledb://u@db/?service_name=crm"}, "oracle://db:1521/crm"),
        ({"url": "postgresql+psycopg://u@[::1]/crm"}, "postgresql://[::1]:5432/crm"),
        (
            {"url": "postgresql+psycopg://db.example.com/crm?sslmode=verify-full"},
            "postgresql://db.example.com:5432/crm",
        ),
    ],
)
def test_a_destination_is_named_without_its_credentials_and_its_driver(given: dict[str, Any], identity: str) -> None:
    found = settings(**given)
    assert found.identity == identity
    assert SECRET not in f"{found!r} {found} {found.model_dump_json()} {SqlalchemySink(found)!r}"


def test_a_duckdb_file_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings(url="duckdb:///crm.duckdb").identity == settings(url=f"duckdb:///{tmp_path}/crm.duckdb").identity


def test_a_password_of_the_parts_is_taken_as_it_is() -> None:
    assert settings(**PARTS).address.password == SECRET


def test_a_driver_that_is_not_installed_is_said_with_the_package_to_install() -> None:
    with pytest.raises(ConfigurationError, match="pip install 'pyodbc'"):
        SqlalchemySink(settings(**{**PARTS, "drivername": "mssql+nosuch"})).validate(a_task())
