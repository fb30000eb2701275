"""What a changelog model may configure: what would be ignored is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.dbt.macros import Macros


def problems(target: str, config: dict[str, Any], **column: Any) -> list[str]:
    """What is wrong with a model that has one column."""
    columns = {"email": {"name": "email", **column}}
    model = SimpleNamespace(config=config, columns=columns, get=lambda _: None)
    macros = Macros(config=config, model=model, target=SimpleNamespace(type=target))
    return macros._ignored_configs()  # type: ignore[no-any-return]


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("name", ["column_mask", "databricks_tags"])
def test_a_mask_or_tags_on_a_column_of_a_changelog_are_refused_by_name(name: str) -> None:
    (problem,) = problems("databricks", {}, **{name: {"function": "hide"}})
    assert problem.startswith(f"{name} on column email: has no effect on a changelog")
    assert "a table that you build from the changelog" in problem
    assert problems("databricks", {}, description="Of a person", **{name: {}}) == []


@pytest.mark.parametrize(
    "config",
    [
        {"query_tags": '{"team": "growth"}'},
        {"databricks_compute": "large"},
        {"catalog_name": "lake"},
        {"include_full_name_in_path": True},
    ],
)
def test_a_config_that_dbt_databricks_uses_for_every_model_is_refused_under_other_adapters_alone(
    config: dict[str, Any],
) -> None:
    (name,) = config
    assert problems("databricks", config) == []
    (problem,) = problems("spark", config)
    assert problem.startswith(f"{name}: has no meaning for a changelog; expected it to be absent; remove it; if")


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize(
    ("config", "taken_back"),
    [
        ({"incremental_strategy": "merge"}, ""),
        ({"partition_by": ["day"]}, ""),
        ({"re_data_monitored": True}, ""),
        ({"on_configuration_change": "fail"}, "apply"),  # dbt takes no '' for it
    ],
)
def test_a_config_of_the_whole_project_is_taken_back_for_a_changelog_as_its_refusal_says(
    config: dict[str, Any], taken_back: str
) -> None:
    (name,), (problem,) = config, problems("spark", config)
    assert problem.startswith(f"{name}: has no meaning for a changelog; ")
    assert problem.endswith(f"set it to '{taken_back}' for this one")
    assert problems("spark", {name: taken_back}) == []


@pytest.mark.parametrize("config", [{"on_error": "continue"}, {"latest_version_pointer": {"enabled": False}}])
def test_a_config_that_dbt_itself_carries_out_is_not_refused(config: dict[str, Any]) -> None:
    assert problems("spark", config) == []


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("config", [{}, {"meta": None}, {"meta": {}}, {"meta": {"reverse_etl": None}}])
def test_a_block_without_a_value_says_nothing(config: dict[str, Any]) -> None:
    node = SimpleNamespace(
        unique_id="model.shop.other", resource_type="model", database=None, schema="s", alias="other",
        config={"materialized": "changelog", **config},
    )  # fmt: skip
    model = SimpleNamespace(unique_id="", name="people", database=None, schema="s", config={}, columns={})
    model.get = lambda _: None
    graph = SimpleNamespace(nodes={"other": node}, sources={})
    adapter = SimpleNamespace(get_relation=lambda **_: None)
    macros = Macros(config={"unique_key": "id", **config}, model=model, graph=graph, adapter=adapter)
    settings = macros._changelog_settings()
    assert (settings["capture"]["strategy"], settings["label"]) == ("compare", None)
    assert macros._taken_by_another(model, "shown") == ""
    assert macros._publish_step({"node": node}, None) == []


class Existing(str):
    """A relation of the schema."""

    type: str


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize(("kind", "taken_by"), [("table", "s.live, a table"), ("view", "")])
def test_a_name_for_readers_may_be_that_of_a_view_and_of_no_table(kind: str, taken_by: str) -> None:
    existing = Existing("s.live")
    existing.type = kind
    asked = []
    adapter = SimpleNamespace(get_relation=lambda **of: asked.append(of) or existing)
    model = SimpleNamespace(unique_id="", database=None, schema="s")
    macros = Macros(graph=SimpleNamespace(nodes={}, sources={}), adapter=adapter)
    assert macros._taken_by_another(model, "live") == taken_by
    assert asked == [{"database": None, "schema": "s", "identifier": "live"}]


def capture_problems(**capture: Any) -> list[str]:
    """What is wrong with the options of a strategy."""
    found: list[str] = []
    Macros()._capture_settings(capture, found)
    return found


FEED = {"strategy": "feed", "operation": "op", "sequence": "n"}
LOG = {"strategy": "change_table", "table": "app.log", "sequence": "n"}


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize(
    ("operations", "found"),
    [
        ({"upsert": ["I"], "deletes": ["D"]}, ".operations: found 'deletes'; expected one of upsert, delete, ignore; "),
        ({"upsert": ["I"], "delete": "removed"}, ".operations.delete: found 'removed'; expected a list of "),
        ({"ignore": {"-U": None}}, ".operations.ignore: found '{'-U': None}'; expected a list of "),
        ({"delete": None}, ".operations.delete: found 'None'; expected a list of "),
        (["D"], ".operations: found '['D']'; expected {upsert: [...], delete: [...], ignore: [...]}; "),
    ],
)
def test_operations_under_a_misspelt_word_or_in_no_list_are_refused_because_a_delete_would_be_an_upsert(
    operations: Any, found: str
) -> None:
    (problem,) = capture_problems(**FEED, operations=operations)
    assert problem.startswith(f"meta.reverse_etl.capture{found}")
    assert capture_problems(**FEED, operations={"upsert": ["I", "U"], "delete": ["D"]}) == []
    assert capture_problems(**FEED, operations=None) == capture_problems(**FEED) == []


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("share", ["25%", "0.5", 25, 0, -0.1, True, None])
def test_a_share_of_the_rows_that_is_none_is_refused(share: Any) -> None:
    (problem,) = capture_problems(**LOG, full_above=share)
    assert problem.startswith(f"meta.reverse_etl.capture.full_above: found '{share}'; expected a number, more than 0")
    assert capture_problems(**LOG, full_above=1) == capture_problems(**LOG, full_above=0.25) == []


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("overlap", ["1 hour", "1000", -1, 0.5, True, None])
def test_an_overlap_of_a_change_table_that_is_no_whole_number_is_refused(overlap: Any) -> None:
    (problem,) = capture_problems(**LOG, overlap=overlap)
    assert problem.startswith(f"meta.reverse_etl.capture.overlap: found '{overlap}'; expected a whole number of values")
    assert capture_problems(**LOG, overlap=0) == capture_problems(**LOG) == []
    assert capture_problems(strategy="timestamp", updated_at="at", overlap="1 hour") == []


def test_no_macro_reads_the_block_in_another_way() -> None:
    files = sorted((ROOT / "macros").rglob("*.sql"))
    assert [file.name for file in files if "get('meta', {}).get(" in file.read_text(encoding="utf-8")] == []
