"""Every type into every destination, into tables of the sink and of a user, read by others and for a reconcile."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, Sink, SinkTask
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.testing import deliver
from tests.support.servers.http import Reply, http_server
from tests.support.servers.schema_registry import a_registry
from tests.support.sinks.types import SCHEMA, rows
from tests.support.sinks.types_places import ABSENT, FILES, REFUSED, Places, in_zone, wrong

TABLES = ("postgres", "mysql", "sqlite", "duckdb")
OTHERS = (*FILES, "topic", "avro", "api")
CASES = [*((name, maker) for name in TABLES for maker in ("sink", "user")), *((name, "sink") for name in OTHERS)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with http_server(Reply(204)) as server, a_registry() as registry:
        yield Places(tmp_path_factory.mktemp("types"), (*TABLES, *OTHERS), server, registry)


def a_sink(places: Places, name: str) -> Sink:
    settings = dict(places.profiles[name])
    [entry] = entry_points(group="dbt_reverse_etl.sinks", name=settings.pop("type"))
    sink: type[Sink] = entry.load()
    return sink(sink.settings_model.model_validate(settings))


def a_task(places: Places, sink: Sink, name: str, maker: str) -> SinkTask:
    options = sink.options_model.model_validate(places.options.get(name, {}))
    schema = pa.schema([field for field in SCHEMA if field.name not in ABSENT.get(name, ())])
    place = places.object(name, maker)
    return SinkTask("5c", f"{name}_by_{maker}", 1, place, Mode.UPSERT, ("id",), schema, options=options)


@pytest.mark.guarantee("Every destination")
@pytest.mark.parametrize(("name", "maker"), CASES)
def test_every_value_arrives_as_it_is_or_its_row_is_refused_and_a_reconcile_reads_the_same(
    places: Places, name: str, maker: str
) -> None:
    if maker == "user":
        places.make_by_user(name)
    with in_zone("America/New_York"):
        refused = pushed(places, name, maker)
    assert refused == REFUSED.get(name, set())
    with in_zone("Asia/Tokyo"):
        assert wrong(name, places.read(name, maker)) == {}
        sink = a_sink(places, name)
        found = sink.read(a_task(places, sink, name, maker))
        if found is not None:
            table = pa.concat_tables(found)
            assert not any(table.column(UNREADABLE).to_pylist())
            assert wrong(name, table.to_pylist()) == {}
    assert (found is None) == (name == "api")


def pushed(places: Places, name: str, maker: str) -> set[int]:
    """The rows that were refused."""
    sink = a_sink(places, name)
    task = a_task(places, sink, name, maker)
    sink.validate(task)
    sink.open(task)
    try:
        sent: dict[Any, list[Outcome]] = {
            row["id"]: deliver(sink, task, [("insert", row)], f"claim {row['id']}") for row in rows()
        }
        sink.finish()
    finally:
        sink.close()
    assert {outcome for [outcome] in sent.values()} <= {Outcome.DELIVERED, Outcome.REJECTED}
    return {number for number, [outcome] in sent.items() if outcome is Outcome.REJECTED}
