"""Servers of Spark as processes of this machine: a standalone cluster of a master and two workers, Spark Connect, and a thrift server with its metastore."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from tests.support.delivery.scene import wait_for
from tests.support.servers.http import free_port
from tests.support.servers.maven import jars, java
from tests.support.spark_session import JVM, delta_lake

_BIN = Path(pyspark.__file__).parent / "bin"
_DEPLOY = "org.apache.spark.deploy"
_DERBY, _DERBY_VERSION = "org.apache.derby", "10.16.1.1"  # the version that PySpark brings


@dataclass
class Cluster:
    """Attributes: folder: of its logs, and of what its executors write."""

    folder: Path
    url: str = ""
    machines: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def executors(self) -> list[psutil.Process]:
        """Of every worker that lives; those that run for an application now."""
        return [one for machine in self.machines for one in _below(machine) if "CoarseGrainedExecutor" in _line(one)]

    def kill_an_executor(self) -> None:
        """Spark starts another one."""
        self.executors()[0].kill()

    def lose_a_machine(self) -> None:
        """The worker, its executors and their Python processes, all at once."""
        _kill(self.machines.pop())


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """On the loopback interface, with ports that are free."""
    folder.mkdir(parents=True)
    cluster = Cluster(folder)
    master = _start(folder / "master.log", "master.Master", "--port", "0")
    started = [master]
    try:
        cluster.url = _found(folder / "master.log", r"Starting Spark master at (spark://\S+)", master)
        for name in ("first", "second"):
            place = ("--work-dir", str(folder / name), "--cores", "2", "--memory", "2g")
            started.append(_start(folder / f"{name}.log", "worker.Worker", *place, cluster.url))
        cluster.machines = started[1:]
        for name, machine in zip(("first", "second"), tuple(cluster.machines), strict=True):
            _found(folder / f"{name}.log", r"(Successfully registered with master)", machine)
        yield cluster
    finally:
        for one in started:
            _kill(one)


def python_without_the_package(folder: Path, *, but: str = "") -> Path:
    """A Python that has all packages of this one but this very package: what executors on other machines have.

    Args:
        but: a module that it lacks, too.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    packages = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for place in (Path(place) for place in sys.path if "site-packages" in place):
        for one in place.iterdir():
            link = packages / one.name
            if one.suffix != ".pth" and one.name not in ("dbt_reverse_etl", but) and not link.exists():
                link.symlink_to(one)
    python = folder / "bin/python"
    command = [str(python), "-c", "import pyarrow, dbt_reverse_etl"]
    told = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False).stderr
    assert "No module named 'dbt_reverse_etl'" in told, told
    return python


def environment(memory: str = "256m") -> Mapping[str, str]:
    """Of a machine that knows nothing of this project; so much memory for a server."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "PYTEST_"))}
    return {**ours, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": memory, "SPARK_DAEMON_JAVA_OPTS": JVM}


@contextmanager
def connect_server(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """Its address; `settings` are those of its session."""
    folder.mkdir(parents=True)
    said = {
        **settings,
        "spark.sql.catalogImplementation": "hive",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.log.level": "INFO",
    }
    log = folder / "server.log"
    server = _submitted(log, "org.apache.spark.sql.connect.service.SparkConnectServer", said)
    try:
        port = _found(log, r"Spark Connect server started at: \S*:(\d+)", server)
        yield f"sc://127.0.0.1:{port}"
    finally:
        _kill(server)


@contextmanager
def metastore(folder: Path) -> Iterator[dict[str, str]]:
    """In a database server, so that several processes share it: settings of their sessions."""
    folder.mkdir(parents=True)
    log, port = folder / "metastore.log", free_port()
    (client,) = [path for path in jars(_DERBY, "derbyclient", _DERBY_VERSION) if "derbyclient" in path]
    place = ["-cp", ":".join(jars(_DERBY, "derbynet", _DERBY_VERSION)), f"-Dderby.system.home={folder}", *JVM.split()]
    command = [
        java(),
        *place,
        "org.apache.derby.drda.NetworkServerControl",
        "start",
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    try:
        _found(log, "(started and ready)", server)
        yield {
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby://127.0.0.1:{port}/metastore;create=true",
            "spark.hadoop.javax.jdo.option.ConnectionDriverName": "org.apache.derby.client.ClientAutoloadedDriver",
            "spark.driver.extraClassPath": client,
        }
    finally:
        _kill(server)


@contextmanager
def thrift_server(folder: Path, settings: Mapping[str, str]) -> Iterator[int]:
    """Its port; `settings` are those of its sessions, but for packages: its threads see its class path alone."""
    folder.mkdir(parents=True)
    port = free_port()
    said = {
        **{name: value for name, value in settings.items() if name != "spark.jars.packages"},
        "spark.driver.extraClassPath": ":".join([settings["spark.driver.extraClassPath"], *_delta_jars()]),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.server2.thrift.bind.host": "127.0.0.1",
        "spark.hadoop.hive.server2.thrift.port": str(port),
        "spark.log.level": "INFO",
    }
    log = folder / "server.log"
    server = _submitted(log, "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2", said, "spark-internal")
    try:
        _found(log, "(ThriftBinaryCLIService on port)", server)
        yield port
    finally:
        _kill(server)


def _delta_jars() -> list[str]:
    organisation, module, version = delta_lake().split(":")
    return [path for path in jars(organisation, module, version) if f"/{organisation}/" in path]


def _submitted(log: Path, name: str, settings: Mapping[str, str], *application: str) -> subprocess.Popen[bytes]:
    given = [word for setting, value in settings.items() for word in ("--conf", f"{setting}={value}")]
    return _process(log, "spark-submit", *given, "--class", name, *application, memory="2g")


def _start(log: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    return _process(log, "spark-class", f"{_DEPLOY}.{name}", "--host", "127.0.0.1", "--webui-port", "0", *arguments)


def _process(log: Path, program: str, *arguments: str, memory: str = "256m") -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        command = [str(_BIN / program), *arguments]
        return subprocess.Popen(command, cwd=log.parent, env=environment(memory), stdout=output, stderr=output)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    for child in _below(process):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.kill()
    process.wait(30)


def _found(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    def told() -> bool:
        assert process.poll() is None, log.read_text()
        return re.search(pattern, log.read_text()) is not None

    wait_for(told, 120)
    found = re.search(pattern, log.read_text())
    assert found
    return found[1]


def _below(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
