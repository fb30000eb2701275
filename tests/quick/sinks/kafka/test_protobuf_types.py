"""Message types of Protobuf that are made of Arrow schemas, and the numbers of their fields. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.sinks.kafka.protobuf_types import file_of, is_earlier, package_of, unsupported

ADDRESS = pa.struct([("street", pa.string()), ("city", pa.string())])
Columns = Iterable[tuple[str, Any]]


def made(columns: Columns, latest: FileDescriptorProto | None = None) -> FileDescriptorProto:
    file, changed = file_of("shop.people", {"Value": pa.schema(list(columns))}, latest)
    assert changed == []
    return file


def changed_from(first: Columns, second: Columns) -> list[str]:
    found = file_of("shop.people", {"Value": pa.schema(list(second))}, made(first))[1]
    return [path.removeprefix(".dbt_reverse_etl.shop.people.") for path in found]


def numbers(message: Any) -> dict[str, int]:
    return {field.name: field.number for field in message.field}


@pytest.mark.guarantee("Kafka")
@given(st.lists(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1), min_size=1, max_size=8))
def test_no_number_is_ever_that_of_two_columns_and_no_column_ever_has_two_numbers(history: list[list[str]]) -> None:
    file, seen = None, set[tuple[str, int]]()
    for names in history:
        earlier, file = file, made([(name, pa.int64()) for name in names], file)
        seen |= numbers(file.message_type[0]).items()
        assert set(names) <= numbers(file.message_type[0]).keys()
        assert earlier is None or is_earlier(earlier, file)
    assert len(seen) == len({name for name, _ in seen}) == len({number for _, number in seen})


@pytest.mark.guarantee("Kafka")
def test_the_fields_of_structs_in_lists_keep_their_numbers_too() -> None:
    first = made([("homes", pa.list_(ADDRESS))])
    wider = pa.struct([("zip", pa.string()), ("city", pa.string())])
    message = made([("age", pa.int32()), ("homes", pa.list_(wider))], first).message_type[0]
    assert numbers(message) == {"homes": 1, "age": 2}
    home = message.nested_type[0].nested_type[0].nested_type[0]
    assert numbers(home) == {"street": 1, "city": 2, "zip": 3}


@pytest.mark.guarantee("Kafka")
def test_a_number_that_somebody_reserved_is_not_given_and_neither_is_a_name() -> None:
    latest = made([("id", pa.int64())])
    latest.message_type[0].reserved_range.add(start=2, end=8)
    latest.message_type[0].reserved_name.append("ssn")
    after = made([("id", pa.int64()), ("plan", pa.string())], latest)
    assert numbers(after.message_type[0]) == {"id": 1, "plan": 8}
    again, _ = file_of("shop.people", {"Value": pa.schema([("x", pa.int64())])}, after)
    assert numbers(again.message_type[0])["x"] == 9
    _, refused = file_of("shop.people", {"Value": pa.schema([("ssn", pa.string())])}, latest)
    assert refused == [".dbt_reverse_etl.shop.people.Value.ssn"]


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int64(), pa.int32()),
        (pa.int32(), pa.uint32()),
        (pa.float32(), pa.float64()),
        (pa.string(), pa.binary()),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.string(), ADDRESS),
        (ADDRESS, pa.string()),
        (pa.date32(), ADDRESS),
        (pa.list_(pa.int64()), pa.list_(pa.string())),
        (pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64())),
        (ADDRESS, pa.list_(pa.int64())),
        (pa.list_(pa.int64()), ADDRESS),
    ],
)
def test_another_type_under_a_number_is_found(before: pa.DataType, after: pa.DataType) -> None:
    found = changed_from([("id", pa.int64()), ("x", before)], [("id", pa.int64()), ("x", after)])
    assert found
    assert all(path.startswith(("Value.x", "Value.X")) for path in found)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int8(), pa.int32()),
        (pa.int32(), pa.int64()),
        (pa.uint16(), pa.uint64()),
        (pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (pa.timestamp("s", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.date32(), pa.date64()),
    ],
)
def test_a_type_that_reads_what_the_other_one_wrote_keeps_the_number(before: pa.DataType, after: pa.DataType) -> None:
    assert changed_from([("x", before)], [("x", after)]) == []


def test_a_registry_may_write_names_without_their_package_and_types_not_at_all() -> None:
    columns = [("home", ADDRESS), ("at", pa.timestamp("us", "UTC"))]
    latest = made(columns)
    for field in latest.message_type[0].field:
        field.ClearField("type")
    latest.message_type[0].field[0].type_name = "Home"
    latest.message_type[0].field[1].type_name = "google.protobuf.Timestamp"
    assert made(columns, latest) == made(columns)
    assert file_of("shop.people", {"Value": pa.schema([("home", pa.date32())])}, latest)[1]


def test_a_message_type_never_has_the_name_of_a_column() -> None:
    columns = [("home", ADDRESS), ("Home", pa.string())]
    message = made(columns).message_type[0]
    names = [field.name for field in message.field] + [nested.name for nested in message.nested_type]
    assert len({*names}) == len(names) == 3


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("zwölf", pa.int64()),
        ("1st", pa.int64()),
        ("_id", pa.int64()),
        ("a-b", pa.int64()),
        ("x", pa.null()),
        ("x", pa.struct([])),
        ("x", pa.struct([("two words", pa.int64())])),
        ("x", pa.list_(pa.struct([("a_b", pa.int64()), ("aB", pa.int64())]))),
        ("x", pa.duration("s")),
        ("x", pa.float16()),
    ],
)
def test_a_name_or_type_that_protobuf_has_not_is_found_at_any_depth(name: str, kind: pa.DataType) -> None:
    assert unsupported(pa.schema([("id", pa.int64()), (name, kind)])) == [name]


@pytest.mark.parametrize(
    ("topic", "package"),
    [
        ("shop.customers", "dbt_reverse_etl.shop.customers"),
        ("shop-eu.2024..x", "dbt_reverse_etl.shop_eu.t2024.x"),
        ("_private", "dbt_reverse_etl.t_private"),
    ],
)
def test_each_topic_has_a_package_of_its_own(topic: str, package: str) -> None:
    assert package_of(topic) == package
    assert file_of(topic, {"Value": pa.schema([("id", pa.int64())])}, None)[0].package == package


def test_a_schema_that_is_not_before_ours_is_told_from_one_that_is() -> None:
    first = made([("id", pa.int64()), ("home", ADDRESS)])
    second = made([("id", pa.int64()), ("home", pa.struct([("zip", pa.string())])), ("plan", pa.string())], first)
    other, _ = file_of("shop.orders", {"Value": pa.schema([("id", pa.int64())])}, None)
    assert is_earlier(first, second)
    assert is_earlier(second, second)
    assert not is_earlier(second, first)
    assert not is_earlier(other, second)
    assert not is_earlier(made([("plan", pa.string())]), second)
