"""Airflow 3: dbt builds, then what changed is pushed. A push is tried again only where that can mend it."""

from datetime import datetime, timedelta

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

PROJECT = "/srv/shop"
NEEDS_A_PERSON = (2, 3, 5)  # configuration, guard or failed test, lost position

with DAG("shop", schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1):
    build = BashOperator(
        task_id="build",
        bash_command="dbt build --target prod",
        cwd=PROJECT,
        env={"DBT_REVERSE_ETL_PUSH": "off"},  # dbt would push by itself
        append_env=True,
    )

    @task(retries=3, retry_delay=timedelta(minutes=5))
    def push() -> None:
        """Exit codes 1 (a push failed), 4 (another run holds the sync), 6 (overtaken) and 130 (interrupted) mend themselves."""
        command = ["dbt-reverse-etl", "push", "--target", "prod", "--if-due"]
        code = SubprocessHook().run_command(command, cwd=PROJECT).exit_code
        if code in NEEDS_A_PERSON:
            raise AirflowFailException(f"exit code {code}: a person has to act")
        if code:
            raise AirflowException(f"exit code {code}")

    build >> push()
