"""Dagster: each sync is an asset below its changelog; rows by operation are its metadata."""

import json
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
