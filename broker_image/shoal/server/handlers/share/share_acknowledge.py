"""ShareAcknowledge: acknowledge acquired records, or renew their locks (KIP-932, KIP-1222)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.share.bulk import count_accepted
from shoal.coordinator.share.sessions import FINAL_EPOCH, INITIAL_EPOCH
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.share import (
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    write_acknowledge,
    write_acknowledge_success,
)
from shoal.server.handlers import authorization
from shoal.server.handlers.share.share_fetch import check_ids
from shoal.server.network.deferred import DeferredResponse
from shoal.server.network.error_counts import make_counted_body
from shoal.server.share.acknowledge import PendingAcknowledgements, count_by_type, validate
from shoal.server.share.fetch import find_current_leader, list_endpoints
from shoal.server.share.leader import LeaderPhase

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request
    from shoal.server.share.state_write import Failure


def handle(broker: Broker, request: Request) -> Answer:
    body: ShareAcknowledgeRequest = request.body
    service = broker.share
    group_id, member_id = check_ids(body.group_id, body.member_id)
    if body.share_session_epoch == INITIAL_EPOCH:
        raise ApiError(
            ErrorCode.invalid_share_session_epoch,
            "a share session is opened by ShareFetch, not by an acknowledgement",
        )
    service.sessions.advance(group_id, member_id, body.share_session_epoch, request.peer.principal)
    if body.share_session_epoch != FINAL_EPOCH and (single := _acknowledge_single(broker, request)):
        return single
    acks = PendingAcknowledgements(service, authorization.make_read_checker(broker, request))
    acks.apply(
        group_id, member_id, body.topics, version=request.version, is_renew=body.is_renew_ack
    )
    if body.share_session_epoch == FINAL_EPOCH:
        acks.on_applied(
            lambda: service.sessions.end(
                group_id, member_id, request.peer, undelivered=body.undelivered
            )
        )
    if acks.settled:
        return _answer(broker, request, acks.failures)
    answer = DeferredResponse()

    def on_settled() -> None:
        if not answer.done():
            answer.set_result(_answer(broker, request, acks.failures))

    acks.on_settled(on_settled)
    return answer


class _SingleAcknowledgement(DeferredResponse):
    """The response to an acknowledgement of a single batch, which is the callback of its write."""

    __slots__ = ("_broker", "_request")

    def __init__(self, broker: Broker, request: Request) -> None:
        super().__init__()
        self._broker = broker
        self._request = request

    def __call__(self, failure: Failure | None) -> None:
        """The write is committed, or has failed."""
        (topic_id, ((index, batches),)) = self._request.body.topics[0]
        if failure is None or failure.code is ErrorCode.none:
            count_by_type(self._broker.share.acknowledged, batches)
        if not self.done():
            failures = {} if failure is None else {(topic_id, index): failure}
            self.set_result(_answer(self._broker, self._request, failures))


def _acknowledge_single(broker: Broker, request: Request) -> _SingleAcknowledgement | None:
    """Acknowledge a single batch of a single partition, as workers do that commit each record.
    Returns None, and changes nothing, if the request has more than that or is refused."""
    body: ShareAcknowledgeRequest = request.body
    if len(body.topics) != 1 or len(body.topics[0][1]) != 1:
        return None
    topic_id, ((index, batches),) = body.topics[0]
    leader = broker.share.find(body.group_id or "", topic_id, index)
    if len(batches) != 1 or leader is None or leader.phase is not LeaderPhase.ACTIVE:
        return None
    if count_accepted(batches) is None and validate(
        batches, version=request.version, is_renew=body.is_renew_ack
    ):
        return None
    reads = authorization.make_read_checker(broker, request)
    if reads is not None and not reads(topic_id):
        return None
    single = _SingleAcknowledgement(broker, request)
    if leader.acknowledge(body.member_id or "", batches, single) is not None:
        return None
    leader.meter.acknowledgements += 1
    return single


def _answer(broker: Broker, request: Request, failures: Mapping[tuple[UUID, int], Failure]) -> Body:
    lock_ms = broker.share.get_settings(request.body.group_id).lock_duration_ms
    if not failures:
        encoded = write_acknowledge_success(request.version, request.body.topics, lock_ms)
        return make_counted_body(encoded, _count_without_errors(request))
    topics, moved = [], []
    counts = _count_without_errors(request)
    for topic_id, partitions in request.body.topics:
        entries = []
        for index, _ in partitions:
            failure = failures.get((topic_id, index))
            if failure is None:
                entries.append(ShareAcknowledgePartition(index))
                continue
            entry = ShareAcknowledgePartition(
                index, failure.code, failure.message, cancelled=failure.cancelled
            )
            counts[ErrorCode.none] -= 1
            counts[failure.code] = counts.get(failure.code, 0) + 1
            leader = find_current_leader(
                broker.image, broker.node_id, (topic_id, index), failure.code
            )
            if leader is not None:
                moved.append(leader)
                entry = entry._replace(current_leader=leader)
            entries.append(entry)
        topics.append((topic_id, entries))
    body = write_acknowledge(
        request.version,
        topics,
        acquisition_lock_timeout_ms=lock_ms,
        endpoints=list_endpoints(broker.image, request.peer, moved) if moved else (),
    )
    return make_counted_body(body, counts)


def _count_without_errors(request: Request) -> dict[int, int]:
    """Return the counts of a response without errors, of the whole and of each partition."""
    return {ErrorCode.none: 1 + sum(len(partitions) for _, partitions in request.body.topics)}


def refuse(request: Request, code: ErrorCode, message: str | None) -> Body:
    body = write_acknowledge(request.version, (), error_code=code, error_message=message)
    return make_counted_body(body, {code: 1})
