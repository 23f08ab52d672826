"""The fetches of this broker's followers from their leaders.

Each leader has up to `num.replica.fetchers` tasks, and each partition belongs to one of them. When
the config changes, partitions move between tasks; no partition is fetched by two tasks at a time.
The rules of one task are those of `shoal.replication.replica_fetcher`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zlib import crc32

from shoal.client.errors import ClientError
from shoal.client.net.connection import MessageCodec
from shoal.log.remote import RemoteUnavailable
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode, to_error_code
from shoal.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
    read_response,
    write_request,
)
from shoal.replication.leadership import NOT_ELIGIBLE
from shoal.replication.partition import Divergence, Partition, ReplicaFetchResult
from shoal.replication.replica_fetcher import (
    FetchOutcome,
    FetchSessionRequest,
    FetchSessionResponse,
    Key,
    ReplicaFetcher,
)
from shoal.server.replication.isr_changes import get_broker_epoch
from shoal.server.replication.leader_offsets import EARLIEST, LATEST, LeaderOffsets, LeaderRefused

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from uuid import UUID

    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.network.links import Link
    from shoal.server.network.peers import BrokerPeers
    from shoal.server.node import Node
    from shoal.server.replication.leader_offsets import RemoteStates
    from shoal.server.replication.log_maintenance import LogMaintenance
    from shoal.server.replication.partitions import Partitions
    from shoal.server.replication.quotas import ReplicationQuota

_CODEC = MessageCodec(write_request, read_response)
#: First and longest back-off after a failed fetch.
_RECONNECT_MS, _RECONNECT_MAX_MS = 20, 500


class UnreachableLeadersPort(Protocol):
    """Notes which leaders answer (`cluster.unreachable_leaders`)."""

    def on_disconnected(self, broker_id: int) -> None:
        """The connection to the broker broke."""

    def on_connected(self, broker_id: int) -> None:
        """The broker has answered."""


class FetcherKey(NamedTuple):
    """One task: its leader, and its number among the tasks of that leader."""

    leader_id: int
    number: int


class ReplicaFetcherManager:
    """Owns the fetch tasks, and which partition belongs to which of them."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: Partitions,
        *,
        peers: BrokerPeers,
        throttle: ReplicationQuota,
        leaders: UnreachableLeadersPort,
        maintenance: LogMaintenance,
    ) -> None:
        self.node = node
        self.cache = cache
        self.partitions = partitions
        self.peers = peers
        self.throttle = throttle
        self.leaders = leaders
        self.maintenance = maintenance
        #: The object store of tiered topics; None without one.
        self.remote: RemoteStates | None = None
        #: Bytes of records that this broker fetched from other brokers.
        self.bytes_in_total = 0
        self.tasks: dict[FetcherKey, _FetcherTask] = {}
        self._key_of: dict[Key, FetcherKey] = {}

    def stop(self) -> None:
        for task in self.tasks.values():
            task.stop()

    def register(self, metrics: MetricRegistry) -> None:
        """Add the metric."""
        metrics.add(
            "kafka_server_BrokerTopicMetrics_ReplicationBytesInPerSec_total",
            "counter",
            "Bytes that followers on this broker fetched from leaders on others.",
            lambda: [((), self.bytes_in_total)],
        )

    def follow_leader(self, partition: Partition) -> None:
        """Fetch the partition from its leader; fetch nothing if this broker leads it."""
        before = self._key_of.get(partition.key)
        leader_id = partition.leader_id if not partition.is_leader else -1
        if before is not None and before.leader_id != leader_id:
            self.forget(partition)
        if leader_id >= 0:
            key = self._make_task_key(leader_id, partition)
            self._key_of[partition.key] = key
            self._get_task(key).follow(partition)

    def forget(self, partition: Partition) -> None:
        """Stop to fetch the partition."""
        key = self._key_of.pop(partition.key, None)
        if key is not None:
            self.tasks[key].fetcher.forget(partition)

    def start(self) -> None:
        """Follow num.replica.fetchers in the metadata."""
        self.cache.subscribe(self._on_metadata_changed)

    def _on_metadata_changed(self, _image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.broker_config_changed:
            self.resize()

    def resize(self) -> None:
        """Apply num.replica.fetchers: move partitions to the tasks they belong to now, and end
        the tasks that have none left."""
        for partition in list(self.partitions):
            before = self._key_of.get(partition.key)
            if before is None:
                continue
            key = self._make_task_key(before.leader_id, partition)
            if key != before:
                task = self._get_task(key)
                self.tasks[before].fetcher.hand_over(partition, task.fetcher)
                self._key_of[partition.key] = key
                task.wake()
        for key in self.tasks.keys() - set(self._key_of.values()):
            if key.number:
                self.tasks.pop(key).stop()

    def should_start_at_last_tiered(self, partition: Partition) -> bool:
        """Whether an empty replica begins behind the object store (KIP-1023)."""
        config = partition.log.config
        return (
            self.remote is not None
            and config.remote_storage_enable
            and not config.compact
            and bool(self.cache.image.broker_config["follower.fetch.last.tiered.offset.enable"])
        )

    def _make_task_key(self, leader_id: int, partition: Partition) -> FetcherKey:
        count: int = self.cache.image.broker_config["num.replica.fetchers"]
        topic_id, index = partition.key
        return FetcherKey(leader_id, (crc32(topic_id.bytes) + index) % count)

    def _get_task(self, key: FetcherKey) -> _FetcherTask:
        task = self.tasks.get(key)
        if task is None:
            task = self.tasks[key] = _FetcherTask(self, key.leader_id)
        return task


class _FetcherTask:
    """Fetches some partitions of one leader, one request at a time."""

    def __init__(self, manager: ReplicaFetcherManager, leader_id: int) -> None:
        self._manager = manager
        self._node = manager.node
        self._wakeup = asyncio.Event()
        self._leader_id = leader_id
        self.fetcher = ReplicaFetcher(
            leader_id,
            backoff_max_ms=manager.node.config["replica.fetch.backoff.ms"],
            throttle=manager.throttle,
            on_synced=self._wakeup.set,
            starts_at_last_tiered=manager.should_start_at_last_tiered,
        )
        self._link: Link | None = None
        #: The leader's broker epoch when the link was opened.
        self._link_epoch = NOT_ELIGIBLE
        self._listing: set[asyncio.Task[None]] = set()
        #: Partitions whose last rebuild failed. Of failures in a row only the first is logged.
        self._failing: set[Key] = set()
        self._task = asyncio.ensure_future(self._run())

    def follow(self, partition: Partition) -> None:
        self.fetcher.follow(partition)
        if self._link is not None and self._link_epoch != self._get_broker_epoch():
            # The leader has restarted. After a power loss its machine does not reset the old
            # connection, and a fetch would wait on it until replica.socket.timeout.ms.
            self._drop_link()
        self._wakeup.set()

    def wake(self) -> None:
        """Check again which partitions to fetch."""
        self._wakeup.set()

    def _get_broker_epoch(self) -> int:
        return get_broker_epoch(self._manager.cache, self._leader_id)

    def stop(self) -> None:
        self._task.cancel()
        for task in self._listing:
            task.cancel()
        if self._link is not None:
            self._link.close()

    async def _run(self) -> None:
        pause_ms = _RECONNECT_MS
        while True:
            now_ms = self._node.clock.now_ms()
            request = self.fetcher.build_next_fetch(now_ms)
            for partition in self.fetcher.begin_rebuilds():
                self._begin(self._rebuild(partition, from_last_tiered=True))
            if request is None:
                await self._wait(now_ms)
                continue
            try:
                response = await self._fetch(request)
            except ClientError:
                self.fetcher.fail_fetch()
                self._drop_link()
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, _RECONNECT_MAX_MS)
                continue
            except Exception:
                # A bug or an invalid response. Log it and continue replicating.
                self._node.log.exception("a replica's fetch failed", leader=self._leader_id)
                self.fetcher.fail_fetch()
                self._drop_link()
                await asyncio.sleep(_RECONNECT_MAX_MS / 1000)
                continue
            pause_ms = _RECONNECT_MS
            self._manager.leaders.on_connected(self._leader_id)
            self._manager.bytes_in_total += sum(
                len(fetched.records) for fetched in response.partitions.values()
            )
            self._apply_outcome(self.fetcher.complete_fetch(response, self._node.clock.now_ms()))

    async def _wait(self, now_ms: int) -> None:
        """Wait until a partition is added or synced, or until a back-off ends."""
        due_ms = self.fetcher.find_next_due_ms()
        timeout_s = None if due_ms is None else max(0.001, (due_ms - now_ms) / 1000)
        if due_ms is not None and due_ms <= now_ms:
            timeout_s = 0.5  # A partition waits for its disk.
        self._wakeup.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wakeup.wait()
        except TimeoutError:
            pass

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _send(self, request: FetchRequest) -> FetchResponse:
        peers, config = self._manager.peers, self._node.config
        address = peers.find_address(self._leader_id)
        if self._link is None or self._link.address != address:
            self._drop_link()
            if address is None:
                raise ClientError(f"broker {self._leader_id} is not registered")
            self._link = peers.make_link(
                address,
                config["replica.socket.timeout.ms"],
                on_lost=lambda: self._manager.leaders.on_disconnected(self._leader_id),
            )
            self._link_epoch = self._get_broker_epoch()
        response: FetchResponse = await self._link.request(ApiKey.FETCH, request, own=_CODEC)
        return response

    async def _fetch(self, request: FetchSessionRequest) -> FetchSessionResponse:
        config = self._node.config
        bytes_max = config["replica.fetch.max.bytes"]
        throttled_bytes = self._allot_throttled_bytes(request)
        topics: dict[UUID, list[FetchPartition]] = {}
        for key, position in request.partitions:
            topic_id, index = key
            partition = FetchPartition(
                index,
                position.current_leader_epoch,
                position.fetch_offset,
                position.last_fetched_epoch,
                position.log_start_offset,
                min(bytes_max, throttled_bytes.get(key, bytes_max)),
            )
            topics.setdefault(topic_id, []).append(partition)
        forgotten: dict[UUID, list[int]] = {}
        for topic_id, index in request.forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        message = FetchRequest(
            config["replica.fetch.wait.max.ms"],
            config["replica.fetch.min.bytes"],
            config["replica.fetch.response.max.bytes"],
            0,
            request.session_id,
            request.session_epoch,
            [FetchTopic(*topic) for topic in topics.items()],
            ReplicaState(self._node.id, get_broker_epoch(self._manager.cache, self._node.id)),
            list(forgotten.items()),
        )
        return _parse_response(await self._send(message))

    def _allot_throttled_bytes(self, request: FetchSessionRequest) -> dict[Key, int]:
        """Return the bytes that each throttled partition out of sync may fetch now. Together they
        take what the throttle has left; the leader sends at least one batch."""
        manager, node = self._manager, self._node
        throttle = manager.throttle
        if not throttle.active:
            return {}
        partitions = [manager.partitions.get(*key) for key, _ in request.partitions]
        keys = [
            p.key for p in partitions if p and node.id not in p.isr and throttle.is_throttled(p)
        ]
        return dict.fromkeys(
            keys, throttle.get_available_bytes(node.clock.now_ms()) // max(1, len(keys))
        )

    def _apply_outcome(self, outcome: FetchOutcome) -> None:
        for partition in outcome.sync:
            self._node.disk.sync_soon(partition)
        if any(not partition.group_commit for partition in outcome.sync):
            # The recovery point on disk must not cover records that replace truncated ones.
            self._manager.maintenance.checkpoint()
        for partition, error in outcome.failed:
            self._node.log.error(
                "a follower cannot write",
                topic=partition.topic,
                partition=partition.index,
                error=str(error),
            )
        for partition in outcome.list_offsets:
            self._begin(self._list_offsets(partition))
        for partition in outcome.rebuild:
            self._begin(self._rebuild(partition, from_last_tiered=False))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._listing.add(task)
        task.add_done_callback(self._listing.discard)

    def _make_leader_offsets(self, partition: Partition) -> LeaderOffsets:
        return LeaderOffsets(self._manager.peers, self._node.id, self._leader_id, partition)

    async def _list_offsets(self, partition: Partition) -> None:
        """Request the start and end offsets of the leader's log."""
        epoch = partition.leader_epoch
        offset_by_timestamp = {EARLIEST: -1, LATEST: -1}
        code = ErrorCode.none
        offsets = self._make_leader_offsets(partition)
        try:
            for timestamp in offset_by_timestamp:
                offset_by_timestamp[timestamp] = (await offsets.list(timestamp)).offset
        except LeaderRefused as error:
            code = error.code
        except ClientError:
            code = ErrorCode.request_timed_out
        now_ms = self._node.clock.now_ms()
        self._apply_outcome(
            self.fetcher.complete_list_offsets(
                partition,
                epoch,
                code,
                offset_by_timestamp[EARLIEST],
                offset_by_timestamp[LATEST],
                now_ms,
            )
        )
        self._wakeup.set()

    async def _rebuild(self, partition: Partition, *, from_last_tiered: bool) -> None:
        """Continue a partition behind the records that are in the object store."""
        epoch, remote = partition.leader_epoch, self._manager.remote
        try:
            if remote is None:
                raise RemoteUnavailable("set remote.log.storage.system.enable on this broker")
            offsets = self._make_leader_offsets(partition)
            rebuild = await offsets.rebuild(remote, from_last_tiered=from_last_tiered)
        except (ClientError, LeaderRefused, OSError) as error:
            self._on_rebuild_failed(partition, error)
        except Exception as error:
            # A bug. Without another attempt the replica would never be in sync again.
            self._on_rebuild_failed(partition, error, exc_info=error)
        else:
            self._failing.discard(partition.key)
            now_ms = self._node.clock.now_ms()
            self._apply_outcome(
                self.fetcher.complete_rebuild(partition, epoch, *rebuild, now_ms=now_ms)
            )
        self._wakeup.set()

    def _on_rebuild_failed(
        self, partition: Partition, error: Exception, exc_info: Exception | None = None
    ) -> None:
        self.fetcher.fail_rebuild(partition, self._node.clock.now_ms())
        if partition.key not in self._failing:
            self._failing.add(partition.key)
            self._node.log.warning(
                "a replica waits for what the object store has of its partition",
                topic=partition.topic,
                partition=partition.index,
                error=str(error),
                exc_info=exc_info,
            )


def _parse_response(answer: FetchResponse) -> FetchSessionResponse:
    partitions: dict[Key, ReplicaFetchResult] = {}
    for topic in answer.responses:
        assert topic.topic_id is not None
        for entry in topic.partitions:
            diverging = entry.diverging_epoch
            partitions[(topic.topic_id, entry.partition_index)] = ReplicaFetchResult(
                to_error_code(entry.error_code),
                entry.high_watermark,
                entry.log_start_offset,
                Divergence(diverging.epoch, diverging.end_offset)
                if diverging is not None and diverging.end_offset >= 0
                else None,
                entry.records or b"",
            )
    code = to_error_code(answer.error_code)
    return FetchSessionResponse(code, answer.session_id, partitions)
