"""The Kafka sink under the public contract, on a real broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.kafka.settings import KafkaOptions
from dbt_reverse_etl.sinks.kafka.sink import KafkaSink
from dbt_reverse_etl.testing import ReadBack, SinkContract
from dbt_reverse_etl.values.encoding import encode_values
from tests.support.effort import scaled
from tests.support.servers.kafka import a_topic, read, settings, table


class TestKafka(SinkContract):
    sink_class = KafkaSink
    histories = scaled(6)

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return settings()

    @pytest.fixture
    def unreachable(self) -> dict[str, Any]:
        return settings(sasl_password="canary-wrong-31415926")

    @pytest.fixture
    def read_back(self) -> ReadBack:
        return lambda task: list(table(read(task.object)).values())

    def expected(self, field: pa.Field, value: Any) -> Any:
        return orjson.loads(encode_values(pa.array([value], field.type)).rows[0] or b"")

    def refine(self, task: SinkTask) -> SinkTask:
        return replace(task, object=a_topic(), options=KafkaOptions(partitions=3))
