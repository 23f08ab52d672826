"""Readers that share partitions by key ranges: the Python client, `shoal consume`, and refusals."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.client import Client
from shoal.client.consume.consumer import Reader
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX, KEY_RANGES_FEATURE
from shoal.record.batch import iter_headers
from shoal.record.key_ranges import InvalidKeyRanges, KeyRanges
from shoal.record.records import build_batch
from support.brokers.commands import Shoal
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from shoal.client.net.connection import Connection
    from support.brokers.shared_servers import SharedKafka

RECORDS = 600
KEYS = 30
_names = (f"shared-{i}" for i in itertools.count())


@pytest.fixture
def topic(tools_broker: ShoalProcess) -> str:
    """Two partitions, each with batches of all codecs."""
    name = next(_names)
    with WireClient(tools_broker.bootstrap) as client:
        client.create_topic(name, 2, shoal_key_ranges_enable="true")
        for n, codec in zip(range(0, RECORDS, 100), itertools.cycle(["none", "lz4", "zstd"])):
            records = [(1, b"k%d" % (i % KEYS), b"%d" % i, ()) for i in range(n, n + 100)]
            batch = bytes(build_batch(records, compression=codec))
            client.produce(name, records=batch, partition=n // 100 % 2)
    return name


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def drained(reader: Reader, end: int) -> list[Any]:
    """Read until all positions are at `end`."""
    found: list[Any] = []
    while any(position < end for position in reader.positions.values()):
        found += await reader.poll(5_000)
    return found


@pytest.mark.parametrize("isolation", Isolation)
def test_readers_share_partitions(
    tools_broker: ShoalProcess, topic: str, isolation: Isolation
) -> None:
    """Each record goes to one of three readers, and each key to one, in offset order."""
    where = [TopicPartition(topic, p) for p in range(2)]

    async def main() -> None:
        async with Client(tools_broker.bootstrap) as client:
            found: list[list[Any]] = []
            for n in range(1, 4):
                reader = Reader(client.cluster, {}, isolation=isolation, reset=Reset.EARLIEST)
                await reader.assign(dict.fromkeys(where, KeyRanges.from_part(n, 3)))
                found.append(await drained(reader, RECORDS // 2))
            values = sorted(int(r.value) for records in found for r in records)
            assert values == list(range(RECORDS))
            keys = [{r.key for r in records} for records in found]
            assert all(keys)
            assert sum(map(len, keys)) == KEYS
            for records in found:
                for partition in range(2):
                    offsets = [r.offset for r in records if r.partition == partition]
                    assert offsets == sorted(offsets)

    run(main())


def test_the_filter_decides_nothing(tools_broker: ShoalProcess, topic: str) -> None:
    """The client leaves out what the broker sends too much: here, records of compressed batches
    that are sent whole."""

    async def main() -> None:
        async with Client(tools_broker.bootstrap) as client:
            where, ranges = TopicPartition(topic, 1), KeyRanges.from_part(1, 2)
            found = await client.fetcher.poll({where: 0}, key_ranges={where: ranges})
            fetched: Any = found[where]
            sent = sum(h.record_count for _, h in iter_headers(fetched.data))
            records = list(fetched.records())
            assert len(records) < sent
            assert all(ranges.has_record(r.key, r.offset) for r in records)

    run(main())


def test_another_assignment_continues_at_the_position(
    tools_broker: ShoalProcess, topic: str
) -> None:
    where = TopicPartition(topic, 0)

    async def main() -> None:
        async with Client(tools_broker.bootstrap) as client:
            reader = Reader(client.cluster, {where: 100}, reset=Reset.EARLIEST)
            await reader.assign({where: [(0, KEY_HASH_MAX // 2)]})
            assert all(r.offset >= 100 for r in await drained(reader, 300))
            await reader.assign({where: [(KEY_HASH_MAX // 2 + 1, KEY_HASH_MAX)]})
            assert reader.positions == {where: 300}
            with pytest.raises(InvalidKeyRanges, match="overlap"):
                await reader.assign({where: [(0, 9), (5, 12)]})
            assert reader.key_ranges == {where: KeyRanges([(KEY_HASH_MAX // 2 + 1, KEY_HASH_MAX)])}
            await reader.assign({})
            assert reader.positions == {}
            without = Reader(client.cluster, {})
            with pytest.raises(ValueError, match=f"{where} has no position"):
                await without.assign({where: [(0, 9)]})

    run(main())


def refused(bootstrap: str, topic: str, *, prepare: Any = lambda _: None) -> KafkaError:
    """Return the error of a reader of key ranges."""

    async def main() -> KafkaError:
        async with Client(bootstrap) as client:
            reader = Reader(client.cluster, {TopicPartition(topic, 0): 0})
            await reader.assign({TopicPartition(topic, 0): [(0, 9)]})
            prepare(
                await client.cluster.get_connection(
                    await client.cluster.find_leader(topic, 0), "fetch"
                )
            )
            with pytest.raises(KafkaError) as caught:
                await reader.poll()
            return caught.value

    return run(main())


def test_a_topic_that_does_not_allow_it(tools_broker: ShoalProcess) -> None:
    name = next(_names)
    with WireClient(tools_broker.bootstrap) as client:
        client.create_topic(name)
    error = refused(tools_broker.bootstrap, name)
    assert error.code == ErrorCode.policy_violation
    assert "Set shoal.key.ranges.enable=true on it" in str(error)


def test_a_broker_that_hashes_by_another_version(tools_broker: ShoalProcess, topic: str) -> None:
    def newer(link: Connection) -> None:
        link.features[KEY_RANGES_FEATURE] = range(2, 4)

    error = refused(tools_broker.bootstrap, topic, prepare=newer)
    assert error.code == ErrorCode.unsupported_version
    assert "hashes keys by versions 2 to 3, this client by version 1" in str(error)


def test_a_broker_without_key_ranges(tmp_path: Path) -> None:
    switch = "shoal.fetch.key.ranges.enable"
    process = ShoalProcess(tmp_path / "data", configs={switch: "false"}).start()
    try:
        with WireClient(process.bootstrap) as client:
            client.create_topic("t", shoal_key_ranges_enable="true")
        error = refused(process.bootstrap, "t")
        assert error.code == ErrorCode.unsupported_version
        assert f"upgrade it, or set {switch}=true on it" in str(error)
    finally:
        process.stop()


@pytest.mark.nightly
def test_kafka_has_no_key_ranges(kafka: SharedKafka) -> None:
    with WireClient(kafka.bootstrap) as client:
        client.create_topic("t")
    error = refused(kafka.bootstrap, "t")
    assert error.code == ErrorCode.unsupported_version


def test_consume_parts(tools_broker: ShoalProcess, topic: str) -> None:
    shoal = Shoal(tools_broker.bootstrap)
    read = ("consume", topic, "--from-beginning", "--exit-at-end", "-f", "json", "--key-ranges")
    half = 2**62
    found = []
    for text in ("1/2", f"{half}-{KEY_HASH_MAX}"):
        rows = [json.loads(line) for line in shoal.says(*read, text).splitlines()]
        found.append([int(row["value"]) for row in rows])
    assert all(found)
    assert sorted(itertools.chain(*found)) == list(range(RECORDS))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--key-ranges", "3/2"], "part 3 of 2: parts are 1 to 2"),
        (["--key-ranges", "9-1"], "key range 9-1 ends before it begins"),
        (["--key-ranges", "half"], "write 1/4 for the first quarter"),
        (["--key-ranges", "1/2", "--group", "g"], "--key-ranges only with assigned"),
        (["--key-ranges", "assigned"], "--key-ranges assigned needs --group"),
    ],
)
def test_refused_options(tools_broker: ShoalProcess, words: list[str], message: str) -> None:
    name = next(_names)
    with WireClient(tools_broker.bootstrap) as client:
        client.create_topic(name)
    assert message in Shoal(tools_broker.bootstrap).refusal("consume", name, *words, status=2)
