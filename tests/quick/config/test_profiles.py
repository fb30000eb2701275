"""Where profiles.yml is found, what is wrong with it, and what of the environment gets into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.app.configuration import configure
from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.config.destinations import PlanOnly
from dbt_reverse_etl.config.manifest import LEDGER_NODE
from dbt_reverse_etl.config.profiles import DbtProject, profile_directories, read_target
from dbt_reverse_etl.config.rendering import render
from dbt_reverse_etl.config.validation import Place
from tests.support.config.loaded import load_destinations, refused
from tests.support.config.manifest import manifest

CANARY = "canary-Zq7/x+9"
ALIAS = "canary-Zq7"


class TestWhereProfilesAreFound:
    def test_a_directory_that_is_named_leaves_no_other_choice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        env = {"DBT_PROFILES_DIR": str(tmp_path / "env")}
        flag, project, home = tmp_path / "flag", tmp_path / "project", tmp_path / "home"
        assert profile_directories(flag, project, env, home) == [flag]
        assert profile_directories(None, project, env, home) == [tmp_path / "env"]
        assert profile_directories(None, project, {}, home) == [tmp_path, home / ".dbt", project]
        assert profile_directories(None, tmp_path, {}, home) == [tmp_path, home / ".dbt"]

    def test_a_user_without_a_home_has_no_profiles_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(Path, "home", no_home)
        assert profile_directories(None, tmp_path / "project", {}) == [tmp_path, tmp_path / "project"]

    def test_the_first_file_that_is_there_decides(self, tmp_path: Path) -> None:
        for name, outputs in {"a": "{}", "b": "{dev: plan}", "c": "{dev: {}}"}.items():
            (tmp_path / name).mkdir()
            if name != "a":
                (tmp_path / name / "profiles.yml").write_text(f"dbt_reverse_etl: {{outputs: {outputs}}}")
        found = load_destinations([tmp_path / "a", tmp_path / "b", tmp_path / "c"], "dev", {})
        assert found == PlanOnly("dev")

    def test_no_file_names_every_place_that_was_tried(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError) as caught:
            load_destinations([tmp_path / "x", tmp_path / "y"], "prod", {})
        assert str(tmp_path / "x" / "profiles.yml") in str(caught.value)
        assert str(tmp_path / "y" / "profiles.yml") in str(caught.value)
        assert "Next: write it (`dbt-reverse-etl init` shows our block), or name its folder" in str(caught.value)


class TestProjects:
    SHARED = "shop: {target: prod, outputs: {prod: {}}}\nother: {target: prod, outputs: {prod: {}}}\ndbt_reverse_etl:\n"

    def asked(self, directory: Path, block: str, project: str) -> str:
        (directory / "profiles.yml").write_text(f"{self.SHARED}  {block}")
        try:
            read_target([directory], "prod", DbtProject(project))
        except ConfigurationError as error:
            return str(error.problems[0])
        return "allowed"

    @pytest.mark.guarantee("Configuration")
    def test_projects_share_destinations_only_where_the_file_says_so(self, tmp_path: Path) -> None:
        silent, named = "outputs: {prod: {}}", "projects: [shop]\n  outputs: {prod: {}}"
        assert "found the dbt profiles shop, other, and destinations" in self.asked(tmp_path, silent, "shop")
        assert self.asked(tmp_path, named, "shop") == "allowed"
        assert "found the destinations of shop; expected those of other" in self.asked(tmp_path, named, "other")
        assert self.asked(tmp_path, named.replace("shop", "shop, other"), "other") == "allowed"
        assert "a list of names of dbt projects" in self.asked(tmp_path, named.replace("[shop]", "shop"), "shop")


class TestProfiles:
    """One project, whose dbt profiles have targets of one name; and the profiles of projects that have nothing to do with it."""

    FILE = """
shop_prod: {target: default, outputs: {default: {schema: prod}, ci: {}}}
shop_dev: {target: default, outputs: {default: {schema: dev}, only_dev: {}}}
other: {target: prod, outputs: {prod: {}}}
dbt_reverse_etl: {projects: [shop], outputs: {default: {}, only_dev: {}}, MORE}
"""

    def asked(self, folder: Path, used: str, *, own: str | None = "shop_prod", more: str = "", target: str = "default") -> str:  # fmt: skip
        (folder / "profiles.yml").write_text(self.FILE.replace(", MORE", f", {more}" if more else ""))
        if own is not None:
            (folder / "dbt_project.yml").write_text(f'name: shop\nprofile: "{own}"\n')
        try:
            read_target([folder], target, DbtProject("shop", used, folder))
        except ConfigurationError as error:
            return str(error.problems[0])
        return "allowed"

    @pytest.mark.guarantee("Configuration")
    def test_rows_of_another_dbt_profile_go_to_no_destination_that_does_not_name_it(self, tmp_path: Path) -> None:
        assert self.asked(tmp_path, "shop_prod") == "allowed"
        refused = self.asked(tmp_path, "shop_dev")
        assert "found a target 'default' in the dbt profiles shop_prod, shop_dev" in refused
        assert "while dbt uses shop_dev and dbt_project.yml says shop_prod" in refused
        assert "add `profiles: [...]`" in refused
        assert self.asked(tmp_path, "shop_prod", own="{{ env_var('WHICH') }}") != "allowed"
        for used, allowed in (("shop_prod", True), ("shop_dev", False)):
            assert (self.asked(tmp_path, used, more="profiles: [shop_prod]") == "allowed") is allowed
            assert self.asked(tmp_path, used, more="profiles: [shop_prod, shop_dev]") == "allowed"
        assert "found the destinations of shop_prod; expected those of shop_dev" in self.asked(
            tmp_path, "shop_dev", more="profiles: [shop_prod]"
        )
        assert "a list of names of dbt profiles" in self.asked(tmp_path, "shop_dev", more="profiles: shop_dev")

    @pytest.mark.parametrize(
        ("used", "more"),
        [
            ("shop_dev", {"target": "only_dev"}),
            ("user", {}),
            ("", {}),
            ("", {"more": "profiles: [shop_prod]"}),
            ("shop_dev", {"own": None}),
            ("shop_dev", {"own": "shop_dev"}),
        ],
        ids=["a target of its own", "dbt Cloud", "not known", "not known, and one is named", "no project", "its own"],
    )
    def test_nobody_else_has_to_name_a_dbt_profile(self, tmp_path: Path, used: str, more: dict[str, Any]) -> None:
        assert self.asked(tmp_path, used, **more) == "allowed"

    def test_the_profile_is_the_one_that_the_manifest_was_made_with(self, tmp_path: Path) -> None:
        asked = manifest({"crm_c": {"destination": "crm"}})
        self.asked(tmp_path, "shop_prod", more="profiles: [shop_prod]")
        meta = {"reverse_etl_made_for": {"target": "default", "profile": "shop_dev"}}
        asked["nodes"][LEDGER_NODE] = {"unique_id": LEDGER_NODE, "name": "l", "config": {"meta": meta}}
        with pytest.raises(ConfigurationError, match="found the destinations of shop_prod; expected those of shop_dev"):
            configure(asked, [tmp_path], "default", {}, tmp_path)

    @pytest.mark.guarantee("Configuration")
    def test_tables_of_another_target_than_that_of_the_command_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "profiles.yml").write_text("dbt_reverse_etl: {outputs: {dev: plan, prod: plan}}")
        asked = manifest({"crm_c": {"destination": "crm"}})
        of_ledger = {"unique_id": LEDGER_NODE, "name": "l", "config": {"meta": {}}}
        asked["nodes"][LEDGER_NODE] = of_ledger
        assert configure(asked, [tmp_path], "prod", {}, tmp_path).syncs, "an older build of the package told of none"
        # Of a root project that has `models: +meta: {reverse_etl: ...}`.
        of_ledger["config"] = {"meta": {"reverse_etl": {"x": 1}, "reverse_etl_made_for": {"target": "dev"}}}
        assert configure(asked, [tmp_path], "dev", {}, tmp_path).syncs
        with pytest.raises(ConfigurationError, match=r"tables of target dev, .*those of prod, .*--no-partial-parse"):
            configure(asked, [tmp_path], "prod", {}, tmp_path)


class TestTargets:
    def test_plan_is_said_and_not_implied(self, write: Callable[[Any], Path]) -> None:
        assert load_destinations([write({"dev": "plan"})], "dev", {}) == PlanOnly("dev")
        assert load_destinations([write({"dev": {}})], "dev", {}) == {}

    @pytest.mark.parametrize("written", [None, "plna", [], {1: {}}])
    def test_a_target_that_cannot_be_read_is_the_one_mistake_and_not_each_sync_too(
        self, write: Callable[[Any], Path], written: object
    ) -> None:
        with pytest.raises(ConfigurationError) as caught:
            configure(manifest({"crm_c": {"destination": "crm"}}), [write({"dev": written})], "dev", {})
        (problem,) = caught.value.problems
        assert problem.where.startswith(f"{write({'dev': written})}/profiles.yml: dbt_reverse_etl.outputs.dev")

    @pytest.mark.guarantee("Configuration")
    @pytest.mark.parametrize("other", [{"mode": "miror"}, {"object": 1}, {}])
    def test_a_destination_that_is_not_there_is_named_whatever_else_is_wrong_with_the_sync(
        self, write: Callable[[Any], Path], other: dict[str, Any]
    ) -> None:
        outputs = {"dev": {"crm": {"type": "no such type"}}}
        wrong = manifest({"crm_c": {"destination": "crmm", **other}, "crm_d": {"destination": "crm"}})
        with pytest.raises(ConfigurationError) as caught:
            configure(wrong, [write(outputs)], "dev", {})
        of_destinations = [problem for problem in caught.value.problems if problem.where.endswith(".destination")]
        assert [*map(str, of_destinations)] == [
            "manifest.json: crm_c.config.meta.reverse_etl.destination: found 'crmm'; expected a destination of this "
            "target in profiles.yml: crm. Next: did you mean 'crm'? Add it there, or correct the name"
        ]
        assert len(caught.value.problems) == 2 + bool(other)

    def test_a_destination_that_is_no_name_is_not_shown_for_it_may_hold_a_password(
        self, write: Callable[[Any], Path]
    ) -> None:
        wrong = manifest({"crm_c": {"destination": "postgres://etl:open-sesame@db/crm", "mode": "miror"}})
        with pytest.raises(ConfigurationError) as caught:
            configure(wrong, [write({"dev": {"crm": {"type": "no such type"}}})], "dev", {})
        assert "open-sesame" not in str(caught.value)
        assert "destination: found a text; expected a destination of this target" in str(caught.value)

    @pytest.mark.guarantee("Configuration")
    def test_a_target_that_is_not_there_is_an_error_that_lists_the_targets(self, write: Callable[[Any], Path]) -> None:
        (problem,) = refused(write({"dev": "plan", "ci": "plan"}))
        assert "no target 'prod'" in problem
        assert "dev, ci" in problem or "ci, dev" in problem
        assert "add `prod: plan` to capture alone" in problem

    @pytest.mark.parametrize(
        "text",
        [
            "shop: {target: dev}",
            "dbt_reverse_etl:",
            "dbt_reverse_etl: {}",
            "dbt_reverse_etl: {outputs: [prod]}",
            "",
            "- 1",
        ],
    )
    def test_a_file_without_outputs_is_an_error(self, write: Callable[[Any], Path], text: str) -> None:
        (problem,) = refused(write(text))
        assert "`prod: plan` captures and sends nothing" in problem

    @pytest.mark.parametrize(
        "text",
        [
            f"dbt_reverse_etl: {{outputs: {{prod: {{crm: {{type: shelf, pin: *{ALIAS}}}}}}}}}",
            f"dbt_reverse_etl:\n  outputs:\n\tprod: {CANARY}",
            f'dbt_reverse_etl: {{outputs: "{CANARY}',
            f"dbt_reverse_etl: {{outputs: {{prod: !{ALIAS} x}}}}",
            "dbt_reverse_etl: {outputs: {prod: 2024-99-99}}",
            "dbt_reverse_etl: {outputs: &a {prod: *a}}",
        ],
    )
    def test_broken_yaml_tells_the_place_and_not_the_text(self, write: Callable[[Any], Path], text: str) -> None:
        (problem,) = refused(write(text))
        assert "canary" not in problem
        assert "profiles.yml" in problem

    @pytest.mark.guarantee("Configuration")
    @pytest.mark.parametrize(
        "repeated", ["[*a{0}, *a{0}, *a{0}, *a{0}]", "{{x: *a{0}, y: *a{0}, z: *a{0}, <<: [*a{0}, *a{0}]}}"]
    )
    def test_aliases_that_stand_for_more_than_any_memory_holds_are_refused_at_once(
        self, write: Callable[[Any], Path], repeated: str
    ) -> None:
        lines = ["dbt_reverse_etl:", "  outputs:", "    prod:", "      a0: &a0 {type: shelf}"]
        lines += [f"      a{level}: &a{level} {repeated.format(level - 1)}" for level in range(1, 40)]
        (problem,) = refused(write("\n".join(lines)))
        assert "more than 100000 values; expected fewer" in problem

    @pytest.mark.parametrize("opened", ["[", "{a: "])
    def test_blocks_that_stand_too_deep_in_each_other_are_refused(
        self, write: Callable[[Any], Path], opened: str
    ) -> None:
        closed = "]" if opened == "[" else "}"
        text = f"dbt_reverse_etl: {{outputs: {{prod: {opened * 5000}1{closed * 5000}}}}}"
        assert "too deep" in refused(write(text))[0]

    def test_bytes_that_are_no_text_are_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "profiles.yml").write_bytes(b"dbt_reverse_etl: \xff\xfe")
        assert "UTF-8" in refused(tmp_path)[0]

    def test_a_destination_that_is_written_twice_does_not_vanish(self, write: Callable[[Any], Path]) -> None:
        text = "dbt_reverse_etl:\n  outputs:\n    prod:\n      crm: {type: a}\n      crm: {type: b}\n"
        assert ":5: dbt_reverse_etl.outputs.prod.crm: found the key a second time" in refused(write(text))[0]
        assert "a second time" in refused(write("dbt_reverse_etl: {}\ndbt_reverse_etl: {}"))[0]

    def test_the_profiles_of_dbt_beside_it_may_repeat_keys(self, write: Callable[[Any], Path]) -> None:
        directory = write("shop: {a: 1, a: 2}\ndbt_reverse_etl: {outputs: {prod: plan}}")
        assert load_destinations([directory], "prod", {}) == PlanOnly("prod")

    def test_a_key_beside_outputs_is_not_ignored(self, write: Callable[[Any], Path]) -> None:
        assert "guards" in refused(write("dbt_reverse_etl: {outputs: {prod: plan}, guards: {}}"))[0]


plain = st.text().filter(lambda text: "{{" not in text and "{%" not in text)
names = st.from_regex(r"[A-Z][A-Z0-9_]{0,10}", fullmatch=True)
nested = st.recursive(
    plain | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(plain, inner)
)
HERE = Place("profiles.yml", ("x",))


class TestEnvironmentVariables:
    @settings(deadline=None)
    @given(value=nested)
    def test_what_holds_no_jinja_stays_as_it_is(self, value: Any) -> None:
        assert render(value, {}, HERE).value == value

    @pytest.mark.guarantee("Configuration")
    @settings(deadline=None)
    @given(before=plain, after=plain, name=names, text=st.text())
    @example(before="", after="", name="A", text="{{ env_var('B') }}")
    def test_a_value_is_put_in_verbatim_and_never_rendered_again(
        self, before: str, after: str, name: str, text: str
    ) -> None:
        before = before.rstrip("{")
        written = f"{before}{{{{ env_var('{name}') }}}}{after}"
        rendered = render({"k": [written]}, {"B": "inner", name: text}, HERE)
        assert rendered.value == {"k": [before + text + after]}
        assert rendered.used == [(("k", "0"), name, text)]

    @settings(deadline=None)
    @given(name=names, default=st.text(alphabet="abc:/.é ") | st.integers(min_value=0))
    def test_a_default_holds_only_where_the_variable_is_not_set(self, name: str, default: str | int) -> None:
        for call in (f"env_var('{name}', {default!r})", f"env_var({name!r}, default={default!r})"):
            written = "{{ " + call + " }}"
            assert render(written, {}, HERE).value == str(default)
            assert render(written, {name: ""}, HERE).value == ""

    def test_keys_are_not_rendered(self) -> None:
        key = "{{ env_var('A') }}"
        assert render({key: 1}, {"A": "x"}, HERE).value == {key: 1}

    def test_a_variable_that_is_not_set_is_named_with_its_key_path(self) -> None:
        (problem,) = render({"a": {"b": "{{ env_var('CRM_TOKEN') }}"}}, {}, HERE).problems
        assert str(problem).startswith("profiles.yml: x.a.b: found environment variable CRM_TOKEN, which is not set")

    @pytest.mark.guarantee("Configuration")
    @pytest.mark.parametrize(
        "expression",
        [
            "{{ 7 * 7 }}",
            "{{ ''.__class__.__mro__ }}",
            "{{ env_var }}",
            "{{ env_var.__globals__ }}",
            "{{ env_var('A') | upper }}",
            "{{ env_var(env_var('A')) }}",
            "{{ env_var(*['A']) }}",
            "{{ env_var('A', *['b']) }}",
            "{{ env_var(**{'var': 'A'}) }}",
            "{{ env_var('A', 'b', 'c') }}",
            "{{ env_var('A', other='b') }}",
            "{{ env_var(default='A') }}",
            "{{ env_var(1) }}",
            "{{ env_var() }}",
            "{{ var('A') }}",
            "{{ target.name }}",
            "{% for i in range(9) %}x{% endfor %}",
            "{% set a = env_var('A') %}",
            "{% include 'passwd' %}",
            "{{- env_var('A') -}}",
            "{{ env_var('A') }}{{",
            "{{ env_var('A'), 1 }}",
            "{{ env_var('A')",
            "pa{{ss",
            "pa{%ss",
        ],
    )
    def test_any_other_expression_is_refused_and_never_evaluated(self, expression: str) -> None:
        rendered = render({"k": f"{CANARY} {expression}"}, {"A": CANARY}, HERE)
        assert rendered.value == {"k": ""}
        (problem,) = rendered.problems
        assert "only that" in str(problem)
        assert "canary" not in str(problem)

    @pytest.mark.guarantee("Configuration")
    def test_only_the_chosen_target_needs_its_variables(self, write: Callable[[Any], Path]) -> None:
        directory = write({"dev": "plan", "prod": {"crm": {"type": "shelf", "host": "{{ env_var('NOT_SET') }}"}}})
        assert load_destinations([directory], "dev", {}) == PlanOnly("dev")
