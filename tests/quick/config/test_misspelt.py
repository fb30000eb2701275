"""Settings under a key that nobody reads are refused: nothing would ever be sent."""

from __future__ import annotations

from typing import Any

import pytest

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.config.manifest import syncs
from tests.support.config.manifest import manifest

BLOCK = {"destination": "crm"}


def project(of: str, config: dict[str, Any], meta: dict[str, Any] | None = None) -> dict[str, Any]:
    """Two syncs: one is sound; of the other, the exposure or its changelog is written otherwise."""
    made = manifest({"sound": BLOCK, "crm_contacts": BLOCK})
    node = made["exposures"]["crm_contacts"] if of == "exposure" else made["nodes"]["model.shop.crm_contacts"]
    kept = {name: value for name, value in node["config"].items() if name != "meta"}
    node |= {"original_file_path": "models/crm.yml", "config": kept | config, "meta": meta or {}}
    return made


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("of", ["exposure", "changelog"])
@pytest.mark.parametrize(
    "key",
    ["reverse-etl", "reverseEtl", "Reverse ETL", "dbt_reverse_etl", "dbt-reverse-etl", "reverse_elt", "revers_etl"],
)
def test_a_block_under_a_misspelt_name_is_refused_with_the_right_one(of: str, key: str) -> None:
    # As dbt writes what stands under `meta`.
    with pytest.raises(ConfigurationError) as caught:
        syncs(project(of, {"meta": {key: BLOCK}}, {key: BLOCK}))
    (problem,) = caught.value.problems
    assert (problem.where, problem.expected) == ("models/crm.yml: crm_contacts", "config.meta.reverse_etl")
    assert repr(key) in problem.found


@pytest.mark.parametrize("of", ["exposure", "changelog"])
@pytest.mark.parametrize("key", ["reverse_etl", "reverse-etl"])
def test_a_block_beside_meta_is_refused(of: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write it as config\.meta\.reverse_etl"):
        syncs(project(of, {key: BLOCK}))


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"owner": {"team": "crm"}},
        {"reverse_etl_owner": {"team": "crm"}},
        {"reverse_etl_sla": {"hours": 4}},
        {"dbt-reverse-etl-ui": {"colour": "red"}},
        {"reverse-etl": True},
        {"etl": BLOCK},
    ],
)
def test_an_exposure_with_other_keys_is_no_sync(meta: dict[str, Any]) -> None:
    assert [sync.name for sync in syncs(project("exposure", {"meta": meta}, meta))] == ["sound"]


def test_a_key_beside_a_block_that_is_read_is_the_user_s_own() -> None:
    meta = {"reverse_etl": {"object": "people", **BLOCK}, "reverse-etl": {"since": "May"}}
    assert len(syncs(project("exposure", {"meta": meta}))) == 2
