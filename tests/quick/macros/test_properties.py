"""What is kept in the properties of tables: read back although Spark hides those whose text looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros

HIDDEN = re.compile("(?i)url|secret|password|token|access[.]?key")  # Spark's patterns, for names and texts


class Catalog(Macros):
    """Tables whose properties a statement sets, and Spark shows."""

    def __init__(self, kind: str = "spark") -> None:
        self.tables: dict[str, dict[str, str]] = {}
        view = SimpleNamespace(database=None, schema="shop")
        super().__init__(
            self._shown,
            adapter=SimpleNamespace(get_relation=lambda **_: SimpleNamespace(type="view")),
            api=SimpleNamespace(Relation=SimpleNamespace(create=lambda **_: view)),
            target=SimpleNamespace(type=kind, name="dev"),
            model=SimpleNamespace(name="orders"),
            config={},
        )
        self._macros.update(_feed_relation=lambda _, source: f"input_of_{source[1]}", _show=lambda *_: "")

    def _shown(self, sql: str) -> Sequence[Mapping[str, Any]]:
        if found := re.match("(?:create table if not exists|alter table) (\\S+) .*?tblproperties \\((.*?)\\)", sql):
            self.tables.setdefault(found[1], {}).update(re.findall("'(.*?)' = '(.*?)'", found[2]))
        if found := re.match("show tblproperties (\\S+)", sql):
            return [
                {"key": name, "value": "*********(redacted)" if HIDDEN.search(name) or HIDDEN.search(text) else text}
                for name, text in self.tables[found[1]].items()
            ]
        return []

    def publish(self, name: str) -> None:
        head = {"snapshot_id": 7, "changed": 7, "live_rows": 1}
        parts = {"target": "log", "head": head, "node": SimpleNamespace(database=None, schema="shop"), "name": "log"}
        self._publish(SimpleNamespace(columns=SimpleNamespace(key=[], names=[]), **parts), name)


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("name", ["live", "hourly_orders", "Tokens of users", "x"])
def test_the_name_of_a_published_view_is_known_whatever_spark_hides(name: str) -> None:
    catalog = Catalog()
    catalog.tables["log"] = {}
    catalog.publish(name)
    assert catalog._published("log") == {"snapshot_id": 7, "view": name}
    before = (len(catalog.logged), len(catalog.run))
    catalog.publish(name)
    assert (len(catalog.logged), catalog.run[before[1] :]) == (before[0], ["show tblproperties log"]), "nothing is new"


@pytest.mark.parametrize(("kept", "view"), [("live", "live"), ("hourly_orders", None)])
def test_a_name_that_a_version_before_kept_is_known_where_spark_shows_it(kept: str, view: str | None) -> None:
    catalog = Catalog()
    catalog.tables["log"] = {"dbt_reverse_etl.published": "7", "dbt_reverse_etl.published_as": kept}
    assert catalog._published("log") == {"snapshot_id": 7, "view": view}
    catalog.publish("new")
    assert ("live follows no longer" in catalog.logged[-1]) == (view is not None)
    assert "redacted" not in catalog.logged[-1]


@pytest.mark.parametrize(
    ("kept", "setting", "name"),
    [("hourly_orders", "hourly_orders", "hourly_orders"), ("hourly_orders", None, None), (".l.i.v.e", "new", "live")],
)
def test_a_reset_moves_the_view_whose_name_spark_hides_by_the_setting(
    kept: str, setting: str | None, name: str | None
) -> None:
    catalog = Catalog()
    catalog.tables["log"] = {"dbt_reverse_etl.published": "7", "dbt_reverse_etl.published_as": kept}
    catalog._macros.update(_head=lambda _: {}, _columns_of=lambda _: [], _columns_at=lambda *_: [])
    config = {"meta": {"reverse_etl": {"publish": setting}}} if setting else {}
    shown = catalog._shown_of(SimpleNamespace(database=None, schema="shop", config=config), "log")
    assert (shown["name"] if shown else None) == name


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("kind", ["spark", "databricks"])
def test_two_topics_are_two_also_where_spark_hides_both_names_and_one_in_two_clusters_is_refused(kind: str) -> None:
    catalog = Catalog(kind)
    topics = ["shop.hourly", "shop.tokens", "plain"]
    inputs = [catalog._feed_input("kafka", [topic, place], "select 1") for place, topic in enumerate(topics)]
    catalog._check_one_cluster(inputs)
    again = catalog._feed_input("kafka", ["shop.tokens", 3], "select 1")
    with pytest.raises(
        CompilationError, match=r"kafka_topic shop[.]tokens in model orders: found it read with several"
    ):
        catalog._check_one_cluster([*inputs, again])


@pytest.mark.parametrize("text", ["_snapshot_id,_change,`id`", "_snapshot_id,_change,`hourly`"])
def test_a_property_of_the_model_is_set_once_also_where_spark_hides_it(text: str) -> None:
    catalog = Catalog()
    catalog.tables["log"] = {"delta.dataSkippingStatsColumns": "_snapshot_id"}
    catalog._context["config"].update(tblproperties={"delta.dataSkippingStatsColumns": text})
    for _ in range(2):
        catalog._apply_table_properties("log", "log")
    assert [sql.split()[0] for sql in catalog.run] == ["show", "alter", "show"]
    assert catalog.tables["log"] == {"delta.dataSkippingStatsColumns": text}


@pytest.mark.parametrize("key", ["id", "hourly"])
def test_maintain_sets_the_columns_of_the_statistics_once_also_where_spark_hides_them(key: str) -> None:
    catalog = Catalog()
    catalog.tables["log"] = {}
    catalog._context["adapter"].get_columns_in_relation = lambda _: [SimpleNamespace(name=key, dtype="int")]
    for _ in range(2):
        catalog._set_statistics("log", SimpleNamespace(config=SimpleNamespace(unique_key=key, tblproperties=None)))
    assert [sql.split()[0] for sql in catalog.run] == ["show", "alter", "show"]


def test_on_databricks_a_private_table_takes_columns_of_any_name() -> None:
    mapped = "'delta.columnMapping.mode' = 'name'"
    assert Catalog("databricks")._private_format() == f"delta tblproperties ({mapped})"
    assert Catalog("databricks")._private_format({"a": "b"}) == f"delta tblproperties ({mapped}, 'a' = 'b')"
    assert Catalog()._private_format({"a": "b"}) == "parquet tblproperties ('a' = 'b')"
    assert Catalog()._private_format() == "parquet"
