"""The unit of systemd and the Dockerfile, each on a machine of its own: as a user without rights, with what each may write and no more."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.deploy.docker import PATH, built
from tests.support.deploy.machine import as_user, machine, said
from tests.support.deploy.systemd import environment, protections, service_of
from tests.support.serve.world import World, wait_for
from tests.support.servers.cloud_api import SECRET, TOKEN, event, fetch, post
from tests.support.servers.http import free_port

DEPLOY = ROOT / "examples" / "deploy"
SECRETS = {"CLOUD_TOKEN": TOKEN, "HOOK_SECRET": SECRET}
UNIT = service_of((DEPLOY / "dbt-reverse-etl.service").read_text())

TRIED = (
    "run 1: exit code 2, the configuration is wrong; it is tried again"  # as it should: the profile is no Spark session
)
# What a push asks of its surroundings: Ivy, of Spark, writes to the home that Java knows.
PROBE = """
home=$(java $SPARK_SUBMIT_OPTS -XshowSettings:properties -version 2>&1 | sed -n 's/^ *user.home = //p')
mkdir -p "$home/.ivy2.5.2/cache" && echo "Ivy may write to $home"
for one in /etc /usr /home/dbt /srv /var/lib; do touch $one/x 2>/dev/null && echo "may write to $one"; done
touch /tmp/x && touch ./x
"""


@pytest.fixture
def project(tmp_path: Path) -> World:
    """A project whose push ends at once, for its profile is no Spark session; a campaign tries one that is."""
    made = World(tmp_path / "shop")
    del made.settings["push_command"]
    made.configure(listen=f"127.0.0.1:{free_port()}")
    (made.folder / "dbt_project.yml").write_text("name: shop\nversion: '1.0'\nprofile: shop\n")
    with (made.folder / "profiles.yml").open("a") as file:
        file.write("shop: {target: prod, outputs: {prod: {type: duckdb, schema: shop}}}\n")
    return made


def wait_for_health(url: str, process: subprocess.Popen[str], shared: Path, seconds: float = 60) -> None:
    def answers() -> bool:
        assert process.poll() is None, said(shared)
        try:
            return fetch(f"{url}/healthz")[0] == 200
        except OSError:
            return False

    wait_for(answers, "it never answered", seconds)


def on_systemd(project: World, build: str = "", env: dict[str, str] | None = None) -> str:
    """The script of a machine on which the unit was set up as its head says; the service is started after a look around.

    Args:
        build: what its user did in the project before.
        env: the file of variables, secrets of dbt Cloud beside.
    """
    if any(Path(one).is_relative_to("/tmp") for one in (ROOT, sys.prefix)):
        pytest.fail("found the project below /tmp, which PrivateTmp of the unit hides; expected it elsewhere: move it")
    (user,), (folder,), (command,) = (UNIT[key] for key in ("User", "WorkingDirectory", "ExecStart"))
    given = {"HOME": f"/home/{user}", "USER": user, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    (project.folder / "build.sh").write_text(build)
    (project.folder / "started.sh").write_text(f"{PROBE}\nexec {command}\n")
    return f"""
useradd --system --create-home {user}
mkdir {folder}
mount --bind /shared/{project.folder.name} {folder}
ln -sfn {sys.prefix} {folder}/.venv
chown -hR {user}:{user} {folder}
( {as_user(user, folder, given, "sh -eu build.sh")} )
{protections(UNIT)}
{as_user(user, folder, {**given, **environment(UNIT), **SECRETS, **(env or {})}, "sh started.sh")}
"""


def test_the_unit_runs_serve_and_a_push_which_write_where_it_lets_them_and_nowhere_else(
    project: World, tmp_path: Path
) -> None:
    with machine(on_systemd(project), tmp_path) as process:
        url = f"http://{project.settings['listen']}"
        wait_for_health(url, process, tmp_path)
        project.api.add_run(1)
        assert post(url, event(1))[0] == 200
        wait_for(lambda: TRIED in said(tmp_path), "it never noted the run")
    assert "type: spark with method: session" in said(tmp_path)
    assert [line for line in said(tmp_path).splitlines() if "may write" in line] == [
        "Ivy may write to /var/cache/dbt-reverse-etl"
    ]


@pytest.mark.parametrize("volume", ["of docker", "of kubernetes"])
def test_the_image_runs_serve_which_is_reached_from_outside_and_keeps_its_position_in_the_volume(
    project: World, tmp_path: Path, volume: str
) -> None:
    """A new volume of Docker has the owner of the folder that it covers; one of Kubernetes is root's, and open to `fsGroup`."""
    port = str(free_port())
    (project.folder / "dbt_reverse_etl-0.1.0-py3-none-any.whl").touch()
    image = built((DEPLOY / "Dockerfile").read_text().replace("8580", port), f"/shared/{project.folder.name}")
    owned = {
        "of docker": f"chown --reference={image.volume} /shared/volume; chmod --reference={image.volume} /shared/volume",
        "of kubernetes": f"chown root:{image.user} /shared/volume; chmod 2775 /shared/volume",
    }
    script = f"""
{image.script}
mkdir /shared/volume
{owned[volume]}
mount --bind /shared/volume {image.volume}
{as_user(image.user, image.folder, {"PATH": PATH, "HOME": "/tmp", **SECRETS}, shlex.join(image.command))}
"""
    with machine(script, tmp_path) as process:
        wait_for_health(f"http://127.0.0.2:{port}", process, tmp_path)  # no address on which a loopback listener is
        project.api.add_run(1)
        assert post(f"http://127.0.0.2:{port}", event(1))[0] == 200
        wait_for(lambda: TRIED in said(tmp_path), "it never noted the run")
        subprocess.run([sys.executable, *image.health[1:]], check=True, capture_output=True)
    assert "pip install --no-cache-dir /tmp/dbt_reverse_etl-0.1.0-py3-none-any.whl[spark,serve" in said(tmp_path)
    assert f"listening on http://0.0.0.0:{image.port}/" in said(tmp_path)
