"""A sync that was renamed, moved, swapped or switched off: what it delivered is taken over, or given up, and never left without a word."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import pytest

from dbt_reverse_etl.app.identity import former_of, id_of, left_elsewhere, renamed, written_name
from dbt_reverse_etl.base.errors import ConfigurationError, ExitCode
from dbt_reverse_etl.delivery.facts import BUCKETS, Range, RunStarted
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.warehouse.overview import Overview
from tests.support.config.loaded import resolve
from tests.support.config.written import Written
from tests.support.effort import scaled

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Kept:
    """What the ledger keeps of a sync that was pushed."""

    started: RunStarted
    state: State


class Ledger:
    """A plain list of what was delivered where; `older`: it was written by the version before, without exposures."""

    def __init__(self, *, older: bool = False) -> None:
        self.kept: dict[str, Kept] = {}
        self._older, self._runs = older, 0
        self.aliases: dict[str, set[str]] = {}

    def push(self, written: Written, *, nothing: bool = False) -> None:
        self._runs += 1
        one, at = id_of(written.resolved), NOW + timedelta(hours=self._runs)
        places = (Range(0, BUCKETS, 0 if nothing else 1, "s"),)
        exposure = "" if self._older else written.resolved.sync.position_of
        started = RunStarted(one, 1, "r", at, 1, "s", {}, places, (), (), at, "o", sync=written.name, exposure=exposure)
        state = State(fence=1, changelog=written.changelog, positions=places, status="succeeded")
        self.kept[one] = Kept(started, state)
        self.aliases.setdefault(one, set()).add(written.name)

    def overview(self, *configured: Written) -> Overview:
        return Overview(
            {one: kept.state for one, kept in self.kept.items()},
            started={one: kept.started for one, kept in self.kept.items()},
            configured=frozenset(id_of(written.resolved) for written in configured),
            aliases=self.aliases,
        )


CRM = Written("crm_contacts")


def offered(ledger: Ledger, now: Written, *others: Written) -> str | None:
    """What `renamed_from` is to say; None: the sync begins anew, or goes on."""
    overview = ledger.overview(now, *others)
    if id_of(now.resolved) in ledger.kept:
        return None
    former = former_of(now.resolved, now.changelog, overview)
    if former is None:
        return None
    name = written_name(now.resolved, former)
    assert replace(now, renamed_from=name).resolved.sync.position_of == former.exposure, "it does what it promises"
    assert id_of(replace(now, renamed_from=name).resolved) in ledger.kept
    return name


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("older", [False, True], ids=["this version", "the version before"])
@pytest.mark.parametrize(
    ("now", "others", "name"),
    [
        (CRM, (), None),
        (replace(CRM, name="crm_people"), (), "crm_contacts"),
        (replace(CRM, name="crm_people"), (CRM,), None),
        (replace(CRM, name="crm_people", renamed_from="crm_cntacts"), (), "crm_contacts"),
        (replace(CRM, name="crm_people", renamed_from="crm_contacts"), (), None),
        (replace(CRM, name="crm_people", object="people"), (), None),
        (replace(CRM, name="crm_people", file="other.db"), (), None),
        (replace(CRM, name="crm_people", changelog="uuid-2"), (), None),
        (replace(CRM, name="crm_people", entry="crm_2"), (), "crm_contacts"),
        (replace(CRM, entry="crm_2"), (), None),
        (replace(CRM, object="people"), (), None),
    ],
    ids=["as before", "renamed", "beside it", "renamed_from misspelt", "renamed_from", "another object", "another system",
         "another changelog", "renamed with its destination", "a renamed destination", "moved"],
)  # fmt: skip
def test_a_sync_that_would_leave_its_rows_behind_is_offered_its_former_name(
    older: bool, now: Written, others: tuple[Written, ...], name: str | None
) -> None:
    ledger = Ledger(older=older)
    ledger.push(CRM)
    assert offered(ledger, now, *others) == name


def test_two_syncs_that_swap_names_are_offered_each_others_and_one_that_is_switched_off_is_not_there() -> None:
    people, ledger = Written("crm_people", object="people"), Ledger()
    ledger.push(CRM)
    ledger.push(people)
    one, other = replace(CRM, object="people"), replace(people, object="contacts")
    assert (offered(ledger, one, other), offered(ledger, other, one)) == ("crm_people", "crm_contacts")
    assert offered(ledger, replace(CRM, name="second"), people) == "crm_contacts", "whose exposure is not enabled"


def test_a_renamed_project_is_offered_its_former_one_and_an_older_ledger_says_at_least_that_rows_stay() -> None:
    ledger = Ledger()
    ledger.push(CRM)
    store = replace(CRM, project="store")
    assert offered(ledger, store) == "shop.crm_contacts"
    older = Ledger(older=True)
    older.push(CRM)
    assert offered(older, store) is None
    assert "the rows delivered there stay there" in left_elsewhere(store.resolved, older.overview(store), State())


def test_a_position_that_holds_nothing_stops_nobody_and_the_newest_of_several_is_offered() -> None:
    ledger = Ledger()
    ledger.push(CRM, nothing=True)
    assert offered(ledger, replace(CRM, name="second")) is None, "it was forgotten"
    ledger.push(replace(CRM, name="a"))
    ledger.push(replace(CRM, name="b"))
    ledger.push(replace(CRM, name="c"))
    ledger.push(replace(CRM, name="b"))
    assert offered(ledger, replace(CRM, name="second")) == "b"


def test_once_renamed_from_is_removed_the_position_is_still_found() -> None:
    for older in (False, True):
        ledger = Ledger(older=older)
        ledger.push(CRM)
        ledger.push(replace(CRM, name="crm_people", renamed_from="crm_contacts"))
        assert offered(ledger, replace(CRM, name="crm_people")) == "crm_contacts"
        twice = replace(CRM, name="crm_persons", renamed_from="crm_people")
        assert offered(ledger, twice) == "crm_contacts", "it is kept at later renames"


def test_rows_of_another_changelog_at_the_same_place_are_said_and_stop_nobody() -> None:
    ledger = Ledger()
    ledger.push(CRM)
    now = replace(CRM, name="crm_people", changelog="uuid-2")
    assert left_elsewhere(now.resolved, ledger.overview(now), State()) == (
        "crm_contacts, which is no sync of this project, delivered rows of another changelog there; they stay there"
    )
    other = replace(now, project="store")
    assert left_elsewhere(other.resolved, ledger.overview(other), State()).startswith(
        "shop.crm_contacts, which is no sync of this project, "
    ), "the other project may have it still"
    assert left_elsewhere(now.resolved, ledger.overview(now, CRM), State()) == ""


def test_a_sync_that_only_an_upgrade_moved_is_given_the_way_out_before_and_after_its_rows_are_sent() -> None:
    ledger = Ledger()
    here = replace(CRM, type="singer")
    ledger.push(here)
    moved = replace(here, file="other.db")
    planned = left_elsewhere(moved.resolved, ledger.overview(moved), State(), planned=True)
    pushed = left_elsewhere(moved.resolved, ledger.overview(moved), State())
    for said in (planned, pushed):
        assert "the rows delivered there stay there. If you changed none of them, an upgrade" in said
    assert "run the operation adopt now" in planned
    assert "run adopt" not in pushed, "every row is sent already"
    assert pushed.endswith(
        "rows that left the model since the last push before it are still there: delete them yourself"
    )


@pytest.mark.parametrize(
    ("status", "fence", "snapshots", "is_offered"),
    [
        ("failed", 1, (0, 0), True),
        ("failed", 1, (0, 1), True),
        ("succeeded", 1, (1, 1), False),
        ("forget", 1, (0, 0), False),
        ("failed", 5, (0, 0), False),  # a resync or a forget may have made it begin there
    ],
)
def test_the_way_out_stays_after_a_first_push_that_did_not_send_every_row(
    status: str, fence: int, snapshots: tuple[int, int], *, is_offered: bool
) -> None:
    ledger = Ledger()
    ledger.push(replace(CRM, type="singer"))
    moved = replace(CRM, type="singer", file="other.db")
    ledger.push(moved, nothing=True)
    places = (Range(0, 9, snapshots[0], "s"), Range(9, BUCKETS, snapshots[1], "s"))
    state = State(fence=fence, changelog=moved.changelog, positions=places, status=status)
    said = left_elsewhere(moved.resolved, ledger.overview(moved), state, planned=True)
    assert ("run the operation adopt now" in said) == is_offered


def test_rows_of_the_same_changelog_are_none_of_another_one() -> None:
    ledger = Ledger()
    ledger.push(CRM)
    other = replace(CRM, name="crm_b")
    for changelog, is_said in ((other.changelog, False), ("another", True)):
        state = State(fence=1, changelog=changelog, status="failed")
        said = left_elsewhere(other.resolved, ledger.overview(other), state)
        assert ("delivered rows of another changelog" in said) == is_said


def test_no_adopt_is_offered_to_a_sync_whose_place_no_upgrade_names_otherwise() -> None:
    """It is empty, or another database: an adopt would count all rows as delivered."""
    ledger = Ledger()
    ledger.push(CRM)
    moved = replace(CRM, file="other.db")
    destination = moved.resolved.destination
    named = destination.settings.model_copy(update={"identity": "prod2"})
    singer = moved.resolved._replace(destination=replace(destination, type="singer", settings=named))
    for resolved in (moved.resolved, singer):
        for planned in (True, False):
            said = left_elsewhere(resolved, ledger.overview(moved), State(), planned=planned)
            assert said.endswith("the rows delivered there stay there")


def test_the_stop_says_what_each_way_out_does() -> None:
    ledger = Ledger()
    ledger.push(CRM)
    now = replace(CRM, name="crm_people")
    former = former_of(now.resolved, now.changelog, ledger.overview(now))
    assert former is not None
    stop = renamed(now.resolved, former)
    assert stop.exit_code is ExitCode.OTHER_CHANGELOG
    for words in (
        "renamed_from: crm_contacts takes the position over",
        "forget --args '{sync: crm_contacts}'",
        "stay there",
    ):
        assert words in str(stop)


@pytest.mark.guarantee("Configuration")
def test_two_syncs_never_have_one_position() -> None:
    taken = replace(CRM, name="crm_people", renamed_from="crm_contacts")
    syncs = [one.resolved.sync for one in (CRM, taken)]
    with pytest.raises(
        ConfigurationError, match=r"renamed_from: found 'crm_contacts', whose position crm_contacts has"
    ):
        resolve(syncs, {"crm": CRM.resolved.destination})
    one, other = (
        replace(CRM, renamed_from="crm_people"),
        Written("crm_people", object="people", renamed_from="crm_contacts"),
    )
    assert len(resolve([one.resolved.sync, other.resolved.sync], {"crm": CRM.resolved.destination})) == 2


@pytest.mark.guarantee("Configuration")
def test_in_random_histories_of_a_project_no_mirrored_object_is_left_to_nobody_without_a_word() -> None:
    """An object is left if a sync of the same changelog begins anew there, while one that is gone had delivered to it."""
    stops = 0
    for seed in range(scaled(1000)):
        rnd, ledger = random.Random(seed), Ledger(older=seed % 2 == 0)
        project: dict[str, Written] = {}  # by object
        delivered: dict[str, tuple[str, str]] = {}  # object -> the name under which it is kept, the changelog
        for step in range(12):
            target = rnd.choice(["contacts", "people", "orders"])
            free = [name for name in "abcd" if name not in {one.name for one in project.values()}]
            if rnd.random() < 0.2:
                project.pop(target, None)
            elif rnd.random() < 0.3 and len(project) > 1:
                one, other = rnd.sample(sorted(project), 2)
                project[one], project[other] = (replace(project[b], object=a) for a, b in ((one, other), (other, one)))
            elif free:
                now = project.get(target, Written("", object=target, changelog=rnd.choice(["u1", "u2"])))
                project[target] = replace(now, name=rnd.choice(free), entry=rnd.choice(["crm", "crm_2"]))
            for one in project.values():
                known = delivered.get(one.object)
                begins_anew = known is None or known[0] != one.name
                others = [other for other in project.values() if other is not one]
                wanted = known[0] if known and begins_anew and known[1] == one.changelog else None
                is_new = id_of(one.resolved) not in ledger.kept
                found = offered(ledger, one, *others)
                if is_new:
                    assert found == wanted, f"seed {seed}, step {step}: {one}"
                stops += found is not None
                if found is None and (not is_new or known is None):
                    ledger.push(one)
                    delivered[one.object] = (one.name, one.changelog)
    assert stops > 100
