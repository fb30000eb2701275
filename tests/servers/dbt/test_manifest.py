"""The syncs and the mistakes of projects that dbt itself has parsed."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.config.manifest import syncs
from dbt_reverse_etl.sinks.base import Mode
from tests.support.dbt.artifacts import CANARY, CONTACTS, CRM, MAIL, ORDERS, PAUSED, Json, good_project, wrong_project


@pytest.fixture(scope="module")
def manifest() -> Json:
    return good_project().artifact("manifest.json")


def problems_of(manifest: Json) -> str:
    with pytest.raises(ConfigurationError) as caught:
        syncs(manifest)
    return str(caught.value)


def settings_of(manifest: Json, exposure: str = CRM) -> Json:
    """The block of an exposure in a manifest that may be changed."""
    node = manifest["exposures"][exposure]
    node["meta"] = {}
    block: Json = node["config"]["meta"]["reverse_etl"]
    return block


secrets = st.sampled_from([f"Bearer {CANARY}", f"https://me:{CANARY}@h/x", f"/x?api_key={CANARY}", f"basic {CANARY}"])
keys = st.sampled_from(["password", "token", "client-secret", "apiKey", "Authorization", "X-Auth-Token"])
harmless = st.sampled_from(["a", "headers", "body", "constant", "path"])
leaf = st.tuples(harmless, secrets) | st.tuples(keys, st.just(CANARY))
nested = st.recursive(
    leaf.map(lambda pair: {pair[0]: pair[1]}),
    lambda inner: st.tuples(harmless, inner | st.lists(inner, min_size=1, max_size=2)).map(lambda p: {p[0]: p[1]}),
    max_leaves=4,
)


class TestSyncs:
    def test_an_exposure_that_names_a_destination_is_a_sync(self, manifest: Json) -> None:
        crm, mail, _ = syncs(manifest)
        assert (crm.unique_id, crm.name, crm.tags, crm.enabled) == (CRM, "crm_contacts", ("daily", "growth"), True)
        assert (crm.settings.destination, crm.settings.object, crm.settings.mode) == ("crm", "contacts", Mode.MIRROR)
        assert crm.settings.fields == {"Contact_ID": "external_id", "email": "email"}
        assert (str(crm.settings.guards.max_deletes), str(crm.settings.guards.max_changes)) == ("10%", "500")
        assert (crm.settings.push_on, mail.settings.push_on) == ({"build"}, {"run", "build"})
        assert (mail.name, mail.tags, mail.settings.mode, mail.settings.fields) == (
            "mail_orders",
            ("daily",),
            Mode.UPSERT,
            None,
        )

    def test_a_sync_carries_its_changelog(self, manifest: Json) -> None:
        crm, mail, _ = syncs(manifest)
        log = crm.changelog
        assert (log.unique_id, log.name) == (CONTACTS, "contacts_changelog")
        assert log.relation_name == "analytics.contacts_log"
        assert (log.key, mail.changelog.key) == (("contact_id",), ("shop", "order_id"))
        assert (log.settings.compare, log.settings.capture.strategy, log.settings.on_bad_key) == (
            "except",
            "compare",
            "fail",
        )

    def test_an_exposure_that_is_switched_off_is_a_sync_that_is_not_enabled(self, manifest: Json) -> None:
        paused = syncs(manifest)[2]
        assert (paused.unique_id, paused.enabled, paused.changelog.unique_id) == (PAUSED, False, ORDERS)

    def test_of_definitions_for_several_targets_the_one_that_is_switched_on_is_the_sync(self, manifest: Json) -> None:
        assert len(manifest["disabled"][CRM]) == len(manifest["disabled"][PAUSED]) == 2
        crm, _, paused = syncs(manifest)
        assert (crm.enabled, crm.settings.object) == (True, settings_of(manifest)["object"])
        assert not paused.enabled

    def test_a_list_of_fields_keeps_the_names_and_the_order(self, manifest: Json) -> None:
        changed = copy.deepcopy(manifest)
        settings_of(changed)["fields"] = ["email", "contact_id"]
        assert list((syncs(changed)[0].settings.fields or {}).items()) == [
            ("email", "email"),
            ("contact_id", "contact_id"),
        ]

    @pytest.mark.parametrize("metadata", [{}, {"dbt_schema_version": "https://x/dbt/manifest/v11.json"}])
    def test_another_file_or_an_old_manifest_is_refused(self, manifest: Json, metadata: Json) -> None:
        assert "version 12 or later" in problems_of({**manifest, "metadata": metadata})
        assert "version 12 or later" in problems_of({"metadata": manifest["metadata"]})


class TestMistakes:
    def test_every_mistake_of_a_project_comes_at_once(self) -> None:
        text = problems_of(wrong_project().artifact("manifest.json"))
        for expected in (
            "contacts_changelog.email: found dbt's test unique; expected reverse_etl.current_unique",
            "contacts_changelog.email: found dbt's test not_null; expected reverse_etl.current_not_null",
            "contacts_changelog.email: found dbt's test accepted_values; expected reverse_etl.current_accepted_values",
            "contacts_changelog.email: found dbt's test relationships; expected reverse_etl.current_relationships",
            "contacts_changelog._snapshot_id: found dbt's test not_null; expected no such test: some records of ours have none. Next: remove it",
            "contacts_changelog._snapshot_id: found dbt's test unique",
            "keyless_changelog.meta.reverse_etl.compare: found 'hsah'; expected 'hash' or 'except'",
            "keyless_changelog.meta.reverse_etl.colour: found an unknown key; expected one of compare, capture",
            "keyless_changelog.unique_key: found nothing",
            "two_models.depends_on: found model.shop.contacts (view), model.shop.contacts_changelog (changelog);",
            "no_settings.config.meta.reverse_etl.destination: found nothing",
            "no_settings.config.meta.reverse_etl.object: found nothing",
            "leaks.config.meta.reverse_etl.options.headers.X-Api-Key: found what looks like a secret",
            "leaks.config.meta.reverse_etl.options.url: found what looks like a secret",
            "leaks.config.meta.reverse_etl.mode: found a text; expected 'upsert', 'mirror'",
            "misses_key.config.meta.reverse_etl.push_on.0: found 'test'; expected 'run' or 'build'",
            "misses_key.config.meta.reverse_etl.guards.max_delete: found an unknown key; expected one of max_deletes",
            "mirror_two.config.meta.reverse_etl.mode: found mirror, as in mirror_one, of one object 'd'",
            "misspelt: found the key 'reverse-etl', which nothing reads; expected config.meta.reverse_etl",
            "without_meta: found the key 'reverse_etl', which nothing reads; expected config.meta.reverse_etl",
        ):
            assert expected in text
        assert "canary" not in text

    def test_the_key_must_be_mapped_for_a_row_is_found_by_it(self, manifest: Json) -> None:
        changed = copy.deepcopy(manifest)
        settings_of(changed)["fields"] = {"email": "email"}
        assert "fields: found no contact_id; expected all columns of the key" in problems_of(changed)

    def test_names_of_columns_are_compared_as_spark_does_without_case(self, manifest: Json) -> None:
        changed = copy.deepcopy(manifest)
        changed["nodes"][CONTACTS]["config"]["unique_key"] = "CONTACT_id"
        assert syncs(changed)[0].changelog.key == ("CONTACT_id",)

    def test_two_packages_with_one_name_of_a_sync_are_refused(self, manifest: Json) -> None:
        changed = copy.deepcopy(manifest)
        other = copy.deepcopy(changed["exposures"][CRM])
        other.update(unique_id=CRM.replace("shop", "other"), package_name="other", original_file_path="models/b.yml")
        other["config"]["meta"]["reverse_etl"]["object"] = "elsewhere"
        changed["exposures"][other["unique_id"]] = other
        text = problems_of(changed)
        assert re.search(r"crm_contacts: found the name of a sync in models/\S+ of (shop|other), too", text)
        assert "expected a name that no other sync has. Next: rename one of them" in text

    def test_a_sync_replaces_that_of_a_package_which_is_switched_off(self, manifest: Json) -> None:
        changed = copy.deepcopy(manifest)
        other = copy.deepcopy(changed["exposures"][CRM])
        other.update(unique_id=CRM.replace("shop", "other"), package_name="other")
        other["config"]["enabled"] = False
        changed["disabled"][other["unique_id"]] = [other]
        found = [sync.unique_id for sync in syncs(changed) if sync.name == "crm_contacts"]
        assert found == [CRM]

    def test_a_mirror_that_is_switched_off_owns_nothing(self, manifest: Json) -> None:
        changed = copy.deepcopy(manifest)
        settings = changed["exposures"][MAIL]["config"]["meta"]["reverse_etl"]
        settings["mode"] = "mirror"
        assert [sync.settings.mode for sync in syncs(changed)] == [Mode.MIRROR] * 3
        changed["exposures"][PAUSED] = {**changed["disabled"][PAUSED][0], "depends_on": {"nodes": [ORDERS]}}
        assert "mode: found mirror, as in mail_orders" in problems_of(changed)

    @pytest.mark.parametrize(
        "fields", [{}, [], ["a", "A"], {"contact_id": "x", "email": "X"}, {"contact_id": 1}, "all"]
    )
    def test_a_mapping_that_is_empty_or_ambiguous_is_refused(self, manifest: Json, fields: Any) -> None:
        changed = copy.deepcopy(manifest)
        settings_of(changed)["fields"] = fields
        assert "reverse_etl.fields" in problems_of(changed)

    @pytest.mark.parametrize(
        "upstream", [[], ["model.shop.contacts"], ["source.shop.raw.contacts"], [CONTACTS, ORDERS]]
    )
    def test_a_sync_reads_exactly_one_changelog(self, manifest: Json, upstream: list[str]) -> None:
        changed = copy.deepcopy(manifest)
        changed["exposures"][CRM]["depends_on"]["nodes"] = upstream
        assert "expected exactly one model, with materialized='changelog'" in problems_of(changed)

    def test_a_sync_of_a_disabled_changelog_is_said_so(self, manifest: Json) -> None:
        changed = copy.deepcopy(manifest)
        changed["disabled"][CONTACTS] = [changed["nodes"].pop(CONTACTS)]
        assert (
            f"found {CONTACTS}, which is disabled; expected exactly one model, with materialized='changelog'. "
            "Next: enable it, or set enabled: false for the sync, too" in problems_of(changed)
        )

    @pytest.mark.guarantee("Secrets and row values")
    @settings(deadline=None)
    @given(options=nested, where=st.sampled_from(["options", "where", "colour", "guards"]))
    def test_a_literal_secret_is_refused_wherever_it_stands_and_never_shown(
        self, manifest: Json, options: Json, where: str
    ) -> None:
        node = manifest["exposures"][CRM]
        meta = {"reverse_etl": {**node["config"]["meta"]["reverse_etl"], where: options}}
        changed = {**node, "meta": {}, "config": {**node["config"], "meta": meta}}
        text = problems_of({**manifest, "exposures": {CRM: changed}})
        assert "what looks like a secret" in text
        assert "canary" not in text
