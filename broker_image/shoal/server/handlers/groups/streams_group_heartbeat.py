"""StreamsGroupHeartbeat: join a streams group, remain in it and leave it (KIP-1071).

The coordinator creates missing internal topics with the permissions of the member.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from shoal.coordinator.group.modern.membership import WAITING_HEARTBEAT_INTERVAL_MS
from shoal.coordinator.group.streams import topology
from shoal.coordinator.group.streams.internal_topics import StatusCode
from shoal.coordinator.group.streams.membership import (
    MISSING_TOPICS,
    UNCHANGED,
    StreamsGroupHeartbeatRequest,
)
from shoal.coordinator.group.streams.streams_group import UserEndpoint
from shoal.coordinator.group.streams.tasks import Tasks, group_by_subtopology
from shoal.metadata import names
from shoal.protocol import codec
from shoal.security.acls import Operation, ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import map_reply

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

#: The most creation errors that a status names.
ERRORS_MAX = 3


def handle(
    broker: Broker, request: Request
) -> BodyOrFuture[responses.StreamsGroupHeartbeatResponse]:
    body = request.body
    if body.topology is not None:
        topology.check_size(body.topology.subtopologies)
        _check_topics(broker, request, topology.list_topic_names(body.topology.subtopologies))
    heartbeat = _parse_heartbeat(request)
    reply = broker.groups.submit(
        body.group_id,
        lambda shard, now_ms, token: shard.streams.heartbeat(heartbeat, now_ms, token),
    )
    broker.groups.watch_streams_member(request.peer, heartbeat, reply)
    return map_reply(reply, lambda response: _create_missing_topics(broker, request, response))


def refuse(
    _request: Request, code: int, message: str | None
) -> responses.StreamsGroupHeartbeatResponse:
    return {**UNCHANGED, "error_code": code, "error_message": message, "status": ()}


def _parse_heartbeat(request: Request) -> StreamsGroupHeartbeatRequest:
    body = request.body
    endpoint, tags = body.user_endpoint, body.client_tags
    return StreamsGroupHeartbeatRequest(
        body.group_id,
        body.member_id,
        body.member_epoch,
        body.endpoint_information_epoch,
        body.instance_id,
        body.rack_id,
        codec.to_ms(body.rebalance_timeout),
        None if body.topology is None else dataclasses.asdict(body.topology),
        _parse_tasks(body.active_tasks),
        _parse_tasks(body.standby_tasks),
        _parse_tasks(body.warmup_tasks),
        body.process_id,
        None if endpoint is None else UserEndpoint(endpoint.host, endpoint.port),
        None if tags is None else {tag.key: tag.value for tag in tags},
        body.shutdown_application,
        request.header.client_id or "",
        f"/{request.peer.host}",
        request.peer.connection_id,
    )


def _parse_tasks(listed: Any) -> Tasks | None:
    if listed is None:
        return None
    return group_by_subtopology(
        (task.subtopology_id, p) for task in listed for p in task.partitions
    )


def _check_topics(broker: Broker, request: Request, required: list[str]) -> None:
    """Check the names of a topology's topics, and that the member may describe them. Raises
    `ApiError`."""
    internal = [name for name in required if name in names.INTERNAL_TOPICS]
    if internal:
        raise topology.make_topology_error(
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is "
            "prohibited."
        )
    invalid = [name for name in required if names.find_topic_name_error(name)]
    if invalid:
        raise topology.make_topology_error(
            f"Topic names {','.join(invalid)} are not valid topic names."
        )
    authorization.check_subscription(broker, request, required)


def _create_missing_topics(
    broker: Broker, request: Request, response: Mapping[str, Any]
) -> responses.StreamsGroupHeartbeatResponse:
    """Create missing internal topics, and add to their status what prevents that."""
    missing = response.get(MISSING_TOPICS)
    fields = {name: value for name, value in response.items() if name != MISSING_TOPICS}
    answer = cast("responses.StreamsGroupHeartbeatResponse", fields)
    if request.header.api_version == 0:  # Kafka sends the lag from version 1 on.
        answer.pop("acceptable_recovery_lag", None)
    if missing is None:
        return answer
    refused = missing.keys() - _find_creatable(broker, request, missing)
    if refused:
        return _with_detail(
            answer, f"Unauthorized to CREATE on topics {', '.join(sorted(refused))}."
        )
    config = broker.image.resolve_group_config(request.body.group_id)
    broker.streams_topics.create(missing, 2 * config["streams.heartbeat.interval.ms"])
    errors = broker.streams_topics.get_errors(missing)
    if errors:
        failures = [f"{name} ({errors[name]})" for name in sorted(errors)]
        more = len(failures) - ERRORS_MAX
        text = ", ".join(failures[:ERRORS_MAX]) + (f" and {more} more" if more > 0 else "")
        return _with_detail(answer, f"Creation failed: {text}.")
    # The topics exist in some milliseconds.
    interval_ms = min(answer["heartbeat_interval_ms"], WAITING_HEARTBEAT_INTERVAL_MS)
    return {**answer, "heartbeat_interval_ms": interval_ms}


def _find_creatable(broker: Broker, request: Request, topic_names: Collection[str]) -> set[str]:
    access = broker.access
    if access.enabled and not access.allows_cluster(request, Operation.CREATE, audited=False):
        return access.filter_permitted(request, Operation.CREATE, ResourceType.TOPIC, topic_names)
    return set(topic_names)


def _with_detail(
    answer: responses.StreamsGroupHeartbeatResponse, detail: str
) -> responses.StreamsGroupHeartbeatResponse:
    """Append to the detail of the status of missing internal topics."""
    statuses: list[responses.StreamsGroupHeartbeatStatus] = [
        {**status, "status_detail": f"{status['status_detail']}; {detail}"}
        if status["status_code"] == StatusCode.MISSING_INTERNAL_TOPICS
        else status
        for status in answer["status"] or ()
    ]
    return {**answer, "status": statuses}
