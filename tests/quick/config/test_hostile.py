"""Hostile and mistaken configurations: each is refused before dbt runs a model, by what the plugin, `check` and `push` share."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.app.configuration import Configuration, configure
from dbt_reverse_etl.base.errors import ConfigurationError, ExitCode, Problem
from dbt_reverse_etl.cli import cli
from tests.support import ROOT

# A destination of each type as a user writes it, and the settings of a sync that it takes.
DESTINATIONS: dict[str, dict[str, Any]] = {
    "sqlite": {"path": "/tmp/none/crm.db"},
    "files": {"path": "/tmp/none"},
    "delta": {"schema": "crm"},
    "lake": {"type": "delta", "path": "/tmp/none"},
    "postgres": {"host": "db.example.com", "database": "crm", "user": "etl", "password": "long enough"},
    "mysql": {"host": "db.example.com", "database": "crm", "user": "etl", "password": "long enough"},
    "duckdb": {"path": "/tmp/none/crm.duckdb"},
    "kafka": {"bootstrap_servers": "kafka.example.com:9092"},
    "singer": {"command": ["target-none"]},
    "http": {"url": "https://crm.example.com/api"},
    "braze": {"type": "http", "preset": "braze", "url": "https://rest.example.com", "auth": {"token": "long enough"}},
}
DESTINATIONS = {name: {"type": name, **block} for name, block in DESTINATIONS.items()}
NEEDED: dict[str, dict[str, Any]] = {
    "kafka": {"options": {"partitions": 3}},
    "braze": {"fields": {"id": "external_id"}},
}

PUT = {"method": "PUT", "path": "contacts/{id}"}
FIELDS = {"fields": ["id", "name"]}

# type -> what a sync may not say to it.
HOSTILE: dict[str, list[dict[str, Any]]] = {
    "sqlite": [
        {"object": "sqlite_master"},
        {"object": "_dbt_reverse_etl_fences"},
        {"object": "a\0b"},
        {"mode": "changelog"},
        {"options": {"soft_delete": "gone"}},
        {"fields": {"id": "id", "name": "a\0b"}},
    ],
    "files": [
        {"object": "../../escape"},
        {"object": "/etc"},
        {"object": "a/../b"},
        {"object": "s3://other/bucket"},
        {"object": "a\nb"},
        {"mode": "insert_only"},
        {"options": {"nan": "zero"}},
        {"options": {"partition_by": ["country"]}, **FIELDS},
        {"options": {"partition_by": ["name", "name"]}, **FIELDS},
        {"options": {"partition_by": ["id", "name"]}, **FIELDS},
    ],
    "delta": [{"object": "a.b.c`; drop table x"}, {"object": ""}, {"mode": "update_only"}, {"options": {"x": 1}}],
    "lake": [{"object": "../escape"}, {"object": "/etc"}, {"object": "a`b"}],
    "postgres": [
        {"object": "a.b.c"},
        {"object": "x" * 64},
        {"object": "_dbt_reverse_etl_claims"},
        {"options": {"soft_delete": "gone"}},
        {"options": {"soft_delete": "name"}, "mode": "mirror", **FIELDS},
        {"mode": "mirror", "owns_object": True},
        {"fields": {"id": "id", "name": "x" * 64}},
        {"mode": "changelog"},
    ],
    "mysql": [
        {"object": "a.b.c"},
        {"object": "x" * 65},
        {"options": {"soft_delete": "gone"}},
        {"options": {"soft_delete": "NAME"}, "mode": "mirror", **FIELDS},
        {"fields": {"id": "id", "name": "x" * 65}},
    ],
    "duckdb": [
        {"object": "a..b"},
        {"object": "_dbt_reverse_etl_claims"},
        {"mode": "mirror", "owns_object": True},
        {"options": {"x": 1}},
    ],
    "kafka": [
        {"object": ".."},
        {"object": "a b"},
        {"object": "x" * 250},
        {"options": {}},
        {"options": {"partitions": 3, "compacted": True}, "mode": "changelog"},
        {"options": {"partitions": 3, "value_format": "avro"}},
        {"options": {"partitions": 0}},
    ],
    "singer": [
        {"mode": "mirror"},
        {"options": {"deletes": "sdc_deleted_at"}},
        {"fields": {"id": "id", "name": "_sdc_x"}},
    ],
    "http": [
        {"object": "../accounts"},
        {"options": {"upsert": PUT | {"path": "https://evil.example.com/{id}"}}},
        {"options": {"upsert": PUT | {"path": "a/../b/{id}"}}},
        {"options": {"upsert": PUT | {"path": "contacts"}}},
        {"options": {"upsert": PUT | {"path": "contacts/{id}/{email}"}}, **FIELDS},
        {"options": {"upsert": PUT | {"headers": {"X-Tenant": "a\r\nHost: evil.example.com"}}}},
        {"options": {"upsert": PUT | {"headers": {"X-A\r\nB": "a"}}}},
        {"options": {"upsert": PUT | {"headers": {"Host": "evil.example.com"}}}},
        {"options": {"upsert": PUT | {"body_template": "../../outside.j2"}}},
        {"options": {"upsert": PUT | {"body_template": "/etc/passwd"}}},
        {"options": {"upsert": PUT | {"body_template": "no_such_file.j2"}}},
        {"options": {"upsert": PUT | {"body_template": "broken.j2"}}},
        {"options": {"upsert": PUT | {"body_template": "leaves.j2"}}},
        {"options": {"upsert": PUT | {"body_template": "leaves_by_filter.j2"}}},
        {"options": {"upsert": PUT | {"body_template": "huge_loop.j2"}}},
        {"options": {"delete": {"method": "DELETE", "path": "contacts/{id}"}}},
        {"options": {"insert": PUT | {"method": "POST"}}, "mode": "update_only"},
        {"options": {"batch": {"rows": 10}}},
        {"options": {"batch": {"rows": 10}, "upsert": PUT}},
        {"options": {"constants": {"name": 1}}, **FIELDS},
        {"options": {"success": {"status": [302]}}},
        {"mode": "insert_only"},
    ],
    "braze": [{"fields": {"id": "id"}}, {"options": {"batch": {"rows": 0}}}],
}
# What may be right: the model may have these columns.
OF_UNKNOWN_COLUMNS: list[tuple[str, dict[str, Any]]] = [
    ("files", {"options": {"partition_by": ["country"]}}),
    ("files", {"options": {"partition_by": ["id"]}}),
    ("http", {"options": {"upsert": PUT | {"path": "contacts/{id}/{email}"}}}),
    ("http", {"options": {"upsert": PUT | {"body_template": "sum.j2"}}}),
    ("http", {"options": {"upsert": PUT | {"body_template": "sum.j2"}}, "fields": ["id", "score"]}),
]
TEMPLATES = {
    "sum.j2": '{"sum": {{ row.score + 1 }}}',
    "broken.j2": "{{ row",
    "leaves.j2": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "leaves_by_filter.j2": "{{ row | attr('__class__') | attr('__mro__') | list | length }}",
    "huge_loop.j2": '[{% for i in range(99999) %}{% for j in range(99999) %}"xxxxxxxxxxxxxxxx",{% endfor %}{% endfor %}1]',
}
# What no sync may say, whatever its destination.
OF_ANY: list[dict[str, Any]] = [
    {"where": where}
    for where in (
        "id > 1; drop table x",
        "1=1) or (1=1",
        "(id > 1",
        "id > 1)",
        "name = 'a",
        'name = "a',
        "`id > 1",
        "id > 1 -- all",
        "id > 1 /* all */",
        "rand() > 0.5",
        "RAND () > 0.5",
        "uuid() > 'a'",
        "id in (select id from other)",
        "exists ( SELECT 1)",
        "current_date() > day",
        "day >= date'today'",
        "day >= cast('Tomorrow UTC' as date)",
        'at < timestamp "now"',
        "at < to_date(r' yesterday Europe/Berlin')",
        "f(`a)`, ')'))",
        "id > 1\0",
        "(" * 5000 + "1=1" + ")" * 5000,
    )
]
OF_ANY += [
    {"mode": "truncate"},
    {"destination": "elsewhere"},
    {"object": ""},
    {"fields": []},
    {"fields": ["name"]},
    {"fields": {"id": "_operation"}},
    {"guards": {"max_deletes": "200%"}},
    {"guards": {"max_deletes": -1}},
    {"push_on": ["test"]},
    {"owns_object": True, "mode": "upsert"},
    {"full_load_above": "many"},
    {"optoins": {}},
    {"options": {"password": "hunter2!"}},
]
CASES = [(name, case) for name, cases in HOSTILE.items() for case in cases]
CASES += [(name, case) for name in ("sqlite", "http") for case in OF_ANY]


def manifest(destination: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """As dbt writes it, of one changelog and one sync."""
    model = {
        "unique_id": "model.shop.people",
        "name": "people",
        "resource_type": "model",
        "original_file_path": "models/people.sql",
        "config": {"materialized": "changelog", "unique_key": "id"},
    }
    meta = {"destination": destination, "object": "contacts", **NEEDED.get(destination, {}), **settings}
    exposure = {
        "unique_id": "exposure.shop.sync",
        "name": "sync",
        "original_file_path": "models/syncs.yml",
        "config": {"meta": {"reverse_etl": meta}},
        "depends_on": {"nodes": ["model.shop.people"]},
    }
    return {
        "metadata": {"dbt_schema_version": "https://schemas.getdbt.com/dbt/manifest/v12.json"},
        "nodes": {"model.shop.people": model},
        "exposures": {"exposure.shop.sync": exposure},
    }


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with templates, profiles.yml, and one folder for each destination with its own."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "dbt_project.yml").write_text("name: shop\n")
    places = {folder: DESTINATIONS, **{folder / name: {name: block} for name, block in DESTINATIONS.items()}}
    for place, blocks in places.items():
        place.mkdir(exist_ok=True)
        (place / "profiles.yml").write_text(yaml.safe_dump({"dbt_reverse_etl": {"outputs": {"dev": blocks}}}))
    for name, text in TEMPLATES.items():
        (folder / name).write_text(text)
    (folder.parent / "outside.j2").write_text("{}")
    return folder


def configured(project: Path, destination: str, settings: Mapping[str, Any]) -> Configuration:
    return configure(manifest(destination, settings), [project / destination], "dev", {}, project)


def assert_three_parts(problem: Problem) -> None:
    """One message, and not another one inside of it."""
    text = str(problem)
    assert len(re.findall(r"; expected ", text)) == 1, text
    assert len(re.findall(r"\bnext: ", text, re.IGNORECASE)) == 1, text


@pytest.mark.parametrize("destination", DESTINATIONS)
def test_a_sound_sync_is_accepted_before_anything_is_known_of_its_model(project: Path, destination: str) -> None:
    assert [one.sync.name for one in configured(project, destination, {}).resolved] == ["sync"]


@pytest.mark.parametrize(("destination", "settings"), OF_UNKNOWN_COLUMNS, ids=str)
def test_what_the_columns_of_the_model_may_allow_is_not_refused_before_they_are_known(
    project: Path, destination: str, settings: dict[str, Any]
) -> None:
    assert configured(project, destination, settings).resolved


@pytest.mark.guarantee("Configuration")
def test_check_ends_with_the_code_of_a_wrong_configuration(project: Path) -> None:
    target = project / "target"
    target.mkdir()
    (target / "manifest.json").write_text(json.dumps(manifest("files", {"object": "../../escape"})))
    with pytest.MonkeyPatch.context() as without_dbt:  # it would parse the project
        without_dbt.setitem(sys.modules, "dbt.cli.main", None)
        answer = CliRunner().invoke(cli, ["check", "--project-dir", str(project), "--target", "dev"])
    assert isinstance(answer.exception, ConfigurationError)
    assert answer.exception.exit_code == 2
    assert "no plain relative path" in str(answer.exception)


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize(("destination", "settings"), CASES, ids=lambda value: str(value)[:60])
def test_a_hostile_configuration_is_refused_before_dbt_runs_a_model(
    project: Path, destination: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        configured(project, destination, settings)
    assert refused.value.exit_code is ExitCode.USAGE
    for problem in refused.value.problems:
        assert_three_parts(problem)


@pytest.mark.parametrize(
    "where",
    [
        "name is not null and not name like 'x;%'",
        "name = 'it''s -- (fine' or name = \"/*\"",
        "name = 'a\\'b)' or `odd ``name(` = r'\\'",
        "exists(parts, part -> part.n > 1)",
        "name = 'current_date()' or rand = 1 or `select` > 2",
        "name in ('now hiring', 'todays', 'not today', 'today or tomorrow') or `now` = 1",
        "priority = 'now' or due in ('Today', 'yesterday')",
        "broadcast = 'now' and forecast > 1 and is_updated",
        "(" * 100 + "1=1" + ")" * 100,
    ],
)
def test_quotes_hide_what_stands_in_them(project: Path, where: str) -> None:
    assert configured(project, "sqlite", {"where": where}).syncs[0].settings.where == where


@pytest.mark.guarantee("Configuration")
@given(st.text("a'\"\\$`;\n ", max_size=12))
def test_no_label_or_name_leaves_the_quotes_of_a_command_that_a_message_proposes(label: str) -> None:
    macros = (ROOT / "macros" / "operations" / "_history.sql").read_text()
    page = jinja2.Environment(extensions=["jinja2.ext.do"]).from_string(macros + "{{ _command('reopen', arguments) }}")
    arguments = f"model: orders, label: {json.dumps([label])}"
    *_, words = shlex.split(page.render(arguments=arguments))
    assert yaml.safe_load(words) == {"model": "orders", "label": [label]}
