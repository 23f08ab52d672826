"""Transaction markers: the control records that end a transaction in each of its partitions.

The markers of a decided transaction are written at the end of a turn of the event loop. The
transaction is completed once all of them are committed. Markers that cannot be written now (the log
is offline, a coordinator is loading) are retried when the coordinator repeats its effect, which it
does until completion. A marker is not written twice, unless it may be lost with its leader. Markers
in `__consumer_offsets` go through the group coordinator's runtime, which owns that log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoal.client.errors import ClientError
from shoal.log.appends import AppendOrigin
from shoal.log.errors import AppendRefused, LogOffline
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.record.control import build_marker
from shoal.replication.pending_append import PendingAppend
from shoal.server.coordinators import groups
from shoal.transaction.transactions import TV_2, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.metadata.image import MetadataImage
    from shoal.replication.partition import Partition
    from shoal.server.coordinators.service import PartitionsPort
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.network.api import Body
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node
    from shoal.transaction.shard import WriteMarkers

#: How long written markers may wait for their replicas before the wait is repeated.
COMMIT_TIMEOUT_MS = 30_000
#: The delay before markers are sent again to a broker that did not write them.
SEND_AGAIN_MS = 50
#: How many markers one request to another broker has; the others follow it. Brokers admit 10,000
#: entries, and a partition with its topic is two of them.
PARTITIONS_MAX = 4_000
#: Markers that one turn of the event loop appends: 0.1 ms each, 0.2 ms in a log without records,
#: whose leader epoch is a new file, and 0.8 ms if a segment is rolled.
MARKERS_AT_ONCE = 30
_EPOCH_MAX = 2**15 - 1


class _MarkerProgress:
    """The markers that one coordinator epoch has written for a transaction.

    The next epoch may owe the same markers for another transaction, whose producer has kept its
    epoch.
    """

    __slots__ = ("appended", "coordinator_epoch")

    def __init__(self, coordinator_epoch: int) -> None:
        self.coordinator_epoch = coordinator_epoch
        #: None for partitions without a marker to wait for: it is committed on another broker, or
        #: the partition was deleted.
        self.appended: dict[TopicPartition, PendingAppend | None] = {}


class _UnsettledMarkers:
    """Markers that wait for their commit. Each partition's commit wakes the check, so it looks at
    each marker once, and again only if leaders may have changed."""

    def __init__(self, cache: MetadataCache, waiting: list[PendingAppend]) -> None:
        self._cache, self._waiting = cache, waiting
        self._image: MetadataImage | None = None

    def check(self) -> Body | None:
        """Return a body once all are committed, or one may be lost."""
        waiting = self._waiting
        if self._image is not self._cache.image:
            self._image = self._cache.image
            if any(written.is_lost for written in waiting):
                return {}
        while waiting and waiting[-1].is_committed:
            waiting.pop()
        return None if waiting else {}


class TransactionMarker(NamedTuple):
    """The end of a transaction, as in a WriteTxnMarkers request."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


class PeersPort(Protocol):
    """Requests to other brokers (`network.peers`)."""

    async def request(
        self,
        broker_id: int,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
    ) -> Any:
        """The answer of that broker. Raises `ClientError`."""


class OffsetMarkers(Protocol):
    """The group coordinator, which owns the log of committed offsets."""

    def append_marker(
        self, index: int, marker: bytearray, producer_id: int, *, committed: bool
    ) -> Partition:
        """Append a marker to a partition of `__consumer_offsets`. Raises `ApiError` and
        `AppendRefused`."""


class TransactionMarkerChannel:
    """Owns the markers that are to be written, or wait to be committed."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: PartitionsPort,
        *,
        purgatory: Purgatory,
        peers: PeersPort,
        groups: OffsetMarkers,
        coordinator_epoch: Callable[[WriteMarkers], int | None],
        completed: Callable[[WriteMarkers], None],
    ) -> None:
        """`coordinator_epoch` returns the epoch under which the markers of a transaction are
        written. It returns None when no markers are owed: the transaction may be complete, and the
        next one begun. `completed` is called once all markers are committed."""
        self._node = node
        self._cache = cache
        self._partitions = partitions
        self._purgatory = purgatory
        self._peers = peers
        self._groups = groups
        self._coordinator_epoch = coordinator_epoch
        self._completed = completed
        self._queue: deque[WriteMarkers] = deque()
        self._scheduled = False
        #: Markers that this turn may still append.
        self._left = 0
        #: The progress of transactions that are not complete.
        self._progress: dict[WriteMarkers, _MarkerProgress] = {}
        #: Requests to other brokers that have no answer yet.
        self._in_flight: set[tuple[WriteMarkers, int]] = set()
        #: Transactions whose markers are all written, and not all committed.
        self._committing: dict[WriteMarkers, None] = {}

    def write(self, markers: WriteMarkers) -> None:
        """Write the markers at the end of this turn of the event loop. The caller may be in the
        middle of an append to the coordinator's own log."""
        self._queue.append(markers)
        if not self._scheduled:
            self._scheduled = True
            self._node.loop.call_soon(self._write_queued)

    def append(self, topic: str, index: int, marker: TransactionMarker) -> PendingAppend:
        """Append a marker to a partition that this broker leads. Raises `ApiError`; then nothing
        was appended."""
        partition = self._partitions.find_by_name(topic, index)
        if partition is None:
            raise ApiError(ErrorCode.unknown_topic_or_partition)
        if not partition.is_leader:
            raise ApiError(ErrorCode.not_leader_or_follower)
        _check_epoch(partition, marker)
        now_ms = self._node.clock.now_ms()
        batch = build_marker(
            committed=marker.committed,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=now_ms,
        )
        try:
            if topic == groups.TOPIC:
                self._groups.append_marker(
                    index, batch, marker.producer_id, committed=marker.committed
                )
            else:
                partition.append(batch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)
        except AppendRefused as refused:
            raise ApiError(refused.code, refused.message) from None
        except (OSError, LogOffline) as error:
            raise ApiError(ErrorCode.kafka_storage_error, str(error)) from None
        return PendingAppend.from_partition(partition, partition.log.log_end_offset)

    def _write_queued(self) -> None:
        self._scheduled, self._left = False, MARKERS_AT_ONCE
        for _ in range(len(self._queue)):
            if self._left <= 0:
                break
            markers = self._queue.popleft()
            if markers not in self._committing:
                self._write(markers)
        if self._queue and not self._scheduled:
            self._scheduled = True
            self._node.loop.call_soon(self._write_queued)

    def _write(self, markers: WriteMarkers) -> None:
        coordinator_epoch = self._coordinator_epoch(markers)
        if coordinator_epoch is None:
            self._progress.pop(markers, None)
            return
        progress = self._progress.get(markers)
        if progress is None or progress.coordinator_epoch != coordinator_epoch:
            progress = self._progress[markers] = _MarkerProgress(coordinator_epoch)
        marker = TransactionMarker(
            markers.producer_id,
            markers.producer_epoch,
            markers.committed,
            coordinator_epoch,
            markers.transaction_version,
        )
        remote: dict[int, list[TopicPartition]] = {}
        for topic, index in markers.partitions:
            if (topic, index) in progress.appended:
                continue
            registered = self._cache.image.find_partition(topic, index)
            if registered is None:
                # The partition was deleted, with its part of the transaction.
                progress.appended[(topic, index)] = None
                continue
            if registered.leader >= 0 and registered.leader != self._node.id:
                remote.setdefault(registered.leader, []).append((topic, index))
                continue
            if self._left <= 0:
                self.write(markers)  # The others follow in the next turns.
                break
            self._left -= 1
            try:
                progress.appended[(topic, index)] = self.append(topic, index, marker)
            except ApiError as refused:
                self._node.log.warning(
                    "a transaction marker cannot be written now",
                    transactional_id=markers.transactional_id,
                    topic=topic,
                    partition=index,
                    error=refused.code.name,
                )
        for leader_id, partitions in remote.items():
            self._send(markers, marker, progress, leader_id, partitions)
        self._await_commit(markers, progress)

    def _send(
        self,
        markers: WriteMarkers,
        marker: TransactionMarker,
        progress: _MarkerProgress,
        leader_id: int,
        partitions: list[TopicPartition],
    ) -> None:
        """Send the markers of another broker's partitions to it. It answers once they are
        committed."""
        if (markers, leader_id) in self._in_flight:
            return
        self._in_flight.add((markers, leader_id))
        chunk = partitions[:PARTITIONS_MAX]
        sent = asyncio.ensure_future(self._write_remotely(marker, leader_id, chunk))

        def on_answered(future: asyncio.Future[dict[TopicPartition, ErrorCode]]) -> None:
            self._in_flight.discard((markers, leader_id))
            if future.cancelled():
                return
            if self._progress.get(markers) is not progress:
                self.write(markers)
                return
            for partition, code in future.result().items():
                if code is ErrorCode.none:
                    progress.appended[partition] = None
            if len(progress.appended) == len(markers.partitions):
                self._await_commit(markers, progress)
            else:
                now_ms = self._node.clock.now_ms()
                self._node.timers.call_at(now_ms + SEND_AGAIN_MS, lambda: self.write(markers))

        sent.add_done_callback(on_answered)

    async def _write_remotely(
        self, marker: TransactionMarker, leader_id: int, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Send WriteTxnMarkers to a broker. Returns the error of each partition."""
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        fields = {
            "markers": [
                {
                    "producer_id": marker.producer_id,
                    "producer_epoch": marker.producer_epoch,
                    "transaction_result": marker.committed,
                    "topics": [
                        {"name": name, "partition_indexes": indexes}
                        for name, indexes in topics.items()
                    ],
                    "coordinator_epoch": marker.coordinator_epoch,
                    "transaction_version": marker.transaction_version,
                }
            ]
        }
        try:
            answer = await self._peers.request(
                leader_id, ApiKey.WRITE_TXN_MARKERS, fields, timeout_ms=COMMIT_TIMEOUT_MS
            )
        except ClientError:
            return dict.fromkeys(partitions, ErrorCode.not_leader_or_follower)
        return {
            (topic.name, partition.partition_index): ErrorCode(partition.error_code)
            for result in answer.markers
            for topic in result.topics
            for partition in topic.partitions
        }

    def _await_commit(self, markers: WriteMarkers, progress: _MarkerProgress) -> None:
        """Complete the transaction once all markers are committed. Write those again that may be
        lost."""
        if len(progress.appended) < len(markers.partitions):
            return
        local = {
            partition: written
            for partition, written in progress.appended.items()
            if written is not None
        }
        check_settled = _UnsettledMarkers(self._cache, list(local.values())).check

        def proceed() -> None:
            lost = [partition for partition, written in local.items() if written.is_lost]
            for partition in lost:
                progress.appended.pop(partition, None)
            if lost:
                self.write(markers)
            elif check_settled() is not None:
                self._complete(markers)

        def on_waited(future: asyncio.Future[Any]) -> None:
            self._committing.pop(markers, None)
            if not future.cancelled():
                proceed()

        if check_settled() is not None:
            proceed()
            return
        self._committing[markers] = None
        parked = self._purgatory.park(
            keys=[written.partition.key for written in local.values()],
            attempt=check_settled,
            expire=lambda: {"timed_out": True},
            deadline_ms=self._node.clock.now_ms() + COMMIT_TIMEOUT_MS,
        )
        parked.add_done_callback(on_waited)

    def _complete(self, markers: WriteMarkers) -> None:
        self._progress.pop(markers, None)
        self._completed(markers)


def _check_epoch(partition: Partition, marker: TransactionMarker) -> None:
    """Check that a marker of transaction version 2 has a higher epoch than the transaction's
    records. For a repeated marker the transaction has ended. Raises INVALID_PRODUCER_EPOCH."""
    producer = partition.log.producers.get(marker.producer_id)
    if marker.transaction_version < TV_2 or producer is None:
        return
    is_behind = producer.epoch == marker.producer_epoch and producer.transaction_start >= 0
    if is_behind and marker.producer_epoch != _EPOCH_MAX:
        raise ApiError(
            ErrorCode.invalid_producer_epoch,
            f"The marker of producer {marker.producer_id} has the epoch of the records that it is"
            f" to end, {producer.epoch}.",
        )
