"""Metadata records as bytes, in the format of Kafka's metadata log (KRaft, KIP-500).

A record's value is a frame version (1), an API key and a version, each an unsigned varint, and the
body in that version's layout, always flexible. Keys are null. The layouts are those of Kafka 4.3.1
at metadata.version 33. A record is written in the newest version of its type.

In memory a record is its type and a dict of its fields. Only records that change this broker's
image have a layout here. `decode` refuses unknown records: skipping one would produce a wrong
image.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import FieldSpec, MessageSpec, parse_versions

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


def _build_ids_column(name: str, version: str, tag: int) -> FieldSpec:
    """Return a tagged list of broker ids that is null if it did not change."""
    return FieldSpec(name, "[]int32", version, nullable=version, tagged=version, tag=tag)


_FEATURES = (
    FieldSpec("name", "string"),
    FieldSpec("min_supported_version", "int16"),
    FieldSpec("max_supported_version", "int16"),
)
_ENDPOINTS = (
    FieldSpec("name", "string"),
    FieldSpec("host", "string"),
    FieldSpec("port", "uint16"),
    FieldSpec("security_protocol", "int16"),
)


def _build_message(
    api_key: int, name: str, valid: str, *columns: FieldSpec
) -> tuple[int, MessageSpec]:
    return api_key, MessageSpec(name, valid, columns, flexible="0+")


#: The layout of every type of record by its API key in Kafka.
LAYOUTS: dict[int, MessageSpec] = dict(
    (
        _build_message(
            0,
            "RegisterBrokerRecord",
            "0-4",
            FieldSpec("broker_id", "int32"),
            FieldSpec("is_migrating_zk_broker", "bool", "2+"),
            FieldSpec("incarnation_id", "uuid"),
            FieldSpec("broker_epoch", "int64"),
            FieldSpec("end_points", _ENDPOINTS),
            FieldSpec("features", _FEATURES),
            FieldSpec("rack", "string", nullable="0+"),
            FieldSpec("fenced", "bool", default=True),
            FieldSpec("in_controlled_shutdown", "bool", "1+"),
            FieldSpec("log_dirs", "[]uuid", "3+", tagged="3+", tag=0),
            FieldSpec("cordoned_log_dirs", "[]uuid", "4+", nullable="4+", tagged="4+", tag=1),
        ),
        _build_message(
            1,
            "UnregisterBrokerRecord",
            "0",
            FieldSpec("broker_id", "int32"),
            FieldSpec("broker_epoch", "int64"),
        ),
        _build_message(
            2, "TopicRecord", "0", FieldSpec("name", "string"), FieldSpec("topic_id", "uuid")
        ),
        _build_message(
            3,
            "PartitionRecord",
            "0-2",
            FieldSpec("partition_id", "int32", default=-1),
            FieldSpec("topic_id", "uuid"),
            FieldSpec("replicas", "[]int32"),
            FieldSpec("isr", "[]int32"),
            FieldSpec("removing_replicas", "[]int32"),
            FieldSpec("adding_replicas", "[]int32"),
            FieldSpec("leader", "int32", default=-1),
            FieldSpec("leader_recovery_state", "int8", tagged="0+", tag=0),
            FieldSpec("leader_epoch", "int32", default=-1),
            FieldSpec("partition_epoch", "int32", default=-1),
            FieldSpec("directories", "[]uuid", "1+"),
            _build_ids_column("eligible_leader_replicas", "2+", 1),
            _build_ids_column("last_known_elr", "2+", 2),
        ),
        _build_message(
            4,
            "ConfigRecord",
            "0",
            FieldSpec("resource_type", "int8"),
            FieldSpec("resource_name", "string"),
            FieldSpec("name", "string"),
            FieldSpec("value", "string", nullable="0+"),
        ),
        _build_message(
            5,
            "PartitionChangeRecord",
            "0-2",
            FieldSpec("partition_id", "int32", default=-1),
            FieldSpec("topic_id", "uuid"),
            _build_ids_column("isr", "0+", 0),
            FieldSpec("leader", "int32", tagged="0+", tag=1, default=-2),
            _build_ids_column("replicas", "0+", 2),
            _build_ids_column("removing_replicas", "0+", 3),
            _build_ids_column("adding_replicas", "0+", 4),
            FieldSpec("leader_recovery_state", "int8", tagged="0+", tag=5, default=-1),
            FieldSpec("directories", "[]uuid", "1+", nullable="1+", tagged="1+", tag=8),
            _build_ids_column("eligible_leader_replicas", "2+", 6),
            _build_ids_column("last_known_elr", "2+", 7),
        ),
        _build_message(9, "RemoveTopicRecord", "0", FieldSpec("topic_id", "uuid")),
        _build_message(
            10,
            "DelegationTokenRecord",
            "0",
            FieldSpec("owner", "string"),
            FieldSpec("requester", "string"),
            FieldSpec("renewers", "[]string"),
            FieldSpec("issue_timestamp", "int64"),
            FieldSpec("max_timestamp", "int64"),
            FieldSpec("expiration_timestamp", "int64"),
            FieldSpec("token_id", "string"),
        ),
        _build_message(
            11,
            "UserScramCredentialRecord",
            "0",
            FieldSpec("name", "string"),
            FieldSpec("mechanism", "int8"),
            FieldSpec("salt", "bytes"),
            FieldSpec("stored_key", "bytes"),
            FieldSpec("server_key", "bytes"),
            FieldSpec("iterations", "int32"),
        ),
        _build_message(
            12,
            "FeatureLevelRecord",
            "0",
            FieldSpec("name", "string"),
            FieldSpec("feature_level", "int16"),
        ),
        _build_message(
            14,
            "ClientQuotaRecord",
            "0",
            FieldSpec(
                "entity",
                (
                    FieldSpec("entity_type", "string"),
                    FieldSpec("entity_name", "string", nullable="0+"),
                ),
            ),
            FieldSpec("key", "string"),
            FieldSpec("value", "float64"),
            FieldSpec("remove", "bool"),
        ),
        _build_message(
            15,
            "ProducerIdsRecord",
            "0",
            FieldSpec("broker_id", "int32"),
            FieldSpec("broker_epoch", "int64", default=-1),
            FieldSpec("next_producer_id", "int64"),
        ),
        _build_message(
            17,
            "BrokerRegistrationChangeRecord",
            "0-3",
            FieldSpec("broker_id", "int32"),
            FieldSpec("broker_epoch", "int64"),
            FieldSpec("fenced", "int8", tagged="0+", tag=0),
            FieldSpec("in_controlled_shutdown", "int8", "1+", tagged="1+", tag=1),
            FieldSpec("log_dirs", "[]uuid", "2+", tagged="2+", tag=2),
            FieldSpec("cordoned_log_dirs", "[]uuid", "3+", nullable="3+", tagged="3+", tag=3),
        ),
        _build_message(
            18,
            "AccessControlEntryRecord",
            "0",
            FieldSpec("id", "uuid"),
            FieldSpec("resource_type", "int8"),
            FieldSpec("resource_name", "string"),
            FieldSpec("pattern_type", "int8"),
            FieldSpec("principal", "string"),
            FieldSpec("host", "string"),
            FieldSpec("operation", "int8"),
            FieldSpec("permission_type", "int8"),
        ),
        _build_message(19, "RemoveAccessControlEntryRecord", "0", FieldSpec("id", "uuid")),
        _build_message(20, "NoOpRecord", "0"),
        _build_message(
            22,
            "RemoveUserScramCredentialRecord",
            "0",
            FieldSpec("name", "string"),
            FieldSpec("mechanism", "int8"),
        ),
        _build_message(26, "RemoveDelegationTokenRecord", "0", FieldSpec("token_id", "string")),
    )
)
_KEYS = {message.name: key for key, message in LAYOUTS.items()}
_NEWEST = {name: parse_versions(LAYOUTS[key].versions)[-1] for name, key in _KEYS.items()}


def encode(record: MetadataRecord) -> bytes:
    """Encode `record` as a value of the log."""
    api_key, version = _KEYS[record.kind], _NEWEST[record.kind]
    out = bytearray((FRAME_VERSION, api_key, version))
    compiler.get_writer(LAYOUTS[api_key].get_struct(version))(out, record.fields)
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
    if frame != FRAME_VERSION or message is None or version not in parse_versions(message.versions):
        raise UnknownRecord(f"a metadata record of frame {frame}, kind {api_key} v{version}")
    return MetadataRecord(
        message.name, compiler.get_reader(message.get_struct(version))(buf, at)[0]
    )
