"""The permissions that an API requires: the vocabulary of the table of APIs, and for people.

`shoal.server.handlers` declares the permissions of each API in its row (KIP-11 and later). They
have two parts. `for_request` is checked before the handler is called, by dispatch or for a request
in an Envelope; without it the whole request is refused. `for_resources` are operations on resources
that the request or the response names. The handler asks for them, and refuses or leaves out single
resources.

`shoal explain` shows them as requirements. A request needs every requirement; one of its
alternatives suffices. One with a condition concerns only some requests.
"""

from __future__ import annotations

from typing import NamedTuple

from shoal.protocol.api import ApiKey
from shoal.security.acls import Operation, ResourceType

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION, USER = ResourceType.TRANSACTIONAL_ID, ResourceType.USER
TOKEN = ResourceType.DELEGATION_TOKEN


class Need(NamedTuple):
    """An operation on a resource of a type."""

    operation: Operation
    resource_type: ResourceType


class Requirement(NamedTuple):
    """Alternatives, of which one is needed, and the requests that need it if not all do."""

    alternatives: tuple[Need, ...]
    condition: str = ""


class RequestPermission(NamedTuple):
    """An operation that the whole request needs. Any one of `operations` suffices.

    `field` is the field of the request with the resource's name, if that is not the cluster. If the
    field is null, nothing is checked here. `versions` are those of the request. `condition` says to
    people which requests need it.
    """

    operations: tuple[Operation, ...]
    resource_type: ResourceType = CLUSTER
    field: str = ""
    versions: range = range(1 << 15)
    condition: str = ""

    def as_requirement(self) -> Requirement:
        """Return the permission for people."""
        needs = tuple(Need(operation, self.resource_type) for operation in self.operations)
        return Requirement(needs, self.condition)


class ResourcePermission(NamedTuple):
    """An operation that is needed on each resource of a type.

    `condition` says to people which requests or resources need it. `or_cluster` is an operation on
    the cluster that permits it on all of them.
    """

    operation: Operation
    resource_type: ResourceType
    condition: str = ""
    or_cluster: Operation | None = None

    def as_requirement(self) -> Requirement:
        """Return the permission for people."""
        need = Need(self.operation, self.resource_type)
        if self.or_cluster is None:
            return Requirement((need,), self.condition)
        return Requirement((need, Need(self.or_cluster, CLUSTER)), self.condition)


class ApiPermissions(NamedTuple):
    """What an API requires. `at_controllers` replaces `for_request` on a listener of controllers,
    where the handler checks it."""

    for_request: tuple[RequestPermission, ...] = ()
    for_resources: tuple[ResourcePermission, ...] = ()
    at_controllers: tuple[RequestPermission, ...] = ()

    def list_requirements(self) -> list[Requirement]:
        """Return all of them for people, each operation once."""
        requirements: dict[tuple[Need, ...], Requirement] = {}
        for requirement in (
            *(permission.as_requirement() for permission in self.for_request),
            *(permission.as_requirement() for permission in self.for_resources),
            *(permission.as_requirement() for permission in self.at_controllers),
        ):
            requirements.setdefault(requirement.alternatives, requirement)
        return list(requirements.values())


def require_on_cluster(*operations: Operation) -> ApiPermissions:
    """Require one of these operations on the cluster."""
    return ApiPermissions((RequestPermission(operations),))


def require_on_group(operation: Operation, *for_resources: ResourcePermission) -> ApiPermissions:
    """Require an operation on the group of the request, and others on the resources in it."""
    for_group = RequestPermission((operation,), GROUP, "group_id")
    return ApiPermissions((for_group,), for_resources)


def require_on_each(
    operation: Operation, resource_type: ResourceType, *, or_cluster: Operation | None = None
) -> ApiPermissions:
    """Require an operation on each resource of a type."""
    return require_on_resources(ResourcePermission(operation, resource_type, or_cluster=or_cluster))


def require_on_resources(*for_resources: ResourcePermission) -> ApiPermissions:
    """Require operations on resources of several types, or under conditions."""
    return ApiPermissions(for_resources=for_resources)


#: Permissions that several APIs have in common.
WRITE_BY_TRANSACTIONAL_ID = RequestPermission((WRITE,), TRANSACTION, "transactional_id")
READ_BY_GROUP_ID = RequestPermission((READ,), GROUP, "group_id")
READ_TOPIC = ResourcePermission(READ, TOPIC)
DESCRIBE_TOPIC = ResourcePermission(DESCRIBE, TOPIC)
DESCRIBE_GROUP = ResourcePermission(DESCRIBE, GROUP)
PUBLIC = ApiPermissions()
#: Requests among nodes.
INTER_BROKER = require_on_cluster(CLUSTER_ACTION)
DESCRIBE_CLUSTER, ALTER_CLUSTER = require_on_cluster(DESCRIBE), require_on_cluster(ALTER)
DESCRIBE_TOPICS = require_on_resources(DESCRIBE_TOPIC)
DESCRIBE_GROUPS = require_on_resources(DESCRIBE_GROUP)
DESCRIBE_GROUPS_AND_TOPICS = require_on_resources(DESCRIBE_GROUP, DESCRIBE_TOPIC)
DESCRIBE_GROUPS_AND_MEMBERS = require_on_resources(
    DESCRIBE_GROUP,
    ResourcePermission(DESCRIBE, TOPIC, "topics of members; without it members are not shown"),
)
READ_GROUP = require_on_group(READ)
READ_GROUP_AND_TOPICS = require_on_group(READ, READ_TOPIC)
#: The topics are those that a member names. Those of a regular expression are filtered.
READ_GROUP_AND_SUBSCRIBE = require_on_group(
    READ, ResourcePermission(DESCRIBE, TOPIC, "topics that the member subscribes to")
)


def _require_on_configs(operation: Operation) -> ApiPermissions:
    return require_on_resources(
        ResourcePermission(operation, TOPIC, "configs of topics"),
        ResourcePermission(operation, GROUP, "configs of groups"),
        ResourcePermission(operation, CLUSTER, "configs of brokers, loggers and client metrics"),
    )


DESCRIBE_EACH_CONFIGS = _require_on_configs(DESCRIBE_CONFIGS)
ALTER_EACH_CONFIGS = _require_on_configs(ALTER_CONFIGS)

#: The operations that exist for a type of resource. Brokers accept entries with others, which never
#: match a request.
OPERATIONS: dict[ResourceType, tuple[Operation, ...]] = {
    TOPIC: (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER: (
        CREATE,
        DELETE,
        ALTER,
        DESCRIBE,
        CLUSTER_ACTION,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    TRANSACTION: (WRITE, DESCRIBE, Operation.TWO_PHASE_COMMIT),
    TOKEN: (DESCRIBE,),
    USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}


def format_api_name(api_key: ApiKey) -> str:
    """Return Kafka's name of an API, such as ShareFetch."""
    return "".join(word.capitalize() for word in api_key.name.split("_"))


def find_api(name: str) -> ApiKey | None:
    """Return the API with a name in any spelling: ShareFetch, share-fetch, SHARE_FETCH."""
    normalized = name.lower().replace("-", "").replace("_", "")
    return next((key for key in ApiKey if key.name.lower().replace("_", "") == normalized), None)
