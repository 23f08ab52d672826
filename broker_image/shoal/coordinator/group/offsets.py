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
the two records would hide what the other one added.
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
from shoal.coordinator.group import individual_commit
from shoal.coordinator.group.classic import ClassicGroup
from shoal.coordinator.group.consumer_group import ConsumerGroup
from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.individual_commit import KeyRange, Pieces, Progress
from shoal.coordinator.group.key_slots import touched
from shoal.coordinator.group.records import RecordType, record, tombstone
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.groups import CommitCheck, Context, Group
    from shoal.record.finished_offsets import FinishedOffsets

#: About the most tombstones that one step of expiry writes, and the pause before the next step.
EXPIRY_RECORDS_MAX = 1_000
EXPIRY_PAUSE_MS = 10
_EXPIRY: Key = ("offsets", "expiry")
#: The most bytes of finished offsets that the records of one request have together, so that they
#: fit into one batch.
_FINISHED_BYTES_MAX = 512 << 10


class Offset(NamedTuple):
    """A committed offset. `record_offset` is the offset of its record in the log."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    topic_id: UUID | None
    record_offset: int
    #: Positions of key ranges and finished offsets above them. Without any, all records below
    #: `offset` are finished, and no others.
    pieces: Pieces = ()

    @property
    def progress(self) -> Pieces:
        return self.pieces or individual_commit.whole(Progress(self.offset))

    @property
    def finished(self) -> FinishedOffsets:
        """Finished offsets above the position of the first key range."""
        return self.progress[0][2].finished

    @property
    def finished_count(self) -> int:
        """Number of finished offsets above the positions of all key ranges."""
        return sum(len(progress.finished) for _, _, progress in self.pieces)

    @property
    def gap_timestamp_ms(self) -> int:
        """When the oldest gap below finished offsets appeared; -1 without a gap."""
        ages = [p.gap_timestamp_ms for _, _, p in self.pieces if p.finished.count]
        return min(ages, default=-1)


class PartitionCommit(NamedTuple):
    """The commit of one partition. With `key_ranges` it is individual, and `offset` is ignored."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    key_ranges: Sequence[KeyRange] = ()


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

    @property
    def transactional(self) -> bool:
        return self.producer is not None

    @property
    def individual(self) -> bool:
        return any(p.key_ranges for topic in self.topics for p in topic.partitions)


class _CommitDraft:
    """The records of a commit that is being decided."""

    def __init__(
        self, request: CommitRequest, check: CommitCheck | None, now_ms: int, expire_ms: int
    ) -> None:
        self.request, self.check, self.now_ms, self.expire_ms = request, check, now_ms, expire_ms
        self.records: list[Record] = []
        self._finished_bytes = 0

    def add(
        self,
        topic: TopicCommit,
        p: PartitionCommit,
        offset: int,
        key_ranges: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Add the record of one partition."""
        value = {
            "offset": offset,
            "leader_epoch": p.leader_epoch,
            "metadata": p.metadata or "",
            "commit_timestamp": self.now_ms,
            "expire_timestamp": self.expire_ms,
            "topic_id": topic.topic_id,
            "key_ranges": key_ranges,
        }
        # Only version 1 has an expiry of its own, for clients before KIP-211.
        version = None if self.expire_ms < 0 else 1
        key = {"group": self.request.group_id, "topic": topic.name, "partition": p.partition}
        self.records.append(record(RecordType.OFFSET_COMMIT, key, value, version))

    def add_pieces(self, topic: TopicCommit, p: PartitionCommit, pieces: Pieces) -> None:
        """Add the record of an individual commit. Raises `ApiError` if the finished offsets do not
        fit into the batch."""
        key_ranges = individual_commit.on_wire(pieces)
        added = sum(len(stored["finished"]) for stored in key_ranges)
        if self._finished_bytes and self._finished_bytes + added > _FINISHED_BYTES_MAX:
            raise ApiError(
                ErrorCode.invalid_commit_offset_size,
                f"The partitions of the request have more than {_FINISHED_BYTES_MAX} bytes of "
                f"finished offsets. Commit {topic.name}-{p.partition} in another request.",
            )
        self._finished_bytes += added
        self.add(topic, p, individual_commit.stable_offset(pieces), key_ranges)


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
        self._to_expire: list[str] = []
        #: Offsets committed, expired and deleted since the shard was loaded, for metrics.
        self.commits = self.expirations = self.deletions = 0
        #: Individual commits of partitions in which everything was finished before, for metrics.
        self.repeated_commits = 0
        #: About the records that members without key ranges have read again, for metrics.
        self.redone_records = 0
        self.replays = {
            RecordType.OFFSET_COMMIT: self._replay,
            RecordType.LEGACY_OFFSET_COMMIT: self._replay,
        }

    def __len__(self) -> int:
        return sum(len(p) for topics in self._committed.values() for p in topics.values())

    def hard_state(self) -> Any:
        return (self._committed, self._pending)

    # Decisions.

    def commit(self, request: CommitRequest, now_ms: int, token: Token) -> Result:
        """OffsetCommit v2-10 and TxnOffsetCommit. Raises `ApiError` to refuse the request."""
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
        draft = _CommitDraft(request, check, now_ms, expire_ms)
        topics = []
        for topic in request.topics:
            answers = [self._commit_partition(draft, topic, p) for p in topic.partitions]
            topics.append({"name": topic.name, "topic_id": topic.topic_id, "partitions": answers})
        self.commits += len(draft.records)
        return Result(draft.records, (Reply(token, {"topics": topics}),), producer=request.producer)

    def _commit_partition(
        self, draft: _CommitDraft, topic: TopicCommit, p: PartitionCommit
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
        self, draft: _CommitDraft, topic: TopicCommit, p: PartitionCommit, error: ErrorCode
    ) -> dict[str, Any]:
        """Commit one partition individually, unless there is an `error`. Returns its result."""
        stable_offset, message = -1, None
        try:
            if error is ErrorCode.offset_metadata_too_large:
                raise ApiError(error, "The metadata of the offset is too long. Shorten it.")
            if error:
                raise ApiError(
                    error,
                    f"Member {draft.request.member_id} has not owned {topic.name}-{p.partition} "
                    f"since epoch {draft.request.generation_id_or_member_epoch}. Commit with the "
                    "epoch of the last heartbeat.",
                )
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
        self, draft: _CommitDraft, topic: TopicCommit, p: PartitionCommit
    ) -> int:
        """Add the record of an individual commit, unless it changes nothing. Returns the stable
        offset. Raises `ApiError`."""
        settings = self._context.settings
        commits = individual_commit.checked(p.key_ranges, settings)
        if not individual_commit.is_whole(p.key_ranges):
            self._check_owner(draft.request, topic, p)
        group_id, producer = draft.request.group_id, draft.request.producer
        current = self.get(group_id, topic.name, p.partition)
        for producer_id in self._open.get(group_id, ()):
            pending = self._pending[producer_id].get(group_id, {}).get(topic.name, {})
            if p.partition not in pending:
                continue
            if producer is None or producer_id != producer.producer_id:
                raise ApiError(
                    ErrorCode.concurrent_transactions,
                    f"Partition {topic.name}-{p.partition} has an offset in the open transaction "
                    f"of producer {producer_id}. Repeat the commit once that transaction ends.",
                )
            own = pending[p.partition]
            if current is None or own.record_offset > current.record_offset:
                current = own
        if current is not None and _of_another_topic(current, topic.topic_id):
            current = None
        before = None if current is None else current.progress
        after = individual_commit.committed(before, commits, draft.now_ms, settings)
        if after == before:
            self.repeated_commits += 1
        else:
            draft.add_pieces(topic, p, after)
        return individual_commit.stable_offset(after)

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
        committed = self._committed.get(group_id, {})
        if topics is None:
            topics = [TopicQuery(name, None, tuple(committed[name])) for name in committed]
        unstable = require_stable and group_id in self._open
        answers = []
        for topic in topics:
            offsets = committed.get(topic.name, {})
            partitions = [
                _unstable(p)
                if unstable and self._is_pending(group_id, topic.name, p)
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
                    if self.get(group_id, name, p) or self._is_pending(group_id, name, p)
                ]
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
        return [_offset_tombstone(group_id, name, p) for name, p in keys]

    def get(self, group_id: str, topic: str, partition: int) -> Offset | None:
        """A committed offset."""
        return self._committed.get(group_id, {}).get(topic, {}).get(partition)

    def _is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return any(
            partition in self._pending[producer_id].get(group_id, {}).get(topic, {})
            for producer_id in self._open.get(group_id, ())
        )

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
        self._arm(now_ms + self._context.settings.offsets_retention_check_interval_ms)

    def _arm(self, at_ms: int) -> None:
        self._context.deadlines.set(_EXPIRY, at_ms)

    def due(self, _key: Key, now_ms: int) -> Result:
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
        kept = group_id in self._open
        for name, partitions in self._committed.get(group_id, {}).items():
            subscribed = group.subscribes_to(name)
            for p, offset in partitions.items():
                base_ms = group.offset_expiry_base_ms(offset.commit_timestamp_ms)
                if offset.expire_timestamp_ms >= 0:
                    over = base_ms is not None and now_ms >= offset.expire_timestamp_ms
                else:
                    over = base_ms is not None and now_ms - base_ms >= retention_ms
                if over and not subscribed and not self._is_pending(group_id, name, p):
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
        for group_id in sorted(self._committed.keys() | self._open.keys() if gone else ()):
            keys = {
                (name, p): None
                for offsets in self._everywhere(group_id)
                for name, partitions in offsets.items()
                if name in gone
                for p, offset in partitions.items()
                if offset.topic_id in (None, gone[name])
            }
            records += [_offset_tombstone(group_id, name, p) for name, p in keys]
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

    def _close(self, group_id: str, producer_id: int) -> None:
        """Remove the producer from those with pending offsets in the group."""
        opened = self._open[group_id]
        del opened[producer_id]
        if not opened:
            del self._open[group_id]


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
    if offset is None or _of_another_topic(offset, topic_id):
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


def _of_another_topic(offset: Offset, topic_id: UUID | None) -> bool:
    """Whether both ids are known and differ: the topic was created again."""
    known = topic_id is not None and offset.topic_id is not None
    return known and topic_id != offset.topic_id


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
