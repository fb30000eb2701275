"""What stops a push or a row, what the run says, and what then helps: one project with a sync for each case, six runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import Result
from pyspark.sql import SparkSession

from tests.support.dbt.command import call, read
from tests.support.dbt.project import Project
from tests.support.dbt.project import Result as Run

pytestmark = pytest.mark.full

FIELDS = {"id": "external_id", "name": "name"}
ANN, BOB, CEM = "(1, 'Ann', 'pro')", "(2, 'Bob', 'trial')", "(3, 'Cem', 'pro')"


@dataclass
class Told:
    """The runs, and after each the rows of every object and of the view of the undelivered ones."""

    project: Project
    runs: list[Run] = field(default_factory=list)
    after: list[dict[str, Any]] = field(default_factory=list)
    commands: dict[str, Result] = field(default_factory=dict)
    warned: Run | None = None

    def source(self, *rows: str, name: str = "source") -> None:
        self.project.table(name, f"select * from values {', '.join(rows)} as t (id, name, plan)")

    def sync(self, name: str, **settings: Any) -> None:
        changelog = "others_changelog" if name.startswith("other") else "contacts_changelog"
        self.project.sync(
            name, changelog, **{"mode": "mirror", "object": name, "fields": FIELDS, "destination": "crm", **settings}
        )

    def run(self, *command: str) -> None:
        self.runs.append(self.project.dbt(*command) if command else self.project.run())
        names = ("refused", "guarded", "seen_in_part", "other_adopted", "other_forgotten")
        rows: dict[str, Any] = {name: self.project.crm(f"select * from {name} order by 1") for name in names}
        listed = self.project.rows("select row_key, operation, outcome, attempts from {s}.reverse_etl_undelivered")
        self.after.append(rows | {"undelivered": [tuple(row) for row in listed]})

    def operation(self, name: str, **arguments: str) -> None:
        result = self.project.dbt("run-operation", name, "--args", json.dumps(arguments))
        assert result.success, result.text

    def lost(self) -> list[tuple[Any, ...]]:
        crm, self.project.folder = self.project.folder, self.project.folder / "lost"
        try:
            return self.project.crm("select * from lost order by 1")
        finally:
            self.project.folder = crm


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    project = Project(tmp_path_factory.mktemp("stopped") / "shop", spark, "stopped_pushes")
    told, lost = Told(project), project.folder / "lost" / "crm.db"
    lost.parent.mkdir()
    project.destinations["elsewhere"] = {"type": "sqlite", "path": str(lost)}
    project.crm(
        "create table refused (external_id integer primary key, name text constraint short check (length(name) <> 3 or name not like 'B_b'))"
    )
    project.changelog("contacts_changelog", f"select id, name, plan from {project.schema}.source")
    project.changelog("others_changelog", f"select id, name, plan from {project.schema}.others")
    told.sync("refused")
    told.sync("guarded", guards={"max_deletes": "10%"})
    told.sync("seen_in_part", where="plan = 'pro'", guards={"max_deletes": "40%"})
    told.sync("widened")
    told.sync("lost", destination="elsewhere")
    told.sync("other_adopted")
    told.sync("other_forgotten")
    for name in ("source", "others"):
        told.source(ANN, BOB, CEM, name=name)
    told.run("run")
    told.commands["undelivered"] = call(project, "undelivered", "refused", "--json")
    told.commands["shown"] = call(project, "undelivered")
    told.commands["status"] = call(project, "status", "--select", "refused")
    told.commands["status --fail"] = call(project, "status", "--fail")
    told.commands["one is well"] = call(project, "status", "--fail", "--select", "guarded")
    told.run()
    told.sync("refused", guards={"max_undelivered": 1})
    flags = {"send_anonymous_usage_stats": False, "use_colors": False}
    project.dbt_project(flags=flags | {"require_all_warnings_handled_by_warn_error": True})  # dbt 1.12's default
    told.warned = project.dbt("--warn-error", "run", "--exclude", "package:reverse_etl")
    project.dbt_project(flags=flags)
    told.sync("refused")

    told.source(ANN, "(2, 'Bea', 'trial')")
    told.sync("widened", fields={**FIELDS, "plan": "plan"})
    lost.unlink()
    told.operation("reset", model="others_changelog")
    told.run()

    told.source(ANN)
    told.sync("seen_in_part", where="plan = 'gold'", guards={"max_deletes": "40%"})
    told.operation("resync", sync="lost")
    for name in ("other_adopted", "other_forgotten"):
        told.operation("adopt", sync=name)
    with pytest.MonkeyPatch.context() as overridden:
        overridden.setenv("DBT_REVERSE_ETL_OVERRIDE", "guarded@2:+0~0-2 guarded@3:+0~0-1")
        told.run()
        told.source(ANN, CEM, name="others")
        told.operation("forget", sync="other_forgotten")
        overridden.setenv("DBT_REVERSE_ETL_OVERRIDE", "guarded@3:+0~0-2")
        told.run()
    return told


@pytest.mark.guarantee("Refusals and outages")
def test_a_refused_row_is_red_stays_listed_and_is_sent_with_its_current_value(told: Told) -> None:
    refused, waiting, mended, gone, _ = told.runs
    assert not refused.success
    assert refused.statuses["contacts_changelog"] == "success", "a caller of dbtRunner gets dbt's own results"
    assert refused.sync("refused") == "+2 ~0 -0, 1 rejected"
    assert told.after[0]["refused"] == [(1, "Ann"), (3, "Cem")], "one bad row holds back no other"
    assert told.after[0]["undelivered"] == [('{"id":2}', "insert", "rejected", 1)]
    assert "Bob" not in refused.text

    assert not waiting.success, "a row is known to be missing; its next attempt is not due"
    assert waiting.sync("refused") == "nothing to send, 1 undelivered"
    assert "undelivered: 1 rejected: CHECK constraint failed: short; tried again after 20" in waiting.text

    assert mended.sync("refused") == "+1 ~0 -1", "a new value does not wait"
    assert told.after[2]["refused"] == [(1, "Ann"), (2, "Bea")]
    assert told.after[2]["undelivered"] == []
    assert gone.sync("refused") == "+0 ~0 -1"
    assert told.after[3]["refused"] == [(1, "Ann")]


def test_rows_that_a_guard_allows_to_be_undelivered_fail_no_run_that_makes_errors_of_warnings(told: Told) -> None:
    warned = told.warned
    assert warned is not None
    assert warned.success, warned.text
    assert warned.sync("refused") == "nothing to send, 1 undelivered"
    assert warned.sync("guarded") == "nothing to send"


@pytest.mark.guarantee("dbt and its commands")
def test_the_command_line_lists_the_undelivered_rows_and_ends_with_1_where_a_sync_is_not_well_if_asked(
    told: Told,
) -> None:
    [row] = read(told.commands["undelivered"])
    assert (row["sync"], row["key"], row["operation"], row["outcome"]) == ("refused", '{"id":2}', "insert", "rejected")
    assert (row["attempts"], row["reason"]) == (1, "CHECK constraint failed: short")
    assert row["next_attempt"].startswith("20")
    heads, line, *others = told.commands["shown"].output.splitlines()
    assert "refused: failing: undelivered rows: 1, and max_undelivered allows 0" in others
    assert heads.split() == ["sync", "key", "operation", "outcome", "attempts", "next", "attempt", "reason"]
    assert line.split()[:4] == ["refused", '{"id":2}', "insert", "rejected"]
    codes = [told.commands[name].return_value for name in ("undelivered", "status", "status --fail", "one is well")]
    assert codes == [0, 0, 1, 0]


@pytest.mark.guarantee("Guards")
def test_guards_stop_a_push_before_its_first_send_and_the_override_of_the_message_lets_it_pass(told: Told) -> None:
    first, _, blocked, wrong, overridden = told.runs
    assert first.sync("guarded") == "+3 ~0 -0", "a first load is exempt"
    assert blocked.sync("guarded") == "ERROR blocked"
    assert len(told.after[2]["guarded"]) == 3
    assert "--override 'guarded@2:+0~1-1'" in blocked.text
    assert wrong.sync("guarded") == "ERROR blocked", "another head, or other counts"
    assert "--override 'guarded@3:+0~0-2'" in wrong.text
    assert len(told.after[3]["guarded"]) == 3
    assert overridden.sync("guarded") == "+0 ~0 -2"
    assert told.after[4]["guarded"] == [(1, "Ann")]
    query = "select body from {s}.reverse_etl_ledger where fact = 'run_started' and sync = 'guarded' order by fence"
    started = told.project.rows(query)
    assert [json.loads(row.body)["override"] for row in started] == ["", "guarded@3:+0~0-2"], "it is recorded"


@pytest.mark.guarantee("Guards")
def test_guards_count_the_rows_that_the_filter_of_a_sync_shows(told: Told) -> None:
    first, _, blocked, unseen, _ = told.runs
    assert first.sync("seen_in_part") == "+2 ~0 -0"
    assert "found 1 deletes, of 2 rows (max_deletes: 40%)" in blocked.text, "of all 3 it would be within them"
    assert "found no row of the model that the sync sees, and 2 to be deleted" in unseen.text
    assert told.after[3]["seen_in_part"] == [(1, "Ann"), (3, "Cem")]


@pytest.mark.guarantee("What is sent")
def test_a_new_field_that_the_destination_lacks_fails_its_sync_and_the_run_says_what_to_do(told: Told) -> None:
    edited = told.runs[2]
    assert not edited.success
    assert edited.sync("widened") == "ERROR failed"
    assert "add column" in edited.text.lower()


@pytest.mark.guarantee("Guards")
def test_a_lost_destination_or_changelog_stops_and_names_the_command_that_then_works(told: Told) -> None:
    _, _, stopped, back, after = told.runs
    assert not stopped.success
    assert stopped.sync("lost").startswith("ERROR")
    assert "resync" in stopped.text
    assert not back.sync("lost").startswith("ERROR")
    assert after.sync("lost") == "nothing to send"
    assert told.lost() == [(1, "Ann")]

    assert stopped.sync("other_adopted") == stopped.sync("other_forgotten") == "ERROR other_changelog"
    assert "adopt" in stopped.text
    assert back.sync("other_adopted") == back.sync("other_forgotten") == "nothing to send"
    assert after.sync("other_adopted") == "+0 ~0 -1"
    assert after.sync("other_forgotten") == "+2 ~0 -0"
    assert told.after[4]["other_adopted"] == [(1, "Ann"), (3, "Cem")]
