"""The unit of systemd with a push of Spark: the quickstart's project, built and pushed on a machine of its own."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
import yaml

from tests.servers.deploy.test_machines import on_systemd, wait_for_health
from tests.support import ROOT
from tests.support.deploy.machine import machine, said
from tests.support.serve.world import World, wait_for
from tests.support.servers.cloud_api import JOB, event, post
from tests.support.servers.http import free_port, http_server

BUILD = """
export PATH={bin}:$PATH JAVA_HOME={java} DBT_REVERSE_ETL_PUSH=off CRM_API_TOKEN=any
cd /srv/shop && dbt-reverse-etl init && dbt deps && dbt build
"""


@pytest.mark.full
def test_a_push_of_spark_ends_well_under_the_protections_of_the_unit(tmp_path: Path) -> None:
    world = World(tmp_path / "shop")
    with http_server() as crm_api:
        del world.settings["push_command"]
        world.configure(listen=f"127.0.0.1:{free_port()}", jobs=[{"job_id": JOB, "target": "dev"}])
        serve = yaml.safe_load((world.folder / "profiles.yml").read_text())["dbt_reverse_etl"]["serve"]
        shutil.copytree(ROOT / "examples/quickstart", world.folder, dirs_exist_ok=True)
        profiles = yaml.safe_load((world.folder / "profiles.yml").read_text())
        profiles["dbt_reverse_etl"]["serve"] = serve
        (world.folder / "profiles.yml").write_text(yaml.safe_dump(profiles))
        java = os.environ.get("JAVA_HOME", "")
        build = BUILD.format(bin=f"{sys.prefix}/bin", java=java)
        env = {"JAVA_HOME": java, "CRM_API_TOKEN": "any", "CRM_API_URL": crm_api.url}
        with machine(on_systemd(world, build=build, env=env), tmp_path) as process:
            url = f"http://{world.settings['listen']}"
            wait_for_health(url, process, tmp_path, 400)
            world.api.add_run(1)
            for name in ("manifest.json", "run_results.json"):
                world.api.files[1, 2, name] = (world.folder / "target" / name).read_bytes()
            post(url, event(1))
            wait_for(lambda: "run 1: " in said(tmp_path).partition("pushing")[2], "it never ended", 400)
        assert "run 1: done" in said(tmp_path)
        assert "/var/cache/dbt-reverse-etl/.ivy2.5.2" in said(tmp_path)
        with sqlite3.connect(world.folder / "crm.db") as crm:
            assert crm.execute("select count(*) from customers").fetchone()[0] == len(crm_api.received) > 0
    world.close()
