"""The tests that every sink passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import hypothesis
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr, ValidationError

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Batch, Mode, NewerFence, Settings, Sink, SinkTask, SparkSink
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.testing.rows import (
    PEOPLE,
    TYPES,
    Change,
    Row,
    batch_of,
    changes_to,
    deliver,
    next_run,
    opened,
    outcomes,
    person,
)

MakeTask = Callable[..., SinkTask]
MakeSink = Callable[[], Sink]
ReadBack = Callable[[SinkTask], Sequence[Row]]

CANARY = "canary-2718281828"
_NEXT_OBJECT = iter(range(10**9))


class SinkContract:
    """What the delivery engine relies on.

    A subclass names its `sink_class` and overrides the fixtures `settings` and `read_back`; pytest has no abstract fixtures, so these
    raise. A test of a thing that the sink does not claim to have is skipped, so that its author reads what was not proved.
    """

    sink_class: type[Sink]
    types: dict[str, tuple[pa.DataType, list[Any]]] = TYPES
    refused_characters: str = ""  # no text of the destination can hold them
    histories: int = 20  # random ones; fewer where each batch takes seconds

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        """What profiles.yml would say about an empty destination, without `type`."""
        raise NotImplementedError("override the fixture `settings`")

    @pytest.fixture
    def read_back(self) -> ReadBack:
        """Reads the rows of the task's object: what a consumer sees after all deliveries."""
        raise NotImplementedError("override the fixture `read_back`")

    @pytest.fixture
    def unreachable(self) -> dict[str, Any]:
        """Settings with which `check` must fail; carry the real secrets in them."""
        pytest.skip("no settings for a destination that cannot be reached")

    def expected(self, field: pa.Field, value: Any) -> Any:  # noqa: ARG002  (overrides need the field)
        """The form in which the destination holds a value; override it where that is not the value itself."""
        return value

    def refine(self, task: SinkTask) -> SinkTask:
        """Adapt each task to the sink, e.g. its object or options."""
        return task

    @pytest.fixture
    def make_sink(self, settings: dict[str, Any]) -> MakeSink:
        """Makes sinks on the same destination."""
        model = self.sink_class.settings_model.model_validate(settings)
        return lambda: self.sink_class(model)

    @pytest.fixture
    def make_task(self) -> MakeTask:
        """Makes tasks: by default with all rights that the sink offers, on an object of its own."""

        def make(schema: pa.Schema = PEOPLE, **changes: Any) -> SinkTask:
            number = next(_NEXT_OBJECT)
            modes = self.sink_class.modes
            best = next(mode for mode in (Mode.MIRROR, Mode.UPSERT, *Mode) if mode in modes)
            values: dict[str, Any] = {"sync_id": f"{number:032x}", "sync": "people", "object": f"people_{number}"}
            values |= {"fence": 1, "mode": best, "key": (schema.names[0],), "schema": schema} | changes
            return self.refine(SinkTask(**values))

        return make

    def rows_of(self, task: SinkTask, rows: Sequence[Row]) -> list[Row]:
        """Rows in the form of the destination, ordered by key."""
        shaped = [{column.name: self._shape(column, row.get(column.name)) for column in task.schema} for row in rows]
        return _ordered(task, shaped)

    def _shape(self, column: pa.Field, value: Any) -> Any:
        return None if value is None else self.expected(column, value)

    def _holds(self, read_back: ReadBack, task: SinkTask, rows: Sequence[Row]) -> None:
        assert _ordered(task, read_back(task)) == self.rows_of(task, rows)

    def _rows_of_every_type(self) -> list[Row]:
        longest = max(len(values) for _, values in self.types.values())
        rows: list[Row] = [{"id": number} for number in range(longest + 1)]  # the last one: NULL in every field
        for name, (_, values) in self.types.items():
            for number, value in enumerate(values):
                rows[number][name] = value
        return rows

    def _needs(self, mode: Mode) -> None:
        if mode not in self.sink_class.modes:
            pytest.skip(f"the sink has no mode {mode.value}")

    def _needs_transactions(self) -> None:
        if not self.sink_class.transactional:
            pytest.skip("the sink is not transactional")

    def test_it_says_what_it_is(self, make_sink: MakeSink) -> None:
        sink = make_sink()
        assert sink.type.strip()
        assert sink.promise.strip()
        assert sink.modes
        assert sink.identity == make_sink().identity, "the same settings are the same destination"

    def test_unknown_settings_and_options_are_refused(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            self.sink_class.settings_model.model_validate({**settings, "no_such_setting": 1})
        with pytest.raises(ValidationError):
            self.sink_class.options_model.model_validate({"no_such_option": 1})

    def test_secrets_are_not_in_texts_of_settings_and_sink(self, settings: dict[str, Any], make_sink: MakeSink) -> None:
        model = self.sink_class.settings_model.model_validate(settings)
        secrets = _secrets(model)
        if not secrets:
            pytest.skip("no secret settings")
        sink = make_sink()
        texts = [repr(model), str(model), model.model_dump_json(), repr(sink), str(sink), sink.identity]
        assert not [secret for secret in secrets if any(secret in text for text in texts)]

    def test_an_unreachable_destination_is_said_without_secrets(self, unreachable: dict[str, Any]) -> None:
        model = self.sink_class.settings_model.model_validate(unreachable)
        sink = self.sink_class(model)
        try:
            with pytest.raises(DestinationError) as caught:
                sink.check()
        finally:
            sink.close()
        assert not [secret for secret in _secrets(model) if secret in f"{caught.value} {caught.value!r}"]

    def test_close_is_allowed_before_open(self, make_sink: MakeSink) -> None:
        sink = make_sink()
        sink.check()
        sink.close()

    def test_asking_for_rights_finds_none_missing_where_a_push_can_be_done_and_writes_nothing(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        task = make_task()
        early = replace(task, schema=pa.schema([task.schema.field(name) for name in task.key]), known="key")
        assert make_sink().rights(early).missing == (), "before there is an object"
        with opened(make_sink(), task) as sink:
            deliver(sink, task, [("insert", person(1))])
            sink.finish()
        for asked in (early, next_run(task)):
            assert make_sink().rights(asked).missing == ()
        self._holds(read_back, task, [person(1)])

    @pytest.mark.parametrize("count", [0, 1, 250])
    def test_a_batch_of_any_size_arrives(
        self, count: int, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        task, rows = make_task(), [person(number) for number in range(count)]
        with opened(make_sink(), task) as sink:
            assert deliver(sink, task, [("insert", row) for row in rows]) == [Outcome.DELIVERED] * count
            sink.finish()
        self._holds(read_back, task, rows)

    def test_every_type_arrives_exactly(self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack) -> None:
        schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in self.types.items())])
        task, rows = make_task(schema), self._rows_of_every_type()
        with opened(make_sink(), task) as sink:
            assert set(deliver(sink, task, [("insert", row) for row in rows])) == {Outcome.DELIVERED}
            sink.finish()
        self._holds(read_back, task, rows)

    def test_what_was_delivered_is_read_for_a_reconcile(self, make_sink: MakeSink, make_task: MakeTask) -> None:
        schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in self.types.items())])
        task, rows = make_task(schema), self._rows_of_every_type()
        with opened(make_sink(), task) as sink:
            if sink.read(task) is None:
                pytest.skip("the sink cannot be read")
            deliver(sink, task, [("insert", row) for row in rows])
            sink.finish()
        tables = list(make_sink().read(next_run(task)) or ())
        found = pa.concat_tables(tables).sort_by("id")
        assert not pc.any(found.column(UNREADABLE)).as_py()
        assert found.select(schema.names).equals(pa.Table.from_pylist(rows, schema)), found.to_pylist()

    def test_an_update_replaces_the_row_and_null_erases_a_value(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        task, after = make_task(), {"id": 1, "name": "Grace", "score": None}
        with opened(make_sink(), task) as sink:
            deliver(sink, task, [("insert", person(1)), ("insert", person(2))])
            assert deliver(sink, task, [("update", after)]) == [Outcome.DELIVERED]
            sink.finish()
        self._holds(read_back, task, [after, person(2)])

    def test_mirror_deletes_by_key_and_a_row_that_is_gone_is_delivered(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        self._needs(Mode.MIRROR)
        task = make_task(mode=Mode.MIRROR)
        with opened(make_sink(), task) as sink:
            deliver(sink, task, [("insert", person(number)) for number in range(3)])
            assert deliver(sink, task, [("delete", {"id": 1}), ("delete", {"id": 99})]) == [Outcome.DELIVERED] * 2
            sink.finish()
        self._holds(read_back, task, [person(0), person(2)])

    def test_upsert_never_deletes(self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack) -> None:
        self._needs(Mode.UPSERT)
        task = make_task(mode=Mode.UPSERT)
        with opened(make_sink(), task) as sink:
            deliver(sink, task, [("insert", person(1))])
            assert deliver(sink, task, [("delete", {"id": 1})]) != [Outcome.DELIVERED]
            sink.finish()
        self._holds(read_back, task, [person(1)])

    def test_insert_only_keeps_the_row_that_is_there(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        self._needs(Mode.INSERT_ONLY)
        task = make_task(mode=Mode.INSERT_ONLY)
        with opened(make_sink(), task) as sink:
            deliver(sink, task, [("insert", person(1))])
            changes = [("insert", person(1, "Grace")), ("insert", person(2))]
            assert deliver(sink, task, changes) == [Outcome.DELIVERED] * 2
            sink.finish()
        self._holds(read_back, task, [person(1), person(2)])

    def test_update_only_finds_no_match_for_the_row_that_is_not_there(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        self._needs(Mode.UPDATE_ONLY)
        self._needs(Mode.UPSERT)
        owner = make_task(mode=Mode.UPSERT)
        with opened(make_sink(), owner) as sink:
            deliver(sink, owner, [("insert", person(1)), ("insert", person(2))])
            sink.finish()
        task = replace(owner, sync_id="feed", mode=Mode.UPDATE_ONLY)
        with opened(make_sink(), task) as sink:
            changes: list[Change] = [
                ("update", person(1, "Grace")),
                ("insert", person(2, "Joan")),
                ("update", person(3)),
            ]
            assert deliver(sink, task, changes) == [Outcome.DELIVERED, Outcome.DELIVERED, Outcome.NO_MATCH]
            sink.finish()
        self._holds(read_back, task, [person(1, "Grace"), person(2, "Joan")])

    def test_delivering_a_batch_again_is_harmless(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        task = make_task()
        changes: list[Change] = [("insert", person(number)) for number in range(5)]
        if task.mode is Mode.MIRROR:
            changes.append(("delete", {"id": 7}))
        with opened(make_sink(), task) as sink:
            for _ in range(3):
                assert set(deliver(sink, task, changes)) == {Outcome.DELIVERED}
            sink.finish()
        self._holds(read_back, task, [person(number) for number in range(5)])

    def test_the_record_of_the_claim_that_is_acknowledged_last_outlives_the_run(
        self, make_sink: MakeSink, make_task: MakeTask
    ) -> None:
        self._needs_transactions()
        task = make_task()
        with opened(make_sink(), task) as sink:
            for number, claim in enumerate(("before", "last")):
                deliver(sink, task, [("insert", person(number))], claim=claim)
            sink.finish("last")
        with opened(make_sink(), next_run(task)) as sink:
            assert sink.settle(["last"]) == {"last": True}

    def test_batches_from_all_threads_arrive(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        task, batches = make_task(), 8
        rows = [[person(part * 10 + number) for number in range(10)] for part in range(batches)]
        with opened(make_sink(), task) as sink, ThreadPoolExecutor(sink.limits(task).concurrency) as pool:
            results = list(pool.map(lambda part: deliver(sink, task, [("insert", row) for row in part]), rows))
            sink.finish()
        assert results == [[Outcome.DELIVERED] * 10] * batches
        self._holds(read_back, task, [row for part in rows for row in part])

    def test_prepared_rows_arrive_in_whatever_batches(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        if self.sink_class.prepare is Sink.prepare:
            pytest.skip("the sink prepares nothing")
        task = make_task()
        changes: list[Change] = [("insert", person(number, f"name {number}")) for number in range(60)]
        if task.mode is Mode.MIRROR:
            changes.insert(7, ("delete", {"id": 99}))
        rows = batch_of(task, changes, extra=make_sink().extra_columns(task)).rows
        with opened(make_sink(), task) as sink, ThreadPoolExecutor(4) as pool:
            entries, *others = pool.map(sink.prepare, [rows, rows, rows.slice(0, 9), rows.slice(0, 0)])
            assert [len(some or ()) for some in (entries, *others)] == [len(changes), len(changes), 9, 0]
            assert entries is not None
            for first in range(3):  # as after a bisection: not neighbours, and not those that were prepared last
                numbers = range(first, len(changes), 3)
                some = rows.take(pa.array(numbers, pa.int64()))
                batch = Batch(some, "claim-1", last=first == 2, prepared=[entries[number] for number in numbers])
                assert set(outcomes(sink.deliver(batch), len(numbers))) == {Outcome.DELIVERED}
            sink.finish()
        self._holds(read_back, task, [row for operation, row in changes if operation == "insert"])

    def test_any_history_ends_in_its_last_state(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        names = st.text(st.characters(codec="utf-8", exclude_characters=self.refused_characters), max_size=8)
        wanted = st.one_of(st.none(), st.builds(lambda name: {"name": name, "score": 0.5}, names))
        states = st.lists(st.dictionaries(st.integers(0, 6), wanted, max_size=5), min_size=1, max_size=5)

        @hypothesis.settings(max_examples=self.histories, deadline=None)
        @hypothesis.given(states)
        def holds(history: list[dict[int, Row | None]]) -> None:
            task, model = make_task(), dict[int, Row]()
            with opened(make_sink(), task) as sink:
                for state in history:
                    changes = changes_to(model, state, deletes=task.mode is Mode.MIRROR)
                    assert set(deliver(sink, task, changes)) <= {Outcome.DELIVERED}
                sink.finish()
            self._holds(read_back, task, list(model.values()))

        holds()

    def test_a_reason_never_quotes_the_row(self, make_sink: MakeSink, make_task: MakeTask) -> None:
        task = make_task()
        rows = [person(1, CANARY, float("nan")), {"id": None, "name": CANARY, "score": 1.0}]
        with opened(make_sink(), task) as sink:
            delivery = sink.deliver(batch_of(task, [("insert", row) for row in rows], extra=sink.extra_columns(task)))
        outcomes(delivery, 2)
        assert not [result for result in delivery.results if CANARY in result.reason]

    def test_nothing_is_missing_after_a_healthy_run(self, make_sink: MakeSink, make_task: MakeTask) -> None:
        task = make_task()
        with opened(make_sink(), task) as sink:
            deliver(sink, task, [("insert", person(1))])
            sink.finish()
        assert make_sink().missing(next_run(task)) is None

    def test_a_record_of_a_run_that_the_ledger_does_not_know_is_noticed(
        self, make_sink: MakeSink, make_task: MakeTask
    ) -> None:
        self._needs_transactions()
        task = make_task(fence=3)
        self._delivered(make_sink, task, [person(1)])
        assert make_sink().missing(next_run(task, 3)) is None
        for known, first in ((2, False), (0, True)):
            with pytest.raises(NewerFence, match="3"):
                make_sink().missing(replace(task, fence=known, first=first))

    def test_an_older_fence_is_refused(self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack) -> None:
        self._needs_transactions()
        task = make_task()
        with opened(make_sink(), task) as sink:
            deliver(sink, task, [("insert", person(1))])
            with opened(make_sink(), next_run(task)) as newer:
                newer.finish()
            assert deliver(sink, task, [("update", person(1, "late"))]) == [Outcome.FATAL]
            with pytest.raises(DestinationError):
                make_sink().open(task)
        self._holds(read_back, task, [person(1)])

    def test_a_claim_is_settled_only_if_closed_with_nothing_left_out(
        self, make_sink: MakeSink, make_task: MakeTask
    ) -> None:
        self._needs_transactions()
        task = make_task()
        with opened(make_sink(), task) as sink:
            for claim, last, left_out in (("whole", True, 0), ("open", False, 0), ("left", True, 1)):
                rows: list[Change] = [("insert", person(len(claim)))]
                extra = sink.extra_columns(task)
                sink.deliver(batch_of(task, rows, claim, last=last, left_out=left_out, extra=extra))
        for fence in (2, 3):  # a crash before the ledger took the answers: the next run asks again
            with opened(make_sink(), next_run(task, fence)) as sink:
                answers = sink.settle(["whole", "open", "left", "never sent"])
                assert answers == {"whole": True, "open": False, "left": False, "never sent": None}

    def test_a_lost_record_stops_the_run_and_offers_resync(self, make_sink: MakeSink, make_task: MakeTask) -> None:
        self._needs_transactions()
        sink = make_sink()
        try:
            with pytest.raises(DestinationError, match="resync"):
                sink.open(make_task(first=False))
        finally:
            sink.close()

    def test_a_full_load_appears_at_once_in_place_of_what_was_there(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        self._needs_full_loads()
        task = make_task()
        self._delivered(make_sink, task, [person(1), person(2)])
        full = replace(next_run(task), full_load=True)
        with opened(make_sink(), full) as sink:
            for rows in ([person(2, "Grace")], [person(3), person(4)]):
                assert deliver(sink, full, [("insert", row) for row in rows], last=False) == [Outcome.DELIVERED] * len(
                    rows
                )
                self._holds(read_back, task, [person(1), person(2)])
            sink.swap("claim-1")
            sink.finish()
        self._holds(read_back, task, [person(2, "Grace"), person(3), person(4)])
        self._delivered(make_sink, next_run(task, 3), [person(5)])
        self._holds(read_back, task, [person(2, "Grace"), person(3), person(4), person(5)])

    def test_a_full_load_that_was_given_up_leaves_no_trace(
        self, make_sink: MakeSink, make_task: MakeTask, read_back: ReadBack
    ) -> None:
        self._needs_full_loads()
        task = make_task()
        self._delivered(make_sink, task, [person(1)])
        full = replace(next_run(task), full_load=True)
        with opened(make_sink(), full) as sink:
            deliver(sink, full, [("insert", person(2))], claim="given up", last=False)
        self._holds(read_back, task, [person(1)])
        again = replace(next_run(task, 3), full_load=True)
        with opened(make_sink(), again) as sink:
            if sink.transactional:
                assert sink.settle(["given up"]) == {"given up": None}
            deliver(sink, again, [("insert", person(3))], claim="whole", last=False)
            sink.swap("whole")
            sink.finish("whole")
        self._holds(read_back, task, [person(3)])
        if self.sink_class.transactional:
            with opened(make_sink(), next_run(task, 4)) as sink:
                assert sink.settle(["whole"]) == {"whole": True}

    def _delivered(self, make_sink: MakeSink, task: SinkTask, rows: Sequence[Row]) -> None:
        with opened(make_sink(), task) as sink:
            assert deliver(sink, task, [("insert", row) for row in rows]) == [Outcome.DELIVERED] * len(rows)
            sink.finish()

    def _needs_full_loads(self) -> None:
        if not self.sink_class.full_loads or issubclass(self.sink_class, SparkSink):
            pytest.skip("the sink has no full loads of batches")


def _ordered(task: SinkTask, rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in task.key])


def _secrets(settings: Settings) -> list[str]:
    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, SecretStr):
            yield value.get_secret_value()
        elif isinstance(value, BaseModel):
            yield from walk(list(value.__dict__.values()))
        elif isinstance(value, dict):
            yield from walk(list(value.values()))
        elif isinstance(value, list | tuple | set | frozenset):
            for part in value:
                yield from walk(part)

    return [secret for secret in walk(settings) if secret]
