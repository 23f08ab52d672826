"""What each API of Kafka 4.3.1 requires of a client, for people who read it.

`shoal explain` shows these rows. A request needs every row; one of a row's alternatives suffices. A
row with a condition applies only to some requests. The rows that brokers check are declared apart.
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


def _need(
    operation: Operation,
    resource_type: ResourceType,
    condition: str = "",
    *,
    or_cluster: Operation | None = None,
) -> Requirement:
    alternatives = [Need(operation, resource_type)]
    if or_cluster is not None:
        alternatives.append(Need(or_cluster, CLUSTER))
    return Requirement(tuple(alternatives), condition)


_READ_GROUP, _READ_TOPIC = _need(READ, GROUP), _need(READ, TOPIC)
_DESCRIBE_GROUP, _DESCRIBE_TOPIC = _need(DESCRIBE, GROUP), _need(DESCRIBE, TOPIC)
_DELETE_GROUP = _need(DELETE, GROUP)
_WRITE_TRANSACTION = _need(WRITE, TRANSACTION)
_IN_SUBSCRIPTION = _need(DESCRIBE, TOPIC, "topics that the member subscribes to")
_OF_MEMBERS = _need(DESCRIBE, TOPIC, "topics of members; without it members are not shown")
_NODES = (_need(CLUSTER_ACTION, CLUSTER),)
_DESCRIBES, _ALTERS = (_need(DESCRIBE, CLUSTER),), (_need(ALTER, CLUSTER),)


def _configs(operation: Operation) -> tuple[Requirement, ...]:
    return (
        _need(operation, TOPIC, "configs of topics"),
        _need(operation, GROUP, "configs of groups"),
        _need(operation, CLUSTER, "configs of brokers, loggers and client metrics"),
    )


REQUIREMENTS: dict[ApiKey, tuple[Requirement, ...]] = {
    ApiKey.PRODUCE: (
        _need(WRITE, TOPIC),
        _need(WRITE, TRANSACTION, "a transactional producer"),
    ),
    ApiKey.FETCH: (
        _need(READ, TOPIC, "a consumer"),
        _need(CLUSTER_ACTION, CLUSTER, "a follower"),
    ),
    ApiKey.LIST_OFFSETS: (_DESCRIBE_TOPIC,),
    ApiKey.METADATA: (
        _DESCRIBE_TOPIC,
        _need(CREATE, TOPIC, "topics to be created automatically", or_cluster=CREATE),
    ),
    ApiKey.OFFSET_COMMIT: (_READ_GROUP, _READ_TOPIC),
    ApiKey.OFFSET_FETCH: (_DESCRIBE_GROUP, _DESCRIBE_TOPIC),
    ApiKey.FIND_COORDINATOR: (
        _need(DESCRIBE, GROUP, "the coordinator of a group"),
        _need(DESCRIBE, TRANSACTION, "the coordinator of a transactional id"),
        _need(CLUSTER_ACTION, CLUSTER, "the coordinator of a share partition"),
    ),
    ApiKey.JOIN_GROUP: (_READ_GROUP,),
    ApiKey.HEARTBEAT: (_READ_GROUP,),
    ApiKey.LEAVE_GROUP: (_READ_GROUP,),
    ApiKey.SYNC_GROUP: (_READ_GROUP,),
    ApiKey.DESCRIBE_GROUPS: (_DESCRIBE_GROUP,),
    ApiKey.LIST_GROUPS: (_need(DESCRIBE, GROUP, or_cluster=DESCRIBE),),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (
        _need(CREATE, TOPIC, or_cluster=CREATE),
        _need(DESCRIBE_CONFIGS, TOPIC, "to see the configs of the new topic"),
    ),
    ApiKey.DELETE_TOPICS: (
        _need(DELETE, TOPIC, or_cluster=DELETE),
        _need(DESCRIBE, TOPIC, "a topic that is named by its id", or_cluster=DELETE),
    ),
    ApiKey.DELETE_RECORDS: (_need(DELETE, TOPIC),),
    ApiKey.INIT_PRODUCER_ID: (
        _need(WRITE, TRANSACTION, "a transactional producer"),
        _need(
            WRITE,
            TOPIC,
            "an idempotent producer; any topic suffices",
            or_cluster=Operation.IDEMPOTENT_WRITE,
        ),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_need(DESCRIBE, TOPIC, or_cluster=CLUSTER_ACTION),),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        _need(WRITE, TRANSACTION, "a producer; versions 0 to 3"),
        _need(WRITE, TOPIC, "a producer; versions 0 to 3"),
        _need(CLUSTER_ACTION, CLUSTER, "a broker; since version 4"),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (_WRITE_TRANSACTION, _READ_GROUP),
    ApiKey.END_TXN: (_WRITE_TRANSACTION,),
    ApiKey.WRITE_TXN_MARKERS: (_need(ALTER, CLUSTER, or_cluster=CLUSTER_ACTION),),
    ApiKey.TXN_OFFSET_COMMIT: (_WRITE_TRANSACTION, _READ_GROUP, _READ_TOPIC),
    ApiKey.DESCRIBE_ACLS: _DESCRIBES,
    ApiKey.CREATE_ACLS: _ALTERS,
    ApiKey.DELETE_ACLS: _ALTERS,
    ApiKey.DESCRIBE_CONFIGS: _configs(DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIGS: _configs(ALTER_CONFIGS),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _ALTERS,
    ApiKey.DESCRIBE_LOG_DIRS: _DESCRIBES,
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_PARTITIONS: (_need(ALTER, TOPIC),),
    ApiKey.CREATE_DELEGATION_TOKEN: (
        _need(Operation.CREATE_TOKENS, USER, "a token for another user"),
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: (),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (
        _need(DESCRIBE, TOKEN, "a token of another owner, by its id"),
        _need(Operation.DESCRIBE_TOKENS, USER, "the tokens of another owner"),
    ),
    ApiKey.DELETE_GROUPS: (_DELETE_GROUP,),
    ApiKey.ELECT_LEADERS: _ALTERS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs(ALTER_CONFIGS),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _ALTERS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _DESCRIBES,
    ApiKey.OFFSET_DELETE: (_DELETE_GROUP, _READ_TOPIC),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (_need(DESCRIBE_CONFIGS, CLUSTER),),
    ApiKey.ALTER_CLIENT_QUOTAS: (_need(ALTER_CONFIGS, CLUSTER),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _DESCRIBES,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _ALTERS,
    ApiKey.VOTE: _NODES,
    ApiKey.BEGIN_QUORUM_EPOCH: _NODES,
    ApiKey.END_QUORUM_EPOCH: _NODES,
    ApiKey.DESCRIBE_QUORUM: _DESCRIBES,
    ApiKey.ALTER_PARTITION: _NODES,
    ApiKey.UPDATE_FEATURES: _ALTERS,
    ApiKey.ENVELOPE: _NODES,
    ApiKey.FETCH_SNAPSHOT: _NODES,
    ApiKey.DESCRIBE_CLUSTER: (
        _need(DESCRIBE, CLUSTER, "to see the permitted operations"),
        _need(ALTER, CLUSTER, "on a listener of controllers"),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (_READ_TOPIC,),
    ApiKey.BROKER_REGISTRATION: _NODES,
    ApiKey.BROKER_HEARTBEAT: _NODES,
    ApiKey.UNREGISTER_BROKER: _ALTERS,
    ApiKey.DESCRIBE_TRANSACTIONS: (
        _need(DESCRIBE, TRANSACTION),
        _need(DESCRIBE, TOPIC, "topics of the transaction; others are not shown"),
    ),
    ApiKey.LIST_TRANSACTIONS: (_need(DESCRIBE, TRANSACTION),),
    ApiKey.ALLOCATE_PRODUCER_IDS: _NODES,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (_READ_GROUP, _IN_SUBSCRIPTION),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (_DESCRIBE_GROUP, _OF_MEMBERS),
    ApiKey.CONTROLLER_REGISTRATION: _NODES,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (),
    ApiKey.PUSH_TELEMETRY: (),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _NODES,
    ApiKey.LIST_CONFIG_RESOURCES: (_need(DESCRIBE_CONFIGS, CLUSTER),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (_DESCRIBE_TOPIC,),
    ApiKey.SHARE_GROUP_HEARTBEAT: (_READ_GROUP, _IN_SUBSCRIPTION),
    ApiKey.SHARE_GROUP_DESCRIBE: (_DESCRIBE_GROUP, _OF_MEMBERS),
    ApiKey.SHARE_FETCH: (_READ_GROUP, _READ_TOPIC),
    ApiKey.SHARE_ACKNOWLEDGE: (_READ_GROUP, _READ_TOPIC),
    ApiKey.ADD_RAFT_VOTER: _ALTERS,
    ApiKey.REMOVE_RAFT_VOTER: _ALTERS,
    ApiKey.UPDATE_RAFT_VOTER: _NODES,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _NODES,
    ApiKey.READ_SHARE_GROUP_STATE: _NODES,
    ApiKey.WRITE_SHARE_GROUP_STATE: _NODES,
    ApiKey.DELETE_SHARE_GROUP_STATE: _NODES,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _NODES,
    ApiKey.STREAMS_GROUP_HEARTBEAT: (
        _READ_GROUP,
        _need(DESCRIBE, TOPIC, "topics of the application's topology"),
        _need(CREATE, TOPIC, "internal topics that do not exist yet", or_cluster=CREATE),
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: (
        _DESCRIBE_GROUP,
        _need(DESCRIBE, TOPIC, "topics of the topology; without it the group is not shown"),
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (_DESCRIBE_GROUP, _DESCRIBE_TOPIC),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (_READ_GROUP, _READ_TOPIC),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (_DELETE_GROUP, _READ_TOPIC),
}

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


def api_name(api_key: ApiKey) -> str:
    """Return Kafka's name of an API, such as ShareFetch."""
    return "".join(word.capitalize() for word in api_key.name.split("_"))


def find_api(name: str) -> ApiKey | None:
    """Return the API with a name in any spelling: ShareFetch, share-fetch, SHARE_FETCH."""
    wanted = name.lower().replace("-", "").replace("_", "")
    return next((key for key in ApiKey if key.name.lower().replace("_", "") == wanted), None)
