"""Share groups on this broker: the share partitions it leads, and the parts that serve them.

The handlers of the share APIs come here. A share partition is loaded when it is first fetched. It
is dropped when its topic is deleted, its offsets are reset, or no member has had a session of its
group for a while.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING

from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.share.failure_reasons import ReasonBudget
from shoal.coordinator.share.records import ShareKey
from shoal.metadata.image import ConfigResourceType
from shoal.protocol.errors import ErrorCode
from shoal.server.metrics import share as share_metrics
from shoal.server.metrics import share_meters
from shoal.server.replication import timestamp_search
from shoal.server.share.admin import ShareAdmin
from shoal.server.share.cooperative_scheduler import CooperativeScheduler
from shoal.server.share.dead_letters import (
    DeadLetterMeter,
    DeadLetters,
    DeadLetterServices,
    DeadLetterSourcePort,
    TopicCreator,
)
from shoal.server.share.dlq_rate_limit import DlqRateLimit
from shoal.server.share.fetch import FetchQuotas, FetchServices
from shoal.server.share.group_settings import ShareGroupSettings
from shoal.server.share.idle_scanner import IdleScanner
from shoal.server.share.leader import LeaderPhase, ShareLeader
from shoal.server.share.member_sessions import MemberSessions
from shoal.server.share.members import ShareMembers
from shoal.server.share.persister import Persister
from shoal.server.share.redrives import Redrives
from shoal.server.share.state_coordinator import ListenerCount, StateCoordinator
from shoal.server.share.state_write import Failure
from shoal.server.share.tenant_loans import LoanService

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from uuid import UUID

    from shoal.coordinator.share.settings import ShareSettings
    from shoal.coordinator.share.tenant_limits import TenantLedger
    from shoal.log.search import TimestampOffset
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.replication.partition import Partition
    from shoal.server.authorization import AccessControl
    from shoal.server.coordinators.groups import GroupService
    from shoal.server.coordinators.service import CreateTopic, ReplicasPort
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.network.peers import BrokerPeers
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.network.response_limits import ResponseLimits
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions

#: How often share partitions are dropped that no member has a session for.
IDLE_CHECK_MS = 60_000
#: How long a broker that hands over waits for members to settle their records, and its poll
#: interval.
DRAIN_S, DRAIN_POLL_S = 1.0, 0.01
#: Share partitions that are loaded in one turn of the loop: some 5 ms of work.
LOADS_MAX = 50
#: Pause before the fetches of a share partition that could not be loaded load it again.
LOAD_AGAIN_MS = 20


class ShareService:
    """Owns the share partitions led here. Provides the ports of their leaders."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: Partitions,
        replicas: ReplicasPort,
        create_topic: CreateTopic,
        metrics: MetricRegistry,
        *,
        groups: GroupService,
        peers: BrokerPeers,
        purgatory: Purgatory,
        quotas: FetchQuotas,
        response_limits: ResponseLimits,
        access: AccessControl,
        create_topics: TopicCreator,
        listeners: Sequence[ListenerCount],
    ) -> None:
        self._node = node
        self._cache = cache
        self._partitions = partitions
        self._replicas = replicas
        self._purgatory = purgatory
        self.leaders: dict[str, dict[tuple[UUID, int], ShareLeader]] = {}
        #: Whether this broker hands over its partitions.
        self.draining = False
        self.now_ms: Callable[[], int] = node.clock.now_ms
        self.random: Callable[[], float] = node.random.random
        #: Share partitions that wait to be loaded, and how many were loaded in this turn.
        self._to_load: deque[ShareLeader] = deque()
        self._loads = 0
        self._init_meters()
        self.state_coordinator = StateCoordinator(
            node, cache, partitions, replicas, create_topic, metrics, listeners
        )
        self.persister = Persister(node, cache, peers, self.state_coordinator)
        self.sessions = MemberSessions(node, purgatory, self.list_loaded)
        self.group_settings = ShareGroupSettings(node, cache)
        self.loans = LoanService(node, cache, partitions, replicas, self.group_settings, peers)
        self.idle_scanner = IdleScanner(node, self.group_settings, self)
        self.dlq_rate_limit = DlqRateLimit(node, self.group_settings, self._wake_group)
        self.admin = ShareAdmin(node, groups, purgatory, self.persister, self)
        self.members = ShareMembers(node, groups, self.admin, self.sessions)
        self.fetches = FetchServices(
            node, cache, purgatory, metrics, quotas, self, response_limits, access
        )
        self._dead_letters = DeadLetterServices(
            node,
            cache,
            partitions,
            purgatory,
            peers,
            create_topics,
            self.dead_letters,
            self.dlq_rate_limit.note,
            self.sessions.get_client_id,
        )
        # Ports of the leaders that are other parts' methods: calls take no detour.
        self.get_settings = self.group_settings.get
        self.is_dlq_rate_exceeded = self.dlq_rate_limit.is_exceeded
        self.call_at = node.timers.call_at
        self.run_soon = CooperativeScheduler(node.loop).add
        self.read_aside = node.record_worker.run
        self.read_state = self.persister.read
        self.write_state = self.persister.write
        cache.subscribe(self._on_configs_changed)
        partitions.on_removed(self._on_partition_removed)
        groups.add_deletion_hook(GroupType.SHARE, self.admin.delete_state)
        share_metrics.register(metrics, self)
        Redrives(node.record_worker, partitions, metrics)

    def _init_meters(self) -> None:
        #: Acknowledged records by type.
        self.acknowledged: Counter[int] = Counter()
        self.topics: dict[str, share_meters.ShareTopicMeter] = {}
        #: By group, in milliseconds: loads of share partitions, and fetches that acquired records.
        self.load_times = share_meters.GroupedMean()
        self.acquire_times = share_meters.GroupedMean()
        #: By group: the percentage of a fetch's partitions that records were acquired from.
        self.fetch_ratios = share_meters.GroupedMean()
        #: Times of writes of share-group state in milliseconds, all under "".
        self.write_times = share_meters.GroupedMean()
        #: Share fetches that wait now, and those whose wait ended without records.
        self.waiting_fetches = self.expired_fetches = 0
        self.dead_letters = DeadLetterMeter()
        self.reason_budget = ReasonBudget()

    def start(self) -> None:
        """Begin to drop idle share partitions, and to borrow for tenants."""
        self._node.timers.call_every(IDLE_CHECK_MS, self._drop_idle)
        self.loans.start()

    # Ports of the leaders.

    def make_dead_letters(self, source: DeadLetterSourcePort) -> DeadLetters:
        return DeadLetters(self._dead_letters, source)

    def get_meter(self, topic: str) -> share_meters.ShareTopicMeter:
        """Return the meter of a topic by name."""
        meter = self.topics.get(topic)
        if meter is None:
            meter = self.topics[topic] = share_meters.ShareTopicMeter()
        return meter

    def find_offset_since(
        self, partition: Partition, timestamp_ms: int
    ) -> asyncio.Future[TimestampOffset | None]:
        """Return the first committed record of a partition that has reached a timestamp."""
        return self._node.loop.create_task(
            timestamp_search.find_since(
                self._node.record_worker, partition.log, timestamp_ms, partition.high_watermark
            )
        )

    def wake(self, key: Hashable) -> None:
        """Wake the fetches that wait for a share partition, by its `wake_key`."""
        self._purgatory.wake(key)

    def wake_soon(self, key: Hashable) -> None:
        self._node.loop.call_soon(self.wake, key)

    def wake_later(self, key: Hashable) -> None:
        self._node.timers.call_at(self.now_ms() + LOAD_AGAIN_MS, lambda: self.wake(key))

    def find_state_partition(self, key: ShareKey) -> int | None:
        return self.state_coordinator.find_partition(key.coordinator_key)

    def on_dropped(self, key: ShareKey) -> None:
        group = self.leaders.get(key.group_id, {})
        if group.pop((key.topic_id, key.partition), None) is not None and not group:
            del self.leaders[key.group_id]

    # Share partitions come and go.

    def find(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | None:
        """Return a share partition that is loaded or loading."""
        group = self.leaders.get(group_id)
        return None if group is None else group.get((topic_id, index))

    def list_loaded(self, group_id: str) -> list[ShareLeader]:
        """Return the share partitions of a group that are loaded or loading."""
        return list(self.leaders.get(group_id, {}).values())

    def get_tenant_ledger(self, key: ShareKey, settings: ShareSettings) -> TenantLedger:
        """Return what the group's tenants use in a topic's share partitions here."""
        return self.group_settings.get_tenant_ledger(key, settings)

    def lead(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | Failure:
        """Return the share partition, loading if it was not loaded, or why it is not served."""
        existing, topics = self.find(group_id, topic_id, index), self._cache.image.topics_by_id
        if existing is not None:
            return _CUT_OFF if self._replicas.is_cut_off(existing.partition) else existing
        if topic_id not in topics:
            return Failure(ErrorCode.unknown_topic_id)
        partition = self._partitions.get(topic_id, index)
        if partition is None:
            exists = 0 <= index < len(topics[topic_id].partitions)
            return _NOT_LEADER if exists else Failure(ErrorCode.unknown_topic_or_partition)
        if not partition.is_leader:
            return _NOT_LEADER
        if self._replicas.is_cut_off(partition):
            return _CUT_OFF
        leader = ShareLeader(self, ShareKey(group_id, topic_id, index), partition)
        self.leaders.setdefault(group_id, {})[(topic_id, index)] = leader
        partition.on_advance(leader.on_advanced)
        self._load(leader)
        return leader if leader.phase is not LeaderPhase.DROPPED else leader.failure or _NOT_LEADER

    def _load(self, leader: ShareLeader) -> None:
        """Load a share partition in this turn or a later one: a member may begin with hundreds."""
        if not self._loads:
            self._node.loop.call_soon(self._load_more)
        self._loads += 1
        if self._loads <= LOADS_MAX:
            leader.load()
        else:
            self._to_load.append(leader)

    def _load_more(self) -> None:
        waiting, self._loads = self._to_load, 0
        while waiting and self._loads < LOADS_MAX:
            self._loads += 1
            leader = waiting.popleft()
            if leader.phase is LeaderPhase.LOADING:
                leader.load()
        if self._loads:
            self._node.loop.call_soon(self._load_more)

    def iterate_unloaded(self) -> Iterator[tuple[str, Partition, int]]:
        """Yield the share partitions that are led here and not loaded, if their state is here.

        Each is the group's id, the partition, and the lag as persisted; an unknown lag is -1.
        """
        for _, shard in self.state_coordinator.get_shards():
            for key, start_offset, complete in shard.iterate_progress():
                partition = self._partitions.get(key.topic_id, key.partition)
                if partition is None or not partition.is_leader:
                    continue
                if self.find(key.group_id, key.topic_id, key.partition) is None:
                    lag = max(0, partition.high_watermark - start_offset - complete)
                    yield key.group_id, partition, lag if complete >= 0 else -1

    def drop(self, group_id: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Drop share partitions whose state was reset or deleted. The next fetch loads them."""
        for topic_id, index in partitions:
            leader = self.find(group_id, topic_id, index)
            if leader is not None:
                leader.drop(Failure(ErrorCode.not_leader_or_follower))

    def _on_partition_removed(self, partition: Partition) -> None:
        for group in list(self.leaders.values()):
            leader = group.get(partition.key)
            if leader is not None:
                leader.drop(Failure(ErrorCode.unknown_topic_or_partition))

    def _drop_idle(self) -> None:
        for group_id in list(self.leaders):
            if self.sessions.count_members(group_id) or group_id in self.idle_scanner:
                continue
            for leader in self.list_loaded(group_id):
                if leader.may_be_dropped:
                    leader.drop(Failure(ErrorCode.not_leader_or_follower))

    def _on_configs_changed(self, _image: MetadataImage, delta: MetadataDelta) -> None:
        """Notify share partitions of their group's configs: its delivery may be resumed, or its
        dead letters may hold keys no longer."""
        for kind, name in delta.configs:
            if kind == ConfigResourceType.GROUP:
                for leader in self.list_loaded(name):
                    leader.on_configured()

    def _wake_group(self, group_id: str) -> None:
        for leader in self.list_loaded(group_id):
            self.wake(leader.wake_key)

    async def drain(self) -> None:
        """Stop delivery, and wait a moment for members to settle their records.

        The next leader has no locks, and would deliver those records a second time.
        """
        self.draining = True
        loop = self._node.loop
        end = loop.time() + DRAIN_S
        while loop.time() < end and not self._is_drained():
            await asyncio.sleep(DRAIN_POLL_S)

    def _is_drained(self) -> bool:
        return all(leader.is_idle for of in self.leaders.values() for leader in of.values())

    # What requests need.

    def get_topic_meter(self, topic_id: UUID) -> share_meters.ShareTopicMeter | None:
        """Return the meter of a topic that exists."""
        topic = self._cache.image.topics_by_id.get(topic_id)
        return None if topic is None else self.get_meter(topic.name)

    def make_unknown_failure(self, topic_id: UUID) -> Failure:
        """Return why records of a share partition that is not served cannot be acknowledged."""
        if topic_id not in self._cache.image.topics_by_id:
            return Failure(ErrorCode.unknown_topic_id)
        return Failure(ErrorCode.unknown_topic_or_partition)


_NOT_LEADER = Failure(ErrorCode.not_leader_or_follower)
_CUT_OFF = Failure(
    ErrorCode.not_leader_or_follower, "This broker is cut off from the cluster; another may lead."
)
