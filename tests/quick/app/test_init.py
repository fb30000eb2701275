"""`init --model`: whose changelog it writes, and what it refuses before it writes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

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
