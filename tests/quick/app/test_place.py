"""The session that a command opens is the one that dbt's profile describes, as dbt reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbt_reverse_etl.app.place import Place
from dbt_reverse_etl.base.errors import ConfigurationError

PROFILE = """
shop:
  target: dev
  outputs:
    dev: {type: "{{ env_var('KIND', 'spark') }}", method: "{{ env_var('METHOD', 'session') }}", schema: shop}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    (tmp_path / "profiles.yml").write_text(PROFILE)
    return tmp_path


def test_a_method_from_the_environment_is_rendered(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(Place(project, None, None, None).session("dev"))
    monkeypatch.setenv("METHOD", "thrift")
    with pytest.raises(ConfigurationError, match="found type spark, method thrift; expected type: spark with"):
        Place(project, None, None, None).session("dev")
