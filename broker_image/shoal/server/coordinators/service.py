"""Coordinators on this broker: `coordinator.runtime` on the event loop.

A coordinator has an internal topic, and a shard for each partition that this broker leads. Its
service creates the topic on first use, and replays the log of a partition into its shard in short
steps. It passes requests to the runtime, and serves the runtime's deadlines. A request waits while
the topic is being created. A request for a shard that is loading is refused with a retriable error,
as in Kafka.

A token is the future of the request's response, or a `CallbackToken`, which continues at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from shoal.coordinator.contract import CoordinatorRecord, ProducerIdAndEpoch, RecordOrigin, Shard
from shoal.coordinator.java_order import hash_string
from shoal.coordinator.runtime import AppendError, CoordinatorRuntime, Decide, ShardPhase
from shoal.log.errors import AppendRefused, LogOffline
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.record.batch import CorruptBatch, iter_headers
from shoal.record.compression import Compression
from shoal.record.control import ControlType, read_marker
from shoal.record.records import read_records

if TYPE_CHECKING:
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.replication.partition import Partition
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node
    from shoal.server.timers import Timer

S = TypeVar("S", bound=Shard)
E = TypeVar("E")
Response = Mapping[str, Any]

#: The bytes that one step of loading replays, which takes some milliseconds.
LOAD_STEP_BYTES = 64 * 1024
#: The delay before a shard loads again after a failed write, for instance on a full disk.
RELOAD_AFTER_MS = 100
#: The most requests that wait for the creation of the internal topic, and how long those of one
#: turn take once it exists.
WAITING_MAX = 10_000
WAITING_STEP_S = 0.005
#: The most bytes of the records of one decision. Batches of internal topics have Kafka's 1 MiB.
BATCH_BYTES_MAX = 1_000_000
#: Keys whose hashes are kept: how many, and of how many characters at most.
_KEYS_MAX, _KEY_SIZE_MAX = 4096, 300


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """The topic of a coordinator. `metadata.topics.build_internal_topic` has its configs."""

    name: str
    compacted: bool = True


class PartitionsPort(Protocol):
    """The replicas on this broker (`replication.partitions`)."""

    def find_by_name(self, topic: str, index: int) -> Partition | None:
        """The replica of that partition; None if this broker has none."""


class ReplicasPort(Protocol):
    """The replication of the partitions that this broker leads (`replication.replicas`)."""

    def is_cut_off(self, partition: Partition) -> bool:
        """Whether no write to the partition can be committed at present."""


#: Creates the topic of a coordinator. Raises `ApiError` when it cannot be created.
CreateTopic = Callable[[InternalTopic], Coroutine[Any, Any, None]]


class _PendingLoad(NamedTuple):
    """A partition that is being loaded, and the next offset to replay."""

    partition: int
    offset: int


class CallbackToken:
    """A token that does not wait for a turn of the event loop. `then` is called with the response,
    or with the error, in the order of the decisions."""

    __slots__ = ("_callback", "_done")

    def __init__(self, callback: Callable[[Response | ApiError], None]) -> None:
        self._callback = callback
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, response: Response) -> None:
        self._done = True
        self._callback(response)

    def set_exception(self, error: ApiError) -> None:
        self._done = True
        self._callback(error)


def compute_partition(key: str, count: int) -> int:
    """The partition of `key`. Kafka's `Utils.abs` maps the least integer to 0."""
    hash_key = _hash_short_key if len(key) <= _KEY_SIZE_MAX else hash_string
    value = hash_key(key)
    return (0 if value == -(1 << 31) else abs(value)) % count


_hash_short_key = lru_cache(_KEYS_MAX)(hash_string)


class CoordinatorService(Generic[S]):
    """One coordinator. It owns its runtime, its loads and its timer."""

    #: The key type of the coordinator in FindCoordinator.
    key_type: ClassVar[int]

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: PartitionsPort,
        replicas: ReplicasPort,
        create_topic: CreateTopic,
        *,
        topic: InternalTopic,
        new_shard: Callable[[int], S],
        write_timeout_ms: int = 5_000,
        codec: int = Compression.NONE,
    ) -> None:
        """`new_shard` makes the shard of a partition. `codec` compresses the batches that the
        coordinator writes."""
        self._node = node
        self._cache = cache
        self._partitions = partitions
        self._replicas = replicas
        self._create_topic = create_topic
        self.topic = topic
        self._codec = Compression(codec)
        self.runtime: CoordinatorRuntime[S] = CoordinatorRuntime(
            self, new_shard, batch_bytes_max=BATCH_BYTES_MAX, write_timeout_ms=write_timeout_ms
        )
        self._loop = node.loop
        self._creating: asyncio.Future[Any] | None = None
        self._waiting: deque[tuple[str, asyncio.Future[Any] | CallbackToken, Decide[S]]] = deque()
        self._loads: deque[_PendingLoad] = deque()
        self._loading = False
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._watched: dict[int, Partition] = {}
        self._performers: dict[type, Callable[[Any], None]] = {}
        #: Requests in this turn of the event loop, and whether the last turn had more than one.
        self._turn_requests = 0
        self._turn_ends = self._crowded = False
        #: Appends, and the records that they appended, for metrics.
        self.appends = 0
        self.records = 0
        #: The count and total time in ms of loads, for metrics, and when each load began.
        self.load_times = (0, 0)
        self._load_began_ms: dict[int, int] = {}

    def start(self) -> None:
        """Load the partitions that this broker leads. The metadata log has been read."""
        self.on_metadata_changed(self._cache.image, None)

    def on_effect(self, effect: type[E], perform: Callable[[E], None]) -> None:
        """Call `perform` with each effect of that class. A class has one performer."""
        assert effect not in self._performers
        self._performers[effect] = perform

    @property
    def queued(self) -> int:
        """The number of requests that wait for the creation of the topic."""
        return len(self._waiting)

    # Keys and their partitions.

    def find_partition(self, key: str) -> int | None:
        """The partition of `key`; None while the topic does not exist."""
        topic = self._cache.image.topics.get(self.topic.name)
        return None if topic is None else compute_partition(key, len(topic.partitions))

    def find_coordinator(self, key: str) -> int:
        """The broker that leads the partition of `key`. Raises COORDINATOR_NOT_AVAILABLE."""
        topic = self._cache.image.topics.get(self.topic.name)
        if topic is not None:
            leader = topic.partitions[compute_partition(key, len(topic.partitions))].leader
            if leader >= 0:
                return leader
        raise ApiError(ErrorCode.coordinator_not_available)

    def is_stuck(self, key: str) -> bool:
        """Whether writes to the partition of `key` are not committed in time."""
        partition = self.find_partition(key)
        if partition is None:
            return False
        return self.runtime.is_overdue(partition) or self._is_cut_off(partition)

    def _is_cut_off(self, index: int) -> bool:
        watched = self._watched.get(index)
        return watched is not None and self._replicas.is_cut_off(watched)

    def ensure_topic(self) -> asyncio.Future[Any] | None:
        """Create the topic. Returns a future to wait for, or None if the topic exists.

        The future fails with COORDINATOR_NOT_AVAILABLE if the topic cannot be created.
        """
        if self.topic.name in self._cache.image.topics:
            return None
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._create().add_done_callback(lambda made: _follow(made, waiter))
        return waiter

    def _create(self) -> asyncio.Future[Any]:
        """Create the topic, once for all requests that wait for it."""
        if self._creating is None:
            self._creating = asyncio.ensure_future(self._create_topic(self.topic))
            self._creating.add_done_callback(self._on_topic_created)
        return self._creating

    def _on_topic_created(self, future: asyncio.Future[Any]) -> None:
        self._creating = None
        if not future.cancelled():
            future.exception()  # Each waiting request gets it, and `create_topic` has logged it.
        if self.topic.name in self._cache.image.topics:
            self._submit_waiting()
            return
        waiting, self._waiting = self._waiting, deque()
        for _, token, _ in waiting:
            self.fail(token, ApiError(ErrorCode.coordinator_not_available))

    def _submit_waiting(self) -> None:
        """Decide on requests that have waited for the topic, and on the others in later turns."""
        end = self._loop.time() + WAITING_STEP_S
        while self._waiting:
            key, token, decide = self._waiting.popleft()
            if not token.done():
                self._submit_to(self.find_partition(key), token, decide)
            if self._waiting and self._loop.time() >= end:
                self._loop.call_soon(self._submit_waiting)
                return

    # Requests.

    def submit(self, key: str, decide: Decide[S]) -> asyncio.Future[Any]:
        """Decide on the shard of `key`: (shard, now_ms, token) -> Result. The future has the reply
        once it is committed, or an `ApiError`."""
        token: asyncio.Future[Any] = self._loop.create_future()
        self._submit(key, token, decide)
        return token

    def call(
        self, key: str, decide: Decide[S], on_reply: Callable[[Response | ApiError], None]
    ) -> None:
        """Like `submit`, but call `on_reply` with the reply at once: perhaps before this returns,
        and always in the order of the decisions."""
        self._submit(key, CallbackToken(on_reply), decide)

    def _submit(
        self, key: str, token: asyncio.Future[Any] | CallbackToken, decide: Decide[S]
    ) -> None:
        partition = self.find_partition(key)
        # Requests that wait come first, also once the topic exists.
        if (partition is None or self._waiting) and len(self._waiting) < WAITING_MAX:
            self._waiting.append((key, token, decide))
            if partition is None:
                self._create()
        else:
            self._submit_to(partition, token, decide)

    def _submit_to(
        self, partition: int | None, token: asyncio.Future[Any] | CallbackToken, decide: Decide[S]
    ) -> None:
        if partition is None:
            self.fail(token, ApiError(ErrorCode.coordinator_not_available))
            return
        if self._is_cut_off(partition):
            self.fail(token, ApiError(ErrorCode.not_coordinator))
            return
        now_ms = self._node.clock.now_ms()
        self._turn_requests += 1
        self.runtime.submit(partition, token, decide, now_ms)
        if not self._crowded:
            self.runtime.flush()
        self._watch_deadline(self.runtime.get_deadline_ms(partition))

    def get_shards(self) -> list[tuple[int, S]]:
        """The shards that serve requests, by partition."""
        return self.runtime.list_active()

    def get_all_shards(self) -> list[S]:
        """Every shard that this broker leads. Raises COORDINATOR_LOAD_IN_PROGRESS."""
        if self.runtime.loading_partitions:
            raise ApiError(ErrorCode.coordinator_load_in_progress)
        return [shard for _, shard in self.get_shards()]

    # Partitions.

    def on_metadata_changed(self, image: MetadataImage, _delta: MetadataDelta | None) -> None:
        """Load and drop shards, as this broker leads their partitions. `_delta` is None at
        the start."""
        topic = image.topics.get(self.topic.name)
        led = {}
        for index in range(len(topic.partitions) if topic is not None else 0):
            partition = self._partitions.find_by_name(self.topic.name, index)
            if partition is not None and partition.is_leader:
                led[index] = partition
        for index, watched in list(self._watched.items()):
            if led.get(index) is not watched:
                self._unwatch(index, watched)
                self.runtime.resign(index)
        for index, partition in led.items():
            if index not in self._watched:
                self._watched[index] = partition
                partition.on_advance(self._on_advanced)
                self._load(index)

    def _unwatch(self, index: int, partition: Partition) -> None:
        del self._watched[index]
        partition.forget(self._on_advanced)

    def _on_advanced(self, partition: Partition) -> None:
        self.runtime.on_high_watermark(partition.index, partition.high_watermark)

    # Loading.

    def _load(self, index: int) -> None:
        self.runtime.begin(index)
        self._load_began_ms[index] = self._node.clock.now_ms()
        self._replay(index)

    def _replay(self, index: int) -> None:
        log = self._watched[index].log
        if log.log_start_offset == log.log_end_offset:
            self._activate(index)
            return
        self._loads.append(_PendingLoad(index, log.log_start_offset))
        if not self._loading:
            self._loading = True
            self._loop.call_soon(self._load_step)

    def _load_step(self) -> None:
        """Replay one step of a partition, and schedule the next step."""
        index, offset = self._loads.popleft()
        partition = self._watched.get(index)
        if partition is not None and self.runtime.get_phase(index) is ShardPhase.LOADING:
            try:
                offset = self._replay_from(partition, self.runtime.get_loading(index), offset)
            except (OSError, LogOffline, CorruptBatch) as error:
                self._node.log.error(
                    "a coordinator cannot be loaded",
                    topic=self.topic.name,
                    partition=index,
                    error=str(error),
                )
                self.runtime.resign(index, ErrorCode.coordinator_not_available)
            else:
                if offset < partition.log.log_end_offset:
                    self._loads.appendleft(_PendingLoad(index, offset))
                else:
                    self._activate(index)
        self._loading = bool(self._loads)
        if self._loading:
            self._loop.call_soon(self._load_step)

    def _replay_from(self, partition: Partition, shard: S, offset: int) -> int:
        """Replay the bytes of one step. Returns the offset of the next step.

        In a compacted topic only the last record of each key is replayed, so that a group that
        commits often costs one record a step.
        """
        log = partition.log
        data = log.read(offset, LOAD_STEP_BYTES, max_offset=log.log_end_offset, min_one=True).data
        end = log.log_end_offset if not data else offset
        replays: dict[Any, tuple[CoordinatorRecord, RecordOrigin]] = {}
        for at, header in iter_headers(data):
            end = header.next_offset
            if header.is_control:
                self._replay_records(partition, shard, replays)
                marker = read_marker(data, at)
                if marker is not None:
                    committed = marker.control_type is ControlType.COMMIT
                    self._end_transaction(shard, header.producer_id, committed)
                continue
            origin = (header.producer_id, header.producer_epoch, header.is_transactional)
            for record in read_records(data, at):
                if record.offset < offset or record.key is None:
                    continue
                # A transaction may be aborted, so its records do not replace others.
                last = self.topic.compacted and not header.is_transactional
                by = record.key if last else record.offset
                replays.pop(by, None)
                replays[by] = (
                    CoordinatorRecord(record.key, record.value),
                    RecordOrigin(record.offset, record.timestamp_ms, *origin),
                )
        self._replay_records(partition, shard, replays)
        return end

    def _replay_records(
        self,
        partition: Partition,
        shard: S,
        replays: dict[Any, tuple[CoordinatorRecord, RecordOrigin]],
    ) -> None:
        for record, position in replays.values():
            try:
                shard.replay(record, position)
            except WireError as error:
                self._node.log.error(
                    "a coordinator's record is not of its layout",
                    topic=self.topic.name,
                    partition=partition.index,
                    offset=position.offset,
                    error=str(error),
                )
        replays.clear()

    def _end_transaction(self, shard: S, producer_id: int, committed: bool) -> None:
        """Apply a transaction's marker, in a coordinator with transactional records."""

    def _activate(self, index: int) -> None:
        now_ms = self._node.clock.now_ms()
        count, total_ms = self.load_times
        self.load_times = (count + 1, total_ms + now_ms - self._load_began_ms.pop(index, now_ms))
        self.runtime.activate(index, now_ms)
        self._watch_deadline(self.runtime.get_deadline_ms(index))

    # The runtime's ports.

    def get_end_offset(self, partition: int) -> int:
        return self._watched[partition].log.log_end_offset

    def get_high_watermark(self, partition: int) -> int:
        return self._watched[partition].high_watermark

    def append(
        self,
        partition: int,
        records: Sequence[CoordinatorRecord],
        producer: ProducerIdAndEpoch | None = None,
    ) -> int:
        now_ms = self._node.clock.now_ms()
        try:
            appended = self._watched[partition].append_records(
                records, now_ms=now_ms, producer=producer, codec=self._codec
            )
        except AppendRefused as refused:
            raise AppendError(refused.code, refused.message) from None
        except (OSError, LogOffline) as error:
            raise AppendError(ErrorCode.kafka_storage_error, str(error)) from None
        self.appends += 1
        self.records += len(records)
        return appended.last_offset

    def deliver(self, token: Any, response: Response) -> None:
        if not token.done():
            token.set_result(response)

    def fail(self, token: Any, error: ApiError) -> None:
        if not token.done():
            token.set_exception(error)

    def perform(self, effect: Any) -> None:
        self._performers[type(effect)](effect)

    def flush_soon(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            self._loop.call_soon(self._on_turn_ended)

    def reload(self, partition: int) -> None:
        self._node.log.warning(
            "a coordinator's write failed; it loads again",
            topic=self.topic.name,
            partition=partition,
        )
        watched = self._watched.get(partition)
        if watched is None:
            return
        self.runtime.begin(partition)

        def replay() -> None:
            loads = self.runtime.get_phase(partition) is ShardPhase.LOADING
            if loads and self._watched.get(partition) is watched:
                self._replay(partition)

        # Deadlines that are due would write as soon as it has loaded, and fail again.
        self._node.timers.call_at(self._node.clock.now_ms() + RELOAD_AFTER_MS, replay)

    def _on_turn_ended(self) -> None:
        """Append the records of all requests of this turn of the event loop at once. A request that
        is alone in its turn does not wait for the end of it."""
        self._turn_ends = False
        self._crowded = self._turn_requests > 1
        self._turn_requests = 0
        self.runtime.flush()

    # Time.

    def _watch_deadline(self, at_ms: int | None) -> None:
        if at_ms is None or (self._timer is not None and self._timer_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = self._node.timers.call_at(at_ms, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.runtime.tick(self._node.clock.now_ms())
        self._watch_deadline(self.runtime.next_deadline_ms)


def _follow(future: asyncio.Future[Any], waiter: asyncio.Future[Any]) -> None:
    if waiter.done():
        return
    if future.cancelled() or future.exception() is not None:
        waiter.set_exception(ApiError(ErrorCode.coordinator_not_available))
    else:
        waiter.set_result(None)
