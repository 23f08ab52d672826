"""Checks by handlers of what a request may do with single resources.

The rows of `shoal.server.handlers` declare the permissions. They are those of Kafka 4.4.0
(KafkaApis, ControllerApis, AclApis). Shoal's own fields in requests need what the request needs:
the delay of a release and an acquisition of headers are parts of ShareFetch and ShareAcknowledge,
held keys of DescribeShareGroupOffsets, and the release of keys of AlterShareGroupOffsets. A redrive
consists of a client's requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.metadata.image import ConfigResourceType as ConfigType
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import CLUSTER_NAME, Operation, ResourceType
from shoal.server.authorization import REFUSED_WITH

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
Permits = Callable[[str], bool]
#: The types of resources that own configs, by the types of config resources.
_OF_CONFIGS = {
    ConfigType.TOPIC: TOPIC,
    ConfigType.GROUP: GROUP,
    ConfigType.BROKER: CLUSTER,
    ConfigType.BROKER_LOGGER: CLUSTER,
    ConfigType.CLIENT_METRICS: CLUSTER,
}


def check_at_controllers(broker: Broker, request: Request) -> None:
    """Check what the request needs on a listener of controllers. Raises `ApiError`."""
    permissions = broker.served.find_permissions(request.header.api_key)
    broker.access.require_all(request, permissions.at_controllers)


def make_checker(broker: Broker, request: Request, resource_type: ResourceType) -> Permits:
    """Return whether the request may use a resource of that type, as a function of its name.

    The row of the API has the operation.
    """
    access = broker.access
    if not access.enabled:
        return _permit
    operation, or_cluster = _find_permission(broker, request, resource_type)
    if or_cluster is not None and access.allows_cluster(request, or_cluster, audited=False):
        return _permit
    decisions: dict[str, bool] = {}

    def permits(name: str) -> bool:
        allowed = decisions.get(name)
        if allowed is None:
            allowed = decisions[name] = access.allows(request, operation, resource_type, name)
        return allowed

    return permits


def make_read_checker(broker: Broker, request: Request) -> Callable[[UUID], bool] | None:
    """Return whether the request may read a topic, as a function of its id, or None if it may read
    all."""
    if not broker.access.enabled:
        return None
    may_read = broker.share.fetches.may_read
    return lambda topic_id: may_read(request, topic_id)


def check_subscription(broker: Broker, request: Request, names: Iterable[str] | None) -> None:
    """Check that a member may describe the topics of its subscription. Raises `ApiError`."""
    if names and not all(map(make_checker(broker, request, TOPIC), sorted(set(names)))):
        raise ApiError(ErrorCode.topic_authorization_failed)


def make_describe_checker(broker: Broker, request: Request) -> Permits | None:
    """Return whether the sender may describe a topic, as a function of its name, or None if it may
    describe all. A refusal is not audited: the client has not named the topic."""
    access = broker.access
    if not access.enabled:
        return None
    return lambda name: access.allows(request, Operation.DESCRIBE, TOPIC, name, audited=False)


def check_config_access(broker: Broker, request: Request, resource: Any) -> ErrorCode | None:
    """Return why a request may not describe or alter the configs of a resource, or None."""
    kind = _OF_CONFIGS.get(resource.resource_type)
    if kind is None:
        return None  # Nothing has such configs.
    name = CLUSTER_NAME if kind is CLUSTER else resource.resource_name
    return None if make_checker(broker, request, kind)(name) else REFUSED_WITH[kind]


def _permit(_name: str) -> bool:
    return True


def _find_permission(
    broker: Broker, request: Request, resource_type: ResourceType
) -> tuple[Operation, Operation | None]:
    key = request.header.api_key
    for permission in broker.served.find_permissions(key).for_resources:
        if permission.resource_type is resource_type:
            return permission.operation, permission.or_cluster
    raise AssertionError(f"the row of {ApiKey(key).name} has no {resource_type.name}")
