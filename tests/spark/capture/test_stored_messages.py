"""Debezium's messages in a plain table: partitions that lag behind, late events, tombstones without their delete, and a table that is emptied after each load."""

from __future__ import annotations

import json
import os
import random

import pytest

from tests.support.dbt.captures import Captures
from tests.support.dbt.debezium_events import COMPARED, POSTGRES, SourceTable, Topic
from tests.support.dbt.project import Project

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))
STEPS = 6
FEED = {"strategy": "feed", "operation": "_op", "sequence": "_sequence"}


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_messages_in_a_plain_table_lead_to_the_rows_that_they_tell_of_in_whatever_order_partitions_come(
    project: Project,
) -> None:
    rng = random.Random(SEED)
    source = SourceTable(rng, "postgresql")
    topic = Topic.of(source, rng, 3)
    stored, expected = [], []
    for step in range(STEPS):
        topic.send(source.change(25, keys=12))
        if step == STEPS - 1:  # a connector that crashed
            topic.send(source.again(20))
        else:
            topic.compact()
        stored += [(step, *message) for message in topic.copy(all_of_them=step == STEPS - 1)]
        expected.append(topic.names())
    assert topic.lone_tombstones > 2, "or the history would prove nothing"
    columns = "step int, key string, value string, _partition int, _offset bigint"
    project.spark.createDataFrame(stored, columns).write.format("delta").saveAsTable(f"{project.schema}.messages")

    captures = Captures(project)
    for name, condition in (("kept", "step <= {}"), ("emptied", "step = {}")):
        view = f"create or replace view {project.schema}.{name}_messages as select * from {project.schema}.messages where {condition}"
        project.rows(view.format(0))
        messages = (
            f"reverse_etl.debezium('{project.schema}.{name}_messages', columns={json.dumps(POSTGRES)}, key=['id'])"
        )
        steps = [[view.format(step)] for step in range(STEPS + 1)]
        captures.changelog(name, f"select * from {{{{ {messages} }}}}", steps, {"capture": FEED})
    said = captures.run()
    for name in ("kept", "emptied"):
        assert captures.images(name, ["name"], said[name][:-1]) == expected, (SEED, name, said[name])
        assert project.image(name, COMPARED) == source.expected(), (SEED, name)
        newest = said[name][-2].rpartition(", ")[2]
        assert said[name][-1] == f"+0 ~0 -0, {newest}", "what was read before is no news"
