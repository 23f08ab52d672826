"""Access control entries and their terms, with the numbers of the protocol (KIP-11, KIP-290)."""

from __future__ import annotations

import ipaddress
import re
from enum import IntEnum
from typing import NamedTuple

#: The resource name and the host that stand for all, and the principal that stands for all users.
WILDCARD = "*"
ALL_USERS = "User:*"
ANONYMOUS = "User:ANONYMOUS"
#: The name of the only cluster resource.
CLUSTER_NAME = "kafka-cluster"


#: An IPv4 network as Kafka reads it.
_IPV4_NETWORK = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})/(\d{1,2})", re.ASCII)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_network(host: str) -> Network:
    """Return the network of an entry's host in CIDR notation, such as 10.0.0.0/8. Raises
    `ValueError` in Kafka's words."""
    if ":" in host:
        return _parse_ipv6_network(host)
    found = _IPV4_NETWORK.fullmatch(host)
    if found is None:
        raise ValueError(f"Could not parse [{host}]")
    *octets, prefix = map(int, found.groups())
    for value, limit in (*((octet, 255) for octet in octets), (prefix, 32)):
        if value > limit:
            raise ValueError(f"Value [{value}] not in range [0,{limit}]")
    return ipaddress.IPv4Network((bytes(octets), prefix), strict=False)


def _parse_ipv6_network(host: str) -> Network:
    address, _, prefix = host.partition("/")
    refusal = f"Could not parse [{host}]"
    if not re.fullmatch(r"[+-]?\d+", prefix, re.ASCII):
        raise ValueError(f"{refusal} - invalid prefix length")
    if not 0 <= int(prefix) <= ipaddress.IPV6LENGTH:
        raise ValueError(f"{refusal} - prefix length must be between 0 and {ipaddress.IPV6LENGTH}")
    try:
        packed = ipaddress.IPv6Address(address).packed
    except ValueError:
        raise ValueError(f"Could not parse [{address}]") from None
    return ipaddress.IPv6Network((packed, int(prefix)), strict=False)


class _ProtocolNumber(IntEnum):
    """A number of the protocol. Those of newer releases become UNKNOWN, which is 0."""

    @classmethod
    def _missing_(cls, value: object) -> _ProtocolNumber | None:
        return cls(0) if isinstance(value, int) else None


class ResourceType(_ProtocolNumber):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_ProtocolNumber):
    UNKNOWN = 0
    #: In filters: a pattern of any type.
    ANY = 1
    #: In filters: all patterns that match the named resource.
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_ProtocolNumber):
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


class Permission(_ProtocolNumber):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One access control entry: a principal at a host may, or may not, perform an operation.

    `principal` is `type:name`, for example `User:alice`. `host` is an IP address, `*`, or a network
    in CIDR notation.
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
