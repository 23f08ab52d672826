"""Responses that are composed of the replies of several shards, or derived from one reply.

If all replies are complete, as most are, the response is composed at once, without a task or a
callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.metadata.image import MetadataImage, PartitionImage
    from shoal.server.network.api import BodyOrFuture

Response = Mapping[str, Any]
Outcome = Response | ApiError
B = TypeVar("B")


def combine_replies(
    replies: Sequence[asyncio.Future[Any]], combine: Callable[[list[Outcome]], B]
) -> BodyOrFuture[B]:
    """Call `combine` with the outcomes, in the order of `replies`, when all are complete. The
    outcome of a reply that failed with `ApiError` is that error."""
    if all(reply.done() for reply in replies):
        return combine([_get_outcome(reply) for reply in replies])
    answer: asyncio.Future[B] = asyncio.get_running_loop().create_future()
    pending = len(replies)

    def on_done(reply: asyncio.Future[Any]) -> None:
        nonlocal pending
        pending -= 1
        if not reply.cancelled():
            reply.exception()  # Retrieved, so that asyncio does not log it.
        if pending == 0 and not answer.done():
            try:
                answer.set_result(combine([_get_outcome(reply) for reply in replies]))
            except ApiError as refused:
                answer.set_exception(refused.with_traceback(None))

    for reply in replies:
        reply.add_done_callback(on_done)
    return answer


def make_refusal(code: ErrorCode, message: str | None = None) -> asyncio.Future[Any]:
    """Return a reply that has failed with `ApiError`, for `combine_replies`."""
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    reply.set_exception(ApiError(code, message))
    return reply


def map_reply(reply: asyncio.Future[Any], form: Callable[[Any], B]) -> BodyOrFuture[B]:
    """Apply `form` to a reply. An `ApiError` of the reply is the error of the response."""

    def map_outcome(outcomes: list[Outcome]) -> B:
        (outcome,) = outcomes
        if isinstance(outcome, ApiError):
            raise outcome
        return form(outcome)

    return combine_replies((reply,), map_outcome)


def _get_outcome(reply: asyncio.Future[Any]) -> Outcome:
    error = reply.exception()
    if error is None:
        return reply.result()
    if isinstance(error, ApiError):
        return error
    raise error


def downgrade_epoch_error(error: ErrorCode, version: int, since: int) -> ErrorCode:
    """Replace PRODUCER_FENCED by INVALID_PRODUCER_EPOCH before version `since` (KIP-588)."""
    if error is ErrorCode.producer_fenced and version < since:
        return ErrorCode.invalid_producer_epoch
    return error


def list_leader_endpoints(
    image: MetadataImage, listener: str, leader_ids: Iterable[int]
) -> list[dict[str, Any]]:
    """Return the endpoints of the leaders that an error names, so that the client need not request
    metadata (KIP-951)."""
    results = []
    for leader_id in sorted(set(leader_ids)):
        broker = image.brokers.get(leader_id)
        endpoint = None if broker is None else broker.find_endpoint(listener)
        if broker is not None and endpoint is not None:
            results.append(
                {
                    "node_id": leader_id,
                    "host": endpoint.host,
                    "port": endpoint.port,
                    "rack": broker.rack,
                }
            )
    return results


def missing_partition_error(
    image: MetadataImage, name: str, topic_id: UUID | None, index: int
) -> tuple[ErrorCode, PartitionImage | None]:
    """Why this broker does not serve a partition of which it has no replica.

    The partition comes with it if another broker has one: a client learns its leader (KIP-951).
    """
    topic = image.topics.get(name) if topic_id is None else image.topics_by_id.get(topic_id)
    if topic is None and topic_id is not None:
        return ErrorCode.unknown_topic_id, None
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition, None
    return ErrorCode.not_leader_or_follower, topic.partitions[index]
