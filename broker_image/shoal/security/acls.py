"""Access control entries and their terms, with the numbers of the protocol (KIP-11, KIP-290)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

#: The resource name and the host that stand for all, and the principal that stands for all users.
WILDCARD = "*"
ALL_USERS = "User:*"
ANONYMOUS = "User:ANONYMOUS"
#: The name of the only cluster resource.
CLUSTER_NAME = "kafka-cluster"


class _Number(IntEnum):
    """A number of the protocol. Those of newer releases become UNKNOWN, which is 0."""

    @classmethod
    def _missing_(cls, value: object) -> _Number | None:
        return cls(0) if isinstance(value, int) else None


class ResourceType(_Number):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Number):
    UNKNOWN = 0
    #: In filters: a pattern of any type.
    ANY = 1
    #: In filters: all patterns that match the named resource.
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Number):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Number):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One access control entry: a principal at a host may, or may not, perform an operation.

    `principal` is `type:name`, for example `User:alice`. `host` is an IP address or `*`.
    """

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        pattern = self.pattern_type.name
        return (
            f"{self.permission.name} {self.operation.name} on {self.resource_type.name}"
            f" {self.resource_name!r} ({pattern}) for {self.principal} from {self.host}"
        )
