"""Tiered topics on real brokers with a directory as their store: librdkafka reads from there."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
)
from shoal.client.client import Client
from shoal.client.consume.consumer import Reader
from shoal.client.net.cluster import TopicPartition as Partition
from shoal.client.net.connection import connect
from shoal.client.settings import Settings
from shoal.protocol.api import ApiKey
from shoal.record.key_ranges import KeyRanges
from support.brokers.clusters import ShoalCluster, running
from support.brokers.servers import ShoalProcess
from support.kafka.kafka_tools import KafkaTools
from support.runs.conditions import eventually
from support.storage.tiered_topics import (
    BASE_MS,
    MB,
    TIMEOUT_S,
    Tiered,
    alter,
    consume,
    create,
    produce,
    read_committed,
    settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("obstore")


@pytest.fixture(scope="module")
def tiered_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    folder = tmp_path_factory.mktemp("tiered")
    broker = ShoalProcess(folder / "data", configs=settings(folder / "store")).start()
    yield broker
    assert broker.stop() == 0, "\n".join(broker.log[-40:])


@pytest.fixture
def tiered(tiered_broker: ShoalProcess) -> Iterator[Tiered]:
    """A broker without topics and its store. The objects of a deleted topic leave the store after
    two sessions of the broker."""
    store = tiered_broker.data_dir.parent / "store"
    admin = AdminClient({"bootstrap.servers": tiered_broker.bootstrap})
    former = frozenset(path.parents[1] for path in store.rglob("*.segment"))
    yield Tiered(tiered_broker, store, admin, former)
    topics = [t for t in admin.list_topics(timeout=TIMEOUT_S).topics if not t.startswith("__")]
    for deleted in admin.delete_topics(topics).values() if topics else ():
        deleted.result(TIMEOUT_S)


def consume_by_key_ranges(bootstrap: str, count: int) -> None:
    """Read `count` records by two readers, each with half of the keys."""
    where = Partition("t", 0)

    async def half(number: int) -> list[int]:
        async with Client(bootstrap) as client:
            reader = Reader(client.cluster, {where: 0})
            await reader.assign({where: KeyRanges.from_part(number, 2)})
            found: list[int] = []
            while reader.positions[where] < count:
                found += [r.offset for r in await reader.poll() if r.key == b"%d" % r.offset]
            return found

    async def both() -> tuple[list[int], list[int]]:
        return await asyncio.gather(half(1), half(2))

    first, second = asyncio.run(both())
    assert min(len(first), len(second)) > count // 3
    assert sorted(first + second) == list(range(count))


def test_records_are_read_from_the_store(tiered: Tiered) -> None:
    create(tiered.admin, shoal_key_ranges_enable="true")
    produce(tiered.broker.bootstrap, 8000)
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    (local_start,) = tiered.local_logs()
    assert local_start > 6000
    assert tiered.bases()[0] == 0
    assert local_start - 1100 < tiered.bases()[-1] < local_start
    consume(tiered.broker.bootstrap, 8000)
    consume_by_key_ranges(tiered.broker.bootstrap, 8000)
    consume(tiered.broker.bootstrap, 100, start=3333)
    assert tiered.offset(OffsetSpec.earliest()) == 0
    for number in (0, 1234, local_start - 1, local_start, 7999):
        assert tiered.offset(OffsetSpec.for_timestamp(BASE_MS + number * 1000 - 500)) == number
    # Metadata and log start survive a crash, and the objects are not copied again.
    before = tiered.objects()
    tiered.broker.kill9()
    tiered.broker.start()
    consume(tiered.broker.bootstrap, 8000)
    produce(tiered.broker.bootstrap, 3000, start=8000)
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    assert set(before) < set(tiered.objects())
    consume(tiered.broker.bootstrap, 11000)


def test_deleted_records_and_topics_leave_the_store(tiered: Tiered) -> None:
    create(tiered.admin)
    create(tiered.admin, "other")
    produce(tiered.broker.bootstrap, 4000)
    produce(tiered.broker.bootstrap, 4000, topic="other")
    for topic in ("t", "other"):
        eventually(lambda t=topic: len(tiered.local_logs(t)) == 1, timeout_s=TIMEOUT_S)
    tiered.admin.delete_records([TopicPartition("t", 0, 2500)])
    eventually(lambda: 1400 < tiered.bases()[0] <= 2500, timeout_s=TIMEOUT_S)
    assert tiered.bases("other")[0] == 0
    assert tiered.offset(OffsetSpec.earliest()) == 2500
    consume(tiered.broker.bootstrap, 1500, start=2500)
    # The objects of a deleted topic leave, also if the broker was down at that time.
    tiered.admin.delete_topics(["t"])["t"].result(TIMEOUT_S)
    tiered.broker.kill9()
    tiered.broker.start()
    eventually(lambda: not tiered.bases(), timeout_s=TIMEOUT_S)
    assert tiered.bases("other")[0] == 0
    # A topic of the same name begins without them.
    create(tiered.admin)
    produce(tiered.broker.bootstrap, 10)
    consume(tiered.broker.bootstrap, 10)
    consume(tiered.broker.bootstrap, 4000, topic="other")


def test_retention_covers_both_tiers(tiered: Tiered) -> None:
    create(tiered.admin, retention_bytes=str(4 * MB), retention_ms="-1")
    produce(tiered.broker.bootstrap, 9000)
    eventually(lambda: tiered.offset(OffsetSpec.earliest()) > 3000, timeout_s=TIMEOUT_S)
    start = tiered.offset(OffsetSpec.earliest())
    assert 9000 - start >= 4 * MB / 1100
    # Between the removal of the last object and the next copy there may be none.
    eventually(lambda: (tiered.bases() or [0])[0] > 2000, timeout_s=TIMEOUT_S)
    start = tiered.offset(OffsetSpec.earliest())
    consume(tiered.broker.bootstrap, 9000 - start, start=start)


def test_a_topic_with_old_records_becomes_tiered(tiered: Tiered) -> None:
    create(tiered.admin, remote_storage_enable="false", local_retention_bytes="-2")
    produce(tiered.broker.bootstrap, 4000)
    assert not tiered.objects()
    alter(tiered.admin, {"remote.storage.enable": "true", "local.retention.bytes": "1"})
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    consume(tiered.broker.bootstrap, 4000)
    with pytest.raises(KafkaException, match="invalid to disable remote storage without deleting"):
        alter(tiered.admin, {"remote.storage.enable": "false"})


@pytest.mark.nightly
def test_copying_is_switched_off_and_on_again(tiered: Tiered) -> None:
    """KIP-950: what is in the store stays readable, and what is not copied stays on the disk."""
    create(tiered.admin)
    produce(tiered.broker.bootstrap, 4000)
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    before = tiered.objects()
    off = {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"}
    alter(tiered.admin, off)
    produce(tiered.broker.bootstrap, 4000, start=4000)
    consume(tiered.broker.bootstrap, 8000)
    assert tiered.objects() == before
    assert len(tiered.local_logs()) > 3
    alter(tiered.admin, {"remote.log.copy.disable": "false", "local.retention.bytes": "1"})
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    assert set(before) < set(tiered.objects())
    consume(tiered.broker.bootstrap, 8000)


def test_a_topic_that_is_no_longer_tiered(tiered: Tiered) -> None:
    """KIP-950: its objects are deleted, it starts on the disk, and it can be tiered again."""
    create(tiered.admin)
    produce(tiered.broker.bootstrap, 4000)
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    (start,) = tiered.local_logs()
    off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    alter(tiered.admin, off)
    eventually(lambda: tiered.offset(OffsetSpec.earliest()) == start, timeout_s=TIMEOUT_S)
    consume(tiered.broker.bootstrap, 4000 - start, start=start)
    eventually(lambda: not tiered.objects(), timeout_s=TIMEOUT_S)
    eventually(lambda: not list(tiered.store.rglob("manifest")), timeout_s=TIMEOUT_S)
    tiered.broker.kill9()
    tiered.broker.start()
    tiered = tiered._replace(admin=AdminClient({"bootstrap.servers": tiered.broker.bootstrap}))
    produce(tiered.broker.bootstrap, 4000, start=4000)
    assert tiered.offset(OffsetSpec.earliest()) == start
    assert not tiered.objects()
    alter(tiered.admin, {"remote.storage.enable": "true"})
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    assert tiered.bases()[0] == start
    consume(tiered.broker.bootstrap, 8000 - start, start=start)


def test_a_share_group_reads_remote_records(tiered: Tiered) -> None:
    create(tiered.admin)
    produce(tiered.broker.bootstrap, 4000)
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    group = ConfigResource(
        "group",
        "workers",
        incremental_configs=[
            ConfigEntry(
                "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
            )
        ],
    )
    for future in tiered.admin.incremental_alter_configs([group]).values():
        future.result(TIMEOUT_S)
    client = ShareConsumer({"bootstrap.servers": tiered.broker.bootstrap, "group.id": "workers"})
    client.subscribe(["t"])
    seen: set[int] = set()

    def all_seen() -> bool:
        for message in client.poll(timeout=1.0):
            assert message.error() is None
            assert message.key() == b"%d" % message.offset()
            seen.add(message.offset())
        return seen == set(range(4000))

    eventually(all_seen, timeout_s=TIMEOUT_S)
    client.close()


def test_aborted_records_are_hidden(tiered: Tiered) -> None:
    create(tiered.admin)
    client = Producer({"bootstrap.servers": tiered.broker.bootstrap, "transactional.id": "x"})
    client.init_transactions(TIMEOUT_S)
    filler = random.Random(1).randbytes(1000)
    for number in range(12):
        client.begin_transaction()
        for _ in range(300):
            client.produce("t", filler, b"%d" % number)
        if number % 2:
            client.abort_transaction(TIMEOUT_S)
        else:
            client.commit_transaction(TIMEOUT_S)
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    keys = read_committed(tiered.broker.bootstrap)
    assert keys == [b"%d" % number for number in range(0, 12, 2) for _ in range(300)]


def test_an_object_that_is_gone_is_a_retriable_error(tiered: Tiered) -> None:
    create(tiered.admin)
    produce(tiered.broker.bootstrap, 4000)
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    away = {one: one.with_suffix(".away") for one in tiered.objects()}
    for one, aside in away.items():
        one.rename(aside)
    where = TopicPartition("t", 0)
    spec = {where: OffsetSpec.for_timestamp(BASE_MS + 500)}
    with pytest.raises(KafkaException) as caught:
        tiered.admin.list_offsets(spec)[where].result(TIMEOUT_S)
    assert caught.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
    client = Consumer({"bootstrap.servers": tiered.broker.bootstrap, "group.id": "g"})
    client.assign([TopicPartition("t", 0, 0)])
    assert not client.consume(1, 2)
    for one, aside in away.items():
        aside.rename(one)
    (message,) = client.consume(1, TIMEOUT_S)
    assert (message.error(), message.offset()) == (None, 0)
    client.close()


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"cleanup_policy": "compact"}, "only supports topics with cleanup.policy=delete"),
        ({"local_retention_ms": "5000", "retention_ms": "4000"}, "retention.ms property value"),
        ({"local_retention_bytes": "2000", "retention_bytes": "1000"}, "retention.bytes property"),
        ({"local_retention_ms": "-1", "retention_ms": "4000"}, "must not be -1 as retention.ms"),
        ({"remote_log_copy_disable": "true"}, "must be set to the identical value"),
    ],
)
def test_combinations_that_are_refused(
    tiered: Tiered, configs: dict[str, str], reason: str
) -> None:
    with pytest.raises(KafkaException, match=reason):
        create(tiered.admin, replicas=1, **configs)


def test_brokers_without_a_store_refuse_tiered_topics(tmp_path: Path) -> None:
    broker = ShoalProcess(tmp_path / "data").start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with pytest.raises(KafkaException, match="Tiered Storage functionality is disabled"):
        create(admin)
    broker.stop()


@pytest.mark.nightly
@pytest.mark.java
def test_kafkas_clients_read_a_tiered_topic(tiered: Tiered) -> None:
    create(tiered.admin)
    produce(tiered.broker.bootstrap, 4000)
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    (local_start,) = tiered.local_logs()
    tools = KafkaTools(tiered.broker.bootstrap)
    for time_, expected in (
        ("earliest", 0),
        ("earliest-local", local_start),
        ("latest-tiered", local_start - 1),
        ("latest", 4000),
        (str(BASE_MS + 1_233_500), 1234),
    ):
        said = tools.run("get-offsets", "--topic", "t", "--time", time_)
        assert said.split() == [f"t:0:{expected}"], time_
    said = tools.run(
        "console-consumer",
        "--topic=t",
        "--from-beginning",
        "--max-messages=4000",
        "--timeout-ms=30000",
        "--formatter-property=print.key=true",
        "--formatter-property=print.value=false",
    )
    keys = [int(line) for line in said.splitlines() if line.isdigit()]
    assert keys == list(range(4000))


def test_configs_of_copying_and_of_the_metadata_topic(tmp_path: Path) -> None:
    """Records of an idle topic are copied after an interval, and few chunks stay on the disk."""
    configs = settings(tmp_path / "store") | {
        "shoal.remote.copy.interval.ms": "200",
        "shoal.remote.chunk.cache.bytes": "1",
        "remote.log.manager.task.interval.ms": "100",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    }
    broker = ShoalProcess(tmp_path / "data", configs=configs).start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    tiered = Tiered(broker, tmp_path / "store", admin)
    create(admin, local_retention_bytes="-2", local_retention_ms="1")
    for start in range(0, 30, 10):
        produce(broker.bootstrap, 10, start=start)
        eventually(lambda end=start + 10: tiered.local_logs() == [end], timeout_s=TIMEOUT_S)
    assert tiered.bases() == [0, 10, 20]
    consume(broker.bootstrap, 30)
    assert len(list((tmp_path / "data/remote-chunks").iterdir())) == 1
    topic = admin.list_topics(timeout=TIMEOUT_S).topics["__remote_log_metadata"]
    assert [len(p.replicas) for p in topic.partitions.values()] == [1, 1]
    broker.stop()


def test_a_store_that_hangs(tmp_path: Path) -> None:
    """Requests to the store, searches by time and fetches end at their own limits."""
    configs = settings(tmp_path / "store") | {
        "shoal.remote.store.request.timeout.ms": "400",
        "remote.fetch.max.wait.ms": "1000",
    }
    broker = ShoalProcess(tmp_path / "data", configs=configs).start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    tiered = Tiered(broker, tmp_path / "store", admin)
    create(admin)
    produce(broker.bootstrap, 2000)
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    first = tiered.objects()[0]
    first.unlink()
    os.mkfifo(first)  # Opening it blocks until it has a writer.
    try:
        assert search(tiered) == KafkaError.KAFKA_STORAGE_ERROR
        eventually(lambda: 0.9 < fetch_s(broker.bootstrap) < 1.4, timeout_s=TIMEOUT_S)
        limit = {"remote.list.offsets.request.timeout.ms": "1"}
        alter(admin, limit, kind="broker", name="1")
        eventually(lambda: search(tiered) == KafkaError.REQUEST_TIMED_OUT, timeout_s=TIMEOUT_S)
    finally:
        broker.kill9()


def search(tiered: Tiered) -> int:
    """Return the error of a search for the first record by its time."""
    with pytest.raises(KafkaException) as caught:
        tiered.offset(OffsetSpec.for_timestamp(BASE_MS + 500))
    return caught.value.args[0].code()


def fetch_s(bootstrap: str) -> float:
    """Return how long a fetch of the first record takes that itself waits for a millisecond."""
    host, _, port = bootstrap.rpartition(":")
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": MB,
    }

    async def run() -> float:
        connection = await connect(Settings.from_bootstrap(bootstrap, {}), (host, int(port)))
        try:
            metadata = await connection.request(ApiKey.METADATA, {"topics": None})
            (topic_id,) = [t.topic_id for t in metadata.topics if t.name == "t"]
            fields = {
                "max_wait_ms": 1,
                "min_bytes": 1,
                "max_bytes": MB,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": -1,
                "topics": [{"topic": "t", "topic_id": topic_id, "partitions": [partition]}],
                "forgotten_topics_data": [],
                "rack_id": "",
            }
            begun = time.monotonic()
            await connection.request(ApiKey.FETCH, fields)
            return time.monotonic() - begun
        finally:
            connection.close()

    return asyncio.run(run())


def local_starts(cluster: ShoalCluster) -> list[int]:
    """Return the first offset on the disk of each broker."""
    return [
        min(int(path.stem) for path in (node.data_dir / "t-0").glob("*.log"))
        for node in cluster.nodes.values()
    ]


def test_a_new_leader_continues(tmp_path: Path) -> None:
    store = tmp_path / "store"
    configs = settings(store) | {"replica.lag.time.max.ms": "3000"}
    with running(ShoalCluster(tmp_path, configs=configs)) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        create(admin, replicas=3)
        at = 0
        for _ in range(3):
            produce(cluster.bootstrap, 4000, start=at)
            at += 4000

            eventually(lambda end=at: min(local_starts(cluster)) > end - 2500, timeout_s=TIMEOUT_S)
            consume(cluster.bootstrap, at)
            leader = admin.list_topics("t", timeout=TIMEOUT_S).topics["t"].partitions[0].leader
            cluster.nodes[leader].kill9()
            eventually(
                lambda old=leader: (
                    admin.list_topics("t", timeout=TIMEOUT_S).topics["t"].partitions[0].leader
                    not in (old, -1)
                ),
                timeout_s=TIMEOUT_S,
            )
            consume(cluster.bootstrap, at)
            cluster.start([leader])
