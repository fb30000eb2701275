"""A DuckDB file or a Postgres database by its SQLAlchemy URL, as profiles have named them; SQLAlchemy itself is not used."""

from __future__ import annotations

from dbt_reverse_etl.sinks.base import Settings
from dbt_reverse_etl.sinks.sql.dialect import Dialect
from dbt_reverse_etl.sinks.sql.settings import DuckdbSettings, SqlalchemySettings
from dbt_reverse_etl.sinks.sql.sink import SqlSink


class SqlalchemySink(SqlSink):
    """Keeps one table of a database equal to a model."""

    type = "sqlalchemy"
    settings_model = SqlalchemySettings

    @property
    def identity(self) -> str:
        """duckdb://file, postgresql://host:port/database."""
        own = self._dialect.identity
        return own if self._dialect.is_file else f"postgresql://{own}"

    def _make_dialect(self, settings: Settings) -> Dialect:
        assert isinstance(settings, SqlalchemySettings)  # noqa: S101  (the engine validates with it)
        target = settings.target
        if isinstance(target, DuckdbSettings):
            from dbt_reverse_etl.sinks.sql.dialects.duckdb import DuckdbDialect

            return DuckdbDialect(target)
        from dbt_reverse_etl.sinks.sql.dialects.postgres.sink import PostgresDialect

        return PostgresDialect(target)
