"""What the options of several sinks share."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
import yaml

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.config.sink_types import ENTRY_POINTS
from dbt_reverse_etl.config.validation import Place, validate

TYPES = [entry.name for entry in entry_points(group=ENTRY_POINTS) if "nan" in entry.load().options_model.model_fields]


@pytest.mark.parametrize("written", ["nan: null", "nan: ~", "nan:"])
@pytest.mark.parametrize("sink", TYPES)
def test_a_null_of_yaml_for_nan_is_refused_with_the_quotes_that_it_lacks(sink: str, written: str) -> None:
    assert len(TYPES) >= 4
    (entry,) = entry_points(group=ENTRY_POINTS, name=sink)
    problems: list[Problem] = []
    validate(entry.load().options_model, yaml.safe_load(written), Place("exposures.yml", ("options",)), problems)
    assert [str(one) for one in problems] == [
        "exposures.yml: options.nan: found nothing; expected 'reject' or 'null'. Next: put null into quotes"
    ]
