"""ShareAcknowledge: settle or renew acquired records without fetching more (KIP-932, KIP-1222)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.share.sessions import FINAL_EPOCH, INITIAL_EPOCH
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.share import (
    PartitionError,
    ShareAcknowledgeRequest,
    write_acknowledge,
    write_acknowledged,
)
from shoal.server.api import Answer, Body, Request
from shoal.server.handlers.share_fetch import checked_ids
from shoal.server.prompt import Prompt
from shoal.server.share_acks import Acks

if TYPE_CHECKING:
    from shoal.server.broker import Broker


def handle(broker: Broker, request: Request) -> Answer:
    body: ShareAcknowledgeRequest = request.body
    service = broker.share
    group_id, member_id = checked_ids(body.group_id, body.member_id)
    if body.share_session_epoch == INITIAL_EPOCH:
        raise ApiError(
            ErrorCode.invalid_share_session_epoch,
            "a share session is opened by ShareFetch, not by an acknowledgement",
        )
    service.sessions.next(group_id, member_id, body.share_session_epoch)
    acks = Acks(service)
    acks.apply(
        group_id, member_id, body.topics, version=request.version, is_renew=body.is_renew_ack
    )
    if body.share_session_epoch == FINAL_EPOCH:
        service.close_session(group_id, member_id, request.peer)
    if acks.settled:
        return _answer(broker, request, acks)
    answer = Prompt()

    def settled() -> None:
        if not answer.done():
            answer.set_result(_answer(broker, request, acks))

    acks.on_settled = settled
    return answer


def _answer(broker: Broker, request: Request, acks: Acks) -> Body:
    lock_ms = broker.share.settings(request.body.group_id).lock_duration_ms
    failures = acks.failures
    if not failures:
        return write_acknowledged(request.version, request.body.topics, lock_ms)
    topics = []
    for topic_id, partitions in request.body.topics:
        entries = []
        for index, _ in partitions:
            failure = failures.get((topic_id, index))
            if failure is None:
                entries.append(PartitionError(index))
            else:
                entries.append(PartitionError(index, failure.code, failure.message))
        topics.append((topic_id, entries))
    return write_acknowledge(request.version, topics, acquisition_lock_timeout_ms=lock_ms)


def refuse(request: Request, code: ErrorCode, message: str | None) -> Body:
    return write_acknowledge(request.version, (), error_code=code, error_message=message)
