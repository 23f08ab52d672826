"""The operations that a client may perform on a resource, as the bit fields of KIP-430.

Bit `n` is the operation with number `n`. Only operations that make sense for a type of resource are
reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.security.acls import CLUSTER_NAME, Operation, ResourceType

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

#: The value if the request does not include the operations.
NOT_ASKED = -(1 << 31)


def _to_bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


TOPIC = _to_bits(
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
GROUP = _to_bits(
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER = _to_bits(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


def get_topic_operations(broker: Broker, request: Request, name: str) -> int:
    """Return the operations that the sender of a request may perform on a topic."""
    return broker.access.get_operation_bits(request, ResourceType.TOPIC, name) & TOPIC


def get_group_operations(broker: Broker, request: Request, group_id: str) -> int:
    """Return the operations that the sender of a request may perform on a group."""
    return broker.access.get_operation_bits(request, ResourceType.GROUP, group_id) & GROUP


def get_cluster_operations(broker: Broker, request: Request) -> int:
    """Return the operations that the sender of a request may perform on the cluster; 0 if it may
    not describe the cluster."""
    if not broker.access.allows_cluster(request, Operation.DESCRIBE):
        return 0
    return broker.access.get_operation_bits(request, ResourceType.CLUSTER, CLUSTER_NAME) & CLUSTER
