"""`report --key`: what is no key of a chosen changelog is refused before a session starts."""

from __future__ import annotations

import pytest

from dbt_reverse_etl.app.keys import fitting
from dbt_reverse_etl.base.errors import ConfigurationError, ExitCode
from dbt_reverse_etl.config.settings import Changelog, ChangelogSettings

PEOPLE = Changelog("model.shop.people", "people", "people", "people", ("id",), ChangelogSettings())
LINES = Changelog("model.shop.lines", "lines", "lines", "lines", ("shop", "id"), ChangelogSettings())


@pytest.mark.parametrize(
    "given",
    [
        "",
        "1",
        "id=1",
        "[1]",
        '{"id": 1',
        '{"name": "Ann"}',
        '{"shop": 1}',
        '{"id": 1, "ID": 2}',
        '{"id": [1]}',
        '{"id": {"id": 1}}',
        '{"id": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_key_is_refused_by_its_text(given: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        fitting(given, [PEOPLE, LINES])
    assert refused.value.exit_code is ExitCode.USAGE
    assert len(str(refused.value)) < 400
    assert "Ann" not in str(refused.value)


def test_a_key_is_of_every_changelog_with_these_columns_in_any_case() -> None:
    assert fitting('{"ID": 1}', [PEOPLE, LINES]) == [PEOPLE]
    assert fitting('{"id": 1, "shop": null}', [PEOPLE, LINES]) == [LINES]
