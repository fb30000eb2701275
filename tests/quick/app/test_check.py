"""What `check` says of destinations and of what a push needs there, without a destination."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from dbt_reverse_etl.app.check import CheckedSync, check
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.base.redaction import register_secret
from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.sinks.base import Rights, SinkTask
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.terminal import console
from tests.support.config.manifest import manifest
from tests.support.delivery.pushers import sync

SECRET, VALUE = "canary-Check7x9Q", 5772156649
REFUSED = Problem("crm", f"no right INSERT for {SECRET}", "INSERT", "GRANT INSERT")


class Asked(SqliteSink):
    """Answers as a test wants, by the object."""

    answers: ClassVar[dict[str, Any]]
    asked: ClassVar[list[SinkTask]]
    closed: ClassVar[int]

    def check(self) -> None:
        self._give("check")

    def rights(self, task: SinkTask) -> Rights:
        self.asked.append(task)
        found = self._give(task.object)
        return found if isinstance(found, Rights) else Rights()

    def close(self) -> None:
        type(self).closed += 1

    def _give(self, name: str) -> Any:
        if isinstance(answer := self.answers.get(name), Exception):
            raise answer
        return answer


def named(destination: str, name: str, **settings: Any) -> ResolvedSync:
    one = sync(name, "orders", **settings)
    return one._replace(destination=replace(one.destination, name=destination, sink=Asked))


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    register_secret(SECRET)
    for name, value in (("answers", {}), ("asked", []), ("closed", 0)):
        monkeypatch.setattr(Asked, name, value, raising=False)
    return Asked.answers


@pytest.mark.guarantee("Configuration")
def test_each_sync_says_what_a_push_lacks_and_what_was_not_tried_and_shows_no_secret(answers: dict[str, Any]) -> None:
    answers |= {"a": Rights((REFUSED,), ("triggers",)), "b": Rights(untried=("triggers",))}
    [crm] = check([named("crm", "a"), named("crm", "b"), named("crm", "c")], Path())
    assert not crm.is_well
    missing, untried, good = crm.syncs
    assert missing.missing == ("crm: found no right INSERT for ***; expected INSERT. Next: GRANT INSERT",)
    assert (untried.missing, untried.untried, good) == ((), ("triggers",), CheckedSync("c", "crm.c"))
    assert [task.sync_id for task in Asked.asked] == [id_of(named("crm", name)) for name in "abc"]
    assert Asked.closed == 1
    lines = dict(console.checked([crm], ""))
    assert lines["  a: crm: found no right INSERT for ***; expected INSERT. Next: GRANT INSERT"] == "error"
    assert "  a -> crm.a: 1 missing; not tried: triggers" in lines
    assert "  b -> crm.b: nothing is missing that can be asked for; not tried: triggers" in lines
    assert "not tried: the channels of alerts: no message was sent" in lines


def test_what_is_said_of_a_target_without_destinations_and_of_a_project_without_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dbt.cli.main", None)  # the last manifest is checked
    monkeypatch.chdir(tmp_path)
    made = manifest({"people": {"destination": "crm"}})
    block = made["exposures"]["people"]["config"]["meta"]
    (tmp_path / "target").mkdir()
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    (tmp_path / "profiles.yml").write_text(
        "shop: {target: dev, outputs: {dev: {}}}\ndbt_reverse_etl: {outputs: {dev: plan}}"
    )

    def said(config: dict[str, Any]) -> str:
        made["exposures"]["people"]["config"] = config
        (tmp_path / "target" / "manifest.json").write_text(json.dumps(made))
        return CliRunner().invoke(cli, ["check"], standalone_mode=False).stdout.partition("\n")[0]

    assert said({"meta": block}) == "1 sync of target dev: configuration is valid, capture only"
    nothing = "0 syncs of target dev: no exposure that is switched on has config.meta.reverse_etl"
    assert said({"metta": block}) == nothing


@pytest.mark.parametrize("names", [{"fields": {"id": "id", "nmae": "name"}}, {"where": "nmae is not null"}])
def test_a_sync_that_names_columns_says_that_nobody_compared_them_with_the_model(names: dict[str, Any]) -> None:
    lines = [text for text, _ in console.checked(check([named("crm", "a", **names)], Path()), "")]
    assert lines[1].endswith("; not tried: the columns that its fields and its filter name")
    assert "dbt run --empty --select config.materialized:changelog" in lines[2], "the command that compares them"


@pytest.mark.guarantee("Configuration")
def test_a_destination_that_fails_hides_no_other_and_the_words_of_a_foreign_error_are_not_shown(
    answers: dict[str, Any],
) -> None:
    answers |= {"a": ValueError(f"row {VALUE}"), "b": DestinationError(REFUSED)}
    [crm] = check([named("crm", "a"), named("crm", "b"), named("crm", "c")], Path())
    first, second, third = crm.syncs
    assert first.missing[0].startswith("a: found an unexpected ValueError")
    assert str(VALUE) not in first.missing[0]
    assert "no right INSERT" in second.missing[0]
    assert third.missing == ()
    answers |= {"check": DestinationError(REFUSED)}
    ads, mail = check([named("mail", "a"), named("ads", "b")], Path())
    assert (ads.destination, mail.destination) == ("ads", "mail")
    assert (ads.syncs, mail.is_well) == ((), False)
    assert "no right INSERT for ***" in ads.message
