"""Loads on a cluster of three brokers, each a function of the cluster that returns figures.

`pause_s` is the longest time without an acknowledgement in any partition, from the kill on.
"""

from __future__ import annotations

import threading
import time
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from brokers import WAIT_S
from clusters import Cluster, eventually
from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from load_checks import (
    LoadFailed,
    Sent,
    Stall,
    check_acknowledged,
    check_errors,
    random_values,
    sent_values,
)
from load_setup import CHECKED, verify
from load_setup import produce as fill
from page_cache import take_memory

if TYPE_CHECKING:
    from collections.abc import Callable

Figures = dict[str, float]
QUIET = {"log_level": 0}
#: Records per second and partition of the producer in loads with a failure.
PACE = 200
PARTITIONS = 3


def create(cluster: Cluster, partitions: int, topics: int = 1) -> list[str]:
    """Create topics with three replicas and wait for their leaders."""
    names = [f"bench-{uuid.uuid4().hex[:10]}" for _ in range(topics)]
    admin = cluster.admin()
    bounds = {"request_timeout": WAIT_S, "operation_timeout": WAIT_S}
    wanted = [NewTopic(n, partitions, 3) for n in names]
    for future in admin.create_topics(wanted, **bounds).values():
        future.result(WAIT_S)

    def led() -> bool:
        found = admin.list_topics(timeout=60).topics
        return all(
            n in found
            and len(found[n].partitions) == partitions
            and all(p.leader > 0 for p in found[n].partitions.values())
            for n in names
        )

    eventually(led, "new topics have no leaders")
    return names


def produce(cluster: Cluster, scale: float) -> Figures:
    """1 KB records, acks=all; CPU is that of all three brokers."""
    (topic,) = create(cluster, 1)
    count, values = int(300_000 * scale), random_values(1024)
    _, sent = fill(cluster.bootstrap, topic, count // 10, values, acks="all")
    take_memory()
    before = cluster.cpu_s()
    elapsed, more = fill(cluster.bootstrap, topic, count, values, acks="all")
    used, gigabytes = cluster.cpu_s() - before, count * 1024 / 1e9
    sent.add(more)
    verify(cluster.bootstrap, topic, sent)
    return {"rate": count / elapsed, "cpu_s_gb": used / gigabytes}


class Steady:
    """A producer with a fixed rate over all partitions, which records the acknowledgement times.

    Clients see errors and retry while a broker is down. So an error does not fail the load but
    counts in `errors`. `check` fails the load if an acknowledged record is missing or changed.
    """

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        self.errors: list[str] = []
        self.acknowledged: list[list[float]] = [[] for _ in range(partitions)]
        self._bootstrap = cluster.bootstrap
        #: By partition: offset and value of each acknowledged record.
        self._values: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        self._topic, self._stop = topic, threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "enable.idempotence": True,
                **QUIET,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Steady:
        self._thread.start()
        eventually(lambda: all(len(a) > 50 for a in self.acknowledged), "nothing is acknowledged")
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(60)

    def _run(self) -> None:
        began, sent = time.perf_counter(), 0
        while not self._stop.is_set():
            while sent < (time.perf_counter() - began) * PACE:
                for partition in range(len(self.acknowledged)):
                    self._producer.produce(
                        self._topic,
                        repr(time.perf_counter()).encode(),
                        partition=partition,
                        on_delivery=self._delivered,
                    )
                sent += 1
            self._producer.poll(0.002)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self.acknowledged[message.partition()].append(time.perf_counter())
        self._values[message.partition()][message.offset()] = message.value()

    def check(self) -> None:
        """Raise LoadFailed unless the topic has every acknowledged record at its offset. Call it
        after the producer is closed.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"verify-{self._topic}",
                "enable.auto.commit": False,
                **CHECKED,
                **QUIET,
            }
        )
        try:
            for partition, values in enumerate(self._values):
                consumer.assign([TopicPartition(self._topic, partition, 0)])
                found: dict[int, bytes] = {}
                stall = Stall(len(values))
                while not found or max(found) < max(values):
                    messages = consumer.consume(10_000, 1.0)
                    check_errors(messages)
                    found.update((m.offset(), m.value()) for m in messages)
                    stall.look(len(found))
                check_acknowledged(partition, values, found)
        finally:
            consumer.close()

    def on(self, after: float) -> bool:
        """Whether every partition has had acknowledgements for a second since `after`."""
        now = time.perf_counter()
        return all(a[-1] > after + 0.5 and now - a[-1] < 0.3 for a in self.acknowledged)

    def pause_s(self, begin: float, end: float) -> float:
        """Return the longest pause between acknowledgements of a partition that ends in this
        period.
        """
        found = 0.0
        for times in self.acknowledged:
            for before, after in pairwise(times):
                if begin <= after and before <= end:
                    found = max(found, after - max(before, begin))
        return found


def kill_leader(cluster: Cluster, _scale: float) -> Figures:
    return _kill(cluster, lambda topic: cluster.leaders(topic)[0])


def kill_controller(cluster: Cluster, _scale: float) -> Figures:
    return _kill(cluster, lambda _topic: cluster.controller())


def _kill(cluster: Cluster, whom: Callable[[str], int]) -> Figures:
    (topic,) = create(cluster, PARTITIONS)
    with Steady(cluster, topic, PARTITIONS) as steady:
        victim = whom(topic)
        killed = time.perf_counter()
        cluster.nodes[victim].kill9()
        eventually(lambda: steady.on(killed + 1), "no writes after a kill")
        pause_s = steady.pause_s(killed, time.perf_counter())
    cluster.heal()
    steady.check()
    return {"pause_s": pause_s, "errors": len(steady.errors)}


def kill_share_leader(cluster: Cluster, _scale: float) -> Figures:
    """Measure from the kill until the share group gets a record that was written after it."""
    (topic,) = create(cluster, 1)
    group = f"bench-{uuid.uuid4().hex[:10]}"
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = cluster.admin()
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            **QUIET,
        }
    )
    consumer.subscribe([topic])

    def delivered(since: float) -> bool:
        messages = [m for m in consumer.poll(0.1) if not m.error()]
        return any(float(m.value()) > since for m in messages)

    with Steady(cluster, topic, 1) as steady:
        begun = time.perf_counter()
        eventually(lambda: delivered(begun), "nothing is delivered")
        (leader,) = cluster.leaders(topic)
        killed = time.perf_counter()
        cluster.nodes[leader].kill9()
        eventually(lambda: delivered(killed), "nothing is delivered after the kill")
        pause_s = time.perf_counter() - killed
    consumer.close()
    cluster.heal()
    steady.check()
    return {"pause_s": pause_s, "errors": len(steady.errors)}


def rolling_restart(cluster: Cluster, _scale: float) -> Figures:
    """Stop (SIGTERM) and start one node after the other, each once all replicas are in sync."""
    (topic,) = create(cluster, PARTITIONS)
    admin = cluster.admin()
    with Steady(cluster, topic, PARTITIONS) as steady:
        began = time.perf_counter()
        for node in cluster.nodes.values():
            node.stop()
            node.start()
            eventually(lambda: cluster.in_sync(admin), "not in sync after a restart")
        ended = time.perf_counter()
        eventually(lambda: steady.on(ended), "no writes after the restarts")
        pause_s = steady.pause_s(began, time.perf_counter())
    cluster.heal()
    steady.check()
    return {"pause_s": pause_s, "errors": len(steady.errors), "whole_s": ended - began}


def create_topics(cluster: Cluster, scale: float) -> Figures:
    """Create topics of one partition with three replicas, 100 per request; wait for all leaders."""
    hundreds = max(1, int(10 * scale))
    began = time.perf_counter()
    for _ in range(hundreds):
        create(cluster, 1, 100)
    return {"whole_s": time.perf_counter() - began, "rss_mb": cluster.rss_mb()}


def transactions(cluster: Cluster, scale: float) -> Figures:
    """1 KB records in transactions of 100 ms; a record counts once its transaction is committed."""
    (topic,) = create(cluster, PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": uuid.uuid4().hex,
            "linger.ms": 5,
            "queue.buffering.max.messages": 20_000,
            **QUIET,
        }
    )
    producer.init_transactions(60)
    values, sizes = random_values(1024), []
    sizes.append(_one(producer, topic, values))
    began = time.perf_counter()
    while time.perf_counter() - began < 10 * scale:
        sizes.append(_one(producer, topic, values))
    elapsed = time.perf_counter() - began
    sent = Sent()
    for size in sizes:
        sent.add(sent_values(values, (n // 500 % PARTITIONS for n in range(size))))
    verify(cluster.bootstrap, topic, sent, gaps=True)
    return {"rate": sum(sizes[1:]) / elapsed}


def _one(producer: Producer, topic: str, values: list[bytes]) -> int:
    """Commit one transaction; return its number of records."""
    producer.begin_transaction()
    sent = Sent()
    count, end = 0, time.perf_counter() + 0.1
    while time.perf_counter() < end:
        try:
            value = values[count % len(values)]
            partition = count // 500 % PARTITIONS
            producer.produce(topic, value, partition=partition, on_delivery=sent)
            count += 1
        except BufferError:
            producer.poll(0.002)
        if not count & 255:
            producer.poll(0)
    try:
        producer.commit_transaction(60)
    except KafkaException as error:
        raise LoadFailed(f"a transaction was not committed: {error}") from None
    if sent.errors or sent.acknowledged != count:
        raise LoadFailed(
            f"{sent.acknowledged} of {count} records are acknowledged: {sent.errors[:1]}"
        )
    return count


LOADS: dict[str, Callable[[Cluster, float], Figures]] = {
    "produce 1 KB, acks=all": produce,
    "transactions of 100 ms": transactions,
    "kill -9 of a leader": kill_leader,
    "kill -9 of the controller": kill_controller,
    "kill -9 of a share-partition leader": kill_share_leader,
    "rolling restart": rolling_restart,
    "create 1,000 topics x 3": create_topics,
}
