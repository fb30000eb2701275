"""What a sync sends, as the ledger keeps it: over versions of this package, and over fields that come and go."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from unittest.mock import Mock

import pytest

from dbt_reverse_etl.app.sync import OneSync
from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.delivery.facts import BUCKETS, Range
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.warehouse.spec import Spec, given_spec, resolve
from tests.support.delivery.pushers import sync as a_sync


def spec(*fields: tuple[str, str], stopped: tuple[str, ...] = ()) -> Spec:
    """Each field by its name and type."""
    return Spec(tuple((name, name, kind) for name, kind in fields), None, Mode.MIRROR, "given", stopped)


ID, A, B = ("id", "int"), ("a", "int"), ("b", "string")


@pytest.mark.guarantee("What is sent")
def test_every_row_is_sent_where_an_earlier_mode_sent_events_in_place_of_rows_or_only_some_operations() -> None:
    again = {
        (before.value, now.value)
        for before in Mode
        for now in Mode
        if replace(spec(ID, A), mode=now).sends_all_after(replace(spec(ID, A), mode=before))
    }
    kept = ("upsert", "mirror")
    events = {("changelog", mode) for mode in (*kept, "update_only")} | {
        (mode, "changelog") for mode in (*kept, "update_only", "insert_only")
    }
    some = {(one, mode) for one in ("insert_only", "update_only") for mode in (*kept, "changelog")}
    assert again == events | some | {("insert_only", "update_only")}


@pytest.mark.guarantee("What is sent")
def test_a_spec_of_an_older_ledger_reads_as_before_and_keeps_its_id() -> None:
    fields = [["id", "id", "int"], ["a", "a", "int"]]
    stored = json.dumps({"fields": fields, "where": None, "mode": "mirror", "given": "given"})
    assert Spec.of(stored) == spec(ID, A)
    assert Spec.of(stored).text == stored
    assert Spec.of(stored).id == hashlib.sha256(json.dumps([fields, None, "mirror"]).encode()).hexdigest()[:16]


def test_a_filter_that_depends_on_the_time_zone_is_another_one_in_another_zone() -> None:
    here, there = (replace(spec(ID), where="t > '2024-01-31'", zone=zone) for zone in ("UTC", "Asia/Tokyo"))
    assert Spec.of(there.text) == there
    assert len({here.id, there.id, replace(here, zone="").id}) == 3


def test_a_spec_remembers_what_earlier_ones_sent_until_it_sends_that_again() -> None:
    narrow = spec(ID, A).after([spec(ID, A, B)])
    assert narrow == replace(spec(ID, A, stopped=("b",)), turn=1)
    assert Spec.of(narrow.text) == narrow
    assert narrow.id != spec(ID, A).id
    assert spec(ID).after([narrow]).stopped == ("a", "b")
    assert spec(ID, A, B).after([narrow]).stopped == ()
    assert spec(ID, A).after([spec(ID, A)]) == spec(ID, A)


@pytest.mark.guarantee("What is sent")
def test_a_spec_that_comes_again_after_another_one_has_its_own_id_and_one_that_goes_on_keeps_it() -> None:
    """An event id is made of it, and a destination that remembers ids would drop the row that is made again."""
    here, there = replace(spec(ID, A), where="country = 'US'"), replace(spec(ID, A), where="country = 'FR'")
    seen = [here.after([])]
    for wanted in (there, here, there):
        seen.append(wanted.after([seen[-1]]))
        assert wanted.after([seen[-2], seen[-1]]) == seen[-1], "a crash left keys at the spec before"
        assert wanted.after([seen[-1]]) == Spec.of(seen[-1].text) == seen[-1]
    assert len({one.id for one in seen}) == 4
    places = seen[:2]
    for wanted in (here, there):
        taken_back = wanted.after(places)
        assert taken_back.id not in {one.id for one in places}, "half way: rows that were deleted are made again"
        places.append(taken_back)


@pytest.mark.parametrize(
    ("earlier", "now", "resumed"),
    [
        (spec(ID, A, stopped=("b",)), spec(ID, A, B), True),
        (spec(ID, A, stopped=("b",)), spec(ID, A, stopped=("b",)), False),
        (spec(ID, A), spec(ID, A, B), False),
        (spec(ID, A), spec(ID, ("a", "bigint")), False),
        (spec(ID, ("a", "bigint")), spec(ID, A), True),
        (spec(ID, A), spec(ID, ("a", "string")), True),
        (spec(ID, ("a", "decimal(5,2)")), spec(ID, ("a", "decimal(9,3)")), False),
        (spec(ID, ("a", "float")), spec(ID, ("a", "double")), True),
        (spec(ID, ("firstname", "string")), spec(ID, ("firstName", "string")), True),
        (spec(ID, ("firstName", "string"), ("firstname", "string")), spec(ID, ("firstName", "string")), False),
    ],
    ids=[
        "comes back",
        "stays away",
        "new",
        "wider",
        "narrower",
        "another type",
        "wider decimal",
        "float as a double",
        "another case",
        "one of two cases goes",
    ],
)
def test_what_the_destination_holds_is_not_known_where_a_field_comes_back_or_has_a_type_that_its_values_do_not_fit(
    earlier: Spec, now: Spec, *, resumed: bool
) -> None:
    assert now.resumes(earlier) is resumed
    assert earlier.seen_by(now).fields == tuple(field for field in earlier.fields if field[1] in now.names)


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        (
            "options.key: json",
            "options.key: raw",
            "found id (options.key: raw) as the key; expected id (options.key: json)",
        ),
        ("options.key: raw", "options.key: raw", ""),
        (None, "options.key: raw", ""),
        ("", "", ""),
    ],
    ids=["another", "the same", "of an older version", "of a destination without options for it"],
)
def test_another_form_of_the_key_is_refused_but_not_after_an_older_version_which_did_not_keep_it(
    before: str | None, now: str, refused: str
) -> None:
    earlier, spec_now = (replace(spec(ID, A), key_form=form) for form in (before, now))
    assert Spec.of(earlier.text).key_form == (before or None)
    assert earlier.id == spec_now.id == spec(ID, A).id
    sync = Mock(_changelog=Mock(key=("id",)))
    if refused:
        with pytest.raises(ConfigurationError, match=re.escape(refused)):
            OneSync._refuse_another_key(sync, spec_now, [earlier])
    else:
        OneSync._refuse_another_key(sync, spec_now, [earlier])


@pytest.mark.guarantee("What is sent", "With another number of partitions every row is sent to its new place")
def test_after_another_place_of_the_keys_every_row_is_sent_but_not_after_an_older_version_which_did_not_keep_it() -> (
    None
):
    def pushed(place: str, earlier: Spec) -> tuple[Spec, list[Range]]:
        """The spec of a push with this place, where everything was delivered by the earlier one; and what it sends whole."""
        at = Range(0, BUCKETS, 7, earlier.id)
        state = State(1, "c", (at,), specs={earlier.id: earlier.text})
        sync = Mock(state=state, _earlier=[earlier], _settings=Mock(fields={}, where=None, mode=earlier.mode))
        sync.sink = Mock(key_form=lambda _: "options.key: json", key_place=lambda _: place)
        now = OneSync._spec(sync, Mock(changelog="c", snapshot=7))
        return now, SyncPush._unsure(state, now)

    before = spec(ID, A)
    before = replace(before, given=given_spec(Mock(fields={}, where=None, mode=before.mode)))
    first, sent = pushed("options.partitions: 12", before)
    assert (first.id, first.key_place, sent) == (before.id, "options.partitions: 12", [])
    same, sent = pushed("options.partitions: 12", first)
    assert (same.id, sent) == (first.id, [])
    for place in ("options.partitions: 24", "options.partitions: 12"):
        moved, sent = pushed(place, first)
        assert (moved.id != first.id, len(sent)) == (True, 1)
        assert moved.after([moved, first]) == moved, "a crash left keys at the spec before"
        assert Spec.of(moved.text).key_place == place
        first = moved


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("column", ["_before", "_Before"])
def test_a_column_that_each_event_has_beside_its_fields_is_refused_where_events_are_sent(
    monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    monkeypatch.setattr(Spec, "arrow_schema", lambda _: None)  # it asks Spark
    columns = [("id", "int"), (column, "string")]
    with pytest.raises(ConfigurationError) as caught:
        resolve(Mock(), a_sync("people", "people", mode="changelog").sync, columns)
    (problem,) = caught.value.problems
    assert f"fields: found {column}; expected names that no event has beside its fields. Next: map it" in str(problem)
    mapped = a_sync("people", "people", mode="changelog", fields={"id": "id", column: "former"})
    assert resolve(Mock(), mapped.sync, columns).names == {"id", "former"}
    assert resolve(Mock(), a_sync("people", "people", mode="mirror").sync, columns).names == {"id", column}
