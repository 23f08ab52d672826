"""Transactions whose TxnOffsetCommit waits until the records below their first ones are finished.

The requests wait in memory, unanswered, and nothing of them is stored meanwhile. `commit_order`
decides which may commit. It decides again after each record of the group: a commit or the end of
another transaction, or a member that joins, leaves or gives up key ranges. A coordinator that is
loaded has no requests: the old one refuses them, and clients repeat them.

A request stops waiting if its member is fenced or loses key ranges, if its producer's transaction
ends, if its connection closes, or after the time that it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.group.consumer.consumer_group import NO_SHARERS, ConsumerGroup
from shoal.coordinator.group.key_ranges import key_slots
from shoal.coordinator.group.offsets import commit_order, individual_commit
from shoal.coordinator.group.offsets.commit_order import (
    NO_OWNER,
    BlockedCommit,
    PartitionKeyRanges,
    TransactionCommit,
    WaitingTransaction,
)
from shoal.coordinator.group.offsets.committed_offset import (
    GroupTopicPartition,
    is_of_another_topic,
)
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.features import KEY_HASH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.groups import ShardContext
    from shoal.coordinator.group.offsets.committed_offset import OffsetAndMetadata
    from shoal.coordinator.group.offsets.requests import CommitRequest, PartitionCommit
    from shoal.protocol.responses import transactions as responses

#: Due at once when a request may have to be decided.
_DECIDE: Key = ("offsets", "order")
#: With a producer id, when its request has waited for its time.
_TIMEOUT = "order timeout"


class _WaitingRequest(NamedTuple):
    """A request that waits."""

    commit: CommitRequest
    token: Token
    waiting: WaitingTransaction
    began_ms: int


class OffsetsPort(NamedTuple):
    """What is needed of the shard's offsets."""

    #: Raises `ApiError` unless the member may commit what the request has.
    check: Callable[[CommitRequest], None]
    decide: Callable[[CommitRequest, int, Token], CoordinatorResult]
    get_offset: Callable[[GroupTopicPartition], OffsetAndMetadata | None]


class OrderedCommits:
    """The requests of one shard that wait, in the order in which they began to."""

    def __init__(self, context: ShardContext, offsets: OffsetsPort) -> None:
        self._context = context
        self._offsets = offsets
        #: By producer id.
        self._requests: dict[int, _WaitingRequest] = {}
        self._groups: set[str] = set()
        #: Producers whose transactions have ended.
        self._ended: dict[int, None] = {}
        #: Requests refused because they waited in a cycle or for too long, for metrics.
        self.refusals = 0

    def __len__(self) -> int:
        return len(self._requests)

    # Decisions.

    def commit(self, commit: CommitRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """Commit, or wait for the others. Raises `ApiError` to refuse the request."""
        assert commit.producer is not None
        waiting = self._to_waiting_transaction(commit)
        self._offsets.check(commit)
        if not self._requests:
            decision = commit_order.decide([waiting], self._get_partition)
            if decision.ready:
                return self._commit_request(commit, now_ms, token)
        producer_id = commit.producer.producer_id
        replies: list[Reply] = []
        before = self._requests.get(producer_id)
        began_ms = now_ms
        if before is not None:
            # It is repeated over another connection. It keeps its place among the others.
            began_ms = before.began_ms
            message = "The commit was repeated over another connection, which gets the answer."
            replies.append(_build_refusal(before, ErrorCode.concurrent_transactions, message))
        self._requests[producer_id] = _WaitingRequest(commit, token, waiting, began_ms)
        self._groups.add(commit.group_id)
        self._context.deadlines.set(
            _make_timeout_key(producer_id), now_ms + commit.order_timeout_ms
        )
        self._decide_soon()
        return CoordinatorResult((), replies)

    def on_deadline(self, key: Key, now_ms: int) -> CoordinatorResult:
        """Serve a deadline."""
        if key == _DECIDE:
            return self._decide(now_ms)
        producer_id = int(key[2])
        request = self._requests[producer_id]
        waiting = [waiting_request.waiting for waiting_request in self._requests.values()]
        blocked = commit_order.decide(waiting, self._get_partition).blocked
        blocked_commit = blocked.get(producer_id)
        if blocked_commit is None:  # It is decided in a moment.
            self._context.deadlines.set(key, now_ms + 1)
            self._decide_soon()
            return CoordinatorResult()
        self.refusals += 1
        reply = self._refuse(
            producer_id,
            ErrorCode.transaction_abortable,
            f"The commit has waited {now_ms - request.began_ms} ms for "
            f"{_describe_blocked_commit(blocked_commit)}. Abort "
            "the transaction, and repeat it. If this lasts, look at the members that hold the "
            "stable offset in `shoal groups describe`.",
        )
        return CoordinatorResult((), (reply,))

    @staticmethod
    def is_deadline(key: Key) -> bool:
        return key[1] in (_DECIDE[1], _TIMEOUT)

    def on_connection_lost(self, connection_id: str, token: Token) -> CoordinatorResult:
        """Forget the requests of a connection, which gets no answers any more."""
        lost = [p for p, r in self._requests.items() if r.commit.connection_id == connection_id]
        message = "The connection was closed."
        code = ErrorCode.network_exception
        replies = [self._refuse(producer_id, code, message) for producer_id in lost]
        return CoordinatorResult((), (*replies, Reply(token, {})))

    def _decide(self, now_ms: int) -> CoordinatorResult:
        """Answer what can be answered. One transaction commits at a time, as its records are a
        batch of their own."""
        replies = [*self._refuse_ended(), *self._refuse_invalid()]
        waiting = [request.waiting for request in self._requests.values()]
        decision = commit_order.decide(waiting, self._get_partition)
        for producer_id, blocked_commit in decision.refused.items():
            self.refusals += 1
            replies.append(
                self._refuse(
                    producer_id,
                    ErrorCode.transaction_abortable,
                    f"The commit would wait for {_describe_blocked_commit(blocked_commit)}, whose "
                    "commits wait for this "
                    "one. Abort the transaction, and repeat it with records of one partition.",
                )
            )
        if replies or len(decision.ready) > 1:
            self._decide_soon()
        if replies or not decision.ready:
            return CoordinatorResult((), replies)
        request = self._forget(decision.ready[0])
        try:
            return self._commit_request(request.commit, now_ms, request.token)
        except ApiError as error:
            return CoordinatorResult((), (_build_refusal(request, error.code, error.message),))

    def _refuse_ended(self) -> list[Reply]:
        ended, self._ended = self._ended, {}
        return [
            self._refuse(
                producer_id,
                ErrorCode.invalid_producer_epoch,
                "The transaction ended while its commit waited: it took too long, or another "
                "producer of the transactional id has started.",
            )
            for producer_id in ended
            if producer_id in self._requests
        ]

    def _refuse_invalid(self) -> list[Reply]:
        """Refuse the requests of members that must not commit any more."""
        replies = []
        for producer_id, request in list(self._requests.items()):
            try:
                self._offsets.check(request.commit)
            except ApiError as error:
                replies.append(self._refuse(producer_id, error.code, error.message))
        return replies

    def _commit_request(
        self, commit: CommitRequest, now_ms: int, token: Token
    ) -> CoordinatorResult:
        """Commit all partitions of a request; none if one of them is refused."""
        result = self._offsets.decide(commit, now_ms, token)
        (reply,) = result.replies
        rows = [row for topic in reply.response["topics"] for row in topic["partitions"]]
        refused = next((row for row in rows if row["error_code"]), None)
        if refused is None:
            return result
        detail = refused.get("individual_commit") or {}
        code, message = ErrorCode(refused["error_code"]), detail.get("error_message")
        return CoordinatorResult(
            (), (Reply(token, _build_refusal_response(commit, code, message)),)
        )

    def _refuse(self, producer_id: int, code: ErrorCode, message: str | None) -> Reply:
        return _build_refusal(self._forget(producer_id), code, message)

    def _forget(self, producer_id: int) -> _WaitingRequest:
        request = self._requests.pop(producer_id)
        self._context.deadlines.cancel(_make_timeout_key(producer_id))
        self._groups = {remaining.commit.group_id for remaining in self._requests.values()}
        return request

    # What changes a decision.

    def on_replayed(self, key: Mapping[str, Any]) -> None:
        """Decide again after a record of a group with waiting requests."""
        if self._groups and key.get("group", key.get("group_id")) in self._groups:
            self._decide_soon()

    def on_transaction_ended(self, producer_id: int) -> None:
        """Decide again after the end of a transaction, of which no request may wait any more."""
        if self._requests:
            if producer_id in self._requests:
                self._ended[producer_id] = None
            self._decide_soon()

    def _decide_soon(self) -> None:
        self._context.deadlines.set(_DECIDE, 0)

    # What a decision depends on.

    def _to_waiting_transaction(self, commit: CommitRequest) -> WaitingTransaction:
        """Return what the request waits with. Raises `ApiError`."""
        assert commit.producer is not None
        group = self._context.groups.get(commit.group_id)
        if not isinstance(group, ConsumerGroup) or not commit.member_id:
            raise ApiError(
                ErrorCode.invalid_request,
                "Only members of consumer groups (group.protocol=consumer) commit in the order of "
                f"a partition. Commit to group {commit.group_id} without first offsets.",
            )
        if commit.order_timeout_ms <= 0:
            raise ApiError(
                ErrorCode.invalid_request,
                f"A commit in the order of a partition cannot wait {commit.order_timeout_ms} ms. "
                "Set the time to a part of the transaction's timeout.",
            )
        commits = [
            _build_transaction_commit(
                GroupTopicPartition(commit.group_id, topic.name, p.partition), p
            )
            for topic in commit.topics
            for p in topic.partitions
        ]
        return WaitingTransaction(commit.producer.producer_id, commit.member_id, tuple(commits))

    def _get_partition(self, group_partition: GroupTopicPartition) -> PartitionKeyRanges:
        topic = self._context.image.topics.get(group_partition.topic)
        topic_id = None if topic is None else topic.topic_id
        offset = self._offsets.get_offset(group_partition)
        if offset is not None and is_of_another_topic(offset, topic_id):
            offset = None
        range_positions = individual_commit.NONE_COMMITTED if offset is None else offset.progress
        positions = [
            (first, last, progress.stable_offset) for first, last, progress in range_positions
        ]
        group = self._context.groups.get(group_partition.group_id)
        owners: list[tuple[int, int, str]] = []
        if isinstance(group, ConsumerGroup) and topic_id is not None:
            topic_partition = topic_id, group_partition.partition
            for member_id, slots in group.sharers.get(topic_partition, NO_SHARERS).items():
                owners += [(*key_range, member_id) for key_range in key_slots.to_ranges(slots)]
            if topic_partition in group.owners:
                owners.append((0, KEY_HASH_MAX, group.owners[topic_partition]))
        return PartitionKeyRanges(positions, owners)


def _build_transaction_commit(
    group_partition: GroupTopicPartition, p: PartitionCommit
) -> TransactionCommit:
    range_positions = tuple(r[:3] for r in p.key_ranges) or ((0, KEY_HASH_MAX, p.offset),)
    end = max(position for _, _, position in range_positions)
    if p.first_offset < commit_order.NO_RECORD or p.first_offset >= end:
        raise ApiError(
            ErrorCode.invalid_request,
            f"Offset {p.first_offset} cannot be the first one of a transaction that commits the "
            f"positions of {group_partition.topic}-{group_partition.partition} up to {end}. Name "
            "the lowest offset of "
            "its records.",
        )
    return TransactionCommit(group_partition, p.first_offset, range_positions)


def _make_timeout_key(producer_id: int) -> Key:
    return ("offsets", _TIMEOUT, str(producer_id))


def _describe_blocked_commit(blocked_commit: BlockedCommit) -> str:
    group_partition = blocked_commit.group_partition
    owners = sorted(blocked_commit.owners - {NO_OWNER})
    owner_text = f"members {', '.join(owners)}" if owners else "no member"
    return (
        f"key ranges of {group_partition.topic}-{group_partition.partition}, of {owner_text}, to "
        f"get to offset {blocked_commit.first_offset}"
    )


def _build_refusal(request: _WaitingRequest, code: ErrorCode, message: str | None) -> Reply:
    return Reply(request.token, _build_refusal_response(request.commit, code, message))


def _build_refusal_response(
    commit: CommitRequest, code: ErrorCode, message: str | None
) -> responses.TxnOffsetCommitResponse:
    """Return the answer that refuses all partitions."""
    detail: responses.TxnOffsetCommitIndividualCommit = {
        "stable_offset": -1,
        "error_message": message,
    }
    return {
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition_index": p.partition,
                        "error_code": code,
                        "individual_commit": detail,
                    }
                    for p in topic.partitions
                ],
            }
            for topic in commit.topics
        ]
    }
