"""Plain fetches: a range of offsets of one partition, or new records of many partitions.

`Fetcher.fetch_range` replays exact records: it reads [first, last] of a partition in bounded
chunks, regardless of the state of any group. `Fetcher.poll` is one round over many partitions, for
consumers. Fetches use no session (session epoch -1, KIP-227): with few partitions a session saves
nothing.

With `client.rack`, `fetch_range` reads from the replica that the leader names, one in this rack,
until it fails or the metadata expires (KIP-392). The leader then names one again.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.client.admin.topics import OffsetSpec, Topics
from shoal.client.errors import STALE_METADATA, ClientError, KafkaError, is_transient
from shoal.client.net.batches import AbortedTransactions, decode
from shoal.client.net.batches import Isolation as Isolation
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_VERSION, KEY_RANGES_FEATURE
from shoal.record.batch import iter_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from shoal.record.key_ranges import KeyRanges
    from shoal.record.records import Record

#: Bytes of one partition in one response. The first batch always fits (KIP-74).
CHUNK_BYTES = 4 << 20
POLL_BYTES = 50 << 20
NO_RANGES: Mapping[TopicPartition, KeyRanges] = {}


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole batches of one partition, as the broker sent them.

    They may start before the requested offset and end after it. `records` drops the surplus. With
    `key_ranges` it drops records of other ranges, too: the broker need not leave out all of them.
    """

    topic: str
    partition: int
    first: int
    last: int | None
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    data: bytes = field(repr=False)
    aborted: tuple[tuple[int, int], ...] = ()
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    #: The replica to read from instead, which the leader has named; else -1.
    read_replica: int = -1
    key_ranges: KeyRanges | None = None

    def records(self) -> Iterator[Record]:
        """Decode the requested records without control records and aborted ones."""
        committed = self.isolation == Isolation.READ_COMMITTED
        hidden = AbortedTransactions(self.aborted) if committed else None
        records = decode(self.data, first=self.first, last=self.last, aborted=hidden)
        ranges = self.key_ranges
        return (
            records
            if ranges is None
            else (r for r in records if ranges.has_record(r.key, r.offset))
        )


class Fetcher:
    """Fetches on its own lane: from partition leaders, or ranges from the closest replicas."""

    def __init__(self, cluster: Cluster, *, lane: str = "fetch") -> None:
        self.cluster = cluster
        self._lane = lane
        #: The replicas that leaders have named, and when each is to be named again.
        self._closest: dict[TopicPartition, tuple[int, float]] = {}

    async def fetch_range(
        self,
        topic: str,
        partition: int,
        first: int,
        last: int,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        chunk_bytes: int = CHUNK_BYTES,
        timeout_ms: int | None = None,
    ) -> AsyncIterator[FetchedBatches]:
        """Yield the batches that hold the offsets [first, last], both inclusive, in order.

        Ends when `last` is reached. Raises `KafkaError` OFFSET_OUT_OF_RANGE if the log no longer
        holds `first` or ends before `last`. Other transient errors are retried for `timeout_ms`.
        """
        offset = first
        topic_partition = TopicPartition(topic, partition)
        while offset <= last:

            async def attempt(offset: int = offset) -> FetchedBatches:
                batches = await self._fetch_one(
                    topic_partition, offset, last, isolation, chunk_bytes
                )
                if batches.next_offset == offset:
                    committed = isolation == Isolation.READ_COMMITTED
                    end = batches.last_stable_offset if committed else batches.high_watermark
                    code = ErrorCode.offset_not_available
                    if end <= last and (
                        committed or await self._is_end_before(topic_partition, last)
                    ):
                        code = ErrorCode.offset_out_of_range
                    raise KafkaError(code, f"{topic_partition} ends at offset {end}, before {last}")
                return batches

            try:
                fetched = await self.cluster.retry(attempt, timeout_ms)
            except KafkaError as error:
                if error.code != ErrorCode.offset_out_of_range:
                    raise
                raise await self._explain_out_of_range(
                    topic_partition, first, last, error
                ) from None
            yield fetched
            offset = fetched.next_offset

    async def _is_end_before(self, partition: TopicPartition, last: int) -> bool:
        """Whether the log ends before offset `last`.

        A new leader first returns an old high watermark in fetches. It refuses ListOffsets until
        its high watermark is right (KIP-207).
        """
        spec = int(OffsetSpec.LATEST)
        end = (await Topics(self.cluster).offsets({partition: spec}))[partition]
        if isinstance(end, KafkaError):
            raise end
        return end.offset <= last

    async def _explain_out_of_range(
        self, partition: TopicPartition, first: int, last: int, error: KafkaError
    ) -> KafkaError:
        """Return the error with the log's actual offsets, which brokers may omit."""
        topics, bounds = Topics(self.cluster), []
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
            bound = (await topics.offsets({partition: int(spec)}))[partition]
            if isinstance(bound, KafkaError):
                return error
            bounds.append(bound.offset)
        return KafkaError(
            error.code,
            f"the log of {partition} has the offsets from {bounds[0]} up to its end {bounds[1]}; "
            f"{first} to {last} were requested",
        )

    async def _fetch_one(
        self, partition: TopicPartition, offset: int, last: int, isolation: Isolation, size: int
    ) -> FetchedBatches:
        closest = await self._fetch_from_closest(partition, offset, last, isolation, size)
        if closest is not None:
            return closest
        node = await self.cluster.find_leader(*partition)
        rack = self.cluster.settings.client_rack
        try:
            results = await self._ask(
                node, {partition: offset}, {partition: last}, isolation, size, size, 0, rack=rack
            )
            leader_result = results[partition]
            if isinstance(leader_result, FetchedBatches) and leader_result.read_replica >= 0:
                self._prefer(partition, leader_result.read_replica)
                closest = await self._fetch_from_closest(partition, offset, last, isolation, size)
                if closest is not None:
                    return closest
                # Without a rack, the leader returns the records.
                results = await self._ask(
                    node, {partition: offset}, {partition: last}, isolation, size, size, 0
                )
        except ClientError as error:
            if is_transient(error):
                # Read metadata again: a dead leader cannot report its successor.
                self.cluster.forget_topic(partition.topic)
            raise
        result = results[partition]
        if isinstance(result, KafkaError):
            if result.code in STALE_METADATA:
                self.cluster.forget_topic(partition.topic)
            raise result
        return result

    def _prefer(self, partition: TopicPartition, node: int) -> None:
        age_s = self.cluster.settings.metadata_max_age_ms / 1000
        self._closest[partition] = node, asyncio.get_running_loop().time() + age_s

    async def _fetch_from_closest(
        self, partition: TopicPartition, offset: int, last: int, isolation: Isolation, size: int
    ) -> FetchedBatches | None:
        """Return what the closest replica has at `offset`; None if none is known, or it cannot
        return records. It may be behind the leader."""
        node, ends = self._closest.get(partition, (-1, 0.0))
        if node < 0:
            return None
        if ends > asyncio.get_running_loop().time():
            rack = self.cluster.settings.client_rack
            with contextlib.suppress(ClientError):
                results = await self._ask(
                    node,
                    {partition: offset},
                    {partition: last},
                    isolation,
                    size,
                    size,
                    0,
                    rack=rack,
                )
                result = results[partition]
                if isinstance(result, FetchedBatches) and result.next_offset > offset:
                    return result
        self._closest.pop(partition, None)
        return None

    async def poll(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_wait_ms: int = 500,
        max_bytes: int = POLL_BYTES,
        partition_bytes: int = CHUNK_BYTES,
        min_bytes: int = 1,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        key_ranges: Mapping[TopicPartition, KeyRanges] = NO_RANGES,
    ) -> dict[TopicPartition, FetchedBatches | KafkaError]:
        """Fetch once from each leader everything new at `positions`, in some partitions only
        records of `key_ranges`.

        Partitions without new records are left out. Transient errors are retried within
        `max_wait_ms`; other errors are values. A partition with key ranges may have progress
        without records. UNSUPPORTED_VERSION is raised if its leader does not offer key ranges.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait_ms / 1000
        backoff = self.cluster.make_backoff()
        while True:
            by_node: dict[int, dict[TopicPartition, int]] = {}
            results: dict[TopicPartition, FetchedBatches | KafkaError] = {}
            for partition, leader in (await self.cluster.find_leaders(positions)).items():
                if isinstance(leader, int):
                    by_node.setdefault(leader, {})[partition] = positions[partition]
                elif not leader.retriable or leader.code in _GONE:
                    results[partition] = leader
            left_ms = max(0, int((deadline - loop.time()) * 1000))
            answers = await asyncio.gather(
                *(
                    self._ask(
                        n,
                        node_positions,
                        {},
                        isolation,
                        max_bytes,
                        partition_bytes,
                        left_ms,
                        min_bytes,
                        key_ranges,
                    )
                    for n, node_positions in by_node.items()
                ),
                return_exceptions=True,
            )
            for node_positions, answer in zip(by_node.values(), answers, strict=True):
                results |= self._select_news(node_positions, answer)
            if results or loop.time() >= deadline:
                return results
            await backoff.pause()

    def _select_news(
        self,
        positions: Mapping[TopicPartition, int],
        answer: Mapping[TopicPartition, FetchedBatches | KafkaError] | BaseException,
    ) -> dict[TopicPartition, FetchedBatches | KafkaError]:
        """Return new records and lasting errors; raise an error that is not transient."""
        if isinstance(answer, BaseException):
            if not isinstance(answer, ClientError) or not is_transient(answer):
                raise answer
            for partition in positions:
                self.cluster.forget_topic(partition.topic)
            return {}
        results = {}
        for partition, result in answer.items():
            if isinstance(result, KafkaError) and result.code in STALE_METADATA:
                self.cluster.forget_topic(partition.topic)
            elif isinstance(result, KafkaError) or result.next_offset > positions[partition]:
                results[partition] = result
        return results

    async def _ask(
        self,
        node: int,
        positions: Mapping[TopicPartition, int],
        last: Mapping[TopicPartition, int],
        isolation: Isolation,
        max_bytes: int,
        partition_bytes: int,
        wait_ms: int,
        min_bytes: int = 1,
        key_ranges: Mapping[TopicPartition, KeyRanges] = NO_RANGES,
        rack: str = "",
    ) -> dict[TopicPartition, FetchedBatches | KafkaError]:
        topics: dict[str, list[dict[str, Any]]] = {}
        if not key_ranges.keys().isdisjoint(positions):
            await self._check_offers_ranges(node)
        metadata = {
            name: await self.cluster.get_topic(name)
            for name in dict.fromkeys(p.topic for p in positions)
        }
        for partition, offset in positions.items():
            fields: dict[str, Any] = {
                "partition": partition.partition,
                "current_leader_epoch": metadata[partition.topic]
                .get_partition(partition.partition)
                .leader_epoch,
                "fetch_offset": offset,
                "partition_max_bytes": partition_bytes,
            }
            if partition in key_ranges:
                fields["key_ranges"] = [
                    {"first_hash": first, "last_hash": last}
                    for first, last in key_ranges[partition]
                ]
            topics.setdefault(partition.topic, []).append(fields)
        names = {topic.topic_id: name for name, topic in metadata.items()}
        body = {
            "replica_id": -1,
            "max_wait_ms": wait_ms,
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "isolation_level": isolation,
            "session_epoch": -1,
            "rack_id": rack,
            "topics": [
                {"topic": name, "topic_id": topic_id, "partitions": topics[name]}
                for topic_id, name in names.items()
            ],
        }
        timeout_ms = wait_ms + self.cluster.settings.request_timeout_ms
        answer = await self.cluster.request(
            node, ApiKey.FETCH, body, lane=self._lane, timeout_ms=timeout_ms
        )
        if getattr(answer, "error_code", 0):
            raise KafkaError(answer.error_code, f"fetching from broker {node}")
        results: dict[TopicPartition, FetchedBatches | KafkaError] = {}
        for topic in answer.responses:
            name = topic.topic if hasattr(topic, "topic") else names[topic.topic_id]
            for part in topic.partitions:
                partition = TopicPartition(name, part.partition_index)
                results[partition] = _parse_partition(
                    partition,
                    part,
                    positions[partition],
                    last.get(partition),
                    isolation,
                    key_ranges.get(partition),
                )
        return results

    async def _check_offers_ranges(self, node: int) -> None:
        """Raise `KafkaError` if a broker does not serve fetches by key ranges."""
        link = await self.cluster.get_connection(node, self._lane)
        versions = link.features.get(KEY_RANGES_FEATURE)
        if versions is None:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"broker {node} does not offer fetches by key ranges; upgrade it, or set "
                "shoal.fetch.key.ranges.enable=true on it",
            )
        if KEY_HASH_VERSION not in versions:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"broker {node} hashes keys by versions {versions.start} to {versions.stop - 1}, "
                f"this client by version {KEY_HASH_VERSION}; upgrade the older one",
            )


_GONE = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


def _parse_partition(
    partition: TopicPartition,
    part: Any,
    first: int,
    last: int | None,
    isolation: Isolation,
    key_ranges: KeyRanges | None,
) -> FetchedBatches | KafkaError:
    if part.error_code == ErrorCode.offset_out_of_range:
        return KafkaError(part.error_code, f"offset {first} is not in the log of {partition}")
    if part.error_code:
        message = getattr(part, "error_message", "") or f"fetching from {partition}"
        return KafkaError(part.error_code, message)
    data = bytes(part.records or b"")
    next_offset = max(first, getattr(part, "next_offset", -1))
    for _, header in iter_headers(data):
        next_offset = max(next_offset, header.next_offset)
    aborted = getattr(part, "aborted_transactions", None) or ()
    return FetchedBatches(
        partition.topic,
        partition.partition,
        first,
        last,
        next_offset,
        part.high_watermark,
        part.last_stable_offset,
        part.log_start_offset,
        data,
        tuple((a.producer_id, a.first_offset) for a in aborted),
        isolation,
        getattr(part, "preferred_read_replica", -1),
        key_ranges,
    )
