"""Dagster: each sync is an asset below its changelog; rows by operation are its metadata.

The push reads dbt's artifacts, so dagster-dbt has to leave them in one folder, and the push to us. In the function of `@dbt_assets`:

    yield from dbt.cli(["build"], context=context, target_path=Path(PROJECT, "target")).stream()

with DBT_REVERSE_ETL_PUSH=off in the environment.
"""

import json
import os
import subprocess

import dagster as dg

PROJECT = "/srv/shop"
NEEDS_A_PERSON = (2, 3, 5)  # configuration, guard or failed test, lost position
RETRIES = dg.RetryPolicy(max_retries=3, delay=300)


def sync_asset(name: str, changelog: str) -> dg.AssetsDefinition:
    """The asset of one sync: `name` as in the exposure, `changelog` as dagster-dbt names the model's asset."""

    @dg.asset(name=name, deps=[dg.AssetKey(changelog)], kinds={"dbt"}, retry_policy=RETRIES)
    def sync() -> dg.MaterializeResult:
        done = subprocess.run(
            ["dbt-reverse-etl", "push", "--select", name, "--target", "prod", "--if-due", "--json"],
            cwd=PROJECT,
            env={**os.environ, "DBT_REVERSE_ETL_PUSH": "on"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise dg.Failure(
                f"exit code {done.returncode}: {done.stderr.strip()}",
                allow_retries=done.returncode not in NEEDS_A_PERSON,
            )
        reports = json.loads(done.stdout)
        rows = reports[0]["counts"]["delivered"] if reports else {}
        return dg.MaterializeResult(metadata={operation: dg.MetadataValue.int(n) for operation, n in rows.items()})

    return sync


defs = dg.Definitions(assets=[sync_asset("crm_customers", "customers_changelog")])
