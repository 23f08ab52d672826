"""Scenes: a simulated cluster of real brokers in which a test causes exactly one fault.

Time passes only while the test waits for something. Requests go to the brokers one at a time, each
from a separate machine that reaches all of them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.net.connection import connect
from shoal.client.settings import Settings
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from shoal.server.cluster_config import Listeners
from shoal.server.handlers import HANDLERS
from sim.cluster_brokers import CONTROLLER_PORT, PORT, BrokerMachine, SimCluster
from sim.cluster_kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from uuid import UUID

    from shoal.replication.partition import Partition

#: Ends a hang, in simulated seconds.
LIMIT_S = 120.0


class Asked:
    """A request and its result; `after_s` is the time until the response."""

    def __init__(self, scene: Scene, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._scene = scene
        self._began_s = scene.kernel.now
        self.done = False
        self.after_s = 0.0
        self._found: Any = None
        self._error: ClientError | None = None
        machine = scene.cluster.client(f"asker-{len(scene.cluster.clients)}")
        machine.boot().spawn(self._run(work))

    async def _run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            self._found = await work()
        except ClientError as error:
            self._error = error
        self.after_s = self._scene.kernel.now - self._began_s
        self.done = True

    def result(self) -> Any:
        """Wait for the result. Raises the `ClientError` that it ended with."""
        self._scene.until(lambda: self.done, "an answer")
        if self._error is not None:
            raise self._error
        return self._found


class Scene:
    """A cluster whose brokers serve."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster, self.kernel = cluster, cluster.kernel

    def until(self, done: Callable[..., Any], what: str, limit_s: float = LIMIT_S) -> None:
        self.cluster.until(lambda: bool(done()), limit_s, what)

    def passes(self, seconds: float) -> None:
        self.kernel.run(self.kernel.now + seconds)

    def settings(self, id: int, port: int = PORT, **options: Any) -> Settings:
        return Settings(
            ((f"10.0.0.{id}", port),), request_timeout_ms=int(LIMIT_S * 1000), **options
        )

    def ask(self, id: int, api_key: ApiKey, fields: Mapping[str, Any], **options: Any) -> Asked:
        """Send one request to a broker, at its listener for controllers if only that serves the
        API. The caller may wait for the response later."""
        of_controllers = HANDLERS[api_key].on is Listeners.CONTROLLER
        settings = self.settings(id, CONTROLLER_PORT if of_controllers else PORT)

        async def work() -> Any:
            connection = await connect(settings, settings.bootstrap[0])
            try:
                return await connection.request(api_key, fields, **options)
            finally:
                connection.close()

        return Asked(self, work)

    def asked(self, id: int, api_key: ApiKey, fields: Mapping[str, Any], **options: Any) -> Any:
        return self.ask(id, api_key, fields, **options).result()

    # Roles.

    def controller(self) -> BrokerMachine:
        """The broker that leads the quorum, according to most brokers."""

        def leader() -> BrokerMachine | None:
            words = [broker.quorum.leader_id for _, broker in self.cluster.running()]
            most = max(set(words), key=words.count)
            if most is None or 2 * words.count(most) <= len(words):
                return None
            return self.cluster.brokers[most]

        self.until(leader, "a controller")
        found = leader()
        assert found is not None
        return found

    def client(self) -> Client:
        """A client of the cluster, in simulated time. Create it inside a process."""
        environment = self.cluster.brokers[1].environment()
        return Client(Settings.from_bootstrap(self.cluster.bootstrap), environment)

    def others(self, machine: BrokerMachine) -> list[BrokerMachine]:
        return [other for other in self.cluster.brokers.values() if other is not machine]

    def leader(self, topic: str, index: int, asked: int = 1) -> int:
        """Return a partition's leader in the image of one broker."""
        broker = self.cluster.brokers[asked].broker
        assert broker is not None
        return int(broker.image.topics[topic].partitions[index].leader)

    def partition(self, topic: str, index: int, id: int) -> Partition:
        """Return a broker's partition."""
        broker = self.cluster.brokers[id].broker
        found = None if broker is None else broker.partitions.find_by_name(topic, index)
        assert found is not None, f"broker {id} has no {topic}-{index}"
        return found

    def coordinator(self, key: str, key_type: int, asked: int = 1) -> int:
        """Return the coordinator of a key according to one broker, which may create the topic for
        it."""
        fields = {"key_type": key_type, "coordinator_keys": [key]}
        found: list[int] = []

        def is_found() -> bool:
            (row,) = self.asked(asked, ApiKey.FIND_COORDINATOR, fields).coordinators
            found[:] = [] if row.error_code else [row.node_id]
            return bool(found)

        while not is_found():
            self.passes(0.1)
        return found[0]

    # Frequent requests.

    def make_topic(
        self,
        topic: str,
        replicas: Sequence[int],
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> UUID:
        """Create a topic with these replicas, led by the first, and return its id once all brokers
        have it."""
        rows = [{"partition_index": i, "broker_ids": replicas} for i in range(partitions)]
        new = {
            "name": topic,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": rows,
            "configs": [{"name": name, "value": value} for name, value in (configs or {}).items()],
        }
        fields = {"topics": [new], "timeout_ms": 10_000, "validate_only": False}
        (row,) = self.asked(replicas[0], ApiKey.CREATE_TOPICS, fields).topics
        assert not row.error_code, row
        brokers = [broker for _, broker in self.cluster.running()]
        self.until(
            lambda: all(topic in b.image.topics for b in brokers), "all brokers have the topic"
        )
        found: UUID = row.topic_id
        return found

    def produce(
        self,
        id: int,
        topic_id: UUID,
        index: int = 0,
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
        keys: Sequence[bytes | None] = (None,),
        producer: Mapping[str, int] | None = None,
        sequence: int = 0,
        transaction: Mapping[str, Any] | None = None,
    ) -> Asked:
        """Produce a batch with a record for each key at a broker, from an idempotent producer with
        that id and epoch or in the transaction that the fields describe. The result is its row of
        the response."""
        now_ms = self.cluster.brokers[id].now_ms()
        batch = [(now_ms, key, b"value", ()) for key in keys]
        header: dict[str, Any] = {}
        if producer is not None:
            header = {**producer, "base_sequence": sequence}
        fields: dict[str, Any] = {"acks": acks, "timeout_ms": timeout_ms}
        if transaction is not None:
            header = {name: transaction[name] for name in ("producer_id", "producer_epoch")}
            header |= {"base_sequence": sequence, "transactional": True}
            fields["transactional_id"] = transaction["transactional_id"]
        rows = [{"index": index, "records": bytes(build_batch(batch, **header))}]
        fields["topic_data"] = [{"name": "", "topic_id": topic_id, "partition_data": rows}]
        return self.ask(id, ApiKey.PRODUCE, fields)

    # Faults.

    def cut_off(self, machine: BrokerMachine) -> None:
        """Drop traffic between this broker and the others; clients reach all."""
        for other in self.others(machine):
            self.cut(machine, other)

    def cut(self, one: BrokerMachine, other: BrokerMachine) -> None:
        """Drop traffic between the two brokers."""
        ends = one.host.address, other.host.address
        self.cluster.network.cut |= {ends, ends[::-1]}

    def heal(self) -> None:
        self.cluster.network.cut.clear()


@contextlib.contextmanager
def scene(
    seed: int = 1,
    *,
    brokers: int = 3,
    configs: Mapping[str, str] | None = None,
    voters: Sequence[int] = (),
    own_configs: Mapping[int, Mapping[str, str]] | None = None,
) -> Iterator[Scene]:
    """A cluster of `count` brokers, once they serve. Its trace is printed if the test fails."""
    kernel = Kernel(seed, keep_trace=True)
    cluster = SimCluster(kernel, brokers, configs, voters, own_configs)
    try:
        for broker in cluster.brokers.values():
            broker.start()
        cluster.until(cluster.fully_replicated, LIMIT_S, "a fresh cluster serves")
        yield Scene(cluster)
    except BaseException:
        print("\n".join(kernel.lines or ()))
        raise
    finally:
        for machine in cluster.machines():
            machine.bury()


__all__ = ["Asked", "ErrorCode", "Scene", "scene"]
