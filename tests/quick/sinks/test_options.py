"""What the options of several sinks share."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
import yaml

from dbt_reverse_etl.config.sink_types import ENTRY_POINTS

TYPES = [entry.name for entry in entry_points(group=ENTRY_POINTS) if "nan" in entry.load().options_model.model_fields]


@pytest.mark.parametrize("written", ["nan: null", "nan: 'null'", "nan: ~"])
@pytest.mark.parametrize("sink", TYPES)
def test_a_null_of_yaml_writes_null_for_nan_as_the_word_does(sink: str, written: str) -> None:
    assert len(TYPES) >= 4
    (entry,) = entry_points(group=ENTRY_POINTS, name=sink)
    assert entry.load().options_model.model_validate(yaml.safe_load(written)).nan == "null"
