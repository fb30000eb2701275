"""Secrets are asked for only where they are used; what else is wrong is told all the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dbt_reverse_etl.app.configuration import Configuration, configure
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.base.redaction import MASK, redact
from dbt_reverse_etl.sinks.sql.dialects.postgres.sink import PostgresSink
from tests.support.config.manifest import manifest

PASSWORD = "{{ env_var('CRM_PASSWORD') }}"
POSTGRES = {"type": "postgres", "host": "db.example.com", "database": "crm", "user": "etl", "password": PASSWORD}
# Each with a secret in another place.
SECRETS: dict[str, dict[str, Any]] = {
    "postgres": POSTGRES,
    "mysql": {**POSTGRES, "type": "mysql"},
    "bearer": {"type": "http", "url": "https://crm.example.com", "auth": {"type": "bearer", "token": PASSWORD}},
    "webhook": {
        "type": "http",
        "url": "https://crm.example.com",
        "auth": {"type": "standard_webhooks", "secret": PASSWORD},
    },
    "header": {"type": "http", "url": "https://crm.example.com", "headers": {"X-Key": "key " + PASSWORD}},
    "kafka": {
        "type": "kafka",
        "bootstrap_servers": "kafka.example.com:9092",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "etl",
        "sasl_password": PASSWORD,
    },
    "singer": {"type": "singer", "command": "target-x", "config": {"host": "db", "password": PASSWORD}},
    "singer, in a URL": {
        "type": "singer",
        "command": "target-x",
        "config": {"url": f"postgresql://etl:{PASSWORD}@db/crm"},
    },
    "singer, in its environment": {"type": "singer", "command": "target-x", "env": {"PGPASSWORD": PASSWORD}},
}
# Without the variable nobody knows which system it is.
NAMELESS: dict[str, dict[str, Any]] = {
    "host": {**POSTGRES, "host": PASSWORD, "password": "known well"},
    "type": {**POSTGRES, "type": PASSWORD, "password": "known well"},
    "path": {"type": "duckdb", "path": f"/tmp/none/{PASSWORD}.duckdb"},
    "singer": {"type": "singer", "command": ["target-none"], "config": {"host": PASSWORD}},
}
VALUE = "d2Vic29ja2V0LXNlY3JldC1vZi10aGlydHktdHdv"  # as each of them takes it
Made = Callable[..., Configuration]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """The configuration of two changelogs, with a sync each: `pays` into the destination `crm`, `free` into a file."""

    def made(crm: Mapping[str, Any], alerts: Any = (), env: Mapping[str, str] | None = None, **settings: Any) -> Any:
        outputs = {"dev": {"crm": dict(crm), "file": {"type": "sqlite", "path": "/tmp/none/crm.db"}}}
        block = {"outputs": outputs, "alerts": list(alerts)}
        (tmp_path / "profiles.yml").write_text(yaml.safe_dump({"dbt_reverse_etl": block}))
        options = {"options": {"partitions": 3}} if crm["type"] == "kafka" else {}
        syncs = {"pays": {"destination": "crm", **options, **settings}, "free": {"destination": "file"}}
        return configure(manifest(syncs), [tmp_path], "dev", env or {}, tmp_path)

    return made


def named(configuration: Configuration, *names: str) -> list[Any]:
    return [sync for sync in configuration.syncs if sync.name in names]


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_that_is_not_set_is_asked_for_by_a_push_of_its_destination_alone(made: Made, name: str) -> None:
    configuration = made(SECRETS[name])
    assert {one.sync.name for one in configuration.resolved} == {"pays", "free"}
    configuration.refuse_unset()
    configuration.refuse_unset(pushed=named(configuration, "free"), planned=named(configuration, "pays"))
    with pytest.raises(ConfigurationError, match=r"variable CRM_PASSWORD, which is not set"):
        configuration.refuse_unset(pushed=named(configuration, "pays"))


@pytest.mark.parametrize("name", SECRETS)
def test_a_sync_is_the_same_with_and_without_its_secret(made: Made, name: str) -> None:
    without, whole = (
        {one.sync.name: id_of(one) for one in made(SECRETS[name], env=env).resolved}
        for env in ({}, {"CRM_PASSWORD": VALUE})
    )
    assert without == whole


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("name", NAMELESS)
def test_a_destination_that_has_no_name_without_its_variable_stops_every_push_and_its_own_plan(
    made: Made, name: str
) -> None:
    configuration = made(NAMELESS[name])
    assert [one.sync.name for one in configuration.resolved] == ["free"]
    configuration.refuse_unset()
    configuration.refuse_unset(planned=named(configuration, "free"))
    for used in ({"pushed": named(configuration, "free")}, {"planned": named(configuration, "pays")}):
        with pytest.raises(ConfigurationError, match=r"variable CRM_PASSWORD, which is not set"):
            configuration.refuse_unset(**used)


def test_a_secret_that_says_where_a_sync_goes_as_a_url_of_another_package_may_stops_every_push(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        PostgresSink, "identity", property(lambda sink: sink._settings.password.get_secret_value().partition("@")[2])
    )
    url = {**POSTGRES, "password": f"secret@{PASSWORD}"}
    configuration = made(url)
    assert [one.sync.name for one in configuration.resolved] == ["free"]
    assert {one.sync.name for one in made(url, env={"CRM_PASSWORD": VALUE}).resolved} == {"pays", "free"}


def test_what_else_is_wrong_is_told_although_a_secret_is_not_set(made: Made) -> None:
    with pytest.raises(ConfigurationError) as refused:
        made({**POSTGRES, "prot": 1}, mode="changelog")
    assert "prot" in str(refused.value)
    with pytest.raises(ConfigurationError) as refused:
        made(POSTGRES, object="a.b.c", where="1=1) or (1=1")
    assert "where" in str(refused.value)
    with pytest.raises(ConfigurationError, match=r"sync pays, object"):
        made(POSTGRES, object="a.b.c")
    assert not re.search("CRM_PASSWORD", str(refused.value))


@pytest.mark.guarantee("Secrets and row values")
def test_what_a_target_is_given_is_in_no_error_and_its_secrets_are_redacted_from_then_on(made: Made) -> None:
    singer = {"type": "singer", "command": "target-x"}
    with pytest.raises(ConfigurationError) as refused:
        made({**singer, "env": {"PGPASS": 74839201}})
    assert "74839201" not in str(refused.value)
    url, env = (
        "postgresql://etl:in-the-url@db/analytics",
        {"WH_TOKEN": "from-the-environment", "WH_SCHEMA": "analytics"},
    )
    named = {"schema": "{{ env_var('WH_SCHEMA') }}", "x": "{{ env_var('WH_TOKEN') }}"}
    made({**singer, "config": {"url": url, "api_key": "in-the-file", **named}}, env=env)
    shown = redact("in-the-url in-the-file from-the-environment analytics")
    assert shown == f"{MASK} {MASK} {MASK} analytics"


def test_the_address_of_an_alert_is_asked_for_by_pushes_alone(made: Made) -> None:
    alerts = [{"type": "slack", "url": "{{ env_var('SLACK_URL') }}"}]
    configuration = made(POSTGRES, alerts)
    configuration.refuse_unset(planned=configuration.syncs)
    with pytest.raises(ConfigurationError, match="SLACK_URL"):
        configuration.refuse_unset(pushed=named(configuration, "free"))
