"""The share coordinator on this broker: share partitions' state, in `__share_group_state`.

Leaders on this broker write through `write`. RPCs between brokers, and admin requests, use
`decide`. The log is cut below the oldest needed snapshot every
`share.coordinator.state.topic.prune.interval.ms`. A log that grows fast is cut earlier, since the
next coordinator replays it before it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.share.records import NO_TOPIC, ShareKey, find_key
from shoal.coordinator.share.state_store import ShareStateShard, StateStoreConfig
from shoal.log.errors import LogOffline
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.server.coordinators.service import (
    CoordinatorService,
    CreateTopic,
    InternalTopic,
    PartitionsPort,
    ReplicasPort,
)
from shoal.server.metrics.registry import label

if TYPE_CHECKING:
    import asyncio
    from uuid import UUID

    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.network.api import Request
    from shoal.server.network.responses import Outcome
    from shoal.server.node import Node
    from shoal.server.share.state_write import StateWrite

TOPIC = "__share_group_state"
#: A log with more records is cut before its interval. 5,000 records take 0.1 s to replay.
REPLAY_RECORDS_MAX = 5_000
#: Records for each share partition in a log of many. Refreshed snapshots are at most a fifth of all
#: records then.
_RECORDS_PER_STATE = 10
#: Time between two checks of the logs' sizes.
_LOG_CHECK_MS = 1_000
#: Decides on one share partition: its answer and its records.
DecideOne = Callable[[ShareStateShard, int], tuple[Mapping[str, Any], CoordinatorResult]]


class PruneEffect(NamedTuple):
    """An effect: the log of a state partition below `offset` is not needed."""

    partition: int
    offset: int


class ListenerCount(Protocol):
    """The number of connections that a listener of this broker has taken."""

    name: str
    opened_total: int


class StateCoordinator(CoordinatorService[ShareStateShard]):
    """The shards of `__share_group_state`."""

    key_type = 2

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: PartitionsPort,
        replicas: ReplicasPort,
        create_topic: CreateTopic,
        metrics: MetricRegistry,
        listeners: Sequence[ListenerCount],
    ) -> None:
        config = node.config
        settings = StateStoreConfig(
            config["share.coordinator.snapshot.update.records.per.snapshot"],
            config["share.coordinator.cold.partition.snapshot.interval.ms"],
        )
        super().__init__(
            node,
            cache,
            partitions,
            replicas,
            create_topic,
            topic=InternalTopic(TOPIC, compacted=False),
            new_shard=lambda _: ShareStateShard(settings, self._get_partition_count),
            write_timeout_ms=config["share.coordinator.write.timeout.ms"],
            codec=config["share.coordinator.state.topic.compression.codec"],
        )
        self._listeners = listeners
        #: By broker: the newest connection by which its share partitions were read or written.
        self._newest: dict[int, int] = {}
        #: By partition: the connections that each listener had taken when its shard was loaded.
        self._before: dict[int, dict[str, int]] = {}
        #: Whether leaders' writes are being decided, and the partitions that they went to.
        self._writing = False
        self._written_partitions: dict[int, None] = {}
        self.on_effect(PruneEffect, self._cut)
        self._register_metrics(metrics)

    def start(self) -> None:
        super().start()
        interval_ms = self._node.config["share.coordinator.state.topic.prune.interval.ms"]
        self._node.timers.call_every(interval_ms, self.prune)
        self._node.timers.call_every(_LOG_CHECK_MS, self._limit_replay)

    def _register_metrics(self, metrics: MetricRegistry) -> None:
        metrics.add(
            "kafka_server_share_coordinator_metrics_write_total",
            "counter",
            "Records written to __share_group_state.",
            lambda: (((), self.records),),
        )
        metrics.add(
            "kafka_server_share_coordinator_metrics_last_pruned_offset",
            "gauge",
            "The offset below which a state partition was cut off.",
            lambda: [
                (label(topic=TOPIC, partition=str(index)), partition.log.log_start_offset)
                for index, partition in self._watched.items()
            ],
        )

    def _get_partition_count(self, topic_id: UUID) -> int | None:
        topic = self._cache.image.topics_by_id.get(topic_id)
        return None if topic is None else len(topic.partitions)

    def on_metadata_changed(self, image: MetadataImage, delta: MetadataDelta | None) -> None:
        super().on_metadata_changed(image, delta)
        deleted = [topic.topic_id for topic in delta.deleted] if delta is not None else []
        if deleted:
            now_ms = self._node.clock.now_ms()
            for partition, _ in self.get_shards():
                self.runtime.apply(partition, lambda s, _: s.delete_topics(deleted), now_ms)

    def decide(self, key: ShareKey, decide: DecideOne) -> asyncio.Future[Any]:
        """Decide on one share partition. The future gets the answer."""

        def decide_with_reply(
            shard: ShareStateShard, now_ms: int, token: Token
        ) -> CoordinatorResult:
            answer, result = decide(shard, now_ms)
            return CoordinatorResult(result.records, (Reply(token, answer),))

        return self.submit(key.coordinator_key, decide_with_reply)

    # Writes of leaders on this broker.

    def begin_writes(self) -> None:
        """Collect the records of the writes that follow, until `end_writes`."""
        self._writing = True

    def write(self, index: int, write: StateWrite, now_ms: int) -> None:
        """Decide on a write to a state partition."""
        watched = self._watched.get(index)
        if watched is not None and self._replicas.is_cut_off(watched):
            write.set_exception(ApiError(ErrorCode.not_coordinator))
            return
        self.runtime.submit(index, write, ShareStateShard.decide_update, now_ms)
        self._written_partitions[index] = None

    def end_writes(self) -> None:
        """Append what was decided since `begin_writes`."""
        self._writing = False
        self.runtime.flush()
        for index in self._written_partitions:
            self._watch_deadline(self.runtime.get_deadline_ms(index))
        self._written_partitions.clear()

    def flush_soon(self) -> None:
        if not self._writing:
            super().flush_soon()

    def _activate(self, index: int) -> None:
        self._before[index] = {listener.name: listener.opened_total for listener in self._listeners}
        super()._activate(index)

    def check_in_time(self, request: Request) -> None:
        """Raise `WireError` for a broker's request that may be older than what this coordinator
        has.

        The sender may have given the request up while it was in the network, and continued over a
        newer connection, or at another coordinator that this one followed. Applied late, the
        request would undo newer writes with valid epochs. The sender repeats it over a new
        connection.
        """
        client_id, peer = request.header.client_id, request.peer
        kind, _, id = (client_id or "").partition("-")
        if kind != "broker" or not id.isdecimal() or int(id) not in self._cache.image.brokers:
            return
        if peer.number < self._newest.get(int(id), 0):
            raise WireError(f"a late request of {client_id}, which has a newer connection")
        for key in iterate_keys(request.body):
            partition = self.find_partition(key.coordinator_key)
            before = self._before.get(-1 if partition is None else partition, {})
            if peer.number <= before.get(peer.listener, 0):
                raise WireError(
                    f"a request of {client_id} on a connection from before this coordinator"
                )
        self._newest[int(id)] = peer.number

    def prune(self) -> None:
        """Cut off records that no rebuild needs."""
        for index, _ in self.get_shards():
            self._prune(index)

    def _prune(self, index: int) -> None:
        """Cut one log once all decisions so far are committed. An uncommitted snapshot could be
        lost with this leader; a rebuild would then need the one before."""

        def decide(shard: ShareStateShard, _: int) -> CoordinatorResult:
            needed = shard.redundant_offset
            return CoordinatorResult(
                effects=() if needed is None else (PruneEffect(index, needed),)
            )

        self.runtime.apply(index, decide, self._node.clock.now_ms())

    def _cut(self, prune: PruneEffect) -> None:
        partition = self._watched[prune.partition]
        if partition.log.log_start_offset >= prune.offset:
            return
        try:
            partition.delete_records(prune.offset)
        except (OSError, LogOffline) as error:
            self._node.log.error(
                "share-group state was not pruned", partition=prune.partition, error=str(error)
            )

    def _limit_replay(self) -> None:
        """Cut logs that would take long to replay. Share partitions with few writes get new
        snapshots for that."""
        for index, shard in self.get_shards():
            log = self._watched[index].log
            most = max(REPLAY_RECORDS_MAX, _RECORDS_PER_STATE * len(shard))
            if log.log_end_offset - log.log_start_offset <= most:
                continue
            now_ms, below = self._node.clock.now_ms(), log.log_end_offset - most // 2
            for result in shard.refresh(below, now_ms):
                self.runtime.apply(index, lambda *_, new=result: new, now_ms)
            self._prune(index)


def iterate_keys(body: Any) -> Iterator[ShareKey]:
    """Yield the share partitions of a request of the share coordinator's RPCs."""
    for topic in body.topics:
        for entry in topic.partitions:
            yield find_key(body.group_id, topic.topic_id or NO_TOPIC, entry.partition)


def group_by_topic(keys: Iterable[ShareKey], outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return the `results` of a share-group state RPC. A refusal of the coordinator is the error of
    its share partition."""
    topics: dict[UUID, list[dict[str, Any]]] = {}
    for key, outcome in zip(keys, outcomes, strict=True):
        if isinstance(outcome, ApiError):
            outcome = {"error_code": outcome.code, "error_message": outcome.message}
        topics.setdefault(key.topic_id, []).append({"partition": key.partition, **outcome})
    return [{"topic_id": topic_id, "partitions": p} for topic_id, p in topics.items()]
