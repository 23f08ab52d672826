"""Metadata records as bytes, in the format of Kafka's metadata log (KRaft, KIP-500).

A record's value is a frame version (1), an API key and a version, each an unsigned varint, and the
body in that version's layout, always flexible. Keys are null. The layouts are those of Kafka 4.3.1
at metadata.version 30. A record is written in the newest version of its type.

In memory a record is its type and a dict of its fields. Only records that change this broker's
image have a layout here. `decode` refuses unknown records: skipping one would produce a wrong
image.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import Column, Message, versions

FRAME_VERSION = 1
#: Maximum number of records in one decision, which are appended as one atomic batch.
RECORDS_PER_DECISION_MAX = 10_000


#: The text that stands for a secret.
HIDDEN = "[hidden]"
#: Fields with secrets, by kind of record.
SECRETS = {"UserScramCredentialRecord": ("salt", "stored_key", "server_key")}


class MetadataRecord(NamedTuple):
    """One record: Kafka's name of its type, and its fields. Absent fields have their default."""

    kind: str
    fields: dict[str, Any]

    def __repr__(self) -> str:
        shown = self.fields | dict.fromkeys(SECRETS.get(self.kind, ()), HIDDEN)
        return f"MetadataRecord({self.kind!r}, {shown!r})"


class UnknownRecord(WireError):
    """A record in the log of a type or version that this broker does not support."""


def _ids(name: str, version: str, tag: int) -> Column:
    """Return a tagged list of broker ids that is null if it did not change."""
    return Column(name, "[]int32", version, nullable=version, tagged=version, tag=tag)


_FEATURES = (
    Column("name", "string"),
    Column("min_supported_version", "int16"),
    Column("max_supported_version", "int16"),
)
_ENDPOINTS = (
    Column("name", "string"),
    Column("host", "string"),
    Column("port", "uint16"),
    Column("security_protocol", "int16"),
)


def _message(api_key: int, name: str, valid: str, *columns: Column) -> tuple[int, Message]:
    return api_key, Message(name, valid, columns, flexible="0+")


#: The layout of every type of record by its API key in Kafka.
LAYOUTS: dict[int, Message] = dict(
    (
        _message(
            0,
            "RegisterBrokerRecord",
            "0-4",
            Column("broker_id", "int32"),
            Column("is_migrating_zk_broker", "bool", "2+"),
            Column("incarnation_id", "uuid"),
            Column("broker_epoch", "int64"),
            Column("end_points", _ENDPOINTS),
            Column("features", _FEATURES),
            Column("rack", "string", nullable="0+"),
            Column("fenced", "bool", default=True),
            Column("in_controlled_shutdown", "bool", "1+"),
            Column("log_dirs", "[]uuid", "3+", tagged="3+", tag=0),
            Column("cordoned_log_dirs", "[]uuid", "4+", nullable="4+", tagged="4+", tag=1),
        ),
        _message(
            1,
            "UnregisterBrokerRecord",
            "0",
            Column("broker_id", "int32"),
            Column("broker_epoch", "int64"),
        ),
        _message(2, "TopicRecord", "0", Column("name", "string"), Column("topic_id", "uuid")),
        _message(
            3,
            "PartitionRecord",
            "0-2",
            Column("partition_id", "int32", default=-1),
            Column("topic_id", "uuid"),
            Column("replicas", "[]int32"),
            Column("isr", "[]int32"),
            Column("removing_replicas", "[]int32"),
            Column("adding_replicas", "[]int32"),
            Column("leader", "int32", default=-1),
            Column("leader_recovery_state", "int8", tagged="0+", tag=0),
            Column("leader_epoch", "int32", default=-1),
            Column("partition_epoch", "int32", default=-1),
            Column("directories", "[]uuid", "1+"),
            _ids("eligible_leader_replicas", "2+", 1),
            _ids("last_known_elr", "2+", 2),
        ),
        _message(
            4,
            "ConfigRecord",
            "0",
            Column("resource_type", "int8"),
            Column("resource_name", "string"),
            Column("name", "string"),
            Column("value", "string", nullable="0+"),
        ),
        _message(
            5,
            "PartitionChangeRecord",
            "0-2",
            Column("partition_id", "int32", default=-1),
            Column("topic_id", "uuid"),
            _ids("isr", "0+", 0),
            Column("leader", "int32", tagged="0+", tag=1, default=-2),
            _ids("replicas", "0+", 2),
            _ids("removing_replicas", "0+", 3),
            _ids("adding_replicas", "0+", 4),
            Column("leader_recovery_state", "int8", tagged="0+", tag=5, default=-1),
            Column("directories", "[]uuid", "1+", nullable="1+", tagged="1+", tag=8),
            _ids("eligible_leader_replicas", "2+", 6),
            _ids("last_known_elr", "2+", 7),
        ),
        _message(9, "RemoveTopicRecord", "0", Column("topic_id", "uuid")),
        _message(
            10,
            "DelegationTokenRecord",
            "0",
            Column("owner", "string"),
            Column("requester", "string"),
            Column("renewers", "[]string"),
            Column("issue_timestamp", "int64"),
            Column("max_timestamp", "int64"),
            Column("expiration_timestamp", "int64"),
            Column("token_id", "string"),
        ),
        _message(
            11,
            "UserScramCredentialRecord",
            "0",
            Column("name", "string"),
            Column("mechanism", "int8"),
            Column("salt", "bytes"),
            Column("stored_key", "bytes"),
            Column("server_key", "bytes"),
            Column("iterations", "int32"),
        ),
        _message(
            12,
            "FeatureLevelRecord",
            "0",
            Column("name", "string"),
            Column("feature_level", "int16"),
        ),
        _message(
            14,
            "ClientQuotaRecord",
            "0",
            Column(
                "entity",
                (Column("entity_type", "string"), Column("entity_name", "string", nullable="0+")),
            ),
            Column("key", "string"),
            Column("value", "float64"),
            Column("remove", "bool"),
        ),
        _message(
            15,
            "ProducerIdsRecord",
            "0",
            Column("broker_id", "int32"),
            Column("broker_epoch", "int64", default=-1),
            Column("next_producer_id", "int64"),
        ),
        _message(
            17,
            "BrokerRegistrationChangeRecord",
            "0-3",
            Column("broker_id", "int32"),
            Column("broker_epoch", "int64"),
            Column("fenced", "int8", tagged="0+", tag=0),
            Column("in_controlled_shutdown", "int8", "1+", tagged="1+", tag=1),
            Column("log_dirs", "[]uuid", "2+", tagged="2+", tag=2),
            Column("cordoned_log_dirs", "[]uuid", "3+", nullable="3+", tagged="3+", tag=3),
        ),
        _message(
            18,
            "AccessControlEntryRecord",
            "0",
            Column("id", "uuid"),
            Column("resource_type", "int8"),
            Column("resource_name", "string"),
            Column("pattern_type", "int8"),
            Column("principal", "string"),
            Column("host", "string"),
            Column("operation", "int8"),
            Column("permission_type", "int8"),
        ),
        _message(19, "RemoveAccessControlEntryRecord", "0", Column("id", "uuid")),
        _message(20, "NoOpRecord", "0"),
        _message(
            22,
            "RemoveUserScramCredentialRecord",
            "0",
            Column("name", "string"),
            Column("mechanism", "int8"),
        ),
        _message(26, "RemoveDelegationTokenRecord", "0", Column("token_id", "string")),
    )
)
_KEYS = {message.name: key for key, message in LAYOUTS.items()}
_NEWEST = {name: versions(LAYOUTS[key].versions)[-1] for name, key in _KEYS.items()}


def encode(record: MetadataRecord) -> bytes:
    """Encode `record` as a value of the log."""
    api_key, version = _KEYS[record.kind], _NEWEST[record.kind]
    out = bytearray((FRAME_VERSION, api_key, version))
    compiler.writer(LAYOUTS[api_key].at(version))(out, record.fields)
    return bytes(out)


def decode(value: bytes) -> MetadataRecord:
    """Decode a value of the log.

    Raises `UnknownRecord` for a type or version of a newer release, `WireError` for invalid bytes.
    """
    buf = memoryview(value)
    try:
        frame, at = compiler.get_uvarint(buf, 0)
        api_key, at = compiler.get_uvarint(buf, at)
        version, at = compiler.get_uvarint(buf, at)
    except IndexError:
        raise WireError(f"a metadata record of {len(value)} bytes") from None
    message = LAYOUTS.get(api_key)
    if frame != FRAME_VERSION or message is None or version not in versions(message.versions):
        raise UnknownRecord(f"a metadata record of frame {frame}, kind {api_key} v{version}")
    return MetadataRecord(message.name, compiler.reader(message.at(version))(buf, at)[0])
