"""A profiles.yml as a fixture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    """Writes profiles.yml with the given block, and returns its directory."""

    def written(outputs: Any) -> Path:
        text = outputs if isinstance(outputs, str) else yaml.safe_dump({"dbt_reverse_etl": {"outputs": outputs}})
        (tmp_path / "profiles.yml").write_text(text, encoding="utf-8")
        return tmp_path

    return written
