"""What profiles.yml and `meta.reverse_etl.options` may say to the sinks of databases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from dbt_reverse_etl.sinks.base import Options, Settings
from dbt_reverse_etl.sinks.hosts import is_loopback
from dbt_reverse_etl.sinks.lines import one_line
from dbt_reverse_etl.sinks.paths import ProjectCa, ProjectFile, in_project

PostgresTls = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
MysqlTls = Literal["disabled", "preferred", "required", "verify_ca", "verify_identity"]
WEAK = frozenset({"disable", "allow", "prefer"})
# No login of MySQL proves the server to us, so that these would give the password to anybody.
UNVERIFIED = frozenset({"disabled", "preferred", "required"})
LONGEST_POSTGRES_NAME = 63  # bytes; Postgres would cut a longer one silently
LONGEST_MYSQL_NAME = 64  # characters


class SoftDeleteOptions(Options):
    """What one sync may say.

    Attributes:
        soft_delete: a timestamp column that a delete sets to now, and a write to NULL; the row stays, and keeps its unique values.
    """

    soft_delete: str | None = Field(default=None, min_length=1, max_length=LONGEST_MYSQL_NAME)


class ServerSettings(Settings):
    """One database of a server.

    Attributes:
        host: a name, an address, or a Unix socket.
        port: of the server.
        database: holds the objects.
        user: logs in.
        password: of the user; a Unix socket or a certificate may need none.
        connect_timeout: seconds.
        statement_timeout: seconds to wait for an answer; 0: no limit.
        create_object: make a missing table, with the key as its PRIMARY KEY.
        on_new_column: `add` adds missing columns, only with create_object.
    """

    host: str = Field(min_length=1)
    port: int = Field(ge=1, le=65535)
    database: str = Field(min_length=1, max_length=64)
    user: str = Field(min_length=1, max_length=128)
    password: SecretStr | None = None
    connect_timeout: int = Field(default=10, ge=1, le=300)
    statement_timeout: float = Field(default=600, ge=0, le=86_400)
    create_object: bool = False
    on_new_column: Literal["fail", "add"] = "fail"

    @field_validator("*")
    @classmethod
    def _has_no_nul(cls, value: object) -> object:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("found a NUL character; expected a plain text; next: remove it")
        return value

    @field_validator("host", "database", "user", "password")
    @classmethod
    def _is_one_line(cls, value: str | SecretStr | None) -> str | SecretStr | None:
        return one_line(value)

    @model_validator(mode="after")
    def _adds_columns_to_its_own(self) -> ServerSettings:
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
    def server(self) -> str:
        """host:port."""
        host = self.host if self.host.startswith("/") else self.host.lower()
        return f"{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def identity(self) -> str:
        """host:port/database."""
        return f"{self.server}/{self.database}"


class PostgresSettings(ServerSettings):
    """One Postgres database; no PGHOST, PGSERVICE and the like, and no ~/.pgpass, is read.

    Attributes:
        host: a name, an address, or the directory of a Unix socket.
        sslmode: default verify-full; for this machine prefer. With require, which verifies nobody, the server must log us in
            by SCRAM; require with sslrootcert is verify-ca.
        sslrootcert: file of the CA; default, for verify-full only: the public CAs of SSL_CERT_FILE or SSL_CERT_DIR, else those of
            the package certifi, or with a psycopg other than psycopg[binary] those of the system.
        sslcert: file of a client certificate.
        sslkey: file of its key.
        lock_timeout: seconds to wait for each lock of another session; 0: no limit.
        state_schema: of our two tables; default: that of the object.
        create_object: make a missing table, with the key as its PRIMARY KEY; the tables of a database have an owner,
            and the user of this sink should not be able to, so it is off.
    """

    port: int = Field(default=5432, ge=1, le=65535)
    database: str = Field(min_length=1, max_length=LONGEST_POSTGRES_NAME)
    user: str = Field(min_length=1, max_length=LONGEST_POSTGRES_NAME)
    sslmode: PostgresTls | None = None
    sslrootcert: ProjectCa | None = None
    sslcert: ProjectFile | None = None
    sslkey: ProjectFile | None = None
    connect_timeout: int = Field(default=10, ge=2, le=300)
    lock_timeout: float = Field(default=30, ge=0, le=3600)
    state_schema: str | None = Field(default=None, min_length=1, max_length=LONGEST_POSTGRES_NAME)

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
        return self

    @property
    def mode_of_tls(self) -> str:
        """The sslmode in effect."""
        if self.sslmode == "require" and self.sslrootcert:
            return "verify-ca"  # what libpq makes of it, but only if the file is there
        return self.sslmode or ("prefer" if self.is_local else "verify-full")


class MysqlSettings(ServerSettings):
    """One MySQL or MariaDB database; nothing of the environment (my.cnf, MYSQL_HOST) is read.

    Attributes:
        host: a name, an address, or the path of a Unix socket.
        database: holds the objects that name none, and our staging table.
        ssl_mode: default verify_identity; for this machine preferred. Over a Unix socket there is no TLS.
        ssl_ca: file of the CA; default: the public CAs of the package certifi, for verify_identity only.
        ssl_cert: file of a client certificate.
        ssl_key: file of its key.
        lock_timeout: seconds to wait for each lock of another session.
        state_database: of our two tables; default: that of the object.
    """

    port: int = Field(default=3306, ge=1, le=65535)
    ssl_mode: MysqlTls | None = None
    ssl_ca: ProjectFile | None = None
    ssl_cert: ProjectFile | None = None
    ssl_key: ProjectFile | None = None
    lock_timeout: int = Field(default=30, ge=1, le=3600)
    state_database: str | None = Field(default=None, min_length=1, max_length=LONGEST_MYSQL_NAME)

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
        return self

    @property
    def is_socket(self) -> bool:
        """Whether the host is the path of a Unix socket."""
        return self.host.startswith("/")

    @property
    def tls(self) -> MysqlTls:
        """The ssl_mode in effect."""
        if self.is_socket:
            return "disabled"
        return self.ssl_mode or ("preferred" if self.is_local else "verify_identity")


def _is_a_file(path: str) -> str:
    if path.startswith((":", "file:", "md:", "motherduck:")) or "\0" in path:
        raise ValueError("expected the path of a file, not a URI and not a database in memory")
    return path


_DatabaseFile = Annotated[str, Field(min_length=1), AfterValidator(_is_a_file), AfterValidator(in_project)]


class SqliteSettings(Settings):
    """What profiles.yml says about an SQLite destination.

    Attributes:
        path: the file; it is created by the first push, its directory is not.
        create_object: make a missing table, with the key as its PRIMARY KEY.
        timeout: seconds to wait for another program's lock.
    """

    path: _DatabaseFile
    create_object: bool = True
    timeout: float = Field(default=30.0, ge=0, le=3600)


class DuckdbSettings(Settings):
    """What profiles.yml says about a DuckDB destination.

    Attributes:
        path: the file; it is created by the first push, its folder is not.
        create_object: make a missing table, with the key as its primary key.
        state_schema: of our two tables; default: that of the object.
        config: options of DuckDB for the connection, such as `threads`.
    """

    path: _DatabaseFile
    create_object: bool = True
    state_schema: str | None = Field(default=None, min_length=1)
    config: dict[str, SecretStr | int | bool] = Field(default_factory=dict)
