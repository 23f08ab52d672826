"""Committed offsets: commit, fetch, delete, expire.

Hard state is the OffsetCommit records, which replay puts into an `OffsetStore`.

An offset belongs to the topic, by id, for which it was committed. If the topic was deleted and
created again, the old offset is ignored (KIP-848).

Members of consumer groups may also commit offsets individually and by key ranges. `RangeCommits`
has all of that.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import (
    CoordinatorRecord,
    CoordinatorResult,
    RecordOrigin,
    Reply,
    Token,
)
from shoal.coordinator.group.classic.classic_group import ClassicGroup
from shoal.coordinator.group.offsets import individual_commit
from shoal.coordinator.group.offsets.commit_draft import CommitDraft
from shoal.coordinator.group.offsets.committed_offset import (
    GroupTopicPartition,
    OffsetAndMetadata,
    is_of_another_topic,
)
from shoal.coordinator.group.offsets.deleted_topics import DeletedTopic, DeletedTopics
from shoal.coordinator.group.offsets.offset_store import OffsetStore
from shoal.coordinator.group.offsets.range_commits import RangeCommits
from shoal.coordinator.group.offsets.requests import (
    TXN_NEWER_ERRORS_SINCE,
    TopicQuery,
    check_member,
)
from shoal.coordinator.group.records import THIS_RECORD, RecordType, encode_tombstone
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.groups import Group, ShardContext
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
_EXPIRY: Key = ("offsets", "expiry")
#: Due soon while offsets of deleted topics are left.
_DELETED_TOPICS: Key = ("offsets", "deleted topics")


class OffsetManager:
    """The offsets of all groups of one shard."""

    name = "offsets"

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._store = OffsetStore()
        self.ranges = RangeCommits(context, self._store, self._decide)
        self._to_expire: list[str] = []
        self._deleted_topics = DeletedTopics()
        #: The offset after the last record of an offset that was replayed.
        self._end_offset = 0
        #: Offsets committed, expired and deleted since the shard was loaded, for metrics.
        self.commits = self.expirations = self.deletions = 0
        self.replays = {
            RecordType.OFFSET_COMMIT: self._replay,
            RecordType.LEGACY_OFFSET_COMMIT: self._replay,
            **self.ranges.replays,
        }

    def __len__(self) -> int:
        return len(self._store)

    def get_hard_state(self) -> Any:
        return (*self._store.get_hard_state(), self.ranges.pending.get_hard_state())

    # Decisions.

    def commit(self, request: CommitRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """OffsetCommit v2-10 and TxnOffsetCommit. Raises `ApiError` to refuse the request."""
        if request.is_ordered:
            return self.ranges.ordered.commit(request, now_ms, token)
        return self._decide(request, now_ms, token)

    def _decide(self, request: CommitRequest, now_ms: int, token: Token) -> CoordinatorResult:
        if request.is_individual:
            self.ranges.check_request(request)
        group = self._find_group(request)
        check = None
        if group is not None:
            check = check_member(group, request)
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
            return self.ranges.commit(draft, topic, p, error)
        if error is ErrorCode.none:
            error = self.ranges.check_plain(draft.request, topic, p)
        if error is ErrorCode.none:
            draft.add(topic, p, p.offset)
        return {"partition_index": p.partition, "error_code": error}

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
        committed = self._store.get_committed(group_id)
        if topics is None:
            topics = [TopicQuery(name, None, tuple(committed[name])) for name in committed]
        may_be_unstable = require_stable and self._has_open(group_id)
        range_member_id = member_id if key_ranges_wanted else None
        answers: list[responses.OffsetFetchResponseTopics] = []
        for topic in topics:
            offsets = committed.get(topic.name, {})
            partitions = [
                _build_missing_response(p, ErrorCode.unstable_offset_commit)
                if may_be_unstable
                and self._is_unstable(GroupTopicPartition(group_id, topic.name, p), range_member_id)
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
                    or self._store.is_pending(GroupTopicPartition(group_id, name, p))
                ]
                for p in partitions:
                    group_partition = GroupTopicPartition(group_id, name, p)
                    records += self.ranges.pending.build_tombstones(group_partition)
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
            for offsets in self._store.iterate_group(group_id)
            for name, partitions in offsets.items()
            for p in partitions
        )
        keys = dict.fromkeys(islice(every_key, TOMBSTONES_MAX))
        records = [_build_offset_tombstone(group_id, name, p) for name, p in keys]
        if next(every_key, None) is not None:
            return records, False
        return records + self.ranges.build_group_tombstones(group_id), True

    def get(self, group_id: str, topic: str, partition: int) -> OffsetAndMetadata | None:
        """A committed offset."""
        return self._store.get(GroupTopicPartition(group_id, topic, partition))

    def _has_open(self, group_id: str) -> bool:
        """Whether transactions of a group have offsets or key ranges."""
        return self._store.has_pending(group_id) or group_id in self.ranges.get_group_ids()

    def _is_open(self, group_partition: GroupTopicPartition) -> bool:
        """Whether an open transaction has an offset or key ranges of the partition."""
        return self._store.is_pending(group_partition) or self.ranges.is_open(group_partition)

    def _is_unstable(self, group_partition: GroupTopicPartition, member_id: str | None) -> bool:
        """Whether an open transaction has an offset of the partition, or key ranges that concern
        the member."""
        return self._store.is_pending(group_partition) or self.ranges.is_unstable(
            group_partition, member_id
        )

    # Time and metadata.

    def on_loaded(self, now_ms: int) -> None:
        self.ranges.on_loaded()
        self._arm(now_ms + self._context.settings.offsets_retention_check_interval_ms)

    def _arm(self, at_ms: int) -> None:
        self._context.deadlines.set(_EXPIRY, at_ms)

    def on_deadline(self, key: Key, now_ms: int) -> CoordinatorResult:
        if self.ranges.is_deadline(key):
            return self.ranges.on_deadline(key, now_ms)
        if key == _DELETED_TOPICS:
            return self._delete_offsets_of_topics(now_ms)
        return self._expire(now_ms)

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
        is_in_use = self._has_open(group_id)
        for name, partitions in self._store.get_committed(group_id).items():
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

    def on_metadata_changed(
        self, deleted: Sequence[tuple[str, UUID]], now_ms: int
    ) -> CoordinatorResult:
        """Delete the offsets of deleted topics, in steps."""
        deleted_ids = dict(deleted)
        group_ids = self._store.get_group_ids() | self.ranges.get_group_ids()
        for group_id in sorted(group_ids if deleted_ids else ()):
            names = {name for offsets in self._store.iterate_group(group_id) for name in offsets}
            names |= self.ranges.find_topics(group_id)
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
                offsets.get(topic.name, {}) for offsets in self._store.iterate_group(topic.group_id)
            ],
            TOMBSTONES_MAX,
        ):
            records += [_build_offset_tombstone(topic.group_id, topic.name, p) for p in indexes]
            if is_last:
                records += self.ranges.build_topic_tombstones(topic)
        if self._deleted_topics:
            self._context.deadlines.set(_DELETED_TOPICS, now_ms + STEP_PAUSE_MS)
        return CoordinatorResult(records)

    # Replay.

    def _replay(
        self, key: dict[str, Any], value: dict[str, Any] | None, origin: RecordOrigin
    ) -> None:
        group_partition = GroupTopicPartition(key["group"], key["topic"], key["partition"])
        self._end_offset = origin.offset + 1
        if value is None:
            self._store.remove(group_partition)
            self.ranges.settle_soon()
            return
        if self._context.groups.get(group_partition.group_id) is None:
            self._context.groups.add(ClassicGroup(group_partition.group_id))
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
        if origin.transactional:
            self._store.put_pending(origin.producer_id, group_partition, offset)
        else:
            self._store.put(group_partition, offset)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Commit or drop the pending offsets of a transaction, by its marker."""
        self._store.end_transaction(producer_id, committed)
        self.ranges.end_transaction(producer_id, committed)


def _build_offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return encode_tombstone(
        RecordType.OFFSET_COMMIT, group=group_id, topic=topic, partition=partition
    )


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
