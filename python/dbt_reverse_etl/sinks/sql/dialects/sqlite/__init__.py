"""`SqliteSink` is the door."""

from dbt_reverse_etl.sinks.sql.dialects.sqlite.sink import SqliteSink

__all__ = ["SqliteSink"]
