"""Small dbt projects and the artifacts that dbt itself writes for them; parse and compile start no Spark."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.support import ROOT
from tests.support.servers import forks

CANARY = "canary-Zq7x9"
CONTACTS, ORDERS = "model.shop.contacts_changelog", "model.shop.orders_changelog"
CRM, MAIL, PAUSED = "exposure.shop.crm_contacts", "exposure.shop.mail_orders", "exposure.shop.paused"

Json = dict[str, Any]

MODELS = {
    "contacts": "select 1 as contact_id, 'a' as email",
    "contacts_changelog": "{{ config(materialized='changelog', unique_key='contact_id', alias='contacts_log',"
    " meta={'reverse_etl': {'compare': 'except', 'capture': {'strategy': 'compare'}}}) }}"
    " select * from {{ ref('contacts') }}",
    "orders_changelog": "{{ config(materialized='changelog', unique_key=['shop', 'order_id']) }}"
    " select 1 as shop, 2 as order_id",
}


def exposure(name: str, *models: str, **properties: Any) -> Json:
    owner = {"name": "Growth", "email": "growth@example.com"}
    refs = [f"ref('{model}')" for model in models]
    return {"name": name, "type": "application", "owner": owner, "depends_on": refs, **properties}


def columns(model: str, **tests: list[Any]) -> Json:
    return {"name": model, "columns": [{"name": name, "data_tests": listed} for name, listed in tests.items()]}


def block(**settings: Any) -> Json:
    return {"reverse_etl": settings}


CRM_SETTINGS = block(
    destination="crm",
    object="contacts",
    mode="mirror",
    fields={"Contact_ID": "external_id", "email": "email"},
    guards={"max_deletes": "10%", "max_changes": 500},
    push_on=["build"],
    options={"token": "{token}"},
)
GOOD = {
    "models": [
        columns("contacts", contact_id=["unique", "not_null"]),
        columns(
            "contacts_changelog",
            _change=["not_null"],
            email=[{"not_null": {"config": {"where": "_change = 'insert'"}}}],
        ),
    ],
    "exposures": [
        exposure("crm_contacts", "contacts_changelog", config={"tags": ["growth", "daily"], "meta": CRM_SETTINGS}),
        exposure("mail_orders", "orders_changelog", tags=["daily"], meta=block(destination="mail", object="orders")),
        exposure(
            "paused",
            "orders_changelog",
            config={"enabled": False, "meta": block(destination="mail", object="orders", mode="mirror")},
        ),
        exposure("dashboard", "contacts", "contacts_changelog"),
        # As written once for each target.
        *(
            exposure(
                name,
                "contacts_changelog",
                config={"enabled": False, "meta": block(destination="mail", object="of_dev")},
            )
            for name in ("crm_contacts", "crm_contacts", "paused")
        ),
    ],
}
LEAK = {"headers": {"X-Api-Key": "{{ env_var('CRM_KEY') }}"}, "url": f"https://u:{CANARY}@h/"}
WRONG = {
    "models": [
        columns(
            "contacts_changelog",
            email=[
                "unique",
                "not_null",
                {"accepted_values": {"arguments": {"values": ["a"]}}},
                {"relationships": {"arguments": {"to": "ref('contacts')", "field": "email"}}},
            ],
            _snapshot_id=["unique", "not_null"],
        ),
        {"name": "keyless_changelog", "config": {"meta": block(compare="hsah", colour="red")}},
    ],
    "exposures": [
        exposure("two_models", "contacts", "contacts_changelog", meta=block(destination="crm", object="a")),
        exposure("no_settings", "orders_changelog", meta={"reverse_etl": None}),
        exposure("leaks", "orders_changelog", meta=block(destination="crm", object="b", mode=CANARY, options=LEAK)),
        exposure(
            "misses_key",
            "orders_changelog",
            meta=block(destination="crm", object="c", push_on=["test"], guards={"max_delete": 1}),
        ),
        exposure("mirror_one", "orders_changelog", meta=block(destination="crm", object="d", mode="mirror")),
        exposure("mirror_two", "orders_changelog", meta=block(destination="crm", object="d", mode="mirror")),
        exposure("misspelt", "orders_changelog", meta={"reverse-etl": {"destination": "crm", "object": "e"}}),
        exposure("without_meta", "orders_changelog") | {"config": block(destination="crm", object="f")},
    ],
}


class Project:
    """A dbt project in a directory of its own, which goes with it."""

    def __init__(self, properties: Json, models: dict[str, str]) -> None:
        self._directory = TemporaryDirectory()
        self.path = Path(self._directory.name)
        settings = {"name": "shop", "version": "1.0", "config-version": 2, "profile": "my_project"}
        (self.path / "models").mkdir()
        (self.path / "dbt_project.yml").write_text(yaml.safe_dump(settings))
        (self.path / "profiles.yml").write_text((ROOT / "profiles.example.yml").read_text())
        (self.path / "models" / "exposures.yml").write_text(yaml.safe_dump(properties))
        for name, sql in models.items():
            (self.path / "models" / f"{name}.sql").write_text(sql)

    def dbt(self, *arguments: str) -> None:
        dbt(self.path, *arguments)

    def artifact(self, name: str, target_path: str = "target") -> Json:
        """One artifact, without the hundreds of macros that nothing here reads."""
        content: Json = json.loads((self.path / target_path / name).read_text())
        content.pop("macros", None)
        return content


def dbt(path: Path, *arguments: str) -> None:
    """Run dbt as a user would, in a process of its own."""
    env = {"DBT_PROFILES_DIR": str(path), "CRM_KEY": CANARY, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
    forks.dbt(path, {**os.environ, **env}, *arguments)


@cache
def good_project() -> Project:
    """Compiled with `--target prod`."""
    project = Project(GOOD, MODELS)
    project.dbt("compile", "--no-introspect", "--no-populate-cache", "--target", "prod")
    return project


@cache
def wrong_project() -> Project:
    """Parsed only; about everything in it is wrong."""
    project = Project(WRONG, {**MODELS, "keyless_changelog": "{{ config(materialized='changelog') }} select 1 as a"})
    project.dbt("parse")
    return project
