"""The records of `__transaction_state`, in Kafka's format, which Kafka's tools print.

Key: int16 0 and the transactional id. Value: int16 version, then the fields of that version
(TransactionLogKey.json, TransactionLogValue.json of Kafka 4.3); version 1 is written, and versions
0 and 1 are read.
"""

from __future__ import annotations

import struct
from typing import Any

from shoal.coordinator.contract import Record
from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import Column, Message, versions
from shoal.transaction.states import BY_NUMBER, State
from shoal.transaction.transactions import NO_PRODUCER_ID, TV_0, Transaction

_INT16 = struct.Struct(">h")
_TRANSACTION_LOG = 0
_VERSION = 1

_KEY = Message("TransactionLogKey", "0", (Column("transactional_id", "string"),))
_VALUE = Message(
    "TransactionLogValue",
    "0-1",
    (
        Column("producer_id", "int64"),
        Column("previous_producer_id", "int64", "1+", tagged="1+", tag=0, default=NO_PRODUCER_ID),
        Column("next_producer_id", "int64", "1+", tagged="1+", tag=1, default=NO_PRODUCER_ID),
        Column("producer_epoch", "int16"),
        Column("transaction_timeout_ms", "int32"),
        Column("transaction_status", "int8"),
        Column(
            "transaction_partitions",
            (Column("topic", "string"), Column("partition_ids", "[]int32")),
            nullable="0+",
        ),
        Column("transaction_last_update_timestamp_ms", "int64"),
        Column("transaction_start_timestamp_ms", "int64"),
        Column("client_transaction_version", "int16", "1+", tagged="1+", tag=2, default=TV_0),
        Column("next_producer_epoch", "int16", "1+", tagged="1+", tag=3, default=-1),
    ),
    flexible="1+",
)


def _key(transactional_id: str) -> bytes:
    out = bytearray(_INT16.pack(_TRANSACTION_LOG))
    compiler.writer(_KEY.at(0))(out, {"transactional_id": transactional_id})
    return bytes(out)


def tombstone(transactional_id: str) -> Record:
    """The tombstone of a transactional id."""
    return Record(_key(transactional_id), None)


def record(transactional_id: str, transaction: Transaction) -> Record:
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
        if transaction.state is State.EMPTY
        else [{"topic": t, "partition_ids": indexes} for t, indexes in topics.items()],
        "transaction_last_update_timestamp_ms": transaction.update_timestamp_ms,
        "transaction_start_timestamp_ms": transaction.start_timestamp_ms,
        "client_transaction_version": transaction.client_transaction_version,
    }
    out = bytearray(_INT16.pack(_VERSION))
    compiler.writer(_VALUE.at(_VERSION))(out, fields)
    return Record(_key(transactional_id), bytes(out))


def decode(stored: Record) -> tuple[str, Transaction | None] | None:
    """Return a transactional id and its value, which is None for a tombstone. Returns None for a
    record of an unknown type, version or state.

    Raises `WireError` for bytes that do not fit the layout.
    """
    try:
        if _INT16.unpack_from(stored.key)[0] != _TRANSACTION_LOG:
            return None
        key, _ = compiler.reader(_KEY.at(0))(memoryview(stored.key), _INT16.size)
        transactional_id = key["transactional_id"]
        if stored.value is None:
            return transactional_id, None
        version = _INT16.unpack_from(stored.value)[0]
    except struct.error as error:
        raise WireError(f"a transaction record is cut short: {error}") from None
    if version not in versions(_VALUE.versions):
        return None
    value, _ = compiler.reader(_VALUE.at(version))(memoryview(stored.value), _INT16.size)
    if value["transaction_status"] not in BY_NUMBER:
        return None
    return transactional_id, _transaction(value)


def _transaction(value: dict[str, Any]) -> Transaction:
    return Transaction(
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
