"""Fetches by key ranges against a real broker: what is left out, and every refusal."""

from __future__ import annotations

import io
import itertools
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from shoal.client.net.batches import AbortedTransactions, decode
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX, KEY_RANGES_FEATURE
from shoal.record.key_ranges import KeyRanges
from shoal.record.records import Record, build_batch
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from wire.test_transactions import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ_COMMITTED = 1
PARTS = 4
_names = (f"ranged-{i}" for i in itertools.count())


@pytest.fixture
def client(shared_broker: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shared_broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: WireClient) -> str:
    name = next(_names)
    client.create_topic(name, 2, shoal_key_ranges_enable="true")
    return name


def keyed(count: int, first: int = 0, **options: Any) -> bytes:
    """A batch whose every third record has no key."""
    records = [
        (1, None if n % 3 == 2 else b"key-%d" % n, b"value-%d" % n, ())
        for n in range(first, first + count)
    ]
    return bytes(build_batch(records, **options))


def on_wire(ranges: KeyRanges) -> list[dict[str, int]]:
    return [{"first_hash": first, "last_hash": last} for first, last in ranges]


def fetch(client: WireClient, topic: str, offset: int, ranges: KeyRanges, **options: Any) -> Any:
    asked = {"key_ranges": on_wire(ranges), **options.pop("asked", {})}
    return client.fetch(topic, offset, asked=asked, **options)


def everything(client: WireClient, topic: str, **options: Any) -> list[Record]:
    """All records as a plain consumer gets them."""
    return records_of(client.fetch(topic, 0, partition_max_bytes=1 << 24, **options))


def records_of(part: Any, first: int = 0) -> list[Record]:
    aborted = getattr(part, "aborted_transactions", None)
    hidden = None
    if aborted is not None:
        hidden = AbortedTransactions((a.producer_id, a.first_offset) for a in aborted)
    return list(decode(bytes(part.records or b""), first=first, aborted=hidden))


def read_all(
    client: WireClient, topic: str, ranges: KeyRanges, end: int, **options: Any
) -> tuple[list[Record], int]:
    """The records of the ranges up to the offset `end`, and the bytes that came."""
    at, found, size = 0, [], 0
    while at < end:
        part = fetch(client, topic, at, ranges, **options)
        assert part.error_code == 0, part
        assert part.next_offset > at
        found += [r for r in records_of(part, at) if ranges.has_record(r.key, r.offset)]
        size += len(part.records or b"")
        at = part.next_offset
    return found, size


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_readers_of_parts_get_everything_once(
    client: WireClient, topic: str, compression: str
) -> None:
    for n in range(20):
        client.produce(topic, records=keyed(50, 50 * n, compression=compression))
    found, sizes = [], []
    for number in range(1, PARTS + 1):
        ranges = KeyRanges.from_part(number, PARTS)
        got, size = read_all(client, topic, ranges, 1000, partition_max_bytes=5_000)
        assert got == sorted(got)
        found += got
        sizes.append(size)
    assert sorted(found) == everything(client, topic)
    assert len(found) == 1000
    plain = len(client.fetch(topic, 0, partition_max_bytes=1 << 24).records)
    assert sum(sizes) < (1.5 if compression == "none" else PARTS + 0.1) * plain


def test_nothing_matches(client: WireClient, topic: str) -> None:
    """The response says where to read on. Nothing is there when the end is reached."""
    client.produce(topic, records=keyed(500))
    part = fetch(client, topic, 0, KeyRanges([(0, 0)]))
    assert (part.error_code, bytes(part.records), part.next_offset) == (0, b"", 500)
    part = fetch(client, topic, 500, KeyRanges([(0, 0)]))
    assert (bytes(part.records), part.next_offset) == (b"", 500)
    part = fetch(client, topic, 501, KeyRanges([(0, 0)]))
    assert part.error_code == ErrorCode.offset_out_of_range


def test_a_fetch_looks_at_a_bounded_number_of_records(client: WireClient, topic: str) -> None:
    for n in range(45):
        client.produce(topic, records=keyed(1_000, 1_000 * n))
    part = fetch(client, topic, 0, KeyRanges([(0, 0)]), max_wait_ms=600_000)
    assert bytes(part.records) == b""
    assert 0 < part.next_offset < 45_000


def test_min_bytes_counts_what_is_left(client: WireClient, topic: str) -> None:
    """A waiting fetch ignores records of other ranges, and is answered by one of its own."""
    ranges = KeyRanges.from_part(1, 2)
    others = [key for key in map(b"%d".__mod__, range(100)) if not ranges.has_record(key, 0)]
    own = next(key for key in map(b"%d".__mod__, range(100)) if ranges.has_record(key, 0))
    asked = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 1 << 20,
        "key_ranges": on_wire(ranges),
    }
    body = {
        "max_wait_ms": 600_000,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [asked]}],
    }
    answers: list[Any] = []
    client.send(ApiKey.FETCH, 12, body)
    waiting = threading.Thread(target=lambda: answers.append(client.receive(ApiKey.FETCH, 12)[1]))
    waiting.start()
    with WireClient(f"127.0.0.1:{client.sock.getpeername()[1]}") as producer:
        for key in others:
            producer.produce(topic, records=bytes(build_batch([(1, key, b"v", ())])))
        assert not answers
        producer.produce(topic, records=bytes(build_batch([(1, own, b"v", ())])))
    waiting.join()
    (part,) = answers[0].responses[0].partitions
    assert [r.key for r in records_of(part)] == [own]
    assert part.next_offset == len(others) + 1


def test_a_waiting_fetch_holds_a_bounded_number_of_bytes(client: WireClient, topic: str) -> None:
    """It is answered with less than `min_bytes` instead."""
    client.produce(topic, records=keyed(4_000))
    limits = {"min_bytes": 1 << 20, "max_wait_ms": 600_000}
    part = fetch(client, topic, 0, KeyRanges([(0, KEY_HASH_MAX)]), **limits)
    assert len(part.records) > 1 << 16


def test_transactions(client: WireClient, topic: str) -> None:
    """Aborted records stay hidden, also if their first batch was left out; open ones end a read."""
    writer = Writer(client).started()
    for n in range(12):
        writer.produce(topic, *[b"%d-%d" % (n, i) for i in range(4)])
        assert writer.end(committed=n % 3 != 0) == 0
        writer.at_rest()
    writer.produce(topic, b"open")
    end = client.fetch(topic, 0, isolation_level=READ_COMMITTED).last_stable_offset
    expected = everything(client, topic, isolation_level=READ_COMMITTED)
    assert len(expected) == 32
    found = []
    for number in range(1, PARTS + 1):
        ranges = KeyRanges.from_part(number, PARTS)
        got, _ = read_all(client, topic, ranges, end, isolation_level=READ_COMMITTED)
        found += got
        part = fetch(client, topic, 0, ranges, isolation_level=READ_COMMITTED)
        assert part.next_offset == end
        assert fetch(client, topic, 0, ranges).next_offset == end + 1
    assert sorted(found) == expected
    writer.end(committed=False)


def test_a_session_keeps_the_ranges(client: WireClient, topic: str) -> None:
    """An incremental request that does not name the partition reads the same ranges. Progress
    without records is in the response, so that the client can move on."""
    client.produce(topic, records=keyed(100))
    none = on_wire(KeyRanges([(0, 0)]))
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "key_ranges": none}
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_id": 0,
        "session_epoch": 0,
        "topics": [{"topic": topic, "partitions": [asked]}],
    }
    first = client.call(ApiKey.FETCH, 12, body)
    assert first.responses[0].partitions[0].next_offset == 100
    rest = body | {"session_id": first.session_id, "topics": []}
    again = client.call(ApiKey.FETCH, 12, rest | {"session_epoch": 1})
    assert again.responses[0].partitions[0].next_offset == 100
    moved = [{"topic": topic, "partitions": [asked | {"fetch_offset": 100}]}]
    at_end = client.call(ApiKey.FETCH, 12, rest | {"session_epoch": 2, "topics": moved})
    assert list(at_end.responses) == []
    client.produce(topic, records=keyed(1))
    half = asked | {"fetch_offset": 0, "key_ranges": on_wire(KeyRanges.from_part(1, 2))}
    topics = [{"topic": topic, "partitions": [half]}]
    changed = client.call(ApiKey.FETCH, 12, rest | {"session_epoch": 3, "topics": topics})
    assert 0 < len(records_of(changed.responses[0].partitions[0])) < 101
    whole = [{"topic": topic, "partitions": [asked | {"key_ranges": []}]}]
    plain = client.call(ApiKey.FETCH, 12, rest | {"session_epoch": 4, "topics": whole})
    assert len(records_of(plain.responses[0].partitions[0])) == 101


def test_partitions_share_the_limit_of_the_response(client: WireClient, topic: str) -> None:
    for partition in range(2):
        for _ in range(5):
            client.produce(topic, records=keyed(100), partition=partition)
    all_hashes = on_wire(KeyRanges([(0, KEY_HASH_MAX)]))
    row = {"fetch_offset": 0, "partition_max_bytes": 1 << 20, "key_ranges": all_hashes}
    body = {
        "max_wait_ms": 1_000,
        "min_bytes": 1,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [row | {"partition": p} for p in range(2)]}],
    }
    one = len(keyed(100))
    for max_bytes, batches in ((1, [1, 0]), (6 * one, [5, 1]), (1 << 20, [5, 5])):
        (found,) = client.call(ApiKey.FETCH, 12, body | {"max_bytes": max_bytes}).responses
        assert [len(p.records) // one for p in found.partitions] == batches
        assert [p.next_offset for p in found.partitions] == [100 * n for n in batches]


def test_other_clients_see_unchanged_bytes(client: WireClient, topic: str) -> None:
    """A plain fetch has the bytes of Kafka's schema, also of a topic that has key ranges."""
    client.produce(topic, records=keyed(10))
    fields = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [fields]}],
    }
    for version in (4, 11, 12):
        client.send(ApiKey.FETCH, version, body)
        with client.sock.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            frame = stream.read(size)
        entity = codec.load_entity(ApiKey.FETCH, version, EntityType.response)
        at = len(frames.build_response_head(ApiKey.FETCH, version, 0))
        found, read = entity_reader(entity)(frame, at)  # It fails for a tag that Kafka lacks.
        assert at + read == len(frame)
        again = io.BytesIO()
        entity_writer(entity)(again, found)
        assert again.getvalue() == frame[at:]
        assert len(records_of(found.responses[0].partitions[0])) == 10


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(5, 4)], "key range 5-4 ends before it begins: write the lower hash first"),
        ([(-1, 4)], "key range -1-4: hashes are 0 to 9223372036854775807"),
        ([(0, 9), (9, 12)], "key ranges 0-9 and 9-12 overlap: name each hash once"),
        ([(2 * n, 2 * n) for n in range(1_001)], "1001 key ranges, at most 1000 are allowed"),
    ],
)
def test_invalid_ranges(
    client: WireClient, topic: str, ranges: list[tuple[int, int]], message: str
) -> None:
    client.produce(topic, records=keyed(10))
    rows = [{"first_hash": first, "last_hash": last} for first, last in ranges]
    part = client.fetch(topic, 0, asked={"key_ranges": rows}, max_wait_ms=600_000)
    assert part.error_code == ErrorCode.invalid_request
    assert part.error_message.startswith(f"{topic}-0: {message}")
    assert not part.records


def test_another_hash_version(client: WireClient, topic: str) -> None:
    part = fetch(client, topic, 0, KeyRanges([(0, 9)]), asked={"key_hash_version": 2})
    assert part.error_code == ErrorCode.unsupported_version
    assert "of hash version 2, and this broker has version 1" in part.error_message


def test_the_switch_of_the_topic(client: WireClient) -> None:
    """shoal.key.ranges.enable"""
    name = next(_names)
    client.create_topic(name, shoal_key_ranges_enable="false")
    client.produce(name, records=keyed(10))
    part = fetch(client, name, 0, KeyRanges([(0, 9)]), max_wait_ms=600_000)
    assert part.error_code == ErrorCode.policy_violation
    assert "Set shoal.key.ranges.enable=true on it" in part.error_message
    assert len(everything(client, name)) == 10


def test_the_cache(shared_broker: ShoalProcess, client: WireClient, topic: str) -> None:
    """shoal.fetch.key.ranges.cache.bytes"""

    def counts(broker: ShoalProcess) -> list[float]:
        names = ("cache_hit", "cache_miss", "looked_bytes", "sent_bytes")
        return [broker.metric(f"shoal_key_range_{name}_total") for name in names]

    client.produce(topic, records=keyed(1_000))
    before = counts(shared_broker)
    sent = sum(len(fetch(client, topic, 0, KeyRanges.from_part(n, 4)).records) for n in range(1, 5))
    looked = len(keyed(1_000))
    after = counts(shared_broker)
    assert [b - a for a, b in zip(before, after, strict=True)] == [3, 1, 4 * looked, sent]
    assert shared_broker.metric("shoal_key_range_cache_bytes") > looked


def test_the_switches_of_the_broker(tmp_path: Path) -> None:
    """shoal.fetch.key.ranges.enable, and a cache of no bytes"""
    switch, cache = "shoal.fetch.key.ranges.enable", "shoal.fetch.key.ranges.cache.bytes"
    process = ShoalProcess(tmp_path / "data", configs={cache: "0"}).start()
    try:
        with WireClient(process.bootstrap) as client:
            assert KEY_RANGES_FEATURE in features(client)
            client.create_topic("t", shoal_key_ranges_enable="true")
            client.produce("t", records=keyed(10))
            for _ in range(3):
                assert fetch(client, "t", 0, KeyRanges([(0, 0)])).next_offset == 10
        assert process.metric("shoal_key_range_cache_miss_total") == 3
        assert process.metric("shoal_key_range_cache_bytes") == 0
        assert process.stop() == 0
        process.configs[switch] = "false"
        process.start()
        with WireClient(process.bootstrap) as client:
            assert KEY_RANGES_FEATURE not in features(client)
            part = fetch(client, "t", 0, KeyRanges([(0, 9)]))
            assert part.error_code == ErrorCode.policy_violation
            assert f"Set {switch}=true" in part.error_message
            assert len(everything(client, "t")) == 10
    finally:
        process.stop()


def test_only_our_client_learns_of_the_feature(client: WireClient) -> None:
    assert KEY_RANGES_FEATURE in features(client)
    assert KEY_RANGES_FEATURE not in features(client, "apache-kafka-java")


def features(client: WireClient, software: str = "shoal") -> set[str]:
    body = {"client_software_name": software, "client_software_version": "1"}
    answer = client.call(ApiKey.API_VERSIONS, 4, body)
    return {feature.name for feature in answer.supported_features}
