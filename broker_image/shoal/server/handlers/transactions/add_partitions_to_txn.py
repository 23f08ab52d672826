"""AddPartitionsToTxn: add partitions to a transaction before they are written to (KIP-98).

Up to version 3, a producer sends it for one transaction. From version 4 on, brokers send it for
several transactions, and may only verify that the partitions are in them (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import Outcome, combine_replies, downgrade_epoch_error
from shoal.transaction.shard import ProducerIdentity
from shoal.transaction.transactions import TV_0, TV_2, TopicPartition

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from shoal.protocol.responses import transactions as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

FENCED_SINCE = 2
BATCHES_SINCE = 4


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.AddPartitionsToTxnResponse]:
    if request.version >= BATCHES_SINCE:
        return _handle_batches(broker, request)
    body = request.body
    topics = body.v3_and_below_topics
    partitions = _list_partitions(topics)
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    refused = [p for p in partitions if not permits(p[0])]
    unknown = [p for p in partitions if broker.image.find_partition(*p) is None]
    if unknown or refused:
        errors = dict.fromkeys(partitions, ErrorCode.operation_not_attempted)
        errors |= dict.fromkeys(unknown, ErrorCode.unknown_topic_or_partition)
        errors |= dict.fromkeys(refused, ErrorCode.topic_authorization_failed)
        return {"results_by_topic_v3_and_below": _build_results(topics, errors)}
    writer = ProducerIdentity(
        body.v3_and_below_transactional_id,
        body.v3_and_below_producer_id,
        body.v3_and_below_producer_epoch,
    )
    added = broker.transactions.add_partitions(writer, partitions, TV_0)

    def answer(outcomes: list[Outcome]) -> responses.AddPartitionsToTxnResponse:
        errors = dict.fromkeys(partitions, _get_error(outcomes[0], request))
        return {"results_by_topic_v3_and_below": _build_results(topics, errors)}

    return combine_replies((added,), answer)


def _handle_batches(
    broker: Broker, request: Request
) -> BodyOrFuture[responses.AddPartitionsToTxnResponse]:
    transactions = request.body.transactions
    replies: list[asyncio.Future[Any]] = []
    for transaction in transactions:
        writer = ProducerIdentity(
            transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
        )
        partitions = _list_partitions(transaction.topics)
        if transaction.verify_only:
            replies.append(broker.transactions.verify_partitions(writer, partitions))
        else:
            replies.append(broker.transactions.add_partitions(writer, partitions, TV_2))

    def answer(outcomes: list[Outcome]) -> responses.AddPartitionsToTxnResponse:
        results: list[responses.AddPartitionsToTxnResult] = []
        for transaction, outcome in zip(transactions, outcomes, strict=True):
            partitions = _list_partitions(transaction.topics)
            errors = dict.fromkeys(partitions, _get_error(outcome, request))
            if not isinstance(outcome, ApiError):
                errors |= outcome.get("errors", {})
            results.append(
                {
                    "transactional_id": transaction.transactional_id,
                    "topic_results": _build_results(transaction.topics, errors),
                }
            )
        return {"error_code": ErrorCode.none, "results_by_transaction": results}

    return combine_replies(replies, answer)


def _get_error(outcome: Outcome, request: Request) -> ErrorCode:
    if isinstance(outcome, ApiError):
        return downgrade_epoch_error(outcome.code, request.version, FENCED_SINCE)
    return ErrorCode.none


def _list_partitions(topics: Any) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _build_results(
    topics: Any, errors: Mapping[TopicPartition, ErrorCode]
) -> list[responses.AddPartitionsToTxnTopicResult]:
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


def refuse(
    request: Request, error: ErrorCode, _message: str | None
) -> responses.AddPartitionsToTxnResponse:
    """The error of a whole request. Up to version 3 each partition has it."""
    if request.version >= BATCHES_SINCE:
        return {"error_code": error}
    topics = request.body.v3_and_below_topics
    code = downgrade_epoch_error(error, request.version, FENCED_SINCE)
    return {
        "results_by_topic_v3_and_below": _build_results(
            topics, dict.fromkeys(_list_partitions(topics), code)
        )
    }
