"""`report --key`: what is no key of a chosen changelog is refused before a session starts, and what the history of one says."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dbt_reverse_etl.app.keys import fitting, stored_key
from dbt_reverse_etl.base.errors import ConfigurationError, ExitCode, Problem, ReverseEtlError
from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.commands import looking
from dbt_reverse_etl.config.settings import Changelog, ChangelogSettings
from dbt_reverse_etl.delivery.ports import OneRow
from dbt_reverse_etl.report import key_reading, reading
from dbt_reverse_etl.report.key_reading import changes, read_keys
from dbt_reverse_etl.report.model import KeyHistory

PEOPLE = Changelog("model.shop.people", "people", "people", ("id",), ChangelogSettings())
LINES = Changelog("model.shop.lines", "lines", "lines", ("shop", "id"), ChangelogSettings())


@pytest.mark.parametrize(
    "given",
    [
        "",
        "1",
        "{}",
        "id=1",
        "[1]",
        '{"id": 1',
        '{"name": "Ann"}',
        '{"shop": 1}',
        '{"id": 1, "ID": 2}',
        '{"id": 1, "id": 2}',
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
    assert "found the columns ;" not in str(refused.value)
    assert "Ann" not in str(refused.value)


def test_a_value_that_the_columns_do_not_take_is_a_wrong_command_line_and_not_shown() -> None:
    spark: Any = SimpleNamespace(sql=lambda _: SimpleNamespace(collect=lambda: [(None, None)]))
    head: Any = SimpleNamespace(columns=[("id", "bigint")], key=["id"])
    with pytest.raises(ReverseEtlError, match="a value that is no key of people; expected id bigint") as refused:
        stored_key(spark, head, PEOPLE, '{"id": "Ann"}')
    assert refused.value.exit_code is ExitCode.USAGE
    assert "Ann" not in str(refused.value)


def test_a_key_is_of_every_changelog_with_these_columns_in_any_case() -> None:
    assert fitting('{"ID": 1}', [PEOPLE, LINES]) == [PEOPLE]
    assert fitting('{"id": 1, "shop": null}', [PEOPLE, LINES]) == [LINES]


class _Began(Exception):
    """A session would start."""


def test_a_key_of_a_changelog_without_a_sync_is_one_of_the_report_of_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Opened:
        manifest, chosen = None, [SimpleNamespace(sync=SimpleNamespace(changelog=LINES))]

        def __enter__(self) -> None:
            raise _Began

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(looking, "Opened", lambda *_: Opened())
    monkeypatch.setattr(looking, "Place", lambda *_: None)
    monkeypatch.setattr(reading, "changelogs", lambda _: [PEOPLE, LINES])
    monkeypatch.chdir(tmp_path)

    def report(*selected: str) -> None:
        cli.main(["report", "--key", '{"id": 1}', *selected], standalone_mode=False, obj={})

    with pytest.raises(_Began):
        report()
    with pytest.raises(ConfigurationError, match="expected the key of a chosen changelog: lines"):
        report("--select", "crm")


def test_no_delivery_is_asked_for_where_no_sync_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    spark = SimpleNamespace(sql=lambda query: asked.append(query) or SimpleNamespace(collect=list))
    head = SimpleNamespace(columns=[("id", "bigint")], key=["id"], changelog="u")
    monkeypatch.setattr(key_reading, "stored_key", lambda *_: OneRow('{"id":1}', 1))
    pusher: Any = SimpleNamespace(head=lambda _: head, spark=spark, ledger=SimpleNamespace(relation="ledger"))
    read_keys(pusher, [PEOPLE], {PEOPLE.unique_id: {}}, ['{"id": 1}'], show_values=False)
    assert ["from ledger" in one for one in asked] == [False]


def test_a_changelog_without_a_sync_or_a_table_has_a_history_without_changes() -> None:
    def head(_: str) -> Any:
        raise ReverseEtlError(Problem("people", "no table", "one", "dbt run"))

    pusher: Any = SimpleNamespace(head=head)
    found = read_keys(pusher, [PEOPLE], {PEOPLE.unique_id: {}}, ['{"id": 1}'], show_values=False)
    assert found == [KeyHistory("people", '{"id": 1}', [])]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("12345678901234567.01", "12345678901234567.02"),
        ("0.1000000000000000000000000000000000001", "0.1000000000000000000000000000000000002"),
        ("99999999999999999999999999999999999998", "99999999999999999999999999999999999999"),
        ('[{"a":12345678901234567.01}]', '[{"a":12345678901234567.02}]'),
        ("[-0.0]", "[0.0]"),
        ('"NaN"', "1.5"),
        ("null", "0"),
    ],
)
def test_an_update_names_its_column_whatever_digit_changed_and_no_other_and_a_hash_is_text(
    before: str, after: str
) -> None:
    def row(change: str, value: str, row_hash: int) -> Any:
        text = f'{{"id":1,"same":0.10,"nothing":"NaN","x":{value}}}'
        about = {"_snapshot_id": 2, "_captured_at": datetime(2026, 1, 1), "_row_hash": row_hash}
        return SimpleNamespace(_change=change, _row=text, **about)

    hashes = (303225653196540929, -303225653196540931)
    rows = [row("update_preimage", before, hashes[0]), row("update_postimage", after, hashes[1])]
    [found] = changes(rows, show_values=False)
    assert found.columns == ("x",)
    assert (found.before_hash, found.after_hash) == tuple(map(str, hashes)), "JavaScript rounds numbers beyond 2^53"
