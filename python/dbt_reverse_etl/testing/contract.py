"""The tests that every sink passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import hypothesis
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Batch, Mode, Sink, SinkTask, SparkSink
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.testing.rows import Change, Row, batch_of, changes_to, deliver, next_run, opened, outcomes, person
from dbt_reverse_etl.testing.transactions import TransactionContract
from dbt_reverse_etl.testing.under_test import Trouble, secrets_of

CANARY = "canary-2718281828"
_SEPARATORS = (*",;|/-_:. +=~#", "\t", "\x1f", "\0", "::", "||", "','")
_MAY_BE_THERE = (Outcome.DELIVERED, Outcome.UNKNOWN)


class SinkContract(TransactionContract):
    """What the delivery engine relies on.

    A subclass names its `sink_class` and overrides the fixtures `settings`, `read_back` and, if it can, `troubles` and `unreachable`.
    A test of a thing that the sink does not claim to have is skipped, so that its author reads what was not proved.
    """

    def test_it_says_what_it_is(self) -> None:
        sink = self.make_sink()
        assert sink.type.strip()
        assert sink.promise.strip()
        assert sink.modes
        assert sink.identity == self.make_sink().identity, "the same settings are the same destination"

    def test_unknown_settings_and_options_are_refused(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            self.sink_class.settings_model.model_validate({**settings, "no_such_setting": 1})
        with pytest.raises(ValidationError):
            self.sink_class.options_model.model_validate({"no_such_option": 1})

    def test_secrets_are_not_in_texts_of_settings_and_sink(self, settings: dict[str, Any]) -> None:
        model = self.sink_class.settings_model.model_validate(settings)
        secrets = secrets_of(model)
        if not secrets:
            pytest.skip("no secret settings")
        sink = self.make_sink()
        texts = [repr(model), str(model), model.model_dump_json(), repr(sink), str(sink), sink.identity]
        assert not [secret for secret in secrets if any(secret in text for text in texts)]

    def test_an_unreachable_destination_is_said_without_secrets(self, unreachable: dict[str, Any]) -> None:
        model = self.sink_class.settings_model.model_validate(unreachable)
        with closing(self.sink_class(model)) as sink, pytest.raises(DestinationError) as caught:
            sink.check()
        assert not [secret for secret in secrets_of(model) if secret in f"{caught.value} {caught.value!r}"]

    def test_opening_an_unreachable_destination_raises_no_other_error_and_shows_no_secret(
        self, unreachable: dict[str, Any]
    ) -> None:
        model = self.sink_class.settings_model.model_validate(unreachable)
        said = ""
        with closing(self.sink_class(model)) as sink:
            try:
                sink.open(self.make_task())
            except DestinationError as error:  # any other one fails the test: the engine would not know what it means
                said = f"{error} {error!r}"
        assert not [secret for secret in secrets_of(model) if secret in said]

    def test_close_is_allowed_before_open(self) -> None:
        sink = self.make_sink()
        sink.check()
        sink.close()

    def test_asking_for_rights_finds_none_missing_where_a_push_can_be_done_and_writes_nothing(self) -> None:
        task = self.make_task()
        early = replace(task, schema=pa.schema([task.schema.field(name) for name in task.key]), known="key")
        assert self.make_sink().rights(early).missing == (), "before there is an object"
        self._delivered(task, [person(1)])
        for asked in (early, next_run(task)):
            assert self.make_sink().rights(asked).missing == ()
        self._holds(task, [person(1)])

    @pytest.mark.parametrize("count", [0, 1, 250])
    def test_a_batch_of_any_size_arrives(self, count: int) -> None:
        task, rows = self.make_task(), [person(number) for number in range(count)]
        self._delivered(task, rows)
        self._holds(task, rows)

    def test_every_type_arrives_exactly(self) -> None:
        schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in self.types.items())])
        task, rows = self.make_task(schema), self._rows_of_every_type()
        self._delivered(task, rows)
        self._holds(task, rows)

    def test_what_was_delivered_is_read_for_a_reconcile(self) -> None:
        schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in self.types.items())])
        task, rows = self.make_task(schema), self._rows_of_every_type()
        with self._pushing(task) as sink:
            if sink.read(task) is None:
                pytest.skip("the sink cannot be read")
            deliver(sink, task, [("insert", row) for row in rows])
        there: Any = self.make_sink().read(next_run(task))
        if isinstance(sink, SparkSink):
            there = [there.toArrow().cast(task.schema.append(pa.field(UNREADABLE, pa.bool_())))]
        found = pa.concat_tables(there).sort_by("id")
        assert not pc.any(found.column(UNREADABLE)).as_py()
        assert found.select(schema.names).equals(pa.Table.from_pylist(rows, schema)), found.to_pylist()

    def test_an_update_replaces_the_row_and_null_erases_a_value(self) -> None:
        self._needs_updates()
        task, after = self.make_task(), {"id": 1, "name": "Grace", "score": None}
        with self._pushing(task) as sink:
            deliver(sink, task, [("insert", person(1)), ("insert", person(2))])
            assert deliver(sink, task, [("update", after)]) == [Outcome.DELIVERED]
        self._holds(task, [after, person(2)])

    def test_insert_and_update_write_the_row_whether_it_is_there_or_not(self) -> None:
        self._needs_updates()
        task = self.make_task()
        after = [person(1, "Grace"), person(2), person(3, "Joan")]
        with self._pushing(task) as sink:
            deliver(sink, task, [("insert", person(1)), ("insert", person(2))])
            # As after a lost answer, and after somebody emptied the object.
            changes: list[Change] = [("insert", after[0]), ("update", after[2])]
            assert deliver(sink, task, changes) == [Outcome.DELIVERED] * 2
        self._holds(task, after)

    def test_what_it_called_delivered_is_there_though_the_run_was_killed_before_its_end(self) -> None:
        task = self.make_task()
        with opened(self.make_sink(), task) as sink:
            assert deliver(sink, task, [("insert", person(1)), ("insert", person(2))]) == [Outcome.DELIVERED] * 2
        with opened(self.make_sink(), next_run(task)) as sink:
            sink.finish("", complete=True)
        self._holds(task, [person(1), person(2)])

    @pytest.mark.parametrize(
        ("kind", "keys"),
        [
            (pa.string(), ["a", "A", "a ", " a", "1", "01", "1.0", "\u00e9", "e\u0301", "\u00df", "ss"]),
            (pa.int64(), [2**53, 2**53 + 1, -(2**53), 1, -1]),
        ],
        ids=["texts", "numbers"],
    )
    def test_keys_that_are_alike_are_apart_or_refused(self, kind: pa.DataType, keys: list[Any]) -> None:
        task = self.make_task(pa.schema([("id", kind), ("name", pa.string())]))
        rows: list[Row] = [{"id": key, "name": f"name {number}"} for number, key in enumerate(keys)]
        with opened(self.make_sink(), task) as sink:
            answers = deliver(sink, task, [("insert", row) for row in rows], apart=True)
            sink.finish("", complete=Outcome.REJECTED not in answers)
        assert {Outcome.DELIVERED} <= set(answers) <= {Outcome.DELIVERED, Outcome.REJECTED}
        self._holds(task, [row for row, answer in zip(rows, answers, strict=True) if answer is Outcome.DELIVERED])

    def test_mirror_deletes_by_key_and_a_row_that_is_gone_is_delivered(self) -> None:
        self._needs(Mode.MIRROR)
        task = self.make_task(mode=Mode.MIRROR)
        with self._pushing(task) as sink:
            deliver(sink, task, [("insert", person(number)) for number in range(3)])
            assert deliver(sink, task, [("delete", {"id": 1}), ("delete", {"id": 99})]) == [Outcome.DELIVERED] * 2
        self._holds(task, [person(0), person(2)])

    def test_upsert_never_deletes(self) -> None:
        self._needs(Mode.UPSERT)
        task = self.make_task(mode=Mode.UPSERT)
        with self._pushing(task) as sink:
            deliver(sink, task, [("insert", person(1))])
            assert deliver(sink, task, [("delete", {"id": 1})]) != [Outcome.DELIVERED]
        self._holds(task, [person(1)])

    def test_insert_only_keeps_the_row_that_is_there(self) -> None:
        self._needs(Mode.INSERT_ONLY)
        task = self.make_task(mode=Mode.INSERT_ONLY)
        with self._pushing(task) as sink:
            deliver(sink, task, [("insert", person(1))])
            changes = [("insert", person(1, "Grace")), ("insert", person(2))]
            assert deliver(sink, task, changes) == [Outcome.DELIVERED] * 2
        self._holds(task, [person(1), person(2)])

    def test_update_only_finds_no_match_for_the_row_that_is_not_there(self) -> None:
        self._needs(Mode.UPDATE_ONLY)
        self._needs(Mode.UPSERT)
        owner = self.make_task(mode=Mode.UPSERT)
        self._delivered(owner, [person(1), person(2)])
        task = replace(owner, sync_id="feed", mode=Mode.UPDATE_ONLY)
        with self._pushing(task) as sink:
            changes: list[Change] = [
                ("update", person(1, "Grace")),
                ("insert", person(2, "Joan")),
                ("update", person(3)),
            ]
            assert deliver(sink, task, changes) == [Outcome.DELIVERED, Outcome.DELIVERED, Outcome.NO_MATCH]
        self._holds(task, [person(1, "Grace"), person(2, "Joan")])

    def test_delivering_a_batch_again_is_harmless(self) -> None:
        task = self.make_task()
        changes: list[Change] = [("insert", person(number)) for number in range(5)]
        if task.mode is Mode.MIRROR:
            changes.append(("delete", {"id": 7}))
        with self._pushing(task) as sink:
            for _ in range(3):
                assert set(deliver(sink, task, changes)) == {Outcome.DELIVERED}
        self._holds(task, [person(number) for number in range(5)])

    def test_in_trouble_it_says_delivered_only_of_rows_that_are_there_and_not_applied_only_of_others(
        self, troubles: Mapping[str, Trouble]
    ) -> None:
        changes: list[Change] = [("insert", person(number)) for number in range(1, 6)]
        for name, trouble in troubles.items():
            task = self.make_task()
            self._delivered(task, [person(0)])
            with opened(self.make_sink(), next_run(task)) as sink:
                with trouble():
                    answers = deliver(sink, next_run(task), changes, claim="in trouble")
                sink.finish("in trouble", complete=False)
            assert set(answers) != {Outcome.DELIVERED}, f"{name}: it says that all is well"
            there = list(self._read_back(task))
            for answer, (_, row) in zip(answers, changes, strict=True):
                is_there = self.rows_of(task, [row])[0] in there
                assert is_there or answer is not Outcome.DELIVERED, f"{name}: it says delivered of a row that is lost"
                assert not is_there or answer in _MAY_BE_THERE, f"{name}: it says {answer.value} of a row that is there"
            rows = [row for _, row in changes]
            self._settles_rightly(next_run(task, 3), [row in there for row in self.rows_of(task, rows)], name)
            self._delivered(next_run(task, 4), rows)
            self._holds(task, [person(0), *rows])

    def _settles_rightly(self, task: SinkTask, there: Sequence[bool], trouble: str) -> None:
        if not self.sink_class.transactional:
            return
        with opened(self.make_sink(), task) as sink:
            answer = sink.settle(["in trouble"]).get("in trouble", False)
        assert answer is not True or all(there), f"{trouble}: it settles a claim of which rows are lost"
        assert answer is not None or not any(there), f"{trouble}: it knows nothing of a claim of which rows are there"

    def test_a_refused_row_costs_no_other_one(self) -> None:
        task, rows = self.make_task(), [person(1), {**person(2), "id": None}, person(3)]
        with opened(self.make_sink(), task) as sink:
            answers = deliver(sink, task, [("insert", row) for row in rows], apart=True)
            sink.finish("", complete=Outcome.REJECTED not in answers)
        assert (answers[0], answers[2]) == (Outcome.DELIVERED, Outcome.DELIVERED)
        delivered = [row for row, answer in zip(rows, answers, strict=True) if answer is Outcome.DELIVERED]
        self._holds(task, delivered)

    def test_keys_of_several_fields_are_apart_whatever_stands_between_them(self) -> None:
        schema = pa.schema([("first", pa.string()), ("second", pa.string()), ("score", pa.float64())])
        task = self.make_task(schema, key=("first", "second"))
        try:
            self.make_sink().validate(task)
        except ConfigurationError:
            pytest.skip("the sink takes one key field only")
        between = ["", *(text for text in _SEPARATORS if not set(text) & set(self.refused_characters))]
        pairs = [pair for text in between for pair in ((f"a{text}b", "c"), ("a", f"b{text}c"))]
        rows: list[Row] = [{"first": a, "second": b, "score": float(n)} for n, (a, b) in enumerate(pairs)]
        with self._pushing(task) as sink:
            assert set(deliver(sink, task, [("insert", row) for row in rows])) == {Outcome.DELIVERED}
            answers = deliver(sink, task, [("update", {**row, "score": -1.0}) for row in rows[::2]])
            assert set(answers) == {Outcome.DELIVERED}
        self._holds(task, [{**row, "score": -1.0} if n % 2 == 0 else row for n, row in enumerate(rows)])

    def test_batches_from_all_threads_arrive(self) -> None:
        task, batches = self.make_task(), 8
        rows = [[person(part * 10 + number) for number in range(10)] for part in range(batches)]
        with self._pushing(task) as sink, ThreadPoolExecutor(sink.limits(task).concurrency) as pool:
            results = list(pool.map(lambda part: deliver(sink, task, [("insert", row) for row in part]), rows))
        assert results == [[Outcome.DELIVERED] * 10] * batches
        self._holds(task, [row for part in rows for row in part])

    def test_prepared_rows_arrive_in_whatever_batches(self) -> None:
        if self.sink_class.prepare is Sink.prepare:
            pytest.skip("the sink prepares nothing")
        task = self.make_task()
        changes: list[Change] = [("insert", person(number, f"name {number}")) for number in range(60)]
        if task.mode is Mode.MIRROR:
            changes.insert(7, ("delete", {"id": 99}))
        rows = batch_of(task, changes, extra=self.make_sink().extra_columns(task)).rows
        with self._pushing(task) as sink, ThreadPoolExecutor(4) as pool:
            none = sink.prepare(rows.slice(0, 0))
            entries, *others = pool.map(sink.prepare, [rows, rows, rows.slice(0, 9)])
            assert [len(some or ()) for some in (none, entries, *others)] == [0, len(changes), len(changes), 9]
            assert entries is not None
            for first in range(3):  # as after a bisection: not neighbours, and not those that were prepared last
                numbers = range(first, len(changes), 3)
                some = rows.take(pa.array(numbers, pa.int64()))
                batch = Batch(some, "claim-1", last=first == 2, prepared=[entries[number] for number in numbers])
                assert set(outcomes(sink.deliver(batch), len(numbers))) == {Outcome.DELIVERED}
        self._holds(task, [row for operation, row in changes if operation == "insert"])

    def test_any_history_ends_in_its_last_state(self) -> None:
        self._needs_updates()
        names = st.text(st.characters(codec="utf-8", exclude_characters=self.refused_characters), max_size=8)
        wanted = st.one_of(st.none(), st.builds(lambda name: {"name": name, "score": 0.5}, names))
        states = st.lists(st.dictionaries(st.integers(0, 6), wanted, max_size=5), min_size=1, max_size=5)

        @hypothesis.settings(max_examples=self.histories, deadline=None)
        @hypothesis.given(states)
        def holds(history: list[dict[int, Row | None]]) -> None:
            task, model = self.make_task(), dict[int, Row]()
            with self._pushing(task) as sink:
                for number, state in enumerate(history):
                    changes = changes_to(model, state, deletes=task.mode is Mode.MIRROR)
                    assert set(deliver(sink, task, changes, state=number)) <= {Outcome.DELIVERED}
            self._holds(task, list(model.values()))

        holds()

    def test_a_reason_never_quotes_the_row(self) -> None:
        task = self.make_task()
        rows = [person(1, CANARY, float("nan")), {"id": None, "name": CANARY, "score": 1.0}]
        with opened(self.make_sink(), task) as sink:
            delivery = sink.deliver(batch_of(task, [("insert", row) for row in rows], extra=sink.extra_columns(task)))
        outcomes(delivery, 2)
        assert not [result for result in delivery.results if CANARY in result.reason]

    def test_nothing_is_missing_after_a_healthy_run(self) -> None:
        task = self.make_task()
        self._delivered(task, [person(1)])
        assert self.make_sink().missing(next_run(task)) is None
