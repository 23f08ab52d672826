"""Apache Kafka itself, one node or several, for tests that compare Shoal with the original.

The jars come from `make java`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.net.connection import connect
from shoal.client.settings import Settings
from shoal.protocol.api import ApiKey
from support.brokers.ports import free_ports
from support.kafka.java_classes import java
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

CLUSTER_ID = "Kafka-peer-of-our-tests"
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 180
#: Settings of a broker that is also its controller.
SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
}


class KafkaProcess:
    """A broker with its controller, if `standalone`. `listeners` maps further listener names to
    security protocols."""

    def __init__(
        self,
        directory: Path,
        *,
        listeners: Mapping[str, str] | None = None,
        configs: Mapping[str, str] | None = None,
        format_flags: tuple[str, ...] = (),
        jvm_flags: tuple[str, ...] = (),
        standalone: bool = True,
        share_version: int = 1,
    ) -> None:
        self.directory = directory
        protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {}), "CONTROLLER": "PLAINTEXT"}
        ports = dict(zip(protocols, free_ports(len(protocols)), strict=True))
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self._configs = {
            **SINGLE_NODE,
            "log.dirs": str(directory / "log"),
            "listeners": ",".join(f"{n}://{a}" for n, a in self.addresses.items()),
            "advertised.listeners": ",".join(f"{n}://{a}" for n, a in self.addresses.items()),
            "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
            "controller.quorum.bootstrap.servers": self.addresses["CONTROLLER"],
            **(configs or {}),
        }
        self._format_flags = (*(["--standalone"] if standalone else []), *format_flags)
        self._jvm_flags = jvm_flags
        self._share_version = share_version
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return self.addresses["PLAINTEXT"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> KafkaProcess:
        """Format if it is new, start, and wait for the first response."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{n}={v}\n" for n, v in self._configs.items()))
        if not (Path(self._configs["log.dirs"]) / "meta.properties").exists():
            self._format(properties)
        with (self.directory / "out").open("wb") as out:
            self._process = subprocess.Popen(
                java(*self._jvm_flags, "kafka.Kafka", str(properties), heap="512m"),
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            eventually(self._answers, timeout_s=START_TIMEOUT_S, what="Kafka's first response")
        except (AssertionError, ChildProcessError):
            self.kill9()
            said = (self.directory / "out").read_text()[-4000:]
            raise AssertionError(f"Kafka did not start:\n{said}") from None
        return self

    def _format(self, properties: Path) -> None:
        done = subprocess.run(
            java(
                "kafka.tools.StorageTool",
                "format",
                "-t",
                CLUSTER_ID,
                "-c",
                str(properties),
                "--feature",
                f"share.version={self._share_version}",
                *self._format_flags,
            ),
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ChildProcessError("Kafka has ended")

        async def ask() -> bool:
            async with Client(self.bootstrap) as client:
                return bool((await client.admin.describe_cluster()).brokers)

        try:
            return asyncio.run(ask())
        except ClientError:
            return False

    def stop(self) -> None:
        """Stop it cleanly. Where nothing is read of it afterwards, `kill9` is quicker."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        finally:
            self.kill9()

    def kill9(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class KafkaCluster:
    """Brokers with the ids from 1 on; the first one is the controller, too. All have `configs`."""

    def __init__(
        self, folder: Path, nodes: int = 3, *, configs: Mapping[str, str] | None = None
    ) -> None:
        first = KafkaProcess(folder / "1", configs=configs)
        self.nodes = {1: first}
        for id in range(2, nodes + 1):
            address = f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"
            own = {
                **(configs or {}),
                "process.roles": "broker",
                "node.id": str(id),
                "listeners": address,
                "advertised.listeners": address,
                "controller.quorum.bootstrap.servers": first.addresses["CONTROLLER"],
            }
            node = KafkaProcess(folder / str(id), configs=own, standalone=False)
            node.addresses = {"PLAINTEXT": address.removeprefix("PLAINTEXT://")}
            self.nodes[id] = node

    @property
    def brokers(self) -> list[int]:
        return sorted(self.nodes)

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> KafkaCluster:
        """Start all nodes, and wait until each of them lists all brokers."""
        for node in self.nodes.values():
            node.start()
        for id in self.nodes:
            eventually(lambda id=id: len(self.metadata(id).brokers) == len(self.nodes))
        return self

    def stop(self) -> None:
        for node in reversed(self.nodes.values()):
            node.kill9()

    def freeze(self, id: int) -> None:
        os.kill(self.nodes[id].pid, signal.SIGSTOP)

    def thaw(self, id: int) -> None:
        os.kill(self.nodes[id].pid, signal.SIGCONT)

    def controller(self) -> int:
        return 1

    def metadata(self, id: int) -> Any:
        """Return a broker's Metadata response for all topics."""
        host, _, port = self.nodes[id].bootstrap.rpartition(":")

        async def ask() -> Any:
            connection = await connect(Settings.from_bootstrap(self.bootstrap), (host, int(port)))
            try:
                return await connection.request(ApiKey.METADATA, {"topics": None})
            finally:
                connection.close()

        return asyncio.run(ask())
