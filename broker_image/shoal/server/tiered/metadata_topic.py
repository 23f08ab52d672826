"""`__remote_log_metadata`: how leaders write it, and the state that each broker replays from it.

The records of a partition are in one partition of the topic, by the hash of topic id and partition
number that Kafka uses. A leader appends to it, at the leader of that partition. Each broker reads
the partitions of the topic that concern its replicas, and those that it leads, from their leaders
and below the high watermark.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoal.client.errors import ClientError
from shoal.client.produce.partitioner import choose_partition
from shoal.log.errors import AppendRefused, LogOffline, OffsetOutOfRange
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode, WireError
from shoal.record.batch import CorruptBatch, iter_headers
from shoal.record.records import build_batch, read_records
from shoal.replication.pending_append import PendingAppend
from shoal.tiered.metadata_records import TOPIC
from shoal.tiered.remote_logs import Key, RemoteLogs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from shoal.metadata.image import PartitionImage
    from shoal.replication.partition import Partition
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.network.links import Link
    from shoal.server.network.peers import BrokerPeers
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions
    from shoal.tiered.remote_log import RemoteLog

Pair = tuple[bytes, bytes | None]
COMMIT_TIMEOUT_MS = 5_000
#: How long an append waits until this broker has replayed it.
_REPLAY_TIMEOUT_S = 10.0
_READ_BYTES = 1 << 20
_FETCH_WAIT_MS = 500
_RETRY_S = 0.5
_LONG_MASK = (1 << 64) - 1


class MetadataUnavailable(Exception):
    """The topic cannot be written now, or it is unknown whether it was."""


class TopicName(NamedTuple):
    """The topic to create."""

    name: str


class CreateTopic(Protocol):
    """Creates an internal topic. Raises `ApiError`."""

    def __call__(self, topic: TopicName) -> Awaitable[None]: ...


class _ReplayedPartition:
    """One partition of the topic, as far as this broker has replayed it."""

    __slots__ = ("loaded_to", "position", "waiting")

    def __init__(self) -> None:
        self.position = 0
        #: The high watermark when the partition was first read; None before.
        self.loaded_to: int | None = None
        #: (offset, future): futures that are done when the position is above the offset.
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def is_loaded(self) -> bool:
        return self.loaded_to is not None and self.position >= self.loaded_to

    def advance(self, position: int) -> None:
        self.position = max(self.position, position)
        reached = [entry for entry in self.waiting if entry[0] < self.position]
        self.waiting = [entry for entry in self.waiting if entry[0] >= self.position]
        for _, future in reached:
            if not future.done():
                future.set_result(None)


class MetadataTopic:
    """Owns the remote logs of all partitions that this broker has heard of."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: Partitions,
        *,
        peers: BrokerPeers,
        purgatory: Purgatory,
        create_topic: CreateTopic,
    ) -> None:
        self._node = node
        self._cache = cache
        self._partitions = partitions
        self._peers = peers
        self._purgatory = purgatory
        self._create_topic = create_topic
        self.logs = RemoteLogs()
        self._followed: dict[int, _ReplayedPartition] = {}
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._local: dict[int, Partition] = {}
        self._creating: asyncio.Task[None] | None = None

    def get_remote(self, key: Key) -> RemoteLog:
        """Return the remote log of a partition."""
        return self.logs[key]

    def follow(self, key: Key) -> None:
        """Read the records of a partition from now on."""
        if self._count():
            self._followed.setdefault(self.get_index(key), _ReplayedPartition())
            self.refresh()

    def is_loaded(self, key: Key) -> bool:
        """Whether all records of a partition that were committed when it was followed are
        replayed. There are none if the topic does not exist."""
        if not self._count():
            return True
        followed = self._followed.get(self.get_index(key))
        return followed is not None and followed.is_loaded

    def list_led_keys(self) -> list[Key]:
        """Return the partitions with segments whose records are in partitions led here."""
        return [
            key
            for key, remote in self.logs.items()
            if not remote.is_empty and self._count() and self.get_index(key) in self._local
        ]

    def get_index(self, key: Key) -> int:
        """Return the partition of the topic that has the records of a partition."""
        return compute_index(key, self._count())

    def _count(self) -> int:
        topic = self._cache.image.topics.get(TOPIC)
        return 0 if topic is None else len(topic.partitions)

    # Writing

    async def append(self, key: Key, records: Sequence[Pair]) -> None:
        """Append (key, value) records, and wait until they are committed and replayed here.

        Raises `MetadataUnavailable`; they may have been written even so.
        """
        if not self._count():
            await self._create()
        self.follow(key)
        index = self.get_index(key)
        registered = self._get_partition_image(index)
        if registered.leader == self._node.id:
            last_offset = await self._append_here(index, records)
        else:
            last_offset = await self._append_there(index, registered.leader, records)
        followed = self._followed[index]
        if followed.position <= last_offset:
            future: asyncio.Future[None] = self._node.loop.create_future()
            followed.waiting.append((last_offset, future))
            try:
                async with asyncio.timeout(_REPLAY_TIMEOUT_S):
                    await future
            except TimeoutError:
                raise MetadataUnavailable(f"{TOPIC}-{index} was not read in time") from None

    async def _create(self) -> None:
        if self._creating is None or self._creating.done():
            self._creating = self._node.loop.create_task(self._create_and_await())
        try:
            await asyncio.shield(self._creating)
        except Exception as error:
            raise MetadataUnavailable(f"{TOPIC} was not created: {error}") from error

    async def _create_and_await(self) -> None:
        await self._create_topic(TopicName(TOPIC))
        async with asyncio.timeout(_REPLAY_TIMEOUT_S):
            await self._cache.wait_until(lambda image: TOPIC in image.topics)

    def _get_partition_image(self, index: int) -> PartitionImage:
        return self._cache.image.topics[TOPIC].partitions[index]

    async def _append_here(self, index: int, records: Sequence[Pair]) -> int:
        partition = self._partitions.find_by_name(TOPIC, index)
        if partition is None or not partition.is_leader:
            raise MetadataUnavailable(f"{TOPIC}-{index} has no leader here")
        now_ms = self._node.clock.now_ms()
        if len(partition.isr) < partition.effective_min_isr:
            raise MetadataUnavailable(f"{TOPIC}-{index} has too few in-sync replicas")
        try:
            partition.append_records(records, now_ms=now_ms)
        except (AppendRefused, OSError, LogOffline) as error:
            raise MetadataUnavailable(f"{TOPIC}-{index}: {error}") from None
        pending = PendingAppend.from_partition(partition, partition.log.log_end_offset)
        if not pending.is_committed:
            await self._purgatory.park(
                keys=[partition.key],
                attempt=lambda: {} if pending.is_committed or pending.is_lost else None,
                expire=dict,
                deadline_ms=now_ms + COMMIT_TIMEOUT_MS,
            )
            if not pending.is_committed:
                raise MetadataUnavailable(f"{TOPIC}-{index} did not commit")
        return pending.end_offset - 1

    async def _append_there(self, index: int, leader_id: int, records: Sequence[Pair]) -> int:
        now_ms = self._node.clock.now_ms()
        batch = build_batch([(now_ms, key, value, ()) for key, value in records])
        topic_id = self._cache.image.topics[TOPIC].topic_id
        partition = {"index": index, "records": bytes(batch)}
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": COMMIT_TIMEOUT_MS,
            "topic_data": [{"name": TOPIC, "topic_id": topic_id, "partition_data": [partition]}],
        }
        try:
            answer = await self._peers.request(
                leader_id, ApiKey.PRODUCE, fields, timeout_ms=2 * COMMIT_TIMEOUT_MS
            )
        except ClientError as error:
            raise MetadataUnavailable(f"{TOPIC}-{index}: {error}") from None
        entry = answer.responses[0].partition_responses[0]
        if entry.error_code:
            raise MetadataUnavailable(f"{TOPIC}-{index}: {ErrorCode(entry.error_code).name}")
        return entry.base_offset + len(records) - 1

    # Reading

    def refresh(self) -> None:
        """Read each followed partition from where its leader is now."""
        leaders: set[int] = set()
        for index in range(self._count()):
            leader_id = self._get_partition_image(index).leader
            local = self._partitions.find_by_name(TOPIC, index)
            if leader_id == self._node.id and local is not None:
                self._followed.setdefault(index, _ReplayedPartition())
                if self._local.get(index) is not local:
                    self._local[index] = local
                    local.on_advance(lambda partition: self._read_here(partition.index))
                    self._read_here(index)
                continue
            self._local.pop(index, None)
            if index in self._followed and leader_id >= 0:
                leaders.add(leader_id)
        for leader_id in leaders - self._readers.keys():
            task = self._node.loop.create_task(self._read_from(leader_id))
            self._readers[leader_id] = task

    def _read_here(self, index: int) -> None:
        """Replay a step of a partition led here. The rest follows in later turns."""
        partition, followed = self._local.get(index), self._followed.get(index)
        if partition is None or followed is None or not partition.is_leader:
            return
        high_watermark = partition.high_watermark
        if followed.loaded_to is None:
            followed.loaded_to = high_watermark
        if followed.position >= high_watermark:
            return
        start = max(followed.position, partition.log.log_start_offset)
        try:
            data, end = partition.read(start, _READ_BYTES, committed=False, min_one=True)
        except (OSError, LogOffline, CorruptBatch, OffsetOutOfRange) as error:
            self._node.log.error("remote log metadata was not read", error=str(error))
            return
        self.replay(bytes(data))
        followed.advance(end)
        if end > start:
            self._node.loop.call_soon(self._read_here, index)

    async def _read_from(self, leader_id: int) -> None:
        """Fetch the followed partitions of one leader, until it leads none of them."""
        link: Link | None = None
        try:
            while indexes := self._list_led_by(leader_id):
                address = self._peers.find_address(leader_id)
                try:
                    if address is None:
                        raise ClientError(f"broker {leader_id} is not registered")
                    if link is None or link.address != address:
                        if link is not None:
                            link.close()
                        link = self._peers.make_link(address)
                    if not await self._fetch(link, indexes):
                        await asyncio.sleep(_RETRY_S)
                except ClientError:
                    await asyncio.sleep(_RETRY_S)
        finally:
            del self._readers[leader_id]
            if link is not None:
                link.close()

    def _list_led_by(self, leader_id: int) -> list[int]:
        return [
            index
            for index in self._followed
            if index < self._count() and self._get_partition_image(index).leader == leader_id
        ]

    async def _fetch(self, link: Link, indexes: Sequence[int]) -> bool:
        """Fetch once, and replay. Return whether all partitions answered without an error."""
        topic = self._cache.image.topics[TOPIC]
        entries = [
            {
                "partition": index,
                "current_leader_epoch": -1,
                "fetch_offset": self._followed[index].position,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": _READ_BYTES,
            }
            for index in indexes
        ]
        fields: dict[str, Any] = {
            "max_wait_ms": _FETCH_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": 8 * _READ_BYTES,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": TOPIC, "topic_id": topic.topic_id, "partitions": entries}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        answer = await link.request(ApiKey.FETCH, fields)
        is_complete = not answer.error_code
        for response in answer.responses:
            for entry in response.partitions:
                is_complete &= self._replay_fetched(self._followed[entry.partition_index], entry)
        return is_complete

    def _replay_fetched(self, followed: _ReplayedPartition, entry: Any) -> bool:
        if entry.error_code == ErrorCode.offset_out_of_range:
            followed.position = 0
            return False
        if entry.error_code:
            return False
        if followed.loaded_to is None:
            followed.loaded_to = entry.high_watermark
        data = bytes(entry.records or b"")
        if data:
            self.replay(data)
            followed.advance(max(header.next_offset for _, header in iter_headers(data)))
        elif followed.position >= entry.high_watermark:
            followed.advance(followed.position)
        return True

    def replay(self, data: bytes) -> None:
        """Replay whole batches of the topic."""
        for at, header in iter_headers(data):
            if header.is_control:
                continue
            for record in read_records(data, at):
                try:
                    self.logs.replay(record.key, record.value)
                except WireError as error:
                    self._node.log.error("an invalid remote log metadata record", error=str(error))

    def stop(self) -> None:
        for task in (*self._readers.values(), self._creating):
            if task is not None:
                task.cancel()


def compute_index(key: Key, count: int) -> int:
    """Return the partition of the topic for a partition, as Kafka's RemoteLogMetadataManager: by
    the hash of Java's hash of the numbers."""
    topic_id, index = key
    java_hash = 1
    for number in (topic_id.int & _LONG_MASK, topic_id.int >> 64):
        java_hash = 31 * java_hash + (number ^ number >> 32)
    java_hash = (31 * java_hash + index) & 0xFFFFFFFF
    return choose_partition(java_hash.to_bytes(4, "big"), count)
