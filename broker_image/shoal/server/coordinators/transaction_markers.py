"""Transaction markers: the control records that end a transaction in each of its partitions.

A decided transaction's markers are written once a turn of the loop, and the coordinator is told
when all of them are committed. What cannot be written now (a log that is offline, a coordinator
that loads) is tried again when the coordinator asks again, which it does until it is told; what
was written is not written twice, unless it may be lost with its leader. Markers in
`__consumer_offsets` go through the group coordinator's runtime, which owns the offsets of that log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import ClientError
from shoal.log.errors import AppendRefused, LogOffline
from shoal.log.log import Origin
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.record.control import build_marker
from shoal.replication.partition import Partition
from shoal.replication.pending_append import PendingAppend
from shoal.server.coordinators import groups
from shoal.server.network.api import Body
from shoal.transaction.shard import WriteMarkers
from shoal.transaction.transactions import TV_2, TopicPartition

if TYPE_CHECKING:
    from shoal.server.broker import Broker

#: How long written markers may wait for their replicas before the coordinator is asked again.
COMMIT_TIMEOUT_MS = 30_000
#: Before a broker is asked again that did not write its markers.
SEND_AGAIN_MS = 50
_EPOCH_MAX = 2**15 - 1


class _Marked:
    """Where a transaction's markers stand that one coordinator epoch has written: the next one may
    owe the same markers for another transaction, whose producer has kept its epoch."""

    __slots__ = ("coordinator_epoch", "places")

    def __init__(self, coordinator_epoch: int) -> None:
        self.coordinator_epoch = coordinator_epoch
        #: None for those that are committed elsewhere, or owed none.
        self.places: dict[TopicPartition, PendingAppend | None] = {}


class Marker(NamedTuple):
    """How a transaction ended, as WriteTxnMarkers tells it."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


class TransactionMarkers:
    """Owns the markers that are to be written, or wait to be committed."""

    def __init__(
        self,
        broker: Broker,
        coordinator_epoch: Callable[[WriteMarkers], int | None],
        completed: Callable[[WriteMarkers], None],
    ) -> None:
        """`coordinator_epoch` gives the epoch under which a transaction's markers are written, or
        None for one that is owed none any more: it may be complete, and the next one begun."""
        self._broker = broker
        self._coordinator_epoch = coordinator_epoch
        self._completed = completed
        self._asked: deque[WriteMarkers] = deque()
        #: Of transactions that are not complete.
        self._marked: dict[WriteMarkers, _Marked] = {}
        #: What other brokers were asked to write and have not answered.
        self._sent: set[tuple[WriteMarkers, int]] = set()
        #: Transactions whose markers are all written, and not all committed.
        self._committing: dict[WriteMarkers, None] = {}

    def write(self, markers: WriteMarkers) -> None:
        """The coordinator's effect. The turn's end writes: this may be in the middle of an append
        to the coordinator's own log."""
        if not self._asked:
            self._broker.loop.call_soon(self._write_asked)
        self._asked.append(markers)

    def _write_asked(self) -> None:
        asked, self._asked = self._asked, deque()
        for markers in asked:
            if markers not in self._committing:
                self._write(markers)

    def _write(self, markers: WriteMarkers) -> None:
        coordinator_epoch = self._coordinator_epoch(markers)
        if coordinator_epoch is None:
            self._marked.pop(markers, None)
            return
        marked = self._marked.get(markers)
        if marked is None or marked.coordinator_epoch != coordinator_epoch:
            marked = self._marked[markers] = _Marked(coordinator_epoch)
        places = marked.places
        elsewhere: dict[int, list[TopicPartition]] = {}
        marker = Marker(
            markers.producer_id,
            markers.producer_epoch,
            markers.committed,
            coordinator_epoch,
            markers.transaction_version,
        )
        for topic, index in markers.partitions:
            if (topic, index) in places:
                continue
            registered = self._broker.image.partition(topic, index)
            if registered is None:
                # It was deleted, and the transaction's part with it.
                places[(topic, index)] = None
                continue
            if registered.leader >= 0 and registered.leader != self._broker.node_id:
                elsewhere.setdefault(registered.leader, []).append((topic, index))
                continue
            try:
                places[(topic, index)] = append(self._broker, topic, index, marker)
            except ApiError as refused:
                self._broker.log.warning(
                    "a transaction marker cannot be written now",
                    transactional_id=markers.transactional_id,
                    topic=topic,
                    partition=index,
                    error=refused.code.name,
                )
        for leader_id, partitions in elsewhere.items():
            self._send(markers, marker, marked, leader_id, partitions)
        self._await_commit(markers, marked)

    def _send(
        self,
        markers: WriteMarkers,
        marker: Marker,
        marked: _Marked,
        leader_id: int,
        partitions: list[TopicPartition],
    ) -> None:
        """Have markers written that belong to another broker's partitions; its answer says that
        they are committed."""
        if (markers, leader_id) in self._sent:
            return
        self._sent.add((markers, leader_id))
        sent = asyncio.ensure_future(_write_at(self._broker, marker, leader_id, partitions))

        def answered(done: asyncio.Future[dict[TopicPartition, ErrorCode]]) -> None:
            self._sent.discard((markers, leader_id))
            if done.cancelled():
                return
            if self._marked.get(markers) is not marked:
                self.write(markers)
                return
            for where, code in done.result().items():
                if code is ErrorCode.none:
                    marked.places[where] = None
            if len(marked.places) == len(markers.partitions):
                self._await_commit(markers, marked)
            else:
                now_ms = self._broker.clock.now_ms()
                self._broker.timers.at(now_ms + SEND_AGAIN_MS, lambda: self.write(markers))

        sent.add_done_callback(answered)

    def _await_commit(self, markers: WriteMarkers, marked: _Marked) -> None:
        """Go on once all markers are committed; those that may be lost are written again."""
        if len(marked.places) < len(markers.partitions):
            return
        here = {where: written for where, written in marked.places.items() if written is not None}

        def settled() -> Body | None:
            lost = any(written.is_lost for written in here.values())
            return {} if lost or all(written.is_committed for written in here.values()) else None

        def go_on() -> None:
            lost = [where for where, written in here.items() if written.is_lost]
            for where in lost:
                marked.places.pop(where, None)
            if lost:
                self.write(markers)
            elif settled() is not None:
                self._done(markers)

        def waited(future: asyncio.Future[Body]) -> None:
            self._committing.pop(markers, None)
            if not future.cancelled():
                go_on()

        if settled() is not None:
            go_on()
            return
        self._committing[markers] = None
        parked = self._broker.purgatory.park(
            keys=[written.partition.key for written in here.values()],
            attempt=settled,
            expire=lambda: {"timed_out": True},
            deadline_ms=self._broker.clock.now_ms() + COMMIT_TIMEOUT_MS,
        )
        parked.add_done_callback(waited)

    def _done(self, markers: WriteMarkers) -> None:
        self._marked.pop(markers, None)
        self._completed(markers)


async def _write_at(
    broker: Broker, marker: Marker, leader_id: int, partitions: list[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """WriteTxnMarkers at a broker; what became of each partition."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    fields = {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "producer_epoch": marker.producer_epoch,
                "transaction_result": marker.committed,
                "topics": [{"name": n, "partition_indexes": rows} for n, rows in topics.items()],
                "coordinator_epoch": marker.coordinator_epoch,
                "transaction_version": marker.transaction_version,
            }
        ]
    }
    try:
        answer = await broker.peers.request(
            leader_id, ApiKey.WRITE_TXN_MARKERS, fields, timeout_ms=COMMIT_TIMEOUT_MS
        )
    except ClientError:
        return dict.fromkeys(partitions, ErrorCode.not_leader_or_follower)
    return {
        (topic.name, row.partition_index): ErrorCode(row.error_code)
        for one in answer.markers
        for topic in one.topics
        for row in topic.partitions
    }


def append(broker: Broker, topic: str, index: int, marker: Marker) -> PendingAppend:
    """Write a marker to a partition that this broker leads. Raises `ApiError`; then nothing was
    written."""
    partition = broker.partitions.by_name(topic, index)
    if partition is None:
        raise ApiError(ErrorCode.unknown_topic_or_partition)
    if not partition.is_leader:
        raise ApiError(ErrorCode.not_leader_or_follower)
    _check_epoch(partition, marker)
    now_ms = broker.clock.now_ms()
    batch = build_marker(
        committed=marker.committed,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp_ms=now_ms,
    )
    try:
        if topic == groups.TOPIC:
            broker.groups.append_marker(
                index, batch, marker.producer_id, committed=marker.committed
            )
        else:
            partition.append(batch, now_ms=now_ms, origin=Origin.COORDINATOR)
    except AppendRefused as refused:
        raise ApiError(refused.code, refused.message) from None
    except (OSError, LogOffline) as error:
        raise ApiError(ErrorCode.kafka_storage_error, str(error)) from None
    return PendingAppend.of(partition, partition.log.log_end_offset)


def _check_epoch(partition: Partition, marker: Marker) -> None:
    """With transaction version 2 a marker has an epoch past that of the transaction's records; a
    marker sent again finds the transaction ended. Raises INVALID_PRODUCER_EPOCH."""
    producer = partition.log.producers.get(marker.producer_id)
    if marker.transaction_version < TV_2 or producer is None:
        return
    behind = producer.epoch == marker.producer_epoch and producer.transaction_start >= 0
    if behind and marker.producer_epoch != _EPOCH_MAX:
        raise ApiError(
            ErrorCode.invalid_producer_epoch,
            f"The marker of producer {marker.producer_id} has the epoch of the records that it is"
            f" to end, {producer.epoch}.",
        )
