"""Requests whose answers depend on permissions, and the permissions, for the permission matrix.

Each set of permissions belongs to a client's address in 127.0.0.0/8, so that all entries exist
from the start and no test waits for a change. The administrator's address is 127.0.0.1.

Two more clients log in, one of them as a super user.

A probe is a request in the versions that are served. It leaves the brokers as they were, or
`restore` says what the administrator repairs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from shoal.log.uuids import format_uuid
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from shoal.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from support.security.permissions import entry, everything

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.security.acls import Acl

#: Topics, groups and transactional ids: the first of each exists, the second does not. The prefix
#: covers both of them, but not the third, which exists.
TOPICS = ("data-1", "data-2", "else")
GROUPS = ("group-1", "group-2", "other-group")
TRANSACTIONS = ("tx-1", "tx-2", "other-tx")
#: Groups with a live member that is assigned the first topic.
CONSUMERS, SHARERS, STREAMERS = "group-consumers", "group-sharers", "group-streamers"
#: A topic and a group that requests delete, and that are created again.
DOOMED_TOPIC, DOOMED_GROUP = "data-doomed", "group-doomed"
AUTO_TOPIC = "data-auto"
_PREFIXES = {
    ResourceType.TOPIC: "data-",
    ResourceType.GROUP: "group-",
    ResourceType.TRANSACTIONAL_ID: "tx-",
}
_NAMES = {
    ResourceType.TOPIC: TOPICS,
    ResourceType.GROUP: GROUPS,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONS,
}
UNKNOWN_ID = UUID(int=0x5EED)

#: The users that log in, with their passwords. The first one is a super user.
SUPER, OTHER = "root", "ann"
PASSWORDS = {SUPER: "root-secret", OTHER: "ann-secret"}
#: Addresses that no client has.
ELSEWHERE, DENIED_ELSEWHERE = "127.9.0.1", "127.9.0.2"

_OPERATIONS = {
    ResourceType.TOPIC: "ALL READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS"
    " ALTER_CONFIGS",
    ResourceType.GROUP: "ALL READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    ResourceType.CLUSTER: "ALL CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS"
    " IDEMPOTENT_WRITE",
    ResourceType.TRANSACTIONAL_ID: "ALL DESCRIBE WRITE",
}


class Client(NamedTuple):
    """A client's address and its entries. It logs in as `user`, if that is not empty."""

    name: str
    host: str
    acls: tuple[Acl, ...]
    user: str = ""


def _acl(
    kind: ResourceType,
    name: str,
    pattern: PatternType,
    operation: Operation,
    host: str,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return entry(host, operation, kind, name, pattern, permission=permission)


def _only(entry: Callable[[str], Acl], host: str) -> list[Acl]:
    return [entry(host)]


def _with_others(entry: Callable[[str], Acl], without: ResourceType | None, host: str) -> list[Acl]:
    return [entry(host), *everything(host, without)]


def _patterns(kind: ResourceType) -> Iterator[tuple[str, str, PatternType]]:
    """Yield the patterns of a type: a word for the client's name, the pattern and its type."""
    if kind == ResourceType.CLUSTER:
        yield "literal", CLUSTER_NAME, PatternType.LITERAL
        return
    yield "existing", _NAMES[kind][0], PatternType.LITERAL
    yield "missing", _NAMES[kind][1], PatternType.LITERAL
    yield "prefixed", _PREFIXES[kind], PatternType.PREFIXED
    yield "any", "*", PatternType.LITERAL


def clients() -> list[Client]:
    """Return the clients of the matrix: each permission alone, beside all permissions on resources
    of other types, and denied beside all permissions."""
    found: list[Client] = []

    def add(name: str, entries: Callable[[str], list[Acl]]) -> None:
        number = len(found) + 1
        host = f"127.1.{number >> 8}.{number & 255}"
        found.append(Client(name, host, tuple(entries(host))))

    add("nothing", lambda _: [])
    add("everything", everything)
    add("nothing, and all for another host", lambda _: everything(ELSEWHERE))
    add("everything, and nothing for another host", _denied_elsewhere)
    for kind, operations in _OPERATIONS.items():
        for operation in map(Operation.__getitem__, operations.split()):
            for word, name, pattern in _patterns(kind):
                what = f"{operation.name} {kind.name} {word}"
                allow = partial(_acl, kind, name, pattern, operation)
                deny = partial(allow, permission=Permission.DENY)
                add(f"only {what}", partial(_only, allow))
                add(f"others and {what}", partial(_with_others, allow, kind))
                add(f"not {what}", partial(_with_others, deny, None))
    denials = [
        acl._replace(principal=f"User:{SUPER}", permission=Permission.DENY)
        for acl in everything("*")
    ]
    return [
        *found,
        Client("a super user, denied all", "127.2.0.1", tuple(denials), SUPER),
        Client("a user without entries", "127.2.0.2", (), OTHER),
    ]


def _denied_elsewhere(host: str) -> list[Acl]:
    denials = [acl._replace(permission=Permission.DENY) for acl in everything(DENIED_ELSEWHERE)]
    return [*everything(host), *denials]


class Ids(NamedTuple):
    """What differs between two brokers with the same topics: the topics' ids and the cluster's; and
    a member of a share group for each case: Kafka may notice the end of a connection while this
    member opens its next session, and remove that one."""

    topics: dict[str, UUID]
    cluster: str
    member: str = ""

    def of(self, name: str) -> UUID:
        return self.topics.get(name, UNKNOWN_ID)


Body = Callable[[Ids], dict[str, Any]]


class Probe(NamedTuple):
    """One or more requests on one connection. `versions` has those of the sample, and the first
    and the last of the whole matrix; None: all that are served."""

    name: str
    steps: tuple[tuple[ApiKey, Body], ...]
    versions: tuple[int, ...] | None = None
    #: Whether it creates `AUTO_TOPIC` if that is permitted.
    creates: bool = False

    @property
    def api(self) -> ApiKey:
        return self.steps[-1][0]


def _probe(name: str, api: ApiKey, body: Body, *versions: int) -> Probe:
    return Probe(name, ((api, body),), versions or None)


def _always(body: dict[str, Any]) -> Body:
    """Return the body that is the same for both brokers."""
    return lambda _: body


def _batch(**options: Any) -> bytes:
    return bytes(build_batch([(1, None, b"v", ())], **options))


def _record_bodies(topic: str) -> list[tuple[ApiKey, Body]]:
    """Return requests that write and read records, with the topic's name or its id."""

    def produce(ids: Ids) -> dict[str, Any]:
        data = [{"index": 0, "records": _batch()}]
        return {
            "acks": 1,
            "timeout_ms": 5_000,
            "topic_data": [{"name": topic, "topic_id": ids.of(topic), "partition_data": data}],
        }

    def produce_transaction(ids: Ids) -> dict[str, Any]:
        records = _batch(transactional=True, producer_id=77, producer_epoch=0, base_sequence=0)
        body = produce(ids)
        body["topic_data"][0]["partition_data"][0]["records"] = records
        return body | {"acks": -1, "transactional_id": TRANSACTIONS[0]}

    def fetch(ids: Ids, **fields: Any) -> dict[str, Any]:
        asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        return {
            "replica_id": -1,
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": 1000,
            "session_epoch": -1,
            "topics": [{"topic": topic, "topic_id": ids.of(topic), "partitions": [asked]}],
        } | fields

    return [(ApiKey.PRODUCE, produce), (ApiKey.PRODUCE, produce_transaction), (ApiKey.FETCH, fetch)]


def _offset_bodies(topic: str) -> list[tuple[ApiKey, Body]]:
    """Return requests about a topic and its offsets."""
    return [
        (
            ApiKey.LIST_OFFSETS,
            lambda _: {
                "replica_id": -1,
                "topics": [
                    {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}
                ],
            },
        ),
        (
            ApiKey.METADATA,
            lambda _: {
                "topics": [{"name": topic, "topic_id": None}],
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": True,
                "include_cluster_authorized_operations": True,
            },
        ),
        (
            ApiKey.CREATE_TOPICS,
            lambda _: {
                "topics": [{"name": topic, "num_partitions": 1, "replication_factor": 1}],
                "timeout_ms": 5_000,
                "validate_only": True,
            },
        ),
        (
            ApiKey.DELETE_RECORDS,
            lambda _: {
                "topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}],
                "timeout_ms": 5_000,
            },
        ),
        (
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            lambda _: {
                "replica_id": -2,
                "topics": [
                    {
                        "topic": topic,
                        "partitions": [
                            {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
                        ],
                    }
                ],
            },
        ),
    ]


def _partition_bodies(topic: str) -> list[tuple[ApiKey, Body]]:
    """Return requests about the partitions of a topic."""
    return [
        (
            ApiKey.CREATE_PARTITIONS,
            lambda _: {
                "topics": [{"name": topic, "count": 3, "assignments": None}],
                "timeout_ms": 5_000,
                "validate_only": True,
            },
        ),
        (
            ApiKey.DESCRIBE_PRODUCERS,
            lambda _: {"topics": [{"name": topic, "partition_indexes": [0]}]},
        ),
        (
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            lambda _: {"topics": [{"name": topic}], "response_partition_limit": 10},
        ),
        (
            ApiKey.ELECT_LEADERS,
            lambda _: {
                "election_type": 0,
                "topic_partitions": [{"topic": topic, "partitions": [0]}],
                "timeout_ms": 5_000,
            },
        ),
        (
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            lambda _: {
                "timeout_ms": 5_000,
                "topics": [
                    {"name": topic, "partitions": [{"partition_index": 0, "replicas": None}]}
                ],
            },
        ),
        (
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            lambda _: {
                "timeout_ms": 5_000,
                "topics": [{"name": topic, "partition_indexes": [0]}],
            },
        ),
        (
            ApiKey.DESCRIBE_LOG_DIRS,
            lambda _: {"topics": [{"topic": topic, "partitions": [0]}]},
        ),
    ]


def _topic_bodies(topic: str) -> list[tuple[ApiKey, Body]]:
    """Return requests about one topic, which name it or its id as their version does."""
    return _record_bodies(topic) + _offset_bodies(topic) + _partition_bodies(topic)


def _by_topic() -> Iterator[Probe]:
    for topic in TOPICS:
        seen: dict[ApiKey, int] = {}
        for api, body in _topic_bodies(topic):
            seen[api] = seen.get(api, 0) + 1
            number = f" ({seen[api]})" if seen[api] > 1 else ""
            # Before version 4, a name creates a topic.
            versions = (4, 8, 13) if api is ApiKey.METADATA else ()
            yield _probe(f"{api.name}{number} {topic}", api, body, *versions)

        def follower(ids: Ids, topic: str = topic) -> dict[str, Any]:
            body = dict(_topic_bodies(topic))[ApiKey.FETCH](ids)
            return body | {
                "replica_id": 9,
                "replica_state": {"replica_id": 9, "replica_epoch": -1},
            }

        yield _probe(f"FETCH of a follower {topic}", ApiKey.FETCH, follower)

        def by_id(ids: Ids, topic: str = topic) -> dict[str, Any]:
            return {
                "topics": [{"name": None, "topic_id": ids.of(topic)}],
                "include_topic_authorized_operations": True,
            }

        yield _probe(f"METADATA by id {topic}", ApiKey.METADATA, by_id, 12, 13)
        for operation in (ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS):
            yield _configs(operation, 2, topic)
        yield _configs(ApiKey.INCREMENTAL_ALTER_CONFIGS, 2, topic)
    asked = {"topics": [{"name": AUTO_TOPIC, "topic_id": None}], "allow_auto_topic_creation": True}
    step = (ApiKey.METADATA, _always(asked))
    yield Probe(f"METADATA that creates {AUTO_TOPIC}", (step,), (0, 4, 13), creates=True)
    for name in (DOOMED_TOPIC, TOPICS[1]):
        named = {
            "topics": [{"name": name, "topic_id": None}],
            "topic_names": [name],
            "timeout_ms": 5_000,
        }
        yield _probe(f"DELETE_TOPICS {name}", ApiKey.DELETE_TOPICS, _always(named))

        def doomed(ids: Ids, name: str = name) -> dict[str, Any]:
            return {"topics": [{"name": None, "topic_id": ids.of(name)}], "timeout_ms": 5_000}

        yield _probe(f"DELETE_TOPICS by id {name}", ApiKey.DELETE_TOPICS, doomed, 6)


def _configs(api: ApiKey, kind: int, name: str) -> Probe:
    configs = {2: ("retention.ms", "1000000"), 32: ("consumer.session.timeout.ms", "50000")}
    key, value = configs.get(kind, ("log.cleaner.threads", "1"))
    if kind == 16:
        key, value = "interval.ms", "60000"

    def body(_: Ids) -> dict[str, Any]:
        entry: dict[str, Any] = {"resource_type": kind, "resource_name": name}
        if api is ApiKey.DESCRIBE_CONFIGS:
            entry["configuration_keys"] = [key]
        else:
            entry["configs"] = [{"name": key, "value": value, "config_operation": 0}]
        return {"resources": [entry], "validate_only": True}

    return _probe(f"{api.name} of {kind} {name}", api, body)


def _commit(group: str, topic: str, ids: Ids) -> dict[str, Any]:
    offsets = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time_ms": -1,
        "topics": [{"name": topic, "topic_id": ids.of(topic), "partitions": offsets}],
    }


def _by_group() -> Iterator[Probe]:
    for group in GROUPS:
        bodies: dict[ApiKey, dict[str, Any]] = {
            ApiKey.JOIN_GROUP: {
                "group_id": group,
                "session_timeout_ms": 1,
                "rebalance_timeout_ms": 1,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            },
            ApiKey.HEARTBEAT: {"group_id": group, "generation_id": 1, "member_id": "m"},
            ApiKey.LEAVE_GROUP: {
                "group_id": group,
                "member_id": "m",
                "members": [{"member_id": "m"}],
            },
            ApiKey.SYNC_GROUP: {
                "group_id": group,
                "generation_id": 1,
                "member_id": "m",
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [],
            },
            ApiKey.DESCRIBE_GROUPS: {"groups": [group], "include_authorized_operations": True},
            ApiKey.FIND_COORDINATOR: {
                "key": group,
                "key_type": 0,
                "coordinator_keys": [group],
            },
        }
        for api, body in bodies.items():
            yield _probe(f"{api.name} {group}", api, _always(body))
        for api in (ApiKey.DESCRIBE_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
            yield _configs(api, 32, group)
        for topic in TOPICS:
            yield from _by_group_and_topic(group, topic)
    for api, group in (
        (ApiKey.CONSUMER_GROUP_DESCRIBE, CONSUMERS),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, GROUPS[1]),
        (ApiKey.SHARE_GROUP_DESCRIBE, SHARERS),
        (ApiKey.SHARE_GROUP_DESCRIBE, GROUPS[1]),
        (ApiKey.STREAMS_GROUP_DESCRIBE, STREAMERS),
        (ApiKey.STREAMS_GROUP_DESCRIBE, GROUPS[1]),
    ):
        body = {"group_ids": [group], "include_authorized_operations": True}
        yield _probe(f"{api.name} {group}", api, _always(body))
    doomed = {"groups_names": [DOOMED_GROUP]}
    yield _probe("DELETE_GROUPS existing", ApiKey.DELETE_GROUPS, _always(doomed))
    missing = {"groups_names": [GROUPS[1], "nothing"]}
    yield _probe("DELETE_GROUPS missing", ApiKey.DELETE_GROUPS, _always(missing))


def _by_group_and_topic(group: str, topic: str) -> Iterator[Probe]:
    where = f"{group} {topic}"
    yield _probe(
        f"OFFSET_COMMIT {where}",
        ApiKey.OFFSET_COMMIT,
        # A member that does not exist commits nothing.
        lambda ids: (
            _commit(group, topic, ids) | {"generation_id_or_member_epoch": 7, "member_id": "m"}
        ),
    )
    for suffix, named in (("", True), (" of all topics", False)):

        def fetch(ids: Ids, named: bool = named) -> dict[str, Any]:
            asked = {"name": topic, "topic_id": ids.of(topic), "partition_indexes": [0]}
            topics = [asked] if named else None
            return {
                "group_id": group,
                "topics": topics,
                "groups": [{"group_id": group, "topics": topics}],
            }

        versions = () if named else (2, 9, 10)
        yield _probe(f"OFFSET_FETCH {where}{suffix}", ApiKey.OFFSET_FETCH, fetch, *versions)
    yield _probe(
        f"OFFSET_DELETE {where}",
        ApiKey.OFFSET_DELETE,
        lambda _: {
            "group_id": DOOMED_GROUP if group == GROUPS[0] else group,
            "topics": [{"name": topic, "partitions": [{"partition_index": 9}]}],
        },
    )
    member = {"group_id": group, "member_id": "m", "member_epoch": 3}
    for api in (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT):
        body = member | {"subscribed_topic_names": [topic], "topic_partitions": []}
        yield _probe(f"{api.name} {where}", api, _always(body))
    yield _probe(
        f"STREAMS_GROUP_HEARTBEAT {where}", ApiKey.STREAMS_GROUP_HEARTBEAT, _streams(member, topic)
    )
    described: dict[str, Any] = {"subtopologies": [], "global_stores": []}
    yield _probe(
        f"STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE {where}",
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        _always(member | {"topology_epoch": 0, "topology_description": described}),
    )
    yield from _share(group, topic)
    yield from _transactional(TRANSACTIONS[GROUPS.index(group)], group, topic)


def _streams(member: dict[str, Any], topic: str) -> Callable[[Ids], dict[str, Any]]:
    return _always({**member, **dict.fromkeys(STREAMS_TASKS), **streams_fields(topic)})


#: The fields of a streams member's tasks.
STREAMS_TASKS = ("active_tasks", "standby_tasks", "warmup_tasks")


def streams_fields(topic: str) -> dict[str, Any]:
    """Return the other fields of a streams member whose application reads a topic."""
    subtopology = {
        "subtopology_id": "0",
        "source_topics": [topic],
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    return {
        "topology": {"epoch": 0, "subtopologies": [subtopology]},
        **dict.fromkeys(("client_tags", "task_offsets", "task_end_offsets")),
    }


def _share(group: str, topic: str) -> Iterator[Probe]:
    where = f"{group} {topic}"

    def session(ids: Ids, epoch: int = 0) -> dict[str, Any]:
        partition: dict[str, Any] = {"partition_index": 0, "acknowledgement_batches": []}
        if epoch:
            partition["acknowledgement_batches"] = [
                {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
            ]
        return {
            "group_id": group,
            "member_id": ids.member,
            "share_session_epoch": epoch,
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": 1,
            "max_records": 0,
            "batch_size": 1,
            "topics": [{"topic_id": ids.of(topic), "partitions": [partition]}],
        }

    yield _probe(f"SHARE_FETCH {where}", ApiKey.SHARE_FETCH, session)
    for last in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE):
        steps = ((ApiKey.SHARE_FETCH, session), (last, lambda ids: session(ids, 1)))
        yield Probe(f"{last.name} of a session {where}", steps)
    offsets: list[tuple[ApiKey, dict[str, Any]]] = [
        (
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            {"groups": [{"group_id": group, "topics": [{"topic_name": topic, "partitions": [0]}]}]},
        ),
        (
            ApiKey.DELETE_SHARE_GROUP_OFFSETS,
            {"group_id": group, "topics": [{"topic_name": topic}]},
        ),
    ]
    for api, body in offsets:
        yield _probe(f"{api.name} {where}", api, _always(body))
    # A group that is empty or does not exist would become a share group with these offsets.
    name = SHARERS if group == GROUPS[1] else group
    asked = {
        "topic_name": topic,
        "partitions": [{"partition_index": 0, "start_offset": 0}],
    }
    yield _probe(
        f"ALTER_SHARE_GROUP_OFFSETS {name} {topic}",
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        _always({"group_id": name, "topics": [asked]}),
    )


def _transactional(transaction: str, group: str, topic: str) -> Iterator[Probe]:
    producer = {"producer_id": 77, "producer_epoch": 0}
    partitions = [{"name": topic, "partitions": [0]}]
    one = {"transactional_id": transaction, **producer}
    yield _probe(
        f"ADD_PARTITIONS_TO_TXN {transaction} {topic}",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        lambda _: {
            "v3_and_below_transactional_id": transaction,
            "v3_and_below_producer_id": 77,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": partitions,
            "transactions": [one | {"verify_only": False, "topics": partitions}],
        },
        0,
        3,
        5,
    )
    yield _probe(
        f"TXN_OFFSET_COMMIT {transaction} {group} {topic}",
        ApiKey.TXN_OFFSET_COMMIT,
        lambda ids: _commit(group, topic, ids) | one | {"generation_id": -1},
    )
    if topic != TOPICS[0]:
        return
    bodies: list[tuple[ApiKey, dict[str, Any]]] = [
        (ApiKey.INIT_PRODUCER_ID, {"transactional_id": transaction, "transaction_timeout_ms": -1}),
        (ApiKey.ADD_OFFSETS_TO_TXN, one | {"group_id": group}),
        (ApiKey.END_TXN, one | {"committed": True}),
        (ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [transaction]}),
        (
            ApiKey.FIND_COORDINATOR,
            {"key": transaction, "key_type": 1, "coordinator_keys": [transaction]},
        ),
    ]
    for api, body in bodies:
        versions = (1, 6) if api is ApiKey.FIND_COORDINATOR else ()
        yield _probe(f"{api.name} {transaction} {group}", api, _always(body), *versions)


def _listings() -> list[tuple[ApiKey, dict[str, Any]]]:
    """Return requests that describe the cluster and what it has."""
    return [
        (ApiKey.API_VERSIONS, {"client_software_name": "a", "client_software_version": "1"}),
        (ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []}),
        (
            ApiKey.LIST_TRANSACTIONS,
            {"state_filters": [], "producer_id_filters": [], "duration_filter": -1},
        ),
        (
            ApiKey.METADATA,
            {
                "topics": None,
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": True,
            },
        ),
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, {"topics": [], "response_partition_limit": 100}),
        (ApiKey.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": -1}),
        (ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": True}),
        (ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": []}),
        (ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False}),
        (ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}),
        (
            ApiKey.DESCRIBE_QUORUM,
            {
                "topics": [
                    {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
                ]
            },
        ),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, {"timeout_ms": 5_000, "topics": None}),
        (ApiKey.UNREGISTER_BROKER, {"broker_id": 999}),
        (ApiKey.UNREGISTER_CONTROLLER, {"controller_id": 999}),
        (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, {"client_instance_id": None}),
    ]


def _acl_requests() -> list[tuple[ApiKey, dict[str, Any]]]:
    """Return requests about access control entries, none of which exists."""
    acl_filter = {
        "resource_type_filter": 2,
        "resource_name_filter": "no such topic",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    creation = {
        "resource_type": 2,
        "resource_name": "no such topic",
        "resource_pattern_type": 3,
        "principal": "User:nobody",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return [
        (ApiKey.DESCRIBE_ACLS, acl_filter),
        (ApiKey.DELETE_ACLS, {"filters": [acl_filter]}),
        (ApiKey.CREATE_ACLS, {"creations": [creation]}),
    ]


def _login_requests() -> list[tuple[ApiKey, dict[str, Any]]]:
    """Return requests about users of SCRAM and delegation tokens, none of which exists.

    Kafka never answers a refused request about all users of SCRAM.
    """
    owner = {"owner_principal_type": "User", "owner_principal_name": "nobody"}
    principal = {"principal_type": "User", "principal_name": "nobody"}
    return [
        (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": [{"name": "nobody"}, {"name": "no"}]}),
        (
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
        ),
        (ApiKey.CREATE_DELEGATION_TOKEN, {"renewers": [], "max_lifetime_ms": -1, **owner}),
        (ApiKey.DESCRIBE_DELEGATION_TOKEN, {"owners": [principal]}),
        (ApiKey.RENEW_DELEGATION_TOKEN, {"hmac": b"nothing", "renew_period_ms": -1}),
        (ApiKey.EXPIRE_DELEGATION_TOKEN, {"hmac": b"nothing", "expiry_time_period_ms": -1}),
    ]


def _changes() -> list[tuple[ApiKey, dict[str, Any]]]:
    """Return requests that would change the cluster, if they were valid."""
    return [
        (
            ApiKey.UPDATE_FEATURES,
            {
                "timeout_ms": 5_000,
                "feature_updates": [
                    {"feature": "no.such", "max_version_level": 1, "upgrade_type": 1}
                ],
                "validate_only": True,
            },
        ),
        (
            ApiKey.ALTER_CLIENT_QUOTAS,
            {
                "entries": [
                    {
                        "entity": [{"entity_type": "user", "entity_name": "u"}],
                        "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                    }
                ],
                "validate_only": True,
            },
        ),
        (
            ApiKey.ADD_RAFT_VOTER,
            {
                "cluster_id": "another",
                "timeout_ms": 5_000,
                "voter_id": 9,
                "voter_directory_id": UNKNOWN_ID,
                "listeners": [],
            },
        ),
        (
            ApiKey.REMOVE_RAFT_VOTER,
            {"cluster_id": "another", "voter_id": 9, "voter_directory_id": UNKNOWN_ID},
        ),
    ]


def _of_cluster() -> Iterator[Probe]:
    for api, body in _listings() + _acl_requests() + _login_requests() + _changes():
        yield _probe(api.name, api, _always(body))
    for kind, name in ((4, "1"), (4, ""), (8, "1"), (16, "metrics")):
        yield _configs(ApiKey.DESCRIBE_CONFIGS, kind, name)
    for kind, name in ((4, "1"), (4, ""), (16, "metrics")):
        yield _configs(ApiKey.INCREMENTAL_ALTER_CONFIGS, kind, name)
    yield _probe(
        "FIND_COORDINATOR of a share partition",
        ApiKey.FIND_COORDINATOR,
        _always({"key_type": 2, "coordinator_keys": [f"group-1:{format_uuid(UNKNOWN_ID)}:0"]}),
        6,
    )
    yield from _of_nodes()


def _of_nodes() -> Iterator[Probe]:
    """Requests that brokers send to brokers. The share group and its topic do not exist."""
    share = {"group_id": "nothing", "topics": []}
    key = {"partition": 0, "state_epoch": 0, "leader_epoch": 0, "start_offset": 0}

    def states(_: Ids) -> dict[str, Any]:
        return share | {"topics": [{"topic_id": UNKNOWN_ID, "partitions": [key]}]}

    for api in (
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ):
        yield _probe(api.name, api, states)
    yield _probe(
        "WRITE_TXN_MARKERS",
        ApiKey.WRITE_TXN_MARKERS,
        lambda _: {
            "markers": [
                {
                    "producer_id": 78,
                    "producer_epoch": 0,
                    "transaction_result": False,
                    "topics": [{"name": TOPICS[1], "partition_indexes": [0]}],
                    "coordinator_epoch": 0,
                }
            ]
        },
    )


def probes() -> list[Probe]:
    """Return the requests of the matrix."""
    return [*_by_topic(), *_by_group(), *_of_cluster()]
