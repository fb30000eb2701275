"""Sends what changed in customers_changelog; `dbt build` runs it after that model and its tests, and leaves it out where one of them failed."""

import os


def model(dbt, session):
    dbt.ref("customers_changelog")  # one line for each changelog whose syncs are to be pushed

    os.environ["CRM_PASSWORD"] = dbutils.secrets.get("crm", "password")  # noqa: F821  (of the cluster)
    from dbt_reverse_etl.python_model import push

    return push(dbt, session, profiles="/Volumes/main/shop/reverse_etl")
