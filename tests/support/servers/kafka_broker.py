"""A real Kafka broker on this machine: Kafka's own jars, one node that is its own controller."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.servers.maven import jars, java

VERSION = "4.1.0"
USER, PASSWORD = "reader", "canary-password-27182818"
VIEWER = "viewer"  # with the same password
JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
SCRAM = "SCRAM-SHA-512"
_USERS = " ".join(f'user_{user}="{PASSWORD}"' for user in (USER, VIEWER))
LOGIN = f"org.apache.kafka.common.security.plain.PlainLoginModule required {_USERS};"


def tool(name: str) -> list[str]:
    """The command of one of Kafka's own tools."""
    classes = [
        *jars("org.apache.kafka", "kafka_2.13", VERSION),
        *jars("org.apache.kafka", "kafka-tools", VERSION, "-notransitive"),
    ]
    return [java(), "-Xmx512m", "-Dfile.encoding=UTF-8", "-cp", ":".join(classes), f"org.apache.kafka.tools.{name}"]


class KafkaBroker:
    """One broker on free ports of the loopback interface; clients come in plain, with a password (SASL), or that over TLS.

    Attributes:
        servers, sasl_servers, tls_servers: where clients come in; the last one only with a certificate.
    """

    def __init__(self, home: Path, more: Sequence[str] = (), certificate: str = "") -> None:
        """
        Args:
            home: an empty folder for its data and its log.
            more: further lines of `server.properties`.
            certificate: PEM of a private key (PKCS 8) and its certificates.
        """
        names = ["PLAINTEXT", "SASL_PLAINTEXT", "CONTROLLER", *(["SASL_SSL"] if certificate else [])]
        places = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}
        self.servers, self.sasl_servers = places["PLAINTEXT"], places["SASL_PLAINTEXT"]
        self.tls_servers = places.get("SASL_SSL", "")
        self._log, self._settings = home / "log", home / "server.properties"
        (home / "key.pem").write_text(certificate)
        self._settings.write_text("\n".join([*_settings(home, places), *more]))
        self._run = [java(), *JVM, "-cp", ":".join(jars("org.apache.kafka", "kafka_2.13", VERSION))]
        login = f"{SCRAM}=[name={USER},password={PASSWORD}]"
        cluster = ["-t", "MkU3OEVBNTcwNTJENDM2Qk", "--add-scram", login]
        subprocess.run(
            [*self._run, "kafka.tools.StorageTool", "format", *cluster, "-c", str(self._settings)],
            check=True, capture_output=True,
        )  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it on its data; clients are served when this returns."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen([*self._run, "kafka.Kafka", str(self._settings)], stdout=log, stderr=log)
        host, _, port = self.servers.partition(":")
        until = time.monotonic() + 60
        while self._process.poll() is None and time.monotonic() < until:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"the broker did not start:\n{self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait(30)

    def freeze(self) -> None:
        """It keeps its connections and says nothing any more, until `thaw`."""
        os.kill(self._process.pid, signal.SIGSTOP)
        while not all(map(_is_stopped, Path(f"/proc/{self._process.pid}/task").iterdir())):
            time.sleep(0.01)  # a busy machine stops its threads one after the other

    def thaw(self) -> None:
        """It goes on where it was."""
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it in order."""
        self._process.terminate()
        self._process.wait(30)


def _is_stopped(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "TZ"
    except (FileNotFoundError, ProcessLookupError):  # it ended just now
        return True


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listening.getsockname()[1] for listening in sockets]


def _settings(home: Path, places: Mapping[str, str]) -> list[str]:
    listeners = [f"{name}://{place}" for name, place in places.items()]
    advertised = [listener for listener in listeners if not listener.startswith("CONTROLLER")]
    protocols = [f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in places]
    logins = [
        line
        for name in places
        if name.startswith("SASL")
        for line in (
            f"listener.name.{name.lower()}.sasl.enabled.mechanisms=PLAIN,{SCRAM}",
            f"listener.name.{name.lower()}.plain.sasl.jaas.config={LOGIN}",
            f"listener.name.{name.lower()}.{SCRAM.lower()}.sasl.jaas.config="
            "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        )
    ]
    return [
        "process.roles=broker,controller",
        "node.id=1",
        f"controller.quorum.voters=1@{places['CONTROLLER']}",
        "controller.listener.names=CONTROLLER",
        f"listeners={','.join(listeners)}",
        f"advertised.listeners={','.join(advertised)}",
        f"listener.security.protocol.map={','.join(protocols)}",
        "inter.broker.listener.name=PLAINTEXT",
        *logins,
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={home / 'key.pem'}",
        f"log.dirs={home / 'data'}",
        "offsets.topic.replication.factor=1",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
        "auto.create.topics.enable=true",
    ]
