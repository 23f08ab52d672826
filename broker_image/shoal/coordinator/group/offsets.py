"""Committed offsets: commit, fetch, delete, expire.

Hard state is the OffsetCommit records. An offset that was committed in a transaction is pending
until the transaction's marker is replayed. It then takes effect if its record has a higher offset
than the committed one: a plain commit may have overtaken it, and compaction keeps no order between
the two.

An offset belongs to the topic, by id, for which it was committed. If the topic was deleted and
created again, the old offset is ignored (KIP-848).

A member of a consumer group may also commit finished offsets above its position
(`individual_commit`). Such a commit adds to the state of the partition, so its record has all of
that state. While the partition has a pending offset of another transaction, it is refused: one of
the two records would hide what the other one added. Key ranges of a partition that transactions
commit are in records of their own, and only wait for the same key ranges (`pending_ranges`). On
request, transactions commit in the order of their partitions (`ordered_commits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.contract import (
    ProducerIdAndEpoch,
    Record,
    Replayed,
    Reply,
    Result,
    Token,
)
from shoal.coordinator.group import individual_commit, pending_ranges
from shoal.coordinator.group.classic import ClassicGroup
from shoal.coordinator.group.commit_draft import CommitDraft
from shoal.coordinator.group.commit_order import NO_RECORD
from shoal.coordinator.group.committed_offset import (
    Offset,
    of_another_topic,
    settled,
    with_key_ranges,
)
from shoal.coordinator.group.consumer_group import ConsumerGroup
from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.key_slots import touched
from shoal.coordinator.group.ordered_commits import Deciding, OrderedCommits
from shoal.coordinator.group.pending_ranges import Added, PendingRanges, Place
from shoal.coordinator.group.records import THIS_RECORD, RecordType, tombstone
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.consumer_group import Member
    from shoal.coordinator.group.groups import Context, Group
    from shoal.coordinator.group.individual_commit import KeyRange, Pieces

#: About the most tombstones that one step of expiry writes, and the pause before the next step.
EXPIRY_RECORDS_MAX = 1_000
EXPIRY_PAUSE_MS = 10
_EXPIRY: Key = ("offsets", "expiry")
#: Due at once when a transaction with key ranges has committed.
_SETTLE: Key = ("offsets", "settle")
#: About the most bytes of records that one step settles, so that they fit into one batch.
_SETTLE_BYTES_MAX = 256 << 10


class PartitionCommit(NamedTuple):
    """The commit of one partition. With `key_ranges` it is individual, and `offset` is ignored."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    key_ranges: Sequence[KeyRange] = ()
    #: The offset of the first record of a transaction that commits in the order of the partition.
    first_offset: int = NO_RECORD


class TopicCommit(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: Sequence[PartitionCommit]


class CommitRequest(NamedTuple):
    """OffsetCommit, or TxnOffsetCommit with a `producer`."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    generation_id_or_member_epoch: int
    topics: Sequence[TopicCommit]
    api_version: int
    retention_time_ms: int = -1
    producer: ProducerIdAndEpoch | None = None
    #: How long a transaction may wait for its turn, and the connection whose end ends that.
    order_timeout_ms: int = -1
    connection_id: str = ""

    @property
    def transactional(self) -> bool:
        return self.producer is not None

    @property
    def individual(self) -> bool:
        return any(p.key_ranges for topic in self.topics for p in topic.partitions)

    @property
    def ordered(self) -> bool:
        """Whether it waits for its turn in the order of a partition (`ordered_commits`)."""
        return self.transactional and any(
            p.first_offset != NO_RECORD for topic in self.topics for p in topic.partitions
        )


class TopicQuery(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: Sequence[int]


ByPartition = dict[int, Offset]
ByTopic = dict[str, ByPartition]


class Offsets:
    """The offsets of all groups of one shard."""

    name = "offsets"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._committed: dict[str, ByTopic] = {}
        #: Pending offsets of open transactions: producer id -> group -> offsets.
        self._pending: dict[int, dict[str, ByTopic]] = {}
        #: Group -> the producers with pending offsets in it.
        self._open: dict[str, dict[int, None]] = {}
        self.pending_ranges = PendingRanges()
        self.ordered = OrderedCommits(context, Deciding(self._check, self._decide, self.get))
        self._is_loaded = False
        self._to_expire: list[str] = []
        #: Offsets committed, expired and deleted since the shard was loaded, for metrics.
        self.commits = self.expirations = self.deletions = 0
        #: Individual commits of partitions in which everything was finished before, for metrics.
        self.repeated_commits = 0
        #: About the records that members without key ranges have read again, for metrics.
        self.redone_records = 0
        #: About the records that aborted transactions had finished by key ranges, for metrics.
        self.aborted_records = 0
        self.replays = {
            RecordType.OFFSET_COMMIT: self._replay,
            RecordType.LEGACY_OFFSET_COMMIT: self._replay,
            RecordType.KEY_RANGES_IN_TRANSACTION: self.pending_ranges.replay,
        }

    def __len__(self) -> int:
        return sum(len(p) for topics in self._committed.values() for p in topics.values())

    def hard_state(self) -> Any:
        return (self._committed, self._pending, self.pending_ranges.hard_state())

    # Decisions.

    def commit(self, request: CommitRequest, now_ms: int, token: Token) -> Result:
        """OffsetCommit v2-10 and TxnOffsetCommit. Raises `ApiError` to refuse the request."""
        if request.ordered:
            return self.ordered.commit(request, now_ms, token)
        return self._decide(request, now_ms, token)

    def _decide(self, request: CommitRequest, now_ms: int, token: Token) -> Result:
        if request.individual:
            self._check_individual(request)
        group = self._group_of(request)
        check = None
        if group is not None:
            check = group.check_offset_commit(
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                generation_id_or_member_epoch=request.generation_id_or_member_epoch,
                transactional=request.transactional,
                api_version=request.api_version,
            )
            if not request.transactional:
                group.offsets_committed(request.member_id, now_ms, self._context.deadlines)
        expire_ms = -1
        if request.retention_time_ms >= 0 and not request.transactional:
            expire_ms = now_ms + request.retention_time_ms
        draft = CommitDraft(request, check, now_ms, expire_ms)
        topics = []
        for topic in request.topics:
            answers = [self._commit_partition(draft, topic, p) for p in topic.partitions]
            topics.append({"name": topic.name, "topic_id": topic.topic_id, "partitions": answers})
        self.commits += len(draft.records)
        return Result(draft.records, (Reply(token, {"topics": topics}),), producer=request.producer)

    def _check(self, request: CommitRequest) -> None:
        """Raise `ApiError` unless the member may commit what a transaction has."""
        group = self._context.groups.find(request.group_id)
        check = group.check_offset_commit(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id_or_member_epoch=request.generation_id_or_member_epoch,
            transactional=True,
            api_version=request.api_version,
        )
        for topic in request.topics:
            for p in topic.partitions:
                if check is not None and (error := check(topic.name, topic.topic_id, p.partition)):
                    raise ApiError(error, _not_owned(request, topic, p))
                if p.key_ranges and not individual_commit.is_whole(p.key_ranges):
                    self._check_owner(request, topic, p)

    def _commit_partition(
        self, draft: CommitDraft, topic: TopicCommit, p: PartitionCommit
    ) -> dict[str, Any]:
        """Add the record of one partition to the draft. Returns its result of the response."""
        error = ErrorCode.none
        if len(p.metadata or "") > self._context.settings.offset_metadata_max_bytes:
            error = ErrorCode.offset_metadata_too_large
        elif draft.check is not None:
            error = draft.check(topic.name, topic.topic_id, p.partition)
        if p.key_ranges:
            return self._commit_key_ranges(draft, topic, p, error)
        if error is ErrorCode.none:
            error = self._check_plain(draft.request, topic, p)
        if error is ErrorCode.none:
            draft.add(topic, p, p.offset)
        return {"partition_index": p.partition, "error_code": error}

    def _check_plain(
        self, request: CommitRequest, topic: TopicCommit, p: PartitionCommit
    ) -> ErrorCode:
        """Refuse a commit of a partition of which other members have key ranges: it would replace
        their positions.

        Count what a member without key ranges reads again. It started at the stable offset, and its
        first commit replaces the positions of key ranges.
        """
        group = self._context.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup) or topic.topic_id is None:
            return ErrorCode.none
        member = group.members.get(request.member_id)
        if member is None:
            return ErrorCode.none
        if group.is_shared_by_others((topic.topic_id, p.partition), member):
            classic = member.classic is not None
            return ErrorCode.illegal_generation if classic else ErrorCode.stale_member_epoch
        current = self.get(request.group_id, topic.name, p.partition)
        if current is not None and len(current.pieces) > 1 and not member.shares:
            self.redone_records += individual_commit.finished_above_stable(current.pieces)
        return ErrorCode.none

    def _commit_key_ranges(
        self, draft: CommitDraft, topic: TopicCommit, p: PartitionCommit, error: ErrorCode
    ) -> dict[str, Any]:
        """Commit one partition individually, unless there is an `error`. Returns its result."""
        stable_offset, message = -1, None
        try:
            if error is ErrorCode.offset_metadata_too_large:
                raise ApiError(error, "The metadata of the offset is too long. Shorten it.")
            if error:
                raise ApiError(error, _not_owned(draft.request, topic, p))
            stable_offset = self._commit_individually(draft, topic, p)
        except ApiError as refused:
            error, message = refused.code, refused.message
        return {
            "partition_index": p.partition,
            "error_code": error,
            "individual_commit": {"stable_offset": stable_offset, "error_message": message},
        }

    def _check_individual(self, request: CommitRequest) -> None:
        """Raise `ApiError` unless a member of a consumer group commits, and not too many ranges."""
        group = self._context.groups.get(request.group_id)
        if group is None or group.type is not GroupType.CONSUMER:
            kind = "does not exist" if group is None else f"is a {group.type} group"
            raise ApiError(
                ErrorCode.group_id_not_found,
                f"Group {request.group_id} {kind}. Individual commits need a member of a consumer "
                "group (group.protocol=consumer).",
            )
        if not request.member_id or request.generation_id_or_member_epoch < 0:
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"The commit names no member of group {request.group_id}. Join the group, and "
                "commit with the member's id and epoch.",
            )
        individual = [p for topic in request.topics for p in topic.partitions if p.key_ranges]
        individual_commit.check_size([p.key_ranges for p in individual], self._context.settings)

    def _commit_individually(
        self, draft: CommitDraft, topic: TopicCommit, p: PartitionCommit
    ) -> int:
        """Add the record of an individual commit, unless it changes nothing. Returns the stable
        offset. Raises `ApiError`."""
        settings = self._context.settings
        commits = individual_commit.checked(p.key_ranges, settings)
        if not individual_commit.is_whole(p.key_ranges):
            self._check_owner(draft.request, topic, p)
        place = Place(draft.request.group_id, topic.name, p.partition)
        producer = draft.request.producer
        self._check_not_pending(draft.request, place, commits)
        current, own = self._current(place, producer)
        if current is not None and of_another_topic(current, topic.topic_id):
            current = None
        committed = before = None if current is None else current.progress
        added = self.pending_ranges.open_at(place)
        mine = None if producer is None else added.get(producer.producer_id)
        if mine is not None and current is not None:
            mine = mine if mine.record_offset > current.replaced_offset else None
        if mine is not None:
            mine_before = individual_commit.as_commits(mine.pieces)
            before = individual_commit.added(committed, mine_before, draft.now_ms)
        after = individual_commit.committed(before, commits, draft.now_ms, settings)
        if after == before:
            self.repeated_commits += 1
        elif producer is None:
            replaced_at = THIS_RECORD
            if added:
                replaced_at = -1 if current is None else current.replaced_offset
            draft.add_pieces(topic, p, after, replaced_at)
        elif own or individual_commit.is_whole(p.key_ranges):
            draft.add_pieces(topic, p, after)
        else:
            pieces = None if mine is None else mine.pieces
            draft.add_in_transaction(
                topic, p, individual_commit.added(pieces, commits, draft.now_ms)
            )
        return individual_commit.stable_offset(after)

    def _current(
        self, place: Place, producer: ProducerIdAndEpoch | None
    ) -> tuple[Offset | None, bool]:
        """Return the committed offset, or the newer one that the producer has pending, and whether
        it is that one."""
        current = self.get(*place)
        if producer is None:
            return current, False
        pending = self._pending.get(producer.producer_id, {}).get(place.group_id, {})
        own = pending.get(place.topic, {}).get(place.partition)
        if own is None or (current is not None and own.record_offset <= current.record_offset):
            return current, False
        return own, True

    def _check_not_pending(
        self, request: CommitRequest, place: Place, commits: Sequence[tuple[int, int, Any]]
    ) -> None:
        """Raise CONCURRENT_TRANSACTIONS if another transaction has committed these key ranges, and
        is not over."""
        mine = -1 if request.producer is None else request.producer.producer_id
        ranges = [(first, last) for first, last, _ in commits]
        others = [
            producer_id
            for producer_id in self._open.get(place.group_id, ())
            if producer_id != mine and self._has_pending(producer_id, place)
        ]
        others += [
            producer_id
            for producer_id, added in self.pending_ranges.open_at(place).items()
            if producer_id != mine and added.overlaps(ranges)
        ]
        if others:
            raise ApiError(
                ErrorCode.concurrent_transactions,
                f"Partition {place.topic}-{place.partition} has an offset in the open transaction "
                f"of producer {others[0]}. Repeat the commit once that transaction ends.",
            )
        if self.pending_ranges.is_to_settle(place, mine):
            raise ApiError(
                ErrorCode.concurrent_transactions,
                f"The last transaction of producer {mine} is not stored in the offset of "
                f"{place.topic}-{place.partition} yet. Repeat the commit.",
            )

    def _has_pending(self, producer_id: int, place: Place) -> bool:
        topics = self._pending[producer_id].get(place.group_id, {})
        return place.partition in topics.get(place.topic, {})

    def _check_owner(self, request: CommitRequest, topic: TopicCommit, p: PartitionCommit) -> None:
        """Raise STALE_MEMBER_EPOCH unless the member owns the key ranges that it commits."""
        group = self._context.groups.get(request.group_id)
        assert isinstance(group, ConsumerGroup)
        current = group.member(request.member_id).current
        owned = 0 if topic.topic_id is None else current.slots_of(topic.topic_id, p.partition)
        for first, last, *_ in p.key_ranges:
            if touched(first, last) & ~owned:
                raise ApiError(
                    ErrorCode.stale_member_epoch,
                    f"Member {request.member_id} does not own the key range {first}-{last} of "
                    f"{topic.name}-{p.partition}. Commit ranges of the assignment in the last "
                    "heartbeat.",
                )

    def _group_of(self, request: CommitRequest) -> Group | None:
        """The group that commits; None for a new group without members ("simple")."""
        group = self._context.groups.get(request.group_id)
        if group is None and request.generation_id_or_member_epoch >= 0:
            if request.api_version >= 9 and not request.transactional:
                return self._context.groups.find(request.group_id)
            raise ApiError(
                ErrorCode.illegal_generation, f"Group {request.group_id} does not exist."
            )
        return group

    def fetch(
        self,
        group_id: str,
        topics: Sequence[TopicQuery] | None,
        *,
        member_id: str | None,
        member_epoch: int,
        require_stable: bool,
        key_ranges_wanted: bool = False,
    ) -> Mapping[str, Any]:
        """One group of an OffsetFetch; without `topics`, all of its offsets.

        With `require_stable` an offset that is pending in a transaction is UNSTABLE (KIP-447).
        With `key_ranges_wanted` the response has the finished offsets above the committed ones.
        Raises `ApiError` for a refused member. A group that does not exist has no offsets.
        """
        group = self._context.groups.get(group_id)
        if group is not None:
            group.check_offset_fetch(member_id, member_epoch)
        # A member with key ranges asks for those that it owns.
        member = None
        if key_ranges_wanted and isinstance(group, ConsumerGroup) and member_id:
            member = group.members.get(member_id)
        committed = self._committed.get(group_id, {})
        if topics is None:
            topics = [TopicQuery(name, None, tuple(committed[name])) for name in committed]
        unstable = require_stable and (
            group_id in self._open or group_id in self.pending_ranges.groups()
        )
        answers = []
        for topic in topics:
            offsets = committed.get(topic.name, {})
            partitions = [
                _unstable(p)
                if unstable and self._is_unstable(Place(group_id, topic.name, p), member)
                else _fetched(
                    p, offsets.get(p), topic.topic_id, key_ranges_wanted=key_ranges_wanted
                )
                for p in topic.partitions
            ]
            answers.append(
                {"name": topic.name, "topic_id": topic.topic_id, "partitions": partitions}
            )
        response = {"group_id": group_id, "topics": answers, "error_code": ErrorCode.none}
        if key_ranges_wanted:
            settings = self._context.settings
            response["ranges_max"] = settings.shoal_group_consumer_individual_commit_max_ranges
        return response

    def delete(
        self, group_id: str, topics: Sequence[tuple[str, Sequence[int]]], token: Token
    ) -> Result:
        """OffsetDelete (KIP-496). Raises `ApiError` if the group refuses it."""
        group = self._context.groups.find(group_id)
        group.check_offset_delete()
        records = []
        answers = []
        for name, partitions in topics:
            error = ErrorCode.none
            if group.subscribes_to(name):
                error = ErrorCode.group_subscribed_to_topic
            else:
                records += [
                    _offset_tombstone(group_id, name, p)
                    for p in partitions
                    if self.get(group_id, name, p) or self._is_pending(Place(group_id, name, p))
                ]
                for p in partitions:
                    records += self.pending_ranges.tombstones(Place(group_id, name, p))
            found = [{"partition_index": p, "error_code": error} for p in partitions]
            answers.append({"name": name, "partitions": found})
        response = {"error_code": ErrorCode.none, "topics": answers}
        self.deletions += len(records)
        return Result(records, (Reply(token, response),))

    def tombstones(self, group_id: str) -> list[Record]:
        """The tombstones of all offsets of a group, pending ones included."""
        keys = {
            (name, p): None
            for offsets in self._everywhere(group_id)
            for name, partitions in offsets.items()
            for p in partitions
        }
        records = [_offset_tombstone(group_id, name, p) for name, p in keys]
        places = {place: None for place, _, _ in self.pending_ranges.of_group(group_id)}
        for place in places:
            records += self.pending_ranges.tombstones(place)
        return records

    def get(self, group_id: str, topic: str, partition: int) -> Offset | None:
        """A committed offset."""
        return self._committed.get(group_id, {}).get(topic, {}).get(partition)

    def _is_pending(self, place: Place) -> bool:
        return any(
            self._has_pending(producer_id, place)
            for producer_id in self._open.get(place.group_id, ())
        )

    def _is_unstable(self, place: Place, member: Member | None) -> bool:
        """Whether an open transaction has an offset of the partition. For a `member` that owns a
        part of it, only its key ranges count."""
        if self._is_pending(place):
            return True
        added = self.pending_ranges.open_at(place).values()
        topic = self._context.image.topics.get(place.topic)
        owned = 0
        if member is not None and topic is not None:
            owned = member.current.slots_of(topic.topic_id, place.partition)
        if not owned:
            return bool(added)
        return any(touched(first, last) & owned for one in added for first, last in one.ranges)

    def _everywhere(self, group_id: str) -> Iterator[ByTopic]:
        yield self._committed.get(group_id, {})
        for producer_id in self._open.get(group_id, ()):
            yield self._pending[producer_id].get(group_id, {})

    def gaps(self) -> Iterator[Offset]:
        """The committed offsets that have finished offsets above them."""
        for topics in self._committed.values():
            for partitions in topics.values():
                for offset in partitions.values():
                    if offset.pieces and offset.finished_count:
                        yield offset

    # Time and metadata.

    def loaded(self, now_ms: int) -> None:
        self._is_loaded = True
        self._arm(now_ms + self._context.settings.offsets_retention_check_interval_ms)

    def _arm(self, at_ms: int) -> None:
        self._context.deadlines.set(_EXPIRY, at_ms)

    def due(self, key: Key, now_ms: int) -> Result:
        if self.ordered.is_deadline(key):
            return self.ordered.due(key, now_ms)
        return self._settle() if key == _SETTLE else self._expire(now_ms)

    def _settle(self) -> Result:
        """Store in the offsets what transactions with key ranges have committed, and remove the
        records of these transactions.

        A partition waits for a pending offset: the new record would be newer than it.
        """
        records: list[Record] = []
        size = 0
        ready = [
            found for found in self.pending_ranges.unsettled() if not self._is_pending(found[0])
        ]
        for place, producers in ready:
            if size > _SETTLE_BYTES_MAX:
                self._context.deadlines.set(_SETTLE, 0)
                break
            before = len(records)
            offset = self.get(*place)
            if offset is not None and offset.is_sum:
                is_open = bool(self.pending_ranges.open_at(place))
                records.append(settled(place, offset, is_open=is_open))
            records += pending_ranges.removed(place, producers)
            size += sum(len(key) + len(value or b"") for key, value in records[before:])
        return Result(records)

    def _expire(self, now_ms: int) -> Result:
        """Delete offsets past their retention, and empty groups without offsets.

        A step writes about `EXPIRY_RECORDS_MAX` tombstones at most, so that it stays short.
        """
        if not self._to_expire:
            self._to_expire = sorted(g.group_id for g in self._context.groups)
        records: list[Record] = []
        while self._to_expire and len(records) < EXPIRY_RECORDS_MAX:
            records += self._expired(self._to_expire.pop(), now_ms)
        pause_ms = self._context.settings.offsets_retention_check_interval_ms
        if self._to_expire:
            pause_ms = EXPIRY_PAUSE_MS
        self._arm(now_ms + pause_ms)
        return Result(records)

    def _expired(self, group_id: str, now_ms: int) -> list[Record]:
        """Tombstones of a group's expired offsets, and of the group if no offset is left."""
        group = self._context.groups.get(group_id)
        if group is None:
            return []
        retention_ms = self._context.settings.offsets_retention_ms
        records = []
        kept = group_id in self._open or group_id in self.pending_ranges.groups()
        for name, partitions in self._committed.get(group_id, {}).items():
            subscribed = group.subscribes_to(name)
            for p, offset in partitions.items():
                base_ms = group.offset_expiry_base_ms(offset.commit_timestamp_ms)
                if offset.expire_timestamp_ms >= 0:
                    over = base_ms is not None and now_ms >= offset.expire_timestamp_ms
                else:
                    over = base_ms is not None and now_ms - base_ms >= retention_ms
                place = Place(group_id, name, p)
                pending = self._is_pending(place) or self.pending_ranges.open_at(place)
                if over and not subscribed and not pending:
                    records.append(_offset_tombstone(group_id, name, p))
                else:
                    kept = True
        self.expirations += len(records)
        if not kept and group.is_empty and group.expires:
            records += group.tombstones()
        return records

    def metadata_changed(self, deleted: Sequence[tuple[str, UUID]], _now_ms: int) -> Result:
        """Delete the offsets of deleted topics."""
        gone = dict(deleted)
        records: list[Record] = []
        groups = self._committed.keys() | self._open.keys() | self.pending_ranges.groups()
        for group_id in sorted(groups if gone else ()):
            keys = {
                (name, p): None
                for offsets in self._everywhere(group_id)
                for name, partitions in offsets.items()
                if name in gone
                for p, offset in partitions.items()
                if offset.topic_id in (None, gone[name])
            }
            records += [_offset_tombstone(group_id, name, p) for name, p in keys]
            for place, producer_id, added in self.pending_ranges.of_group(group_id):
                if place.topic in gone and added.topic_id in (None, gone[place.topic]):
                    records += pending_ranges.removed(place, [producer_id])
        return Result(records)

    # Replay.

    def _replay(self, key: dict[str, Any], value: dict[str, Any] | None, at: Replayed) -> None:
        group_id, topic, partition = key["group"], key["topic"], key["partition"]
        if value is None:
            _remove(self._committed, group_id, topic, partition)
            for producer_id in list(self._open.get(group_id, ())):
                _remove(self._pending[producer_id], group_id, topic, partition)
                if group_id not in self._pending[producer_id]:
                    self._close(group_id, producer_id)
            self._settle_soon()
            return
        if self._context.groups.get(group_id) is None:
            self._context.groups.add(ClassicGroup(group_id))
        pieces: Pieces = ()
        if value.get("key_ranges"):
            pieces = individual_commit.from_record(value["offset"], value["key_ranges"])
        offset = Offset(
            value["offset"],
            value.get("leader_epoch", -1),
            value["metadata"],
            value["commit_timestamp"],
            value.get("expire_timestamp", -1),
            value.get("topic_id"),
            at.offset,
            pieces,
            value.get("replaced_at", THIS_RECORD),
        )
        target = self._committed
        if at.transactional:
            target = self._pending.setdefault(at.producer_id, {})
            self._open.setdefault(group_id, {})[at.producer_id] = None
        target.setdefault(group_id, {}).setdefault(topic, {})[partition] = offset

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Commit or drop the pending offsets of a transaction, by its marker."""
        pending = self._pending.pop(producer_id, {})
        for group_id, topics in pending.items():
            self._close(group_id, producer_id)
            if not committed:
                continue
            for topic, partitions in topics.items():
                for partition, offset in partitions.items():
                    there = self.get(group_id, topic, partition)
                    if there is None or offset.record_offset > there.record_offset:
                        by_topic = self._committed.setdefault(group_id, {})
                        by_topic.setdefault(topic, {})[partition] = offset
        self._end_key_ranges(producer_id, committed)
        self.ordered.ended(producer_id)

    def _end_key_ranges(self, producer_id: int, committed: bool) -> None:
        """Add the key ranges of a transaction to the offsets, or drop them."""
        for place, added in self.pending_ranges.end(producer_id, committed):
            current = self.get(*place)
            if not committed:
                self._count_aborted(current, added)
            elif (after := with_key_ranges(current, added)) is not None:
                topics = self._committed.setdefault(place.group_id, {})
                topics.setdefault(place.topic, {})[place.partition] = after
        self._settle_soon()

    def _settle_soon(self) -> None:
        if any(self.pending_ranges.unsettled()):
            self._context.deadlines.set(_SETTLE, 0)

    def _count_aborted(self, current: Offset | None, added: Added) -> None:
        if current is not None and self._is_loaded:
            self.aborted_records += individual_commit.records_ahead(current.progress, added.pieces)

    def _close(self, group_id: str, producer_id: int) -> None:
        """Remove the producer from those with pending offsets in the group."""
        opened = self._open[group_id]
        del opened[producer_id]
        if not opened:
            del self._open[group_id]


def _not_owned(request: CommitRequest, topic: TopicCommit, p: PartitionCommit) -> str:
    return (
        f"Member {request.member_id} has not owned {topic.name}-{p.partition} since epoch "
        f"{request.generation_id_or_member_epoch}. Commit with the epoch of the last heartbeat."
    )


def _offset_tombstone(group_id: str, topic: str, partition: int) -> Record:
    return tombstone(RecordType.OFFSET_COMMIT, group=group_id, topic=topic, partition=partition)


def _remove(offsets: dict[str, ByTopic], group_id: str, topic: str, partition: int) -> None:
    """Remove one offset, and the levels above it if they are empty."""
    topics = offsets.get(group_id, {})
    partitions = topics.get(topic, {})
    partitions.pop(partition, None)
    if not partitions:
        topics.pop(topic, None)
    if not topics:
        offsets.pop(group_id, None)


def _fetched(
    partition: int, offset: Offset | None, topic_id: UUID | None, *, key_ranges_wanted: bool
) -> Mapping[str, Any]:
    if offset is None or of_another_topic(offset, topic_id):
        return _no_offset(partition, ErrorCode.none)
    fetched = {
        "partition_index": partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": ErrorCode.none,
    }
    if key_ranges_wanted:
        fetched["key_ranges"] = list(individual_commit.on_wire(offset.progress))
    return fetched


def _unstable(partition: int) -> Mapping[str, Any]:
    return _no_offset(partition, ErrorCode.unstable_offset_commit)


def _no_offset(partition: int, error: ErrorCode) -> Mapping[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error,
    }
