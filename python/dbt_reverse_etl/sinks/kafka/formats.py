"""What a sync whose values have a schema in a registry must be like."""

from __future__ import annotations

from importlib.util import find_spec

import pyarrow as pa

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.kafka import avro_types
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions, KafkaSettings

# Found without being imported, which would take seconds; the package above one of Protobuf is there with any of them.
_NEEDED = {"avro": ("fastavro", "authlib"), "protobuf": ("google", "google.protobuf", "google.type", "authlib")}
_NAMES = {
    "avro": "a name of letters, digits and _, and a type that Avro has",
    "protobuf": "a name of letters, digits and _ that begins with a letter and is no other one's in JSON, and a type that Protobuf has",
}


def registry_problems(task: SinkTask, options: KafkaOptions, settings: KafkaSettings) -> list[Problem]:
    """None for JSON, which needs no registry."""
    name, where, problems = options.value_format, f"sync {task.sync}, options", []
    if name == "json":
        return []
    if settings.schema_registry_url is None:
        expected = "schema_registry_url in the destination"
        found = f"value_format {name}, and no schema registry"
        problems.append(Problem(where, found, expected, "add it to profiles.yml"))
    is_installed = all(find_spec(module) for module in _NEEDED[name])
    if not is_installed:
        install = f"pip install 'dbt-reverse-etl[kafka-{name}]'"
        problems.append(Problem(where, f"value_format {name}, and not all that it needs", "it installed", install))
    if options.nan != "reject":
        expected = f"none: {name.capitalize()} has NaN and Infinity"
        problems.append(Problem(where, f"nan, with value_format {name}", expected, "remove it"))
    return problems + [
        Problem(
            f"sync {task.sync}, field {field}", f"{task.schema.field(field).type}", _NAMES[name], "rename or cast it"
        )
        for field in (_unsupported(name, task.schema) if is_installed else ())
    ]


def _unsupported(name: str, schema: pa.Schema) -> list[str]:
    if name == "avro":
        return avro_types.unsupported(schema)
    from dbt_reverse_etl.sinks.kafka import protobuf_types  # needs a package of its own

    return protobuf_types.unsupported(schema)
