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

from itertools import islice
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import (
    CoordinatorRecord,
    CoordinatorResult,
    ProducerIdAndEpoch,
    RecordOrigin,
    Reply,
    Token,
)
from shoal.coordinator.group.classic.classic_group import ClassicGroup
from shoal.coordinator.group.consumer.consumer_group import ConsumerGroup
from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.key_ranges.key_slots import overlapping_slots
from shoal.coordinator.group.offsets import individual_commit, pending_ranges
from shoal.coordinator.group.offsets.commit_draft import CommitDraft
from shoal.coordinator.group.offsets.committed_offset import (
    OffsetAndMetadata,
    committed_record,
    is_of_another_topic,
    with_key_ranges,
)
from shoal.coordinator.group.offsets.deleted_topics import DeletedTopic, DeletedTopics
from shoal.coordinator.group.offsets.ordered_commits import OffsetsPort, OrderedCommits
from shoal.coordinator.group.offsets.pending_ranges import (
    GroupTopicPartition,
    PendingRanges,
    TransactionDelta,
)
from shoal.coordinator.group.offsets.requests import TopicQuery
from shoal.coordinator.group.records import THIS_RECORD, RecordType, encode_tombstone
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.consumer.consumer_group import ConsumerGroupMember
    from shoal.coordinator.group.groups import CommitCheck, Group, ShardContext
    from shoal.coordinator.group.offsets.individual_commit import KeyRangePositions
    from shoal.coordinator.group.offsets.requests import (
        CommitRequest,
        PartitionCommit,
        TopicCommit,
    )
    from shoal.protocol.responses import groups as responses

#: About the most tombstones that one step writes, in 10 ms, and the pause before the next step.
TOMBSTONES_MAX = 1_000
STEP_PAUSE_MS = 10
#: Since this version of TxnOffsetCommit, a group that does not exist and the epoch of a member that
#: is not the present one have errors of their own (KIP-1319).
TXN_NEWER_ERRORS_SINCE = 6
_EXPIRY: Key = ("offsets", "expiry")
#: Due soon while offsets of deleted topics are left.
_DELETED_TOPICS: Key = ("offsets", "deleted topics")
#: Due at once when a transaction with key ranges has committed.
_SETTLE: Key = ("offsets", "settle")
#: About the most bytes of records that one step settles, so that they fit into one batch.
_SETTLE_BYTES_MAX = 256 << 10


ByPartition = dict[int, OffsetAndMetadata]
ByTopic = dict[str, ByPartition]


class OffsetManager:
    """The offsets of all groups of one shard."""

    name = "offsets"

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._committed: dict[str, ByTopic] = {}
        #: Pending offsets of open transactions: producer id -> group -> offsets.
        self._pending: dict[int, dict[str, ByTopic]] = {}
        #: Group -> the producers with pending offsets in it.
        self._open: dict[str, dict[int, None]] = {}
        self.pending_ranges = PendingRanges()
        self.ordered = OrderedCommits(context, OffsetsPort(self._check, self._decide, self.get))
        self._is_loaded = False
        self._to_expire: list[str] = []
        self._deleted_topics = DeletedTopics()
        #: The offset after the last record of an offset that was replayed.
        self._end_offset = 0
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

    def get_hard_state(self) -> Any:
        return (self._committed, self._pending, self.pending_ranges.get_hard_state())

    # Decisions.

    def commit(self, request: CommitRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """OffsetCommit v2-10 and TxnOffsetCommit. Raises `ApiError` to refuse the request."""
        if request.is_ordered:
            return self.ordered.commit(request, now_ms, token)
        return self._decide(request, now_ms, token)

    def _decide(self, request: CommitRequest, now_ms: int, token: Token) -> CoordinatorResult:
        if request.is_individual:
            self._check_individual(request)
        group = self._find_group(request)
        check = None
        if group is not None:
            check = _check_member(group, request)
            if not request.is_transactional:
                group.on_offsets_committed(request.member_id, now_ms, self._context.deadlines)
        expire_ms = -1
        if request.retention_time_ms >= 0 and not request.is_transactional:
            expire_ms = now_ms + request.retention_time_ms
        draft = CommitDraft(request, check, now_ms, expire_ms)
        topics: list[responses.OffsetCommitResponseTopic] = []
        for topic in request.topics:
            answers = [self._commit_partition(draft, topic, p) for p in topic.partitions]
            topics.append({"name": topic.name, "topic_id": topic.topic_id, "partitions": answers})
        self.commits += len(draft.records)
        return CoordinatorResult(
            draft.records, (Reply(token, {"topics": topics}),), producer=request.producer
        )

    def _check(self, request: CommitRequest) -> None:
        """Raise `ApiError` unless the member may commit what a transaction has."""
        group = self._context.groups.find(request.group_id)
        check = _check_member(group, request)
        for topic in request.topics:
            for p in topic.partitions:
                if check is not None and (error := check(topic.name, topic.topic_id, p.partition)):
                    raise ApiError(error, _format_not_owned(request, topic, p))
                if p.key_ranges and not individual_commit.is_whole(p.key_ranges):
                    self._check_owner(request, topic, p)

    def _commit_partition(
        self, draft: CommitDraft, topic: TopicCommit, p: PartitionCommit
    ) -> responses.OffsetCommitResponsePartition:
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
        if current is not None and len(current.range_positions) > 1 and not member.shares:
            self.redone_records += individual_commit.count_finished_above_stable(
                current.range_positions
            )
        return ErrorCode.none

    def _commit_key_ranges(
        self, draft: CommitDraft, topic: TopicCommit, p: PartitionCommit, error: ErrorCode
    ) -> responses.OffsetCommitResponsePartition:
        """Commit one partition individually, unless there is an `error`. Returns its result."""
        stable_offset, message = -1, None
        try:
            if error is ErrorCode.offset_metadata_too_large:
                raise ApiError(error, "The metadata of the offset is too long. Shorten it.")
            if error:
                raise ApiError(error, _format_not_owned(draft.request, topic, p))
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
        commits = (p.key_ranges for topic in request.topics for p in topic.partitions)
        individual_commit.check_size(commits, self._context.settings)

    def _commit_individually(
        self, draft: CommitDraft, topic: TopicCommit, p: PartitionCommit
    ) -> int:
        """Add the record of an individual commit, unless it changes nothing. Returns the stable
        offset. Raises `ApiError`."""
        settings = self._context.settings
        commits = individual_commit.validate_commits(p.key_ranges, settings)
        if not individual_commit.is_whole(p.key_ranges):
            self._check_owner(draft.request, topic, p)
        group_partition = GroupTopicPartition(draft.request.group_id, topic.name, p.partition)
        producer = draft.request.producer
        self._check_not_pending(draft.request, group_partition, commits)
        current, own = self._find_current(group_partition, producer)
        if current is not None and is_of_another_topic(current, topic.topic_id):
            current = None
        committed = before = None if current is None else current.progress
        open_deltas = self.pending_ranges.get_open(group_partition)
        mine = None if producer is None else open_deltas.get(producer.producer_id)
        if mine is not None and current is not None:
            mine = mine if mine.record_offset > current.replaced_offset else None
        if mine is not None:
            mine_before = individual_commit.as_commits(mine.range_positions)
            before = individual_commit.add_commits(committed, mine_before, draft.now_ms)
        after = individual_commit.apply_commits(before, commits, draft.now_ms, settings)
        if after == before:
            self.repeated_commits += 1
        elif producer is None:
            replaced_at = THIS_RECORD
            if open_deltas:
                replaced_at = -1 if current is None else current.replaced_offset
            draft.add_range_positions(topic, p, after, replaced_at)
        elif own or individual_commit.is_whole(p.key_ranges):
            draft.add_range_positions(topic, p, after)
        else:
            range_positions = None if mine is None else mine.range_positions
            draft.add_in_transaction(
                topic, p, individual_commit.add_commits(range_positions, commits, draft.now_ms)
            )
        return individual_commit.get_stable_offset(after)

    def _find_current(
        self, group_partition: GroupTopicPartition, producer: ProducerIdAndEpoch | None
    ) -> tuple[OffsetAndMetadata | None, bool]:
        """Return the committed offset, or the newer one that the producer has pending, and whether
        it is that one."""
        current = self.get(*group_partition)
        if producer is None:
            return current, False
        pending = self._pending.get(producer.producer_id, {}).get(group_partition.group_id, {})
        own = pending.get(group_partition.topic, {}).get(group_partition.partition)
        if own is None or (current is not None and own.record_offset <= current.record_offset):
            return current, False
        return own, True

    def _check_not_pending(
        self,
        request: CommitRequest,
        group_partition: GroupTopicPartition,
        commits: Sequence[tuple[int, int, Any]],
    ) -> None:
        """Raise CONCURRENT_TRANSACTIONS if another transaction has committed these key ranges, and
        is not over."""
        mine = -1 if request.producer is None else request.producer.producer_id
        ranges = [(first, last) for first, last, _ in commits]
        conflicting_producers = [
            producer_id
            for producer_id in self._open.get(group_partition.group_id, ())
            if producer_id != mine and self._has_pending(producer_id, group_partition)
        ]
        conflicting_producers += [
            producer_id
            for producer_id, delta in self.pending_ranges.get_open(group_partition).items()
            if producer_id != mine and delta.has_overlap(ranges)
        ]
        if conflicting_producers:
            raise ApiError(
                ErrorCode.concurrent_transactions,
                f"Partition {group_partition.topic}-{group_partition.partition} has an offset in "
                "the open transaction "
                f"of producer {conflicting_producers[0]}. Repeat the commit once that transaction "
                "ends.",
            )
        if self.pending_ranges.is_to_settle(group_partition, mine):
            raise ApiError(
                ErrorCode.concurrent_transactions,
                f"The last transaction of producer {mine} is not stored in the offset of "
                f"{group_partition.topic}-{group_partition.partition} yet. Repeat the commit.",
            )

    def _has_pending(self, producer_id: int, group_partition: GroupTopicPartition) -> bool:
        topics = self._pending[producer_id].get(group_partition.group_id, {})
        return group_partition.partition in topics.get(group_partition.topic, {})

    def _check_owner(self, request: CommitRequest, topic: TopicCommit, p: PartitionCommit) -> None:
        """Raise STALE_MEMBER_EPOCH unless the member owns the key ranges that it commits."""
        group = self._context.groups.get(request.group_id)
        assert isinstance(group, ConsumerGroup)
        current = group.get_member(request.member_id).current
        owned = 0 if topic.topic_id is None else current.get_slots(topic.topic_id, p.partition)
        for first, last, *_ in p.key_ranges:
            if overlapping_slots(first, last) & ~owned:
                raise ApiError(
                    ErrorCode.stale_member_epoch,
                    f"Member {request.member_id} does not own the key range {first}-{last} of "
                    f"{topic.name}-{p.partition}. Commit ranges of the assignment in the last "
                    "heartbeat.",
                )

    def _find_group(self, request: CommitRequest) -> Group | None:
        """The group that commits; None for a new group without members ("simple")."""
        group = self._context.groups.get(request.group_id)
        if group is None and request.generation_id_or_member_epoch >= 0:
            since = TXN_NEWER_ERRORS_SINCE if request.is_transactional else 9
            if request.api_version >= since:
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
    ) -> responses.OffsetFetchResponseGroup:
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
            group_id in self._open or group_id in self.pending_ranges.get_group_ids()
        )
        answers: list[responses.OffsetFetchResponseTopics] = []
        for topic in topics:
            offsets = committed.get(topic.name, {})
            partitions = [
                _build_missing_response(p, ErrorCode.unstable_offset_commit)
                if unstable
                and self._is_unstable(GroupTopicPartition(group_id, topic.name, p), member)
                else _build_offset_response(
                    p, offsets.get(p), topic.topic_id, key_ranges_wanted=key_ranges_wanted
                )
                for p in topic.partitions
            ]
            answers.append(
                {"name": topic.name, "topic_id": topic.topic_id, "partitions": partitions}
            )
        response: responses.OffsetFetchResponseGroup = {"group_id": group_id, "topics": answers}
        response["error_code"] = ErrorCode.none
        if key_ranges_wanted:
            settings = self._context.settings
            response["ranges_max"] = settings.shoal_group_consumer_individual_commit_max_ranges
        return response

    def delete(
        self, group_id: str, topics: Sequence[tuple[str, Sequence[int]]], token: Token
    ) -> CoordinatorResult:
        """OffsetDelete (KIP-496). Raises `ApiError` if the group refuses it."""
        group = self._context.groups.find(group_id)
        group.check_offset_delete()
        records = []
        answers = []
        for name, partitions in topics:
            error = ErrorCode.none
            if group.is_subscribed_to(name):
                error = ErrorCode.group_subscribed_to_topic
            else:
                records += [
                    _build_offset_tombstone(group_id, name, p)
                    for p in partitions
                    if self.get(group_id, name, p)
                    or self._is_pending(GroupTopicPartition(group_id, name, p))
                ]
                for p in partitions:
                    records += self.pending_ranges.build_tombstones(
                        GroupTopicPartition(group_id, name, p)
                    )
            results = [{"partition_index": p, "error_code": error} for p in partitions]
            answers.append({"name": name, "partitions": results})
        response = {"error_code": ErrorCode.none, "topics": answers}
        self.deletions += len(records)
        return CoordinatorResult(records, (Reply(token, response),))

    def build_tombstones(self, group_id: str) -> tuple[list[CoordinatorRecord], bool]:
        """The tombstones of a group's offsets, pending ones included, and whether they are the last
        ones: a step has about `TOMBSTONES_MAX`."""
        every_key = (
            (name, p)
            for offsets in self._iterate_offsets(group_id)
            for name, partitions in offsets.items()
            for p in partitions
        )
        keys = dict.fromkeys(islice(every_key, TOMBSTONES_MAX))
        records = [_build_offset_tombstone(group_id, name, p) for name, p in keys]
        if next(every_key, None) is not None:
            return records, False
        places = {
            group_partition: None
            for group_partition, _, _ in self.pending_ranges.find_group_deltas(group_id)
        }
        for group_partition in places:
            records += self.pending_ranges.build_tombstones(group_partition)
        return records, True

    def get(self, group_id: str, topic: str, partition: int) -> OffsetAndMetadata | None:
        """A committed offset."""
        return self._committed.get(group_id, {}).get(topic, {}).get(partition)

    def _is_pending(self, group_partition: GroupTopicPartition) -> bool:
        return any(
            self._has_pending(producer_id, group_partition)
            for producer_id in self._open.get(group_partition.group_id, ())
        )

    def _is_unstable(
        self, group_partition: GroupTopicPartition, member: ConsumerGroupMember | None
    ) -> bool:
        """Whether an open transaction has an offset of the partition. For a `member` that owns a
        part of it, only its key ranges count."""
        if self._is_pending(group_partition):
            return True
        deltas = self.pending_ranges.get_open(group_partition).values()
        topic = self._context.image.topics.get(group_partition.topic)
        owned = 0
        if member is not None and topic is not None:
            owned = member.current.get_slots(topic.topic_id, group_partition.partition)
        if not owned:
            return bool(deltas)
        return any(
            overlapping_slots(first, last) & owned
            for delta in deltas
            for first, last in delta.ranges
        )

    def _iterate_offsets(self, group_id: str) -> Iterator[ByTopic]:
        yield self._committed.get(group_id, {})
        for producer_id in self._open.get(group_id, ()):
            yield self._pending[producer_id].get(group_id, {})

    def find_gaps(self) -> Iterator[OffsetAndMetadata]:
        """The committed offsets that have finished offsets above them."""
        for topics in self._committed.values():
            for partitions in topics.values():
                for offset in partitions.values():
                    if offset.range_positions and offset.finished_count:
                        yield offset

    # Time and metadata.

    def on_loaded(self, now_ms: int) -> None:
        self._is_loaded = True
        self._arm(now_ms + self._context.settings.offsets_retention_check_interval_ms)

    def _arm(self, at_ms: int) -> None:
        self._context.deadlines.set(_EXPIRY, at_ms)

    def on_deadline(self, key: Key, now_ms: int) -> CoordinatorResult:
        if self.ordered.is_deadline(key):
            return self.ordered.on_deadline(key, now_ms)
        if key == _DELETED_TOPICS:
            return self._delete_offsets_of_topics(now_ms)
        return self._settle() if key == _SETTLE else self._expire(now_ms)

    def _settle(self) -> CoordinatorResult:
        """Store in the offsets what transactions with key ranges have committed, and remove the
        records of these transactions.

        A partition waits for a pending offset: the new record would be newer than it.
        """
        records: list[CoordinatorRecord] = []
        size = 0
        ready = [
            entry
            for entry in self.pending_ranges.find_unsettled()
            if not self._is_pending(entry[0])
        ]
        for group_partition, producers in ready:
            if size > _SETTLE_BYTES_MAX:
                self._context.deadlines.set(_SETTLE, 0)
                break
            before = len(records)
            offset = self.get(*group_partition)
            if offset is not None and offset.is_sum:
                is_open = bool(self.pending_ranges.get_open(group_partition))
                records.append(committed_record(group_partition, offset, is_open=is_open))
            records += pending_ranges.build_settled_tombstones(group_partition, producers)
            size += sum(len(key) + len(value or b"") for key, value in records[before:])
        return CoordinatorResult(records)

    def _expire(self, now_ms: int) -> CoordinatorResult:
        """Delete offsets past their retention, and empty groups without offsets, in steps."""
        if not self._to_expire:
            self._to_expire = sorted(g.group_id for g in self._context.groups)
        records: list[CoordinatorRecord] = []
        while self._to_expire and (left := TOMBSTONES_MAX - len(records)) > 0:
            expired = self._expire_group(self._to_expire[-1], now_ms, left)
            records += expired
            if len(expired) < left:
                self._to_expire.pop()
        pause_ms = self._context.settings.offsets_retention_check_interval_ms
        if self._to_expire:
            pause_ms = STEP_PAUSE_MS
        self._arm(now_ms + pause_ms)
        return CoordinatorResult(records)

    def _expire_group(self, group_id: str, now_ms: int, count_max: int) -> list[CoordinatorRecord]:
        """Tombstones of a group's expired offsets, at most `count_max`, or else also of the group
        if no offset is left."""
        group = self._context.groups.get(group_id)
        if group is None:
            return []
        retention_ms = self._context.settings.offsets_retention_ms
        records: list[CoordinatorRecord] = []
        is_in_use = group_id in self._open or group_id in self.pending_ranges.get_group_ids()
        for name, partitions in self._committed.get(group_id, {}).items():
            subscribed = group.is_subscribed_to(name)
            for p, offset in partitions.items():
                base_ms = group.compute_expiry_base_ms(offset.commit_timestamp_ms)
                if offset.expire_timestamp_ms >= 0:
                    over = base_ms is not None and now_ms >= offset.expire_timestamp_ms
                else:
                    over = base_ms is not None and now_ms - base_ms >= retention_ms
                if not over or subscribed or self._is_open(GroupTopicPartition(group_id, name, p)):
                    is_in_use = True
                    continue
                records.append(_build_offset_tombstone(group_id, name, p))
                if len(records) == count_max:
                    self.expirations += count_max
                    return records
        self.expirations += len(records)
        if not is_in_use and group.is_empty and group.expires:
            records += group.build_tombstones()
        return records

    def _is_open(self, group_partition: GroupTopicPartition) -> bool:
        """Whether an open transaction has an offset or key ranges of the partition."""
        return self._is_pending(group_partition) or bool(
            self.pending_ranges.get_open(group_partition)
        )

    def on_metadata_changed(
        self, deleted: Sequence[tuple[str, UUID]], now_ms: int
    ) -> CoordinatorResult:
        """Delete the offsets of deleted topics, in steps."""
        deleted_ids = dict(deleted)
        groups = self._committed.keys() | self._open.keys() | self.pending_ranges.get_group_ids()
        for group_id in sorted(groups if deleted_ids else ()):
            names = {name for offsets in self._iterate_offsets(group_id) for name in offsets}
            deltas = self.pending_ranges.find_group_deltas(group_id)
            names |= {group_partition.topic for group_partition, _, _ in deltas}
            self._deleted_topics.add(
                DeletedTopic(group_id, name, deleted_ids[name], self._end_offset)
                for name in sorted(names & deleted_ids.keys())
            )
        if self._deleted_topics:
            self._context.deadlines.set(_DELETED_TOPICS, now_ms)
        return CoordinatorResult()

    def _delete_offsets_of_topics(self, now_ms: int) -> CoordinatorResult:
        records: list[CoordinatorRecord] = []
        for topic, indexes, is_last in self._deleted_topics.take(
            lambda topic: [
                offsets.get(topic.name, {}) for offsets in self._iterate_offsets(topic.group_id)
            ],
            TOMBSTONES_MAX,
        ):
            records += [_build_offset_tombstone(topic.group_id, topic.name, p) for p in indexes]
            for group_partition, producer_id, delta in (
                self.pending_ranges.find_group_deltas(topic.group_id) if is_last else ()
            ):
                is_of_topic = delta.topic_id in (None, topic.topic_id)
                if group_partition.topic == topic.name and is_of_topic:
                    records += pending_ranges.build_settled_tombstones(
                        group_partition, [producer_id]
                    )
        if self._deleted_topics:
            self._context.deadlines.set(_DELETED_TOPICS, now_ms + STEP_PAUSE_MS)
        return CoordinatorResult(records)

    # Replay.

    def _replay(
        self, key: dict[str, Any], value: dict[str, Any] | None, origin: RecordOrigin
    ) -> None:
        group_id, topic, partition = key["group"], key["topic"], key["partition"]
        self._end_offset = origin.offset + 1
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
        range_positions: KeyRangePositions = ()
        if value.get("key_ranges"):
            range_positions = individual_commit.from_record(value["offset"], value["key_ranges"])
        offset = OffsetAndMetadata(
            value["offset"],
            value.get("leader_epoch", -1),
            value["metadata"],
            value["commit_timestamp"],
            value.get("expire_timestamp", -1),
            value.get("topic_id"),
            origin.offset,
            range_positions,
            value.get("replaced_at", THIS_RECORD),
        )
        target = self._committed
        if origin.transactional:
            target = self._pending.setdefault(origin.producer_id, {})
            self._open.setdefault(group_id, {})[origin.producer_id] = None
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
                    current = self.get(group_id, topic, partition)
                    if current is None or offset.record_offset > current.record_offset:
                        by_topic = self._committed.setdefault(group_id, {})
                        by_topic.setdefault(topic, {})[partition] = offset
        self._end_key_ranges(producer_id, committed)
        self.ordered.on_transaction_ended(producer_id)

    def _end_key_ranges(self, producer_id: int, committed: bool) -> None:
        """Add the key ranges of a transaction to the offsets, or drop them."""
        for group_partition, delta in self.pending_ranges.end(producer_id, committed):
            current = self.get(*group_partition)
            if not committed:
                self._count_aborted(current, delta)
            elif (after := with_key_ranges(current, delta)) is not None:
                topics = self._committed.setdefault(group_partition.group_id, {})
                topics.setdefault(group_partition.topic, {})[group_partition.partition] = after
        self._settle_soon()

    def _settle_soon(self) -> None:
        if any(self.pending_ranges.find_unsettled()):
            self._context.deadlines.set(_SETTLE, 0)

    def _count_aborted(self, current: OffsetAndMetadata | None, delta: TransactionDelta) -> None:
        if current is not None and self._is_loaded:
            self.aborted_records += individual_commit.count_records_ahead(
                current.progress, delta.range_positions
            )

    def _close(self, group_id: str, producer_id: int) -> None:
        """Remove the producer from those with pending offsets in the group."""
        opened = self._open[group_id]
        del opened[producer_id]
        if not opened:
            del self._open[group_id]


def _check_member(group: Group, request: CommitRequest) -> CommitCheck | None:
    """Return the check of each partition that the member commits. Raises `ApiError` to refuse
    it."""
    try:
        return group.check_offset_commit(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id_or_member_epoch=request.generation_id_or_member_epoch,
            transactional=request.is_transactional,
            api_version=request.api_version,
        )
    except ApiError as error:
        if error.code is not ErrorCode.stale_member_epoch or not request.is_transactional:
            raise
        if request.api_version >= TXN_NEWER_ERRORS_SINCE:
            raise
        raise ApiError(ErrorCode.illegal_generation, error.message) from None


def _format_not_owned(request: CommitRequest, topic: TopicCommit, p: PartitionCommit) -> str:
    return (
        f"Member {request.member_id} has not owned {topic.name}-{p.partition} since epoch "
        f"{request.generation_id_or_member_epoch}. Commit with the epoch of the last heartbeat."
    )


def _build_offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return encode_tombstone(
        RecordType.OFFSET_COMMIT, group=group_id, topic=topic, partition=partition
    )


def _remove(offsets: dict[str, ByTopic], group_id: str, topic: str, partition: int) -> None:
    """Remove one offset, and the levels above it if they are empty."""
    topics = offsets.get(group_id, {})
    partitions = topics.get(topic, {})
    partitions.pop(partition, None)
    if not partitions:
        topics.pop(topic, None)
    if not topics:
        offsets.pop(group_id, None)


def _build_offset_response(
    partition: int,
    offset: OffsetAndMetadata | None,
    topic_id: UUID | None,
    *,
    key_ranges_wanted: bool,
) -> responses.OffsetFetchResponsePartitions:
    if offset is None or is_of_another_topic(offset, topic_id):
        return _build_missing_response(partition, ErrorCode.none)
    fetched: responses.OffsetFetchResponsePartitions = {
        "partition_index": partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": ErrorCode.none,
    }
    if key_ranges_wanted:
        fetched["key_ranges"] = list(individual_commit.to_wire(offset.progress))
    return fetched


def _build_missing_response(
    partition: int, error: ErrorCode
) -> responses.OffsetFetchResponsePartitions:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error,
    }
