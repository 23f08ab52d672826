"""ConsumerGroupHeartbeat: join a consumer group, remain in it and leave it (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.assignment import grouped
from shoal.coordinator.group.consumer_membership import HeartbeatRequest
from shoal.protocol import codec
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
        codec.ms(body.rebalance_timeout) if body.rebalance_timeout is not None else -1,
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
    )
    return broker.groups.submit(
        body.group_id,
        lambda shard, now_ms, token: shard.consumer.heartbeat(heartbeat, now_ms, token),
    )
