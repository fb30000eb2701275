"""dbt builds the table; this keeps your tools equal to it.

dbt imports every top-level module whose name starts with `dbt_` and looks for `plugins`. So this file imports the standard
library only, and makes the plugin when dbt asks for it: a runner without dbt never pays for dbt's imports.
"""

from __future__ import annotations

from typing import Any

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from dbt_reverse_etl.base.version import VERSION

        return VERSION
    if name != "plugins":
        raise AttributeError(name)
    try:
        from dbt_reverse_etl.plugin import ReverseEtlPlugin
    except Exception:  # a broken environment of ours must never break a dbt command
        return []
    return [ReverseEtlPlugin]
