"""The group coordinator on this broker: every kind of group, in `__consumer_offsets`."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.group.classic import classic_group
from shoal.coordinator.group.consumer import consumer_group
from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.coordinator.group.share import share_group
from shoal.coordinator.group.streams import streams_group
from shoal.log.appends import AppendOrigin
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.coordinators import member_connections
from shoal.server.coordinators.service import (
    WAITING_MAX,
    CoordinatorService,
    CreateTopic,
    InternalTopic,
    PartitionsPort,
    ReplicasPort,
    Response,
)
from shoal.server.metrics.registry import Labels, label

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.coordinator.group.consumer.heartbeat import (
        ConsumerGroupHeartbeatRequest as ConsumerHeartbeat,
    )
    from shoal.coordinator.group.streams.heartbeat import StreamsGroupHeartbeatRequest
    from shoal.coordinator.runtime import Decide
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.replication.partition import Partition
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.network.api import Peer
    from shoal.server.node import Node

TOPIC = "__consumer_offsets"
#: Deletes the state of a group, by its id, that another part of the broker has.
DeleteState = Callable[[str], Awaitable[object]]
#: The states to count. A state without groups has the count 0, so that its series continues.
_STATES = {
    GroupType.CLASSIC: classic_group.ClassicGroupState,
    GroupType.CONSUMER: consumer_group.ConsumerGroupState,
    GroupType.SHARE: share_group.ShareGroupState,
    GroupType.STREAMS: streams_group.StreamsGroupState,
}
#: States whose label is not their name in lower case.
_STATE_LABELS: dict[str, str] = {streams_group.StreamsGroupState.NOT_READY: "not_ready"}


class GroupService(CoordinatorService[GroupShard]):
    """The shards of `__consumer_offsets`."""

    key_type = 0

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: PartitionsPort,
        replicas: ReplicasPort,
        create_topic: CreateTopic,
        metrics: MetricRegistry,
    ) -> None:
        self.settings = settings = GroupSettings.from_properties(node.config.values)
        super().__init__(
            node,
            cache,
            partitions,
            replicas,
            create_topic,
            topic=InternalTopic(TOPIC),
            new_shard=lambda _: GroupShard(settings, cache.image),
            write_timeout_ms=settings.offsets_commit_timeout_ms,
            codec=node.config["offsets.topic.compression.codec"],
        )
        self._state_deleters: dict[GroupType, DeleteState] = {}
        #: The requests for groups that are being deleted.
        self._held: dict[str, deque[tuple[Any, Decide[GroupShard]]]] = {}
        #: By partition: topics that were deleted while its shard was loading.
        self._deleted_topics: dict[int, list[tuple[str, UUID]]] = {}
        self._register_metrics(metrics)

    def add_deletion_hook(self, kind: GroupType, delete: DeleteState) -> None:
        """Call `delete` with the id of each group of that type before the group is deleted. It
        deletes state of the group that another part of the broker has."""
        assert kind not in self._state_deleters
        self._state_deleters[kind] = delete

    def on_metadata_changed(self, image: MetadataImage, delta: MetadataDelta | None) -> None:
        super().on_metadata_changed(image, delta)
        deleted = [(t.name, t.topic_id) for t in delta.deleted] if delta is not None else []
        for partition in self.runtime.loading_partitions:
            self._deleted_topics.setdefault(partition, []).extend(deleted)
        for partition, _ in self.get_shards():
            self._apply_metadata(partition, deleted)

    def _activate(self, index: int) -> None:
        super()._activate(index)
        self._apply_metadata(index, self._deleted_topics.pop(index, []))

    def _apply_metadata(self, partition: int, deleted: Sequence[tuple[str, UUID]]) -> None:
        """Apply the current metadata to a shard."""
        image = self._cache.image

        def decide(shard: GroupShard, now_ms: int) -> CoordinatorResult:
            return shard.on_metadata_changed(image, deleted, now_ms)

        self.runtime.apply(partition, decide, self._node.clock.now_ms())
        self._watch_deadline(self.runtime.get_deadline_ms(partition))

    def delete(self, group_id: str) -> asyncio.Future[Any]:
        """Delete an empty group of any type, and its state elsewhere."""

        def check(shard: GroupShard, _now_ms: int, token: Token) -> CoordinatorResult:
            group = shard.context.groups.find(group_id)
            group.check_delete()
            return CoordinatorResult((), (Reply(token, {"type": group.type}),))

        async def delete_with_state() -> Response:
            kind = (await self.submit(group_id, check))["type"]
            if kind in self._state_deleters:
                await self._state_deleters[kind](group_id)
            while group_id in self._held:  # By another request for its deletion.
                await self.submit(group_id, check)
            return await self._delete_in_steps(group_id)

        return asyncio.ensure_future(delete_with_state())

    async def _delete_in_steps(self, group_id: str) -> Response:
        """Delete a group, which may have many offsets, in several turns of the event loop. Other
        requests for it wait meanwhile, so that no member finds a part of the offsets."""

        def delete(shard: GroupShard, _now_ms: int, token: Token) -> CoordinatorResult:
            return shard.delete_group(group_id, token)

        held = self._held[group_id] = deque()
        try:
            while True:
                token: asyncio.Future[Response] = self._loop.create_future()
                super()._submit(group_id, token, delete)
                response = await token
                if response["is_last"]:
                    return response
                await asyncio.sleep(0)
        finally:
            del self._held[group_id]
            for other, decide in held:
                if not other.done():
                    super()._submit(group_id, other, decide)

    def _submit(self, key: str, token: Any, decide: Decide[GroupShard]) -> None:
        held = self._held.get(key)
        if held is None or len(held) >= WAITING_MAX:
            super()._submit(key, token, decide)
        else:
            held.append((token, decide))

    def watch_streams_member(
        self, peer: Peer, heartbeat: StreamsGroupHeartbeatRequest, reply: asyncio.Future[Any]
    ) -> None:
        """Report to the streams group when this connection closes, unless the member has left by
        then."""
        group_id, member_id = heartbeat.group_id, heartbeat.member_id

        def decide(shard: GroupShard, now_ms: int, token: Token) -> CoordinatorResult:
            shard.streams.on_connection_lost(group_id, member_id, heartbeat.connection_id, now_ms)
            return CoordinatorResult((), (Reply(token, {}),))

        def on_lost() -> None:
            # A shard that moved or is loading has lost the connections anyway.
            future = self.submit(group_id, decide)
            future.add_done_callback(lambda future: future.cancelled() or future.exception())

        key = ("streams member", group_id, member_id)
        member_connections.watch(peer, key, reply, on_lost, leaves=heartbeat.leaves)

    def watch_sharing_member(
        self, peer: Peer, heartbeat: ConsumerHeartbeat, reply: asyncio.Future[Any]
    ) -> None:
        """Report to the consumer group when this connection closes, unless the member, which shares
        partitions, has left by then."""
        group_id, member_id = heartbeat.group_id, heartbeat.member_id

        def decide(shard: GroupShard, now_ms: int, token: Token) -> CoordinatorResult:
            shard.consumer.on_connection_lost(group_id, member_id, heartbeat.connection_id, now_ms)
            return CoordinatorResult((), (Reply(token, {}),))

        def on_lost() -> None:
            # A shard that moved or is loading has lost the connections anyway.
            future = self.submit(group_id, decide)
            future.add_done_callback(lambda future: future.cancelled() or future.exception())

        key = ("sharing member", group_id, member_id)
        member_connections.watch(peer, key, reply, on_lost, leaves=heartbeat.leaves)

    def watch_ordered_commits(self, peer: Peer, group_id: str) -> None:
        """Forget the commits of this connection that wait for their turn when it closes."""

        def decide(shard: GroupShard, _now_ms: int, token: Token) -> CoordinatorResult:
            return shard.offsets.ranges.ordered.on_connection_lost(peer.connection_id, token)

        def on_lost() -> None:
            # A shard that moved or is loading has refused them anyway.
            future = self.submit(group_id, decide)
            future.add_done_callback(lambda future: future.cancelled() or future.exception())

        peer.closed_calls.put(("ordered commits", group_id), on_lost)

    def append_marker(
        self, index: int, marker: bytearray, producer_id: int, *, committed: bool
    ) -> Partition:
        """Append the marker of a transaction's offset commits. Returns the partition. Raises
        `ApiError` if this broker does not serve it, and `AppendRefused`."""
        now_ms = self._node.clock.now_ms()
        partition = self._watched.get(index)
        if partition is None:
            raise ApiError(ErrorCode.not_coordinator)
        self.runtime.append_marker(
            index,
            lambda: partition.append(marker, now_ms=now_ms, origin=AppendOrigin.COORDINATOR),
            lambda shard: shard.replay_end_transaction(producer_id, committed),
        )
        # What the transaction has committed by key ranges is to be stored in the offsets.
        self._watch_deadline(self.runtime.get_deadline_ms(index))
        return partition

    def _end_transaction(self, shard: GroupShard, producer_id: int, committed: bool) -> None:
        shard.replay_end_transaction(producer_id, committed)

    def _register_metrics(self, metrics: MetricRegistry) -> None:
        metrics.add(
            "kafka_server_group_coordinator_metrics_group_count",
            "gauge",
            "Groups by protocol.",
            lambda: [(label(protocol=kind.value), count) for kind, count in self._count_types()],
        )
        for kind in GroupType:
            metrics.add(
                f"kafka_server_group_coordinator_metrics_{kind.value}_group_count",
                "gauge",
                f"{kind.value.capitalize()} groups by state.",
                partial(self._count_states, kind),
            )
        metrics.add_gauge(
            "kafka_coordinator_group_GroupMetadataManager_NumOffsets",
            "Committed offsets.",
            lambda: sum(len(shard.offsets) for _, shard in self.get_shards()),
        )
        metrics.add(
            "kafka_server_group_coordinator_metrics_classic_group_completed_rebalance_count_total",
            "counter",
            "Rebalances of classic groups that have become stable.",
            lambda: (((), sum(s.classic.completed_rebalances for _, s in self.get_shards())),),
        )
        metrics.add(
            "kafka_server_group_coordinator_metrics_consumer_group_rebalance_count_total",
            "counter",
            "Assignments of consumer groups.",
            lambda: (((), sum(s.consumer.rebalances for _, s in self.get_shards())),),
        )
        metrics.add(
            "kafka_server_group_coordinator_metrics_share_group_rebalance_count_total",
            "counter",
            "Assignments of share groups.",
            lambda: (((), sum(s.share.rebalances for _, s in self.get_shards())),),
        )
        metrics.add(
            "kafka_server_group_coordinator_metrics_streams_group_rebalance_count_total",
            "counter",
            "Assignments of streams groups.",
            lambda: (((), sum(s.streams.rebalances for _, s in self.get_shards())),),
        )

        for name, attribute, description in (
            ("offset_commit", "commits", "Offsets committed."),
            ("offset_expiration", "expirations", "Offsets forgotten after their retention."),
            ("offset_deletion", "deletions", "Offsets deleted by an admin."),
        ):
            metrics.add(
                f"kafka_server_group_coordinator_metrics_{name}_count_total",
                "counter",
                description,
                partial(self._count_offsets, attribute),
            )

        self._register_metrics_of_individual_commits(metrics)
        self._register_metrics_of_key_ranges(metrics)

    def _register_metrics_of_individual_commits(self, metrics: MetricRegistry) -> None:
        metrics.add_gauge(
            "shoal_group_coordinator_individual_commit_finished_offsets",
            "Finished offsets above the stable offsets of their partitions.",
            lambda: sum(
                o.finished_count
                for _, shard in self.get_shards()
                for o in shard.offsets.ranges.find_gaps()
            ),
        )
        metrics.add_gauge(
            "shoal_group_coordinator_individual_commit_oldest_gap_seconds",
            "Age of the oldest gap below finished offsets; 0 without one.",
            self._compute_oldest_gap_s,
        )
        metrics.add(
            "shoal_group_coordinator_individual_commit_repeated_count_total",
            "counter",
            "Individual commits of partitions in which everything was finished before.",
            partial(self._count_range_commits, "repeated_commits"),
        )

    def _register_metrics_of_key_ranges(self, metrics: MetricRegistry) -> None:
        metrics.add_gauge(
            "shoal_group_coordinator_key_range_shared_partitions",
            "Partitions that members of a consumer group share by key ranges.",
            lambda: sum(
                len(group.sharers)
                for _, shard in self.get_shards()
                for group in shard.context.groups
                if isinstance(group, consumer_group.ConsumerGroup)
            ),
        )
        metrics.add(
            "shoal_group_coordinator_key_range_redone_records_total",
            "counter",
            "About the records above the stable offset that members without key ranges got again.",
            partial(self._count_range_commits, "redone_records"),
        )
        metrics.add_gauge(
            "shoal_group_coordinator_key_range_open_commits",
            "Partitions whose key ranges open transactions have committed, counted for each "
            "transaction.",
            lambda: sum(len(shard.offsets.ranges.pending) for _, shard in self.get_shards()),
        )
        metrics.add(
            "shoal_group_coordinator_key_range_refused_order_count_total",
            "counter",
            "Transactions that were refused because they waited in a cycle or for too long.",
            lambda: (((), sum(s.offsets.ranges.ordered.refusals for _, s in self.get_shards())),),
        )
        metrics.add_gauge(
            "shoal_group_coordinator_key_range_waiting_commits",
            "Transactions that wait for their turn in the order of a partition.",
            lambda: sum(len(shard.offsets.ranges.ordered) for _, shard in self.get_shards()),
        )
        metrics.add(
            "shoal_group_coordinator_key_range_aborted_records_total",
            "counter",
            "About the records that aborted transactions had finished by key ranges.",
            partial(self._count_range_commits, "aborted_records"),
        )

    def _compute_oldest_gap_s(self) -> float:
        now_ms = self._node.clock.now_ms()
        ages = (
            now_ms - offset.gap_timestamp_ms
            for _, shard in self.get_shards()
            for offset in shard.offsets.ranges.find_gaps()
        )
        return max(ages, default=0) / 1000

    def _count_offsets(self, attribute: str) -> list[tuple[Labels, float]]:
        return [((), sum(getattr(shard.offsets, attribute) for _, shard in self.get_shards()))]

    def _count_types(self) -> list[tuple[GroupType, int]]:
        counts = Counter(
            group.type for _, shard in self.get_shards() for group in shard.context.groups
        )
        return [(kind, counts[kind]) for kind in GroupType]

    def _count_states(self, kind: GroupType) -> list[tuple[Labels, float]]:
        counts = Counter(
            group.state_name
            for _, shard in self.get_shards()
            for group in shard.context.groups
            if group.type is kind
        )
        return [
            (label(state=_STATE_LABELS.get(state, state.lower())), counts[state])
            for state in _STATES[kind]
        ]

    def _count_range_commits(self, attribute: str) -> list[tuple[Labels, float]]:
        counts = (getattr(shard.offsets.ranges, attribute) for _, shard in self.get_shards())
        return [((), sum(counts))]
