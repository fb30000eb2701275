"""What a dbt command has made due, out of artifacts that dbt itself wrote."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.app.configuration import configure
from dbt_reverse_etl.app.invocation import after_dbt
from dbt_reverse_etl.app.project import Ask, Project
from dbt_reverse_etl.base.errors import ConfigurationError, ReverseEtlError
from dbt_reverse_etl.config.artifacts import run, select
from dbt_reverse_etl.config.destinations import PlanOnly
from dbt_reverse_etl.config.manifest import syncs
from dbt_reverse_etl.config.settings import Sync
from dbt_reverse_etl.terminal.screen import Screen
from tests.support.dbt.artifacts import CONTACTS, CRM, MAIL, ORDERS, PAUSED, Json, good_project, wrong_project


@pytest.fixture(scope="module")
def manifest() -> Json:
    return good_project().artifact("manifest.json")


@pytest.fixture(scope="module")
def compiled() -> Json:
    return good_project().artifact("run_results.json")


def ran(compiled: Json, statuses: dict[str, str], **args: Any) -> Json:
    """The results that dbt wrote, with another command and other statuses."""
    changed = copy.deepcopy(compiled)
    changed["args"].update({"which": "build", **args})
    by_id = {result["unique_id"]: result for result in changed["results"]}
    template = changed["results"][0]
    changed["results"] = [
        {**by_id.get(unique_id, template), "unique_id": unique_id, "status": status}
        for unique_id, status in statuses.items()
    ]
    return changed


def named(found: tuple[Sync, ...]) -> set[str]:
    return {sync.unique_id for sync in found}


arguments = st.fixed_dictionaries(
    {
        "which": st.sampled_from(["run", "build"]) | st.sampled_from(["compile", "test", "docs", "seed", "snapshot"]),
        "empty": st.sampled_from([False, False, True]),
        "sample": st.sampled_from([None, False, "3 days"]),
    }
)
results = st.fixed_dictionaries(
    {},
    optional={
        CONTACTS: st.sampled_from(["success", "error", "skipped", "partial success"]),
        CRM: st.sampled_from(["no-op", "success", "skipped"]),
        MAIL: st.sampled_from(["no-op"]),
        PAUSED: st.sampled_from(["no-op"]),
        ORDERS: st.sampled_from(["success", "error"]),
        "test": st.sampled_from(["pass", "fail", "warn", "error", "skipped"]),
        "other_test": st.sampled_from(["pass", "fail"]),
    },
)


class TestRun:
    @pytest.fixture(scope="class")
    @classmethod
    def tests(cls, manifest: Json) -> dict[str, str]:
        found = {node["attached_node"]: uid for uid, node in manifest["nodes"].items() if uid.startswith("test.")}
        return {"test": found[CONTACTS], "other_test": found["model.shop.contacts"]}

    @pytest.mark.guarantee("dbt and its commands")
    @settings(deadline=None)
    @given(args=arguments, statuses=results)
    def test_a_sync_is_due_exactly_if_its_changelog_is_new_and_tests_are_told_apart(
        self, manifest: Json, compiled: Json, tests: dict[str, str], args: Json, statuses: dict[str, str]
    ) -> None:
        by_id = {tests.get(name, name): status for name, status in statuses.items()}
        invocation = run(ran(compiled, by_id, **args), manifest)
        whole = not args["empty"] and not args["sample"]
        real = args["which"] in ("run", "build") and whole
        # Status of the model if it took part, else of the exposure; both columns of the truth table by hand.
        crm = statuses[CONTACTS] == "success" if CONTACTS in statuses else statuses.get(CRM) in ("no-op", "success")
        mail = statuses[ORDERS] == "success" if ORDERS in statuses else MAIL in statuses
        is_left_out = statuses.get("test") == "skipped" and statuses.get(CONTACTS) == "success"
        failed = statuses.get("test") in ("fail", "error") or is_left_out
        build = args["which"] == "build"
        due = {sync for sync, is_due in ((CRM, crm), (MAIL, mail)) if is_due and real}
        plan = due & {CRM} if not build else set()
        assert named(invocation.push) == due - plan
        assert named(invocation.plan) == plan
        passed = {"test": statuses.get("test") in ("pass", "warn"), "other_test": statuses.get("other_test") == "pass"}
        assert invocation.passed_tests == {tests[name] for name, well in passed.items() if well and whole}
        assert invocation.failed_tests == ({CONTACTS: (tests["test"],)} if failed and whole else {})
        assert set(invocation.changelogs) == {CONTACTS, ORDERS} & set(statuses)

    @pytest.mark.guarantee("dbt and its commands")
    @pytest.mark.parametrize(("model", "objects"), [("success", True), ("error", False), (None, False)])
    def test_a_test_that_was_skipped_holds_back_what_this_command_captured(
        self, manifest: Json, compiled: Json, tests: dict[str, str], model: str | None, *, objects: bool
    ) -> None:
        statuses = {tests["test"]: "skipped", **({CONTACTS: model} if model else {})}
        assert run(ran(compiled, statuses), manifest).failed_tests == ({CONTACTS: (tests["test"],)} if objects else {})
        warns = copy.deepcopy(manifest)
        warns["nodes"][tests["test"]]["config"]["severity"] = "WARN"
        assert run(ran(compiled, statuses), warns).failed_tests == {}, "it would not block if it failed"

    def test_what_dbt_itself_wrote_for_compile_pushes_nothing(self, manifest: Json, compiled: Json) -> None:
        invocation = run(compiled, manifest)
        assert (invocation.command, invocation.push) == ("compile", ())
        assert invocation.invocation_id == manifest["metadata"]["invocation_id"]

    @settings(deadline=None)
    @given(snapshot=st.integers(1, 2**62 // 10), uuid=st.uuids(), capture=st.one_of(st.none(), st.uuids()))
    def test_the_head_comes_with_the_result_of_the_model(
        self, manifest: Json, compiled: Json, snapshot: int, uuid: Any, capture: Any
    ) -> None:
        results = ran(compiled, {CONTACTS: "success", ORDERS: "success"})
        told = f"snapshot {snapshot} of {uuid}" + (f" by {capture}" if capture else "")
        results["results"][0]["adapter_response"] = {"code": told}
        changelogs = run(results, manifest).changelogs
        assert (changelogs[CONTACTS].snapshot, changelogs[CONTACTS].changelog_uuid) == (snapshot, str(uuid))
        assert changelogs[CONTACTS].capture == str(capture or "")
        assert (changelogs[ORDERS].snapshot, changelogs[ORDERS].changelog_uuid) == (None, None)

    @pytest.mark.parametrize(
        "response",
        [
            None,
            {},
            {"code": ""},
            {"code": "OK"},
            {"code": "snapshot x of y"},
            {"code": 1},
            {"code": "snapshot 1 of u or so"},
        ],
    )
    def test_a_result_without_a_head_leaves_it_open(self, manifest: Json, compiled: Json, response: Any) -> None:
        results = ran(compiled, {CONTACTS: "success"})
        results["results"][0]["adapter_response"] = response
        assert run(results, manifest).changelogs[CONTACTS].snapshot is None

    @pytest.mark.guarantee("dbt and its commands")
    def test_results_of_another_invocation_are_stale(self, manifest: Json, compiled: Json) -> None:
        stale = {**manifest, "metadata": {**manifest["metadata"], "invocation_id": "another"}}
        for results in (compiled, {"metadata": {}, "results": []}, {"metadata": compiled["metadata"]}, {}):
            with pytest.raises(ReverseEtlError, match="run dbt again"):
                run(results, stale)

    def test_a_parse_after_the_run_makes_its_results_stale(self, compiled: Json) -> None:
        good_project().dbt("parse", "--target-path", "later")
        later = good_project().artifact("manifest.json", "later")
        with pytest.raises(ReverseEtlError, match="run dbt again"):
            run(compiled, later)


class TestSelect:
    @pytest.mark.parametrize(
        ("selectors", "expected"),
        [
            ([], {CRM, MAIL, PAUSED}),
            (["crm_contacts"], {CRM}),
            (["*"], {CRM, MAIL, PAUSED}),
            (["*_orders", "crm_contacts"], {CRM, MAIL}),
            (["tag:daily"], {CRM, MAIL}),
            (["tag:gro*"], {CRM}),
        ],
    )
    def test_names_tags_and_globs(self, manifest: Json, selectors: list[str], expected: set[str]) -> None:
        assert [sync.unique_id for sync in select(syncs(manifest), selectors)] == sorted(expected)

    @pytest.mark.parametrize(
        "unknown", ["crm_contact", "tag:x", "crm.contacts", "crm_contact?", "[a-z]*", "", "CRM_CONTACTS"]
    )
    def test_a_selector_that_names_nothing_lists_the_names(self, manifest: Json, unknown: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            select(syncs(manifest), ["mail_orders", unknown])
        assert len(caught.value.problems) == 1
        assert "crm_contacts, mail_orders, paused, tag:daily, tag:growth" in str(caught.value)


class TestConfigure:
    def test_a_target_that_only_plans_needs_no_destination(self, manifest: Json) -> None:
        configuration = configure(manifest, [good_project().path], "dev", {})
        assert configuration.destinations == PlanOnly("dev")
        assert len(configuration.syncs) == 3
        assert configuration.resolved == []

    def test_problems_of_syncs_and_destinations_come_together(self, tmp_path: Path) -> None:
        wrong = wrong_project().artifact("manifest.json")
        (tmp_path / "profiles.yml").write_text("dbt_reverse_etl: {outputs: {prod: {crm: {type: fax}, mail: 1}}}")
        for target, expected in {
            "prod": ["crm.type: found 'fax'", "prod.mail: found a number"],
            "qa": ["'qa'"],
        }.items():
            with pytest.raises(ConfigurationError) as caught:
                configure(wrong, [tmp_path], target, {})
            for text in ("mirror_two", "leaks", *expected):
                assert text in str(caught.value)

    def test_a_project_without_syncs_needs_no_profile(self, manifest: Json, tmp_path: Path) -> None:
        none = {**manifest, "exposures": {}, "disabled": {}}
        assert configure(none, [tmp_path], "prod", {}) == ([], {}, [], {}, {})


@pytest.mark.parametrize("switch", ["off", "on"])
def test_where_nothing_is_to_be_sent_no_session_is_made_so_that_dbt_may_reach_spark_in_any_way(switch: str) -> None:
    project = good_project()
    plans_only = Project(project.path / "target", [project.path], "dev", project.path, {"DBT_REVERSE_ETL_PUSH": switch})

    def connect() -> NoReturn:
        raise AssertionError("dbt's adapter may have none to give")

    assert after_dbt(plans_only, connect, Screen(lambda *_: None)) == []


@pytest.mark.guarantee("dbt and its commands")
def test_what_another_dbt_wrote_beside_this_one_is_not_taken_for_its_results() -> None:
    mine = good_project()
    manifest, ran_here = mine.artifact("manifest.json"), mine.artifact("run_results.json")["metadata"]["invocation_id"]
    found = Project(mine.path / "target", [mine.path], "prod", mine.path, {}, ran_here)
    assert found.invocation(manifest, Ask.RUN).invocation_id == ran_here
    with pytest.raises(ReverseEtlError, match="--target-path"):
        replace(found, written_by="another").invocation(manifest, Ask.RUN)
