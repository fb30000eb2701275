"""Counts the files that a capture's statements read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from dbt.adapters.spark.session import Cursor
from pyspark.sql import SparkSession

TEMPORARY = re.compile(r"create table \w+\.(\w+__(?:candidates|uncommitted))_")
Files = tuple[int, int]  # read, of all


@contextmanager
def files_read(spark: SparkSession) -> Iterator[dict[str, dict[str, Files]]]:
    """By the name of a temporary table, `<model>__candidates` or `<model>__uncommitted`, the files that its query reads of each table."""
    files: dict[str, dict[str, Files]] = {}
    execute = Cursor.execute

    def counted(self: Cursor, sql: str, *arguments: Any) -> None:
        if made := TEMPORARY.search(sql):
            query = sql[sql.index("select", made.end()) :]
            files[made[1]] = _files(spark, query.partition("; select 1; end")[0])  # of a statement that may fail
        execute(self, sql, *arguments)

    with patch.object(Cursor, "execute", counted):
        yield files


def _files(spark: SparkSession, query: str) -> dict[str, Files]:
    read = Counter(tuple(file.split("/")[-3:-1]) for file in spark.sql(query).inputFiles())
    every = {
        place: spark.sql(f"describe detail {place[0][:-3]}.{place[1]}").collect()[0]
        for place in read
        if "__" not in place[1]
    }
    return {place[1]: (read[place], detail.numFiles) for place, detail in every.items()}
