"""The ledger: one append-only Delta table of facts, each fact one row, each call one commit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.utils import is_remote

from dbt_reverse_etl.base import sql
from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.base.interrupts import apart
from dbt_reverse_etl.base.times import utc
from dbt_reverse_etl.base.version import VERSION
from dbt_reverse_etl.delivery.facts import Fact, RunStarted
from dbt_reverse_etl.delivery.position import State, fold
from dbt_reverse_etl.warehouse.commits import Commits, said
from dbt_reverse_etl.warehouse.overview import ALERT, REFUSED, TESTS, Heard, Overview, Refusal, Request
from dbt_reverse_etl.warehouse.spec import Spec

REQUEST = "request"

_PART = 8 * 1024 * 1024  # characters of a body in one task: a cluster takes none above spark.rpc.message.maxSize
_WHOLE = "array_join(transform(array_sort(collect_list(struct(_part, body))), one -> one.body), '')"

_SCHEMA = pa.schema(
    {
        "sync_id": pa.string(),
        "fence": pa.int64(),
        "seq": pa.int64(),
        "fact": pa.string(),
        "recorded_at": pa.timestamp("us", "UTC"),
        "sync": pa.string(),
        "run_id": pa.string(),
        "body": pa.string(),
    }
)


def _word(kind: type) -> str:
    """RunStarted -> run_started: the ledger's word for a fact."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


_ADAPTERS: dict[str, TypeAdapter[Fact]] = {_word(kind): TypeAdapter(kind) for kind in Fact.__args__}


def encode(fact: Fact) -> tuple[str, str]:
    """The ledger's word for the kind of a fact, and its body, JSON."""
    word = _word(type(fact))
    return word, _ADAPTERS[word].dump_json(fact).decode()


def decode(word: str, body: str) -> Fact:
    """What `encode` was given.

    Raises:
        ReverseEtlError: a later version wrote it.
        ValidationError: it is damaged.
    """
    try:
        if word in _ADAPTERS:
            return _ADAPTERS[word].validate_json(body)
        found = f"a fact {word}"
    except ValidationError as error:
        unknown = [one["loc"][-1] for one in error.errors() if one["type"] == "unexpected_keyword_argument"]
        if not unknown:
            raise
        found = f"a fact {word} with {unknown[0]}"
    expected = f"what version {VERSION} knows"
    next_step = "upgrade dbt-reverse-etl to the release that wrote it: pip install --upgrade dbt-reverse-etl"
    raise ReverseEtlError(Problem("the ledger", found, expected, next_step))


class DeltaLedger:
    """`delivery.ports.LedgerPort` on a Delta table, by its name as dbt renders it."""

    def __init__(self, spark: SparkSession, relation: str) -> None:
        self._spark, self.relation = spark, relation
        self._commits = Commits(spark, relation)

    def create(self, schema: str = "") -> None:
        """Make the table if the model `reverse_etl_ledger` was not run yet.

        Args:
            schema: made, too, if it is missing; catalogs ask for that right even where it is there.
        """
        if self._spark.catalog.tableExists(self.relation):
            return
        if schema and not self._spark.catalog.databaseExists(schema):
            self._spark.sql(f"create schema if not exists {schema}")
        self._spark.sql(sql.render("_create_ledger", self.relation, sql.render("_ledger_columns")))

    def read(self, sync_id: str, fence: int | None = None) -> State:
        """The folded facts of one fence; of the newest by default."""
        fence = self.fence(sync_id) if fence is None else fence
        return fold(self._facts([(sync_id, fence)]).get(sync_id, []))

    def fence(self, sync_id: str) -> int:
        """The newest fence; 0 before the first run."""
        known = self._commits.fence(sync_id)
        if known is not None:
            return known
        query = f"select max(fence) from {self.relation} where sync_id = {_literal(sync_id)} and fact = 'run_started'"  # noqa: S608
        return int(self._spark.sql(query).collect()[0][0] or 0)

    def start(self, started: RunStarted, before: State | None = None) -> State | None:
        """Commit atomically, and return the state of the fence before. None: another run has this fence.

        txnVersion lets one of several runs with this fence commit; a late one is skipped silently, so it is looked up who began.

        Args:
            before: that state as it was read after `overview`, if it was.
        """
        try:
            self._insert([started], txnAppId=started.sync_id, txnVersion=str(started.fence))
        except Exception as error:
            if "ConcurrentTransactionException" not in f"{type(error).__name__} {error}":
                raise
            return None
        if before is not None and self._commits.is_unchanged(started):
            return before
        query = (
            f"select fence, fact, run_id, body from {self.relation} "  # noqa: S608
            f"where sync_id = {_literal(started.sync_id)} and fence in ({started.fence - 1}, {started.fence})"
        )
        rows = self._spark.sql(query).collect()
        began = [row.run_id for row in rows if row.fence == started.fence and row.fact == "run_started"]
        before = fold(decode(row.fact, row.body) for row in rows if row.fence < started.fence)
        return before if began == [started.run_id] else None

    def append(self, *facts: Fact) -> None:
        """One commit."""
        self._insert(facts)

    @apart
    def record(
        self, fact: str, known: Mapping[str, Refusal | Heard | Sequence[str]], invocation_id: str, now: datetime
    ) -> None:
        """Facts that belong to no run; one commit. Of one name, the last record counts, whatever its clock says.

        Args:
            fact: `REFUSED` or `ALERT`, by the name of the sync; `TESTS` that fail now, by the relation of their changelog.
        """
        query = f"select max(seq) from {self.relation} where sync_id = '{fact}'"  # noqa: S608
        newest = int(self._spark.sql(query).collect()[0][0] or 0)
        common = {"sync_id": fact, "fence": 0, "fact": fact, "recorded_at": now}
        common |= {"seq": newest + 1, "run_id": invocation_id}
        self._write([{**common, "sync": name, "body": _body(one)} for name, one in known.items()], said(fact, 0))

    @apart
    def overview(
        self, names: Iterable[str], configured: Collection[str] = (), relations: Mapping[str, str] | None = None
    ) -> Overview:
        """What is known under these names: of syncs, and relations of changelogs.

        Args:
            configured: ids of all syncs of the project.
            relations: of their changelogs, by the name of the sync: another target may record its own by the same name.
        """
        wanted, places = sorted(set(names)), relations or {}
        if not wanted:
            return Overview()
        self._commits.follow()
        rows = self._spark.sql(sql.render("ledger_overview", self.relation, wanted)).collect()
        newest = {row.sync_id: row for row in rows if row.fact == "run_started"}
        aliases = {sync_id: set(row.names) for sync_id, row in newest.items()}
        # Without a run of its own, a sync may have had another name.
        asked = newest if set(configured) - newest.keys() else _named(newest, aliases, wanted)
        facts = self._facts([(sync_id, row.fence) for sync_id, row in asked.items()])
        return Overview(
            {sync_id: fold(found) for sync_id, found in facts.items()},
            _requests(rows),
            {sync_id: fact for sync_id, found in facts.items() for fact in found if isinstance(fact, RunStarted)},
            {row.sync: tuple(json.loads(row.body)) for row in rows if row.fact == TESTS},
            {
                row.sync: Refusal(**one, at=utc(row.recorded_at))
                for row, one in _of_target(rows, REFUSED, Refusal, places)
            },
            {row.sync: Heard(**known) for row, known in _of_target(rows, ALERT, Heard, places)},
            frozenset(configured),
            aliases,
        )

    def specs(self, sync_id: str, changelog: str, known_from: int) -> list[tuple[str, Spec, int]]:
        """The specs of what a sync delivered from a changelog since a fence: id, spec, and the newest snapshot of it."""
        query = sql.render("specs_of", self.relation, sync_id, sql.render("_string", changelog), known_from)
        return [(row.id, Spec.of(row.text), row.snapshot) for row in self._spark.sql(query).collect()]

    def restored_at(self, since: datetime) -> datetime | None:
        """When RESTORE brought an older state of it back last, since then and as far as the table's history tells."""
        return self._commits.restored_at(since)

    def _facts(self, fences: Sequence[tuple[str, int]]) -> dict[str, list[Fact]]:
        """The facts of one fence for each sync. Fences are literals, so that Delta skips the files of older runs."""
        if not fences:
            return {}
        wanted = " or ".join(f"(sync_id = {_literal(sync_id)} and fence = {int(fence)})" for sync_id, fence in fences)
        query = f"select sync_id, fact, body from {self.relation} where {wanted}"  # noqa: S608
        found: dict[str, list[Fact]] = {}
        for row in self._spark.sql(query).collect():
            found.setdefault(row.sync_id, []).append(decode(row.fact, row.body))
        return found

    def _insert(self, facts: Sequence[Fact], **options: str) -> None:
        by = said(facts[0].sync_id, facts[0].fence, *facts)
        self._write([_row(fact) for fact in facts], by, **options)

    def _write(self, rows: Sequence[Mapping[str, Any]], by: str, **options: str) -> None:
        frame = self._frame(rows)
        try:
            # saveAsTable would create a ledger that was dropped meanwhile.
            frame.writeTo(self.relation).options(userMetadata=by, **options).append()
        except AnalysisException as error:
            if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
                raise
            found, expected = "no table: it was dropped meanwhile", "the ledger that was there before"
            next_step = "bring it back; or dbt run, which makes a new one, and says what to do for each sync"
            raise ReverseEtlError(Problem(self.relation, found, expected, next_step)) from None

    def _frame(self, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
        if is_remote() or sum(len(row["body"]) for row in rows) <= _PART:
            # Spark would give each row a task, and so a file.
            return self._spark.createDataFrame(pa.Table.from_pylist(rows, schema=_SCHEMA)).coalesce(1)
        schema = pa.schema([*_SCHEMA, ("_row", pa.int64()), ("_part", pa.int64())])
        # A frame each, for Spark may send the rows of one frame in one task.
        frames = [self._spark.createDataFrame(pa.Table.from_pylist([part], schema=schema)) for part in parts_of(rows)]
        others = [name for name in schema.names if name not in {"body", "_part"}]
        whole = reduce(DataFrame.unionAll, frames).groupBy(*others).agg(expr(_WHOLE).alias("body"))
        return whole.select(*_SCHEMA.names)


class Prefetched:
    """The ledger, but for the first read, which one query answered for all syncs. A run that started since then holds the next
    fence, so that this one cannot start. `begins` is called before each start, `began` after it.
    """

    def __init__(
        self, ledger: DeltaLedger, state: State, begins: Callable[[], None], began: Callable[[RunStarted], None]
    ) -> None:
        self._ledger, self._state, self._begins, self._began = ledger, state, begins, began
        self.append, self.fence, self.restored_at = ledger.append, ledger.fence, ledger.restored_at

    def start(self, started: RunStarted) -> State | None:
        """As the ledger's."""
        self._begins()
        before = self._ledger.start(started, self._state)
        if before is not None:
            self._began(started)
        return before

    def read(self, sync_id: str, fence: int | None = None) -> State:
        """As the ledger's."""
        return self._state if fence is None else self._ledger.read(sync_id, fence)


def parts_of(rows: Iterable[Mapping[str, Any]], size: int | None = None) -> Iterator[dict[str, Any]]:
    """The rows with their bodies in parts of `size` characters."""
    size = size or _PART
    for number, row in enumerate(rows):
        for part, start in enumerate(range(0, max(1, len(row["body"])), size)):
            yield {**row, "body": row["body"][start : start + size], "_row": number, "_part": part}


def _requests(rows: Sequence[Row]) -> dict[str, list[Request]]:
    """By the name of the sync, oldest first, what no run has carried out."""
    over = {request for row in rows for request in row.carried_out}
    found: dict[str, list[Request]] = {}
    left = [row for row in rows if row.fact == REQUEST and row.run_id not in over]
    for row in sorted(left, key=lambda row: utc(row.recorded_at)):
        said = json.loads(row.body)
        kept = ("changelog", "snapshot", "exposure", "relation", "destination", "object")
        more = {name: said[name] for name in kept if name in said}
        request = Request(row.run_id, row.sync, said["operation"], utc(row.recorded_at), **more)
        found.setdefault(row.sync, []).append(request)
    return found


def _body(record: Refusal | Heard | Sequence[str]) -> str:
    if isinstance(record, Refusal | Heard):
        return json.dumps({name: value for name, value in asdict(record).items() if name != "at"})
    return json.dumps(sorted(record))


def _of_target(
    rows: Sequence[Row], fact: str, kind: type[Refusal | Heard], relations: Mapping[str, str]
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """The records of one kind that belong to no run, with what this version knows of them; an older one kept no relation."""
    found = [(row, json.loads(row.body)) for row in rows if row.fact == fact]
    for row, known in sorted(found, key=lambda one: bool(one[1].get("relation"))):
        of = sql.plain_relation(known.get("relation", ""))
        if of in ("", sql.plain_relation(relations.get(row.sync, ""))):
            yield row, {name: value for name, value in known.items() if name in kind.__dataclass_fields__}


def _named(newest: Mapping[str, Row], aliases: Mapping[str, set[str]], names: Iterable[str]) -> dict[str, Row]:
    return {sync_id: row for sync_id, row in newest.items() if not aliases[sync_id].isdisjoint(names)}


def _row(fact: Fact) -> dict[str, Any]:
    word, body = encode(fact)
    some = {name: getattr(fact, name, empty) for name, empty in (("seq", 0), ("sync", ""), ("run_id", ""))}
    common = {"sync_id": fact.sync_id, "fence": fact.fence, "fact": word, "recorded_at": fact.at}
    return {**common, **some, "body": body}


def _literal(value: str) -> str:
    """SQL text of a string. Not a query parameter: with Delta's extension Spark 4.1 leaves those unbound."""
    return sql.render("_string", value)
