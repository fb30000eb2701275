"""Old specs over columns that came back with another type: what they saw is in another column, or nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from dbt_reverse_etl.delivery.facts import BUCKETS, Range
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.warehouse.head import Head
from dbt_reverse_etl.warehouse.pending import Pending
from dbt_reverse_etl.warehouse.spec import Spec

OLD = Spec((("id", "id", "int"), ("profile", "profile", "struct<a:int>")), "status = 'active'", Mode.MIRROR)
NOW = Spec((("id", "id", "int"), ("profile", "profile", "string")), "status = 1", Mode.MIRROR)
TYPES = {"id": "int", "profile": "string", "status": "bigint"}


def head(*former: str, **types: str) -> Head:
    """A head at snapshot 9 of a table that has these columns of former types beside those of the model."""
    columns = tuple((TYPES | types).items())
    return Head(9, "uuid", 1, 1, ("id",), columns, "dev", "0", present=(*(TYPES | types), *former))


def seen(head: Head, snapshot: int, spec: Spec = OLD) -> tuple[list[Any], str | None]:
    found = head.spec_at(spec.projection, snapshot)
    return [field["column"] for field in found["fields"]], found["where"]


@pytest.mark.guarantee("What is sent")
def test_an_old_spec_reads_a_column_that_came_back_with_another_type_where_its_former_values_are() -> None:
    renamed = head("profile_before_5", "status_before_5")
    where = "exists(array(`status_before_5`), `status` -> status = 'active')"
    assert seen(renamed, 4) == (["id", "profile_before_5"], where)
    assert seen(renamed, 5, NOW) == (["id", "profile"], "status = 1"), "at its return it has the new type"


def test_of_several_returns_the_first_after_the_snapshot_of_the_spec_counts_and_never_a_column_of_the_model() -> None:
    twice = head("profile_before_5", "profile_before_8", "profile_before_3")
    assert seen(twice, 4)[0] == ["id", "profile_before_5"]
    assert seen(twice, 6)[0] == ["id", "profile_before_8"]
    assert seen(head(profile_before_5="string", profile="struct<a:int>"), 4)[0] == ["id", "profile"]


def test_what_nothing_is_left_of_is_null_in_an_old_spec_and_a_wider_type_is_none() -> None:
    assert seen(head(), 4)[0] == ["id", None]
    assert seen(head(profile="struct<a:int>", id="bigint"), 4)[0] == ["id", "profile"]
    lost = Spec(OLD.fields, "profile.a > 0", Mode.MIRROR)
    assert seen(head(), 4, lost)[1] == "exists(array(cast(null as struct<a:int>)), `profile` -> profile.a > 0)"
    assert seen(head("profile_before_5"), 0)[1] == "false", "at 0 nothing was delivered"


def test_pending_compares_what_was_delivered_before_the_return_by_the_former_values() -> None:
    specs = {OLD.id: OLD.text, NOW.id: NOW.text}
    places = (Range(0, 100, 4, OLD.id), Range(100, 200, 9, NOW.id), Range(200, BUCKETS, 0, OLD.id))
    state = State(1, "uuid", places, specs=specs)
    text = Pending("log", head("profile_before_5", "status_before_5"), "s", NOW.id, NOW, state).sql(None)
    assert "to_json(`profile_before_5`," in text
    assert "to_json(`profile`," not in text, "over a string that is an error of Spark"
    assert "status = 'active'" not in text.replace("`status` -> status = 'active'", "")
    assert "when 1 then" in text
    assert "when 2 then" not in text, "two specs are computed, for at 0 nothing is held"
