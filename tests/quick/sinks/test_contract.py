"""Other sinks of the package, and one of a third party, under the public contract."""

from __future__ import annotations

import json
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr, ValidationError

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.sinks.base import OPERATION, Batch, Limits, Mode, Options, Settings, Sink, SinkTask
from dbt_reverse_etl.sinks.files.sink import FilesSink
from dbt_reverse_etl.sinks.sql.settings import SqliteSettings
from dbt_reverse_etl.testing import ReadBack, SinkContract, batch_of, person
from tests.support.delivery.clock import FakeClock
from tests.support.sinks.json_values import as_text

pytest_plugins = "pytester"


class _FilesContract(SinkContract):
    sink_class = FilesSink
    format: str
    rows_in: Callable[[Path], list[dict[str, Any]]]

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "out"), "format": self.format}

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> dict[str, Any]:
        (tmp_path / "a file").touch()
        return {"path": str(tmp_path / "a file" / "out")}

    @pytest.fixture
    def read_back(self, settings: dict[str, Any]) -> ReadBack:
        """A consumer: applies the parts that the manifest lists, in their order."""

        def read(task: SinkTask) -> list[dict[str, Any]]:
            directory, state = Path(settings["path"]) / task.object, {}
            for part in json.loads((directory / "manifest.json").read_text())["parts"]:
                for change in self.rows_in(directory / part["name"]):
                    key = tuple(change[name] for name in task.key)
                    state[key] = None if change[OPERATION] == "delete" else change
            return [{name: row[name] for name in task.schema.names} for row in state.values() if row]

        return read


def parquet_rows(part: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(part).to_pylist()
    return rows


def json_rows(part: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in part.read_bytes().splitlines()]


class TestParquetFiles(_FilesContract):
    format = "parquet"
    rows_in = staticmethod(parquet_rows)


class TestJsonFiles(_FilesContract):
    format = "jsonl"
    rows_in = staticmethod(json_rows)

    def expected(self, field: pa.Field, value: Any) -> Any:
        if pa.types.is_nested(field.type):
            return dict(value) if pa.types.is_map(field.type) else value
        if pa.types.is_binary(field.type):
            return b64encode(value).decode()
        text = as_text(field, value)
        if not pa.types.is_timestamp(field.type):
            return text
        return text.replace(" ", "T") + ("Z" if field.type.tz else "")


class MemorySettings(Settings):
    room: str
    token: SecretStr


class MemorySink(Sink):
    """What a third party would write: rows in a dictionary, one lock, no transactions."""

    type = "memory"
    settings_model = MemorySettings
    modes = frozenset({Mode.MIRROR, Mode.UPSERT, Mode.INSERT_ONLY, Mode.UPDATE_ONLY})
    promise = "At least once; upserts by key."
    rooms: dict[str, dict[str, dict[tuple[Any, ...], dict[str, Any]]]] = {}  # noqa: RUF012  (this is the destination)
    _lock = threading.Lock()

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, MemorySettings)
        self._settings = settings

    @property
    def identity(self) -> str:
        return f"memory:{self._settings.room}"

    def limits(self, task: SinkTask) -> Limits:
        return Limits(rows=100, concurrency=4)

    def check(self) -> None:
        if self._settings.room not in self.rooms:
            raise DestinationError(Problem(self.identity, "no such room", "an open room", "open it"))

    def open(self, task: SinkTask) -> None:
        self.check()
        self._task = task
        self._rows = self.rooms[self._settings.room].setdefault(task.object, {})

    def deliver(self, batch: Batch) -> Delivery:
        results = []
        with self._lock:
            for index, row in enumerate(batch.rows.to_pylist()):
                reason = self._apply(row)
                if reason:
                    outcome = Outcome.NO_MATCH if reason == "no row to update" else Outcome.REJECTED
                    results.append(RowResult(index, outcome, reason))
        return Delivery(tuple(results))

    def _apply(self, row: dict[str, Any]) -> str | None:
        key = tuple(row[name] for name in self._task.key)
        if None in key:
            return "NULL in a key field"
        if row[OPERATION] == "delete":
            if self._task.mode is not Mode.MIRROR:
                return "this mode never deletes"
            self._rows.pop(key, None)
        elif self._task.mode is Mode.UPDATE_ONLY and key not in self._rows:
            return "no row to update"
        elif self._task.mode is not Mode.INSERT_ONLY or key not in self._rows:
            self._rows[key] = {name: row[name] for name in self._task.schema.names}
        return None

    # Without defaults, as a run calls it, it passes the contract.
    def finish(self, claim: str, *, complete: bool) -> None:  # type: ignore[override]
        assert isinstance(claim, str)
        assert isinstance(complete, bool)

    def close(self) -> None:
        self._rows = {}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution of a third party, as pip leaves it behind."""
    info = tmp_path / "site" / "memory_sink-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: memory-sink\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dbt_reverse_etl.sinks]\nmemory = {__name__}:MemorySink\n")
    monkeypatch.syspath_prepend(str(info.parent))


@pytest.mark.usefixtures("installed")
class TestThirdParty(SinkContract):
    sink_class = MemorySink

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Iterator[dict[str, Any]]:
        MemorySink.rooms[str(tmp_path)] = {}
        yield {"room": str(tmp_path), "token": "canary-token-31415926"}
        del MemorySink.rooms[str(tmp_path)]

    @pytest.fixture
    def unreachable(self) -> dict[str, Any]:
        return {"room": "closed", "token": "canary-token-31415926"}

    @pytest.fixture
    def read_back(self, settings: dict[str, Any]) -> ReadBack:
        return lambda task: list(MemorySink.rooms[settings["room"]][task.object].values())

    def test_it_is_found_by_its_entry_point(self) -> None:
        (entry,) = entry_points(group="dbt_reverse_etl.sinks", name="memory")
        assert entry.load() is MemorySink


class _Forgets(MemorySink):
    """Says `delivered` and drops every second row."""

    def deliver(self, batch: Batch) -> Delivery:
        super().deliver(Batch(batch.rows.slice(0, batch.rows.num_rows // 2), batch.claim))
        return Delivery()


class _Leaks(MemorySink):
    """Quotes rows and answers twice."""

    def deliver(self, batch: Batch) -> Delivery:
        result = RowResult(0, Outcome.REJECTED, str(batch.rows.to_pylist()))
        return Delivery((result, result))


class _Crashes(MemorySink):
    """Looks for nothing before it opens."""

    def check(self) -> None:
        self.rooms[self._settings.room]


class _Deletes(MemorySink):
    """Deletes in every mode."""

    def _apply(self, row: dict[str, Any]) -> str | None:
        if row[OPERATION] == "delete":
            self._rows.pop(tuple(row[name] for name in self._task.key), None)
            return None
        return super()._apply(row)


class _Overdoes(MemorySink):
    """Refuses, for a key without a value or for two that are alike, every row of the batch, and does not say that it was refused as one."""

    def deliver(self, batch: Batch) -> Delivery:
        keys = batch.rows.column(self._task.key[0]).to_pylist()
        if None not in keys and len({str(key).strip().lower() for key in keys}) == len(keys):
            return super().deliver(batch)
        return Delivery(tuple(RowResult(row, Outcome.REJECTED, "one of the keys") for row in range(len(keys))))


class _Confuses(MemorySink):
    """Delivers what it prepared last, whatever the batch holds."""

    def prepare(self, rows: pa.Table) -> list[dict[str, Any]]:
        self._last: list[dict[str, Any]] = rows.to_pylist()
        return self._last

    def deliver(self, batch: Batch) -> Delivery:
        if batch.prepared is None:
            return super().deliver(batch)
        wrong = [*self._last, *batch.prepared][: len(batch.prepared)]
        return super().deliver(Batch(pa.Table.from_pylist(wrong, schema=batch.rows.schema), batch.claim))


WRONG: dict[type[Sink], list[str]] = {
    _Confuses: ["test_prepared_rows_arrive_in_whatever_batches"],
    _Crashes: ["test_opening_an_unreachable_destination_raises_no_other_error_and_shows_no_secret"],
    _Forgets: ["test_a_batch_of_any_size_arrives[250]", "test_any_history_ends_in_its_last_state"],
    _Leaks: ["test_a_batch_of_any_size_arrives[1]", "test_a_reason_never_quotes_the_row"],
    _Deletes: ["test_upsert_never_deletes"],
    _Overdoes: ["test_a_refused_row_costs_no_other_one", "test_keys_that_are_alike_are_apart_or_refused[texts]"],
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__.strip("_").lower())
def test_the_contract_catches_a_sink_that(wrong: type[Sink], pytester: pytest.Pytester) -> None:
    here = Path(__file__)
    pytester.syspathinsert(here.parent)
    pytester.makepyfile(
        f"""
        from {here.stem} import TestThirdParty as Contract, {wrong.__name__}, SinkContract, MemorySink, installed

        class TestWrong(Contract):
            sink_class = {wrong.__name__}

        del Contract, SinkContract
        """
    )
    wanted = " or ".join(name.partition("[")[0] for name in WRONG[wrong])
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly", "-q", "-k", wanted)
    output = result.stdout.str()
    assert "ERROR" not in output
    failed = set(re.findall(r"^FAILED \S+::TestWrong::(\S+)", output, re.MULTILINE))
    assert failed >= {*WRONG[wrong]}


def test_a_destination_that_cannot_be_read_back_skips_only_the_tests_that_read(pytester: pytest.Pytester) -> None:
    here = Path(__file__)
    pytester.syspathinsert(here.parent)
    pytester.makepyfile(
        f"""
        import pytest
        from {here.stem} import TestThirdParty as Contract, SinkContract, installed

        class TestUnread(Contract):
            @pytest.fixture
            def read_back(self):
                pytest.skip("nobody can read it back")

        del Contract, SinkContract
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly", "-q", "-rsp")
    output = result.stdout.str()
    passed = set(re.findall(r"^PASSED \S+::TestUnread::(\S+)", output, re.MULTILINE))
    assert {
        "test_it_says_what_it_is",
        "test_close_is_allowed_before_open",
        "test_a_reason_never_quotes_the_row",
    } <= passed
    assert "test_a_batch_of_any_size_arrives[1]" not in passed
    assert "nobody can read it back" in output
    assert result.ret == 0


@pytest.mark.guarantee("Secrets and row values")
@pytest.mark.parametrize("model", [MemorySettings, SqliteSettings, Options])
def test_the_text_of_an_error_in_settings_of_any_sink_shows_no_value(model: type[Settings]) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate({"path": ["canary"], "room": ["canary"], "pasword": "canary"})
    assert "canary" not in str(refused.value) + repr(refused.value)


def test_the_fake_clock_moves_only_by_sleep() -> None:
    clock: Clock = FakeClock()
    start, ticks = clock.now(), clock.monotonic()
    clock.sleep(90)
    assert (clock.now() - start).total_seconds() == 90
    assert clock.monotonic() - ticks == 90


def test_a_batch_names_its_events_stably() -> None:
    task = SinkTask("00", "people", 1, "people", Mode.MIRROR, ("id",), pa.schema([("id", pa.int64())]))
    one, again, other = (batch_of(task, [("insert", person(number))]) for number in (1, 1, 2))
    assert one.rows == again.rows
    assert one.rows["_event_id"] != other.rows["_event_id"]
