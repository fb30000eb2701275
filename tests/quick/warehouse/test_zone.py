"""Which filters depend on the time zone, by the plans in which Spark shows them."""

from __future__ import annotations

import pytest

from dbt_reverse_etl.warehouse.zone import depends

TYPES = {"id": "int", "t": "timestamp", "u": "timestamp", "n": "timestamp_ntz", "d": "date", "x": "string"}
# The filter, and its condition in the analyzed plan.
CALCULATES = {
    "t + interval 1 month > u": "t#2 + INTERVAL '1' MONTH > u#3",
    "t - interval 1 day > u": "t#2 - INTERVAL '1' DAY > u#3",
    "coalesce(t, u) - coalesce(u, t) > u - u": "((coalesce(t#2, u#3) - coalesce(u#3, t#2)) > (u#3 - u#3))",
    "T - u > interval 24 hours": "((T#2 - u#3) > INTERVAL '24' HOUR)",
    "t - u > interval 24 hours": "((t#2 - u#3) > INTERVAL '24' HOUR)",
    "t - u > u - timestamp'2024-01-31 00:00:00Z'": "((t#2 - u#3) > (u#3 - 2024-01-31 00:00:00))",
    "t - timestamp'2024-01-31 00:00:00Z' > t - u": "((t#2 - 2024-01-31 00:00:00) > (t#2 - u#3))",
    "t + (d - date'2024-01-31') > u": "(t#2 + (d#5 - 2024-01-31) > u#3)",
    "t + make_interval(0, id) > u": "(t#2 + make_interval(0, id#1, 0, 0, 0, 0, 0.000000, true) > u#3)",
    "t + cast(x as interval month) > u": "(t#2 + cast(x#6 as interval month) > u#3)",
    "try_add(t, interval 1 month) > u": "(try_add(t#2, INTERVAL '1' MONTH) > u#3)",
    "try_subtract(t, u) > try_subtract(u, t)": "(try_subtract(t#2, u#3) > try_subtract(u#3, t#2))",
    "t + interval 1 month 1 day > u": "(t#2 + 1 months 1 days > u#3)",  # spark.sql.legacy.interval.enabled
    "timestamp_seconds(id) + interval 1 month > timestamp'2024-02-29 00:00:00Z'": "(timestamp_seconds(id#1) + INTERVAL '1' MONTH > 2024-02-29 00:00:00)",
}
READS = {
    "date(T) > d": "(cast(T#2 as date) > d#5)",
    "btrim(t) like '% 00%'": "btrim(t#2) LIKE % 00%",
    "t between d and date_add(d, 1)": "between(t#2, d#5, date_add(d#5, 1))",
    "nvl(t, n) > timestamp'2024-01-31 00:00:00Z'": "(nvl(t#2, n#4) > 2024-01-31 00:00:00)",
    "date_part('hour', t) > 2": "(date_part(hour, t#2) > 2)",
    "datepart('hour', t) > 2": "(datepart(hour, t#2) > 2)",
    "try_make_timestamp(id, 1, 31, 2, 0, 0) > t": "(try_make_timestamp(id#1, 1, 31, 2, 0, 0) > t#2)",
    "date(timestamp_seconds(id)) > d": "(cast(timestamp_seconds(id#1) as date) > d#5)",
    "timestampadd(month, 1, t) > u": "(timestampadd(month, 1, t#2, Some(UTC)) > u#3)",
}
IN_NONE = {
    "d - interval 1 month > date'2023-12-01'": "(d#5 - INTERVAL '1' MONTH > 2023-12-01)",
    "d - date'2023-12-01' > interval 3 days": "((d#5 - 2023-12-01) > INTERVAL '3' DAY)",
    "n - interval 1 month > timestamp_ntz'2023-12-01 00:00:00'": "n#4 - INTERVAL '1' MONTH > 2023-12-01 00:00:00",
    "id - 1 > 5 and id - 1.5 > 0 and t > u": "((((id#1 - 1) > 5) AND ((id#1 - 1.5) > 0)) AND (t#2 > u#3))",
    "t >= timestamp'2024-01-31 00:00:00Z' and id > -5": "((t#2 >= 2024-01-31 00:00:00) AND (id#1 > -5))",
    "t between u and timestamp'2024-01-31 00:00:00Z' and id > 5": "(between(t#2, u#3, 2024-01-31 00:00:00) AND (id#1 > 5))",
    "t > u and id - id > 0 and x <> 'a - b'": "(((t#2 > u#3) AND ((id#1 - id#1) > 0)) AND NOT (x#6 = a - b))",
    "t > u and x = 'interval'": "((t#2 > u#3) AND (x#6 = interval))",
}


def in_a_plan(condition: str) -> str:
    columns = ", ".join(f"{name}#{number}" for number, name in enumerate(TYPES, 1))
    return f"\nProject [{columns}, _one#7]\n+- Join Inner, {condition}\n   :- SubqueryAlias rows\n   :  +- OneRowRelation\n"


@pytest.mark.parametrize("where", CALCULATES)
@pytest.mark.guarantee("What is sent")
def test_a_filter_that_adds_an_interval_to_a_time_or_subtracts_two_times_depends_on_the_zone(where: str) -> None:
    assert depends(where, in_a_plan(CALCULATES[where]), TYPES)


@pytest.mark.parametrize("where", READS)
def test_what_reads_the_parts_of_a_time_or_makes_one_of_them_depends_on_the_zone(where: str) -> None:
    assert depends(where, in_a_plan(READS[where]), TYPES)


@pytest.mark.parametrize("where", IN_NONE)
def test_a_filter_that_calculates_with_dates_or_numbers_alone_is_free_of_the_zone(where: str) -> None:
    assert not depends(where, in_a_plan(IN_NONE[where]), TYPES)
