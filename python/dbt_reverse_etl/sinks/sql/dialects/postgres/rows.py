"""Writes one batch by COPY and statements on the staging table; rows that the table refuses are searched inside the server.

Names and operators are qualified: a function or operator of somebody else that fits better would run with our rights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import replace
from typing import Any

import pyarrow.types as pt
from psycopg import sql

from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.columns import Changes
from dbt_reverse_etl.sinks.sql.dialect import Fault
from dbt_reverse_etl.sinks.sql.dialects.postgres.copying import stream_of
from dbt_reverse_etl.sinks.sql.dialects.postgres.session import (
    CARDINALITY,
    INTERNAL,
    NO_EFFECT,
    OTHER_CLASSES,
    OTHER_KEY_STATE,
    RAISED,
    RAISED_FOR_REPEAT,
    condition,
)
from dbt_reverse_etl.sinks.sql.dialects.postgres.table import PostgresColumn
from dbt_reverse_etl.sinks.sql.rows import IGNORED, INEFFECTIVE, OTHER_KEY, Found, Step
from dbt_reverse_etl.sinks.sql.statements import EVERY_ROW, STAGE, StagedWriter, conjunction
from dbt_reverse_etl.sinks.sql.table import OURS, Name, quoted, soft_delete

_STAGE = f'pg_temp."{STAGE}"'
REFUSED = f'pg_temp."{OURS}refused"'
SLICE = 500  # ranges in one search: it copies the list of those that are left for each one
CHECK = "23514"  # without a constraint also of a row without a partition
OF_VALUES = "22"  # the class of a value that its type cannot hold
IN_RANGE = "s.place OPERATOR(pg_catalog.>=) search.first AND s.place OPERATOR(pg_catalog.<) search.after"
CREATE_REFUSED = f"CREATE TEMPORARY TABLE {REFUSED} (place int4, state text, constr text, col text) ON COMMIT DROP"

# Halves a range until the rows that the table refuses stand alone; a failed half leaves nothing behind.
_SEARCH = """
#variable_conflict use_column
<<search>>
DECLARE firsts int[] := {firsts}; afters int[] := {afters}; first int; after int; middle int; changed bigint;
    expected bigint; state text; constr text; col text; context text; depth int; raised boolean;
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
            {check}
        EXCEPTION WHEN OTHERS OR assert_failure OR query_canceled THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, constr = CONSTRAINT_NAME, col = COLUMN_NAME,
                context = PG_EXCEPTION_CONTEXT;
            raised := pg_catalog.split_part(search.context, pg_catalog.chr(10), 1) OPERATOR(pg_catalog.~) '{line}'
                AND search.state OPERATOR(pg_catalog.<>) ALL ({for_repeat});
            IF NOT search.raised AND search.state OPERATOR(pg_catalog.<>) ALL ({of_rows})
                    AND pg_catalog."left"(search.state, 2) OPERATOR(pg_catalog.=) ANY ({others}) THEN
                RAISE;
            END IF;
            IF search.after OPERATOR(pg_catalog.-) search.first OPERATOR(pg_catalog.>) 1 THEN
                middle := (search.first OPERATOR(pg_catalog.+) search.after) OPERATOR(pg_catalog./) 2;
                firsts := pg_catalog.array_cat(search.firsts, ARRAY[search.middle, search.first]);
                afters := pg_catalog.array_cat(search.afters, ARRAY[search.after, search.middle]);
            ELSE
                INSERT INTO {refused} VALUES (search.first, search.state, search.constr, search.col);
            END IF;
        END;
    END LOOP;
END search"""

# After the statement: it changed each of these rows.
_CHANGED = """
            SELECT pg_catalog.count(*) INTO expected FROM {stage} s WHERE {wanted};
            IF search.changed OPERATOR(pg_catalog.<) search.expected THEN
                RAISE EXCEPTION USING ERRCODE = '{no_effect}';
            END IF;"""
# After it: each of these rows is in the table.
_STORED = """
            IF EXISTS (SELECT FROM {stage} s WHERE {absent}) THEN
                RAISE EXCEPTION USING
                    ERRCODE = CASE WHEN search.changed OPERATOR(pg_catalog.=) 0 THEN '{no_effect}' ELSE '{other_key}' END;
            END IF;"""

_NUMERIC = Name("pg_catalog", "numeric")
_CONSTRAINTS = """
SELECT conname::pg_catalog.text FROM pg_catalog.pg_constraint WHERE conname = ANY (%s::pg_catalog.name[])
UNION SELECT relname::pg_catalog.text FROM pg_catalog.pg_class
WHERE relkind IN ('i', 'I') AND relname = ANY (%s::pg_catalog.name[])"""


def search(statement: str, ranges: Sequence[range], check: str = "") -> str:
    """A block that finds the rows in these ranges that the table refuses, or a check after them, and carries out the others."""
    body = _SEARCH.format(
        firsts=_array(part.start for part in ranges),
        afters=_array(part.stop for part in ranges),
        statement=statement,
        check=check,
        refused=REFUSED,
        line=RAISED,
        for_repeat=_texts(RAISED_FOR_REPEAT),
        of_rows=_texts({CARDINALITY, INTERNAL}),
        others=_texts(OTHER_CLASSES),
    )
    return f"DO {sql.Literal(body).as_string(None)}"


def _array(numbers: Iterable[int]) -> str:
    return f"'{{{','.join(map(str, numbers))}}}'::int[]"


def _texts(texts: Iterable[str]) -> str:
    return f"'{{{','.join(sorted(texts))}}}'::text[]"


class PostgresWriter(StagedWriter):
    """Everything at once; only if a row is refused, by a search in the server."""

    sorts = True

    @property
    def now(self) -> str:
        """In UTC, where the column has no zone."""
        column = self.table.columns[soft_delete(self.task) or ""]
        return "pg_catalog.now()" if column.kind == "timestamptz" else "pg_catalog.timezone('UTC', pg_catalog.now())"

    @property
    def stage_table(self) -> str:
        return _STAGE

    def packed(self, changes: Changes) -> Changes:
        return replace(changes, data=stream_of(changes, self._types))

    @property
    def _types(self) -> list[str]:
        """Of the fields in the staging table."""
        return [self.dialect.kind(kind).staged for kind in self.task.schema.types]

    def load(self, connection: Any, changes: Changes) -> None:
        cells = ", ".join(f'c{at} pg_catalog."{of_type}"' for at, of_type in enumerate(self._types))
        layout = f"place int4, deleted bool, {cells}"
        self.dialect.run(connection, f'CREATE TEMPORARY TABLE "{STAGE}" ({layout}) ON COMMIT DROP')
        with connection.cursor() as cursor, cursor.copy(f"COPY {_STAGE} FROM STDIN (FORMAT binary)".encode()) as copy:
            for piece in changes.data:
                copy.write(piece)

    def already(self, connection: Any) -> Collection[int]:
        """For example after `suppress_redundant_updates_trigger`."""
        same = [self.not_yet_deleted, *map(self.holds, self.others)]
        return self.places(connection, f"NOT s.deleted AND {self.there(conjunction(same))}")

    def holds(self, name: str) -> str:
        there, value = f"t.{self.dialect.quoted(name)}", f"({self.value(name)})"
        # The texts of 1.5 and 1.50 differ, which are one value.
        is_number = _NUMERIC in (self.columns[name].type, self.columns[name].element)
        is_same = f"{there} OPERATOR(pg_catalog.=) {value}" if is_number else _same_text(there, value)
        return f"({is_same} OR {there} IS NULL AND {value} IS NULL)"

    def check_now(self, connection: Any) -> None:
        self.dialect.run(connection, "SET CONSTRAINTS ALL IMMEDIATE")

    def begin_search(self, connection: Any) -> None:
        super().begin_search(connection)
        for statement in (CREATE_REFUSED, f"CREATE UNIQUE INDEX ON {_STAGE} (place)"):
            self.dialect.run(connection, statement)

    def search(self, connection: Any, step: Step, changes: Changes, ranges: Sequence[range]) -> Found:
        if step is Step.WRITE:
            return self._search(connection, self.statement(step, IN_RANGE), ranges, self._check)
        found = self._search(connection, self.statement(step, IN_RANGE), ranges)
        suspects = [range(place, place + 1) for place, fault in found.items() if fault[0][:2] == OF_VALUES]
        if suspects:  # a trigger may raise the same
            keys = ", ".join(map(self.value, self.task.key))
            reading = f"PERFORM {keys} FROM {_STAGE} s WHERE {IN_RANGE}"
            # The table has no such key, so there is nothing to do.
            absent = self._search(connection, reading, suspects)
            self.drop(connection, changes, absent)
            found = {place: fault for place, fault in found.items() if place not in absent}
        return found

    def _search(self, connection: Any, statement: str, ranges: Sequence[range], check: str = "") -> Found:
        for start in range(0, len(ranges), SLICE):
            self.dialect.run(connection, search(statement, ranges[start : start + SLICE][::-1], check))
        found = self.dialect.run(connection, f"DELETE FROM {REFUSED} RETURNING place, state, constr, col")
        return {place: INEFFECTIVE if state == NO_EFFECT else (state, *names) for place, state, *names in found}

    @property
    def _check(self) -> str:
        check, states = "", {"no_effect": NO_EFFECT, "other_key": OTHER_KEY_STATE}
        if self.strict:
            # `misspelt` reads the keys of an update also where no row of the table makes it read them: a bad one is refused here.
            readable = [f"({exact}) IS NOT NULL" for exact in self.exact]
            wanted = conjunction(["NOT s.deleted", IN_RANGE, *readable])
            check += _CHANGED.format(stage=_STAGE, wanted=wanted, **states)
        if self.table.rewrites:
            absent = conjunction(["NOT s.deleted", IN_RANGE, f"NOT {self.there(EVERY_ROW)}"])
            check += _STORED.format(stage=_STAGE, absent=absent, **states)
        return check

    def misspelt(self, connection: Any) -> Collection[int]:
        if not self._merging:
            return []
        found = self.places(connection, f"NOT s.deleted AND NOT ({conjunction(self.exact)})")
        if self.task.mode is not Mode.UPDATE_ONLY:
            other = f"{conjunction(self._equal)} AND NOT ({conjunction(self._same_texts)})"
            there = f"EXISTS (SELECT FROM {self.name.sql} AS t WHERE {other})"
            found += self.places(connection, f"NOT s.deleted AND {there}")
        return found

    def waits(self, fault: Fault) -> bool:
        return str(fault[0]).startswith("23")

    def reasons(self, connection: Any, found: Found) -> dict[int, str]:
        named = [fault[1] for fault in found.values() if self.waits(fault)]
        # A trigger may give any text as a name, also a value of the row.
        known = {name for (name,) in self.dialect.run(connection, _CONSTRAINTS, (named, named))} if named else set()
        reasons = {fault: self._reason(fault, known) for fault in set(found.values())}
        return {row: reasons[fault] for row, fault in found.items()}

    def _reason(self, fault: Fault, known: Set[str]) -> str:
        if fault == INEFFECTIVE:
            return IGNORED
        if fault[0] == OTHER_KEY_STATE:
            return OTHER_KEY
        state, constraint, column = fault
        if not self.waits(fault):
            return condition(state)
        if constraint in known:
            return f"{condition(state)}, constraint {constraint}"
        if state == CHECK and not constraint and self.table.partitioned:
            return f"{condition(state)}: no partition takes the row, or a trigger refused it"
        return condition(state) + (f", column {column}" if column in self.table.columns else "")

    def drop(self, connection: Any, changes: Changes, rows: Collection[int]) -> None:
        gone = "USING pg_catalog.unnest(%s::int4[]) u (place) WHERE s.place OPERATOR(pg_catalog.=) u.place"
        self.dialect.run(connection, f"DELETE FROM {_STAGE} s {gone}", (list(rows),))

    @property
    def match(self) -> list[str]:
        return self._equal + self._same_texts

    @property
    def _equal(self) -> list[str]:
        return [
            f"t.{self.dialect.quoted(key)} OPERATOR({_schema_of_equals(self.columns[key])}.=) {self.value(key)}"
            for key in self.task.key
        ]

    @property
    def _same_texts(self) -> list[str]:
        return [_same_text(f"t.{self.dialect.quoted(key)}", self.cell(key)) for key in self._merging]

    @property
    def exact(self) -> list[str]:
        """A key that the table would show in another spelling could be two keys of the model."""
        return [_same_text(self.cell(key), self.value(key)) for key in self._merging]

    @property
    def same_row(self) -> list[str]:
        keys = map(self.dialect.quoted, self._merging)
        return [_same_text(f"t.{key}", f"excluded.{key}") for key in keys]

    @property
    def _merging(self) -> list[str]:
        """Text keys of which two different ones may be one to the table."""
        return [key for key in self.text_keys if not self.columns[key].is_exact]

    def value(self, name: str) -> str:
        """Without the length of the column: the assignment checks that, where a cast would cut."""
        cell, column = self.cell(name), self.columns[name]
        kind = self.task.schema.field(name).type
        if column.element is not None and pt.is_nested(kind):
            elements = f"pg_catalog.json_array_elements_text({cell}::pg_catalog.json) WITH ORDINALITY e (value, at)"
            array = f"ARRAY(SELECT e.value::{column.element.sql} FROM {elements} ORDER BY e.at)"
            return f"CASE WHEN {cell} IS NOT NULL THEN {array} END"
        staged = Name("pg_catalog", self.dialect.kind(kind).staged)
        return cell if column.type == staged else f"{cell}::{column.type.sql}"


def _schema_of_equals(column: PostgresColumn) -> str:
    """Where the operator of a type stands: beside it; one of Postgres is for all enums, arrays, ranges and composites."""
    return quoted("pg_catalog" if column.category in "EARC" else str(column.type.schema))


def _same_text(one: str, other: str) -> str:
    bare = '{}::pg_catalog.text COLLATE pg_catalog."C"'
    return f"{bare.format(one)} OPERATOR(pg_catalog.=) {bare.format(other)}"
