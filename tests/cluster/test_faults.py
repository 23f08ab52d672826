"""Real clients while brokers are killed, frozen and restarted, and a checker over what they saw.

Each fault comes once to a cluster of three. A longer run has faults drawn by a seed:
`SHOAL_FAULTS_S=900 SHOAL_FAULTS_BROKERS=5 SHOAL_FAULTS_SEED=7 pytest -s tests/cluster -k freeze`
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from cluster.test_replication import CONFIGS, PARTITIONS
from clusters import ShoalCluster, running
from conditions import eventually
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from fault_clients import GroupMember, ShareMember, TransactionalWriter, Worker, Writer
from histories import History, Log, check, counts
from shoal.client.client import Client
from shoal.client.configs import ConfigChange, Resource, ResourceType
from shoal.client.errors import expect

BROKERS = int(os.environ.get("SHOAL_FAULTS_BROKERS", "3"))
#: 0: those of `ONCE`.
DURATION_S = float(os.environ.get("SHOAL_FAULTS_S", "0"))
SEED = os.environ.get("SHOAL_FAULTS_SEED", "1")
TOPIC = "work"
ONCE = [
    ("kill", "leader"),
    ("freeze", "controller"),
    ("restart", "follower"),
    ("kill", "controller"),
    ("freeze", "leader"),
]
HOW, WHOM = ("kill", "freeze", "restart"), ("leader", "follower", "controller")
SHARE = {
    "share.auto.offset.reset": "earliest",
    "share.isolation.level": "read_committed",
    "share.delivery.count.limit": "10",
}


class Run:
    """A cluster, its clients, and what is done to its brokers."""

    def __init__(self, cluster: ShoalCluster) -> None:
        self.cluster, self.history = cluster, History()
        parts = (cluster.bootstrap, TOPIC, self.history)
        self.plain = [Writer(*parts, name, PARTITIONS) for name in ("w1", "w2")]
        self.writers = [*self.plain, TransactionalWriter(*parts, "t1", PARTITIONS)]
        group = [GroupMember(*parts, name) for name in ("g1", "g2")]
        share = [ShareMember(*parts, name) for name in ("s1", "s2")]
        self.readers: list[Worker] = [*group, *share]
        #: Whose work one of them may do alone.
        self.teams: list[list[Worker]] = [*([w] for w in self.writers), [*group], [*share]]

    def prepare(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)

        async def configure() -> None:
            async with Client(self.cluster.bootstrap) as client:
                changes = [ConfigChange(name, value) for name, value in SHARE.items()]
                group = Resource(ResourceType.GROUP, ShareMember.GROUP)
                expect(await client.admin.configs.alter({group: changes}))

        asyncio.run(configure())
        for worker in (*self.writers, *self.readers):
            worker.start()
        self.all_get_on()

    def all_get_on(self) -> None:
        """Every producer, the group and the share group do something from now on."""

        def done(team: list[Worker]) -> int:
            return sum(worker.done for worker in team)

        before, began = [done(team) for team in self.teams], time.monotonic()
        waited: dict[str, float] = {}

        def on() -> bool:
            for worker in (*self.writers, *self.readers):
                worker.check()
            still = [w[0] for w, n in zip(self.teams, before, strict=True) if done(w) < n + 5]
            waited.update({str(w): time.monotonic() - began for w in still})
            return not still

        eventually(on, timeout_s=90, what="somebody does not get on")
        if waited:
            print("  waited for", {w: f"{s:.1f} s" for w, s in waited.items()})

    def victim(self, whom: str) -> int:
        controller = self.cluster.controller()
        if whom == "controller":
            return controller
        leader = int(self.cluster.topic(controller, TOPIC)[0].leader_id)
        if whom == "leader":
            return leader
        return next(id for id in self.cluster.brokers if id not in (leader, controller))

    def fault(self, how: str, whom: str) -> None:
        """Do it, see that all go on meanwhile, undo it, and wait until all replicas are in sync."""
        cluster, victim = self.cluster, self.victim(whom)
        began = time.monotonic()
        if how == "restart":
            cluster.nodes[victim].restart()
        elif how == "kill":
            cluster.nodes[victim].kill9()
            self.all_get_on()
            cluster.nodes[victim].start()
        else:
            cluster.freeze(victim)
            try:
                self.all_get_on()
            finally:
                cluster.thaw(victim)
        eventually(lambda: self._in_sync(victim), timeout_s=90, what=f"{victim} is not in sync")
        self.all_get_on()
        self.history.faults.append((began, time.monotonic()))
        print(f"{how} {whom} (broker {victim}): {time.monotonic() - began:.1f} s", flush=True)

    def _in_sync(self, asked: int) -> bool:
        return all(len(p.isr_nodes) == 3 for p in self.cluster.topic(asked, TOPIC))

    def rest(self) -> None:
        """Write no more; everything is polled and settled."""
        for writer in self.writers:
            writer.finish()
        history = self.history
        wanted = {(s.partition, s.offset) for s in history.sends if counts(history, s)}

        def all_had() -> bool:
            polled = {(p.partition, p.offset) for p in history.polls}
            return wanted <= polled and wanted <= history.settled()

        eventually(all_had, timeout_s=90, what="not all is polled and settled")
        for reader in self.readers:
            reader.finish()

    def log(self) -> Log:
        """What stands in the topic, also what was aborted."""
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
            eventually(drained, timeout_s=90, what="the topic is not read to its end")
        finally:
            consumer.close()
        return found


def faults() -> Iterator[tuple[str, str]]:
    if not DURATION_S:
        yield from ONCE
        return
    draw, end = random.Random(SEED), time.monotonic() + DURATION_S
    while time.monotonic() < end:
        yield draw.choice(HOW), draw.choice(WHOM)


def test_what_clients_see_while_brokers_die_freeze_and_restart(tmp_path: Path) -> None:
    with running(ShoalCluster(tmp_path, BROKERS, configs=CONFIGS)) as cluster:
        eventually(lambda: len(cluster.metadata(1).brokers) == BROKERS)
        run = Run(cluster)
        run.prepare()
        for how, whom in faults():
            run.fault(how, whom)
        run.rest()
        print(run.history.summary())
        found = check(run.history, run.log())
        assert not found, "\n".join(f"{a.name}: {a.what}" for a in found[:20])
        errors = [error for writer in run.plain for error in writer.errors]
        assert not errors, errors[:5]
