"""Arrow schemas as message types of Protobuf whose numbers stay. Pure.

| Arrow type | Protobuf type |
|---|---|
| integers to 32 bits, of 64 bits; unsigned ones | `int32`, `int64`; `uint32`, `uint64` |
| float32, float64 | `float`, `double` |
| bool, string, binary | `bool`, `string`, `bytes` |
| decimal | `string`, all digits of its scale |
| date, time | `google.type.Date`, `google.type.TimeOfDay` |
| timestamp with a zone, without | `google.protobuf.Timestamp`, `google.type.DateTime` |
| struct | a message |
| list | a message of `repeated Item items`, an item has an `optional` `value` |
| map | a message of `repeated Entry entries`, of `key` and `value` |

Every field has presence (`optional`, or a message), so that NULL is told from zero, from an empty list and from an empty map.

A column keeps its number, found by its name in the message type that was registered last; a new one gets the number above
all that are there. A column that is gone stays, `deprecated` and never set: so no number is ever given twice, and a
column that comes back has its own.

https://protobuf.dev/programming-guides/proto3/#updating
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pt
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    OneofDescriptorProto,
)

from dbt_reverse_etl.values.arrow import is_bytes, is_list, is_text, plain_type

PACKAGE = "dbt_reverse_etl"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PARTS = {"items": "Item", "entries": "Entry"}
_Field = FieldDescriptorProto
_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], int], ...] = (
    (pt.is_boolean, _Field.TYPE_BOOL),
    (pt.is_int64, _Field.TYPE_INT64),
    (pt.is_uint64, _Field.TYPE_UINT64),
    (pt.is_signed_integer, _Field.TYPE_INT32),
    (pt.is_unsigned_integer, _Field.TYPE_UINT32),
    (pt.is_float32, _Field.TYPE_FLOAT),
    (pt.is_float64, _Field.TYPE_DOUBLE),
    (pt.is_decimal, _Field.TYPE_STRING),
    (is_text, _Field.TYPE_STRING),
    (is_bytes, _Field.TYPE_BYTES),
)
_KNOWN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (lambda kind: pt.is_timestamp(kind) and kind.tz is not None, "google.protobuf.Timestamp"),
    (pt.is_timestamp, "google.type.DateTime"),
    (pt.is_date, "google.type.Date"),
    (pt.is_time, "google.type.TimeOfDay"),
)
# The same bytes, and who knows the wider type reads the other one.
_WIDER = {(_Field.TYPE_INT32, _Field.TYPE_INT64), (_Field.TYPE_UINT32, _Field.TYPE_UINT64)}


def unsupported(schema: pa.Schema) -> list[str]:
    """Names of the fields that have no form in Protobuf, or whose name is in JSON that of another one."""
    found = _alike(schema.names)
    for field in schema:
        try:
            file_of("topic", {"Value": pa.schema([field])}, None)
        except TypeError:
            found.add(field.name)
    return [name for name in schema.names if name in found]


def package_of(topic: str) -> str:
    """A package for each topic, so that one program can know the types of several."""
    words = [re.sub(r"[^A-Za-z0-9_]", "_", word) for word in topic.split(".") if word]
    return ".".join([PACKAGE, *(word if _NAME.fullmatch(word) else f"t{word}" for word in words)])


def file_of(
    topic: str, messages: Mapping[str, pa.Schema], latest: FileDescriptorProto | None
) -> tuple[FileDescriptorProto, list[str]]:
    """The message types of a topic, and the fields whose type is not that of the latest ones.

    Args:
        messages: by name; a field that is a struct of the fields of one of them is of its type.
        latest: what was registered last.

    Raises:
        TypeError: for what is `unsupported`.
    """
    package = package_of(topic)
    theirs = latest.message_type if latest is not None and latest.package == package else []
    earlier = {message.name: message for message in theirs}
    fields = {name: _wired(pa.struct(list(schema))) for name, schema in messages.items()}
    builder = _Builder({kind: f".{package}.{name}" for name, kind in fields.items()})
    made = [builder.message(f".{package}", name, list(kind), earlier.get(name)) for name, kind in fields.items()]
    needed = sorted({f"{name.lower().replace('.', '/')}.proto" for name in _known_types(made)})
    file = FileDescriptorProto(name=f"{PACKAGE}.proto", package=package, syntax="proto3", dependency=needed)
    file.message_type.extend(made)
    return file, builder.changed


def is_earlier(other: FileDescriptorProto, file: FileDescriptorProto) -> bool:
    """Whether `file` knows every field of the other one under its number, and so reads what was written with it."""
    return other.package == file.package and _includes(file.message_type, other.message_type)


def _includes(ours: Iterable[DescriptorProto], theirs: Iterable[DescriptorProto]) -> bool:
    by_name = {message.name: message for message in ours}
    return all(
        message.name in by_name
        and {(field.number, field.name) for field in message.field}
        <= {(field.number, field.name) for field in by_name[message.name].field}
        and _includes(by_name[message.name].nested_type, message.nested_type)
        for message in theirs
    )


class _Builder:
    """Makes message types.

    Attributes:
        changed: fields whose type is not that of before, as paths.
    """

    def __init__(self, shared: Mapping[pa.DataType, str]) -> None:
        self._shared = shared
        self.changed: list[str] = []

    def message(
        self, scope: str, name: str, columns: Sequence[pa.Field], before: DescriptorProto | None
    ) -> DescriptorProto:
        """A message type of these columns, and of those that `before` has beside them."""
        before = before or DescriptorProto()
        path, old = f"{scope}.{name}", {field.name: field for field in before.field}
        names = _Names(columns, before)
        fields, nested = [], []
        for column in columns:
            was = old.pop(column.name, None)
            field, inner = self._field(path, column, was, names, before)
            if column.name in before.reserved_name or (was is not None and not _fits(was, field)):
                self.changed.append(f"{path}.{column.name}")
            fields.append(field)
            nested += inner
        for gone in old.values():
            gone.options.deprecated = True
            fields.append(gone)
            nested += _nested(before, gone)
        lists = {column.name for column in columns if is_list(column.type)}
        if before.field and lists != _repeated(before.field):
            self.changed.append(path)  # a struct, a list or a map has become another of them
        return _message(name, fields, nested, before)

    def _field(
        self, path: str, column: pa.Field, was: FieldDescriptorProto | None, names: _Names, before: DescriptorProto
    ) -> tuple[FieldDescriptorProto, list[DescriptorProto]]:
        """The field, and the message type that is made for it."""
        kind, label = plain_type(column.type), _Field.LABEL_OPTIONAL
        if is_list(kind):
            kind, label = kind.value_type, _Field.LABEL_REPEATED
        number = names.number(was)
        field = FieldDescriptorProto(name=column.name, number=number, label=label)
        if not pt.is_struct(kind):
            _set_type(field, kind)
            return field, []
        field.type = _Field.TYPE_MESSAGE
        if kind in self._shared:
            field.type_name = self._shared[kind]
            return field, []
        inner = _nested(before, was) if was is not None else []
        name = inner[0].name if inner else names.free(_PARTS.get(column.name) or _camel(column.name))
        field.type_name = f"{path}.{name}"
        return field, [self.message(path, name, list(kind), inner[0] if inner else None)]


class _Names:
    """Numbers and names that are free in a message type."""

    def __init__(self, columns: Sequence[pa.Field], before: DescriptorProto) -> None:
        named = [*columns, *before.field, *before.nested_type]
        self._taken = {one.name for one in named}
        used = [field.number for field in before.field] + [gone.end - 1 for gone in before.reserved_range]
        self._last: int = max(used, default=0)

    def number(self, was: FieldDescriptorProto | None) -> int:
        """That of before, or the one above all."""
        if was is not None:
            return int(was.number)
        self._last += 1
        return self._last

    def free(self, name: str) -> str:
        """A name for a message type, which must not be that of a field."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _message(
    name: str, fields: list[FieldDescriptorProto], nested: list[DescriptorProto], before: DescriptorProto
) -> DescriptorProto:
    """In the order of the numbers, so that it does not depend on the order of the columns."""
    made = DescriptorProto(name=name, reserved_range=before.reserved_range, reserved_name=before.reserved_name)
    for field in sorted(fields, key=lambda field: field.number):
        field.ClearField("oneof_index")
        if not field.type_name:  # `optional` is written as a group of its one field
            field.proto3_optional, field.oneof_index = True, len(made.oneof_decl)
            made.oneof_decl.append(OneofDescriptorProto(name=f"_{field.name}"))
        made.field.append(field)
    made.nested_type.extend(sorted(nested, key=lambda message: message.name))
    return made


def _wired(kind: pa.DataType) -> pa.DataType:
    """With lists and maps as the messages that hold them."""
    kind = plain_type(kind)
    if pt.is_struct(kind):
        names = [field.name for field in kind]
        if not names or _alike(names) or not all(map(_NAME.fullmatch, names)):
            raise TypeError(f"{kind} has no form in Protobuf")
        return pa.struct([(field.name, _wired(field.type)) for field in kind])
    if pt.is_map(kind):
        entry = pa.struct([("key", _wired(kind.key_type)), ("value", _wired(kind.item_type))])
        return pa.struct([("entries", pa.list_(entry))])
    if is_list(kind):
        return pa.struct([("items", pa.list_(pa.struct([("value", _wired(kind.value_type))])))])
    return kind


def _set_type(field: FieldDescriptorProto, kind: pa.DataType) -> None:
    for is_kind, number in _SCALARS:
        if is_kind(kind):
            field.type = number
            return
    for is_kind, name in _KNOWN:
        if is_kind(kind):
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{name}"
            return
    raise TypeError(f"{kind} has no form in Protobuf")


def _fits(was: FieldDescriptorProto, field: FieldDescriptorProto) -> bool:
    """Whether the field reads what was written before. A registry may leave the type open, or the name relative."""
    if was.type_name:
        return str(field.type_name).endswith(f".{was.type_name.lstrip('.')}")
    return bool(was.type == field.type) or (was.type, field.type) in _WIDER


def _nested(message: DescriptorProto, field: FieldDescriptorProto) -> list[DescriptorProto]:
    """The message type that was made for a field, if there is one."""
    is_known = field.type_name.lstrip(".").startswith("google.")
    name = "" if is_known else field.type_name.rpartition(".")[2]
    return [nested for nested in message.nested_type if nested.name == name]


def _repeated(fields: Iterable[FieldDescriptorProto]) -> set[str]:
    return {field.name for field in fields if field.label == _Field.LABEL_REPEATED}


def _known_types(messages: Iterable[DescriptorProto]) -> Iterator[str]:
    for message in messages:
        names = (field.type_name.lstrip(".") for field in message.field)
        yield from (name for name in names if name.startswith("google."))
        yield from _known_types(message.nested_type)


def _alike(names: Sequence[str]) -> set[str]:
    """Names that are one in JSON, which compilers refuse."""
    times = Counter(map(_json_name, names))
    return {name for name in names if times[_json_name(name)] > 1}


def _json_name(name: str) -> str:
    return re.sub(r"_+([^_]?)", lambda found: found[1].upper(), name)


def _camel(name: str) -> str:
    word = _json_name(name)
    return word[:1].upper() + word[1:]
