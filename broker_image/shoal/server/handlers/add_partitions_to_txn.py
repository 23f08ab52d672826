"""AddPartitionsToTxn: add partitions to a transaction before they are written to (KIP-98).

Up to version 3, a producer sends it for one transaction. From version 4 on, brokers send it for
several transactions, and may only verify that the partitions are in them (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import Outcome, combined, old_epoch_error
from shoal.transaction.shard import Writer
from shoal.transaction.transactions import TV_0, TV_2, TopicPartition

if TYPE_CHECKING:
    import asyncio

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

FENCED_SINCE = 2
BATCHES_SINCE = 4
Result = Mapping[str, Any]


def handle(broker: Broker, request: Request) -> Answer:
    if request.version >= BATCHES_SINCE:
        return _handle_batches(broker, request)
    body = request.body
    topics = body.v3_and_below_topics
    partitions = _partitions(topics)
    permits = authorization.each(broker, request, ResourceType.TOPIC)
    refused = [p for p in partitions if not permits(p[0])]
    unknown = [p for p in partitions if broker.image.partition(*p) is None]
    if unknown or refused:
        errors = dict.fromkeys(partitions, ErrorCode.operation_not_attempted)
        errors |= dict.fromkeys(unknown, ErrorCode.unknown_topic_or_partition)
        errors |= dict.fromkeys(refused, ErrorCode.topic_authorization_failed)
        return {"results_by_topic_v3_and_below": _results(topics, errors)}
    writer = Writer(
        body.v3_and_below_transactional_id,
        body.v3_and_below_producer_id,
        body.v3_and_below_producer_epoch,
    )
    added = broker.transactions.add_partitions(writer, partitions, TV_0)

    def answer(outcomes: list[Outcome]) -> Body:
        errors = dict.fromkeys(partitions, _error(outcomes[0], request))
        return {"results_by_topic_v3_and_below": _results(topics, errors)}

    return combined((added,), answer)


def _handle_batches(broker: Broker, request: Request) -> Answer:
    asked = request.body.transactions
    replies: list[asyncio.Future[Any]] = []
    for transaction in asked:
        writer = Writer(
            transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
        )
        partitions = _partitions(transaction.topics)
        if transaction.verify_only:
            replies.append(broker.transactions.verify_partitions(writer, partitions))
        else:
            replies.append(broker.transactions.add_partitions(writer, partitions, TV_2))

    def answer(outcomes: list[Outcome]) -> Body:
        results = []
        for transaction, outcome in zip(asked, outcomes, strict=True):
            partitions = _partitions(transaction.topics)
            errors = dict.fromkeys(partitions, _error(outcome, request))
            if not isinstance(outcome, ApiError):
                errors |= outcome.get("errors", {})
            results.append(
                {
                    "transactional_id": transaction.transactional_id,
                    "topic_results": _results(transaction.topics, errors),
                }
            )
        return {"error_code": ErrorCode.none, "results_by_transaction": results}

    return combined(replies, answer)


def _error(outcome: Outcome, request: Request) -> ErrorCode:
    if isinstance(outcome, ApiError):
        return old_epoch_error(outcome.code, request.version, FENCED_SINCE)
    return ErrorCode.none


def _partitions(topics: Any) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _results(topics: Any, errors: Mapping[TopicPartition, ErrorCode]) -> list[Result]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": i, "partition_error_code": errors[(topic.name, i)]}
                for i in topic.partitions
            ],
        }
        for topic in topics
    ]


def refuse(request: Request, error: ErrorCode, _message: str | None) -> Body:
    """The error of a whole request. Up to version 3 each partition has it."""
    if request.version >= BATCHES_SINCE:
        return {"error_code": error}
    topics = request.body.v3_and_below_topics
    code = old_epoch_error(error, request.version, FENCED_SINCE)
    return {
        "results_by_topic_v3_and_below": _results(topics, dict.fromkeys(_partitions(topics), code))
    }
