"""A plan as a comment of a review."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from dbt_reverse_etl import cli
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.commands import looking
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.terminal.review import as_markdown

SPACE = "\N{NO-BREAK SPACE}"
CRM = Report("crm_contacts", "crm.contacts", "planned", planned=PerOperation(0, 1203, 4), sample=(("delete", "ann@x"),))
IDLE = Report("mail_people", "mail.people|all", "planned", message="the changelog has no snapshot yet")
GONE = Report("old", "crm.old", "other_changelog", ExitCode.OTHER_CHANGELOG, message="resync\nor adopt")


def test_a_plan_is_a_sentence_and_a_table_that_people_can_paste() -> None:
    assert as_markdown([CRM]).splitlines() == [
        f"This would update 1{SPACE}203 contacts in crm, delete 4.  ",
        "",
        "| sync | destination | insert | update | delete | |",
        "|---|---|--:|--:|--:|---|",
        f"| crm_contacts | crm.contacts | 0 | 1{SPACE}203 | 4 |  |",
    ]


@pytest.mark.guarantee("dbt Cloud")
def test_no_key_is_in_it_for_a_comment_may_be_public() -> None:
    assert "ann" not in as_markdown([CRM])


def test_nothing_to_send_and_what_stops_a_sync_are_said_in_one_line_each() -> None:
    lines = as_markdown([IDLE, GONE]).splitlines()
    assert lines[0] == "This would send nothing."
    assert lines[4:] == [
        "| mail_people | mail.people\\|all | 0 | 0 | 0 | the changelog has no snapshot yet |",
        "| old | crm.old | 0 | 0 | 0 | **other_changelog**: resync or adopt |",
    ]


def test_a_plan_that_failed_is_not_said_to_send_nothing_and_its_words_stay_in_the_log() -> None:
    failed = Report("crm", "crm.contacts", "failed", ExitCode.FAILED, message="crm.internal:5432 does not answer")
    lines = as_markdown([IDLE, failed]).splitlines()
    assert lines[0] == "What this would send is not known."
    assert lines[-1] == "| crm | crm.contacts | 0 | 0 | 0 | **failed**: see the log of the job |"


def test_a_project_without_syncs_says_so() -> None:
    assert as_markdown([]) == "No sync is configured for this target."


def test_letters_that_a_log_of_a_job_does_not_have_are_written_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = SimpleNamespace(pusher=SimpleNamespace(plan=lambda *_: CRM), overview=None, chosen=[None])
    monkeypatch.setattr(looking, "Opened", lambda *_, **__: nullcontext(opened))
    said = CliRunner(charset="ascii").invoke(cli.cli, ["plan", "--markdown"], standalone_mode=False)
    assert said.exception is None
    assert said.stdout.startswith("This would update 1\\xa0203 contacts in crm, delete 4.")


@pytest.mark.guarantee("dbt Cloud")
def test_the_reason_of_a_plan_that_failed_is_in_the_log_of_the_job_and_not_in_the_comment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = Report("crm", "crm.contacts", "failed", ExitCode.FAILED, message="crm.internal:5432 does not answer")
    reports = {"crm": failed, "crm_contacts": CRM}
    opened = SimpleNamespace(
        pusher=SimpleNamespace(plan=lambda one, *_: reports[one]), overview=None, chosen=[*reports]
    )
    monkeypatch.setattr(looking, "Opened", lambda *_, **__: nullcontext(opened))
    said = CliRunner().invoke(cli.cli, ["plan", "--markdown"], standalone_mode=False)
    assert (said.exception, said.return_value) == (None, ExitCode.FAILED)
    assert "crm.internal" not in said.stdout
    assert "crm: crm.internal:5432 does not answer" in said.stderr
    assert "crm_contacts" not in said.stderr
