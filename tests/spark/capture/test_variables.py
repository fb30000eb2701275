"""Values that look like a variable of Spark: `${x}`, which Spark replaces wherever it finds it in SQL."""

from __future__ import annotations

import json

import pytest

from dbt_reverse_etl.base.sql import render
from tests.support.dbt.project import Project

SECRET = "${env:HOME}"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_labels_keys_and_positions_that_look_like_a_variable_of_spark_are_captured_as_they_are(
    project: Project,
) -> None:
    def put(*rows: tuple[str, str]) -> None:
        frame = project.spark.createDataFrame(
            [(id_, day, f"{day}!") for id_, day in rows], "id string, day string, seen string"
        )
        frame.write.format("delta").mode("append").saveAsTable(f"{project.schema}.source")

    put(("${a}", "${day:1}"), ("${b}", "${day:2}"), (f"bad {SECRET}", "$"), (f"bad {SECRET}", "$"))
    settings = {"label": "day", "on_bad_key": "quarantine", "capture": {"strategy": "timestamp", "updated_at": "seen"}}
    project.changelog("log", f"select * from {project.schema}.source", settings=settings)
    first = project.run()
    assert first.messages["log"] == "+2 ~0 -0, snapshot 2 (2 labels) (1 keys quarantined)", first.text
    headers = project.rows("select _header.* from {s}.log where _change = 'snapshot' order by _snapshot_id")
    assert [(row.label, row.inserts) for row in headers] == [("${day:1}", 1), ("${day:2}", 1)]
    assert [row.key for row in headers[1].quarantined] == [json.dumps({"id": f"bad {SECRET}"}, separators=(",", ":"))]
    assert "${day:2}!" in headers[1].positions.values()
    assert sorted(project.image("log", "id, day")) == [("${a}", "${day:1}"), ("${b}", "${day:2}")]

    put(("${c}", "${day:3}"))
    assert project.run().messages["log"].startswith("+1 ~0 -0, snapshot 3")
    columns = ["id", "day", "seen"]
    history = render("key_history", f"{project.schema}.log", ["id"], columns, '{"id":"${c}"}', 10)
    assert [(row._snapshot_id, row._change) for row in project.rows(history)] == [(3, "insert")]
