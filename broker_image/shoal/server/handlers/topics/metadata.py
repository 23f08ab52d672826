"""Metadata: brokers, the controller, and topics with their partitions and leaders (KIP-516).

Responses are cached, encoded, with the image: clients that use the same topics ask the same.

A request has topics by name, by id, or all of them. An unknown name creates the topic if
`auto.create.topics.enable` and the client allow it. The response then waits for the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata import names
from shoal.metadata.image import NO_LEADER, MetadataImage, TopicImage
from shoal.metadata.topics import NewTopic, build_internal_topic
from shoal.protocol import codec
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import CLUSTER_NAME, Operation, ResourceType
from shoal.server.handlers import authorization
from shoal.server.handlers import authorized_operations as operations
from shoal.server.network import error_counts
from shoal.server.network.error_counts import make_counted_body
from shoal.server.network.responses import map_reply

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.protocol.responses import cluster as responses
    from shoal.server.broker import Broker
    from shoal.server.handlers.authorization import Permits
    from shoal.server.network.api import Answer, Request

#: The first version with topics by id in the request. Responses have ids since version 10.
IDS_FROM = 12
#: What a topic of a request takes in the key of a cached response, in bytes.
_ASKED_TOPIC_BYTES = 300


def handle(broker: Broker, request: Request) -> Answer:
    return broker.unreachable_leaders.answer(_answer_now, broker, request)


def _answer_now(broker: Broker, request: Request) -> Answer:
    if request.is_in_pieces or broker.lifecycle.is_lost or broker.access.logs_successes:
        return _build_answer(broker, request)
    key = (
        request.version,
        request.peer.listener,
        broker.controller_id,
        broker.unreachable_leaders.get_recently_fenced(),
        None
        if request.body.topics is None
        else tuple((t.name, getattr(t, "topic_id", None)) for t in request.body.topics),
        getattr(request.body, "include_topic_authorized_operations", False),
        getattr(request.body, "include_cluster_authorized_operations", False),
        getattr(request.body, "allow_auto_topic_creation", True),
        _compute_rights(broker, request),
    )
    answers = broker.image.answers
    cached = answers.get(key)
    if cached is not None:
        return cached
    answer = _build_answer(broker, request)
    if not isinstance(answer, dict) or _has_refusal(answer["topics"]):
        return answer
    api_key = request.header.api_key
    encoded = bytes(codec.write_response(api_key, request.version, answer))
    body = make_counted_body([encoded], error_counts.count_errors(answer, api_key, request.version))
    answers.put(key, body, len(encoded) + _ASKED_TOPIC_BYTES * len(request.body.topics or ()))
    return body


def _has_refusal(topics: Iterable[responses.MetadataResponseTopic]) -> bool:
    """Whether the client named a topic that it may not describe: each such request is audited."""
    return any(t["error_code"] is ErrorCode.topic_authorization_failed for t in topics)


def _compute_rights(broker: Broker, request: Request) -> tuple[int, ...] | None:
    """Return what the client may do with the topics of its request, for the key of a cached
    response: clients with equal rights share it. None without an authorizer."""
    access = broker.access
    if not access.enabled:
        return None
    topics, image = request.body.topics, broker.image
    names: list[str] = []
    if topics is None or (not topics and request.version == 0):
        names += image.topics
    for topic in topics or ():
        existing = image.find_topic_by_id(getattr(topic, "topic_id", None))
        names.append(topic.name or "" if existing is None else existing.name)
    rights = [access.get_operation_bits(request, ResourceType.TOPIC, name) for name in names]
    return (access.get_operation_bits(request, ResourceType.CLUSTER, CLUSTER_NAME), *rights)


def _build_answer(broker: Broker, request: Request) -> Answer:
    body, image = request.body, broker.image
    topics = body.topics
    describes = authorization.make_checker(broker, request, ResourceType.TOPIC)
    if topics is None or (not topics and request.version == 0):
        results = [describe(image, t) for t in image.topics.values() if describes(t.name)]
        return _answer(broker, request, results)
    named = (getattr(topic, "topic_id", None) for topic in topics)
    # By bytes, whose hashes no client can make equal.
    ids = list({one.bytes: one for one in named if one is not None}.values())
    if request.version < IDS_FROM and (ids or any(t.name is None for t in topics)):
        raise ApiError(
            ErrorCode.invalid_request,
            f"Metadata v{request.version} takes topics by name alone, not by id",
        )
    if ids:
        return _answer(
            broker, request, [_describe_id(image, topic_id, describes) for topic_id in ids]
        )
    requested = list(dict.fromkeys(topic.name or "" for topic in topics))
    refused = {name: False for name in requested if not describes(name)}
    missing = [
        name
        for name in requested
        if name not in image.topics
        and name not in refused
        and not names.find_topic_name_error(name)
    ]
    allowed = getattr(body, "allow_auto_topic_creation", True)
    if missing and allowed and image.broker_config["auto.create.topics.enable"]:
        creates = _find_creatable(broker, request, missing)
        refused |= {name: is_internal(name) for name in missing if name not in creates}
        new = [_make_new_topic(image, name) for name in missing if name in creates]
        if new:
            return map_reply(
                broker.topic_creation.create_topics(new),
                lambda results: _answer(
                    broker,
                    request,
                    _describe_names(
                        broker.image, requested, {r["name"]: r for r in results}, refused
                    ),
                ),
            )
    return _answer(broker, request, _describe_names(image, requested, {}, refused))


def _find_creatable(broker: Broker, request: Request, topic_names: list[str]) -> set[str]:
    """Return the topics that the client may create."""
    access = broker.access
    if access.enabled and not access.allows_cluster(request, Operation.CREATE, audited=False):
        return access.filter_permitted(request, Operation.CREATE, ResourceType.TOPIC, topic_names)
    return set(topic_names)


def _make_new_topic(image: MetadataImage, name: str) -> NewTopic:
    if name in names.INTERNAL_TOPICS:
        return build_internal_topic(image, name)
    return NewTopic(name)


def _describe_names(
    image: MetadataImage,
    topic_names: list[str],
    creations: Mapping[str, Mapping[str, Any]],
    unauthorized: Mapping[str, bool],
) -> list[responses.MetadataResponseTopic]:
    """The topics of those names. `creations` has the errors of topics that were not created.
    `unauthorized` has the topics that the client may not use, and whether they are internal."""
    results: list[responses.MetadataResponseTopic] = []
    for name in topic_names:
        if name in unauthorized:
            # The same for a topic that exists and for one that does not.
            code = ErrorCode.topic_authorization_failed
            results.append({"error_code": code, "name": name, "is_internal": unauthorized[name]})
            continue
        topic = image.topics.get(name)
        if topic is not None:
            results.append(describe(image, topic))
            continue
        code = ErrorCode.unknown_topic_or_partition
        refused = creations.get(name, {}).get("error_code", ErrorCode.none)
        if names.find_topic_name_error(name) or refused == ErrorCode.invalid_topic_exception:
            code = ErrorCode.invalid_topic_exception
        elif refused == ErrorCode.invalid_replication_factor:
            code = refused
        results.append({"error_code": code, "name": name, "is_internal": is_internal(name)})
    return results


def _describe_id(
    image: MetadataImage, topic_id: Any, describes: Permits
) -> responses.MetadataResponseTopic:
    topic = image.find_topic_by_id(topic_id)
    if topic is None:
        return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id}
    if not describes(topic.name):
        code = ErrorCode.topic_authorization_failed
        return {"error_code": code, "name": None, "topic_id": topic_id}
    return describe(image, topic)


def is_internal(name: str) -> bool:
    return name in names.INTERNAL_TOPICS


def describe(image: MetadataImage, topic: TopicImage) -> responses.MetadataResponseTopic:
    """One topic with all its partitions."""
    running = image.running
    results: list[responses.MetadataResponsePartition] = []
    for index, partition in enumerate(topic.partitions):
        leader = partition.leader
        results.append(
            {
                "error_code": (
                    ErrorCode.leader_not_available if leader == NO_LEADER else ErrorCode.none
                ),
                "partition_index": index,
                "leader_id": leader,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": partition.isr,
                "offline_replicas": [r for r in partition.replicas if r not in running],
            }
        )
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": results,
    }


def _answer(
    broker: Broker, request: Request, topics: list[responses.MetadataResponseTopic]
) -> responses.MetadataResponse:
    body, image = request.body, broker.image
    listed = list_brokers(
        image, request.peer.listener, broker.unreachable_leaders.get_recently_fenced()
    )
    if broker.replicas.some_cut_off:
        _disclaim(broker, topics)
        listed = [result for result in listed if result["node_id"] != broker.node_id]
    if getattr(body, "include_topic_authorized_operations", False):
        for result in topics:
            if result["error_code"] is not ErrorCode.topic_authorization_failed and result["name"]:
                result["topic_authorized_operations"] = operations.get_topic_operations(
                    broker, request, result["name"]
                )
    wants_operations = getattr(body, "include_cluster_authorized_operations", False)
    return {
        "brokers": listed,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.controller_id,
        "topics": topics,
        "cluster_authorized_operations": operations.get_cluster_operations(broker, request)
        if wants_operations
        else operations.NOT_ASKED,
    }


def _disclaim(broker: Broker, topics: list[responses.MetadataResponseTopic]) -> None:
    """Leave out this broker if it is cut off, as other brokers do. Otherwise it would send clients
    back to itself, and librdkafka repeats requests to the broker that it used last."""
    for topic in topics:
        for result in topic.get("partitions", ()):
            if result["leader_id"] != broker.node_id:
                continue
            partition = broker.partitions.find_by_name(
                topic["name"] or "", result["partition_index"]
            )
            if partition is not None and broker.replicas.is_cut_off(partition):
                result["leader_id"] = NO_LEADER
                result["error_code"] = ErrorCode.leader_not_available


def list_brokers(
    image: MetadataImage, listener: str, fenced: Iterable[int]
) -> list[responses.MetadataResponseBroker]:
    """The running brokers and those in `fenced`, with their endpoints for the client's listener."""
    results: list[responses.MetadataResponseBroker] = []
    listed = {**image.running, **{id: image.brokers[id] for id in fenced}}
    for broker_id, broker in sorted(listed.items()):
        endpoint = broker.find_endpoint(listener)
        if endpoint is not None:
            results.append(
                {
                    "node_id": broker_id,
                    "host": endpoint.host,
                    "port": endpoint.port,
                    "rack": broker.rack,
                }
            )
    return results


def refuse(request: Request, code: int, _message: str | None) -> responses.MetadataResponse:
    """The error of the whole request. Before version 13, each topic has it."""
    topics: list[responses.MetadataResponseTopic] = [
        {"error_code": code, "name": t.name or "", "topic_id": getattr(t, "topic_id", None)}
        for t in request.body.topics or ()
    ]
    return {"error_code": code, "topics": topics}
