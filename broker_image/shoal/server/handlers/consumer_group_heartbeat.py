"""ConsumerGroupHeartbeat: join a consumer group, remain in it and leave it (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.assignment import grouped
from shoal.coordinator.group.consumer_membership import HeartbeatRequest
from shoal.coordinator.group.key_range_loads import Load, Report
from shoal.coordinator.group.key_slots import Slices, of_ranges
from shoal.protocol import codec
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.handlers import authorization

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    names, owned = body.subscribed_topic_names, body.topic_partitions
    authorization.check_subscription(broker, request, names)
    member_id = body.member_id
    if not member_id and request.version == 0 and body.member_epoch == 0:
        # From version 1 on, the client creates its member id.
        member_id = str(broker.node.system.uuid())
    heartbeat = HeartbeatRequest(
        body.group_id,
        member_id,
        body.member_epoch,
        body.instance_id,
        body.rack_id,
        _rebalance_timeout_ms(body),
        None if names is None else frozenset(names),
        getattr(body, "subscribed_topic_regex", None),
        body.server_assignor,
        None
        if owned is None
        else grouped((t.topic_id, p) for t in owned if t.topic_id for p in t.partitions),
        request.header.client_id or "",
        f"/{request.peer.host}",
        request.version,
        authorization.describes_silently(broker, request),
        getattr(body, "key_hash_version", 0),
        _slices(body),
        request.peer.connection_id,
        _loads(body),
    )
    reply = broker.groups.submit(
        body.group_id,
        lambda shard, now_ms, token: shard.consumer.heartbeat(heartbeat, now_ms, token),
    )
    if heartbeat.key_hash_version:
        broker.groups.watch_sharing_member(request.peer, heartbeat, reply)
    return reply


def _rebalance_timeout_ms(body: Any) -> int:
    """Return the rebalance timeout; -1 for none. A body with own tags has plain milliseconds."""
    plain: int | None = getattr(body, "rebalance_timeout_ms", None)
    if plain is not None:
        return plain
    return -1 if body.rebalance_timeout is None else codec.ms(body.rebalance_timeout)


def _loads(body: Any) -> Report:
    return {
        (one.topic_id, one.partition): [
            Load(load.first_hash, load.last_hash, load.records) for load in one.loads
        ]
        for one in getattr(body, "key_loads", ())
    }


def _slices(body: Any) -> Slices:
    """Return what the member owns of shared partitions. Raises INVALID_REQUEST."""
    slices: Slices = {}
    for one in getattr(body, "key_ranges", ()):
        try:
            slots = of_ranges((r.first_hash, r.last_hash) for r in one.ranges)
        except ValueError as error:
            raise ApiError(
                ErrorCode.invalid_request,
                f"Partition {one.partition} of topic {one.topic_id}: {error}. Report ranges of the "
                "last assignment.",
            ) from None
        slices[one.topic_id, one.partition] = slots
    return slices
