"""Generate the types of responses from the schemas of their APIs:
`python tools/response_types.py` writes the modules of `broker_image/shoal/protocol/responses`.

A type has the fields of all versions that a broker serves, as a mapping for the codec of any of
them. It exists for mypy alone: at run time a response is a plain dict, which costs nothing more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kio.static.constants import EntityType
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.schema import Struct
from shoal.security.requirements import format_api_name
from shoal.server.handlers import HANDLERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.protocol.schema import Field

FOLDER = Path(__file__).parents[1] / "broker_image" / "shoal" / "protocol" / "responses"
#: The APIs of each module, with its subject.
MODULES = {
    "cluster": (
        "brokers, topics, log directories, producers, configs and telemetry",
        (
            ApiKey.METADATA,
            ApiKey.API_VERSIONS,
            ApiKey.DESCRIBE_CONFIGS,
            ApiKey.DESCRIBE_LOG_DIRS,
            ApiKey.DESCRIBE_CLUSTER,
            ApiKey.DESCRIBE_PRODUCERS,
            ApiKey.LIST_CONFIG_RESOURCES,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
            ApiKey.PUSH_TELEMETRY,
        ),
    ),
    "security": (
        "access control entries, credentials, delegation tokens and quotas",
        (
            ApiKey.DESCRIBE_ACLS,
            ApiKey.CREATE_ACLS,
            ApiKey.DELETE_ACLS,
            ApiKey.CREATE_DELEGATION_TOKEN,
            ApiKey.RENEW_DELEGATION_TOKEN,
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            ApiKey.ALTER_CLIENT_QUOTAS,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            ApiKey.SASL_HANDSHAKE,
            ApiKey.SASL_AUTHENTICATE,
            ApiKey.EXPIRE_DELEGATION_TOKEN,
            ApiKey.DESCRIBE_DELEGATION_TOKEN,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ),
    ),
    "topics": (
        "topics, their partitions and configs",
        (
            ApiKey.CREATE_TOPICS,
            ApiKey.DELETE_TOPICS,
            ApiKey.DELETE_RECORDS,
            ApiKey.CREATE_PARTITIONS,
            ApiKey.ELECT_LEADERS,
            ApiKey.ALTER_CONFIGS,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ),
    ),
    "quorum": (
        "the metadata quorum, its controller and the brokers that it knows",
        (
            ApiKey.VOTE,
            ApiKey.BEGIN_QUORUM_EPOCH,
            ApiKey.END_QUORUM_EPOCH,
            ApiKey.FETCH_SNAPSHOT,
            ApiKey.DESCRIBE_QUORUM,
            ApiKey.ADD_RAFT_VOTER,
            ApiKey.REMOVE_RAFT_VOTER,
            ApiKey.UPDATE_RAFT_VOTER,
            ApiKey.ALTER_PARTITION,
            ApiKey.UPDATE_FEATURES,
            ApiKey.ENVELOPE,
            ApiKey.BROKER_REGISTRATION,
            ApiKey.BROKER_HEARTBEAT,
            ApiKey.UNREGISTER_BROKER,
            ApiKey.UNREGISTER_CONTROLLER,
            ApiKey.ALLOCATE_PRODUCER_IDS,
        ),
    ),
    "logs": (
        "the records of partitions",
        (
            ApiKey.LIST_OFFSETS,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            ApiKey.FETCH,
        ),
    ),
    "transactions": (
        "producer ids and transactions",
        (
            ApiKey.INIT_PRODUCER_ID,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.ADD_OFFSETS_TO_TXN,
            ApiKey.END_TXN,
            ApiKey.WRITE_TXN_MARKERS,
            ApiKey.TXN_OFFSET_COMMIT,
            ApiKey.DESCRIBE_TRANSACTIONS,
            ApiKey.LIST_TRANSACTIONS,
        ),
    ),
    "groups": (
        "groups of consumers, their members and offsets",
        (
            ApiKey.FIND_COORDINATOR,
            ApiKey.JOIN_GROUP,
            ApiKey.HEARTBEAT,
            ApiKey.LEAVE_GROUP,
            ApiKey.SYNC_GROUP,
            ApiKey.DESCRIBE_GROUPS,
            ApiKey.LIST_GROUPS,
            ApiKey.DELETE_GROUPS,
            ApiKey.OFFSET_COMMIT,
            ApiKey.OFFSET_FETCH,
            ApiKey.OFFSET_DELETE,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            ApiKey.STREAMS_GROUP_HEARTBEAT,
            ApiKey.STREAMS_GROUP_DESCRIBE,
            ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        ),
    ),
    "share": (
        "share groups and the state of share partitions",
        (
            ApiKey.SHARE_GROUP_HEARTBEAT,
            ApiKey.SHARE_GROUP_DESCRIBE,
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            ApiKey.READ_SHARE_GROUP_STATE,
            ApiKey.WRITE_SHARE_GROUP_STATE,
            ApiKey.DELETE_SHARE_GROUP_STATE,
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ),
    ),
}
#: APIs without types: their modules encode what they return (`protocol.produce`, `share`).
ENCODED = {ApiKey.PRODUCE, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE}
#: Records may still be in a file.
_TYPES = {
    "bool": "bool",
    "string": "str",
    "uuid": "UUID",
    "float64": "float",
    "bytes": "bytes",
    "records": "Sized",
}


def collect_structs(api_key: ApiKey) -> dict[str, dict[str, Field]]:
    """Return the fields of each struct in an API's response, of all versions that brokers serve.

    A field that is nullable in one version is so in all of them.
    """
    structs: dict[str, dict[str, Field]] = {}

    def collect(struct: Struct) -> None:
        for field in struct.fields:
            if isinstance(field.type, Struct):
                collect(field.type)
        fields = structs.setdefault(struct.name, {})
        for field in struct.fields:
            if field.name not in fields or field.nullable:
                fields[field.name] = field

    for version in HANDLERS[api_key].versions:
        collect(codec.build_struct(codec.load_entity(api_key, version, EntityType.response)))
    return structs


def format_name(api_key: ApiKey, struct: str) -> str:
    """Return the name of a struct's type, which is the only one of a module."""
    api = format_api_name(api_key)
    return struct if struct.startswith(api) else f"{api}{struct}"


def format_type(api_key: ApiKey, field: Field) -> str:
    """Return the annotation of a field."""
    if isinstance(field.type, Struct):
        item = format_name(api_key, field.type.name)
    else:
        item = _TYPES.get(field.type, "int")
    whole = f"Sequence[{item}]" if field.array else item
    return f"{whole} | None" if field.nullable or field.type == "uuid" else whole


def format_api(api_key: ApiKey) -> str:
    """Return the types of an API's response."""
    lines: list[str] = []
    for struct, fields in collect_structs(api_key).items():
        lines += ["", "", f"class {format_name(api_key, struct)}(TypedDict, total=False):"]
        lines += [f"    {name}: {format_type(api_key, field)}" for name, field in fields.items()]
    return "".join(f"{line}\n" for line in lines)


def format_module(subject: str, api_keys: tuple[ApiKey, ...]) -> str:
    """Return the text of a module."""
    types = "".join(map(format_api, api_keys))
    abstract = ", ".join(name for name in ("Sequence", "Sized") if name in types)
    used = [f"from collections.abc import {abstract}"]
    if "UUID" in types:
        used.append("from uuid import UUID")
    imports = "".join(f"    {line}\n" for line in used)
    return (
        f'"""Types of responses about {subject}.\n\n'
        "`tools/response_types.py` generates them from the schemas, and mypy compares them with\n"
        'what handlers return.\n"""\n\n'
        "from __future__ import annotations\n\n"
        "from typing import TYPE_CHECKING, TypedDict\n\n"
        f"if TYPE_CHECKING:\n{imports}{types}"
    )


def format_modules() -> Mapping[str, str]:
    """Return the text of each module by its name."""
    return {name: format_module(*module) for name, module in MODULES.items()}


if __name__ == "__main__":
    for name, text in format_modules().items():
        (FOLDER / f"{name}.py").write_text(text)
