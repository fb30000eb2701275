"""What is said of a Singer target's `config` that JSON cannot hold: YAML reads dates and numbers where a text was meant."""

from __future__ import annotations

import pytest
import yaml

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.config.validation import Place, validate
from dbt_reverse_etl.sinks.singer.settings import SingerSettings


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            "start_date: 2024-01-31",
            "start_date: found a date; expected a value that JSON has. Next: put it into quotes",
        ),
        ("a: [2024-01-31 10:00:00]", "a.0: found a datetime; expected a value that JSON has. Next: put it into quotes"),
        ("2024: x", "2024: found a number as a key; expected a text. Next: put the key into quotes"),
        ("a: [{1: x}]", "a.0.1: found a number as a key; expected a text. Next: put the key into quotes"),
    ],
)
def test_a_date_and_a_number_as_a_name_are_refused_with_the_way_to_write_them(config: str, said: str) -> None:
    problems: list[Problem] = []
    given = {"command": "target", "config": yaml.safe_load(config)}
    assert validate(SingerSettings, given, Place("profiles.yml", ("crm",), lambda _: True), problems) is None
    assert [*map(str, problems)] == [f"profiles.yml: crm.config.{said}"]
