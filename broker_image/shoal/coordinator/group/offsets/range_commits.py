"""What individual commits and key ranges add to the committed offsets of a shard.

A member of a consumer group may commit finished offsets above its position (`individual_commit`).
Such a commit adds to the state of the partition, so its record has all of that state. While the
partition has a pending offset of another transaction, it is refused, because one of the two records
would hide what the other one added. Key ranges of a partition that transactions commit are in
records of their own, and only wait for the same key ranges (`pending_ranges`). On request,
transactions commit in the order of their partitions (`ordered_commits`).

`OffsetManager` calls `RangeCommits` where it decides, replays or deletes; nothing else of Kafka's
offsets depends on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import CoordinatorRecord, CoordinatorResult
from shoal.coordinator.group.consumer.consumer_group import ConsumerGroup
from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.key_ranges.key_slots import overlapping_slots
from shoal.coordinator.group.offsets import individual_commit, pending_ranges
from shoal.coordinator.group.offsets.committed_offset import (
    GroupTopicPartition,
    is_of_another_topic,
)
from shoal.coordinator.group.offsets.ordered_commits import OffsetsPort, OrderedCommits
from shoal.coordinator.group.offsets.pending_ranges import PendingRanges, TransactionDelta
from shoal.coordinator.group.offsets.requests import check_member
from shoal.coordinator.group.records import THIS_RECORD, RecordType
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shoal.coordinator.contract import ProducerIdAndEpoch, Token
    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.groups import ShardContext
    from shoal.coordinator.group.offsets.commit_draft import CommitDraft
    from shoal.coordinator.group.offsets.committed_offset import OffsetAndMetadata
    from shoal.coordinator.group.offsets.deleted_topics import DeletedTopic
    from shoal.coordinator.group.offsets.offset_store import OffsetStore
    from shoal.coordinator.group.offsets.requests import (
        CommitRequest,
        PartitionCommit,
        TopicCommit,
    )
    from shoal.protocol.responses import groups as responses

#: Due at once when a transaction with key ranges has committed.
_SETTLE: Key = ("offsets", "settle")
#: About the most bytes of records that one step settles, so that they fit into one batch.
_SETTLE_BYTES_MAX = 256 << 10


class RangeCommits:
    """Individual commits of one shard. `decide` decides a commit of the offsets."""

    def __init__(
        self,
        context: ShardContext,
        store: OffsetStore,
        decide: Callable[[CommitRequest, int, Token], CoordinatorResult],
    ) -> None:
        self._context = context
        self._store = store
        self._is_loaded = False
        self.pending = PendingRanges()
        self.ordered = OrderedCommits(
            context, OffsetsPort(self._check_transaction, decide, store.get)
        )
        self.replays = {RecordType.KEY_RANGES_IN_TRANSACTION: self.pending.replay}
        #: Individual commits of partitions in which everything was finished before, for metrics.
        self.repeated_commits = 0
        #: About the records that members without key ranges have read again, for metrics.
        self.redone_records = 0
        #: About the records that aborted transactions had finished by key ranges, for metrics.
        self.aborted_records = 0

    # Decisions.

    def check_request(self, request: CommitRequest) -> None:
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

    def check_plain(
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
        current = self._store.get(GroupTopicPartition(request.group_id, topic.name, p.partition))
        if current is not None and len(current.range_positions) > 1 and not member.shares:
            self.redone_records += individual_commit.count_finished_above_stable(
                current.range_positions
            )
        return ErrorCode.none

    def commit(
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
        current, is_own = self._find_current(group_partition, producer)
        if current is not None and is_of_another_topic(current, topic.topic_id):
            current = None
        committed = before = None if current is None else current.progress
        open_deltas = self.pending.get_open(group_partition)
        own_delta = None if producer is None else open_deltas.get(producer.producer_id)
        if own_delta is not None and current is not None:
            own_delta = own_delta if own_delta.record_offset > current.replaced_offset else None
        if own_delta is not None:
            own_before = individual_commit.as_commits(own_delta.range_positions)
            before = individual_commit.add_commits(committed, own_before, draft.now_ms)
        after = individual_commit.apply_commits(before, commits, draft.now_ms, settings)
        if after == before:
            self.repeated_commits += 1
        elif producer is None:
            replaced_at = THIS_RECORD
            if open_deltas:
                replaced_at = -1 if current is None else current.replaced_offset
            draft.add_range_positions(topic, p, after, replaced_at)
        elif is_own or individual_commit.is_whole(p.key_ranges):
            draft.add_range_positions(topic, p, after)
        else:
            range_positions = None if own_delta is None else own_delta.range_positions
            draft.add_in_transaction(
                topic, p, individual_commit.add_commits(range_positions, commits, draft.now_ms)
            )
        return individual_commit.get_stable_offset(after)

    def _find_current(
        self, group_partition: GroupTopicPartition, producer: ProducerIdAndEpoch | None
    ) -> tuple[OffsetAndMetadata | None, bool]:
        """Return the committed offset, or the newer one that the producer has pending, and whether
        it is that one."""
        current = self._store.get(group_partition)
        if producer is None:
            return current, False
        pending = self._store.get_pending(producer.producer_id, group_partition)
        if pending is None:
            return current, False
        if current is not None and pending.record_offset <= current.record_offset:
            return current, False
        return pending, True

    def _check_not_pending(
        self,
        request: CommitRequest,
        group_partition: GroupTopicPartition,
        commits: Sequence[tuple[int, int, Any]],
    ) -> None:
        """Raise CONCURRENT_TRANSACTIONS if another transaction has committed these key ranges, and
        is not over."""
        own_id = -1 if request.producer is None else request.producer.producer_id
        ranges = [(first, last) for first, last, _ in commits]
        conflicting_producers = [
            producer_id
            for producer_id in self._store.find_pending_producers(group_partition)
            if producer_id != own_id
        ]
        conflicting_producers += [
            producer_id
            for producer_id, delta in self.pending.get_open(group_partition).items()
            if producer_id != own_id and delta.has_overlap(ranges)
        ]
        if conflicting_producers:
            raise ApiError(
                ErrorCode.concurrent_transactions,
                f"Partition {group_partition.topic}-{group_partition.partition} has an offset in "
                "the open transaction "
                f"of producer {conflicting_producers[0]}. Repeat the commit once that transaction "
                "ends.",
            )
        if self.pending.is_to_settle(group_partition, own_id):
            raise ApiError(
                ErrorCode.concurrent_transactions,
                f"The last transaction of producer {own_id} is not stored in the offset of "
                f"{group_partition.topic}-{group_partition.partition} yet. Repeat the commit.",
            )

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

    def _check_transaction(self, request: CommitRequest) -> None:
        """Raise `ApiError` unless the member may commit what a transaction has."""
        group = self._context.groups.find(request.group_id)
        check = check_member(group, request)
        for topic in request.topics:
            for p in topic.partitions:
                if check is not None and (error := check(topic.name, topic.topic_id, p.partition)):
                    raise ApiError(error, _format_not_owned(request, topic, p))
                if p.key_ranges and not individual_commit.is_whole(p.key_ranges):
                    self._check_owner(request, topic, p)

    # Queries.

    def is_unstable(self, group_partition: GroupTopicPartition, member_id: str | None) -> bool:
        """Return whether an open transaction has key ranges of the partition. For a member that
        owns a part of it, only its own key ranges count."""
        deltas = self.pending.get_open(group_partition).values()
        owned = self._get_owned_slots(group_partition, member_id) if deltas and member_id else 0
        if not owned:
            return bool(deltas)
        return any(
            overlapping_slots(first, last) & owned
            for delta in deltas
            for first, last in delta.ranges
        )

    def _get_owned_slots(self, group_partition: GroupTopicPartition, member_id: str) -> int:
        """Return the slots of a partition that the member owns, as bits."""
        group = self._context.groups.get(group_partition.group_id)
        topic = self._context.image.topics.get(group_partition.topic)
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        if member is None or topic is None:
            return 0
        return member.current.get_slots(topic.topic_id, group_partition.partition)

    def is_open(self, group_partition: GroupTopicPartition) -> bool:
        """Return whether an open transaction has key ranges of the partition."""
        return bool(self.pending.get_open(group_partition))

    def get_group_ids(self) -> set[str]:
        """Return the groups with key ranges in transactions that are open or to settle."""
        return self.pending.get_group_ids()

    def find_topics(self, group_id: str) -> set[str]:
        """Return the topics of which transactions have key ranges."""
        return {
            group_partition.topic
            for group_partition, _, _ in self.pending.find_group_deltas(group_id)
        }

    def find_gaps(self) -> Iterator[OffsetAndMetadata]:
        """Yield the committed offsets that have finished offsets above them."""
        for offset in self._store.iterate_committed():
            if offset.range_positions and offset.finished_count:
                yield offset

    # Deletion.

    def build_group_tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """Return what removes the key ranges of a group from all transactions."""
        group_partitions = dict.fromkeys(
            group_partition for group_partition, _, _ in self.pending.find_group_deltas(group_id)
        )
        return [
            record
            for group_partition in group_partitions
            for record in self.pending.build_tombstones(group_partition)
        ]

    def build_topic_tombstones(self, topic: DeletedTopic) -> list[CoordinatorRecord]:
        """Return what removes the key ranges of a deleted topic from all transactions."""
        records: list[CoordinatorRecord] = []
        for group_partition, producer_id, delta in self.pending.find_group_deltas(topic.group_id):
            is_of_topic = delta.topic_id in (None, topic.topic_id)
            if group_partition.topic == topic.name and is_of_topic:
                records += pending_ranges.build_settled_tombstones(group_partition, [producer_id])
        return records

    # Time and replay.

    def on_loaded(self) -> None:
        self._is_loaded = True

    def is_deadline(self, key: Key) -> bool:
        return key == _SETTLE or self.ordered.is_deadline(key)

    def on_deadline(self, key: Key, now_ms: int) -> CoordinatorResult:
        return self._settle() if key == _SETTLE else self.ordered.on_deadline(key, now_ms)

    def _settle(self) -> CoordinatorResult:
        """Store in the offsets what transactions with key ranges have committed, and remove the
        records of these transactions.

        A partition waits for a pending offset: the new record would be newer than it.
        """
        records: list[CoordinatorRecord] = []
        size = 0
        ready = [
            entry for entry in self.pending.find_unsettled() if not self._store.is_pending(entry[0])
        ]
        for group_partition, producers in ready:
            if size > _SETTLE_BYTES_MAX:
                self._context.deadlines.set(_SETTLE, 0)
                break
            before = len(records)
            offset = self._store.get(group_partition)
            if offset is not None and offset.is_sum:
                is_open = self.is_open(group_partition)
                records.append(
                    pending_ranges.build_sum_record(group_partition, offset, is_open=is_open)
                )
            records += pending_ranges.build_settled_tombstones(group_partition, producers)
            size += sum(len(key) + len(value or b"") for key, value in records[before:])
        return CoordinatorResult(records)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Add the key ranges of a transaction to the offsets, or drop them, by its marker."""
        for group_partition, delta in self.pending.end(producer_id, committed):
            current = self._store.get(group_partition)
            if not committed:
                self._count_aborted(current, delta)
            elif (after := pending_ranges.add_delta(current, delta)) is not None:
                self._store.put(group_partition, after)
        self.settle_soon()
        self.ordered.on_transaction_ended(producer_id)

    def settle_soon(self) -> None:
        """Settle what transactions have committed and no pending offset holds up."""
        if any(self.pending.find_unsettled()):
            self._context.deadlines.set(_SETTLE, 0)

    def _count_aborted(self, current: OffsetAndMetadata | None, delta: TransactionDelta) -> None:
        if current is not None and self._is_loaded:
            self.aborted_records += individual_commit.count_records_ahead(
                current.progress, delta.range_positions
            )


def _format_not_owned(request: CommitRequest, topic: TopicCommit, p: PartitionCommit) -> str:
    return (
        f"Member {request.member_id} has not owned {topic.name}-{p.partition} since epoch "
        f"{request.generation_id_or_member_epoch}. Commit with the epoch of the last heartbeat."
    )
