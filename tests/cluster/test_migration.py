"""A cluster moves from plaintext to TLS by rolling restarts, under load.

1. Each node gets second listeners, which need certificates: one for clients and brokers, and one
   for controllers.
2. Clients move to the new listener.
3. Brokers and controllers connect to each other through the new listeners.
4. The plaintext listeners go.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Self

import pytest
from cluster.test_replication import CALM_CONFIGS
from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer
from shoal.client.client import SyncClient
from support.brokers.clusters import ShoalCluster
from support.brokers.ports import free_ports
from support.brokers.queues import Queue
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.security.certificates import Authority, Stores

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from confluent_kafka import KafkaError, Message

PARTITIONS = 3
PROTOCOLS = "PLAINTEXT:PLAINTEXT,SSL:SSL,QUORUM:PLAINTEXT,QUORUM_TLS:SSL"


class Migrating(ShoalCluster):
    """Three brokers whose listeners change, one broker after the other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        authority, self._stores = Authority(), Stores(folder / "stores")
        self._others = dict(zip(self.nodes, (f"127.0.0.1:{p}" for p in free_ports(3)), strict=True))
        self._identities = {
            id: self._stores.configs(authority.issue(f"node-{id}"), authority, f"node-{id}")
            for id in self.nodes
        }
        store = self._stores.configs(authority.issue("client"), authority, "client")
        self._secured_client = {"security.protocol": "SSL", **store}
        self.librdkafka = {"bootstrap.servers": self.bootstrap}
        voters = dict(zip(self.nodes, (f"127.0.0.1:{p}" for p in free_ports(3)), strict=True))
        self._voters = {"QUORUM": self.controllers, "QUORUM_TLS": voters}
        for id in self.nodes:
            self._configure(id, "PLAINTEXT", ["QUORUM"])

    def _configure(self, id: int, inter_broker: str, quorum: list[str], *flags: str) -> None:
        """Prepare a node. `quorum` are its listeners for controllers; nodes connect to the first
        one of others."""
        configs = {
            **CALM_CONFIGS,
            **self._identities[id],
            "ssl.client.auth": "required",
            "listener.security.protocol.map": PROTOCOLS,
            "controller.listener.names": ",".join(quorum),
            "inter.broker.listener.name": inter_broker,
            "process.roles": "broker,controller",
        }
        self.controllers = self._voters[quorum[0]]
        self.quorum = ",".join(f"{id}@{address}" for id, address in self.controllers.items())
        listeners = [f"--listener={name}://{self._voters[name][id]}" for name in quorum]
        self.nodes[id] = self.node(id, self._folder / str(id), configs, *listeners, *flags)

    def roll(self, inter_broker: str, quorum: list[str], *, both: bool = True) -> None:
        """Restart the brokers with these listeners for brokers and controllers, and with both
        listeners for clients or only that of now."""
        name = "PLAINTEXT" if self.listener == "SSL" else "SSL"
        for id in self.nodes:
            assert self.nodes[id].stop() == 0
            second = [f"--listener={name}://{self._others[id]}"] if both else []
            self._configure(id, inter_broker, quorum, *second)
            self.nodes[id].start()
            eventually(self._in_sync, timeout_s=60, what="all replicas in sync")

    def _in_sync(self) -> bool:
        topics = self.metadata(1).topics
        return all(len(p.isr_nodes) == 3 for topic in topics for p in topic.partitions)

    def move(self) -> None:
        """Let clients use TLS from now on."""
        self.listener, self.client = "SSL", self._secured_client
        self.addresses, self._others = self._others, self.addresses
        keystore = self.client["ssl.keystore.location"]
        self.librdkafka = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": self.client["ssl.truststore.location"],
            "ssl.certificate.location": keystore,
            "ssl.key.location": keystore,
        }


class Thread:
    """Work that is repeated until the context ends."""

    def __enter__(self) -> Self:
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self.finish()

    def _run(self) -> None:
        while not self._ends.is_set():
            self.work()

    def work(self) -> None: ...
    def finish(self) -> None: ...


class Jobs(Thread):
    """An idempotent producer with acks=all, and the values that were acknowledged."""

    def __init__(self, properties: Mapping[str, str], topic: str, name: str) -> None:
        self._topic, self._name = topic, name
        self._numbers = itertools.count()
        self.acknowledged: set[bytes] = set()
        self.failed: list[str] = []
        self._producer = Producer(
            {
                **properties,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def work(self) -> None:
        value = f"{self._name}-{next(self._numbers)}"
        self._producer.produce(self._topic, value, on_delivery=self._delivered)
        self._producer.poll(0.005)

    def finish(self) -> None:
        assert self._producer.flush(60) == 0
        assert not self.failed
        assert len(self.acknowledged) == next(self._numbers)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            value = message.value()
            assert isinstance(value, bytes)
            self.acknowledged.add(value)
        else:
            self.failed.append(str(error))


class Worker(Thread):
    """A member of a share group that accepts each job."""

    def __init__(self, properties: Mapping[str, str], queue: Queue) -> None:
        self.got: set[bytes] = set()
        self._member = ShareConsumer(
            {
                **properties,
                "group.id": queue.group,
                "share.acknowledgement.mode": "explicit",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._member.subscribe([queue.topic])

    def work(self) -> None:
        for message in self._member.poll(0.3):
            if message.error() is None:
                self._member.acknowledge(message, AcknowledgeType.ACCEPT)
                value = message.value()
                assert isinstance(value, bytes)
                self.got.add(value)
        with contextlib.suppress(KafkaException):  # A broker has stopped; the jobs come again.
            self._member.commit_sync(10)

    def finish(self) -> None:
        self._member.close()


def go_on(*workers: Worker) -> None:
    before = [len(worker.got) for worker in workers]
    eventually(
        lambda: all(len(w.got) > n for w, n in zip(workers, before, strict=True)),
        timeout_s=60,
        what="each worker gets more jobs",
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Migrating]:
    found = Migrating(tmp_path)
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.mark.nightly
def test_from_plaintext_to_tls_under_load(cluster: Migrating) -> None:
    """No produce fails, and no job is lost."""
    plain = [*cluster.addresses.values(), *cluster.controllers.values()]
    with SyncClient(cluster.bootstrap) as client:
        queue = Queue(client, cluster.bootstrap, partitions=PARTITIONS, replicas=3)
    with contextlib.ExitStack() as after:
        with contextlib.ExitStack() as before:
            jobs = [before.enter_context(Jobs(cluster.librdkafka, queue.topic, "plain"))]
            workers = [before.enter_context(Worker(cluster.librdkafka, queue))]
            go_on(*workers)
            cluster.roll("PLAINTEXT", ["QUORUM", "QUORUM_TLS"])
            go_on(*workers)
            cluster.move()
            workers.append(after.enter_context(Worker(cluster.librdkafka, queue)))
            jobs_with_tls = Jobs(cluster.librdkafka, queue.topic, "tls")
            ends = after.enter_context(contextlib.ExitStack())
            jobs.append(ends.enter_context(jobs_with_tls))
            go_on(*workers)
        cluster.roll("SSL", ["QUORUM_TLS", "QUORUM"])
        cluster.roll("SSL", ["QUORUM_TLS"], both=False)
        go_on(workers[1])
        ends.close()
        expected = jobs[0].acknowledged | jobs[1].acknowledged
        eventually(
            lambda: workers[0].got | workers[1].got >= expected, timeout_s=60, what="all jobs"
        )
    assert workers[0].got | workers[1].got == expected
    for address in plain:
        with pytest.raises(ConnectionRefusedError):
            WireClient(address)
