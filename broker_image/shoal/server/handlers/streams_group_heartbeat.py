"""StreamsGroupHeartbeat: join a streams group, remain in it and leave it (KIP-1071).

The coordinator creates missing internal topics with the permissions of the member.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.modern_membership import WAITING_HEARTBEAT_INTERVAL_MS
from shoal.coordinator.group.streams import topology
from shoal.coordinator.group.streams.internal_topics import StatusCode
from shoal.coordinator.group.streams.membership import MISSING_TOPICS, UNCHANGED, HeartbeatRequest
from shoal.coordinator.group.streams.streams_group import Endpoint
from shoal.coordinator.group.streams.tasks import Tasks, grouped
from shoal.metadata import names
from shoal.protocol import codec
from shoal.security.acls import Operation, ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import mapped

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

#: The most creation errors that a status names.
ERRORS_MAX = 3


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    if body.topology is not None:
        _check_topics(broker, request, topology.topic_names(body.topology.subtopologies))
    heartbeat = _heartbeat(request)
    reply = broker.groups.submit(
        body.group_id,
        lambda shard, now_ms, token: shard.streams.heartbeat(heartbeat, now_ms, token),
    )
    broker.groups.watch_streams_member(request.peer, heartbeat, reply)
    return mapped(reply, lambda response: _with_topics_created(broker, request, response))


def refuse(_request: Request, code: int, message: str | None) -> Body:
    return {**UNCHANGED, "error_code": code, "error_message": message, "status": ()}


def _heartbeat(request: Request) -> HeartbeatRequest:
    body = request.body
    endpoint, tags = body.user_endpoint, body.client_tags
    return HeartbeatRequest(
        body.group_id,
        body.member_id,
        body.member_epoch,
        body.endpoint_information_epoch,
        body.instance_id,
        body.rack_id,
        codec.ms(body.rebalance_timeout),
        None if body.topology is None else dataclasses.asdict(body.topology),
        _tasks(body.active_tasks),
        _tasks(body.standby_tasks),
        _tasks(body.warmup_tasks),
        body.process_id,
        None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        None if tags is None else {tag.key: tag.value for tag in tags},
        body.task_offsets is not None,
        body.task_end_offsets is not None,
        body.shutdown_application,
        request.header.client_id or "",
        f"/{request.peer.host}",
        request.peer.connection_id,
    )


def _tasks(listed: Any) -> Tasks | None:
    if listed is None:
        return None
    return grouped((task.subtopology_id, p) for task in listed for p in task.partitions)


def _check_topics(broker: Broker, request: Request, required: list[str]) -> None:
    """Check the names of a topology's topics, and that the member may describe them. Raises
    `ApiError`."""
    internal = [name for name in required if name in names.INTERNAL_TOPICS]
    if internal:
        raise topology.invalid(
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is "
            "prohibited."
        )
    invalid = [name for name in required if names.invalid_topic(name)]
    if invalid:
        raise topology.invalid(f"Topic names {','.join(invalid)} are not valid topic names.")
    authorization.check_subscription(broker, request, required)


def _with_topics_created(broker: Broker, request: Request, response: Mapping[str, Any]) -> Body:
    """Create missing internal topics, and add to their status what prevents that."""
    answer = dict(response)
    missing = answer.pop(MISSING_TOPICS, None)
    if missing is None:
        return answer
    refused = missing.keys() - _creatable(broker, request, missing)
    if refused:
        return _with_detail(
            answer, f"Unauthorized to CREATE on topics {', '.join(sorted(refused))}."
        )
    config = broker.image.group_config(request.body.group_id)
    broker.streams_topics.create(missing, 2 * config["streams.heartbeat.interval.ms"])
    errors = broker.streams_topics.errors(missing)
    if errors:
        named = [f"{name} ({errors[name]})" for name in sorted(errors)]
        more = len(named) - ERRORS_MAX
        text = ", ".join(named[:ERRORS_MAX]) + (f" and {more} more" if more > 0 else "")
        return _with_detail(answer, f"Creation failed: {text}.")
    # The topics exist in some milliseconds.
    interval_ms = min(answer["heartbeat_interval_ms"], WAITING_HEARTBEAT_INTERVAL_MS)
    return answer | {"heartbeat_interval_ms": interval_ms}


def _creatable(broker: Broker, request: Request, wanted: Collection[str]) -> set[str]:
    access = broker.access
    if access.enabled and not access.allows_cluster(request, Operation.CREATE, audited=False):
        return access.permitted(request, Operation.CREATE, ResourceType.TOPIC, wanted)
    return set(wanted)


def _with_detail(answer: dict[str, Any], detail: str) -> Body:
    """Append to the detail of the status of missing internal topics."""
    statuses = [
        status | {"status_detail": f"{status['status_detail']}; {detail}"}
        if status["status_code"] == StatusCode.MISSING_INTERNAL_TOPICS
        else status
        for status in answer["status"]
    ]
    return answer | {"status": statuses}
