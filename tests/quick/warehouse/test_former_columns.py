"""Old specs over columns that came back with another type: what they saw is in another column, or nowhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest

from dbt_reverse_etl.base.sql import quoted
from dbt_reverse_etl.delivery.facts import BUCKETS, Range
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.warehouse.head import Head, read_head
from dbt_reverse_etl.warehouse.pending import Pending
from dbt_reverse_etl.warehouse.spec import Spec

OLD = Spec((("id", "id", "int"), ("profile", "profile", "struct<a:int>")), "status = 'active'", Mode.MIRROR)
NOW = Spec((("id", "id", "int"), ("profile", "profile", "string")), "status = 1", Mode.MIRROR)
TYPES = {"id": "int", "profile": "string", "status": "bigint"}
STRUCT = "struct<a:int>"


def head(former: Mapping[str, str] = MappingProxyType({}), **types: str) -> Head:
    """A head at snapshot 9 of a table that has these columns of former types beside those of the model."""
    present = TYPES | types
    return Head(9, "uuid", 1, 1, ("id",), (*present.items(),), "0", present=lambda: {**present, **former})


def seen(head: Head, snapshot: int, spec: Spec = OLD) -> tuple[list[Any], str | None]:
    found = head.spec_at(spec.projection, snapshot)
    return [field["column"] for field in found["fields"]], found["where"]


def where(text: str, **former: str) -> str | None:
    """A filter of snapshot 4 after columns were put aside."""
    return seen(head(former), 4, Spec((("id", "id", "int"),), text, Mode.MIRROR))[1]


@pytest.mark.guarantee("What is sent")
def test_an_old_spec_reads_a_column_that_came_back_with_another_type_where_its_former_values_are() -> None:
    renamed = head({"profile_before_5": STRUCT, "status_before_5": "string"})
    assert seen(renamed, 4) == (["id", "profile_before_5"], "`status_before_5` = 'active'")
    assert seen(renamed, 5, NOW) == (["id", "profile"], "status = 1"), "at its return it has the new type"


def test_of_several_returns_the_first_after_the_snapshot_of_the_spec_counts_and_never_a_column_of_the_model() -> None:
    twice = head({"profile_before_5": STRUCT, "profile_before_8": "date", "profile_before_3": "string"})
    assert seen(twice, 4)[0] == ["id", "profile_before_5"]
    dated = Spec((("profile", "profile", "date"),), None, Mode.MIRROR)
    assert seen(twice, 6, dated)[0] == ["profile_before_8"]
    assert where("n = 1", n_before_8="date", n_before_5="string") == "`n_before_5` = 1"
    returned = head({"profile_before_5": STRUCT, "profile_before_8": "string"}, profile=STRUCT)
    assert seen(returned, 4)[0] == ["id", "profile_before_5"], "the type of now is that of then, and was another one"
    assert seen(head(profile_before_5="string", profile=STRUCT), 4)[0] == ["id", "profile"]


@pytest.mark.parametrize(
    ("name", "kind", "snapshot"),
    [
        ("profile_before_2024", STRUCT, 4),
        ("profile_before_11", STRUCT, 4),
        ("profile_before_7", "string", 4),
        ("profile_before_7", STRUCT, 4),
        ("profile_before_5", STRUCT, 8),
    ],
)
def test_a_column_that_is_only_called_like_a_former_one_is_none(name: str, kind: str, snapshot: int) -> None:
    model = head({name: kind}, profile=STRUCT, status="string")
    assert seen(model, snapshot) == (["id", "profile"], "status = 'active'")
    both = head({name: "string", "profile_before_6": STRUCT})
    assert seen(both, 4)[0] == ["id", "profile_before_6"], "beside the former one"
    numbered = head({"profile_before_2024": STRUCT, "profile_before_6": STRUCT})
    assert seen(numbered, 4)[0] == ["id", "profile_before_6"], "its number is of no capture"


def test_a_wider_type_puts_nothing_aside_and_a_text_of_limited_length_is_a_text() -> None:
    wider = head({"status_before_6": "int"})
    counted = Spec((("status", "status", "int"),), "status = 1", Mode.MIRROR)
    assert seen(wider, 4, counted) == (["status"], "status = 1")
    short = Spec((("status", "status", "varchar(9)"),), None, Mode.MIRROR)
    assert seen(head({"status_before_6": "string"}), 4, short)[0] == ["status_before_6"]


def test_a_capture_that_was_killed_after_it_put_a_column_aside_has_the_number_after_the_head() -> None:
    gone = Head(8, "uuid", 1, 1, ("id",), (("id", "int"),), "0", captures={9: "empty"})
    killed = replace(gone, present=lambda: {"id": "int", "profile": "string", "profile_before_10": STRUCT})
    assert seen(killed, 4)[0] == ["id", "profile_before_10"]


def test_a_push_of_an_older_snapshot_reads_what_was_put_aside_after_it() -> None:
    behind = {"status_before_12": "string", "profile_before_12": STRUCT}
    asked = replace(head(behind), newest=lambda: 12)
    assert seen(asked, 4) == seen(asked, 9) == (["id", "profile_before_12"], "`status_before_12` = 'active'")
    assert seen(replace(asked, newest=lambda: 9), 4)[0] == ["id", None], "a column of the user with such a name"


def test_the_newest_snapshot_is_asked_only_where_a_column_may_have_been_put_aside_after_the_head() -> None:
    newest, present = Mock(return_value=9), Mock(return_value={})
    asked = replace(head({"status_before_9": "string"}), newest=newest)
    assert seen(asked, 4)[1] == "`status_before_9` = 'active'"
    newest.assert_not_called()
    seen(replace(asked, present=present), 0)
    present.assert_not_called()


def test_reading_a_head_asks_for_no_columns_and_using_it_asks_once() -> None:
    header = dict.fromkeys(("changelog_uuid", "package_version", "capture_uuid"), "x")
    header |= {"base": 1, "live_rows": 0, "key_columns": ["id"], "columns": [{"name": "id", "type": "int"}]}
    spark = Mock()
    spark.sql.return_value.collect.return_value = [(9, json.dumps(header))]
    spark.table.return_value.dtypes = [("id", "int"), ("profile", "string"), ("profile_before_5", STRUCT)]
    found = read_head(spark, "log", 9)
    assert found is not None
    spark.table.assert_not_called()
    assert [seen(found, 4)[0] for _ in range(2)] == [["id", "profile_before_5"]] * 2
    spark.table.assert_called_once_with("log")


@pytest.mark.parametrize("pruned", [False, True])
def test_a_head_knows_the_capture_that_made_it_also_where_later_ones_changed_nothing(pruned: bool) -> None:
    common = dict.fromkeys(("changelog_uuid", "package_version"), "x")
    common |= {"base": 1, "live_rows": 0, "key_columns": ["id"], "columns": [{"name": "id", "type": "int"}]}
    headers = {8: {**common, "changed": 7, "capture_uuid": "eighth"}, 7: {**common, "capture_uuid": "seventh"}}
    if pruned:
        del headers[7]

    def asked(text: str) -> Mock:
        rows = [(number, json.dumps(one)) for number, one in headers.items() if f"({number})" in text]
        return Mock(collect=Mock(return_value=rows))

    found = read_head(Mock(sql=asked), "log", 8)
    assert found is not None
    assert (found.snapshot, found.captures) == (7, {number: one["capture_uuid"] for number, one in headers.items()})


def test_what_nothing_is_left_of_is_null_in_an_old_spec_and_a_wider_type_is_none() -> None:
    assert seen(head(), 4)[0] == ["id", None]
    assert seen(head(profile=STRUCT, id="bigint"), 4)[0] == ["id", "profile"]
    lost = Spec(OLD.fields, "profile.a > 0", Mode.MIRROR)
    assert seen(head(), 4, lost)[1] == "cast(null as struct<a:int>).a > 0"
    assert seen(head({"profile_before_5": STRUCT}), 0)[1] == "false", "at 0 nothing was delivered"


@pytest.mark.parametrize(
    "text",
    [
        "analytics.rate(cents) > 1",
        "n_ = 1 or xn > 2 or én = 3",
        "note = 'n' or note like r'\\d n' or note = \"n\" or note = 'it\\'s n'",
        "order.n = 1 or `order`.`n` = 2 or order . n = 3 or payload:n = '1'",
        "n(cents) = 1 or n (cents) = 2 or f(n => 1)",
        "at > N '2024-01-01' and at < n'2024-02-01' or at > n \"2025-01-01\"",
        "cast(at as n) > x or at::n > x or cast(at as array<n>) is null or cast('2024-01-01' as n) < at",
        "at > interval 3 n or at > interval '3' n or at > 1.5 n",
    ],
)
def test_a_word_that_is_no_column_stays_in_an_old_filter(text: str) -> None:
    assert where(text, n_before_5="string") == text


@pytest.mark.parametrize(
    "text",
    [
        "extract(month from at) = 1 and EXTRACT( day FROM at) = 2",
        "timestampdiff(day, a, b) > 1 and dateadd(MONTH, 1, at) > x and date_diff(day, a, b) < 3",
        "at > interval '1-2' year to month and at < interval 3 day",
        "x = 1 /* don't: day */ and y = 'a' -- month",
    ],
)
def test_a_unit_or_a_comment_is_no_column(text: str) -> None:
    assert where(text, day_before_5="string", month_before_5="string") == text
    asked = "date_add(at, day) > x and month(month) = 1"
    found = where(asked, day_before_5="string", month_before_5="string")
    assert found == "date_add(at, `day_before_5`) > x and month(`month_before_5`) = 1"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("n = 1 and N > 2 or (n)<3", "F = 1 and F > 2 or (F)<3"),
        ("`n` = 'n' and n.n = 1 and n['n'] = 2", "F = 'n' and F.n = 1 and F['n'] = 2"),
        ("analytics.rate(n) > 1 and n in (1, 2)", "analytics.rate(F) > 1 and F in (1, 2)"),
        ("at > interval 3 day and n < 1 and x > 2", "at > interval 3 day and F < 1 and x > 2"),
        ("x > 3 and n > 1 and y = 'a' and n <=> 'b'", "x > 3 and F > 1 and y = 'a' and F <=> 'b'"),
        ("cast(n as string) = '1' or n::int=1", "cast(F as string) = '1' or F::int=1"),
        ("not n and case when n then n else -n end", "not F and case when F then F else -F end"),
        ("exists(a, n -> n > 1)", "exists(a, F -> F > 1)"),
    ],
)
def test_a_column_in_an_old_filter_is_read_where_its_former_values_are(text: str, wanted: str) -> None:
    assert where(text, n_before_5="string") == wanted.replace("F", "`n_before_5`")


@pytest.mark.parametrize("name", ["größe", "order id", "a`b"])
def test_a_former_column_may_have_any_name(name: str) -> None:
    assert where(f"{quoted(name)} = 1", **{f"{name}_before_5": "string"}) == f"{quoted(name + '_before_5')} = 1"


def test_pending_compares_what_was_delivered_before_the_return_by_the_former_values() -> None:
    specs = {OLD.id: OLD.text, NOW.id: NOW.text}
    places = (Range(0, 100, 4, OLD.id), Range(100, 200, 9, NOW.id), Range(200, BUCKETS, 0, OLD.id))
    state = State(1, "uuid", places, specs=specs)
    text = Pending("log", head({"profile_before_5": STRUCT, "status_before_5": "string"}), "s", NOW.id, NOW, state).sql(
        None
    )
    assert "to_json(`profile_before_5`," in text
    assert "to_json(`profile`," not in text, "over a string that is an error of Spark"
    assert "`status_before_5` = 'active'" in text
    assert " -> " not in text, "Spark takes no function of a user in a lambda"
    assert "status = 'active'" not in text
    assert "when 1 then" in text
    assert "when 2 then" not in text, "two specs are computed, for at 0 nothing is held"
