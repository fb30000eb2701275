"""Airflow 3.2 or later: dbt builds, then what changed is pushed. A push is tried again only where that can mend it."""

from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

PROJECT = "/srv/shop"
NEEDS_A_PERSON = (2, 3, 5)  # configuration, guard or failed test, lost position


class Push(BaseOperator):
    """Exit codes 1 (a push failed), 4 (another run holds the sync), 6 (overtaken) and 130 (interrupted) mend themselves."""

    @cached_property
    def hook(self) -> SubprocessHook:
        return SubprocessHook()

    def execute(self, context: Any) -> None:
        command = ["dbt-reverse-etl", "push", "--target", "prod", "--if-due"]
        code = self.hook.run_command(command, cwd=PROJECT).exit_code
        if code in NEEDS_A_PERSON:
            raise AirflowFailException(f"exit code {code}: a person has to act")
        if code:
            raise AirflowException(f"exit code {code}")

    def on_kill(self) -> None:
        """The hook runs a command in a session of its own, which Airflow's signal does not reach."""
        self.hook.send_sigterm()


with DAG("shop", schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1):
    build = BashOperator(
        task_id="build",
        bash_command="dbt build --target prod",
        cwd=PROJECT,
        env={"DBT_REVERSE_ETL_PUSH": "off"},  # dbt would push by itself
        append_env=True,
    )

    push = Push(task_id="push", retries=3, retry_delay=timedelta(minutes=5))
    build >> push
