"""ConsumerGroupHeartbeat: join a consumer group, remain in it and leave it (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.assignment import group_by_topic
from shoal.coordinator.group.consumer.membership import ConsumerGroupHeartbeatRequest
from shoal.coordinator.group.key_ranges.key_range_loads import KeyRangeLoad, Report
from shoal.coordinator.group.key_ranges.key_slots import Slices, from_ranges
from shoal.protocol import codec
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.handlers import authorization

if TYPE_CHECKING:
    import asyncio

    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(
    broker: Broker, request: Request
) -> asyncio.Future[responses.ConsumerGroupHeartbeatResponse]:
    body = request.body
    names, owned = body.subscribed_topic_names, body.topic_partitions
    authorization.check_subscription(broker, request, names)
    member_id = body.member_id
    if not member_id and request.version == 0 and body.member_epoch == 0:
        # From version 1 on, the client creates its member id.
        member_id = str(broker.node.system.make_uuid())
    heartbeat = ConsumerGroupHeartbeatRequest(
        body.group_id,
        member_id,
        body.member_epoch,
        body.instance_id,
        body.rack_id,
        _get_rebalance_timeout_ms(body),
        None if names is None else frozenset(names),
        getattr(body, "subscribed_topic_regex", None),
        body.server_assignor,
        None
        if owned is None
        else group_by_topic((t.topic_id, p) for t in owned if t.topic_id for p in t.partitions),
        request.header.client_id or "",
        f"/{request.peer.host}",
        request.version,
        authorization.make_describe_checker(broker, request),
        getattr(body, "key_hash_version", 0),
        _parse_slices(body),
        request.peer.connection_id,
        _parse_loads(body),
    )
    reply = broker.groups.submit(
        body.group_id,
        lambda shard, now_ms, token: shard.consumer.heartbeat(heartbeat, now_ms, token),
    )
    if heartbeat.key_hash_version:
        broker.groups.watch_sharing_member(request.peer, heartbeat, reply)
    return reply


def _get_rebalance_timeout_ms(body: Any) -> int:
    """Return the rebalance timeout; -1 for none. A body with own tags has plain milliseconds."""
    plain: int | None = getattr(body, "rebalance_timeout_ms", None)
    if plain is not None:
        return plain
    return -1 if body.rebalance_timeout is None else codec.to_ms(body.rebalance_timeout)


def _parse_loads(body: Any) -> Report:
    return {
        (entry.topic_id, entry.partition): [
            KeyRangeLoad(load.first_hash, load.last_hash, load.records) for load in entry.loads
        ]
        for entry in getattr(body, "key_loads", ())
    }


def _parse_slices(body: Any) -> Slices:
    """Return what the member owns of shared partitions. Raises INVALID_REQUEST."""
    slices: Slices = {}
    for entry in getattr(body, "key_ranges", ()):
        try:
            slots = from_ranges((r.first_hash, r.last_hash) for r in entry.ranges)
        except ValueError as error:
            raise ApiError(
                ErrorCode.invalid_request,
                f"Partition {entry.partition} of topic {entry.topic_id}: {error}. Report ranges of "
                "the last assignment.",
            ) from None
        slices[entry.topic_id, entry.partition] = slots
    return slices
