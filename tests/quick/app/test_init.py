"""`init`: whose changelog it writes, and what it refuses before it writes anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from dbt_reverse_etl.app.scaffold import initialize
from dbt_reverse_etl.base.errors import ConfigurationError


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one model."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "shop"
    add(folder, "dbt_project.yml", "name: shop\n")
    add(folder, "models/staging/orders.sql")
    return folder


def add(shop: Path, name: str, text: str = "select 1 as id") -> None:
    (shop / name).parent.mkdir(parents=True, exist_ok=True)
    (shop / name).write_text(text)


def init(shop: Path, model: str | None) -> list[str]:
    return initialize(shop, lambda _: None, model=model, key="id" if model else None)


def files(shop: Path) -> set[Path]:
    return {path for path in shop.rglob("*") if path.is_file()}


@pytest.mark.parametrize("model", [None, "orders"])
@pytest.mark.parametrize("path", ["{{ env_var('M', 'models') }}", "{% if true %}models{% endif %}"])
def test_model_paths_that_dbt_renders_are_refused_before_anything_is_written(
    shop: Path, path: str, model: str | None
) -> None:
    add(shop, "dbt_project.yml", f'name: shop\nmodel-paths: ["{path}"]\n')
    before = files(shop)
    with pytest.raises(ConfigurationError, match=r"model-paths: found Jinja, .*; expected paths .*\. Next: write them"):
        init(shop, model)
    assert files(shop) == before


@pytest.mark.parametrize("ending", ["sql", "py"])
def test_a_changelog_and_a_sync_that_are_kept_in_another_folder_are_not_written_twice(shop: Path, ending: str) -> None:
    add(shop, f"models/logs/orders_changelog.{ending}")
    assert "models/staging/orders_changelog_sync.yml" in init(shop, "orders")
    assert not (shop / "models/staging/orders_changelog.sql").exists()
    (shop / "models/staging/orders_changelog_sync.yml").rename(shop / "models/logs/orders_changelog_sync.yaml")
    assert init(shop, "orders") == []


@pytest.mark.parametrize(
    ("model", "listed", "of_folders"),
    [
        ("{{ config(materialized='changelog', unique_key='id') }} select 1 as id", "", ""),
        ("select 1 as id", "models: [{name: orders_changelog, config: {materialized: changelog, unique_key: id}}]", ""),
        (
            "-- materialized: below\nselect 1 as id where is_materialized = 'x'",
            "",
            "{shop: {+materialized: changelog}}",
        ),
        ("select 1 as id", "", "{shop: {+materialized: table, logs: {+materialized: changelog}}}"),
        ("select 1 as id", "", "{+materialized: view, shop: {logs: {orders_changelog: {materialized: changelog}}}}"),
    ],
    ids=[
        "its own file",
        "a properties file",
        "its folder, below words of a comment",
        "its folder",
        "its name in dbt_project.yml",
    ],
)
def test_of_a_model_that_is_a_changelog_only_the_sync_is_written(
    shop: Path, model: str, listed: str, of_folders: str
) -> None:
    add(shop, "dbt_project.yml", f"name: shop\nmodels: {of_folders}\n")
    add(shop, "models/logs/orders_changelog.sql", model)
    add(shop, "models/logs/_models.yml", listed)
    written = init(shop, "orders_changelog")
    assert [name for name in written if name.startswith("models/")] == ["models/logs/orders_changelog_sync.yml"]
    (sync,) = yaml.safe_load((shop / "models/logs/orders_changelog_sync.yml").read_text())["exposures"]
    assert (sync["name"], sync["depends_on"]) == ("crm_orders", ["ref('orders_changelog')"])
    assert sync["config"]["meta"]["reverse_etl"]["object"] == "orders"
    assert init(shop, "orders_changelog") == []


@pytest.mark.parametrize(
    ("model", "listed"),
    [
        ("{{ config(materialized='table') }} select 1 as id", ""),
        ("select 1 as id", "models: [{name: orders, config: {materialized: table}}]"),
    ],
)
def test_a_model_that_says_otherwise_than_its_folder_is_no_changelog(shop: Path, model: str, listed: str) -> None:
    add(shop, "dbt_project.yml", "name: shop\nmodels: {shop: {staging: {+materialized: changelog}}}\n")
    add(shop, "models/staging/orders.sql", model)
    add(shop, "models/staging/_models.yml", listed)
    assert "models/staging/orders_changelog.sql" in init(shop, "orders")


def test_no_example_is_written_where_dbt_project_yml_has_changelogs(shop: Path) -> None:
    add(shop, "dbt_project.yml", "name: shop\nmodels: {shop: {staging: {+materialized: changelog}}}\n")
    assert "models/reverse_etl_example.yml" not in init(shop, None)


def test_a_changelog_that_is_there_is_named_so_that_nobody_takes_its_key_for_the_new_one(shop: Path) -> None:
    lines: list[str] = []
    init(shop, "orders")
    initialize(shop, lines.append, model="orders", key="nosuchcol")
    assert "models/staging/orders_changelog.sql is there, and is left as it is" in lines


@pytest.mark.parametrize(("method", "more"), [("session", " spark-warehouse/ metastore_db/ derby.log"), ("thrift", "")])
def test_the_folders_in_which_a_session_keeps_rows_are_to_be_kept_out_of_git(
    shop: Path, method: str, more: str
) -> None:
    lines: list[str] = []
    add(shop, "dbt_project.yml", "name: shop\nprofile: shop\n")
    add(shop, "profiles.yml", f"shop: {{outputs: {{dev: {{type: spark, method: {method}}}}}}}\n")
    initialize(shop, lines.append)
    assert f"Keep out of git, in .gitignore: target/ dbt_packages/ logs/{more}" in lines


LISTED = "models:\n  - name: customers\n    versions: [{v: 1, defined_in: old_customers}, {v: 2}]\n"


@pytest.mark.parametrize(
    ("names", "model", "ref"),
    [
        (["old_customers.sql", "customers_v2.sql", "_models.yml"], "customers_v2", "'customers', v=2"),
        (["old_customers.sql", "customers_v2.py", "../_models.yaml"], "old_customers", "'customers', v=1"),
        (["old_customers.sql", "customers_v2.sql", "_models.yml"], "customers", "'customers', v=2"),
        (["old_customers.sql", "customers.sql", "_models.yml"], "customers", "'customers', v=2"),
        (["customers.v1.sql", "customers.v2.sql"], "customers.v2", "'customers', v=2"),
        (["customers.v1.sql", "customers.vb.sql"], "customers", "'customers', v='b'"),
    ],
)
def test_a_model_with_versions_is_refused_with_how_its_changelog_reads_it(
    shop: Path, names: list[str], model: str, ref: str
) -> None:
    for name in names:
        add(shop, f"models/marts/{name}", LISTED if "yml" in name or "yaml" in name else "select 1 as id")
    before = files(shop)
    with pytest.raises(ConfigurationError) as error:
        init(shop, model)
    assert f"found '{model}', which has versions or is one; expected a model without versions" in str(error.value)
    assert f"Next: write its changelog and its sync yourself, from {{{{ ref({ref}) }}}}" in str(error.value)
    assert files(shop) == before
    with pytest.raises(ConfigurationError, match=r"expected a model of this project: orders\. Next"):
        init(shop, "order")


def test_another_name_with_a_dot_is_refused_and_its_neighbour_is_not(shop: Path) -> None:
    add(shop, "models/staging/orders.v_old.sql")
    add(shop, "models/staging/orders.backup.sql")
    add(shop, "models/staging/_models.yml", "models: [1, {name: orders, versions: }, {name: lines, versions: {v: 1}}]")
    with pytest.raises(ConfigurationError, match=r"'orders\.backup', a name with a dot; .* Next: rename its file"):
        init(shop, "orders.backup")
    assert "models/staging/orders_changelog.sql" in init(shop, "orders")


def test_no_version_is_proposed(shop: Path) -> None:
    add(shop, "models/marts/customers.v1.sql")
    add(shop, "models/marts/customers.old.sql")
    said: list[str] = []
    initialize(shop, said.append)
    assert "Make a sync of a model: dbt-reverse-etl init --model orders --key COLUMN" in said


@pytest.mark.guarantee("Packaging")
@pytest.mark.parametrize("file", ["packages.yml", "dependencies.yml"])
@pytest.mark.parametrize(
    "entry",
    [
        {"git": "https://canary@example.com/acme/dbt-reverse-etl.git", "revision": "0.1.0"},
        {"git": "git@example.com:dbt-reverse-etl", "revision": "0.1.0"},
        {"git": "https://example.com/acme/reverse_etl/", "revision": "0.1.0"},
        {"git": "https://example.com/acme/all.git", "subdirectory": "dbt/reverse_etl", "revision": "0.1.0"},
        {"private": "acme/dbt-reverse-etl", "revision": "0.1.0"},
        {"tarball": "https://example.com/1.tar.gz", "name": "reverse_etl"},
        {"package": "acme/reverse_etl", "version": "0.1.0"},
        {"package": "acme/dbt-reverse-etl", "version": "0.1.0"},
        {"local": "../ours"},
    ],
)
def test_a_project_that_has_the_package_from_elsewhere_is_refused_before_anything_is_written(
    shop: Path, entry: dict[str, str], file: str
) -> None:
    add(shop, "../ours/dbt_project.yml", "name: reverse_etl\n")
    add(shop, file, yaml.safe_dump({"packages": [{"package": "dbt-labs/dbt_utils", "version": "1.3.0"}, entry]}))
    before = files(shop)
    with pytest.raises(ConfigurationError) as error:
        init(shop, None)
    kind = next(iter(entry))
    assert f"{file}: found this package by `{kind}`; expected `local: packages/reverse_etl` alone" in str(error.value)
    assert "Next: remove that entry and run init again, or keep it, without init" in str(error.value)
    assert "canary" not in str(error.value)
    assert files(shop) == before


@pytest.mark.parametrize(
    "entry",
    [
        {"package": "acme/not_reverse_etl", "version": "0.1.0"},
        {"git": "https://example.com/acme/dbt-reverse-etl-extras.git", "revision": "main"},
        {"git": "https://example.com/acme/reverse_etl.git", "subdirectory": "other", "revision": "main"},
        {"local": "../other"},
        {"local": "../nowhere"},
        "a text",
    ],
)
def test_any_other_package_stays_beside_the_entry_of_init(shop: Path, entry: object) -> None:
    add(shop, "../other/dbt_project.yml", "name: other\n")
    add(shop, "packages.yml", yaml.safe_dump({"packages": [entry]}))
    assert "packages.yml" in init(shop, None)
    listed = yaml.safe_load((shop / "packages.yml").read_text())["packages"]
    assert listed == [{"local": "packages/reverse_etl"}, entry]


def test_an_entry_that_names_the_carried_copy_in_other_words_is_that_of_init(shop: Path) -> None:
    add(shop, "packages.yml", "packages:\n  - local: ./packages/reverse_etl/\n")
    assert "packages.yml" not in init(shop, None)
    assert init(shop, None) == []


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("packages", "local_packages"),
        ("./packages/", "local_packages"),
        ("models/../packages", "local_packages"),
        (".", "local_packages"),
        ("{{ env_var('DIR', 'packages') }}", "local_packages"),
        ("{{ env_var('DIR', 'dbt_packages') }}", "packages"),
        ("vendor/packages", "packages"),
        ("packages/installed", "packages"),
    ],
)
def test_the_package_is_never_kept_in_the_folder_that_dbt_deps_empties(shop: Path, path: str, kept: str) -> None:
    add(shop, "dbt_project.yml", f'name: shop\npackages-install-path: "{path}"\n')
    assert f"{kept}/reverse_etl" in init(shop, None)
    listed = yaml.safe_load((shop / "packages.yml").read_text())
    assert listed == {"packages": [{"local": f"{kept}/reverse_etl"}]}


JINJA = [
    "{{ env_var('X', '/tmp/dbt/packages') }}",
    "{{ env_var('DIR', '..') }}/packages",
    "{{ env_var('DIR', 'vendor-packages') }}",
]


@pytest.mark.parametrize("path", JINJA)
def test_a_package_that_is_listed_and_that_dbt_deps_left_is_refreshed_where_it_is(shop: Path, path: str) -> None:
    init(shop, None)
    add(shop, "dbt_project.yml", f'name: shop\npackages-install-path: "{path}"\n')
    add(shop, "packages/reverse_etl/macros/version.sql", "older")
    assert init(shop, None) == ["packages/reverse_etl"]
    assert init(shop, None) == []


@pytest.mark.parametrize("path", ["./packages", "{{ env_var('DIR', 'packages') }}"])
@pytest.mark.parametrize("left", [None, "packages/reverse_etl", "local_packages/reverse_etl"])
@pytest.mark.parametrize("more", ["", "  - local: local_packages/reverse_etl\n"])
def test_an_entry_of_an_earlier_init_for_the_folder_that_dbt_deps_emptied_is_refused_until_it_is_removed(
    shop: Path, path: str, left: str | None, more: str
) -> None:
    add(shop, "dbt_project.yml", f'name: shop\npackages-install-path: "{path}"\n')
    add(shop, "packages.yml", f"packages:\n{more}  - local: packages/reverse_etl\n")
    if left:
        (shop / "packages").mkdir()
        (shop / "packages/reverse_etl").symlink_to(shop / left)
    before = files(shop)
    with pytest.raises(ConfigurationError, match=r"`local: local_packages/reverse_etl` alone, .* remove that entry"):
        init(shop, None)
    assert files(shop) == before
    add(shop, "packages.yml", f"packages:\n{more}")
    assert "local_packages/reverse_etl" in init(shop, None)
    assert yaml.safe_load((shop / "packages.yml").read_text()) == {
        "packages": [{"local": "local_packages/reverse_etl"}]
    }


def test_the_package_is_refreshed_behind_the_link_that_dbt_deps_leaves(shop: Path) -> None:
    add(shop, "dbt_project.yml", "name: shop\npackages-install-path: packages\n")
    init(shop, None)
    link, kept = shop / "packages/reverse_etl", shop / "local_packages/reverse_etl"
    link.parent.mkdir()
    link.symlink_to(kept)
    add(kept, "macros/version.sql", "older")
    assert init(shop, None) == ["local_packages/reverse_etl"]
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("packages: []  # none\n", "packages:\n  ENTRY  # none\n"),
        ("packages:\n  # - package: a/b\n", "packages:\n  ENTRY\n  # - package: a/b\n"),
        ("packages:", "packages:\n  ENTRY\n"),
        ("packages: ~\r\n# end\r\n", "packages:\r\n  ENTRY\r\n# end\r\n"),
        ("packages: [\n]\n", "packages:\n  ENTRY\n"),
    ],
)
def test_a_list_of_packages_that_is_empty_gets_the_entry_of_init(shop: Path, text: str, expected: str) -> None:
    (shop / "packages.yml").write_bytes(text.encode())
    assert "packages.yml" in init(shop, None)
    assert (shop / "packages.yml").read_bytes().decode() == expected.replace("ENTRY", "- local: packages/reverse_etl")


def test_an_empty_list_beside_projects_in_dependencies_gets_the_entry_of_init(shop: Path) -> None:
    add(shop, "dependencies.yml", "packages: []\nprojects:\n  - name: other\n")
    init(shop, None)
    read = yaml.safe_load((shop / "dependencies.yml").read_text())
    assert read == {"packages": [{"local": "packages/reverse_etl"}], "projects": [{"name": "other"}]}


@pytest.mark.parametrize("text", ["packages: [{package: a/b, version: 1.0.0}]\n", "{packages: []}\n"])
def test_a_list_that_init_cannot_extend_is_kept_and_the_advice_holds_for_it(shop: Path, text: str) -> None:
    add(shop, "packages.yml", text)
    said: list[str] = []
    initialize(shop, said.append)
    assert (shop / "packages.yml").read_text() == text
    assert any("as lines below `packages:`, with this one:\n  - local: packages/reverse_etl" in line for line in said)


@pytest.mark.parametrize(
    ("where", "line", "is_said"),
    [(".", "packages/", True), ("..", "packages", True), (".", "dbt_packages/", False), (".", "", False)],
)
def test_a_package_that_git_ignores_is_named(shop: Path, where: str, line: str, is_said: bool) -> None:
    subprocess.run(["git", "init", "-q", shop.parent], check=True)
    add(shop, f"{where}/.gitignore", f"{line}\n")
    said: list[str] = []
    initialize(shop, said.append)
    assert any(line.startswith("git ignores packages/reverse_etl") for line in said) == is_said


def test_without_git_or_a_repository_init_is_silent_about_what_git_ignores(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(shop, ".gitignore", "packages/\n")
    said: list[str] = []
    initialize(shop, said.append)
    monkeypatch.setenv("PATH", str(shop))
    initialize(shop, said.append)
    assert not any("git ignores" in line for line in said)
