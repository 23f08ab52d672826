"""Share groups on this broker: the share partitions it leads, and the sessions of their members.

`share_fetch` and `share_acknowledge` (handlers) come here with requests, `share_members` with new
partitions to initialize. A share partition is loaded when it is first fetched and dropped when its
topic goes, its offsets are set anew, or nobody has had a session of its group for a while.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.share_membership import InitializeShareState, MemberReassigned
from shoal.coordinator.share import compiled
from shoal.coordinator.share.bulk import accepted_records
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.sessions import ShareSession, ShareSessions
from shoal.coordinator.share.settings import ShareSettings
from shoal.coordinator.share.states import ACCEPT, AcknowledgeType
from shoal.metadata.image import ResourceType
from shoal.protocol.errors import ErrorCode
from shoal.protocol.share import AcknowledgementBatch
from shoal.replication.partition import Partition
from shoal.server.metrics import share as share_metrics
from shoal.server.metrics import share_meters
from shoal.server.network.api import Peer
from shoal.server.share import admin as share_admin
from shoal.server.share import group_settings, members
from shoal.server.share.dead_letters import DeadLetterMeter, DeadLetters
from shoal.server.share.delay_scanner import DelayScanner
from shoal.server.share.dlq_rate_limit import DlqRateLimit
from shoal.server.share.leader import Phase, ShareLeader
from shoal.server.share.persister import Persister
from shoal.server.share.redrives import Redrives
from shoal.server.share.state_coordinator import StateCoordinator
from shoal.server.share.state_write import Failure

if TYPE_CHECKING:
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.server.broker import Broker
    from shoal.server.timers import Timer

#: How often share partitions are looked for that no member has a session for.
IDLE_CHECK_MS = 60_000
#: The level of the feature `share.version` with which there are dead letters (KIP-1191).
DEAD_LETTERS_FROM = 2
#: How long a broker that hands over waits for members to settle what they hold; how often it looks.
DRAIN_S, DRAIN_LOOK_S = 1.0, 0.01
#: Share partitions that are loaded in one turn of the loop: some 5 ms of work.
LOADS_MAX = 50
#: Before those who wait for a share partition that could not be loaded have it loaded again.
LOAD_AGAIN_MS = 20
#: How long locks are ended before other work gets its turn.
EXPIRY_STEP_S = 0.005
#: And how long those of a member that goes.
RELEASE_STEP_S = 0.005
#: And how long writes are made, of share partitions that changed in one turn.
FLUSH_STEP_S = 0.005


class ShareService:
    """Owns the share partitions led here and the share sessions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.state_coordinator = StateCoordinator(broker)
        self.persister = Persister(broker, self.state_coordinator)
        self.sessions = ShareSessions(broker.image.broker_config["group.share.max.share.sessions"])
        self.leaders: dict[str, dict[tuple[UUID, int], ShareLeader]] = {}
        self.acknowledged: Counter[int] = Counter()
        self.topics: dict[str, share_meters.ShareTopicMeter] = {}
        #: By group: how long share partitions took to load, and fetches to acquire records, in
        #: milliseconds; and of how many of a fetch's partitions in a hundred something was got.
        self.load_times = share_meters.Mean()
        self.acquire_times = share_meters.Mean()
        self.fetch_ratios = share_meters.Mean()
        #: How long writes of share-group state took, all under "".
        self.write_times = share_meters.Mean()
        #: Share fetches that wait now, and those that waited in vain.
        self.waiting_fetches = self.expired_fetches = 0
        self.dead_letters = DeadLetterMeter()
        self.dlq_rate_limit = DlqRateLimit(broker)
        self.delay_scanner = DelayScanner(broker, self)
        self.random = Random().random
        self.now_ms: Callable[[], int] = broker.clock.now_ms
        self._loop = asyncio.get_running_loop()
        #: This broker hands over what it leads.
        self.draining = False
        self._dirty: deque[ShareLeader] = deque()
        self._due: deque[ShareLeader] = deque()
        #: Share partitions that are still to be loaded, and how many were in this turn.
        self._to_load: deque[ShareLeader] = deque()
        self._loads = 0
        self._logged_loops = False
        self._settings: dict[str, ShareSettings] = {}
        self._settings_of: MetadataImage | None = None
        broker.metadata_cache.subscribe(self._configs_changed)
        broker.partitions.on_removed.append(self._partition_removed)
        broker.timers.every(IDLE_CHECK_MS, self._drop_idle)
        broker.groups.before_deleting(GroupType.SHARE, self._delete_group)
        broker.groups.on_effect(InitializeShareState, partial(members.initialize, broker))
        broker.groups.on_effect(MemberReassigned, partial(members.reassigned, broker))
        share_metrics.register(broker.metrics, self)
        Redrives(broker)

    # What leaders ask of the shell.

    def settings(self, group_id: str) -> ShareSettings:
        """The group's configs in force."""
        image = self._broker.image
        if image is not self._settings_of:
            self._settings, self._settings_of = {}, image
        found = self._settings.get(group_id)
        if found is None:
            config = image.group_config(group_id)
            found = self._settings[group_id] = ShareSettings(
                config["share.record.lock.duration.ms"],
                config["share.delivery.count.limit"],
                config["share.partition.max.record.locks"],
                config["share.isolation.level"] == "read_committed",
                config["share.renew.acknowledge.enable"],
                config["share.auto.offset.reset"],
                group_settings.backoff(config),
                config["share.delivery.paused"],
                image.features.get("share.version", 0) >= DEAD_LETTERS_FROM
                and bool(config["errors.deadletterqueue.topic.name"]),
                config["shoal.errors.deadletterqueue.flood.per.minute"],
                config["share.redelivery.backoff.max.ms"],
                group_settings.selection(config),
            )
            if found.selection is not None and found.selection.key_order:
                self._log_loops()
            if found.selection is not None and found.selection.delay_max_ms:
                self.delay_scanner.note(group_id)
        return found

    def _log_loops(self) -> None:
        """Say once by what the order of keys is computed, where a group has it."""
        if not self._logged_loops:
            self._logged_loops = True
            self._broker.log.info("a group has key order", loops=compiled.description())

    def _configs_changed(self, _image: MetadataImage, delta: MetadataDelta) -> None:
        """Tell share partitions of their group's configs: it may have been resumed, or its dead
        letters hold keys no longer."""
        for kind, name in delta.configs:
            if kind == ResourceType.GROUP:
                for leader in list(self.leaders.get(name, {}).values()):
                    leader.configured()

    def at(self, deadline_ms: int, call: Callable[[], None]) -> Timer:
        """A timer."""
        return self._broker.timers.at(deadline_ms, call)

    def dead_letters_of(self, leader: ShareLeader) -> DeadLetters:
        """What writes a new share partition's dead letters."""
        return DeadLetters(self._broker, leader)

    def wake(self, leader: ShareLeader) -> None:
        """Something of a share partition may have become available."""
        self._broker.purgatory.wake(leader.wake_key)

    def wake_soon(self, leader: ShareLeader) -> None:
        """Have `wake` called in the next turn of the loop."""
        self._loop.call_soon(self.wake, leader)

    def wake_later(self, leader: ShareLeader) -> None:
        """Have `wake` called after a pause: who is woken may ask at once for what was refused."""
        self._broker.timers.at(self.now_ms() + LOAD_AGAIN_MS, lambda: self.wake(leader))

    def flush_soon(self, leader: ShareLeader) -> None:
        """Have `flush` called at the end of this turn of the loop."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(leader)

    def _flush(self) -> None:
        # In the same turn, since every turn polls the sockets.
        self.state_coordinator.flush_after(self._next_dirty())
        if self._dirty:
            self._loop.call_soon(self._flush)

    def _next_dirty(self) -> Iterator[ShareLeader]:
        """Those with something to write, as many as one turn of the loop takes."""
        end = self._loop.time() + FLUSH_STEP_S
        while self._dirty:
            yield self._dirty.popleft()
            if self._loop.time() >= end:
                return

    def expire_soon(self, leader: ShareLeader) -> None:
        """Have `tick` called, in turns with everything else: many locks may end at once."""
        if not self._due:
            self._loop.call_soon(self._expire)
        self._due.append(leader)

    def _expire(self) -> None:
        end = self._loop.time() + EXPIRY_STEP_S
        while self._due and self._loop.time() < end:
            self._due.popleft().tick()
        if self._due:
            self._loop.call_soon(self._expire)

    # Share partitions come and go.

    def find(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | None:
        """A share partition that is loaded or loading."""
        group = self.leaders.get(group_id)
        return None if group is None else group.get((topic_id, index))

    def lead(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | Failure:
        """The share partition, loading if it was not loaded, or why it is not served here."""
        found, broker = self.find(group_id, topic_id, index), self._broker
        if found is not None:
            return _CUT_OFF if broker.replicas.is_cut_off(found.partition) else found
        if topic_id not in broker.image.topics_by_id:
            return Failure(ErrorCode.unknown_topic_id)
        partition = broker.partitions.get(topic_id, index)
        if partition is None:
            exists = 0 <= index < len(broker.image.topics_by_id[topic_id].partitions)
            return _GONE if exists else Failure(ErrorCode.unknown_topic_or_partition)
        if not partition.is_leader:
            return _GONE
        if broker.replicas.is_cut_off(partition):
            return _CUT_OFF
        leader = ShareLeader(self, ShareKey(group_id, topic_id, index), partition)
        self.leaders.setdefault(group_id, {})[(topic_id, index)] = leader
        partition.on_advance.append(leader.moved)
        self._load(leader)
        return leader if leader.phase is not Phase.DROPPED else leader.failure or _GONE

    def _load(self, leader: ShareLeader) -> None:
        """Load a share partition, now or in turns with everything else: a member may begin with
        hundreds."""
        if not self._loads:
            self._loop.call_soon(self._load_on)
        self._loads += 1
        if self._loads <= LOADS_MAX:
            leader.load()
        else:
            self._to_load.append(leader)

    def _load_on(self) -> None:
        waiting, self._loads = self._to_load, 0
        while waiting and self._loads < LOADS_MAX:
            self._loads += 1
            leader = waiting.popleft()
            if leader.phase is Phase.LOADING:
                leader.load()
        if self._loads:
            self._loop.call_soon(self._load_on)

    def unloaded(self) -> Iterator[tuple[str, Partition, int]]:
        """Yield share partitions that are led here and not loaded, as far as their state is here.

        Each is the group's id, the partition, and the lag as persisted, -1 where not known.
        """
        for _, shard in self.state_coordinator.shards():
            for key, start_offset, complete in shard.progress():
                partition = self._broker.partitions.get(key.topic_id, key.partition)
                if partition is None or not partition.is_leader:
                    continue
                if self.find(key.group_id, key.topic_id, key.partition) is None:
                    lag = max(0, partition.high_watermark - start_offset - complete)
                    yield key.group_id, partition, lag if complete >= 0 else -1

    def dropped(self, leader: ShareLeader) -> None:
        """A share partition is not served any more."""
        group = self.leaders.get(leader.key.group_id, {})
        tp = (leader.key.topic_id, leader.key.partition)
        if group.get(tp) is leader:
            del group[tp]
            if not group:
                del self.leaders[leader.key.group_id]
        if leader.moved in leader.partition.on_advance:
            leader.partition.on_advance.remove(leader.moved)

    def drop(self, group_id: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Their state was set anew or deleted: whoever fetches loads them again."""
        for topic_id, index in partitions:
            leader = self.find(group_id, topic_id, index)
            if leader is not None:
                leader.drop(Failure(ErrorCode.not_leader_or_follower))

    def _partition_removed(self, partition: Partition) -> None:
        for group in list(self.leaders.values()):
            leader = group.get(partition.key)
            if leader is not None:
                leader.drop(Failure(ErrorCode.unknown_topic_or_partition))

    def _drop_idle(self) -> None:
        for group_id, group in list(self.leaders.items()):
            if not self.sessions.members_of(group_id):
                for leader in list(group.values()):
                    # What waits behind a held key is known to a leader alone, and so is what
                    # is delayed or in back-off.
                    kept = (
                        leader.share.key_holders
                        or leader.share.backing_off
                        or group_id in self.delay_scanner
                    )
                    if leader.phase is Phase.ACTIVE and leader.is_idle and not kept:
                        leader.drop(Failure(ErrorCode.not_leader_or_follower))

    # Sessions.

    def open_session(
        self,
        peer: Peer,
        group_id: str,
        member_id: str,
        partitions: Iterable[tuple[UUID, int]],
        client_id: str = "",
    ) -> ShareSession:
        """Open a member's session, which ends with its connection. Raises
        SHARE_SESSION_LIMIT_REACHED."""
        self._broker.purgatory.wake(("share member", group_id, member_id))
        session = self.sessions.open(group_id, member_id, peer.connection_id, partitions, client_id)
        peer.on_close[("share session", group_id, member_id)] = lambda: self._connection_lost(
            session
        )
        return session

    async def drain(self) -> None:
        """Deliver nothing more, and give members a moment to settle what they hold: the next leader
        knows no locks, and would deliver those records a second time."""
        self.draining = True
        end = self._loop.time() + DRAIN_S
        while self._loop.time() < end and not self._is_drained():
            await asyncio.sleep(DRAIN_LOOK_S)

    def _is_drained(self) -> bool:
        return all(leader.is_idle for of in self.leaders.values() for leader in of.values())

    def close_session(
        self,
        group_id: str,
        member_id: str,
        peer: Peer | None = None,
        *,
        undelivered: bool = False,
    ) -> None:
        """End a member's session, with the fetches that wait for it, and release what the member
        holds; by the word of the member that none of it was processed, it is `undelivered`."""
        self.sessions.close(group_id, member_id)
        self._broker.purgatory.wake(("share member", group_id, member_id))
        if peer is not None:
            peer.on_close.pop(("share session", group_id, member_id), None)
        held = deque(
            (leader, locks)
            for leader in self.leaders.get(group_id, {}).values()
            if leader.phase is Phase.ACTIVE and (locks := leader.share.locks.of_member(member_id))
        )
        self._release(held, undelivered)

    def _release(self, held: deque[tuple[ShareLeader, list[int]]], undelivered: bool) -> None:
        """End locks, in turns with everything else: a member may hold a million records. They are
        told by number, for it may be back, and hold others, before the last is ended."""
        end = self._loop.time() + RELEASE_STEP_S
        while held:
            leader, locks = held.popleft()
            leader.release(locks, undelivered=undelivered)
            if self._loop.time() >= end:
                self._loop.call_soon(self._release, held, undelivered)
                break

    def _connection_lost(self, session: ShareSession) -> None:
        if self.sessions.get(session.group_id, session.member_id) is session:
            self.sessions.evictions_total += 1
            self.close_session(session.group_id, session.member_id)

    def topic(self, topic_id: UUID) -> share_meters.ShareTopicMeter | None:
        """The meter of a topic that exists."""
        topic = self._broker.image.topics_by_id.get(topic_id)
        return None if topic is None else self.meter(topic.name)

    def meter(self, topic: str) -> share_meters.ShareTopicMeter:
        """The meter of a topic by name."""
        meter = self.topics.get(topic)
        if meter is None:
            meter = self.topics[topic] = share_meters.ShareTopicMeter()
        return meter

    def unknown(self, topic_id: UUID, index: int) -> Failure:
        """Why records of a share partition that is not served cannot be acknowledged."""
        if topic_id not in self._broker.image.topics_by_id:
            return Failure(ErrorCode.unknown_topic_id)
        return Failure(ErrorCode.unknown_topic_or_partition)

    def count_acknowledged(self, batches: Sequence[AcknowledgementBatch]) -> None:
        """Note what was acknowledged, for metrics."""
        acknowledged = self.acknowledged
        accepted = accepted_records(batches)
        if accepted is not None:
            acknowledged[ACCEPT] += accepted
            return
        for first, last, types, *_ in batches:
            if len(types) == 1:
                acknowledged[types[0]] += last - first + 1
            else:
                for kind in AcknowledgeType:
                    if count := types.count(kind):
                        acknowledged[kind] += count

    # What the group coordinator and admins ask.

    def initialize(
        self,
        group_id: str,
        partitions: Mapping[UUID, Iterable[int]],
        state_epoch: int,
        start_offsets: Mapping[tuple[UUID, int], int] | None = None,
    ) -> asyncio.Future[Any]:
        """Begin the state of share partitions, at given offsets or where the group's policy says.
        The future gets those that are initialized, as frozensets by topic id."""
        return share_admin.initialize(self, group_id, partitions, state_epoch, start_offsets)

    async def _delete_group(self, group_id: str) -> None:
        await share_admin.delete_state(self._broker, self, group_id, None)


_GONE = Failure(ErrorCode.not_leader_or_follower)
_CUT_OFF = Failure(
    ErrorCode.not_leader_or_follower, "This broker is cut off from the cluster; another may lead."
)
