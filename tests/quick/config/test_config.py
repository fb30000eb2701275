"""Destinations and the joining of syncs with them; sinks are found in real installed distributions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import ConfigurationError, Problem
from dbt_reverse_etl.base.redaction import MASK, redact
from dbt_reverse_etl.config import sink_types
from dbt_reverse_etl.config.destinations import Destination, PlanOnly, refuse_two_owners
from dbt_reverse_etl.config.guards import Guards
from dbt_reverse_etl.config.settings import Changelog, ChangelogSettings, Sync, SyncSettings
from dbt_reverse_etl.config.sink_types import sink_of
from dbt_reverse_etl.config.validation import Place
from dbt_reverse_etl.sinks.base import Mode
from tests.support import ROOT
from tests.support.config.loaded import load_destinations, refused, resolve

CANARY = "canary-Zq7/x+9"

PLUGIN = """
from typing import Annotated, Literal
from pydantic import BaseModel, Field, SecretStr, field_validator
from dbt_reverse_etl.base.outcome import Delivery
from dbt_reverse_etl.sinks.base import Mode, Options, Settings, Sink

class Bearer(Settings):
    type: Literal["bearer"]
    token: SecretStr

class Basic(Settings):
    type: Literal["basic"]
    user: str
    password: SecretStr

class ShelfSettings(Settings):
    host: str
    port: int = 80
    pin: SecretStr | None = None
    headers: dict[str, SecretStr] = {}
    auth: Annotated[Bearer | Basic, Field(discriminator="type")] | None = None

    @field_validator("host")
    @classmethod
    def _known(cls, host):
        if host.startswith("no"):
            raise ValueError(f"a host that exists, not {host}")
        return host

class ShelfOptions(Options):
    depth: int = 1
    colour: Literal["red", "blue"] = "red"

class Shelf(Sink):
    type = "shelf"
    settings_model, options_model = ShelfSettings, ShelfOptions
    modes = frozenset({Mode.UPSERT, Mode.MIRROR})
    promise = "at least once"
    def __init__(self, settings): self.settings = settings
    @property
    def identity(self): return self.settings.host
    def check(self): pass
    def open(self, task): pass
    def deliver(self, batch): return Delivery()
    def close(self): pass
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a distribution with sinks on the path, as an installer would."""

    def installed(distribution: str, sinks: Mapping[str, str], **modules: str) -> None:
        site = tmp_path / f"site-{distribution}"
        info = site / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        entries = "\n".join(f"{name} = {target}" for name, target in sinks.items())
        (info / "entry_points.txt").write_text(f"[dbt_reverse_etl.sinks]\n{entries}\n")
        for name, source in modules.items():
            (site / f"{name}.py").write_text(source)
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(str(site))
        importlib.invalidate_caches()

    return installed


@pytest.fixture
def shelf(install: Install) -> None:
    install("acme_shelf", {"shelf": "acme_shelf:Shelf"}, acme_shelf=PLUGIN)


def loaded(directory: Path, env: Mapping[str, str] | None = None) -> dict[str, Destination]:
    destinations = load_destinations([directory], "prod", env or {})
    assert not isinstance(destinations, PlanOnly)
    return destinations


def sync(name: str = "contacts", model: str = "c", **settings: Any) -> Sync:
    changelog = Changelog(f"model.shop.{model}", model, f"shop.{model}", ("id",), ChangelogSettings())
    chosen = SyncSettings.model_validate({"destination": "crm", "object": "contacts"} | settings)
    return Sync(f"exposure.shop.{name}", name, (), True, changelog, chosen, "models/exposures.yml")


def replace_load(of_type: str, load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the class that the entry has: another one where importlib_metadata was imported before."""
    (entry,) = sink_types._offered(tuple(sys.path))[of_type].values()
    monkeypatch.setattr(type(entry), "load", load)


class TestSinks:
    def test_a_destination_gets_its_sink_and_its_settings(self, write: Callable[[Any], Path], shelf: None) -> None:
        block = {"type": "shelf", "host": "h", "port": "{{ env_var('PORT') }}", "guards": {"max_deletes": "5%"}}
        crm = loaded(write({"prod": {"crm": block}}), {"PORT": "81"})["crm"]
        assert (crm.name, crm.type, crm.sink.__name__) == ("crm", "shelf", "Shelf")
        assert crm.settings.model_dump()["port"] == 81
        assert str(crm.guards.max_deletes) == "5%"

    @pytest.mark.guarantee("Configuration")
    def test_only_a_sink_that_is_named_is_imported(
        self, write: Callable[[Any], Path], shelf: None, install: Install
    ) -> None:
        install("acme_bomb", {"bomb": "acme_bomb:Bomb"}, acme_bomb=f"raise RuntimeError('{CANARY}')")
        loaded(write({"prod": {"crm": {"type": "shelf", "host": "h"}}}))
        assert "acme_bomb" not in sys.modules
        (problem,) = refused(write({"prod": {"crm": {"type": "bomb"}}}))
        assert "acme_bomb:Bomb, whose import raises RuntimeError" in problem
        assert "canary" not in problem

    @pytest.mark.parametrize(("of_type", "extra"), [("mysql", "mysql"), ("delta", "spark")])
    def test_a_package_that_a_type_needs_is_named_with_the_command_that_installs_it(
        self, of_type: str, extra: str, write: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def load(_: Any) -> None:
            raise ModuleNotFoundError(name="driver")

        replace_load(of_type, load, monkeypatch)
        (problem,) = refused(write({"prod": {"crm": {"type": of_type}}}))
        assert "found no package driver" in problem
        assert f"pip install 'dbt-reverse-etl[{extra}]'" in problem

    def test_no_extra_is_named_for_a_type_that_has_none(
        self, write: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def load(_: Any) -> None:
            raise ModuleNotFoundError(name="_sqlite3")

        replace_load("sqlite", load, monkeypatch)
        (problem,) = refused(write({"prod": {"crm": {"type": "sqlite"}}}))
        assert "whose import raises ModuleNotFoundError for _sqlite3; expected a sink that can be imported" in problem
        assert "dbt-reverse-etl[" not in problem

    @pytest.mark.parametrize(
        ("without", "named"),
        [
            ("    def deliver(self, batch): return Delivery()\n", "deliver"),
            ("    modes = frozenset({Mode.UPSERT, Mode.MIRROR})\n", "modes"),
            ('    promise = "at least once"\n', "promise"),
        ],
    )
    def test_a_sink_that_lacks_a_part_is_refused_with_its_name(
        self, write: Callable[[Any], Path], install: Install, without: str, named: str
    ) -> None:
        assert PLUGIN.count(without) == 1
        install("acme_part", {"shelf": "acme_part:Shelf"}, acme_part=PLUGIN.replace(without, ""))
        (problem,) = refused(write({"prod": {"crm": {"type": "shelf", "host": "h"}}}))
        assert f"found acme_part:Shelf without {named}; expected a whole sink" in problem

    @pytest.mark.parametrize(
        ("arguments", "is_refused"), [('claim=""', True), ('claim="", *, complete=False', False), ("*_, **__", False)]
    )
    def test_a_sink_whose_finish_cannot_be_called_is_refused_before_anything_is_sent(
        self, write: Callable[[Any], Path], install: Install, arguments: str, is_refused: bool
    ) -> None:
        install("acme_end", {"shelf": "acme_end:Shelf"}, acme_end=f"{PLUGIN}    def finish(self, {arguments}): pass\n")
        directory = write({"prod": {"crm": {"type": "shelf", "host": "h"}}})
        if not is_refused:
            assert loaded(directory)["crm"].type == "shelf"
            return
        (problem,) = refused(directory)
        assert "found acme_end:Shelf without `complete` among the arguments of finish; expected a whole sink" in problem

    @pytest.mark.parametrize(
        ("decorator", "arguments", "is_refused"),
        [
            ("staticmethod", "claim, *, complete", False),
            ("classmethod", "cls, claim, *, complete", False),
            ("staticmethod", "claim", True),
            ("classmethod", "cls, claim", True),
        ],
    )
    def test_a_sink_whose_finish_takes_no_instance_is_judged_by_its_other_arguments(
        self, write: Callable[[Any], Path], install: Install, decorator: str, arguments: str, is_refused: bool
    ) -> None:
        finish = f"    @{decorator}\n    def finish({arguments}): pass\n"
        install("acme_free", {"shelf": "acme_free:Shelf"}, acme_free=f"{PLUGIN}{finish}")
        directory = write({"prod": {"crm": {"type": "shelf", "host": "h"}}})
        if is_refused:
            assert "without `complete` among the arguments of finish" in refused(directory)[0]
        else:
            assert loaded(directory)["crm"].type == "shelf"

    def test_a_sink_whose_finish_in_c_shows_no_arguments_is_taken(
        self, write: Callable[[Any], Path], install: Install
    ) -> None:
        install("acme_c", {"shelf": "acme_c:Shelf"}, acme_c=f"{PLUGIN}    finish = max\n")
        assert loaded(write({"prod": {"crm": {"type": "shelf", "host": "h"}}}))["crm"].type == "shelf"

    def test_an_unknown_type_lists_the_known_ones(self, write: Callable[[Any], Path], shelf: None) -> None:
        (problem,) = refused(write({"prod": {"crm": {"type": "shelve"}}}))
        assert "prod.crm.type: found 'shelve'; expected one of" in problem
        assert "did you mean 'shelf'?" in problem
        assert "type: found nothing" in refused(write({"prod": {"crm": {}}}))[0]

    @pytest.mark.guarantee("Configuration")
    def test_two_distributions_that_claim_one_name_are_an_error(
        self, write: Callable[[Any], Path], shelf: None, install: Install
    ) -> None:
        install("evil_shelf", {"shelf": "evil_shelf:Shelf"}, evil_shelf=PLUGIN)
        (problem,) = refused(write({"prod": {"crm": {"type": "shelf", "host": "h"}}}))
        assert "acme_shelf and evil_shelf" in problem
        assert "evil_shelf" not in sys.modules

    @pytest.mark.parametrize("target", ["acme_odd:number", "acme_odd:Text", "acme_odd:Shelf"])
    def test_what_is_no_sink_of_this_type_is_refused(
        self, write: Callable[[Any], Path], install: Install, target: str
    ) -> None:
        install("acme_odd", {"odd": target}, acme_odd=PLUGIN + "\nnumber = 1\nText = str\n")
        assert "a subclass of Sink whose `type` is 'odd'" in refused(write({"prod": {"crm": {"type": "odd"}}}))[0]

    def test_yaml_merge_keys_work(self, write: Callable[[Any], Path], shelf: None) -> None:
        text = (
            "dbt_reverse_etl:\n  outputs:\n    dev: {a: &a {type: shelf, host: h}}\n"
            "    prod: {b: {<<: *a, port: 5}, c: {<<: *a}}\n"
        )
        found = loaded(write(text))
        assert {name: d.settings.model_dump()["port"] for name, d in found.items()} == {"b": 5, "c": 80}

    def test_every_problem_of_every_destination_comes_at_once(self, write: Callable[[Any], Path], shelf: None) -> None:
        outputs = {
            "prod": {
                "a": {"type": "shelf", "port": "many", "hots": "h"},
                "b": {"type": "nothing"},
                "c": {"type": "shelf", "host": "{{ env_var('NOT_SET') }}"},
                "d": {"type": "shelf", "host": "h", "guards": {"max_delete": 1, "max_changes": "lots"}},
                "e": {"type": "shelf", "host": "h", "auth": {"type": "bearer", "tokn": 1}},
                "f": "shelf",
            }
        }
        text = "\n".join(refused(write(outputs)))
        for expected in (
            "prod.a.port: found a text; expected a valid integer",
            "prod.a.host: found nothing; expected a value",
            "prod.a.hots: found an unknown key; expected one of host, port, pin, headers, auth, type, guards",
            "did you mean 'host'?",
            "prod.b.type: found 'nothing'",
            "prod.c.host: found environment variable NOT_SET",
            "prod.d.guards.max_delete: found an unknown key; expected one of max_deletes, max_changes",
            "prod.d.guards.max_changes: found 'lots'; expected a number of rows such as 500, or a share such as 10%",
            "prod.e.auth.tokn: found an unknown key",
            "prod.e.auth.token: found nothing",
            "prod.f: found a text; expected a mapping with `type`",
        ):
            assert expected in text

    def test_the_example_loads_with_the_sinks_of_this_package(self, tmp_path: Path, install: Install) -> None:
        declared = (ROOT / "pyproject.toml").read_text().split('[project.entry-points."dbt_reverse_etl.sinks"]')[1]
        lines = [line.split(" = ") for line in declared.split("\n[")[0].strip().splitlines()]
        install("dbt_reverse_etl", {name: target.strip('"') for name, target in lines})
        (tmp_path / "profiles.yml").write_text((ROOT / "profiles.example.yml").read_text())
        assert load_destinations([tmp_path], "dev", {}) == PlanOnly("dev")
        assert {name: one.type for name, one in loaded(tmp_path, {"CRM_TOKEN": CANARY}).items()} == {
            "crm": "http",
            "app": "sqlite",
            "exports": "files",
        }


class TestSecrets:
    SETTINGS: Mapping[str, Any] = {
        "type": "shelf",
        "host": "h",
        "pin": "{{ env_var('PLAIN_NAME') }}",
        "headers": {"X-Key": "key {{ env_var('OTHER_NAME') }}"},
        "auth": {"type": "bearer", "token": "literal-token-4711"},
    }
    ENV: Mapping[str, str] = {"PLAIN_NAME": CANARY, "OTHER_NAME": "second-canary-8"}

    @pytest.mark.guarantee("Secrets and row values")
    def test_values_of_secret_settings_are_redacted_from_then_on(
        self, write: Callable[[Any], Path], shelf: None
    ) -> None:
        crm = loaded(write({"prod": {"crm": self.SETTINGS}}), self.ENV)["crm"]
        assert "canary" not in repr(crm) + str(crm.settings)
        assert "4711" not in repr(crm)
        text = redact(f"a {CANARY} b second-canary-8 c literal-token-4711 d {quote(CANARY, safe='')}")
        assert text == f"a {MASK} b {MASK} c {MASK} d {MASK}"

    @pytest.mark.guarantee("Secrets and row values")
    @pytest.mark.parametrize(
        "change",
        [
            {"pin": ["{{ env_var('LOOSE') }}"]},
            {"port": "{{ env_var('LOOSE') }}"},
            {"host": "no{{ env_var('LOOSE') }}"},
            {"host": f"no{CANARY}", "pin": f"no{CANARY}"},
            {"auth": {"type": "{{ env_var('LOOSE') }}", "token": "loose-token-8421"}},
            {"auth": "{{ env_var('LOOSE') }}"},
            {"guards": {"max_deletes": "{{ env_var('LOOSE') }}"}},
            {"guards": "{{ env_var('LOOSE') }}"},
            {"type": "{{ env_var('LOOSE') }}"},
            {"headers": {"a": {"b": "{{ env_var('LOOSE') }}"}}},
            {"pni": "{{ env_var('LOOSE') }}"},
            {"password": CANARY},
        ],
    )
    def test_no_problem_shows_a_secret(self, write: Callable[[Any], Path], shelf: None, change: Any) -> None:
        loose = f"loose-{uuid4().hex}"  # a new one each time: what another case registered would be redacted
        problems = refused(write({"prod": {"crm": {**self.SETTINGS, **change}}}), {**self.ENV, "LOOSE": loose})
        assert "canary" not in "".join(problems)
        assert loose not in "".join(problems)


@pytest.fixture(scope="module")
def destinations_once() -> dict[str, Destination]:
    namespace: dict[str, Any] = {"__name__": "acme_once"}
    exec(
        compile(PLUGIN, "acme_once", "exec", dont_inherit=True), namespace
    )  # the source of the plug-in above, without a distribution around it
    shelf_class, settings = namespace["Shelf"], namespace["ShelfSettings"]
    hosts = {"crm": "one", "same": "one", "other": "two"}
    return {
        name: Destination(name, "shelf", shelf_class, settings(host=host), Guards()) for name, host in hosts.items()
    }


class TestResolve:
    @pytest.fixture
    def destinations(self, write: Callable[[Any], Path], shelf: None) -> dict[str, Destination]:
        crm = {"type": "shelf", "host": "one", "guards": {"max_deletes": "5%", "max_changes": 9}}
        other = {"type": "shelf", "host": "two"}
        return loaded(write({"prod": {"crm": crm, "same": {"type": "shelf", "host": "one"}, "other": other}}))

    def test_a_sync_gets_its_destination_guards_and_options(self, destinations: dict[str, Destination]) -> None:
        given_sync = sync(guards={"max_deletes": 3}, options={"depth": 2})
        (resolved,) = resolve([given_sync], destinations)
        found, destination, guards, options = resolved
        assert (found, destination) == (given_sync, destinations["crm"])
        assert (str(guards.max_deletes), str(guards.max_changes)) == ("3", "9")
        assert options.model_dump() == {"depth": 2, "colour": "red"}

    def test_every_problem_of_every_sync_comes_at_once(self, destinations: dict[str, Destination]) -> None:
        wrong = [
            sync("b", mode="changelog", options={"depht": 2}),
            sync("c", options={"colour": "green", "depth": "x"}),
        ]
        with pytest.raises(ConfigurationError) as caught:
            resolve(wrong, destinations)
        text = str(caught.value)
        for expected in (
            "models/exposures.yml: b.config.meta.reverse_etl.mode: found 'changelog'; expected what a destination of type shelf can do: "
            "mirror, upsert",
            "b.config.meta.reverse_etl.options.depht: found an unknown key; expected one of depth, colour",
            "c.config.meta.reverse_etl.options.colour: found 'green'; expected 'red' or 'blue'",
            "c.config.meta.reverse_etl.options.depth: found a text",
        ):
            assert expected in text

    def test_doubt_is_not_parked_for_a_destination_that_takes_no_change_twice(
        self, destinations: dict[str, Destination], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (resolved,) = resolve([sync(on_unknown="park")], destinations)
        assert resolved.sync.settings.on_unknown == "park"
        monkeypatch.setattr(destinations["crm"].sink, "transactional", True)
        with pytest.raises(
            ConfigurationError, match=r"on_unknown: found 'park'; expected send_again: a destination of"
        ):
            resolve([sync(on_unknown="park")], destinations)

    def test_only_a_mirror_into_what_can_be_replaced_owns_its_object_and_alone(
        self, destinations: dict[str, Destination], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ValidationError, match="only a mirror owns every row"):
            sync(owns_object=True, mode="upsert")
        owner = sync(owns_object=True, mode="mirror")
        with pytest.raises(ConfigurationError, match=r"owns_object: found 'true'; expected false: a destination of"):
            resolve([owner], destinations)
        monkeypatch.setattr(destinations["crm"].sink, "full_loads", True)
        assert resolve([owner], destinations)
        guest = sync("guest", mode="upsert")
        with pytest.raises(ConfigurationError, match=r"which .* writes too; expected one sync alone"):
            resolve([owner, guest], destinations)

    @pytest.mark.guarantee("Leases and rivals")
    @pytest.mark.parametrize(
        ("kind", "settings", "one", "other", "same"),
        [
            (
                "postgres",
                {"host": "db", "database": "app", "user": "u", "password": "p"},
                "people",
                "public.people",
                True,
            ),
            ("postgres", {"host": "db", "database": "app", "user": "u", "password": "p"}, "people", "People", False),
            ("duckdb", {"path": "/a.duckdb"}, "people", "MAIN.People", True),
            ("duckdb", {"path": "/a.duckdb"}, "people", "other.people", False),
            ("sqlite", {"path": "/a.sqlite"}, "people", "People", True),
        ],
    )
    def test_two_spellings_of_one_table_have_one_owner(
        self, kind: str, settings: dict[str, Any], one: str, other: str, same: bool
    ) -> None:
        sink = sink_of(kind, Place("profiles.yml", ()), [])
        assert sink is not None
        place = Destination("db", kind, sink, sink.settings_model.model_validate(settings), Guards())
        both = [
            sync("a", destination="db", mode="mirror", object=one),
            sync("b", destination="db", mode="mirror", object=other),
        ]
        if not same:
            assert len(resolve(both, {"db": place})) == 2
            return
        with pytest.raises(ConfigurationError, match="one sync that deletes in an object"):
            resolve(both, {"db": place})

    @pytest.mark.guarantee("Leases and rivals")
    @settings(deadline=None)
    @given(
        choices=st.lists(
            st.tuples(
                st.sampled_from(["crm", "same", "other"]),
                st.sampled_from(["x", "y"]),
                st.sampled_from([Mode.MIRROR, Mode.UPSERT]),
                st.sampled_from(["c", "d"]),
            ),
            max_size=4,
        )
    )
    def test_one_object_has_one_deleting_owner_under_whatever_name(
        self, choices: list[tuple[str, str, Mode, str]], destinations_once: dict[str, Destination]
    ) -> None:
        syncs = [sync(f"s{n}", m, destination=d, object=o, mode=mode) for n, (d, o, mode, m) in enumerate(choices)]
        hosts = {"crm": "one", "same": "one", "other": "two"}
        places = [(hosts[d], o) for d, o, _, _ in choices]
        owned = [place for place, choice in zip(places, choices, strict=True) if choice[2] is Mode.MIRROR]
        mixed = [
            place
            for place in owned
            if len({choice[3] for at, choice in zip(places, choices, strict=True) if at == place}) > 1
        ]
        if len(set(owned)) == len(owned) and not mixed:
            assert len(resolve(syncs, destinations_once)) == len(choices)
        else:
            with pytest.raises(
                ConfigurationError, match=r"would delete (what the other wrote|a key that both deliver)"
            ):
                resolve(syncs, destinations_once)

    @pytest.mark.parametrize(("mode", "is_refused"), [("insert_only", True), ("update_only", False)])
    def test_beside_a_mirror_a_sync_of_another_changelog_may_only_update(
        self, mode: str, is_refused: bool, destinations_once: dict[str, Destination]
    ) -> None:
        syncs = [sync("a", mode="mirror", object="x"), sync("b", "d", mode=mode, object="x")]
        problems: list[Problem] = []
        refuse_two_owners([("x", one) for one in syncs], problems)
        assert ["of another changelog" in str(problem) for problem in problems] == [True] * is_refused
