"""Filters of syncs, and what is wrong with each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.config.settings import Changelog, ChangelogSettings, Sync, SyncSettings
from dbt_reverse_etl.warehouse.spec import resolve

_COLUMNS = {
    "id": "int",
    "name": "string",
    "current_plan": "string",
    "list": "int",
    "day": "date",
    "at": "timestamp",
    "parts": "array<struct<n:int>>",
    "by`name": "map<string,int>",
    "days_by_name": "map<string,date>",
    "User (ID)": "int",
    "Update(s)": "int",
    "now(utc)": "timestamp",
    "info": "struct<`user(x)`:int>",
}
_GOOD = (
    "id > 3",
    "name is not null and not name like 'x%'",
    f"id in ({', '.join(map(str, range(40)))})",
    "current_plan = 'pro' or list = 1",
    "name = 'current_date' or name = 'rand'",
    "exists(parts, part -> part.n > 1)",
    "`by``name`['a'] = 1",
    "at > timestamp'2024-01-01' and day > date'2024-01-01'",
    "hash(id, name) % 10 = 3",
    "name = 'now(urgent)' or name like '%user(%' or name <> 'current_date()'",
    "info.`user(x)` = 1",
    "name = 'now (urgent)' or `User (ID)` is not null and `now(utc)` is null",
    "name = 'now' or `User (ID)` = 1 and upper(name) in ('today', 'tomorrow')",
    r"name = 'it\'s now()' or name = 'a\\now()' or name = r'\d now()' or name = 'a''now()' or name = r'\now()'",
    "true",
)
_BY_ITSELF = (
    "rand() > 0.5",
    "uuid() > 'a'",
    "id > 3 and (shuffle(array(1, 2))[0] = 1 or name = 'a')",
    "exists(array(1), one -> one > rand())",
    "monotonically_increasing_id() = 1",
)
_OF_SESSION = (
    "day < current_date()",
    "day < current_date",
    "day < curdate()",
    "at < now()",
    "date_diff(NOW(), day) < 30",
    "at < localtimestamp()",
    "unix_timestamp() > 1",
    "day = 'today'",
    "'now' > at",
    "day between 'today' and 'tomorrow'",
    "nvl(day, 'today') is null",
    "year('today') = 2024 or name = 'a'",
    "`to_date`('today') is null",
    "`to_timestamp`('now') is null",
    "extract(year from 'today') = 2024",
    "hour('now') > 1",
    "days_by_name['a'] = 'yesterday'",
    "name = 'current_user()' or name = current_user",
    r"name = 'it\'s current_user()' or name = current_user",
    "name = current_user",
    "name = user()",
    "name = session_user()",
    "name = current_database()",
    "name = current_timezone()",
    f"hash({', '.join(map(str, range(40)))}, now()) = 3",
)
_SUB_QUERIES = (
    "id = (select max(id) from range(3))",
    "id in (select id from range(3))",
    "exists (select 1 from range(3))",
    "id not in (select 1)",
)
_UNKNOWN = (
    "nosuch = 1",
    "id >",
    "count(*) > 1",
    "row_number() over (order by id) = 1",
    "explode(array(1)) = 1",
    "_change = 'insert'",
)
_NO_CONDITIONS = ("id + 1", "name", "null")
EXPECTED = {
    **dict.fromkeys(_GOOD, ""),
    **dict.fromkeys(_BY_ITSELF, "changes by itself"),
    **dict.fromkeys(_OF_SESSION, "depends on the time or on the session"),
    **dict.fromkeys(_SUB_QUERIES, "a sub-query"),
    **dict.fromkeys(_UNKNOWN, "what Spark cannot resolve"),
    **dict.fromkeys(_NO_CONDITIONS, "no condition"),
}  # fmt: skip


def told_otherwise(spark: SparkSession) -> dict[str, str]:
    """What is said of each filter of which something else should be said."""
    told = {where: told_of(spark, {"where": where}, _COLUMNS) for where in EXPECTED}
    return {where: said for where, said in told.items() if (EXPECTED[where] not in said if EXPECTED[where] else said)}


def told_of(spark: SparkSession, more: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    """What is said of the settings of a sync; an empty text: nothing."""
    changelog = Changelog("model.shop.people", "people", "no.such_table", ("id",), ChangelogSettings())
    # What the text alone tells is refused before: here Spark is asked.
    settings = SyncSettings.model_validate({"destination": "crm", "object": "people"}).model_copy(update=dict(more))
    sync = Sync("exposure.shop.crm", "crm", (), True, changelog, settings, "models/crm.yml")
    try:
        resolve(spark, sync, columns.items())
    except ConfigurationError as error:
        return str(error)
    return ""
