"""One package for both halves, and a plugin that cannot break dbt."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.support import ROOT

OLDEST_DBT = ["dbt-core==1.10.23", "dbt-duckdb==1.10.0"]
SPARK = "{type: spark, method: session, host: NA, schema: plain}"
DUCKDB = "{type: duckdb, schema: plain}"  # small, and needs no JVM

PROJECT = {
    "dbt_project.yml": "name: plain\nversion: '1.0'\nprofile: plain\nflags: {send_anonymous_usage_stats: false}\n",
    "models/one.sql": "select 1 as id\n",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


@pytest.mark.guarantee("Packaging")
def test_the_wheel_carries_the_dbt_package_and_both_halves_have_one_version(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("macros", "models"):
        for file in (ROOT / folder).rglob("*.*"):
            assert f"dbt_reverse_etl/dbt_package/{file.relative_to(ROOT)}" in names
    version = yaml.safe_load((ROOT / "dbt_project.yml").read_text())["version"]
    macro = re.search(r"macro version\(\) %}(.*?){%", (ROOT / "macros/version.sql").read_text())
    assert macro is not None
    assert macro[1] == version
    assert f"-{version}-" in wheel.name


def test_our_tests_never_leak_into_a_project_that_uses_the_package() -> None:
    project = yaml.safe_load((ROOT / "dbt_project.yml").read_text())
    assert project["test-paths"] == []


@pytest.mark.guarantee("Packaging")
def test_importing_the_package_loads_nothing_but_the_standard_library() -> None:
    code = "import sys, dbt_reverse_etl; print(sorted({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    found = subprocess.run(
        [sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True, cwd=ROOT / "python"
    )
    foreign = [name for name in eval(found.stdout) if not name.startswith(("__", "_distutils"))]
    assert foreign == ["dbt_reverse_etl"]


def _project(folder: Path, output: str) -> Path:
    profiles = f"plain: {{target: dev, outputs: {{dev: {output}}}}}\n"
    for name, text in {**PROJECT, "profiles.yml": profiles}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _parse(python: Path | str, folder: Path, command: str = "parse") -> subprocess.CompletedProcess[str]:
    code = f"from dbt.cli.main import cli; cli(['{command}'])"
    return subprocess.run([str(python), "-c", code], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.guarantee("Packaging")
def test_a_project_without_our_configuration_works_with_the_plugin_installed(tmp_path: Path) -> None:
    done = _parse(sys.executable, _project(tmp_path, SPARK))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reverse" not in done.stdout.lower()


@pytest.mark.guarantee("dbt and its commands")
def test_a_retry_where_nothing_ever_ran_ends_with_the_words_of_dbt_alone(tmp_path: Path) -> None:
    done = _parse(sys.executable, _project(tmp_path, SPARK), "retry")
    assert done.returncode != 0
    assert "Could not find previous run" in done.stdout, done.stdout + done.stderr
    assert "reverse" not in done.stdout.lower()


@pytest.mark.full  # it downloads what the package itself needs
@pytest.mark.guarantee("Packaging")
def test_the_wheel_alone_in_a_clean_environment_says_what_else_a_push_needs(tmp_path: Path, wheel: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    subprocess.run([tmp_path / "venv/bin/pip", "install", "-q", wheel], check=True, capture_output=True)
    for arguments, code, said in (("--version", 0, "version"), ("status", 2, "pip install 'dbt-reverse-etl[spark]'")):
        command = [tmp_path / "venv/bin/dbt-reverse-etl", arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr


@pytest.mark.full  # it downloads dbt
@pytest.mark.guarantee("Packaging")
def test_the_oldest_dbt_works_with_the_wheel_alone_and_none_of_its_dependencies(tmp_path: Path, wheel: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", *OLDEST_DBT], check=True, capture_output=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True, capture_output=True)
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "pyarrow", "orjson"], check=True, capture_output=True)
    done = _parse(python, _project(tmp_path / "project", DUCKDB))
    assert done.returncode == 0, done.stdout + done.stderr
    version = subprocess.run([python, "-m", "pip", "show", "dbt-core"], check=True, capture_output=True, text=True)
    assert "Version: 1.10" in version.stdout
