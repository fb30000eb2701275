"""The files of examples/deploy are what their readers expect, and name only commands and options that exist."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click
import pytest
import yaml

from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.cli import cli
from tests.support import ROOT
from tests.support.deploy.docker import built
from tests.support.deploy.systemd import service_of
from tests.support.servers.http import Received, Reply, http_server, json_reply

DEPLOY = ROOT / "examples" / "deploy"
FILES = sorted(DEPLOY.iterdir())
FINAL = (ExitCode.USAGE, ExitCode.BLOCKED, ExitCode.OTHER_CHANGELOG)
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
    service = {key: values[-1] for key, values in service_of(text("dbt-reverse-etl.service")).items()}
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > 45, "the grace of a push, and of the server"
    assert int(service["RestartPreventExitStatus"]) == ExitCode.USAGE, "another start says the same"
    assert service["ExecStart"].endswith("dbt-reverse-etl serve")
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        file = tmp_path / "dbt-reverse-etl.service"
        file.write_text(text(file.name).replace(service["ExecStart"].split()[0], "/bin/true"))
        done = subprocess.run([analyze, "verify", file], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_container_runs_serve_as_a_user_without_rights_and_holds_no_secret() -> None:
    image = built(text("Dockerfile"), "/context")
    assert (image.user, image.command[:2]) == ("dbt", ["dbt-reverse-etl", "serve"])
    assert image.entrypoint == ["tini", "--"], "a process 1 that waits for the JVM which each push leaves"
    assert re.search(r"apt-get install .*\btini\b", text("Dockerfile").replace("\\\n", " "))
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
    image = built(text("Dockerfile"), "/context")
    assert "command" not in container, "it would replace the entrypoint of the image, which is process 1"
    assert container["volumeMounts"][0]["mountPath"] == image.volume
    assert container["ports"][0]["containerPort"] == image.port
    (path,) = documents["Ingress"]["spec"]["rules"][0]["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/webhook", "Exact"), "neither metrics nor health are public"


@pytest.mark.parametrize("name", ["airflow_dag.py", "dagster_assets.py"])
def test_the_examples_of_schedulers_compile_and_do_not_try_again_what_needs_a_person(name: str) -> None:
    """A campaign runs them with Airflow and Dagster."""
    constants = [node for node in ast.parse(text(name)).body if isinstance(node, ast.Assign)]
    named = {node.targets[0].id: node.value for node in constants if isinstance(node.targets[0], ast.Name)}
    assert ast.literal_eval(named["NEEDS_A_PERSON"]) == FINAL


class Hook:
    """As Airflow's SubprocessHook: it has the command that it runs."""

    def __init__(self) -> None:
        self.code, self.ended = 0, False

    def run_command(self, command: list[str], cwd: str) -> SimpleNamespace:
        return SimpleNamespace(exit_code=self.code)

    def send_sigterm(self) -> None:
        self.ended = True


@pytest.fixture
def push_of_airflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The task of the example, where Airflow is one of our own."""

    class Operator:
        def __init__(self, **_: Any) -> None: ...

        def __rshift__(self, other: object) -> object:
            return other

    airflow = {
        "airflow.providers.standard.hooks.subprocess": {"SubprocessHook": Hook},
        "airflow.providers.standard.operators.bash": {"BashOperator": Operator},
        "airflow.sdk": {"DAG": lambda *_, **__: nullcontext(), "BaseOperator": Operator},
        "airflow.sdk.exceptions": {"AirflowException": RuntimeError, "AirflowFailException": PermissionError},
    }
    for name, content in airflow.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(DEPLOY / "airflow_dag.py"))["push"]


def test_airflow_ends_a_push_that_it_stops_and_tries_again_what_that_may_mend(push_of_airflow: Any) -> None:
    for code, error in [(ExitCode.FAILED, RuntimeError), *((code, PermissionError) for code in FINAL)]:
        push_of_airflow.hook.code = code
        with pytest.raises(error, match=f"exit code {int(code)}"):
            push_of_airflow.execute({})
    push_of_airflow.on_kill()
    assert push_of_airflow.hook.ended, "the hook that runs the command, not another one"


def test_the_workflow_posts_a_plan_and_gives_no_secret_to_a_fork() -> None:
    read = yaml.safe_load(text("plan-comment.yml"))
    job = read["jobs"]["plan"]
    assert "head.repo.full_name == github.repository" in job["if"]
    assert read["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert "pull_request" in str(read[True]), "never pull_request_target, which gives secrets to the code of anyone"
    steps = [step["run"] for step in job["steps"] if "run" in step]
    assert any("plan --target prod --markdown" in step for step in steps)
    (comments,) = [step for step in job["steps"] if "shell" in step]
    assert comments["if"] == "${{ !cancelled() && hashFiles('plan.md') != '' }}", "also after a plan that failed"
    assert not any("continue-on-error" in step for step in job["steps"]), "the job fails all the same"
    assert not any("${{" in step for step in steps), "an expression in a script is code of who wrote the pull request"


def comment(number: int, body: str, login: str = "github-actions[bot]") -> dict[str, Any]:
    return {"id": number, "body": body, "user": {"login": login}}


MARK = "<!-- plan of the syncs -->"
OTHERS = [comment(number, f"coverage {number}") for number in range(1, 131)]
MOST = 65_536  # characters that GitHub takes
ROW = f"| crm_contacts | crm.contacts | 0 | {'1' * 40} | 4 | |"
LONG = f"{ROW}\n" * (MOST // len(ROW) + 1)
OTHERS += [comment(131, f"{MARK}\nof a person who copied it", "mallory"), comment(132, f"I saw {MARK} above")]


@pytest.mark.parametrize(
    ("there", "written", "plan"),
    [
        (OTHERS, ("POST", "/repos/shop/dbt/issues/7/comments"), "This would update 1 contact.\n"),
        (
            [*OTHERS, comment(140, f"{MARK}\nof yesterday"), comment(141, "lint")],
            ("PATCH", "/repos/shop/dbt/issues/comments/140"),
            "This would update 1 contact.\n",
        ),
        ([comment(140, f"{MARK}\nof yesterday")], ("PATCH", "/repos/shop/dbt/issues/comments/140"), ""),
        (OTHERS, ("POST", "/repos/shop/dbt/issues/7/comments"), LONG),
    ],
    ids=["first", "again", "no plan", "too long"],
)
def test_the_workflow_writes_one_comment_anew_and_no_comment_of_anybody_else(
    tmp_path: Path, there: list[dict[str, Any]], written: tuple[str, str], plan: str
) -> None:
    """The step itself, before a server that answers as GitHub's documented API, a page at a time."""

    def github(request: Received) -> Reply:
        query = parse_qs(urlsplit(request.path).query)
        size, page = (int(query[name][0]) for name in ("per_page", "page")) if request.method == "GET" else (1, 1)
        return json_reply(there[size * (page - 1) : size * page] if request.method == "GET" else {"id": 1})

    (step,) = [step for step in yaml.safe_load(text("plan-comment.yml"))["jobs"]["plan"]["steps"] if "shell" in step]
    (tmp_path / "plan.md").write_text(plan)
    with http_server(github) as server:
        env = {"GITHUB_API_URL": server.url, "GITHUB_REPOSITORY": "shop/dbt", "GH_TOKEN": "canary-token", "NUMBER": "7"}
        done = subprocess.run(
            [sys.executable, "-c", step["run"]], cwd=tmp_path, env=env, check=True, stdout=subprocess.PIPE, text=True
        )
    *read, last = server.received
    assert {request.method for request in read} == {"GET"}
    assert (last.method, last.path) == written
    body = last.json["body"]
    if plan == LONG:
        shown, note = body.removeprefix(f"{MARK}\n").split("\n\nCut here")
        assert len(body) <= MOST
        assert set(shown.split("\n")) == {ROW}, "whole lines"
        assert note == ": the whole plan is in the log of the job.\n"
        assert done.stdout == f"{LONG}\n"
    else:
        assert body == f"{MARK}\n{plan or 'No plan was made: see the log of the job.' + chr(10)}"
    assert {request.headers["authorization"] for request in server.received} == {"Bearer canary-token"}


def test_no_file_holds_a_secret() -> None:
    from dbt_reverse_etl.base.redaction import literal_secrets

    for name in ("kubernetes.yml", "plan-comment.yml"):
        for document in yaml.safe_load_all(text(name)):
            found = [path for path in literal_secrets(document) if "secretRef" not in path]
            allowed = {"secretName", "GH_TOKEN"}
            assert all(allowed & set(path) for path in found), found
