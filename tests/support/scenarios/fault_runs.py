"""Whole runs of clients against a cluster with faults, and the checks of what they saw."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.client import Client
from shoal.client.errors import expect
from shoal.record.batch import iter_headers
from support.runs.conditions import eventually
from support.scenarios.fault_clients import (
    GroupMember,
    ShareMember,
    TransactionalWriter,
    Worker,
    Writer,
)
from support.scenarios.histories import History, Log, Outage, Place, check, counts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from support.brokers.clusters import ShoalCluster

TOPIC = "work"
PARTITIONS = 3
#: Ends a hang.
HANG_S = 90.0
SHARE = {
    "share.auto.offset.reset": "earliest",
    "share.isolation.level": "read_committed",
    "share.delivery.count.limit": "10",
}


class Fault(NamedTuple):
    """What happens to a broker: kill, freeze or restart; to a leader, a controller or a
    follower."""

    how: str
    role: str


class Run:
    """A cluster, its clients, and the faults of its brokers."""

    share_group = ShareMember.GROUP

    def __init__(
        self, cluster: ShoalCluster, *, replicas: int = 3, transactions: bool = True
    ) -> None:
        self.cluster, self.history, self.replicas = cluster, History(), replicas
        parts = (cluster.bootstrap, TOPIC, self.history)
        self.plain = [Writer(*parts, name, PARTITIONS) for name in ("w1", "w2")]
        self.writers: list[Worker] = [*self.plain]
        if transactions:
            self.writers.append(TransactionalWriter(*parts, "t1", PARTITIONS))
        group = [GroupMember(*parts, name) for name in ("g1", "g2")]
        share = [ShareMember(*parts, name) for name in ("s1", "s2")]
        self.readers: list[Worker] = [*group, *share]
        #: Workers of which any one may do all the work of its team.
        self.teams: list[list[Worker]] = [*([w] for w in self.writers), [*group], [*share]]

    def prepare(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, self.replicas)])[TOPIC].result(60)

        async def configure() -> None:
            async with Client(self.cluster.bootstrap) as client:
                changes = [ConfigChange(name, value) for name, value in SHARE.items()]
                group = ConfigResource(ConfigResourceType.GROUP, self.share_group)
                expect(await client.admin.configs.alter({group: changes}))

        asyncio.run(configure())
        for worker in (*self.writers, *self.readers):
            worker.start()
        self.all_get_on()

    def all_get_on(self) -> None:
        """Check that every producer, the group and the share group make progress from now on."""

        def done(team: list[Worker]) -> int:
            return sum(worker.done for worker in team)

        before, began = [done(team) for team in self.teams], time.monotonic()
        waited: dict[Worker, float] = {}

        def on() -> bool:
            for worker in (*self.writers, *self.readers):
                worker.check()
            still = [w[0] for w, n in zip(self.teams, before, strict=True) if done(w) < n + 5]
            waited.update({w: time.monotonic() - began for w in still})
            assert not still, f"no progress: {', '.join(map(str, still))}"
            return True

        try:
            eventually(on, timeout_s=HANG_S)
        except AssertionError as error:
            error.add_note(self.partitions())
            raise
        if waited:
            print("  waited for", {str(w): f"{s:.1f} s" for w, s in waited.items()})

    def partitions(self) -> str:
        """Describe the partitions of all topics, as the controller reports them."""
        return "\n".join(
            f"{topic.name}-{p.partition_index}: leader {p.leader_id}, epoch {p.leader_epoch},"
            f" in sync {p.isr_nodes} of {p.replica_nodes}"
            for topic in self.cluster.metadata(self.cluster.controller()).topics
            for p in topic.partitions
        )

    def victims(self, faults: Sequence[Fault]) -> list[int]:
        """Choose a different broker for each fault."""
        controller = self.cluster.controller()
        leaders = [int(p.leader_id) for p in self.cluster.topic(controller, TOPIC)]
        found: list[int] = []
        for _, role in faults:
            first = {"controller": [controller], "leader": leaders, "follower": []}[role]
            others = [id for id in self.cluster.brokers if id not in (leaders[0], controller)]
            found.append(next(id for id in (*first, *others) if id not in found))
        return found

    def suffer(self, *faults: Fault) -> None:
        """Inject these faults at once, each into another broker, and check progress. Then end the
        faults, and wait until all replicas are in sync."""
        cluster, victims, began = self.cluster, self.victims(faults), time.monotonic()
        frozen = [id for id, one in zip(victims, faults, strict=True) if one.how == "freeze"]
        since: dict[int, float] = {}
        for id, (how, _) in zip(victims, faults, strict=True):
            since[id] = time.monotonic()
            if how == "freeze":
                cluster.freeze(id)
            elif how == "kill":
                cluster.nodes[id].kill9()
        try:
            for id, (how, _) in zip(victims, faults, strict=True):
                if how == "restart":
                    since[id] = time.monotonic()
                    cluster.nodes[id].stop()
                    self.back(id, since)
                    cluster.nodes[id].start()
            if any(one.how != "restart" for one in faults):
                self.all_get_on()
        finally:
            for id in frozen:
                self.back(id, since)
                cluster.thaw(id)
        for id, (how, _) in zip(victims, faults, strict=True):
            if how == "kill":
                self.back(id, since)
                cluster.nodes[id].start()
        self.recover()
        named = ", ".join(
            f"{how} {role} (broker {id})" for id, (how, role) in zip(victims, faults, strict=True)
        )
        print(f"{named}: {time.monotonic() - began:.1f} s", flush=True)

    def back(self, id: int, since: Mapping[int, float]) -> None:
        """Record the time at which a broker is restarted or thawed."""
        self.history.outages.append(Outage(id, since[id], time.monotonic()))

    def recover(self) -> None:
        """Wait, after all faults, until all replicas are in sync and all clients make progress."""
        eventually(self.in_sync, timeout_s=HANG_S, what="not all replicas are in sync")
        self.all_get_on()

    def in_sync(self) -> bool:
        """Return whether every broker reports all replicas in sync."""
        return all(
            len(p.isr_nodes) == self.replicas
            for asked in self.cluster.brokers
            for p in self.cluster.topic(asked, TOPIC)
        )

    def rest(self) -> None:
        """Stop writing; wait until every record is polled and settled."""
        for writer in self.writers:
            writer.finish()
        history = self.history
        wanted = {(s.partition, s.offset) for s in history.sends if counts(history, s)}

        def all_had() -> bool:
            not_polled = wanted - {(p.partition, p.offset) for p in history.polls}
            not_settled = wanted - history.settled()
            assert not not_polled, f"{len(not_polled)} not polled: {sorted(not_polled)[:10]}"
            assert not not_settled, f"{len(not_settled)} not settled: {sorted(not_settled)[:10]}"
            return True

        eventually(all_had, timeout_s=HANG_S)
        for reader in self.readers:
            reader.finish()

    def log(self) -> Log:
        """Return the content of the topic, aborted records included."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "auditor",
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        found: dict[tuple[int, int], bytes] = {}
        ended: set[int] = set()
        consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])

        def drained() -> bool:
            for message in consumer.consume(1_000, 0.5):
                if message.error() is None:
                    found[message.partition(), message.offset()] = message.value()
                else:
                    ended.add(message.partition())
            return len(ended) == PARTITIONS

        try:
            eventually(drained, timeout_s=HANG_S, what="the topic is not read to its end")
        finally:
            consumer.close()
        return found

    def show(self, places: Sequence[Place]) -> None:
        """Print the batches around these places in the log of each broker."""
        for partition in sorted({place[0] for place in places}):
            near = [offset for at, offset in places if at == partition]
            for id in self.cluster.brokers:
                folder = self.cluster.nodes[id].data_dir / f"{TOPIC}-{partition}"
                for file in sorted(folder.glob("*.log")):
                    for _, header in iter_headers(file.read_bytes()):
                        if min(near) - 20 <= header.base_offset <= max(near) + 20:
                            print(f"broker {id}, {folder.name}: {header}")

    def judge(self) -> None:
        """Wait until the clients have finished, and check their history against the log."""
        self.rest()
        print(self.history.summary())
        found = check(self.history, self.log())
        for anomaly in found[:20]:
            print(f"{anomaly.name}: {anomaly.what}")
            self.show(anomaly.places)
        for writer in self.plain if found else ():
            print(f"the trace of {writer}:", *getattr(writer, "trace", ()), sep="\n  ")
        errors = [error for writer in self.plain for error in writer.errors]
        print(f"errors of the writers: {errors[:5]}")
        assert not found, "\n".join(f"{a.name}: {a.what}" for a in found[:20])
        assert not errors, errors[:5]
