"""Unique jobs on a real broker: with librdkafka, our client and raw requests.

`tests/unit/replication/test_deduplication.py` has the rules. Here are the ways to them: worker
threads, transactions' markers, restarts, and what clients make of the answers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import Producer as RdProducer
from confluent_kafka import ShareConsumer
from confluent_kafka import TopicPartition as RdPartition
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError, expect
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from shoal.server.replication.batch_validator import IDS_OF_BATCH_MAX
from shoal.worker import Queue
from support.brokers.queues import Queue as Topic
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.brokers.servers import ShoalProcess

HOUR_MS = "3600000"
UNIQUE = {"shoal.deduplication.window.ms": HOUR_MS}


@pytest.fixture
def client(shared_broker: ShoalProcess) -> Iterator[SyncClient]:
    with SyncClient(shared_broker.bootstrap) as found:
        yield found


@pytest.fixture
def topic(client: SyncClient, shared_broker: ShoalProcess) -> Topic:
    return Topic(client, shared_broker.bootstrap, topic_configs=UNIQUE)


def produce(topic: Topic, ids: Sequence[str], *, filler: Any = b"", **options: object) -> list[int]:
    """Send records in one batch by librdkafka, with their ids as values, and behind them `filler`.
    Return their offsets."""
    producer = RdProducer(
        {"bootstrap.servers": topic.bootstrap, "linger.ms": 100, "log_level": 0, **options}
    )
    offsets: list[int] = []
    for name in ids:
        producer.produce(
            topic.topic,
            name.encode() + filler,
            headers={"shoal.dedup.id": name},
            partition=0,
            on_delivery=lambda error, message: offsets.append(
                -1 if error is not None else message.offset()
            ),
        )
    assert producer.flush(60) == 0
    return offsets


def read(topic: Topic) -> list[tuple[int, bytes | None]]:
    """Return offset and value of all committed records, as librdkafka reads them."""
    consumer = RdConsumer(
        {
            "bootstrap.servers": topic.bootstrap,
            "group.id": topic.group,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([RdPartition(topic.topic, 0, 0)])
    found = []
    while (message := consumer.poll(60)) is not None and message.error() is None:
        found.append((message.offset(), message.value()))
    consumer.close()
    return found


@pytest.mark.parametrize(("idempotent", "codec"), [(False, "none"), (True, "zstd")])
def test_librdkafka_gets_the_offset_of_the_first(
    topic: Topic, idempotent: bool, codec: str
) -> None:
    options = {"enable.idempotence": idempotent, "compression.type": codec}
    assert produce(topic, ["a", "b"], **options) == [0, 1]
    assert produce(topic, ["a", "b"], **options) == [0, 1]
    assert [value for _, value in read(topic)] == [b"a", b"b"]
    # The other records of a batch have the offsets that the client reports.
    end = 4 if idempotent else 2
    assert produce(topic, ["c", "a", "d", "c"], **options) == [end, end + 1, end + 2, end + 3]
    assert read(topic) == [(0, b"a"), (1, b"b"), (end, b"c"), (end + 2, b"d")]


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_batch_that_expands_far_is_cut_in_a_thread(topic: Topic, idempotent: bool) -> None:
    """Ten megabytes here, behind which requests of the same partition wait."""
    options = {
        "enable.idempotence": idempotent,
        "compression.type": "zstd",
        "batch.size": 16 << 20,
        "message.max.bytes": 16 << 20,
    }
    produce(topic, ["a"])
    filler = b"v" * 100_000
    names = [f"job {n}" for n in range(100)]
    offsets = produce(topic, [*names[:50], "a", *names[50:]], filler=filler, **options)
    assert offsets == list(range(1, 102))
    stored = [(offset, value[:-100_000]) for offset, value in read(topic)[1:] if value]
    assert stored == [(n + 1 + (n >= 50), name.encode()) for n, name in enumerate(names)]


def test_one_idempotent_producer_sends_known_and_new_records(topic: Topic) -> None:
    """Each in a batch of its own, so its sequences continue behind batches without records."""
    producer = RdProducer({"bootstrap.servers": topic.bootstrap, "enable.idempotence": True})
    failed: list[object] = []
    for name in ("a", "a", "b", "a", "b", "c"):
        producer.produce(
            topic.topic,
            name.encode(),
            headers={"shoal.dedup.id": name},
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )
        assert producer.flush(60) == 0
    assert not failed
    assert [value for _, value in read(topic)] == [b"a", b"b", b"c"]


def test_a_batch_of_many_records_is_read_in_a_thread(topic: Topic) -> None:
    names = [f"job {n}" for n in range(3_000)]
    produce(topic, names)
    produce(topic, [*names[:1_500], *[f"other {n}" for n in range(1_500)]])
    assert len(read(topic)) == 4_500


def test_an_aborted_transaction_frees_its_ids(topic: Topic) -> None:
    async def put(dedup_id: str, *, fail: bool) -> None:
        async with (
            Queue(topic.topic, settings=topic.bootstrap) as queue,
            queue.transaction(topic.topic) as transaction,
        ):
            await transaction.put(dedup_id, dedup_id=dedup_id)
            if fail:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(put("a", fail=True))
    for _ in range(2):
        asyncio.run(put("a", fail=False))
    assert [value for _, value in read(topic)] == [b"a"]


def test_put_with_an_id_chooses_the_partition_and_stores_the_job_once(
    client: SyncClient, shared_broker: ShoalProcess
) -> None:
    topic = Topic(client, shared_broker.bootstrap, partitions=4, topic_configs=UNIQUE)

    async def put() -> None:
        async with Queue(topic.topic, settings=topic.bootstrap) as queue:
            first = await queue.put({"n": 1}, dedup_id="order 1")
            others = [await queue.put({"n": n}, dedup_id="order 1") for n in range(3)]
            assert {(o.partition, o.offset) for o in others} == {(first.partition, first.offset)}
            many = await queue.put_many(range(40), dedup_id=lambda n: f"job {n % 20}")
            assert len({(one.partition, one.offset) for one in many}) >= 20
            again = await queue.put_many(range(20), dedup_id=lambda n: f"job {n}")
            assert [one[:3] for one in many[:20]] == [one[:3] for one in again]
            assert len({one.partition for one in many}) > 1
            with_key = await queue.put(1, key="ann", dedup_id="order 1")
            assert with_key.partition == (await queue.put(1, key="ann")).partition

    asyncio.run(put())


def test_a_share_group_passes_the_holes_of_known_records(topic: Topic) -> None:
    """Also those at the end, so that its lag is 0 when its last job is done."""
    produce(topic, ["a", "b"], **{"enable.idempotence": True})
    produce(topic, ["a", "c", "b"], **{"enable.idempotence": True})
    produce(topic, ["a", "b"], **{"enable.idempotence": True})
    consumer = ShareConsumer({"bootstrap.servers": topic.bootstrap, "group.id": topic.group})
    consumer.subscribe([topic.topic])
    values: list[bytes | None] = []
    while topic.lag != 0:
        values += [message.value() for message in consumer.poll(0.2) if message.error() is None]
    consumer.close()
    assert values == [b"a", b"b", b"c"]


def test_ids_are_known_after_a_restart_and_free_after_the_window(broker: ShoalProcess) -> None:
    with SyncClient(broker.bootstrap) as client:
        topic = Topic(client, broker.bootstrap, topic_configs=UNIQUE)
        produce(topic, ["a", "b"], **{"compression.type": "zstd"})
        assert broker.metric("shoal_log_deduplication_ids") == 2
        broker.kill9()
        broker.start()
        assert broker.metric("shoal_log_deduplication_ids") == 0
        assert produce(topic, ["b"], **{"compression.type": "zstd"}) == [1]
        assert broker.metric("shoal_log_deduplication_ids") == 2
        set_window(client, topic, "1")
        eventually(lambda: produce(topic, ["b"])[0] > 1)


def test_ids_beyond_the_memory_are_in_files(broker: ShoalProcess) -> None:
    """A table of 24 ids is written to a file while the broker serves. Files survive kill -9, and
    a damaged one is named."""
    memory = {"shoal.deduplication.memory.bytes": "1024"}
    names = [f"job {number}" for number in range(200)]
    options = {"batch.num.messages": 10, "linger.ms": 1}
    with SyncClient(broker.bootstrap) as client:
        topic = Topic(client, broker.bootstrap, topic_configs={**UNIQUE, **memory})
        produce(topic, names, **options)
        eventually(lambda: broker.metric("shoal_log_deduplication_file_bytes") > 150 * 15)
        for _ in range(2):
            assert sorted(produce(topic, names, **options)) == list(range(200))
            broker.kill9()
            (path, *_) = Path(broker.data_dir, f"{topic.topic}-0").glob("*.ids")
            data = bytearray(path.read_bytes())
            data[7] ^= 1
            path.write_bytes(data)
            broker.start()
        assert sorted(produce(topic, names, **options)) == list(range(200))
        assert any(path.name in line for line in broker.log)
        change = ConfigChange("shoal.deduplication.window.ms", "0")
        resource = ConfigResource(ConfigResourceType.TOPIC, topic.topic)
        expect(client.run(client.admin.configs.alter({resource: [change]})))
        eventually(lambda: not [*path.parent.glob("*.ids")])


def set_window(client: SyncClient, topic: Topic, window_ms: str) -> None:
    change = ConfigChange("shoal.deduplication.window.ms", window_ms)
    resource = ConfigResource(ConfigResourceType.TOPIC, topic.topic)
    expect(client.run(client.admin.configs.alter({resource: [change]})))


def test_the_window_is_at_most_a_week_and_not_for_compacted_topics(
    client: SyncClient, topic: Topic
) -> None:
    with pytest.raises(KafkaError, match="604800001"):
        set_window(client, topic, "604800001")
    with pytest.raises(KafkaError, match="without compaction"):
        Topic(client, topic.bootstrap, topic_configs={**UNIQUE, "cleanup.policy": "compact"})


def test_more_ids_than_the_limit_are_refused(shared_broker: ShoalProcess) -> None:
    with WireClient(shared_broker.bootstrap) as client:
        name = "few-ids"
        client.create_topic(
            name,
            shoal_deduplication_window_ms=HOUR_MS,
            shoal_deduplication_ids_max="1",
        )
        answers = []
        for number in range(2):
            headers = (("shoal.dedup.id", b"%d" % number),)
            batch = build_batch([(1, None, b"v", headers)])
            answers.append(client.produce(name, records=bytes(batch)))
        assert [a.error_code for a in answers] == [0, ErrorCode.policy_violation]
        assert "shoal.deduplication.ids.max" in answers[1].error_message


def test_a_batch_has_no_more_ids_than_a_turn_of_the_loop_takes(topic: Topic) -> None:
    """They are 3 us each."""
    with WireClient(topic.bootstrap) as client:
        for count, code in (
            (IDS_OF_BATCH_MAX + 1, ErrorCode.message_too_large),
            (IDS_OF_BATCH_MAX, ErrorCode.none),
        ):
            batch = build_batch([(1, None, b"", ())] * count, compression="zstd")
            assert client.produce(topic.topic, records=bytes(batch)).error_code == code


def test_requests_wait_behind_a_batch_that_is_cut_in_a_thread(topic: Topic) -> None:
    """So their records come behind it, also of requests that came while it was expanded."""

    def make_body(ids: Sequence[str], compression: str = "none") -> dict[str, object]:
        filler = b"v" * 100_000
        records = [(1, None, filler, (("shoal.dedup.id", i.encode()),)) for i in ids]
        batch = bytes(build_batch(records, compression=compression))
        entry = {"name": topic.topic, "partition_data": [{"index": 0, "records": batch}]}
        return {"transactional_id": None, "acks": -1, "timeout_ms": 9_000, "topic_data": [entry]}

    produce(topic, ["a"])
    with WireClient(topic.bootstrap) as client:
        client.send(ApiKey.PRODUCE, 9, make_body([*map(str, range(50)), "a"], compression="zstd"))
        for dedup_id in ("b", "49"):
            client.send(ApiKey.PRODUCE, 9, make_body([dedup_id]))
        answers = [client.receive(ApiKey.PRODUCE, 9)[1] for _ in range(3)]
    stored = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
    assert stored == [1, 52, 50]
