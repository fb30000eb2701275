"""What profiles.yml and `meta.reverse_etl.options` may say to the mysql sink."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

from dbt_reverse_etl.sinks.base import Options, Settings
from dbt_reverse_etl.sinks.hosts import is_loopback

SslMode = Literal["disabled", "preferred", "required", "verify_ca", "verify_identity"]
# No login of MySQL proves the server to us, so that these would give the password to anybody.
UNVERIFIED: frozenset[str] = frozenset({"disabled", "preferred", "required"})
LONGEST_NAME = 64  # characters


class MysqlSettings(Settings):
    """One MySQL or MariaDB database; nothing of the environment (my.cnf, MYSQL_HOST) is read.

    Attributes:
        host: a name, an address, or the path of a Unix socket.
        port, database, user, password: the usual ones; `database` holds the objects that name none, and our staging table.
        ssl_mode: default verify_identity; for this machine preferred. Over a Unix socket there is no TLS.
        ssl_ca: file of the CA; default: the public CAs of the package certifi, for verify_identity only.
        ssl_cert, ssl_key: files of a client certificate.
        connect_timeout, lock_timeout: seconds; the second is for each lock of another session.
        statement_timeout: seconds to wait for an answer; 0: no limit.
        state_database: where our two tables stand; default: beside the object.
        create_object: make a missing table, with the key as its PRIMARY KEY.
        on_new_column: `add` adds missing columns, only with create_object.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = Field(min_length=1)
    port: int = Field(default=3306, ge=1, le=65535)
    database: str = Field(min_length=1, max_length=LONGEST_NAME)
    user: str = Field(min_length=1, max_length=128)
    password: SecretStr | None = None
    ssl_mode: SslMode | None = None
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    connect_timeout: int = Field(default=10, ge=1, le=300)
    lock_timeout: int = Field(default=30, ge=1, le=3600)
    statement_timeout: float = Field(default=600, ge=0, le=86_400)
    state_database: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    create_object: bool = False
    on_new_column: Literal["fail", "add"] = "fail"

    @field_validator("host", "database", "user", "ssl_ca", "ssl_cert", "ssl_key", "state_database")
    @classmethod
    def _has_no_nul(cls, text: str | None) -> str | None:
        if text is not None and "\0" in text:
            raise ValueError("found a NUL character; expected a plain text; next: remove it")
        return text

    @model_validator(mode="after")
    def _is_safe(self) -> MysqlSettings:
        if self.ssl_mode in UNVERIFIED and not self.is_local:
            raise ValueError(
                f"found ssl_mode: {self.ssl_mode}; expected verify_identity or verify_ca away from this machine; "
                "next: remove ssl_mode, and name the CA with ssl_ca"
            )
        if self.ssl_mode == "verify_ca" and self.ssl_ca is None:
            raise ValueError("found verify_ca without ssl_ca; expected the file of the CA; next: name it")
        if (self.ssl_cert is None) != (self.ssl_key is None):
            raise ValueError("found one of ssl_cert and ssl_key; expected both; next: name the other")
        if self.tls in ("disabled", "preferred") and (self.ssl_ca or self.ssl_cert):
            raise ValueError(
                "found ssl_ca or ssl_cert without ssl_mode; expected one that uses them; next: ssl_mode: verify_identity"
            )
        if self.on_new_column == "add" and not self.create_object:
            raise ValueError(
                "found on_new_column: add; expected it with create_object: true only; next: set both, or neither"
            )
        return self

    @property
    def is_socket(self) -> bool:
        """Whether the host is the path of a Unix socket."""
        return self.host.startswith("/")

    @property
    def is_local(self) -> bool:
        """Whether the connection stays on this machine."""
        return self.is_socket or is_loopback(self.host)

    @property
    def tls(self) -> SslMode:
        """The ssl_mode in effect."""
        if self.is_socket:
            return "disabled"
        return self.ssl_mode or ("preferred" if self.is_local else "verify_identity")


class MysqlOptions(Options):
    """What one sync may say.

    Attributes:
        soft_delete: a DATETIME or TIMESTAMP column that a delete sets to now (UTC), and a write to NULL; the row stays.
    """

    soft_delete: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
