"""Dead letters of share groups as Kafka 4.4 writes them (KIP-1191), and what Shoal adds to them."""

from __future__ import annotations

import re
import time
import zipfile
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.java_classes import LIBRARY
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [pytest.mark.java, pytest.mark.nightly]

#: Kafka takes only members whose id is a UUID in its own notation.
MEMBER = "AAAAAAAAAAAAAAAAAAAABQ"
SOURCE_PARTITIONS, LETTER_PARTITIONS, PARTITION = 6, 4, 5
TIMESTAMP_MS = 1_700_000_000_000
ACCEPT, RELEASE, REJECT = 1, 2, 3
TOPIC, GROUP_RESOURCE = 2, 32
ADDED = [
    "__dlq.errors.disposition",
    "__dlq.errors.timestamp",
    "__dlq.errors.member",
    "__dlq.errors.client.id",
]


class Letter(NamedTuple):
    """A dead letter as a consumer reads it."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of Kafka with dead letters, and of Shoal."""
    kafka = KafkaProcess(tmp_path_factory.mktemp("kafka"), share_version=2).start()
    shoal = ShoalProcess(tmp_path_factory.mktemp("shoal") / "data").start()
    yield {"kafka": kafka.bootstrap, "shoal": shoal.bootstrap}
    kafka.kill9()
    shoal.kill9()


def alter(client: WireClient, kind: int, name: str, values: Mapping[str, str]) -> Any:
    """Set configs of a resource; return the answer for it."""
    configs = [{"name": n, "config_operation": 0, "value": v} for n, v in values.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    body = {"resources": [resource]}
    (answer,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
    return answer


class Queue:
    """A group that dead-letters records of one partition. `permission` is whether the topic of
    dead letters takes them; without one there is no topic."""

    def __init__(
        self, client: WireClient, name: str, *, copies: bool, permission: str | None = "true"
    ) -> None:
        self.client = client
        self.name = name
        self.letters = f"dlq.{self.name}"
        self.topic_id = client.create_topic(self.name, SOURCE_PARTITIONS)
        if permission is not None:
            self.create_letters(permission)
        self.configure(
            **{
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": "2",
                "errors.deadletterqueue.topic.name": self.letters,
                "errors.deadletterqueue.copy.record.enable": str(copies).lower(),
            }
        )
        self.epoch = self.session_epoch = 0

    def create_letters(self, permission: str) -> None:
        self.client.create_topic(
            self.letters, LETTER_PARTITIONS, errors_deadletterqueue_group_enable=permission
        )

    def permit_letters(self) -> None:
        self._alter(TOPIC, self.letters, {"errors.deadletterqueue.group.enable": "true"})

    def configure(self, **values: str) -> None:
        self._alter(GROUP_RESOURCE, self.name, values)

    def _alter(self, kind: int, name: str, values: Mapping[str, str]) -> None:
        answer = alter(self.client, kind, name, values)
        assert answer.error_code == 0, answer

    def begin(self) -> None:
        """Produce five records, and acquire them."""
        rows = [(TIMESTAMP_MS + n, b"k%d" % n, b"v%d" % n, [("own", b"1")]) for n in range(5)]
        batch, produce = bytes(build_batch(rows)), self.client.produce
        eventually(lambda: not produce(self.name, partition=PARTITION, records=batch).error_code)
        eventually(self.join, timeout_s=60)
        self.wait_for(0, [])

    def join(self) -> bool:
        """Heartbeat; return whether the group has this member."""
        asked = {"key_type": 0, "coordinator_keys": [self.name]}
        self.client.call(ApiKey.FIND_COORDINATOR, 4, asked)
        beat = {
            "group_id": self.name,
            "member_id": MEMBER,
            "member_epoch": self.epoch,
            "subscribed_topic_names": [self.name],
        }
        answer = self.client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, beat)
        self.epoch = answer.member_epoch if answer.error_code == 0 else self.epoch
        return bool(answer.assignment and answer.assignment.topic_partitions)

    def fetch(self, acknowledgements: Any = ()) -> list[tuple[int, int]]:
        """Acknowledge; return the first and last offsets of what is acquired."""
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
            for first, last, kind in acknowledgements
        ]
        partition = {"partition_index": PARTITION, "acknowledgement_batches": batches}
        body = {
            "group_id": self.name,
            "member_id": MEMBER,
            "share_session_epoch": self.session_epoch,
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 100,
            "batch_size": 100,
            "topics": [{"topic_id": self.topic_id, "partitions": [partition]}],
        }
        answer = self.client.call(ApiKey.SHARE_FETCH, 1, body)
        self.session_epoch += answer.error_code == 0
        rows = [p for topic in answer.responses for p in topic.partitions]
        assert not any(p.acknowledge_error_code for p in rows), answer
        return [(a.first_offset, a.last_offset) for p in rows for a in p.acquired_records]

    def wait_for(self, first: int, acquired: list[tuple[int, int]]) -> None:
        """Wait until the records from `first` on are acquired."""
        found = list(acquired)

        def has_records() -> bool:
            if not found:
                found.extend(self.fetch())
            return bool(found)

        eventually(has_records, timeout_s=60)
        assert found == [(first, 4)]


def make_letters(bootstrap: str, *, copies: bool) -> list[Letter]:
    """Make four dead letters, and read them: of two records that the group rejects, and two that it
    releases as often as it may get them."""
    with WireClient(bootstrap) as client:
        queue = Queue(client, f"copies-{copies}".lower(), copies=copies)
        queue.begin()
        again = queue.fetch([(0, 1, REJECT), (2, 2, ACCEPT), (3, 4, RELEASE)])
        queue.wait_for(3, again)
        queue.fetch([(3, 4, RELEASE)])
        return read_letters(bootstrap, queue.letters, 4)


def make_late_letters(bootstrap: str, permission: str | None) -> list[int]:
    """Reject two records, permit dead letters, reject a third one; return the offsets of the
    records that have letters, as far as the last one."""
    with WireClient(bootstrap) as client:
        name = "missing" if permission is None else "forbidden"
        queue = Queue(client, name, copies=False, permission=permission)
        queue.begin()
        queue.fetch([(0, 1, REJECT)])
        if permission is None:
            queue.create_letters("true")
        else:
            queue.permit_letters()
        queue.fetch([(2, 2, REJECT)])
        found: list[int] = []
        while 2 not in found:
            (letter,) = read_letters(bootstrap, queue.letters, 1, skip=len(found))
            found.append(int(dict(letter.headers)["__dlq.errors.offset"]))
        return found


def read_letters(bootstrap: str, topic: str, count: int, *, skip: int = 0) -> list[Letter]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    partitions = [TopicPartition(topic, p, skip) for p in range(LETTER_PARTITIONS)]
    consumer.assign(partitions)
    try:
        messages = consumer.consume(count, timeout=60)
    finally:
        consumer.close()
    assert len(messages) == count, messages
    return [
        Letter(m.partition(), m.key(), m.value(), m.headers() or [], m.timestamp()[1])
        for m in messages
    ]


@pytest.mark.parametrize("copies", [True, False])
def test_letters_are_kafkas_with_additions(servers: dict[str, str], copies: bool) -> None:
    """Shoal also keeps the record's headers and timestamp if it copies it, and says when and at
    whom it failed. Kafka's member gets its assignment after some seconds."""
    begun_ms = time.time_ns() // 1_000_000
    kafkas = make_letters(servers["kafka"], copies=copies)
    ours = make_letters(servers["shoal"], copies=copies)
    assert len({letter.partition for letter in kafkas}) == 1
    for number, (theirs, our) in enumerate(zip(kafkas, ours, strict=True)):
        own = [("own", b"1")] if copies else []
        assert our[:3] == theirs[:3]
        assert our.headers[: len(own)] == own
        assert our.headers[len(own) : -len(ADDED)] == theirs.headers
        assert [name for name, _ in our.headers[-len(ADDED) :]] == ADDED
        assert theirs.timestamp_ms >= begun_ms
        if copies:
            assert our.timestamp_ms == TIMESTAMP_MS + (0, 1, 3, 4)[number]
        else:
            assert our.timestamp_ms >= begun_ms


@pytest.mark.parametrize("permission", ["false", None], ids=["forbidden", "missing"])
def test_a_topic_that_takes_letters_later(servers: dict[str, str], permission: str | None) -> None:
    """Kafka gives up the letters of records that are rejected before, Shoal writes them then."""
    assert make_late_letters(servers["kafka"], permission) == [2]
    assert make_late_letters(servers["shoal"], permission) == [0, 1, 2]


def test_names_of_topics_that_the_group_may_have(servers: dict[str, str]) -> None:
    """A topic of the brokers is refused at once. Whether a name has the brokers' prefix only counts
    when letters are written."""

    def talk(bootstrap: str) -> list[int]:
        with WireClient(bootstrap) as client:
            names = ("__letters", "__consumer_offsets", "_letters", "no-prefix", "dlq.x", "")
            configs = [{"errors.deadletterqueue.topic.name": name} for name in names]
            return [alter(client, GROUP_RESOURCE, "named", c).error_code for c in configs]

    assert talk(servers["kafka"]) == talk(servers["shoal"])


def test_metrics_of_share_groups_are_kafkas(shared_broker: ShoalProcess) -> None:
    """Its class names them all."""
    (jar,) = LIBRARY.glob("kafka-server-4*.jar")
    with zipfile.ZipFile(jar) as classes:
        code = classes.read("org/apache/kafka/server/share/metrics/ShareGroupMetrics.class")
    # A constant is a byte, the length of its text in two bytes, and the text.
    texts = re.findall(rb"\x01\0(.)(\w+(?:PerSec|Ms|Ratio|Count))\b", code, re.DOTALL)
    names = {text.decode() for size, text in texts if size[0] == len(text)}
    theirs = {name for name in names if name[0].isupper()}
    assert len(theirs) >= 7
    found = re.findall(r"# TYPE kafka_server_ShareGroupMetrics_(\w+) ", shared_broker.scrape())
    assert {re.sub("_(total|count|sum)$", "", name) for name in found} == theirs
