"""What each API requires of its sender (KIP-11 and later): one row per API.

A row has two parts. `whole` is checked before the handler is called, by dispatch or for a request
in an Envelope; without it the whole request is refused. `each` are operations on resources that the
request or the response names. The handler asks for them by `each` and refuses or leaves out single
resources. `handlers` asserts that every API has a row.

The rows are those of Kafka 4.3.1 (KafkaApis, ControllerApis, AclApis). Shoal's own fields in
requests need what the request needs: the delay of a release and an acquisition of headers are parts
of ShareFetch and ShareAcknowledge, held keys of DescribeShareGroupOffsets, and the release of keys
of AlterShareGroupOffsets. A redrive consists of a client's requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata.image import ResourceType as ConfigType
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import CLUSTER_NAME, Operation, ResourceType
from shoal.server.authorization import REFUSED_WITH, Need

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, ALTER_CONFIGS = Operation.ALTER, Operation.DESCRIBE, Operation.ALTER_CONFIGS
CLUSTER_ACTION, DESCRIBE_CONFIGS = Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS


class Whole(NamedTuple):
    """An operation that the whole request needs. Any one of `operations` suffices.

    `field` is the field of the request with the resource's name, if that is not the cluster. If the
    field is null, nothing is checked here. `versions` are those of the request.
    """

    operations: tuple[Operation, ...]
    resource_type: ResourceType = CLUSTER
    field: str = ""
    versions: range = range(1 << 15)


class Each(NamedTuple):
    """An operation that is needed on each resource of a type. `or_cluster` is an operation on the
    cluster that permits it on all of them."""

    operation: Operation
    resource_type: ResourceType
    or_cluster: Operation | None = None


class Row(NamedTuple):
    """What an API requires. `at_controllers` replaces `whole` on a listener of controllers, where
    the handler checks it."""

    whole: tuple[Whole, ...] = ()
    each: tuple[Each, ...] = ()
    at_controllers: tuple[Whole, ...] = ()


def _on_cluster(*operations: Operation) -> Row:
    return Row((Whole(operations),))


def _on_group(operation: Operation, *each: Each) -> Row:
    return Row((Whole((operation,), GROUP, "group_id"),), each)


FREE = Row()
#: Requests among nodes.
OF_NODES = _on_cluster(CLUSTER_ACTION)
_WRITE_TRANSACTION = Whole((WRITE,), TRANSACTION, "transactional_id")
_READ_GROUP = Whole((READ,), GROUP, "group_id")
_DESCRIBED_TOPICS = Each(DESCRIBE, TOPIC)

ROWS: dict[ApiKey, Row] = {
    # The handler checks the transactional id, since it depends on the records.
    ApiKey.PRODUCE: Row(each=(Each(WRITE, TOPIC), Each(WRITE, TRANSACTION))),
    # A follower needs CLUSTER_ACTION instead; partitions of others get the topic's refusal.
    ApiKey.FETCH: Row(
        each=(Each(READ, TOPIC), Each(CLUSTER_ACTION, CLUSTER)),
        at_controllers=(Whole((CLUSTER_ACTION,)),),
    ),
    ApiKey.LIST_OFFSETS: Row(each=(_DESCRIBED_TOPICS,)),
    # A topic that the request creates also needs CREATE.
    ApiKey.METADATA: Row(each=(_DESCRIBED_TOPICS, Each(CREATE, TOPIC, CREATE))),
    ApiKey.OFFSET_COMMIT: _on_group(READ, Each(READ, TOPIC)),
    ApiKey.OFFSET_FETCH: Row(each=(Each(DESCRIBE, GROUP), _DESCRIBED_TOPICS)),
    # Keys of share partitions need CLUSTER_ACTION for the whole request.
    ApiKey.FIND_COORDINATOR: Row(
        each=(
            Each(DESCRIBE, GROUP),
            Each(DESCRIBE, TRANSACTION),
            Each(CLUSTER_ACTION, CLUSTER),
        )
    ),
    ApiKey.JOIN_GROUP: _on_group(READ),
    ApiKey.HEARTBEAT: _on_group(READ),
    ApiKey.LEAVE_GROUP: _on_group(READ),
    ApiKey.SYNC_GROUP: _on_group(READ),
    ApiKey.DESCRIBE_GROUPS: Row(each=(Each(DESCRIBE, GROUP),)),
    ApiKey.LIST_GROUPS: Row(each=(Each(DESCRIBE, GROUP, DESCRIBE),)),
    ApiKey.SASL_HANDSHAKE: FREE,
    ApiKey.SASL_AUTHENTICATE: FREE,
    ApiKey.API_VERSIONS: FREE,
    # Configs of the new topic are in the response only with DESCRIBE_CONFIGS.
    ApiKey.CREATE_TOPICS: Row(each=(Each(CREATE, TOPIC, CREATE), Each(DESCRIBE_CONFIGS, TOPIC))),
    ApiKey.DELETE_TOPICS: Row(each=(Each(DELETE, TOPIC, DELETE), Each(DESCRIBE, TOPIC, DELETE))),
    ApiKey.DELETE_RECORDS: Row(each=(Each(DELETE, TOPIC),)),
    # Without a transactional id: IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679).
    ApiKey.INIT_PRODUCER_ID: Row(
        (_WRITE_TRANSACTION,), (Each(WRITE, TOPIC, Operation.IDEMPOTENT_WRITE),)
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Row(each=(Each(DESCRIBE, TOPIC, CLUSTER_ACTION),)),
    ApiKey.ADD_PARTITIONS_TO_TXN: Row(
        (
            Whole((WRITE,), TRANSACTION, "v3_and_below_transactional_id", range(4)),
            Whole((CLUSTER_ACTION,), versions=range(4, 1 << 15)),
        ),
        (Each(WRITE, TOPIC),),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Row((_WRITE_TRANSACTION, _READ_GROUP)),
    ApiKey.END_TXN: Row((_WRITE_TRANSACTION,)),
    ApiKey.WRITE_TXN_MARKERS: _on_cluster(ALTER, CLUSTER_ACTION),
    ApiKey.TXN_OFFSET_COMMIT: Row((_WRITE_TRANSACTION, _READ_GROUP), (Each(READ, TOPIC),)),
    ApiKey.DESCRIBE_ACLS: _on_cluster(DESCRIBE),
    ApiKey.CREATE_ACLS: _on_cluster(ALTER),
    ApiKey.DELETE_ACLS: _on_cluster(ALTER),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _on_cluster(DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _on_cluster(ALTER),
    # A token for another user.
    ApiKey.CREATE_DELEGATION_TOKEN: Row(each=(Each(Operation.CREATE_TOKENS, ResourceType.USER),)),
    # Owners and renewers need no permission; others do.
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Row(
        each=(
            Each(DESCRIBE, ResourceType.DELEGATION_TOKEN),
            Each(Operation.DESCRIBE_TOKENS, ResourceType.USER),
        )
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: FREE,
    ApiKey.EXPIRE_DELEGATION_TOKEN: FREE,
    # Brokers, their loggers and client metrics are configs of the cluster.
    ApiKey.DESCRIBE_CONFIGS: Row(
        each=(
            Each(DESCRIBE_CONFIGS, TOPIC),
            Each(DESCRIBE_CONFIGS, GROUP),
            Each(DESCRIBE_CONFIGS, CLUSTER),
        )
    ),
    ApiKey.ALTER_CONFIGS: Row(
        each=(
            Each(ALTER_CONFIGS, TOPIC),
            Each(ALTER_CONFIGS, GROUP),
            Each(ALTER_CONFIGS, CLUSTER),
        )
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Row(
        each=(
            Each(ALTER_CONFIGS, TOPIC),
            Each(ALTER_CONFIGS, GROUP),
            Each(ALTER_CONFIGS, CLUSTER),
        )
    ),
    ApiKey.DESCRIBE_LOG_DIRS: _on_cluster(DESCRIBE),
    ApiKey.CREATE_PARTITIONS: Row(each=(Each(ALTER, TOPIC),)),
    ApiKey.DELETE_GROUPS: Row(each=(Each(DELETE, GROUP),)),
    ApiKey.ELECT_LEADERS: _on_cluster(ALTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _on_cluster(ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _on_cluster(DESCRIBE),
    ApiKey.OFFSET_DELETE: _on_group(DELETE, Each(READ, TOPIC)),
    ApiKey.VOTE: OF_NODES,
    ApiKey.BEGIN_QUORUM_EPOCH: OF_NODES,
    ApiKey.END_QUORUM_EPOCH: OF_NODES,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _on_cluster(DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: _on_cluster(ALTER_CONFIGS),
    ApiKey.DESCRIBE_QUORUM: _on_cluster(DESCRIBE),
    ApiKey.ALTER_PARTITION: OF_NODES,
    ApiKey.UPDATE_FEATURES: _on_cluster(ALTER),
    ApiKey.ENVELOPE: OF_NODES,
    ApiKey.FETCH_SNAPSHOT: OF_NODES,
    # The operations on the cluster are in the response only with DESCRIBE on it.
    ApiKey.DESCRIBE_CLUSTER: Row(
        each=(Each(DESCRIBE, CLUSTER),), at_controllers=(Whole((ALTER,)),)
    ),
    ApiKey.DESCRIBE_PRODUCERS: Row(each=(Each(READ, TOPIC),)),
    ApiKey.BROKER_REGISTRATION: OF_NODES,
    ApiKey.BROKER_HEARTBEAT: OF_NODES,
    ApiKey.UNREGISTER_BROKER: _on_cluster(ALTER),
    ApiKey.DESCRIBE_TRANSACTIONS: Row(each=(Each(DESCRIBE, TRANSACTION), _DESCRIBED_TOPICS)),
    ApiKey.LIST_TRANSACTIONS: Row(each=(Each(DESCRIBE, TRANSACTION),)),
    ApiKey.ALLOCATE_PRODUCER_IDS: OF_NODES,
    # Topics of a subscription by name; those of a regular expression are filtered.
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _on_group(READ, _DESCRIBED_TOPICS),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Row(each=(Each(DESCRIBE, GROUP), _DESCRIBED_TOPICS)),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: FREE,
    ApiKey.PUSH_TELEMETRY: FREE,
    ApiKey.LIST_CONFIG_RESOURCES: _on_cluster(DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Row(each=(_DESCRIBED_TOPICS,)),
    ApiKey.SHARE_GROUP_HEARTBEAT: _on_group(READ, _DESCRIBED_TOPICS),
    ApiKey.SHARE_GROUP_DESCRIBE: Row(each=(Each(DESCRIBE, GROUP), _DESCRIBED_TOPICS)),
    ApiKey.SHARE_FETCH: _on_group(READ, Each(READ, TOPIC)),
    ApiKey.SHARE_ACKNOWLEDGE: _on_group(READ, Each(READ, TOPIC)),
    ApiKey.ADD_RAFT_VOTER: _on_cluster(ALTER),
    ApiKey.REMOVE_RAFT_VOTER: _on_cluster(ALTER),
    ApiKey.UPDATE_RAFT_VOTER: OF_NODES,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: OF_NODES,
    ApiKey.READ_SHARE_GROUP_STATE: OF_NODES,
    ApiKey.WRITE_SHARE_GROUP_STATE: OF_NODES,
    ApiKey.DELETE_SHARE_GROUP_STATE: OF_NODES,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: OF_NODES,
    # Internal topics that the request creates also need CREATE.
    ApiKey.STREAMS_GROUP_HEARTBEAT: _on_group(READ, _DESCRIBED_TOPICS, Each(CREATE, TOPIC, CREATE)),
    ApiKey.STREAMS_GROUP_DESCRIBE: Row(each=(Each(DESCRIBE, GROUP), _DESCRIBED_TOPICS)),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Row(each=(Each(DESCRIBE, GROUP), _DESCRIBED_TOPICS)),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _on_group(READ, Each(READ, TOPIC)),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _on_group(DELETE, Each(READ, TOPIC)),
}

Permits = Callable[[str], bool]
#: The types of resources that own configs, by the types of config resources.
_OF_CONFIGS = {
    ConfigType.TOPIC: TOPIC,
    ConfigType.GROUP: GROUP,
    ConfigType.BROKER: CLUSTER,
    ConfigType.BROKER_LOGGER: CLUSTER,
    ConfigType.CLIENT_METRICS: CLUSTER,
}


def needs_of(key: ApiKey) -> Callable[[Request], Iterable[Need]] | None:
    """Return a function of a request that yields what the whole of it needs, or None if an API
    needs nothing as a whole. Raises `AssertionError` for an API without a row."""
    row = ROWS.get(key)
    assert row is not None, f"handlers.authorization has no row for {key.name}"
    return _needs(row.whole) if row.whole else None


def _needs(whole: tuple[Whole, ...]) -> Callable[[Request], Iterable[Need]]:
    def needs(request: Request) -> Iterable[Need]:
        for one in whole:
            if request.version not in one.versions:
                continue
            name = getattr(request.body, one.field) if one.field else CLUSTER_NAME
            if name is not None:
                yield Need(one.operations, one.resource_type, name)

    return needs


def check_at_controllers(broker: Broker, request: Request) -> None:
    """Check what the request needs on a listener of controllers. Raises `ApiError`."""
    for one in ROWS[ApiKey(request.header.api_key)].at_controllers:
        broker.access.require(request, Need(one.operations, one.resource_type, CLUSTER_NAME))


def each(broker: Broker, request: Request, resource_type: ResourceType) -> Permits:
    """Return whether the request may use a resource of that type, as a function of its name.

    The row of the API has the operation.
    """
    access = broker.access
    if not access.enabled:
        return _permit
    operation, or_cluster = _each_of(request.header.api_key, resource_type)
    if or_cluster is not None and access.allows_cluster(request, or_cluster, audited=False):
        return _permit
    known: dict[str, bool] = {}

    def permits(name: str) -> bool:
        found = known.get(name)
        if found is None:
            found = known[name] = access.allows(request, operation, resource_type, name)
        return found

    return permits


def reads(broker: Broker, request: Request) -> Callable[[UUID], bool] | None:
    """Return whether the request may read a topic, as a function of its id, or None if it may read
    all."""
    if not broker.access.enabled:
        return None
    may_read = broker.share.fetches.may_read
    return lambda topic_id: may_read(request, topic_id)


def check_subscription(broker: Broker, request: Request, names: Iterable[str] | None) -> None:
    """Check that a member may describe the topics of its subscription. Raises `ApiError`."""
    if names and not all(map(each(broker, request, TOPIC), sorted(set(names)))):
        raise ApiError(ErrorCode.topic_authorization_failed)


def describes_silently(broker: Broker, request: Request) -> Permits | None:
    """Return whether the sender may describe a topic, as a function of its name, or None if it may
    describe all. A refusal is not audited: the client has not named the topic."""
    access = broker.access
    if not access.enabled:
        return None
    return lambda name: access.allows(request, DESCRIBE, TOPIC, name, audited=False)


def of_config(broker: Broker, request: Request, resource: Any) -> ErrorCode | None:
    """Return why a request may not describe or alter the configs of a resource, or None."""
    kind = _OF_CONFIGS.get(resource.resource_type)
    if kind is None:
        return None  # Nothing has such configs.
    name = CLUSTER_NAME if kind is CLUSTER else resource.resource_name
    return None if each(broker, request, kind)(name) else REFUSED_WITH[kind]


def _permit(_name: str) -> bool:
    return True


def _each_of(key: int, resource_type: ResourceType) -> tuple[Operation, Operation | None]:
    for operation, kind, or_cluster in ROWS[ApiKey(key)].each:
        if kind is resource_type:
            return operation, or_cluster
    raise AssertionError(f"the row of {ApiKey(key).name} has no {resource_type.name}")
