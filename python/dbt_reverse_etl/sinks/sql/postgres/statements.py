"""The SQL of one sync on its Postgres table. Identifiers are quoted by psycopg, values come from the staging table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
from psycopg import sql

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.database import OURS
from dbt_reverse_etl.sinks.sql.postgres.catalog import Column, Name, Table
from dbt_reverse_etl.sinks.sql.postgres.table import merges_texts, soft_delete
from dbt_reverse_etl.sinks.sql.postgres.values import staging_type
from dbt_reverse_etl.values.arrow import plain_type

Query = sql.SQL | sql.Composed
Render = Callable[[Query], Query]
STAGE, REFUSED = (sql.Identifier("pg_temp", f"{OURS}{name}") for name in ("stage", "refused"))
EVERY_ROW, IN_RANGE = (
    sql.SQL("true"),
    sql.SQL("s.row OPERATOR(pg_catalog.>=) search.first AND s.row OPERATOR(pg_catalog.<) search.after"),
)
NO_EFFECT = "DR001"  # our own SQLSTATE: a statement did less than it should

CREATE_REFUSED = sql.SQL(
    "CREATE TEMPORARY TABLE {} (row int4, state text, place text, col text) ON COMMIT DROP; CREATE UNIQUE INDEX ON {} (row)"
).format(sql.Identifier(f"{OURS}refused"), STAGE)

# Halves a range until the rows that the table refuses stand alone; a failed half leaves nothing behind.
# Names and operators are qualified: a function or operator of somebody else that fits better would run with our rights.
_SEARCH = sql.SQL("""
#variable_conflict use_column
<<search>>
DECLARE firsts int[] := {firsts}; afters int[] := {afters}; first int; after int; middle int; changed bigint;
    expected bigint; state text; place text; col text; depth int;
BEGIN
    LOOP
        depth := pg_catalog.cardinality(search.firsts);
        EXIT WHEN search.depth OPERATOR(pg_catalog.=) 0;
        first := search.firsts[search.depth];
        after := search.afters[search.depth];
        firsts := search.firsts[1:search.depth OPERATOR(pg_catalog.-) 1];
        afters := search.afters[1:search.depth OPERATOR(pg_catalog.-) 1];
        BEGIN
            {statement};
            GET DIAGNOSTICS changed = ROW_COUNT;
            IF {strict} THEN
                SELECT pg_catalog.count(*) INTO expected FROM {stage} s WHERE NOT s.deleted AND {in_range};
                IF search.changed OPERATOR(pg_catalog.<) search.expected THEN
                    RAISE EXCEPTION USING ERRCODE = {no_effect};
                END IF;
            END IF;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR cardinality_violation OR raise_exception
                OR with_check_option_violation OR program_limit_exceeded OR SQLSTATE {no_effect} THEN
            IF search.after OPERATOR(pg_catalog.-) search.first OPERATOR(pg_catalog.>) 1 THEN
                middle := (search.first OPERATOR(pg_catalog.+) search.after) OPERATOR(pg_catalog./) 2;
                firsts := pg_catalog.array_cat(search.firsts, ARRAY[search.middle, search.first]);
                afters := pg_catalog.array_cat(search.afters, ARRAY[search.after, search.middle]);
            ELSE
                GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, place = CONSTRAINT_NAME, col = COLUMN_NAME;
                INSERT INTO {refused} VALUES (search.first, search.state, search.place, search.col);
            END IF;
        END;
    END LOOP;
END search""")


@dataclass(frozen=True)
class Statements:
    """The SQL of one sync.

    Attributes:
        create_stage, copy: the staging table (`row`, `deleted`, then the fields c0, c1, ...), and how to fill it.
        write, delete: make the statement for the staged rows that a condition on `s` selects.
        drop_absent: of the staged writes, remove those whose key is not in the table; returns their rows.
        absent: rows of the staged writes whose key is not in the table.
        undeleted: rows of the staged deletes that are still there.
        strict: a write must change each of its rows.
        merges: different texts of the key may be one key to the table.
        columns: the names of the table's columns.
    """

    create_stage: Query
    copy: Query
    write: Render
    delete: Render
    drop_absent: Query
    absent: Query
    undeleted: Query
    strict: bool
    merges: bool
    columns: Set[str]


def search(statement: Render, firsts: Sequence[int], afters: Sequence[int], *, strict: bool) -> sql.Composed:
    """A block that finds the rows between `firsts` and `afters` that the table refuses, and carries out the others."""
    body = _SEARCH.format(
        firsts=_array(firsts),
        afters=_array(afters),
        statement=statement(IN_RANGE),
        strict=sql.SQL("true" if strict else "false"),
        stage=STAGE,
        in_range=IN_RANGE,
        refused=REFUSED,
        no_effect=sql.Literal(NO_EFFECT),
    )
    return sql.SQL("DO {}").format(sql.Literal(body.as_string(None)))


def _array(numbers: Iterable[int]) -> sql.Composed:
    return sql.SQL("{}::int[]").format(sql.Literal("{" + ",".join(map(str, numbers)) + "}"))


def statements(task: SinkTask, name: Name, table: Table) -> Statements:
    """Render the SQL of a task on its table."""
    return _Renderer(task, name, table).statements()


@dataclass(frozen=True)
class _Renderer:
    task: SinkTask
    name: Name
    table: Table

    def statements(self) -> Statements:
        staged = [_staged(index) for index in range(len(self.task.schema))]
        pairs = zip(staged, self.task.schema, strict=True)
        columns = [sql.SQL("{} {}").format(cell, sql.Identifier(staging_type(field.type))) for cell, field in pairs]
        stage = sql.SQL("CREATE TEMPORARY TABLE {} (row int4, deleted bool, {}) ON COMMIT DROP")
        absent = sql.SQL("NOT s.deleted AND NOT {}").format(self._there(EVERY_ROW))
        return Statements(
            create_stage=stage.format(sql.Identifier(f"{OURS}stage"), _listed(columns)),
            copy=sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(STAGE),
            write=self._update if self.task.mode is Mode.UPDATE_ONLY else self._insert,
            delete=self._delete,
            drop_absent=sql.SQL("DELETE FROM {} s WHERE {} RETURNING s.row").format(STAGE, absent),
            absent=sql.SQL("SELECT s.row FROM {} s WHERE {}").format(STAGE, absent),
            undeleted=sql.SQL("SELECT s.row FROM {} s WHERE s.deleted AND {}").format(
                STAGE, self._there(self._not_yet_deleted())
            ),
            strict=self.task.mode is not Mode.INSERT_ONLY,
            merges=bool(self._merging()),
            columns=frozenset(self.table.columns),
        )

    def _insert(self, rows: Query) -> Query:
        soft = soft_delete(self.task)
        names = [*self.task.schema.names, *([soft] if soft else [])]
        values = [self._value(field.name) for field in self.task.schema] + ([sql.SQL("NULL")] if soft else [])
        order = (sql.SQL(str(self.task.schema.names.index(key) + 1)) for key in self.task.key)
        return sql.SQL(
            "INSERT INTO {} AS t ({}) SELECT {} FROM {} s WHERE NOT s.deleted AND {} AND {} ORDER BY {} "
            "ON CONFLICT ({}) DO {}"
        ).format(
            self.name.sql,
            _listed(map(sql.Identifier, names)),
            _listed(values),
            STAGE,
            rows,
            self._is_exact(),
            _listed(order),
            _listed(map(sql.Identifier, self.task.key)),
            self._on_conflict(names),
        )

    def _on_conflict(self, names: Sequence[str]) -> Query:
        if self.task.mode is Mode.INSERT_ONLY:
            return sql.SQL("NOTHING")
        assignments = (sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in self._others(names))
        same = [_same_text(sql.Identifier("t", key), sql.Identifier("excluded", key)) for key in self._merging()]
        return sql.SQL("UPDATE SET {} WHERE {}").format(_listed(assignments), _all(same))

    def _update(self, rows: Query) -> Query:
        assignments = (
            sql.SQL("{} = {}").format(sql.Identifier(name), self._value(name))
            for name in self._others(self.task.schema.names)
        )
        return sql.SQL("UPDATE {} AS t SET {} FROM {} s WHERE NOT s.deleted AND {} AND {}").format(
            self.name.sql, _listed(assignments), STAGE, rows, self._match()
        )

    def _delete(self, rows: Query) -> Query:
        soft = soft_delete(self.task)
        if soft is None:
            return sql.SQL("DELETE FROM {} AS t USING {} s WHERE s.deleted AND {} AND {}").format(
                self.name.sql, STAGE, rows, self._match()
            )
        return sql.SQL(
            "UPDATE {} AS t SET {} = pg_catalog.now() FROM {} s WHERE s.deleted AND {} AND {} AND {}"
        ).format(self.name.sql, sql.Identifier(soft), STAGE, rows, self._match(), self._not_yet_deleted())

    def _not_yet_deleted(self) -> Query:
        soft = soft_delete(self.task)
        return sql.SQL("{} IS NULL").format(sql.Identifier("t", soft)) if soft else EVERY_ROW

    def _there(self, condition: Query) -> Query:
        return sql.SQL("EXISTS (SELECT FROM {} AS t WHERE {} AND {})").format(self.name.sql, self._match(), condition)

    def _match(self) -> Query:
        equal = [
            sql.SQL("{} OPERATOR({}.=) {}").format(
                sql.Identifier("t", key), sql.Identifier(_schema_of_equals(self.table.columns[key])), self._value(key)
            )
            for key in self.task.key
        ]
        same = [_same_text(sql.Identifier("t", key), self._cell(key)) for key in self._merging()]
        return _all([*equal, *same])

    def _is_exact(self) -> Query:
        """A key that the table would show in another spelling could be two keys of the model."""
        return _all([_same_text(self._cell(key), self._value(key)) for key in self._merging()])

    def _merging(self) -> list[str]:
        return [key for key in self.task.key if merges_texts(self.task.schema.field(key), self.table.columns[key])]

    def _others(self, names: Iterable[str]) -> Sequence[str]:
        return [name for name in names if name not in self.task.key] or self.task.key

    def _cell(self, name: str) -> Query:
        return sql.SQL("s.{}").format(_staged(self.task.schema.names.index(name)))

    def _value(self, name: str) -> Query:
        field, column = self.task.schema.field(name), self.table.columns[name]
        return _cast(self._cell(name), field, column)


def _cast(cell: Query, field: pa.Field, column: Column) -> Query:
    """A staged cell as its column's type, without its length: the assignment checks that, where a cast would cut."""
    if column.element is not None and pt.is_nested(plain_type(field.type)):
        return sql.SQL(
            "CASE WHEN {0} IS NOT NULL THEN ARRAY(SELECT e.value::{1} FROM pg_catalog.json_array_elements_text({0}::pg_catalog.json) "
            "WITH ORDINALITY e (value, at) ORDER BY e.at) END"
        ).format(cell, column.element.sql)
    if column.type == Name("pg_catalog", staging_type(field.type)):
        return cell
    return sql.SQL("{}::{}").format(cell, column.type.sql)


def _schema_of_equals(column: Column) -> str:
    """Where the operator of a type stands: beside it; one of Postgres is for all enums, arrays, ranges and composites."""
    return "pg_catalog" if column.category in "EARC" else column.type.schema


def _same_text(one: Query | sql.Identifier, other: Query | sql.Identifier) -> Query:
    bare = sql.SQL('{}::pg_catalog.text COLLATE pg_catalog."C"')
    return sql.SQL("{} OPERATOR(pg_catalog.=) {}").format(bare.format(one), bare.format(other))


def _staged(index: int) -> sql.Identifier:
    return sql.Identifier(f"c{index}")


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def _all(conditions: Sequence[Query]) -> Query:
    return sql.SQL(" AND ").join(conditions) if conditions else EVERY_ROW
