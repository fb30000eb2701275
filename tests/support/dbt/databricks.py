"""A stand-in for a Databricks SQL connection: dbt-databricks renders as for a workspace, the SQL is recorded, and carried out by Spark with Delta.

What open-source Spark cannot be asked is answered here in the documented shape, each in one function of ANSWERS. Results take the way through the
connector's own conversion from Arrow, so that maps, arrays and times reach dbt as they do from a workspace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from databricks.sql.exc import ServerOperationError
from databricks.sql.result_set import ThriftResultSet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, types

# The catalog that is current: a name of two levels, or of one, leads there and finds nothing.
ELSEWHERE = {
    "spark.sql.catalog.elsewhere": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
    "spark.sql.catalog.elsewhere.url": "jdbc:derby:memory:elsewhere;create=true",
    "spark.sql.catalog.elsewhere.driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
}


class Workspace:
    """What `databricks.sql.connect` is replaced with. Each connection is a session of its own, as there: its temporary views are gone with it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.recorded: list[str] = []

    def connect(self, **_: Any) -> Connection:
        return Connection(self._spark.newSession(), self.recorded)


class Connection:
    def __init__(self, session: SparkSession, recorded: list[str]) -> None:
        self.session, self.recorded = session, recorded
        self.session_id = ""
        for name, value in ELSEWHERE.items():
            session.conf.set(name, value)
        session.conf.set("spark.sql.ansi.enabled", "true")  # as SQL warehouses have it
        session.sql("use elsewhere")

    def cursor(self) -> Cursor:
        return Cursor(self)

    def get_session_id_hex(self) -> str:
        return format(id(self), "x")

    def close(self) -> None:
        pass

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Cursor:
    query_id = "recorded"

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.description: list[tuple[Any, ...]] | None = None
        self._rows: Iterator[Any] = iter(())

    def execute(self, sql: str, parameters: Any = None) -> Cursor:
        sql = re.sub(r"/\*(?!\+).*?\*/", "", sql, count=1, flags=re.DOTALL).strip()  # dbt's query comment
        self.connection.recorded.append(sql)
        try:
            table = _answered(self.connection.session, sql)
        except PySparkException as error:
            raise ServerOperationError(str(error)) from error
        self.description = [(name, "", None, None, None, None, None) for name in table.column_names]
        result = SimpleNamespace(description=self.description, connection=SimpleNamespace(disable_pandas=False))
        self._rows = iter(ThriftResultSet._convert_arrow_table(result, table))
        return self

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchmany(self, size: int) -> list[Any]:
        return [row for _, row in zip(range(size), self._rows, strict=False)]

    def close(self) -> None:
        pass

    cancel = close

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _answered(session: SparkSession, sql: str) -> pa.Table:
    for pattern, answer in ANSWERS.items():
        found = re.search(pattern, sql, re.IGNORECASE | re.DOTALL)
        if found:
            return answer(session, found)
    return session.sql(sql).toArrow()


def _runtime(session: SparkSession, found: re.Match[str]) -> pa.Table:
    """The first runtime with Spark 4 whose support is long."""
    return pa.table({"key": ["spark.databricks.clusterUsageTags.sparkVersion"], "value": ["17.3.x-scala2.13"]})


def _no_setting(session: SparkSession, found: re.Match[str]) -> pa.Table:
    """A SQL warehouse takes none of Spark's own."""
    raise ServerOperationError(f"[CONFIG_NOT_AVAILABLE] Configuration {found[1]} is not available.")


def _information_schema_tables(session: SparkSession, found: re.Match[str]) -> pa.Table:
    """Spark has no information_schema. Every table is one that Delta manages."""
    schema = f"{found[1]}.{found[2]}"
    views = {row.viewName for row in session.sql(f"show views in {schema}").collect() if not row.isTemporary}
    tables = [row.tableName for row in session.sql(f"show tables in {schema}").collect() if not row.isTemporary]
    rows = [
        (name, *(("view", None, "owner", None) if name in views else ("table", "delta", "owner", "managed")))
        for name in tables
    ]
    names = ("table_name", "table_type", "file_format", "table_owner", "databricks_table_type")
    return pa.table({name: pa.array([row[n] for row in rows], pa.string()) for n, name in enumerate(names)})


def _described_as_json(session: SparkSession, found: re.Match[str]) -> pa.Table:
    """Spark describes as JSON only tables of its own formats."""
    fields = session.table(found[1]).schema.fields
    columns = [{"name": one.name, "type": _type_as_json(one.dataType)} for one in fields]
    return pa.table({"json_metadata": [json.dumps({"columns": columns})]})


def _type_as_json(kind: types.DataType) -> dict[str, Any]:
    if isinstance(kind, types.StructType):
        return {"name": "struct", "fields": [{"name": f.name, "type": _type_as_json(f.dataType)} for f in kind.fields]}
    if isinstance(kind, types.ArrayType):
        return {"name": "array", "element_type": _type_as_json(kind.elementType)}
    if isinstance(kind, types.MapType):
        return {"name": "map", "key_type": _type_as_json(kind.keyType), "value_type": _type_as_json(kind.valueType)}
    if isinstance(kind, types.DecimalType):
        return {"name": "decimal", "precision": kind.precision, "scale": kind.scale}
    if isinstance(kind, types.TimestampType):
        return {"name": "timestamp_ltz"}
    return {"name": kind.simpleString()}


def _renamed(session: SparkSession, found: re.Match[str]) -> pa.Table:
    """Spark wants the new name without its catalog."""
    return session.sql(f"{found[1]} {found[2]}").toArrow()


def _column_comment(session: SparkSession, found: re.Match[str]) -> pa.Table:
    """Spark has the older statement for it."""
    return session.sql(f"alter table {found[1]} alter column {found[2]} comment {found[3]}").toArrow()


def _grants(session: SparkSession, found: re.Match[str]) -> pa.Table:
    """Spark keeps no grants: nobody has any yet."""
    names = ("Principal", "ActionType", "ObjectType", "ObjectKey")
    return pa.table({name: pa.array([], pa.string()) for name in names})


def _optimized(session: SparkSession, found: re.Match[str]) -> pa.Table:
    """PySpark makes no Arrow table of what it tells."""
    session.sql(found.string)
    return pa.table({})


ANSWERS: dict[str, Callable[[SparkSession, re.Match[str]], pa.Table]] = {
    r"^set spark\.databricks\.clusterUsageTags\.sparkVersion$": _runtime,
    r"^(?:re)?set (spark\.\S+)": _no_setting,
    r"from `system`\.`information_schema`\.`tables`\s+where table_catalog = '(\w+)'\s+and table_schema = '(\w+)'": _information_schema_tables,
    r"^describe table extended (\S+) as json$": _described_as_json,
    r"^(alter (?:table|view) \S+ rename to) `[^`]+`\.(\S+)$": _renamed,
    r"^comment on column (.+)\.(`[^`]+`) is ('.*')$": _column_comment,
    r"^(?:optimize|reorg table) ": _optimized,
    r"^(?:show grants on|grant|revoke) ": _grants,
}
