"""Paths in profiles.yml, and the way to it, lead to the same place whichever folder a command is called from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dbt_reverse_etl.app.configuration import configure
from dbt_reverse_etl.app.place import Place
from dbt_reverse_etl.config.destinations import Destination, PlanOnly, collect_destinations
from dbt_reverse_etl.config.profiles import DbtProject, profile_directories
from dbt_reverse_etl.config.validation import Place as Where
from dbt_reverse_etl.config.validation import validate
from dbt_reverse_etl.sinks.base import Settings
from dbt_reverse_etl.sinks.files.settings import FilesSettings
from dbt_reverse_etl.sinks.http.settings import HttpSettings
from dbt_reverse_etl.sinks.kafka.settings import KafkaSettings
from dbt_reverse_etl.sinks.singer.settings import SingerSettings
from dbt_reverse_etl.sinks.sql.settings import MysqlSettings, PostgresSettings, SqliteSettings
from tests.support.config.manifest import manifest

PROFILE = "shop: {target: dev, outputs: {dev: {type: spark, method: session, schema: shop}}}\n"
PLACES: dict[str, dict[str, Any]] = {
    "sqlite": {"type": "sqlite", "path": "data/../crm.db"},
    "duckdb": {"type": "duckdb", "path": "crm.duckdb"},
    "files": {"type": "files", "path": "exports/../out"},
    "home": {"type": "sqlite", "path": "~/crm.db"},
    "home of duckdb": {"type": "duckdb", "path": "~/crm.duckdb"},
    "home of files": {"type": "files", "path": "~/out"},
    "absolute": {"type": "files", "path": "/tmp/out"},
    "bucket": {"type": "files", "path": "s3://lake/out"},
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The project, in a folder of a repository."""
    folder = tmp_path / "repository" / "shop"
    folder.mkdir(parents=True)
    (folder / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    (folder / "profiles.yml").write_text(PROFILE + yaml.safe_dump({"dbt_reverse_etl": {"outputs": {"dev": PLACES}}}))
    return folder


def identities(shop: Path, project_dir: Path | None) -> dict[str, str]:
    loaded = collect_destinations([shop], "dev", {}, DbtProject("shop", folder=project_dir))
    assert not isinstance(loaded, PlanOnly)
    assert not loaded.problems

    def identity(one: Destination) -> str:
        return one.sink(one.settings).identity

    return {name: identity(one) for name, one in loaded.destinations.items()}


@pytest.mark.guarantee("Configuration")
def test_a_relative_path_of_a_destination_is_that_of_the_project_and_what_ran_in_its_folder_stays_the_same_sync(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    as_ever = identities(shop, None)
    assert as_ever.keys() == PLACES.keys()
    for cwd, project_dir in ((shop, shop), (shop.parent, shop), (shop.parent, Path("shop")), (Path("/"), shop)):
        monkeypatch.chdir(cwd)
        assert identities(shop, project_dir) == as_ever


def test_a_database_in_memory_or_a_uri_is_no_relative_path(shop: Path) -> None:
    for block in ({"type": "sqlite", "path": ":memory:"}, {"type": "duckdb", "path": "md:crm"}):
        written = {"dbt_reverse_etl": {"outputs": {"dev": {"crm": block}}}}
        (shop / "profiles.yml").write_text(PROFILE + yaml.safe_dump(written))
        loaded = collect_destinations([shop], "dev", {}, DbtProject("shop", folder=shop))
        assert not isinstance(loaded, PlanOnly)
        assert "expected the path of a file" in str(loaded.problems[0])


SERVER = {"host": "db.example.com", "database": "crm", "user": "etl", "password": "known well"}
CERTIFICATE = {"cert": "own.pem", "key": "own.key"}
FILES: list[tuple[type[Settings], dict[str, Any], list[str]]] = [
    (PostgresSettings, {**SERVER, "sslrootcert": "ca.pem"}, ["sslrootcert"]),
    (PostgresSettings, {**SERVER, "sslcert": "own.pem", "sslkey": "own.key"}, ["sslcert", "sslkey"]),
    (
        MysqlSettings,
        {**SERVER, "ssl_ca": "ca.pem", "ssl_cert": "own.pem", "ssl_key": "own.key"},
        ["ssl_ca", "ssl_cert", "ssl_key"],
    ),
    (HttpSettings, {"url": "https://crm.example.com", "verify": "ca.pem"}, ["verify"]),
    (KafkaSettings, {"bootstrap_servers": "kafka.example.com", "ssl_ca_location": "ca.pem"}, ["ssl_ca_location"]),
    (SingerSettings, {"command": "target-x", "log_file": "target.log"}, ["log_file"]),
]


@pytest.mark.parametrize(("model", "written", "names"), FILES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_relative_file_of_a_destination_is_that_of_the_project(
    model: type[Settings], written: dict[str, Any], names: list[str]
) -> None:
    problems: list[Any] = []
    found = validate(model, written, Where("profiles.yml", (), project_dir=Path("/shop")), problems)
    assert not problems
    for name in names:
        assert str(getattr(found, name)) == f"/shop/{written[name]}"


@pytest.mark.parametrize("project_dir", [None, Path("/shop")])
@pytest.mark.parametrize(("model", "written", "names"), FILES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_file_below_a_home_is_there(
    model: type[Settings],
    written: dict[str, Any],
    names: list[str],
    project_dir: Path | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/etl")
    problems: list[Any] = []
    below = written | {name: f"~/{written[name]}" for name in names}
    found = validate(model, below, Where("profiles.yml", (), project_dir=project_dir), problems)
    assert not problems
    for name in names:
        assert str(getattr(found, name)) == f"/home/etl/{written[name]}"


def test_a_home_that_nobody_has_is_refused() -> None:
    problems: list[Any] = []
    for model, written in ((SqliteSettings, {"path": "~nobody-known/crm.db"}), (FilesSettings, {"path": "~no one/x"})):
        assert validate(model, written, Where("profiles.yml", ("crm",)), problems) is None
    assert [problem.where for problem in problems] == ["profiles.yml: crm.path"] * 2
    assert {problem.next_step for problem in problems} == {"write an absolute path"}


def test_words_in_the_place_of_a_ca_and_files_of_a_certificate() -> None:
    where = Where("profiles.yml", (), project_dir=Path("/shop"))
    postgres = validate(PostgresSettings, {**SERVER, "sslrootcert": "system"}, where, [])
    assert postgres
    assert postgres.sslrootcert == "system"
    http = validate(HttpSettings, {"url": "https://crm.example.com", "client_certificate": CERTIFICATE}, where, [])
    assert http
    assert http.verify is True
    assert http.client_certificate
    assert (http.client_certificate.cert, http.client_certificate.key) == ("/shop/own.pem", "/shop/own.key")


def test_the_configuration_of_a_project_has_no_relative_path(shop: Path) -> None:
    channel = {"type": "slack", "url": "https://chat.example.com/x1canary", "ca_file": "ca.pem"}
    outputs = {"dev": {"crm": {"type": "files", "path": "exports"}}}
    (shop / "profiles.yml").write_text(yaml.safe_dump({"dbt_reverse_etl": {"outputs": outputs, "alerts": [channel]}}))
    found = configure(manifest({"crm_contacts": {"destination": "crm"}}), [shop], "dev", {}, shop)
    (resolved,), (alert,) = found.resolved, found.alerts.values()
    assert resolved.destination.settings == FilesSettings(path=str(shop / "exports"))
    assert alert.ca_file == str(shop / "ca.pem")


def test_a_path_below_a_home_has_the_identity_of_the_same_path_written_out(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/etl")
    found = identities(shop, shop)
    assert found["home of duckdb"] == "duckdb:///home/etl/crm.duckdb"
    assert all("/home/etl/" in found[name] for name in ("home", "home of files"))


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("named", ["flag", "variable"])
def test_a_push_reads_the_profiles_yml_that_was_checked_although_its_session_changes_the_folder(
    shop: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    (shop.parent / "profiles").mkdir()
    (shop / "profiles.yml").rename(shop.parent / "profiles" / "profiles.yml")
    (shop / "profiles").mkdir()
    (shop / "profiles" / "profiles.yml").write_text("another one\n")
    monkeypatch.chdir(shop.parent)
    if named == "variable":
        monkeypatch.setenv("DBT_PROFILES_DIR", "profiles")
    place = Place(Path("shop"), Path("profiles") if named == "flag" else None, None, None)
    place.session("dev")
    assert Path.cwd() == shop
    assert place.profiles == [shop.parent / "profiles"]
    assert profile_directories(Path("~"), shop, {}) == [shop / "~"], "as for dbt"
