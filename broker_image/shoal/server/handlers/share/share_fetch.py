"""ShareFetch: acquire records of a share session's partitions, and acknowledge earlier records.

Source: KIP-932, KIP-1206, KIP-1222.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.coordinator.share.sessions import FINAL_EPOCH, INITIAL_EPOCH
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.share import ShareFetchRequest, write_fetch
from shoal.server.handlers import authorization
from shoal.server.network.error_counts import make_counted_body
from shoal.server.share.acknowledge import PendingAcknowledgements
from shoal.server.share.fetch import check_acquire_mode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

#: The longest member id that Kafka accepts. Its member ids are UUIDs of 22 characters.
MEMBER_ID_LENGTH_MAX = 36


def handle(broker: Broker, request: Request) -> Answer:
    body: ShareFetchRequest = request.body
    service = broker.share
    group_id, member_id = check_ids(body.group_id, body.member_id)
    if body.is_renew_ack:
        _check_renewal(body)
    check_acquire_mode(request)
    requested = [
        (topic_id, index) for topic_id, partitions in body.topics for index, _ in partitions
    ]
    acks = PendingAcknowledgements(service, authorization.make_read_checker(broker, request))
    if body.share_session_epoch == INITIAL_EPOCH:
        if any(batches for _, partitions in body.topics for _, batches in partitions):
            raise ApiError(
                ErrorCode.invalid_request,
                "a request that opens a share session acknowledges nothing",
            )
        try:
            session = service.sessions.begin(
                request.peer, group_id, member_id, requested, request.header.client_id or ""
            )
        except ApiError as refused:
            return _refuse_later(broker, body.max_wait_ms, refused)
    else:
        session = service.sessions.advance(
            group_id, member_id, body.share_session_epoch, request.peer.principal
        )
        for key in requested:
            session.partitions.setdefault(key, True)
        acks.apply(
            group_id, member_id, body.topics, version=request.version, is_renew=body.is_renew_ack
        )
        for topic_id, indexes in body.forgotten:
            for index in indexes:
                session.partitions.pop((topic_id, index), None)
    answer = service.fetches.answer(request, session, acks)
    if body.share_session_epoch == FINAL_EPOCH:
        acks.on_applied(lambda: service.sessions.end(group_id, member_id, request.peer))
    return answer


def refuse(_request: Request, code: ErrorCode, message: str | None) -> Body:
    return make_counted_body(write_fetch({}, error_code=code, error_message=message), {code: 1})


def check_ids(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """The group id and member id of a request. Raises INVALID_REQUEST for invalid ones."""
    if not group_id:
        raise ApiError(ErrorCode.invalid_request, "Invalid group id in the request.")
    if not member_id or len(member_id) > MEMBER_ID_LENGTH_MAX:
        raise ApiError(ErrorCode.invalid_request, "Invalid member id in the request.")
    return group_id, member_id


def _check_renewal(body: ShareFetchRequest) -> None:
    names = ("max_bytes", "min_bytes", "max_records", "max_wait_ms")
    if wrong := [name for name in names if getattr(body, name)]:
        raise ApiError(
            ErrorCode.invalid_request, f"{', '.join(wrong)} must be 0 if IsRenewAck is true"
        )


def _refuse_later(broker: Broker, max_wait_ms: int, refused: ApiError) -> Answer:
    """Refuse after the maximum wait of the fetch, because clients retry at once."""
    answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()

    def refuse_now() -> None:
        if not answer.done():
            answer.set_exception(refused)

    broker.timers.call_at(broker.clock.now_ms() + max_wait_ms, refuse_now)
    return answer
