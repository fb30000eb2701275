"""The files of examples/deploy are what their readers expect, and name only commands and options that exist."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dbt_reverse_etl.cli import cli
from tests.support import ROOT

DEPLOY = ROOT / "examples" / "deploy"
FILES = sorted(DEPLOY.iterdir())
PAGES = [*FILES, ROOT / "docs" / "dbt-cloud.md", ROOT / "docs" / "schedulers.md", ROOT / "README.md"]


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def called(page: str) -> Iterator[list[str]]:
    """The words after `dbt-reverse-etl` in shell lines, and in lists such as CMD and subprocess calls."""
    for found in re.findall(r"(?<!')dbt-reverse-etl ([a-z][^`\n|\"')>]*)", page):
        yield shlex.split(found, comments=True)
    for found in re.findall(r"\[\"dbt-reverse-etl\", ([^\]]*)\]", page):
        yield re.findall(r'"([^"]*)"', found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_that_is_shown_exists(page: Path) -> None:
    for command, *rest in called(page.read_text(encoding="utf-8")):
        assert command in cli.commands, command
        known = {name for option in cli.commands[command].params for name in option.opts}
        ours = rest[: rest.index("--")] if "--" in rest else rest  # what follows is for dbt
        options = {word.partition("=")[0] for word in ours if word.startswith("--")}
        assert options <= known, (command, options - known)


def test_enough_of_them_are_found() -> None:
    assert sum(len(list(called(file.read_text()))) for file in FILES) >= 5
    assert isinstance(cli, click.Group)


def test_the_systemd_unit_is_valid_and_lets_a_push_end(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text("dbt-reverse-etl.service"))
    service = dict(unit["Service"])
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > 45, "the grace of a push, and of the server"
    assert service["ExecStart"].endswith("dbt-reverse-etl serve")
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        file = tmp_path / "dbt-reverse-etl.service"
        file.write_text(text(file.name).replace(service["ExecStart"].split()[0], "/bin/true"))
        done = subprocess.run([analyze, "verify", file], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_container_runs_serve_as_a_user_without_rights_and_keeps_its_queue() -> None:
    lines = re.sub(r"\\\n", " ", text("Dockerfile")).splitlines()
    told = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    instructions = dict(told)
    assert set(instructions) <= {"FROM", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK", "CMD"}
    assert instructions["CMD"] == '["dbt-reverse-etl", "serve"]'
    assert instructions["USER"] == "dbt"
    order = [name for name, _ in told]
    assert order.index("USER") < order.index("CMD")
    assert instructions["VOLUME"].endswith(".reverse-etl-queue")
    assert not re.search(r"(?i)(ENV|ARG) .*(TOKEN|SECRET|PASSWORD)", text("Dockerfile"))


def test_the_manifests_of_kubernetes_fit_each_other() -> None:
    documents: dict[str, dict[str, Any]] = {one["kind"]: one for one in yaml.safe_load_all(text("kubernetes.yml"))}
    deployment = documents["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate"), "one process has the queue"
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    assert documents["Service"]["spec"]["selector"] == deployment["selector"]["matchLabels"]
    assert pod["terminationGracePeriodSeconds"] > 45
    assert pod["securityContext"]["runAsNonRoot"]
    claim = pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == documents["PersistentVolumeClaim"]["metadata"]["name"]
    assert container["volumeMounts"][0]["mountPath"] in text("Dockerfile")
    assert str(container["ports"][0]["containerPort"]) in text("Dockerfile")
    (path,) = documents["Ingress"]["spec"]["rules"][0]["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/webhook", "Exact"), "neither metrics nor health are public"


@pytest.mark.parametrize("name", ["airflow_dag.py", "dagster_assets.py"])
def test_the_examples_of_schedulers_compile(name: str) -> None:
    compile(text(name), name, "exec")


def test_the_workflow_posts_a_plan_and_gives_no_secret_to_a_fork() -> None:
    read = yaml.safe_load(text("plan-comment.yml"))
    job = read["jobs"]["plan"]
    assert "head.repo.full_name == github.repository" in job["if"]
    assert read["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert "pull_request" in str(read[True]), "never pull_request_target, which gives secrets to the code of anyone"
    steps = [step["run"] for step in job["steps"] if "run" in step]
    assert any("plan --target prod --markdown" in step for step in steps)
    assert not any("${{" in step for step in steps), "an expression in a script is code of who wrote the pull request"


def test_no_file_holds_a_secret() -> None:
    from dbt_reverse_etl.base.redaction import literal_secrets

    for name in ("kubernetes.yml", "plan-comment.yml"):
        for document in yaml.safe_load_all(text(name)):
            found = [path for path in literal_secrets(document) if "secretRef" not in path]
            allowed = {"secretName", "GH_TOKEN", "CRM_PASSWORD"}
            assert all(allowed & set(path) for path in found), found
