"""What profiles.yml and `meta.reverse_etl.options` may say to the postgres sink, and how it connects."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

from dbt_reverse_etl.sinks.base import Options, Settings
from dbt_reverse_etl.sinks.hosts import is_loopback

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
WEAK: frozenset[str] = frozenset({"disable", "allow", "prefer"})
APPLICATION = "dbt-reverse-etl"
NO_FILE = f"{os.devnull}/none"  # names no file, so that libpq looks for none in the home directory
LONGEST_NAME = 63  # bytes; Postgres would cut a longer one silently


class PostgresSettings(Settings):
    """One Postgres database; nothing of the environment (PGHOST, PGSERVICE, ~/.pgpass) is read.

    Attributes:
        host: a name, an address, or the directory of a Unix socket.
        port, database, user, password: the usual ones; a Unix socket or a certificate may need no password.
        sslmode: default verify-full; for this machine prefer. With require, which verifies nobody, the server must log us in
            by SCRAM; require with sslrootcert is verify-ca.
        sslrootcert: file of the CA; default: the CAs of the system, for verify-full only.
        sslcert, sslkey: files of a client certificate.
        connect_timeout, lock_timeout, statement_timeout: seconds; 0 for the last two: no limit.
        state_schema: where our two tables stand; default: beside the object.
        create_object: make a missing table, with the key as its PRIMARY KEY; the tables of a database have an owner,
            and the user of this sink should not be able to, so it is off.
        on_new_column: `add` adds missing columns, only with create_object.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = Field(min_length=1)
    port: int = Field(default=5432, ge=1, le=65535)
    database: str = Field(min_length=1, max_length=LONGEST_NAME)
    user: str = Field(min_length=1, max_length=LONGEST_NAME)
    password: SecretStr | None = None
    sslmode: SslMode | None = None
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None
    connect_timeout: int = Field(default=10, ge=2, le=300)
    lock_timeout: float = Field(default=30, ge=0, le=3600)
    statement_timeout: float = Field(default=600, ge=0, le=86_400)
    state_schema: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    create_object: bool = False
    on_new_column: Literal["fail", "add"] = "fail"

    @field_validator("host", "database", "user", "sslrootcert", "sslcert", "sslkey", "state_schema")
    @classmethod
    def _has_no_nul(cls, text: str | None) -> str | None:
        if text is not None and "\0" in text:
            raise ValueError("found a NUL character; expected a plain text; next: remove it")
        return text

    @field_validator("host")
    @classmethod
    def _is_one_host(cls, host: str) -> str:
        if "," in host or host.startswith("@"):
            raise ValueError(
                "found a list of hosts or an abstract socket; expected one host; next: name the one that takes writes"
            )
        return host

    @model_validator(mode="after")
    def _is_safe(self) -> PostgresSettings:
        if self.sslmode in WEAK and not self.is_local:
            raise ValueError(
                f"found sslmode: {self.sslmode}; expected verify-full, or at least require away from this machine; "
                "next: remove sslmode, and name the CA with sslrootcert"
            )
        if self.sslmode == "verify-ca" and self.sslrootcert is None:
            raise ValueError("found verify-ca without sslrootcert; expected the file of the CA; next: name it")
        if (self.sslcert is None) != (self.sslkey is None):
            raise ValueError("found one of sslcert and sslkey; expected both; next: name the other")
        if self.on_new_column == "add" and not self.create_object:
            raise ValueError(
                "found on_new_column: add; expected it with create_object: true only; next: set both, or neither"
            )
        return self

    @property
    def is_local(self) -> bool:
        """Whether the connection stays on this machine."""
        return self.host.startswith("/") or is_loopback(self.host)

    @property
    def mode_of_tls(self) -> str:
        """The sslmode in effect."""
        if self.sslmode == "require" and self.sslrootcert:
            return "verify-ca"  # what libpq makes of it, but only if the file is there
        return self.sslmode or ("prefer" if self.is_local else "verify-full")

    def parameters(self) -> dict[str, str]:
        """What libpq is told; holds the password."""
        root = self.sslrootcert or ("system" if self.mode_of_tls == "verify-full" else NO_FILE)
        is_trusted = self.is_local or self.mode_of_tls.startswith("verify-")
        # A server that nobody has verified must not get the password in a form that it can use.
        login = {} if is_trusted else {"require_auth": "scram-sha-256"}
        return login | {
            "host": self.host,
            "port": str(self.port),
            "dbname": self.database,
            "user": self.user,
            "password": self.password.get_secret_value() if self.password else "",
            "passfile": NO_FILE,
            "sslmode": self.mode_of_tls,
            "sslrootcert": root,
            "sslcert": self.sslcert or NO_FILE,
            "sslkey": self.sslkey or NO_FILE,
            "connect_timeout": str(self.connect_timeout),
            "application_name": APPLICATION,
            "client_encoding": "UTF8",
            "gssencmode": "disable",
            "keepalives_idle": "30",
            "keepalives_interval": "10",
            "keepalives_count": "3",
            "tcp_user_timeout": "60000",
        }


class PostgresOptions(Options):
    """What one sync may say.

    Attributes:
        soft_delete: a timestamp column that a delete sets to now(), and a write to NULL; the row stays.
    """

    soft_delete: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
