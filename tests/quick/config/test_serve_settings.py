"""What `dbt_reverse_etl: serve:` may say in profiles.yml."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from dbt_reverse_etl.base.errors import ConfigurationError, ReverseEtlError
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.serve.service import listening
from dbt_reverse_etl.serve.settings import ServeSettings, load_settings
from tests.support import ROOT
from tests.support.config.loaded import load_destinations

ENV = {"TOKEN": "dbtc-canary-of-a-token", "SECRET": "canary-secret-of-a-webhook"}
GOOD: dict[str, Any] = {
    "account_id": 12,
    "token": "{{ env_var('TOKEN') }}",
    "webhook_secret": "{{ env_var('SECRET') }}",
    "jobs": [{"job_id": 345, "target": "prod"}],
}


def load(folder: Path, env: dict[str, str] = ENV, *, webhook: bool = True, **changes: Any) -> ServeSettings:
    block = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    written = {"dbt_reverse_etl": {"outputs": {"prod": "plan"}, "serve": block}}
    (folder / "profiles.yml").write_text(yaml.safe_dump(written))
    return load_settings([folder], env, webhook=webhook)


def refused(folder: Path, env: dict[str, str] = ENV, **changes: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(folder, env, **changes)
    problems = [str(problem) for problem in caught.value.problems]
    for secret in ENV.values():
        assert secret not in "".join(problems)
    return problems


def test_a_few_lines_are_enough_and_secrets_are_hidden_and_redacted(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.url == "https://cloud.getdbt.com"
    assert settings.targets == {345: "prod"}
    assert settings.address == ("127.0.0.1", 8580)
    for secret in ENV.values():
        assert secret not in repr(settings)
        assert secret not in redact(f"HTTP 500: {secret}")
    assert settings.api().secret_headers() == {"Authorization": f"Token {ENV['TOKEN']}"}
    assert settings.api().url == "https://cloud.getdbt.com/api/v2/accounts/12"


@pytest.mark.parametrize("seconds", [3, 181, 3600])
def test_a_timeout_that_is_accepted_is_that_of_the_api(tmp_path: Path, seconds: int) -> None:
    timeout = load(tmp_path, timeout=seconds).api().timeout
    assert (timeout.connect, timeout.read) == (min(seconds, 10), seconds)


@pytest.mark.guarantee("dbt Cloud")
def test_every_problem_comes_at_once(tmp_path: Path) -> None:
    problems = refused(
        tmp_path,
        {},
        account_id=0,
        jobs=[{"job_id": 1, "target": "staging"}, {"job_id": "x"}],
        url="http://cloud.example.com",
        listen="8580",
        replay_window=5,
        jobz=[],
    )
    told = "\n".join(problems)
    for part in (
        "variable TOKEN, which is not set",
        "variable SECRET, which is not set",
        "account_id",
        "jobs.0.target: found a target without destinations",
        "jobs.1.job_id",
        "jobs.1.target: found nothing",
        "found http://; expected https://",
        "found no address",
        "replay_window",
        "did you mean 'jobs'?",
    ):
        assert part in told, part


def test_a_mistake_in_an_option_of_the_command_is_not_looked_for_in_the_file(tmp_path: Path) -> None:
    load(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        load_settings([tmp_path], {}, webhook=False, listen="abc")
    where = [problem.where for problem in caught.value.problems]
    assert where == [f"{tmp_path}/profiles.yml: dbt_reverse_etl.serve.token", "--listen"]


def test_an_address_that_cannot_be_bound_is_refused_with_the_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        reasons = {f"127.0.0.1:{taken.getsockname()[1]}": errno.EADDRINUSE, "192.0.2.1:8580": errno.EADDRNOTAVAIL}
        for listen, reason in reasons.items():
            with pytest.raises(ReverseEtlError) as caught:
                listening(load(tmp_path, listen=listen))
            assert f"found {listen}, which cannot be bound: {os.strerror(reason)}; expected" in str(caught.value)


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize("name", ["token", "webhook_secret"])
def test_a_secret_that_stands_in_the_file_is_refused_and_not_shown(tmp_path: Path, name: str) -> None:
    (problem,) = refused(tmp_path, **{name: "canary-literal-in-the-file"})
    assert "a text in the file" in problem
    assert "env_var" in problem
    assert "canary-literal" not in problem


@pytest.mark.parametrize("secret", ["", "short"])
def test_a_secret_with_which_anybody_could_sign_is_refused(tmp_path: Path, secret: str) -> None:
    (problem,) = refused(tmp_path, {**ENV, "SECRET": secret})
    assert "fewer than 16 characters" in problem


def test_a_line_break_at_the_end_of_a_secret_is_refused_before_every_webhook_would_be(tmp_path: Path) -> None:
    for name in ("TOKEN", "SECRET"):
        (problem,) = refused(tmp_path, {**ENV, name: f"{ENV[name]}\n"})
        assert "look for a line break at the end of the variable" in problem


def test_without_a_webhook_its_secret_is_neither_needed_nor_read(tmp_path: Path) -> None:
    assert "create the webhook" in refused(tmp_path, webhook_secret=None)[0]
    assert load(tmp_path, webhook=False, webhook_secret=None).webhook_secret is None
    assert load(tmp_path, {"TOKEN": ENV["TOKEN"]}, webhook=False).webhook_secret is None


def test_the_former_name_of_the_folder_is_refused_with_the_new_one(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, queue=".reverse-etl-queue")
    assert "rename it to `folder`" in problem


def test_a_job_has_one_target(tmp_path: Path) -> None:
    twice = [{"job_id": 345, "target": "prod"}, {"job_id": 345, "target": "prod"}]
    assert "found a job twice" in refused(tmp_path, jobs=twice)[0]


@pytest.mark.parametrize(
    "url",
    ["http://cloud.example.com", "https://user:pass@cloud.example.com", "ftp://x", "https://169.254.169.254", "x"],
)
def test_an_api_that_is_not_safe_to_send_a_token_to_is_refused(tmp_path: Path, url: str) -> None:
    (problem,) = refused(tmp_path, url=url)
    assert "serve.url" in problem


def test_a_project_without_the_block_is_told_where_it_is_described(tmp_path: Path) -> None:
    (tmp_path / "profiles.yml").write_text("dbt_reverse_etl: {outputs: {prod: plan}}\n")
    with pytest.raises(ConfigurationError, match=r"docs/dbt-cloud\.md"):
        load_settings([tmp_path], ENV, webhook=True)


def test_the_block_disturbs_no_push_and_another_key_is_still_refused(tmp_path: Path) -> None:
    load(tmp_path)
    load_destinations([tmp_path], "prod", {})
    (tmp_path / "profiles.yml").write_text("dbt_reverse_etl: {outputs: {prod: plan}, served: {}}\n")
    with pytest.raises(ConfigurationError, match="the keys served"):
        load_destinations([tmp_path], "prod", {})


DOCS = (ROOT / "docs/dbt-cloud.md").read_text(encoding="utf-8")


def test_every_setting_is_documented_and_every_documented_key_is_one() -> None:
    cells = re.search(r"## Settings\n(.*?)\n## ", DOCS, re.DOTALL)
    assert cells
    assert set(re.findall(r"^\| `(\w+)` \|", cells[1], re.MULTILINE)) == set(ServeSettings.model_fields)


def test_the_settings_of_the_documentation_load(tmp_path: Path) -> None:
    block = re.search(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    assert block
    (tmp_path / "profiles.yml").write_text(block[1])
    env = {"DBT_CLOUD_TOKEN": ENV["TOKEN"], "DBT_CLOUD_WEBHOOK_SECRET": ENV["SECRET"]}
    assert load_settings([tmp_path], env, webhook=True).targets == {678: "prod"}
    assert isinstance(load_destinations([tmp_path], "prod", {"CRM_PASSWORD": "canary-1.46557123"}), dict)
