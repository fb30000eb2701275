"""What profiles.yml may say to the sqlalchemy sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, SecretStr, model_validator
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from dbt_reverse_etl.sinks.base import Settings
from dbt_reverse_etl.sinks.hosts import is_loopback

PORTS = {"postgresql": 5432, "mssql": 1433, "oracle": 1521}
DUCKDB = "duckdb"
OWN_TYPE = {"mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
VERIFIED = frozenset({"verify-ca", "verify-full"})
YES, NO = frozenset({"yes", "true", "1"}), frozenset({"no", "false", "0", "optional"})


class SqlalchemySettings(Settings):
    """One database, as an SQLAlchemy URL or as its parts.

    Attributes:
        url: the whole URL, credentials included.
        drivername: `dialect+driver`, with the parts below; instead of `url`.
        host, port, database, user, password: the usual ones; for DuckDB `database` is the file.
        query: what stands behind the `?` of a URL, for the driver.
        timeout: seconds that a statement may take; of SQL Server, that it may wait for a lock.
        state_schema: where our two tables stand; default: beside the object.
        create_object: make a missing table, with the key as its primary key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: SecretStr | None = None
    drivername: str | None = Field(default=None, min_length=1)
    host: str | None = Field(default=None, min_length=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    database: str | None = Field(default=None, min_length=1)
    user: str | None = Field(default=None, min_length=1)
    password: SecretStr | None = None
    query: dict[str, SecretStr] = Field(default_factory=dict)
    timeout: int = Field(default=300, ge=1, le=86_400)
    state_schema: str | None = Field(default=None, min_length=1)
    create_object: bool = False

    @model_validator(mode="after")
    def _is_complete_and_safe(self) -> SqlalchemySettings:
        parts = (self.drivername, self.host, self.port, self.database, self.user, self.password, self.query or None)
        if (self.url is None) == (self.drivername is None) or (self.url and any(part is not None for part in parts)):
            raise ValueError("found url beside its parts, or neither; expected url, or drivername and the parts")
        try:
            url = self.address
        except (ArgumentError, ValueError):
            raise ValueError("found no URL that SQLAlchemy can read; expected dialect+driver://...") from None
        wrong = _dialect_problem(url) or _place_problem(url) or _tls_problem(url)
        if wrong:
            raise ValueError(wrong)
        return self

    @property
    def address(self) -> URL:
        """The URL, with the password in it: never to be shown."""
        if self.url is not None:
            return make_url(self.url.get_secret_value())
        password = self.password.get_secret_value() if self.password else None
        query: dict[str, Any] = {name: value.get_secret_value() for name, value in self.query.items()}
        return URL.create(self.drivername or "", self.user, password, self.host, self.port, self.database, query)

    @property
    def dialect(self) -> str:
        """The name of the dialect."""
        return self.address.get_backend_name()

    @property
    def file(self) -> Path | None:
        """The file of DuckDB; None for a server."""
        return Path(self.address.database or "").resolve() if self.dialect == DUCKDB else None

    @property
    def identity(self) -> str:
        """The database without credentials."""
        url, dialect = self.address, self.dialect
        if self.file:
            return f"{dialect}://{self.file}"
        host = (url.host or "").lower()
        host = f"[{host}]" if ":" in host else host
        database = url.database or url.query.get("service_name", "")
        return f"{dialect}://{host}:{url.port or PORTS[dialect]}/{database}"


def _dialect_problem(url: URL) -> str | None:
    name = url.get_backend_name()
    if name in OWN_TYPE:
        return f"found the dialect {name}; expected another one; next: use type: {OWN_TYPE[name]}"
    known = sorted([DUCKDB, *PORTS])
    return None if name in known else f"found a dialect that is not supported; expected one of {', '.join(known)}"


def _place_problem(url: URL) -> str | None:
    if url.get_backend_name() == DUCKDB:
        remote = (url.database or "").startswith(("md:", "motherduck:", ":memory:")) or not url.database
        return "found no file; expected duckdb:///path; next: name the file" if remote else None
    if not url.host:
        return "found no host; expected one in the URL, which names the destination; next: add host and database"
    if not (url.database or "service_name" in url.query):
        return "found no database; expected one in the URL, which names the destination; next: add it"
    return None


def _tls_problem(url: URL) -> str | None:
    """Away from this machine the server must prove who it is; a driver whose settings are unknown is the user's affair."""
    if not url.host or url.host.startswith("/") or is_loopback(url.host):
        return None
    said = {name.lower(): str(value).lower() for name, value in url.query.items()}
    dialect = url.get_backend_name()
    if dialect == "postgresql" and said.get("sslmode") not in VERIFIED:
        return "found no verified TLS; expected it away from this machine; next: sslmode=verify-full in the query"
    trusts = said.get("trustservercertificate") in YES or said.get("encrypt") in NO
    if dialect == "mssql" and trusts:
        return "found TLS switched off or not verified; expected it away from this machine; next: remove Encrypt and TrustServerCertificate"
    return None
