"""A filter that reads times in the session's time zone: in another zone nothing is sent until it is set back, or the filter has offsets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.warehouse.spec import _analyzed
from dbt_reverse_etl.warehouse.zone import SETTING, depends, zone_of
from tests.support.dbt.project import Project

ZONES = ("America/New_York", "UTC", "Asia/Kolkata")
COLUMNS = {
    "id": "int",
    "t": "timestamp",
    "n": "timestamp_ntz",
    "d": "date",
    "x": "string",
    "s": "struct<a:timestamp>",
    "l": "array<timestamp>",
}
ROWS = """
select id, t, cast('2024-01-31 02:00:00' as timestamp_ntz) as n, date'2024-01-31' as d, '2024-01-31 02:00:00' as x,
    named_struct('a', t) as s, array(t) as l
from (select id, timestamp_seconds(1706659200 + id * 3600) as t from range(-30, 30))
"""
IN_A_ZONE = [
    "t >= '2024-01-31'", "t >= timestamp'2024-01-31'", "t >= timestamp '2024-01-31 00:00:00'", "hour(t) > 5", "date(t) > '2024-01-30'",
    "t > date'2024-01-31'", "n > t", "x > t", "d > t", "date_format(t, 'dd') = '31'", "day(t) = 31", "cast(t as string) like '2024-01-31%'",
    "to_timestamp(x) > t", "date_trunc('day', t) = t", "unix_timestamp(x) > unix_timestamp(t)", "concat(t, '') > '2024-01-31'",
    "from_unixtime(1706659200 + id * 3600) > '2024-01-31'", "extract(hour from t) > 2", "date_add(t, 1) > d", "s.a > '2024-01-31'", "x <> 'a\nb' and t >= '2024-01-31'",
    "exists(l, y -> y > '2024-01-31')", "t between '2024-01-31' and timestamp'2024-02-01 00:00:00Z'", "t in ('2024-01-31 05:00:00')",
    "t between '2024-01-31' and '2024-02-01'", "nullif(t, '2024-01-31') is null", "ifnull(t, '2024-01-31') > '2024-01-30'", "nvl2(t, t, null) = '2024-01-31'",
    "t between date'2024-01-31' and date'2024-02-01'", "if(t > '2024-01-31', true, false)", "array_contains(l, cast('2024-01-31' as timestamp))",
    "cast(t as timestamp_ntz) > n",
    "t::date = d", "make_timestamp(2024, 1, 31, 2, 0, 0) > t", "coalesce(t, '2024-01-31') > '2024-01-31'", "not (t < '2024-01-31')",
    # Zones differ in the end of a month, and New York in its hour between these days.
    "t + interval 1 month > timestamp'2024-02-29 12:00:00Z'", "t + interval 40 days > timestamp'2024-03-11 12:00:00Z'",
    "t - interval 2 months < timestamp'2023-11-30 12:00:00Z'", "t - timestamp'2023-10-31 00:00:00Z' > interval '92' day",
    "t - timestamp'2023-10-31 00:00:00Z' > timestamp'2023-10-31 00:00:00Z' - timestamp'2023-07-31 00:00:00Z'",
    "t + (d - date'2023-12-22') > timestamp'2024-03-11 12:00:00Z'", "t + make_interval(0, 1) > timestamp'2024-02-29 12:00:00Z'",
    "t + make_dt_interval(40) > timestamp'2024-03-11 12:00:00Z'", "t + cast('1' as interval month) > timestamp'2024-02-29 12:00:00Z'",
    "try_add(t, interval 1 month) > timestamp'2024-02-29 12:00:00Z'", "try_subtract(t, interval 2 months) < timestamp'2023-11-30 12:00:00Z'",
    "try_subtract(t, timestamp'2023-10-31 00:00:00Z') > try_subtract(timestamp'2023-10-31 00:00:00Z', timestamp'2023-07-31 00:00:00Z')",
    "timestamp_seconds(1706659200 + id * 3600) + interval 1 month > timestamp'2024-02-29 12:00:00Z'", "s.a + interval 1 month > timestamp'2024-02-29 12:00:00Z'",
    "timestampadd(month, 1, t) > timestamp'2024-02-29 12:00:00Z'", "dateadd(month, 1, t) > timestamp'2024-02-29 12:00:00Z'",
    "timestampdiff(month, timestamp'2023-12-31 12:00:00Z', t) > 0", "months_between(t, timestamp'2023-12-31 00:00:00Z') > 1",
    "datediff(t, date'2024-01-30') > 0", "to_date(t) > date'2024-01-30'", "date(timestamp_seconds(1706659200 + id * 3600)) > date'2024-01-30'",
    "date(T) > date'2024-01-30'", "t between d and date_add(d, 1)", "nvl(t, d) > timestamp'2024-01-31 00:00:00Z'", "btrim(t) like '% 00:%'",
    "date_part('hour', t) > 5", "datepart('hour', t) > 5", "try_make_timestamp(2024, 1, 31, 2, 0, 0) > t",
]  # fmt: skip
IN_NONE = [
    "id > 5", "t is not null", "t >= timestamp'2024-01-31 00:00:00Z'", "t >= timestamp'2024-01-31 00:00:00+02:00'", "t >= '2024-01-31T00:00:00Z'",
    "n > '2024-01-31'", "d > '2024-01-30'", "cast(d as string) > '2024'", "x > '2024'", "year(d) = 2024", "cast(id as string) > '5'",
    "t between timestamp'2024-01-30 00:00:00Z' and timestamp'2024-02-01 00:00:00Z'", "t is not null and x > 'open'",
    "t is not null and x <> '12345'", "id - 1 > 5 and t is not null", "d - interval 1 month > date'2023-12-01'", "d + interval '40' day > date'2024-03-01'",
    "d - date'2023-12-01' > interval '3' day", "n - interval 1 month > timestamp_ntz'2023-12-01 00:00:00'",
    "n - timestamp_ntz'2023-12-01 00:00:00' > interval '3' day", "n + interval 40 days > timestamp_ntz'2024-03-01 00:00:00'",
]  # fmt: skip


@pytest.fixture
def zoned(spark: SparkSession) -> Iterator[SparkSession]:
    before = str(spark.conf.get(SETTING))
    yield spark
    spark.conf.set(SETTING, before)


@pytest.mark.full
@pytest.mark.guarantee("What is sent")
def test_a_filter_that_chooses_other_rows_in_another_zone_is_known_to_depend_on_it(zoned: SparkSession) -> None:
    filters = IN_A_ZONE + IN_NONE
    chosen: dict[str, list[tuple[int, ...]]] = {one: [] for one in filters}
    for zone in ZONES:
        zoned.conf.set(SETTING, zone)
        wanted = ", ".join(f"collect_list(if({one}, id, null)) as f{number}" for number, one in enumerate(filters))
        (row,) = zoned.sql(f"select {wanted} from ({ROWS})").collect()
        for number, one in enumerate(filters):
            chosen[one].append(tuple(sorted(row[number])))
        told = {one: depends(one, _analyzed(zoned, one, tuple(COLUMNS.items()), zone), COLUMNS) for one in filters}
        assert [one for one in IN_A_ZONE if not told[one]] == []
        assert [one for one in IN_NONE if told[one]] == []
    assert [one for one in IN_NONE if len(set(chosen[one])) > 1] == []
    assert sum(len(set(chosen[one])) > 1 for one in IN_A_ZONE) > len(IN_A_ZONE) * 0.8, (
        "most of them show it over these rows"
    )


@pytest.mark.full
@pytest.mark.guarantee("What is sent")
def test_where_the_zone_changed_nothing_is_sent_until_it_is_set_back(project: Project, zoned: SparkSession) -> None:
    zoned.conf.set(SETTING, "Etc/UTC")
    assert zone_of(zoned) == "UTC"
    hours = "select id, timestamp_seconds(1706659200 + id * 3600) as t from range({}, 30)"
    project.changelog("seen", hours.format(-30))
    project.sync("crm_seen", "seen", mode="mirror", where="t >= '2024-01-31'")
    assert project.run().sync("crm_seen") == "+30 ~0 -0"

    project.changelog("seen", hours.format(4))
    zoned.conf.set(SETTING, "America/New_York")
    refused = project.run()
    assert not refused.success
    assert (
        "read in the session's time zone, which is America/New_York; expected UTC, as in the pushes before"
        in refused.text
    )

    zoned.conf.set(SETTING, "Asia/Kolkata")
    project.dbt("run-operation", "adopt", "--args", "{sync: crm_seen}")
    assert project.run().success, "what is there counts as chosen in the zone of now"
    project.dbt("run-operation", "forget", "--args", "{sync: crm_seen}")

    zoned.conf.set(SETTING, "UTC")
    assert project.run().sync("crm_seen") == "+26 ~0 -0", "and a first load asks for no zone of before"
    project.sync("crm_seen", "seen", mode="mirror", where="t >= timestamp'2024-01-31 00:00:00Z'")
    assert project.run().sync("crm_seen") == "+0 ~0 -0"
    zoned.conf.set(SETTING, "America/New_York")
    project.changelog("seen", hours.format(6))
    assert project.run().sync("crm_seen") == "+0 ~0 -2"
