"""The operations that a client may perform on a resource, as the bit fields of KIP-430.

Without an authorizer all operations of a resource are allowed to all clients.
"""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    """The numbers of AclOperation. A bit field has bit `n` for operation `n`."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


#: The value if the request does not include the operations.
NOT_ASKED = -(1 << 31)


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


TOPIC = _bits(
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER = _bits(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


def allowed(bits: int, asked: bool) -> int:
    """The bit field, or `NOT_ASKED` without `asked`."""
    return bits if asked else NOT_ASKED
