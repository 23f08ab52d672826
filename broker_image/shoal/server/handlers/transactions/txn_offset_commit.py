"""TxnOffsetCommit: commit offsets in a transaction (KIP-98, KIP-447); by topic id since version 6
(KIP-1319).

Since version 5 the request adds the group's partition to the transaction. Before version 5
AddOffsetsToTxn must have added it, which is verified (KIP-890).

A request of Shoal's client may ask for the order of a partition. Its answer then waits in the
group's shard (`coordinator.group.offsets.ordered_commits`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import CoordinatorResult, ProducerIdAndEpoch, Token
from shoal.coordinator.group.offsets import individual_commit
from shoal.coordinator.group.offsets.commit_order import NO_RECORD
from shoal.coordinator.group.offsets.requests import CommitRequest, PartitionCommit, TopicCommit
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.coordinators import groups
from shoal.server.coordinators.transactions import Errors, is_open, to_write_error
from shoal.server.handlers import authorization
from shoal.server.handlers.groups import individual_commits
from shoal.server.handlers.groups.offset_commit import find_topic
from shoal.transaction.shard import ProducerIdentity

if TYPE_CHECKING:
    from shoal.coordinator.group.shard import GroupShard
    from shoal.protocol.responses import transactions as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

LOADING_SINCE = 2
ABORTABLE_SINCE = 4
IMPLICIT_SINCE = 5
TOPIC_IDS_SINCE = 6


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.TxnOffsetCommitResponse]:
    results, commits = _check_partitions(broker, request)
    if individual_commits.has_key_ranges(commits):
        return asyncio.ensure_future(_commit_individually(broker, request, results, commits))
    return _enlist(broker, request, results, commits)


async def _commit_individually(
    broker: Broker,
    request: Request,
    results: list[responses.TxnOffsetCommitResponseTopic],
    commits: list[TopicCommit],
) -> responses.TxnOffsetCommitResponse:
    accepted, refused = await individual_commits.filter_within_log(broker, commits)
    for result in results:
        result["partitions"] = [*result["partitions"], *refused.get(result["name"], ())]
    return await individual_commits.await_body(_enlist(broker, request, results, accepted))


def _enlist(
    broker: Broker,
    request: Request,
    results: list[responses.TxnOffsetCommitResponseTopic],
    commits: list[TopicCommit],
) -> BodyOrFuture[responses.TxnOffsetCommitResponse]:
    """Commit once the group's partition belongs to the transaction."""
    body = request.body
    if not commits:
        return {"topics": results}
    index = broker.groups.find_partition(body.group_id)
    partition = None if index is None else broker.partitions.find_by_name(groups.TOPIC, index)
    if index is None or partition is None:
        raise ApiError(ErrorCode.coordinator_not_available)
    if not partition.is_leader:
        raise ApiError(ErrorCode.not_coordinator)
    writer = ProducerIdentity(body.transactional_id, body.producer_id, body.producer_epoch)
    answer: asyncio.Future[responses.TxnOffsetCommitResponse] = broker.loop.create_future()

    def on_enlisted(errors: Errors) -> None:
        error = next(iter(errors.values()), ErrorCode.none)
        producer = partition.log.producers.get(writer.producer_id)
        if producer is not None and writer.producer_epoch < producer.epoch:
            error = ErrorCode.invalid_producer_epoch
        if error:
            code = to_write_error(error, abortable=request.version >= ABORTABLE_SINCE)
            _finish(answer, refuse(request, code, None))
        else:
            _commit(broker, request, results, commits, answer)

    if is_open(partition.log, writer.producer_id, writer.producer_epoch):
        on_enlisted({})
    else:
        implicit = request.version >= IMPLICIT_SINCE
        broker.transactions.enlist(
            writer, [(groups.TOPIC, index)], implicit=implicit, callback=on_enlisted
        )
    return answer


def _check_partitions(
    broker: Broker, request: Request
) -> tuple[list[responses.TxnOffsetCommitResponseTopic], list[TopicCommit]]:
    """Return the topics of the response, with the partitions that are refused, and the offsets to
    commit."""
    results: list[responses.TxnOffsetCommitResponseTopic] = []
    commits: list[TopicCommit] = []
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    by_id = request.version >= TOPIC_IDS_SINCE
    for requested in request.body.topics:
        topic, missing = find_topic(broker.image, requested, by_id)
        name = requested.name if not by_id else "" if topic is None else topic.name
        if name and not permits(name):
            topic, missing = None, ErrorCode.topic_authorization_failed
        indexes = range(len(topic.partitions)) if topic is not None else range(0)
        accepted = [p for p in requested.partitions if p.partition_index in indexes]
        refused: list[responses.TxnOffsetCommitResponsePartition] = [
            {"partition_index": p.partition_index, "error_code": missing}
            for p in requested.partitions
            if p.partition_index not in indexes
        ]
        results.append(
            {
                "name": name,
                "topic_id": getattr(requested, "topic_id", None),
                "partitions": refused,
            }
        )
        if topic is not None and accepted:
            commits.append(
                TopicCommit(name, topic.topic_id, [_parse_partition(p) for p in accepted])
            )
    return results, commits


def _commit(
    broker: Broker,
    request: Request,
    results: list[responses.TxnOffsetCommitResponseTopic],
    commits: list[TopicCommit],
    answer: asyncio.Future[responses.TxnOffsetCommitResponse],
) -> None:
    """Commit on the group's shard, and add its results to those of partitions that do not exist."""
    body = request.body
    commit = CommitRequest(
        body.group_id,
        getattr(body, "member_id", ""),
        getattr(body, "group_instance_id", None),
        getattr(body, "generation_id", -1),
        commits,
        request.version,
        producer=ProducerIdAndEpoch(body.producer_id, body.producer_epoch),
        order_timeout_ms=getattr(body, "order_timeout_ms", -1),
        connection_id=request.peer.connection_id,
    )
    if commit.is_ordered:
        broker.groups.watch_ordered_commits(request.peer, body.group_id)

    def decide(shard: GroupShard, now_ms: int, token: Token) -> CoordinatorResult:
        return shard.offsets.commit(commit, now_ms, token)

    def on_decided(reply: Any) -> None:
        if isinstance(reply, ApiError):
            _finish(answer, refuse(request, reply.code, reply.message))
            return
        by_name = {result["name"]: result for result in results}
        for topic in reply["topics"]:
            result = by_name[topic["name"]]
            result["partitions"] = [*result["partitions"], *topic["partitions"]]
        _finish(answer, {"topics": results})

    broker.groups.call(body.group_id, decide, on_decided)


def _parse_partition(partition: Any) -> PartitionCommit:
    return PartitionCommit(
        partition.partition_index,
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata,
        individual_commit.parse_key_ranges(partition),
        getattr(partition, "first_offset", NO_RECORD),
    )


def _finish(
    answer: asyncio.Future[responses.TxnOffsetCommitResponse],
    body: responses.TxnOffsetCommitResponse,
) -> None:
    if not answer.done():
        answer.set_result(body)


def refuse(
    request: Request, error: ErrorCode, message: str | None
) -> responses.TxnOffsetCommitResponse:
    """The error of the whole request, for every partition."""
    if error is ErrorCode.coordinator_load_in_progress and request.version < LOADING_SINCE:
        error = ErrorCode.coordinator_not_available
    return {
        "topics": [
            {
                "name": getattr(topic, "name", ""),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [
                    individual_commits.build_refused_result(p, error, message)
                    for p in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }
