"""What keeps `prune` from the newest full image, and what it says to do: a sync to push first, or a published view."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros

IMAGES, HEAD = (1, 7, 11), 11


def said(
    syncs: Mapping[str, int],
    *,
    understood: bool = True,
    publish: str | None = None,
    exists: str | None = None,
    elsewhere: Sequence[str] = (),
    former: Mapping[str, int] | None = None,
    **how: Any,
) -> str:
    """The words of a prune of a changelog with full images at IMAGES, where syncs need these snapshots.

    Snapshot 3 was published as `shown`; `publish` is the setting, and `exists` the type of what has that name.
    `elsewhere` are the ids of syncs that the ledger does not know; `former` what these syncs need where they pushed to before.
    """

    def answer(query: str) -> Sequence[Mapping[str, Any]]:
        if found := re.search(r"max\(_header\.base\).* <= (\d+)$", query):
            return [{"base": max(image for image in IMAGES if image <= int(found[1]))}]
        assert "count_if" in query, query
        below = int(re.search(r"_snapshot_id < (\d+)", query)[1]) - 1  # type: ignore[index]
        return [{"snapshots": below, "rows": below, "first": 1, "last": below}]

    head = {"snapshot_id": HEAD, "changed": HEAD, "undone": []}
    facts = {"understood": understood}
    over = [{"sync": name, "sync_id": f"id-{name}", "snapshot_id": at, **facts} for name, at in syncs.items()]
    over += [
        {"sync": name, "sync_id": f"before-{name}", "snapshot_id": at, **facts} for name, at in (former or {}).items()
    ]
    over += [
        {"sync": name, "sync_id": name, "snapshot_id": 1, "understood": True, "is_elsewhere": True}
        for name in elsewhere
    ]
    node = SimpleNamespace(
        database=None, schema="shop", config={"meta": {"reverse_etl": {"publish": publish} if publish else {}}}
    )
    found = SimpleNamespace(type=exists) if exists else None
    macros: Any = Macros(
        answer,
        adapter=SimpleNamespace(get_relation=lambda database, schema, identifier: found),
        api=SimpleNamespace(Relation=SimpleNamespace(create=SimpleNamespace)),
    )
    macros._macros.update(
        _opened_changelog=lambda *_: {"name": "people", "target": "shop.people", "head": head, "node": node},
        _published=lambda _: {"snapshot_id": 3, "view": "shown"},
        _savepoints=lambda _: {},
        _syncs_over=lambda _: [{"is_asked": False, "is_elsewhere": False, **one} for one in over],
    )
    macros.prune("people", **{"keep": 1, "dry_run": True, **how})
    (line,) = macros.logged
    return str(line)


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("syncs", "words"),
    [
        ({"crm": 10}, "needs snapshot 10; the newest full image at or before it is snapshot 7; push the sync crm first, or leave out with without_syncs what is gone: snapshot 11 "),
        ({"crm": 5}, "prune people: nothing to do: the sync crm (id-crm) needs snapshot 5; the newest full image at or before it is snapshot 1; push the sync crm first"),
        ({"crm": 10, "ads": 9, "shop": 11}, "; push the syncs crm, ads first, or leave out with without_syncs what is gone: snapshot 11 holds a full image"),
    ],
)  # fmt: skip
def test_a_prune_that_a_sync_keeps_from_the_newest_full_image_names_the_sync_to_push_first(
    syncs: dict[str, int], words: str
) -> None:
    assert words in said(syncs)


def test_no_push_is_asked_for_that_would_not_help() -> None:
    assert "would remove 10 snapshots (1 to 10)" in (pushed := said({"crm": 11}))
    assert "first" not in pushed
    assert "first" not in said({"crm": 10}, keep=3), "the other need keeps the same image"
    assert "first" not in said({"crm": 10}, understood=False), "no push of ours understands it"
    assert "push the sync crm first, or leave out with without_syncs what is gone: snapshot 7 " in said(
        {"crm": 5}, keep=3
    )


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("publish", "exists", "is_kept"),
    [("shown", "view", True), ("shown", None, True), (None, "view", True), (None, None, False), (None, "table", False)],
)
def test_what_was_published_is_kept_while_the_setting_or_the_view_is_there(
    publish: str | None, exists: str | None, *, is_kept: bool
) -> None:
    assert ("the published view shown needs snapshot 3" in said({}, publish=publish, exists=exists)) is is_kept


def over(ledger: Sequence[str] | None, marks: Sequence[str]) -> list[str]:
    """The syncs that a prune asks about, `!` before those of another ledger: some have run here, or there is no ledger, and the changelog names some."""

    def answer(query: str) -> Sequence[Mapping[str, Any]]:
        if query.startswith("select distinct _header.label from shop.people where"):
            return [{"label": name} for name in marks]
        if query.startswith("select sync_id, max(fence)"):
            return [{"sync_id": name, "fence": 1} for name in ledger or ()]
        if query.startswith("with facts"):
            return [
                {"sync_id": name, "sync": f"of {name}", "snapshot_id": 9, "understood": True} for name in ledger or ()
            ]
        return []

    node = SimpleNamespace(database=None, schema="shop", alias="ledger")
    found = None if ledger is None else "shop.ledger"
    macros: Any = Macros(
        answer,
        graph=SimpleNamespace(nodes={"model.reverse_etl.reverse_etl_ledger": node}),
        adapter=SimpleNamespace(get_relation=lambda database, schema, identifier: found),
    )
    asked = macros._syncs_over({"target": "shop.people", "head": SimpleNamespace(changelog_uuid="u")})
    return [("!" if one.get("is_elsewhere") else "") + one["sync_id"] for one in asked]


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("ledger", "marks", "asked"),
    [
        (["crm"], ["crm"], ["crm"]),
        (["crm"], ["ads", "crm"], ["crm", "!ads"]),
        ([], ["crm"], ["!crm"]),
        (None, ["crm"], ["!crm"]),
        (["crm"], [], ["crm"]),
        (None, [], []),
    ],
)
def test_a_sync_that_the_changelog_names_and_the_ledger_does_not_know_is_asked_about(
    ledger: list[str] | None, marks: list[str], asked: list[str]
) -> None:
    assert over(ledger, marks) == asked


@pytest.mark.guarantee("Capture")
def test_a_sync_of_another_ledger_keeps_all_history_until_it_is_given_up() -> None:
    kept = said({"ads": 11}, elsewhere=["id-crm"])
    assert "nothing to do: the sync with the id id-crm, whose runs are in another ledger (" in kept
    assert "needs snapshot 1" in kept
    assert "push the sync" not in kept, "no push over this ledger moves it"
    assert "would remove 10 snapshots" in said({"ads": 11}, elsewhere=["id-crm"], without_syncs=["id-crm"])


@pytest.mark.guarantee("Capture")
def test_a_position_at_a_former_place_is_given_up_by_its_id_alone() -> None:
    assert "nothing to do: the sync crm (before-crm) needs snapshot 2" in said({"crm": 11}, former={"crm": 2})
    with pytest.raises(CompilationError, match=r"the name of 2 positions; expected ids .*\(id-crm, before-crm; "):
        said({"crm": 11}, former={"crm": 2}, without_syncs="crm")
    assert "would remove 10 snapshots" in said({"crm": 11}, former={"crm": 2}, without_syncs=["before-crm"])
