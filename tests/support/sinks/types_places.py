"""Destinations for the rows of `types`, with tables of sinks and of users, and how a client of its own reads each."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.types as pt
from psycopg.types.json import set_json_loads

from tests.support.servers import kafka, mysql, postgres
from tests.support.servers.http import HttpServer
from tests.support.servers.schema_registry import PASSWORD, USER, SchemaRegistry
from tests.support.sinks.files_consumer import in_folder, listed
from tests.support.sinks.types import COLUMNS, SCHEMA, UTC, Row, ddl, of_json, of_text, plain, rows

FILES = ("jsonl", "csv", "parquet")
# Rows that docs/<destination>.md says are refused: for NaN and Infinity, also in JSON; for NUL characters.
_NOT_FINITE, _IN_JSON, _NUL = {101, 102, 103, 104}, {105}, {106, 107}
REFUSED = {
    "postgres": _IN_JSON | _NUL,
    "mysql": _NOT_FINITE | _IN_JSON,
    "sqlite": {101, 104} | _IN_JSON,
    "duckdb": _IN_JSON,
    **dict.fromkeys(("jsonl", "csv", "topic", "api"), _NOT_FINITE | _IN_JSON),
}
ABSENT = {"mysql": ["share"]}  # 30 digits after the point at most
# A zero has no sign there.
UNSIGNED = {"mysql": ["ratio"], "sqlite": ["ratio"], "postgres": ["doubles"]}

# The tables of a user, by Spark's type and by column; types other than those that the sink makes are among them.
OF_USER: dict[str, dict[str, str]] = {
    "lake": {"words": "varchar(200)"},
    "postgres": {
        "string": "text", "tinyint": "integer", "int": "integer", "float": "double precision", "double": "double precision",
        "timestamp": "timestamptz", "timestamp_ntz": "timestamp", "binary": "bytea", "nested": "json",
        "words": "varchar(200)", "total": "numeric", "price": "text", "wholes": "integer[]", "texts": "text[]", "doubles": "double precision[]",
        "floats": "real[]", "flags": "boolean[]", "prices": "numeric[]", "days": "date[]", "moments": "timestamptz[]", "locals": "timestamp[]",
        "matrix": "text",
    },
    "mysql": {
        "string": "varchar(200)", "tinyint": "bigint", "timestamp": "datetime(6)", "timestamp_ntz": "datetime(6)",
        "binary": "varbinary(300)", "nested": "longtext", "price": "varchar(60)",
    },
    "sqlite": {
        "string": "VARCHAR(9)", "timestamp": "DATETIME", "timestamp_ntz": "TIMESTAMP", "binary": "BLOB", "nested": "JSON",
        "price": "TEXT", "total": "TEXT", "share": "TEXT",
    },
    "duckdb": {
        "string": "VARCHAR", "tinyint": "BIGINT", "timestamp": "TIMESTAMPTZ", "timestamp_ntz": "TIMESTAMP",
        "binary": "BLOB", "nested": "JSON", "by_text": "VARCHAR",
    },
}  # fmt: skip


def by_user(name: str) -> str:
    """The DDL of a user's table; its place stands as `{}`."""
    types, absent = OF_USER[name], ABSENT.get(name, ())

    def column(field: str, kind: pa.DataType) -> str:
        of_type = types.get("nested" if pt.is_nested(kind) else ddl(kind), ddl(kind))
        return f"{field} {types.get(field, of_type)}"

    columns = ", ".join(column(field, kind) for field, (kind, _) in COLUMNS.items() if field not in absent)
    return (
        f"create table {{}} (id int, {columns})"
        if name == "lake"
        else f"create table {{}} (id int primary key, {columns})"
    )


class Places:
    """Destinations of these names, as profiles.yml would say them, and what they hold."""

    def __init__(self, folder: Path, names: Collection[str], server: HttpServer, registry: SchemaRegistry) -> None:
        self._folder, self._server, self._registry = folder, server, registry
        self._topics: dict[str, str] = {}
        self.profiles: dict[str, dict[str, Any]] = {}
        self.options: dict[str, dict[str, Any]] = {}
        for name in names:
            self.profiles[name] = getattr(self, f"_add_{name}", lambda form=name: self._add_files(form))()

    def object(self, name: str, maker: str) -> str:
        return self._topics.get(name, f"types_by_{maker}")

    def read(self, name: str, maker: str) -> list[Row]:
        """The rows, as a client reads them."""
        read: Callable[[str], Iterable[Row]] = getattr(self, f"_from_{name}")
        return list(read(self.object(name, maker)))

    def make_by_user(self, name: str) -> None:
        """The table of a user."""
        table = self.object(name, "user")
        getattr(self, f"_make_in_{name}")(by_user(name).format(table), table)

    def _add_files(self, form: str) -> dict[str, Any]:
        return {"type": "files", "path": str(self._folder / form), "format": form}

    def _add_postgres(self) -> dict[str, Any]:
        self._postgres = postgres.new_database()
        self._postgres.may_create()
        return {"type": "postgres", **self._postgres.settings(create_object=True)}

    def _make_in_postgres(self, statement: str, table: str) -> None:
        self._postgres.table(statement, table)

    def _from_postgres(self, table: str) -> Iterator[Row]:
        with self._postgres.owner(options="-c timezone=UTC") as connection:
            set_json_loads(lambda text: bytes(text).decode(), connection)
            found = connection.execute(f"select * from {table}".encode())
            names = [column.name for column in found.description or ()]
            yield from (_typed(zip(names, row, strict=True)) for row in found)

    def _add_mysql(self) -> dict[str, Any]:
        self._mysql = mysql.new_database()
        self._mysql.may_create()
        return {"type": "mysql", **self._mysql.settings(create_object=True)}

    def _make_in_mysql(self, statement: str, table: str) -> None:
        self._mysql.table(f"{statement} character set utf8mb4", table)

    def _from_mysql(self, table: str) -> Iterator[Row]:
        there = {row[0] for row in self._mysql.rows(f"show columns from {table}")}
        names = [name for name in SCHEMA.names if name in there]
        fields = ", ".join("score + 0e0" if name == "score" else name for name in names)  # a FLOAT shows six digits
        yield from (_typed(zip(names, row, strict=True)) for row in self._mysql.rows(f"select {fields} from {table}"))

    def _add_sqlite(self) -> dict[str, Any]:
        return {"type": "sqlite", "path": str(self._folder / "crm.db")}

    def _make_in_sqlite(self, statement: str, _: str) -> None:
        with closing(sqlite3.connect(self._folder / "crm.db")) as connection:
            connection.execute(statement)

    def _from_sqlite(self, table: str) -> Iterator[Row]:
        with closing(sqlite3.connect(self._folder / "crm.db")) as connection:
            connection.row_factory = sqlite3.Row
            yield from (_typed(dict(row).items()) for row in connection.execute(f"select * from {table}"))

    def _add_duckdb(self) -> dict[str, Any]:
        return {"type": "duckdb", "path": str(self._folder / "types.duckdb")}

    def _make_in_duckdb(self, statement: str, _: str) -> None:
        with duckdb.connect(str(self._folder / "types.duckdb")) as connection:
            connection.execute(statement)

    def _from_duckdb(self, table: str) -> Iterator[Row]:
        with duckdb.connect(str(self._folder / "types.duckdb")) as connection:
            found = connection.execute("set timezone = 'UTC'").execute(f"select * from {table}")
            names = [column[0] for column in found.description or ()]
            yield from (_typed(zip(names, row, strict=True)) for row in found.fetchall())

    def _listed(self, form: str, folder: str) -> Iterator[Row]:
        ours = ("_operation", "_event_id")
        for row in listed(in_folder(self._folder / form / folder)):
            yield {name: value for name, value in row.items() if name not in ours}

    def _from_jsonl(self, folder: str) -> Iterator[Row]:
        return map(_of_json, self._listed("jsonl", folder))

    def _from_csv(self, folder: str) -> Iterator[Row]:
        return map(_of_csv, self._listed("csv", folder))

    def _from_parquet(self, folder: str) -> Iterator[Row]:
        return self._listed("parquet", folder)

    def _add_topic(self) -> dict[str, Any]:
        self._topics["topic"], self.options["topic"] = kafka.a_topic(), {"partitions": 1}
        return {"type": "kafka", **kafka.settings()}

    def _from_topic(self, topic: str) -> Iterator[Row]:
        return (_of_json(json.loads(message.value or b"")) for message in kafka.read(topic))

    def _add_avro(self) -> dict[str, Any]:
        self._topics["avro"], self.options["avro"] = kafka.a_topic(), {"partitions": 1, "value_format": "avro"}
        login = {"schema_registry_user": USER, "schema_registry_password": PASSWORD}
        return {"type": "kafka", **kafka.settings(), "schema_registry_url": self._registry.url, **login}

    def _from_avro(self, topic: str) -> Iterator[Row]:
        for message in kafka.read(topic):
            assert message.value is not None
            magic, number = struct.unpack(">bI", message.value[:5])
            assert magic == 0
            schema = json.loads(self._registry.ids[number])
            yield fastavro.schemaless_reader(io.BytesIO(message.value[5:]), schema)  # type: ignore[misc]

    def _add_api(self) -> dict[str, Any]:
        return {"type": "http", "url": self._server.url}

    def _from_api(self, _: str) -> Iterator[Row]:
        return (_of_json(request.json) for request in self._server.received)


def _of_json(row: Row) -> Row:
    return {name: of_json(SCHEMA.field(name).type, value) for name, value in row.items()}


def _of_csv(row: Row) -> Row:
    def value(kind: pa.DataType, text: str | None) -> Any:
        quoted = pt.is_binary(kind) or pt.is_temporal(kind) or pt.is_decimal(kind)
        return text if text is None or pt.is_string(kind) else of_json(kind, text if quoted else json.loads(text))

    return {name: value(SCHEMA.field(name).type, text) for name, text in row.items()}


def _typed(row: Iterable[tuple[str, Any]]) -> Row:
    return {name: _value(SCHEMA.field(name).type, value) for name, value in row}


def _value(kind: pa.DataType, value: Any) -> Any:
    """What the column of a table stands for, where the client does not say it by its type."""
    if isinstance(value, str):
        return of_json(kind, json.loads(value)) if pt.is_nested(kind) else of_text(kind, value)
    if pt.is_boolean(kind) and value in (0, 1):
        return bool(value)
    naive = pt.is_timestamp(kind) and kind.tz and value and value.tzinfo is None
    return value.replace(tzinfo=UTC) if naive else value


def wrong(name: str, found: Iterable[Row], columns: Iterable[str] = COLUMNS) -> dict[str, Any]:
    """Columns whose values are not those that should have arrived; rows that should not, or should, are the column `id`."""
    wanted = {row["id"]: row for row in rows() if row["id"] not in REFUSED.get(name, ())}
    there = {row["id"]: row for row in found}
    if there.keys() != wanted.keys():
        return {"id": there.keys() ^ wanted.keys()}
    differs: dict[str, Any] = {}
    for field in (field for field in columns if field not in ABSENT.get(name, ())):
        kind = SCHEMA.field(field).type
        for number, row in wanted.items():
            here, value = plain(kind, row[field]), plain(kind, there[number][field])
            if field in UNSIGNED.get(name, ()):
                here, value = str(here).replace("-0.0", "0.0"), str(value).replace("-0.0", "0.0")
            if here != value:
                differs.setdefault(field, []).append((number, here, value))
    return differs


@contextmanager
def in_zone(zone: str) -> Iterator[None]:
    """This process."""
    before, os.environ["TZ"] = os.environ.get("TZ"), zone
    time.tzset()
    try:
        yield
    finally:
        del os.environ["TZ"]
        os.environ.update({} if before is None else {"TZ": before})
        time.tzset()
