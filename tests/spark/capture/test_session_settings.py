"""Settings of the user's session that change what SQL means: refused, or without effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.dbt.project import Project


@contextmanager
def setting(project: Project, name: str, value: str) -> Iterator[None]:
    conf = project.spark.conf
    before = conf.get(name, None)
    conf.set(name, value)
    try:
        yield
    finally:
        conf.unset(name) if before is None else conf.set(name, before)


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_other_times_or_texts_are_refused_before_the_first_capture_and_before_a_later_one(project: Project) -> None:
    others = {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    }
    project.table("source", "select id, current_timestamp() as at from range(2)")
    project.changelog("log", f"select * from {project.schema}.source", settings={"compare": "except"})
    for captured in (False, True):
        for name, value in others.items():
            with setting(project, name, value):
                refused = project.run()
            assert (refused.success, f"found {name}: {value}" in refused.text) == (False, True), refused.text
        tables = {row.tableName for row in project.rows("show tables in {s}") if not row.isTemporary}
        assert tables == ({"source", "log"} if captured else {"source"})
        assert project.run().messages["log"].startswith("+0 ~0 -0" if captured else "+2 ~0 -0")


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_changelog_without_a_snapshot_takes_no_other_session_and_notes_its_own(project: Project) -> None:
    project.table("source", "select id, id as seen from range(2)")
    settings = {"capture": {"strategy": "timestamp", "updated_at": "seen"}}
    project.changelog("log", f"select * from {project.schema}.source", settings=settings)
    assert (made := project.dbt("run", "--empty", "--select", "log")).success, made.text
    assert project.rows("select * from {s}.log") == []
    with setting(project, "spark.sql.timestampType", "TIMESTAMP_NTZ"):
        refused = project.run()
    assert (refused.success, "found spark.sql.timestampType" in refused.text) == (False, True), refused.text
    assert project.run().messages["log"].startswith("+2 ~0 -0, snapshot 1")
    (header,) = project.rows("select _header.positions from {s}.log where _change = 'snapshot'")
    assert header.positions["reverse_etl/session"]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_label_is_rolled_back_where_the_session_writes_nulls_into_json(project: Project) -> None:
    project.changelog("log", f"select * from {project.schema}.source", settings={"label": "day"})
    with setting(project, "spark.sql.jsonGenerator.ignoreNullFields", "false"):
        for day in ("2024-01-01", "2024-01-02"):
            project.table("source", f"select id, '{day}' as day from range(2)")
            assert (done := project.run()).success, done.text
        for _ in range(2):
            back = project.dbt("run-operation", "rollback", "--args", "{model: log, label: '2024-01-01'}")
            assert back.success, back.text
    assert project.image("log", "id, day") == [(0, "2024-01-01"), (1, "2024-01-01")]


@pytest.mark.guarantee("Capture")
def test_a_session_may_take_what_is_in_double_quotes_for_a_name(project: Project) -> None:
    project.changelog("log", "select id, array(named_struct('at', timestamp'2024-01-01')) as seen from range(2)")
    project.sync("log_sent", "log", mode="mirror", object="sent", fields=["id"])
    with (
        setting(project, "spark.sql.ansi.enabled", "true"),
        setting(project, "spark.sql.ansi.doubleQuotedIdentifiers", "true"),
    ):
        done = project.run()
    assert done.success, done.text
    assert project.crm("select count(*) from sent") == [(2,)]
