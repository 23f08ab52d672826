"""TxnOffsetCommit: commit offsets in a transaction (KIP-98, KIP-447).

Since version 5 the request adds the group's partition to the transaction. Before version 5
AddOffsetsToTxn must have added it, which is verified (KIP-890).

A request of Shoal's client may ask for the order of a partition. Its answer then waits in the
group's shard (`coordinator.group.ordered_commits`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import ProducerIdAndEpoch, Result, Token
from shoal.coordinator.group import individual_commit
from shoal.coordinator.group.commit_order import NO_RECORD
from shoal.coordinator.group.offsets import CommitRequest, PartitionCommit, TopicCommit
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.coordinators import groups
from shoal.server.coordinators.transactions import Errors, is_open, write_error
from shoal.server.handlers import authorization, individual_commits
from shoal.transaction.shard import Writer

if TYPE_CHECKING:
    from shoal.coordinator.group.shard import GroupShard
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

LOADING_SINCE = 2
ABORTABLE_SINCE = 4
IMPLICIT_SINCE = 5
Fields = dict[str, Any]


def handle(broker: Broker, request: Request) -> Answer:
    results, commits = _checked(broker, request)
    if individual_commits.contained(commits):
        return asyncio.ensure_future(_commit_individually(broker, request, results, commits))
    return _enlist(broker, request, results, commits)


async def _commit_individually(
    broker: Broker, request: Request, results: list[Fields], commits: list[TopicCommit]
) -> Body:
    taken, refused = await individual_commits.within_log(broker, commits)
    for result in results:
        result["partitions"] += refused.get(result["name"], ())
    return await individual_commits.settled(_enlist(broker, request, results, taken))


def _enlist(
    broker: Broker, request: Request, results: list[Fields], commits: list[TopicCommit]
) -> Answer:
    """Commit once the group's partition belongs to the transaction."""
    body = request.body
    if not commits:
        return {"topics": results}
    index = broker.groups.partition_for(body.group_id)
    partition = None if index is None else broker.partitions.by_name(groups.TOPIC, index)
    if index is None or partition is None:
        raise ApiError(ErrorCode.coordinator_not_available)
    if not partition.is_leader:
        raise ApiError(ErrorCode.not_coordinator)
    writer = Writer(body.transactional_id, body.producer_id, body.producer_epoch)
    answer: asyncio.Future[Body] = broker.loop.create_future()

    def enlisted(errors: Errors) -> None:
        error = next(iter(errors.values()), ErrorCode.none)
        producer = partition.log.producers.get(writer.producer_id)
        if producer is not None and writer.producer_epoch < producer.epoch:
            error = ErrorCode.invalid_producer_epoch
        if error:
            code = write_error(error, abortable=request.version >= ABORTABLE_SINCE)
            _finish(answer, refuse(request, code, None))
        else:
            _commit(broker, request, results, commits, answer)

    if is_open(partition.log, writer.producer_id, writer.producer_epoch):
        enlisted({})
    else:
        implicit = request.version >= IMPLICIT_SINCE
        broker.transactions.enlist(
            writer, [(groups.TOPIC, index)], implicit=implicit, then=enlisted
        )
    return answer


def _checked(broker: Broker, request: Request) -> tuple[list[Fields], list[TopicCommit]]:
    """Return the topics of the response, with the partitions that are refused, and the offsets to
    commit."""
    results: list[Fields] = []
    commits: list[TopicCommit] = []
    permits = authorization.each(broker, request, ResourceType.TOPIC)
    for asked in request.body.topics:
        permitted = permits(asked.name)
        topic = broker.image.topics.get(asked.name) if permitted else None
        count = len(topic.partitions) if topic is not None else 0
        taken = [p for p in asked.partitions if 0 <= p.partition_index < count]
        results.append({"name": asked.name, "partitions": _results(asked, taken, permitted)})
        if topic is not None and taken:
            commits.append(TopicCommit(asked.name, topic.topic_id, [_partition(p) for p in taken]))
    return results, commits


def _commit(
    broker: Broker,
    request: Request,
    results: list[Fields],
    commits: list[TopicCommit],
    answer: asyncio.Future[Body],
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
    if commit.ordered:
        broker.groups.watch_ordered_commits(request.peer, body.group_id)

    def decide(shard: GroupShard, now_ms: int, token: Token) -> Result:
        return shard.offsets.commit(commit, now_ms, token)

    def decided(reply: Any) -> None:
        if isinstance(reply, ApiError):
            _finish(answer, refuse(request, reply.code, reply.message))
            return
        by_name = {result["name"]: result for result in results}
        for topic in reply["topics"]:
            by_name[topic["name"]]["partitions"] += topic["partitions"]
        _finish(answer, {"topics": results})

    broker.groups.call(body.group_id, decide, decided)


def _results(asked: Any, taken: list[Any], permitted: bool) -> list[Fields]:
    unknown = ErrorCode.unknown_topic_or_partition
    code = unknown if permitted else ErrorCode.topic_authorization_failed
    return [
        {"partition_index": p.partition_index, "error_code": code}
        for p in asked.partitions
        if p not in taken
    ]


def _partition(asked: Any) -> PartitionCommit:
    return PartitionCommit(
        asked.partition_index,
        asked.committed_offset,
        getattr(asked, "committed_leader_epoch", -1),
        asked.committed_metadata,
        individual_commit.ranges_of(asked),
        getattr(asked, "first_offset", NO_RECORD),
    )


def _finish(answer: asyncio.Future[Body], body: Body) -> None:
    if not answer.done():
        answer.set_result(body)


def refuse(request: Request, error: ErrorCode, message: str | None) -> Body:
    """The error of the whole request, for every partition."""
    if error is ErrorCode.coordinator_load_in_progress and request.version < LOADING_SINCE:
        error = ErrorCode.coordinator_not_available
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    individual_commits.refused_row(p, error, message) for p in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }
