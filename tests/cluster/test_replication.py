"""Replicated partitions on three real brokers, with librdkafka: acknowledged records are kept."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from support.brokers.clusters import CALM, ShoalCluster, running
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.scenarios.fault_clients import SHORT_FETCHES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

PARTITIONS = 3
#: Pause between two records of a writer.
PACE_S = 0.004
CONFIGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "8000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
#: For tests that freeze no broker and cut none off.
CALM_CONFIGS = CONFIGS | CALM
_names = (f"topic-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("cluster"), configs=CALM_CONFIGS)) as found:
        yield found


@pytest.fixture
def topic(cluster: ShoalCluster) -> str:
    name = next(_names)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made = admin.create_topics([NewTopic(name, PARTITIONS, 3)], operation_timeout=60)
    made[name].result(60)
    cluster.on_all(name, cluster.brokers)
    return name


class Writer:
    """An idempotent producer with acks=all in a thread; it records what was acknowledged."""

    def __init__(self, cluster: ShoalCluster, topic: str) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        #: Acknowledged by the response to a later batch, so that their offsets are unknown.
        self.implied: set[bytes] = set()
        self.errors: list[str] = []
        self._fatal: list[str] = []
        self._topic = topic
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "delivery.timeout.ms": 120_000,
                "linger.ms": 1,
                "log_level": 0,
                "error_cb": self._failed,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(120) == 0

    def _run(self) -> None:
        for n in itertools.count():
            if self._stop.is_set():
                return
            value = b"%d" % n
            self._producer.produce(
                self._topic, value, partition=n % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0)
            self._stop.wait(PACE_S)

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal.append(error.str())

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert value is not None
        if error is not None:
            self.errors.append(str(error))
        elif offset is None:
            self.implied.add(value)
        elif (other := self.acknowledged.setdefault((partition, offset), value)) != value:
            self.errors.append(f"{other!r} and {value!r} are both at {partition}/{offset}")

    def more(self, count: int, *, timeout_s: float = 90) -> None:
        """Wait until this number of further records is acknowledged."""
        goal = len(self.acknowledged) + count

        def done() -> bool:
            if self._fatal:
                pytest.fail(f"the producer had a fatal error: {self._fatal[0]}")
            return len(self.acknowledged) >= goal

        eventually(done, timeout_s=timeout_s, what="no progress")


def read_all(cluster: ShoalCluster, topic: str) -> dict[tuple[int, int], bytes]:
    """Return every record by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "enable.partition.eof": False,
            "log_level": 0,
        }
    )
    try:
        partitions = [TopicPartition(topic, p, 0) for p in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = {p.partition: consumer.get_watermark_offsets(p, 60)[1] for p in partitions}
        found: dict[tuple[int, int], bytes] = {}
        wanted = sum(ends.values())

        def drained() -> bool:
            for message in consumer.consume(1_000, 0.5):
                if message.error() is None:
                    found[(message.partition(), message.offset())] = message.value()
            return len(found) >= wanted

        eventually(drained, timeout_s=90, what="the topic is not read to its end")
        return found
    finally:
        consumer.close()


def check(cluster: ShoalCluster, topic: str, writer: Writer) -> None:
    """Check that every acknowledged record is at its offset, and that no record is there twice."""
    found = read_all(cluster, topic)
    lost = {w: v for w, v in writer.acknowledged.items() if found.get(w) != v}
    assert not lost, f"{len(lost)} acknowledged records are lost: {sorted(lost)[:5]}"
    values = list(found.values())
    assert writer.implied <= set(values), sorted(writer.implied - set(values))[:5]
    assert len(values) == len(set(values)), "a record of an idempotent producer is there twice"
    assert not writer.errors, writer.errors[:5]


def in_sync(cluster: ShoalCluster, asked: int, topic: str) -> bool:
    return all(len(p.isr_nodes) == 3 for p in cluster.topic(asked, topic))


def test_records_are_on_all_replicas(cluster: ShoalCluster, topic: str) -> None:
    with Writer(cluster, topic) as writer:
        writer.more(300)
    check(cluster, topic, writer)
    assert in_sync(cluster, 1, topic)


def test_nothing_is_lost_when_leaders_are_killed(cluster: ShoalCluster, topic: str) -> None:
    with Writer(cluster, topic) as writer:
        writer.more(200)
        for _ in range(2):
            victim = cluster.topic(1, topic)[0].leader_id
            other = next(id for id in cluster.brokers if id != victim)
            cluster.nodes[victim].kill9()
            writer.more(200)
            assert cluster.topic(other, topic)[0].leader_id != victim
            cluster.nodes[victim].start()
            eventually(lambda o=other: in_sync(cluster, o, topic), timeout_s=90)
            writer.more(100)
    check(cluster, topic, writer)


def test_with_too_few_in_sync_acks_all_is_refused(cluster: ShoalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    name = next(_names)
    new = NewTopic(name, 1, 3, config={"min.insync.replicas": "3"})
    admin.create_topics([new])[name].result(60)
    leader = cluster.on_all(name, cluster.brokers)[0].leader_id
    others = [id for id in cluster.brokers if id != leader]
    cluster.nodes[others[0]].kill9()
    try:
        eventually(lambda: len(cluster.topic(leader, name)[0].isr_nodes) < 3, timeout_s=60)
        refused: list[str] = []
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "retries": 0, "log_level": 0, "acks": "all"}
        )
        producer.produce(
            name, b"v", on_delivery=lambda error, _: refused.append(error.name() if error else "")
        )
        producer.flush(30)
        assert refused == ["NOT_ENOUGH_REPLICAS"]
    finally:
        cluster.nodes[others[0]].start()


def test_offsets_and_members_outlive_their_coordinator(cluster: ShoalCluster, topic: str) -> None:
    """A consumer group resumes from its commits when its coordinator is killed."""
    with Writer(cluster, topic) as writer:
        writer.more(150)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "survivor",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
            "log_level": 0,
            **SHORT_FETCHES,
        }
    )
    seen: set[tuple[int, int]] = set()

    def read(count: int) -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            seen.add((message.partition(), message.offset()))
        return len(seen) >= count

    consumer.subscribe([topic])
    eventually(lambda: read(50), timeout_s=90)
    committed = eventually(lambda: _commit(consumer), timeout_s=60)
    coordinator = _coordinator(cluster, "survivor")
    cluster.nodes[coordinator].kill9()
    try:
        with Writer(cluster, topic) as writer:
            writer.more(100)
        eventually(lambda: read(200), timeout_s=120)
        again = eventually(lambda: _commit(consumer), timeout_s=90)
        before = {p.partition: p.offset for p in committed}
        assert all(p.offset >= before.get(p.partition, 0) for p in again)
    finally:
        consumer.close()
        cluster.nodes[coordinator].start()


def _commit(consumer: Consumer) -> list[TopicPartition] | None:
    try:
        return consumer.commit(asynchronous=False)
    except KafkaException:
        return None


def _coordinator(cluster: ShoalCluster, group: str) -> int:
    from shoal.protocol.api import ApiKey

    fields = {"key_type": 0, "coordinator_keys": [group]}
    answer = cluster.ask(1, ApiKey.FIND_COORDINATOR, fields)
    return int(answer.coordinators[0].node_id)


def test_a_follower_names_the_leader_and_its_address(cluster: ShoalCluster, topic: str) -> None:
    """The refusal itself names it, so that clients need not ask for metadata (KIP-951)."""
    (topic_id,) = [t.topic_id for t in cluster.metadata(1).topics if t.name == topic]
    (partition, *_) = cluster.topic(1, topic)
    other = next(id for id in cluster.brokers if id != partition.leader_id)
    batch = bytes(build_batch([(1_700_000_000_000, None, b"v", ())]))
    data = [{"index": 0, "records": batch}]
    produce = {
        "acks": -1,
        "timeout_ms": 9_000,
        "topic_data": [{"name": topic, "topic_id": topic_id, "partition_data": data}],
    }
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
    fetch = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "topics": [{"topic": topic, "topic_id": topic_id, "partitions": [asked]}],
    }
    produced = cluster.ask(other, ApiKey.PRODUCE, produce)
    fetched = cluster.ask(other, ApiKey.FETCH, fetch)
    for answer, row in (
        (produced, produced.responses[0].partition_responses[0]),
        (fetched, fetched.responses[0].partitions[0]),
    ):
        assert row.error_code == ErrorCode.not_leader_or_follower
        assert row.current_leader.leader_id == partition.leader_id
        assert row.current_leader.leader_epoch == partition.leader_epoch
        (where,) = answer.node_endpoints
        assert where.node_id == partition.leader_id
        assert f"{where.host}:{where.port}" == cluster.addresses[partition.leader_id]


def test_a_broker_without_a_replica_names_the_leader(cluster: ShoalCluster) -> None:
    """Its responses are those of Apache Kafka 4.3.1: a client asks the leader, and does not treat
    the topic as deleted."""
    name, leader, other = next(_names), 1, 3
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 1, replica_assignment=[[leader]])])[name].result(60)
    (partition,) = cluster.on_all(name, cluster.brokers)
    (topic_id,) = [t.topic_id for t in cluster.metadata(other).topics if t.name == name]
    batch = bytes(build_batch([(1_700_000_000_000, None, b"v", ())]))

    def asked(index: int, version_of_fetch: int, version_of_produce: int) -> list[Any]:
        """Return the partition's row of each response of the broker without a replica."""
        topic = {"name": name, "topic": name, "topic_id": topic_id}
        produce = {
            "acks": -1,
            "timeout_ms": 9_000,
            "topic_data": [{**topic, "partition_data": [{"index": index, "records": batch}]}],
        }
        row = {"partition": index, "partition_index": index, "partition_max_bytes": 1_000}
        fetch = {"max_wait_ms": 0, "session_epoch": -1, "topics": [{**topic, "partitions": [row]}]}
        of_time = {**row, "timestamp": -1, "current_leader_epoch": 50}
        plain = {
            "replica_id": -1,
            "timeout_ms": 9_000,
            "topics": [{**topic, "partitions": [{**of_time, "leader_epoch": 0, "offset": 0}]}],
        }
        with WireClient(cluster.addresses[other]) as client:
            produced = client.call(ApiKey.PRODUCE, version_of_produce, produce)
            fetched = client.call(ApiKey.FETCH, version_of_fetch, fetch)
            if index == 0 and version_of_fetch >= 16:
                for answer in (produced, fetched):
                    (where,) = answer.node_endpoints
                    assert f"{where.host}:{where.port}" == cluster.addresses[leader]
            return [
                produced.responses[0].partition_responses[0],
                fetched.responses[0].partitions[0],
                client.call(ApiKey.LIST_OFFSETS, 10, plain).topics[0].partitions[0],
                client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, plain).topics[0].partitions[0],
                client.call(ApiKey.DELETE_RECORDS, 2, plain).topics[0].partitions[0],
            ]

    for rows in (asked(0, 12, 9), asked(0, 18, 13)):
        assert [row.error_code for row in rows] == [ErrorCode.not_leader_or_follower] * 5
    led_by = [(row.current_leader.leader_id, row.current_leader.leader_epoch) for row in rows[:2]]
    assert led_by == [(leader, partition.leader_epoch)] * 2
    for rows in (asked(7, 12, 9), asked(7, 18, 13)):
        assert [row.error_code for row in rows] == [ErrorCode.unknown_topic_or_partition] * 5


def test_a_follower_compares_leader_epochs_before_it_refuses(
    cluster: ShoalCluster, topic: str
) -> None:
    """As Apache Kafka does: a newer epoch makes the client ask again, not look for a leader."""
    (partition, *_) = cluster.topic(1, topic)
    other = next(id for id in cluster.brokers if id != partition.leader_id)

    def asked(api: ApiKey, epoch: int) -> int:
        row = {"partition": 0, "partition_index": 0, "current_leader_epoch": epoch, "timestamp": -1}
        body = {"replica_id": -1, "topics": [{"topic": topic, "name": topic, "partitions": [row]}]}
        return int(cluster.ask(other, api, body).topics[0].partitions[0].error_code)

    known = partition.leader_epoch
    for api in (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH):
        assert [asked(api, epoch) for epoch in (-1, known, known + 9)] == [
            ErrorCode.not_leader_or_follower,
            ErrorCode.not_leader_or_follower,
            ErrorCode.unknown_leader_epoch,
        ]


# Share fetches at non-leaders. librdkafka asks for metadata after NOT_LEADER_OR_FOLLOWER. After
# UNKNOWN_TOPIC_OR_PARTITION it waits for its next refresh, minutes later.

LEADER, FOLLOWER, OTHER = 1, 2, 3
SHARED = "shared"


@pytest.fixture(scope="module")
def topic_id(cluster: ShoalCluster) -> UUID:
    """A topic of one partition; `OTHER` has no replica."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(SHARED, 1, replica_assignment=[[LEADER, FOLLOWER]])
    admin.create_topics([new])[SHARED].result(60)
    assert cluster.on_all(SHARED, cluster.brokers)[0].leader_id == LEADER
    (found,) = [t.topic_id for t in cluster.metadata(LEADER).topics if t.name == SHARED]
    return found


def share_fetch(cluster: ShoalCluster, broker: int, topic_id: UUID, index: int) -> Any:
    partition = {"partition_index": index, "acknowledgement_batches": []}
    body = {
        "group_id": "g",
        "member_id": "m",
        "share_session_epoch": 0,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 10,
        "batch_size": 10,
        "share_acquire_mode": 0,
        "is_renew_ack": False,
        "topics": [{"topic_id": topic_id, "partitions": [partition]}],
        "forgotten_topics_data": [],
    }
    return cluster.ask(broker, ApiKey.SHARE_FETCH, body)


@pytest.mark.parametrize("asked", [FOLLOWER, OTHER])
def test_a_broker_that_does_not_lead_a_share_partition_names_the_leader(
    cluster: ShoalCluster, topic_id: UUID, asked: int
) -> None:
    answer = share_fetch(cluster, asked, topic_id, 0)
    (row,) = answer.responses[0].partitions
    assert row.error_code == ErrorCode.not_leader_or_follower
    epoch = cluster.topic(LEADER, SHARED)[0].leader_epoch
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (LEADER, epoch)
    found = [(e.node_id, f"{e.host}:{e.port}") for e in answer.node_endpoints]
    assert found == [(LEADER, cluster.addresses[LEADER])]


def test_a_share_partition_that_does_not_exist_is_unknown(
    cluster: ShoalCluster, topic_id: UUID
) -> None:
    answer = share_fetch(cluster, OTHER, topic_id, 1)
    (row,) = answer.responses[0].partitions
    assert row.error_code == ErrorCode.unknown_topic_or_partition
    assert not answer.node_endpoints
