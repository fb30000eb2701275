"""Airflow 3: dbt builds, then what changed is pushed; each is a task that can fail and be tried again on its own."""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

PROJECT = "/srv/shop"

with DAG("shop", schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1):
    build = BashOperator(
        task_id="build",
        bash_command="dbt build --target prod",
        cwd=PROJECT,
        env={"DBT_REVERSE_ETL_PUSH": "off"},  # dbt would push by itself
        append_env=True,
    )
    push = BashOperator(
        task_id="push",
        bash_command="dbt-reverse-etl push --target prod --if-due",
        cwd=PROJECT,
        retries=3,
        retry_delay=timedelta(minutes=5),
    )
    build >> push
