"""A client of the Kafka protocol in Python: `Client` for asyncio, `SyncClient` for blocking calls.

This module has the names that programs need, and docs/client.md is the guide. It works against
Apache Kafka and against Shoal, and imports nothing of the broker. The command line, the operator
and the Spark source use the modules below: `cluster` finds brokers, leaders and coordinators, and
`admin`, `share`, `fetcher`, `producer` and `consumer` do the work.

Names are imported when they are first used, because brokers and commands need a few modules only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.client.admin.admin import Admin
    from shoal.client.admin.topics import NewTopic
    from shoal.client.client import Client, SyncClient
    from shoal.client.consume.consumer import GroupConsumer, IndividualCommit, Record
    from shoal.client.consume.fetcher import Isolation
    from shoal.client.consume.key_workers import KeyWorkers
    from shoal.client.consume.rebalance_listener import RebalanceListener
    from shoal.client.consume.start_offsets import Reset
    from shoal.client.errors import (
        ClientError,
        ConnectionLost,
        KafkaError,
        ProducerFenced,
        RequestTimeout,
        SecurityError,
        TransactionAbortable,
        Unreachable,
        expect,
    )
    from shoal.client.net.cluster import TopicPartition
    from shoal.client.produce.producer import Producer, RecordMetadata
    from shoal.client.produce.transactional import TransactionalProducer
    from shoal.client.settings import Settings
    from shoal.client.share.acquired import (
        Acknowledgement,
        AcknowledgeType,
        RejectedAcknowledgement,
        SharedRecord,
    )
    from shoal.client.share.consumer import ShareConsumer
    from shoal.protocol.errors import ErrorCode
    from shoal.protocol.reasons import FailureReason

#: The module of each name.
_MODULES = {
    "AcknowledgeType": "shoal.client.share.acquired",
    "Acknowledgement": "shoal.client.share.acquired",
    "Admin": "shoal.client.admin.admin",
    "Client": "shoal.client.client",
    "ClientError": "shoal.client.errors",
    "ConnectionLost": "shoal.client.errors",
    "ErrorCode": "shoal.protocol.errors",
    "FailureReason": "shoal.protocol.reasons",
    "GroupConsumer": "shoal.client.consume.consumer",
    "IndividualCommit": "shoal.client.consume.consumer",
    "Isolation": "shoal.client.consume.fetcher",
    "KafkaError": "shoal.client.errors",
    "KeyWorkers": "shoal.client.consume.key_workers",
    "NewTopic": "shoal.client.admin.topics",
    "Producer": "shoal.client.produce.producer",
    "ProducerFenced": "shoal.client.errors",
    "RebalanceListener": "shoal.client.consume.rebalance_listener",
    "Record": "shoal.client.consume.consumer",
    "RecordMetadata": "shoal.client.produce.producer",
    "RejectedAcknowledgement": "shoal.client.share.acquired",
    "RequestTimeout": "shoal.client.errors",
    "Reset": "shoal.client.consume.start_offsets",
    "SecurityError": "shoal.client.errors",
    "Settings": "shoal.client.settings",
    "ShareConsumer": "shoal.client.share.consumer",
    "SharedRecord": "shoal.client.share.acquired",
    "SyncClient": "shoal.client.client",
    "TopicPartition": "shoal.client.net.cluster",
    "TransactionAbortable": "shoal.client.errors",
    "TransactionalProducer": "shoal.client.produce.transactional",
    "Unreachable": "shoal.client.errors",
    "expect": "shoal.client.errors",
}

__all__ = [
    "AcknowledgeType",
    "Acknowledgement",
    "Admin",
    "Client",
    "ClientError",
    "ConnectionLost",
    "ErrorCode",
    "FailureReason",
    "GroupConsumer",
    "IndividualCommit",
    "Isolation",
    "KafkaError",
    "KeyWorkers",
    "NewTopic",
    "Producer",
    "ProducerFenced",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "RejectedAcknowledgement",
    "RequestTimeout",
    "Reset",
    "SecurityError",
    "Settings",
    "ShareConsumer",
    "SharedRecord",
    "SyncClient",
    "TopicPartition",
    "TransactionAbortable",
    "TransactionalProducer",
    "Unreachable",
    "expect",
]


def __getattr__(name: str) -> object:
    """Import a name of `__all__` from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
