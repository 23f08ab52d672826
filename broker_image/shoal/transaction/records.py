"""The records of `__transaction_state`, in Kafka's format, which Kafka's tools print.

Key: int16 0 and the transactional id. Value: int16 version, then the fields of that version
(TransactionLogKey.json, TransactionLogValue.json of Kafka 4.3); version 1 is written, and versions
0 and 1 are read.
"""

from __future__ import annotations

import struct
from typing import Any

from shoal.coordinator.contract import CoordinatorRecord
from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import FieldSpec, MessageSpec, parse_versions
from shoal.transaction.states import BY_NUMBER, TransactionState
from shoal.transaction.transactions import NO_PRODUCER_ID, TV_0, TransactionMetadata

_INT16 = struct.Struct(">h")
_TRANSACTION_LOG = 0
_VERSION = 1

_KEY = MessageSpec("TransactionLogKey", "0", (FieldSpec("transactional_id", "string"),))
_VALUE = MessageSpec(
    "TransactionLogValue",
    "0-1",
    (
        FieldSpec("producer_id", "int64"),
        FieldSpec(
            "previous_producer_id", "int64", "1+", tagged="1+", tag=0, default=NO_PRODUCER_ID
        ),
        FieldSpec("next_producer_id", "int64", "1+", tagged="1+", tag=1, default=NO_PRODUCER_ID),
        FieldSpec("producer_epoch", "int16"),
        FieldSpec("transaction_timeout_ms", "int32"),
        FieldSpec("transaction_status", "int8"),
        FieldSpec(
            "transaction_partitions",
            (FieldSpec("topic", "string"), FieldSpec("partition_ids", "[]int32")),
            nullable="0+",
        ),
        FieldSpec("transaction_last_update_timestamp_ms", "int64"),
        FieldSpec("transaction_start_timestamp_ms", "int64"),
        FieldSpec("client_transaction_version", "int16", "1+", tagged="1+", tag=2, default=TV_0),
        FieldSpec("next_producer_epoch", "int16", "1+", tagged="1+", tag=3, default=-1),
    ),
    flexible="1+",
)


def _encode_key(transactional_id: str) -> bytes:
    out = bytearray(_INT16.pack(_TRANSACTION_LOG))
    compiler.get_writer(_KEY.get_struct(0))(out, {"transactional_id": transactional_id})
    return bytes(out)


def build_tombstone(transactional_id: str) -> CoordinatorRecord:
    """The tombstone of a transactional id."""
    return CoordinatorRecord(_encode_key(transactional_id), None)


def build_record(transactional_id: str, transaction: TransactionMetadata) -> CoordinatorRecord:
    """The record of the whole state of a transactional id."""
    topics: dict[str, list[int]] = {}
    for topic, index in transaction.partitions:
        topics.setdefault(topic, []).append(index)
    fields = {
        "producer_id": transaction.producer_id,
        "previous_producer_id": transaction.previous_producer_id,
        "next_producer_id": transaction.next_producer_id,
        "producer_epoch": transaction.producer_epoch,
        "transaction_timeout_ms": transaction.timeout_ms,
        "transaction_status": transaction.state.number,
        "transaction_partitions": None
        if transaction.state is TransactionState.EMPTY
        else [{"topic": t, "partition_ids": indexes} for t, indexes in topics.items()],
        "transaction_last_update_timestamp_ms": transaction.update_timestamp_ms,
        "transaction_start_timestamp_ms": transaction.start_timestamp_ms,
        "client_transaction_version": transaction.client_transaction_version,
    }
    out = bytearray(_INT16.pack(_VERSION))
    compiler.get_writer(_VALUE.get_struct(_VERSION))(out, fields)
    return CoordinatorRecord(_encode_key(transactional_id), bytes(out))


def decode(stored: CoordinatorRecord) -> tuple[str, TransactionMetadata | None] | None:
    """Return a transactional id and its value, which is None for a tombstone. Returns None for a
    record of an unknown type, version or state.

    Raises `WireError` for bytes that do not fit the layout.
    """
    try:
        if _INT16.unpack_from(stored.key)[0] != _TRANSACTION_LOG:
            return None
        key, _ = compiler.get_reader(_KEY.get_struct(0))(memoryview(stored.key), _INT16.size)
        transactional_id = key["transactional_id"]
        if stored.value is None:
            return transactional_id, None
        version = _INT16.unpack_from(stored.value)[0]
    except struct.error as error:
        raise WireError(f"a transaction record is cut short: {error}") from None
    if version not in parse_versions(_VALUE.versions):
        return None
    value, _ = compiler.get_reader(_VALUE.get_struct(version))(
        memoryview(stored.value), _INT16.size
    )
    if value["transaction_status"] not in BY_NUMBER:
        return None
    return transactional_id, _build_transaction(value)


def _build_transaction(value: dict[str, Any]) -> TransactionMetadata:
    return TransactionMetadata(
        producer_id=value["producer_id"],
        producer_epoch=value["producer_epoch"],
        timeout_ms=value["transaction_timeout_ms"],
        state=BY_NUMBER[value["transaction_status"]],
        partitions={
            (entry["topic"], index): None
            for entry in value["transaction_partitions"] or ()
            for index in entry["partition_ids"]
        },
        start_timestamp_ms=value["transaction_start_timestamp_ms"],
        update_timestamp_ms=value["transaction_last_update_timestamp_ms"],
        previous_producer_id=value.get("previous_producer_id", NO_PRODUCER_ID),
        next_producer_id=value.get("next_producer_id", NO_PRODUCER_ID),
        client_transaction_version=value.get("client_transaction_version", TV_0),
    )
