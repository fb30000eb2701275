"""What the tests of every sink are made of: what its author says about it, and how tasks, rows and secrets are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel, Secret, SecretStr

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, Settings, Sink, SinkTask, SparkSink
from dbt_reverse_etl.testing.rows import PEOPLE, TYPES, Row, deliver, opened

ReadBack = Callable[[SinkTask], Sequence[Row]]
Trouble = Callable[[], AbstractContextManager[None]]  # while it lasts, the destination or the way to it fails

_NEXT_OBJECT = iter(range(10**9))


class SinkUnderTest:
    """What the author of a sink says about it. pytest has no abstract fixtures, so those that have to be overridden raise."""

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

    @pytest.fixture
    def troubles(self) -> Mapping[str, Trouble]:
        """How the destination may fail, by name: it is down, it applies a request and its answer is lost, and so on."""
        pytest.skip("no troubles of the destination")

    def expected(self, field: pa.Field, value: Any) -> Any:  # noqa: ARG002  (overrides need the field)
        """The form in which the destination holds a value; override it where that is not the value itself."""
        return value

    def refine(self, task: SinkTask) -> SinkTask:
        """Adapt each task to the sink, e.g. its object or options."""
        return task

    @pytest.fixture(autouse=True)
    def _destination(self, settings: dict[str, Any], request: pytest.FixtureRequest) -> None:
        self._settings, self._request = self.sink_class.settings_model.model_validate(settings), request

    def make_sink(self) -> Sink:
        """A sink on the same destination."""
        return self.sink_class(self._settings)

    def make_task(self, schema: pa.Schema = PEOPLE, **changes: Any) -> SinkTask:
        """A task: by default with all rights that the sink offers, on an object of its own."""
        number = next(_NEXT_OBJECT)
        modes = self.sink_class.modes
        best = next(mode for mode in (Mode.MIRROR, Mode.UPSERT, *Mode) if mode in modes)
        values: dict[str, Any] = {"sync_id": f"{number:032x}", "sync": "people", "object": f"people_{number}"}
        values |= {"fence": 1, "mode": best, "key": (schema.names[0],), "schema": schema} | changes
        return self.refine(SinkTask(**values))

    def rows_of(self, task: SinkTask, rows: Sequence[Row]) -> list[Row]:
        """Rows in the form of the destination, ordered by key."""

        def shaped(column: pa.Field, value: Any) -> Any:
            return None if value is None else self.expected(column, value)

        return ordered(task, [{one.name: shaped(one, row.get(one.name)) for one in task.schema} for row in rows])

    def _read_back(self, task: SinkTask) -> Sequence[Row]:
        # Asked for only here: a `read_back` that skips must skip no test that reads nothing.
        read: ReadBack = self._request.getfixturevalue("read_back")
        return read(task)

    def _holds(self, task: SinkTask, rows: Sequence[Row]) -> None:
        assert ordered(task, self._read_back(task)) == self.rows_of(task, rows)

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

    def _needs_updates(self) -> None:
        if not self.sink_class.modes & {Mode.MIRROR, Mode.UPSERT}:
            pytest.skip("the sink has neither mirror nor upsert")

    def _needs_transactions(self) -> None:
        if not self.sink_class.transactional:
            pytest.skip("the sink is not transactional")

    @contextmanager
    def _pushing(self, task: SinkTask) -> Iterator[Sink]:
        """A sink that is open, and then the end of a run that has delivered everything."""
        with opened(self.make_sink(), task) as sink:
            yield sink
            sink.finish("", complete=True)

    def _delivered(self, task: SinkTask, rows: Sequence[Row]) -> None:
        with self._pushing(task) as sink:
            assert deliver(sink, task, [("insert", row) for row in rows]) == [Outcome.DELIVERED] * len(rows)

    def _needs_full_loads(self) -> None:
        if not self.sink_class.full_loads or issubclass(self.sink_class, SparkSink):
            pytest.skip("the sink has no full loads of batches")


def ordered(task: SinkTask, rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in task.key])


def secrets_of(settings: Settings) -> list[str]:
    def walk(value: Any, is_secret: bool = False) -> Iterator[str]:
        if isinstance(value, str):
            yield value if is_secret else ""
        elif isinstance(value, SecretStr | Secret):
            yield from walk(value.get_secret_value(), is_secret=True)
        elif isinstance(value, BaseModel):
            yield from walk(value.__dict__, is_secret)
            yield from walk(value.__pydantic_extra__, is_secret)
        elif isinstance(value, dict):
            yield from walk(list(value.values()), is_secret)
        elif isinstance(value, list | tuple | set | frozenset):
            for part in value:
                yield from walk(part, is_secret)

    return [secret for secret in walk(settings) if secret]
