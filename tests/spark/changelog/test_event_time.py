"""dbt cuts a changelog with `event_time` to a part of the time: for a batch of a microbatch model, and with --sample."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from tests.support.dbt.project import Project

IMAGES = {
    "current": "current(ref('orders_changelog'))",
    "as_of_snapshot": "as_of(ref('orders_changelog'), snapshot=2)",
    "as_of_time": "as_of(ref('orders_changelog'), timestamp='2999-01-01')",
    "as_of_label": "as_of(ref('orders_changelog'), label='z')",
    "scd1": "scd1(ref('orders_changelog'))",
    "scd2": "scd2(ref('orders_changelog'), labels=true)",
    "scd3": "scd3(ref('orders_changelog'), 'state')",
    "net": "net_changes(ref('orders_changelog'), 1, 2)",
}
LONG_AGO = "{'start': '2020-01-01', 'end': '2020-01-02'}"


@pytest.fixture(scope="module")
def project(spark: object, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two snapshots: order 1 is changed, 2 is deleted, 3 comes."""
    made = Project(tmp_path_factory.mktemp("event_time") / "shop", spark, "event_time")  # type: ignore[arg-type]
    for rows in ("(1, 'new'), (2, 'new')", "(1, 'sent'), (3, 'new')"):
        query = f"select * from values {rows} as t (id, state)"
        made.changelog("orders_changelog", query, event_time="_captured_at")
        assert made.run().success
    return made


@pytest.mark.full
def test_with_sample_an_image_is_made_of_all_changes(project: Project) -> None:
    for name, call in IMAGES.items():
        project.model(name, "select * from {{ reverse_etl." + call + " }}", {"materialized": "table"})
    project.model(
        "sampled", "select * from {{ reverse_etl.changes(ref('orders_changelog')) }}", {"materialized": "table"}
    )
    project.model("newest", "select {{ reverse_etl.newest_snapshot(ref('orders_changelog')) }} as id")
    whole = project.dbt("run", "--select", *IMAGES)
    assert whole.success, whole.text
    before = {name: sorted(map(str, project.rows(f"select * from {{s}}.{name}"))) for name in IMAGES}
    assert all(before.values())
    result = project.dbt("run", "--select", *IMAGES, "sampled", "newest", "--sample", LONG_AGO)
    assert result.success, result.text
    assert {name: sorted(map(str, project.rows(f"select * from {{s}}.{name}"))) for name in IMAGES} == before
    assert [tuple(row) for row in project.rows("select * from {s}.newest")] == [(2,)]
    assert project.rows("select * from {s}.sampled") == [], "changes are sampled as any rows"


@pytest.mark.guarantee("Capture")
def test_a_batch_of_a_microbatch_model_reads_changes_but_no_image(project: Project) -> None:
    config = {
        "materialized": "incremental", "incremental_strategy": "microbatch", "event_time": "_captured_at", "batch_size": "day",
        "begin": f"{datetime.now(timezone.utc):%Y-%m-%d}", "partition_by": "day",
    }  # fmt: skip
    query = "select *, to_date(_captured_at) as day from {{ reverse_etl.changes(ref('orders_changelog')) }}"
    project.model("daily_changes", query, config)
    images = {f"daily_{name}": call for name, call in IMAGES.items()}
    for name, call in images.items():
        project.model(name, "select *, current_date() as day from {{ reverse_etl." + call + " }}", config)
    result = project.dbt("run", "--select", "daily_changes", *images)
    assert result.statuses["daily_changes"] == "success"
    assert len(project.rows("select * from {s}.daily_changes")) == 2 + 4, (
        "two inserts; an update as two rows, a delete, an insert"
    )
    assert {result.statuses[name] for name in images} == {"error"}
    assert result.text.count(
        "found one batch of a microbatch model, so a part of its changes; expected all of them"
    ) >= len(images)
    assert "Next: give the model another incremental_strategy, or read the changes of a batch" in result.text


def test_the_time_of_a_changelog_is_that_of_its_capture(project: Project) -> None:
    project.changelog("updated_changelog", "select 1 as id, current_timestamp() as updated_at", event_time="updated_at")
    result = project.dbt("run", "--select", "updated_changelog")
    assert "event_time: found 'updated_at'; expected _captured_at" in result.messages["updated_changelog"]
