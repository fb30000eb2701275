"""Arrow schemas as schemas of Avro: what a reader with another version of the schema gets. Decoded by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.sinks.kafka.avro_types import avro_schema, nullable, to_avro
from dbt_reverse_etl.sinks.kafka.envelope import ALIKE, envelope
from tests.support.effort import scaled

Fields = dict[str, pa.DataType]
# Few, so that types repeat, and with those that Avro's names of items and entries could meet.
NAMES = st.sampled_from(["a", "b", "a_", "a_item", "a_entry", "b_a", "key", "Value", "before", "after"])
POINT = pa.struct([("x", pa.int64())])


def nested(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    structs = st.dictionaries(NAMES, kinds, min_size=1, max_size=3).map(lambda fields: pa.struct(list(fields.items())))
    lists_and_maps = kinds.flatmap(
        lambda kind: st.sampled_from([pa.list_(kind), pa.map_(pa.string(), kind), pa.map_(pa.int64(), kind)])
    )
    return structs | structs | lists_and_maps


KINDS = st.recursive(st.sampled_from([pa.int64(), pa.string(), POINT, POINT]), nested, max_leaves=6)
SCHEMAS = st.dictionaries(NAMES, KINDS, min_size=1, max_size=5)


@st.composite
def changed(draw: st.DrawFn, fields: Fields) -> Fields:
    """The fields with one more, or one less, at any depth."""
    inner = [name for name, kind in fields.items() if pt.is_struct(kind)]
    if inner and draw(st.booleans()):
        name = draw(st.sampled_from(inner))
        within = draw(changed({field.name: field.type for field in fields[name]}))
        return {**fields, name: pa.struct(list(within.items()))}
    if len(fields) > 1 and draw(st.booleans()):
        gone = draw(st.sampled_from(list(fields)))
        return {name: kind for name, kind in fields.items() if name != gone}
    name = draw(NAMES.filter(lambda name: name not in fields))
    more = [*fields.items(), (name, draw(KINDS))]
    return dict(draw(st.permutations(more)))


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values as `to_pylist` gives them."""
    if pt.is_struct(kind):
        found = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pt.is_map(kind):
        key = st.sampled_from(["k", "l"] if pt.is_string(kind.key_type) else [1, 2])
        found = st.dictionaries(key, values(kind.item_type), max_size=2).map(lambda some: list(some.items()))
    elif pt.is_list(kind):
        found = st.lists(values(kind.value_type), max_size=2)
    else:
        found = st.sampled_from(["", "é"]) if pt.is_string(kind) else st.integers(-2, 2)
    return st.none() | found


def seen(value: Any, written: pa.DataType, wanted: pa.DataType) -> Any:
    """What a reader who wants another type gets: null for each field that was not written."""
    if value is None or not pt.is_nested(wanted):
        return value
    if pt.is_struct(wanted):
        known = {field.name: field.type for field in written}
        return {
            field.name: seen(value[field.name], known[field.name], field.type) if field.name in known else None
            for field in wanted
        }
    if pt.is_map(wanted):
        pairs = [(key, seen(item, written.item_type, wanted.item_type)) for key, item in value]
        return dict(pairs) if pt.is_string(wanted.key_type) else [{"key": key, "value": item} for key, item in pairs]
    return [seen(item, written.value_type, wanted.value_type) for item in value]


def row_schema(fields: Fields) -> pa.Schema:
    return nullable(pa.schema(list(fields.items())))


def read_back(row: dict[str, Any], written: pa.Schema, wanted: pa.Schema, name: str, **alike: Any) -> Any:
    """A row of one schema, as a reader with another one gets it."""
    writer, reader = (json.loads(json.dumps(avro_schema(one, name, **alike))) for one in (written, wanted))
    message = io.BytesIO()
    fastavro.schemaless_writer(message, writer, {field.name: to_avro(row[field.name], field.type) for field in written})
    message.seek(0)
    return fastavro.schemaless_reader(message, writer, reader)


def records(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each record's path and full name."""
    if isinstance(schema, list):
        for one in schema:
            yield from records(one, path)
    elif isinstance(schema, dict) and schema["type"] == "record":
        yield path, f"{schema['namespace']}.{schema['name']}"
        for field in schema["fields"]:
            yield from records(field["type"], (*path, field["name"]))
    elif isinstance(schema, dict):
        yield from records(schema.get("items") or schema.get("values"), path)


@pytest.mark.guarantee("Kafka", "In Avro, fields come and go at any depth, and readers with either schema read on")
@settings(max_examples=scaled(120), deadline=None)
@given(st.data())
def test_readers_of_either_schema_read_both_when_a_field_comes_or_goes(data: st.DataObject) -> None:
    fields = data.draw(SCHEMAS)
    one, other = row_schema(fields), row_schema(data.draw(changed(fields)))
    for written, wanted in ((one, other), (other, one)):
        kinds = pa.struct(list(written)), pa.struct(list(wanted))
        row = data.draw(values(kinds[0]).filter(bool))
        assert read_back(row, written, wanted, "Value") == seen(row, *kinds)
        event = {"before": row, "after": row, "op": "u", "ts_ms": 1}
        event["source"] = {"connector": "c", "name": "n", "snapshot_id": 1, "captured_at": 0}
        found = read_back(event, envelope(written), envelope(wanted), "Envelope", alike=ALIKE)
        assert (found["before"], found["after"]) == (seen(row, *kinds), seen(row, *kinds))


@settings(max_examples=scaled(120), deadline=None)
@given(st.data())
def test_a_record_is_named_by_its_path_whatever_other_fields_there_are(data: st.DataObject) -> None:
    fields = data.draw(SCHEMAS)
    found = [list(records(avro_schema(row_schema(some), "Value"))) for some in (fields, data.draw(changed(fields)))]
    names = [dict(some) for some in found]
    for some in found:
        assert len({name for _, name in some}) == len(some)
    assert all(names[1].get(path, name) == name for path, name in names[0].items())


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize("place", [POINT, pa.list_(POINT), pa.map_(pa.string(), POINT), pa.map_(pa.int64(), POINT)])
def test_a_column_of_the_type_of_another_comes_and_goes(place: pa.DataType) -> None:
    both: Fields = {"billing": place, "shipping": place, "id": pa.int64()}
    later = {name: both[name] for name in ("shipping", "id")}
    names = [dict(records(avro_schema(row_schema(some), "Value"))) for some in (both, later)]
    assert names[1].items() < names[0].items()
    point: Any = {"x": 7}
    value = [("k" if pt.is_string(place.key_type) else 1, point)] if pt.is_map(place) else [point]
    row = {name: point if pt.is_struct(place) else value for name in ("billing", "shipping")} | {"id": 1}
    before, after = row_schema(both), row_schema(later)
    kinds = pa.struct(list(before)), pa.struct(list(after))
    assert read_back(row, before, after, "Value") == seen(row, *kinds)
    assert read_back(row, after, before, "Value") == seen(row, kinds[1], kinds[0])


@pytest.mark.parametrize(
    ("fields", "full_name"),
    [
        ({"place": POINT}, "dbt_reverse_etl.place.place"),
        ({"place": pa.list_(POINT)}, "dbt_reverse_etl.place.place_item"),
        ({"place": pa.map_(pa.string(), POINT)}, "dbt_reverse_etl.place.place_item"),
        ({"place": pa.map_(pa.int64(), pa.int64())}, "dbt_reverse_etl.place.place_entry"),
        ({"Value": POINT}, "dbt_reverse_etl.Value.Value"),
    ],
)
def test_full_names_stay_as_they_are_for_they_are_registered(fields: Fields, full_name: str) -> None:
    assert [name for _, name in records(avro_schema(row_schema(fields), "Value"))][1:] == [full_name]


def test_an_events_two_images_are_one_record() -> None:
    schema = envelope(row_schema({"a": POINT}))
    written = avro_schema(schema, "Envelope", ALIKE)
    assert written["fields"][1] == {"name": "after", "type": ["null", "dbt_reverse_etl.before.before"], "default": None}
    assert len([name for _, name in records(written)]) == 4  # event, row, its struct, source
    fastavro.parse_schema(written)
