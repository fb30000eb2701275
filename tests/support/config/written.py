"""A sync as its author writes it, and as it comes out of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from dbt_reverse_etl.config.destinations import Destination, ResolvedSync
from dbt_reverse_etl.config.guards import Guards
from dbt_reverse_etl.config.settings import Changelog, ChangelogSettings, Sync, SyncSettings
from dbt_reverse_etl.sinks.base import Options
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink


@dataclass(frozen=True)
class Written:
    """An exposure as its author writes it: `entry` is a name of profiles.yml, and `file` the system behind it."""

    name: str
    project: str = "shop"
    object: str = "contacts"
    changelog: str = "uuid-1"
    entry: str = "crm"
    file: str = "crm.db"
    renamed_from: str | None = None
    type: str = "sqlite"

    @property
    def resolved(self) -> ResolvedSync:
        model = Changelog("model.shop.c", "c", "c", ("id",), ChangelogSettings())
        settings = SyncSettings(destination=self.entry, object=self.object, renamed_from=self.renamed_from)
        sync = Sync(f"exposure.{self.project}.{self.name}", self.name, (), True, model, settings, "models/e.yml")
        destination = Destination(
            self.entry, self.type, SqliteSink, SqliteSink.settings_model(path=f"/{self.file}"), Guards()
        )
        return ResolvedSync(sync, destination, Guards(), Options())
