"""What a principal may do: Kafka's StandardAuthorizer (KIP-11, KIP-290, KIP-679) as an index.

An operation is allowed if an ALLOW entry matches and no DENY entry does. An entry matches if its
pattern matches the resource and its principal, host and operation match the request. The host of an
entry may be a network. Without any
entry for a resource, `allow_if_no_acl` decides. Super users may do everything.

READ, WRITE, DELETE and ALTER imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS, where they
are allowed. Where they are denied, they imply nothing.

A lookup visits the literal entry, the wildcard and one prefix for each length of prefix in use, so
its cost does not depend on the number of entries. A question about any resource visits the patterns
that name the requester, and a change those requesters that it concerns. Operations are bits: bit
`n` is the operation with number `n`.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from shoal.security.acls import (
    ALL_USERS,
    WILDCARD,
    Acl,
    Network,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    parse_network,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

#: The bits of all operations.
EVERYTHING = sum(1 << operation for operation in Operation if operation > Operation.ALL)
#: Decisions that the authorizer keeps; all are dropped when an entry changes.
DECISIONS_MAX = 100_000
#: Decisions on longer names are not kept. Names of topics have at most 249 characters, but requests
#: may name resources with 32 KiB before anything else checks the name.
NAME_SIZE_MAX = 249
#: A resource name that an entry is unlikely to have, as in Kafka's Authorizer.
_ANY_NAME = "hardcode"

_IMPLIED = {
    Operation.ALL: EVERYTHING,
    Operation.READ: 1 << Operation.DESCRIBE,
    Operation.WRITE: 1 << Operation.DESCRIBE,
    Operation.DELETE: 1 << Operation.DESCRIBE,
    Operation.ALTER: 1 << Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: 1 << Operation.DESCRIBE_CONFIGS,
}


@lru_cache(maxsize=4096)
def canonicalize_host(host: str) -> str:
    """Return the shortest spelling of an IP address, IPv4 for IPv4-mapped IPv6; other texts as
    they are."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


class MatchingRule(NamedTuple):
    """Why an operation is allowed or not: the entry that decides, or the setting."""

    allowed: bool
    acl: Acl | None
    reason: str


#: The principal and the canonical host of an entry or a request.
_Requester = tuple[str, str]
#: The pattern type and the name of a pattern.
_Named = tuple[PatternType, str]
#: The operations that entries allow and deny, as bits.
_Bits = tuple[int, int]


class _PatternEntries:
    """The entries of one resource pattern, and the operations that they allow and deny."""

    __slots__ = ("acls", "by_requester")

    def __init__(self) -> None:
        #: The entries. One may be stored several times, under several ids.
        self.acls: dict[_Requester, dict[Acl, int]] = {}
        self.by_requester: dict[_Requester, _Bits] = {}


def _compute_bits(acls: Iterable[Acl]) -> _Bits:
    """Return what the entries of one requester for one pattern allow and deny."""
    allowed = denied = 0
    for acl in acls:
        bit = 1 << acl.operation
        if acl.permission == Permission.ALLOW:
            allowed |= bit | _IMPLIED.get(acl.operation, 0)
        else:
            denied |= EVERYTHING if acl.operation == Operation.ALL else bit
    return allowed, denied


class Authorizer:
    """Owns the index of the access control entries of one cluster."""

    def __init__(self, super_users: Collection[str] = (), *, allow_if_no_acl: bool = False) -> None:
        """`super_users` are principals, such as `User:admin`."""
        self._super_users = frozenset(super_users)
        self._default = EVERYTHING if allow_if_no_acl else 0
        self._patterns: dict[tuple[ResourceType, PatternType, str], _PatternEntries] = {}
        #: How many prefixed patterns have a prefix of a length, by resource type.
        self._prefix_lengths: dict[ResourceType, dict[int, int]] = {}
        #: The patterns of each requester's entries, by resource type.
        self._own: dict[tuple[ResourceType, _Requester], dict[_Named, _Bits]] = {}
        #: The networks that are hosts of entries, with the number of entries.
        self._networks: dict[str, tuple[Network, int]] = {}
        self._decisions: dict[tuple[str, str, ResourceType, str], int] = {}
        self._any_decisions: dict[tuple[str, str, Operation, ResourceType], bool] = {}

    def change(self, added: Iterable[Acl], removed: Iterable[Acl] = ()) -> None:
        """Add and remove entries."""
        changed_keys: dict[tuple[ResourceType, PatternType, str, _Requester], None] = {}
        for acls, change in ((removed, -1), (added, 1)):
            for acl in acls:
                changed_keys[self._count(acl, change)] = None
                self._count_network(acl.host, change)
        for kind, pattern_type, name, requester in changed_keys:
            self._index(kind, (pattern_type, name), requester)
        self._decisions.clear()
        self._any_decisions.clear()

    def _count(self, acl: Acl, change: int) -> tuple[ResourceType, PatternType, str, _Requester]:
        key = acl.resource_type, acl.pattern_type, acl.resource_name
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._patterns[key] = _PatternEntries()
            self._count_prefix(key, 1)
        requester = acl.principal, canonicalize_host(acl.host)
        acls = pattern.acls.setdefault(requester, {})
        count = acls.get(acl, 0) + change
        if count > 0:
            acls[acl] = count
        else:
            acls.pop(acl, None)
        return *key, requester

    def _count_network(self, host: str, change: int) -> None:
        if "/" not in host:
            return
        network, count = self._networks.get(host, (None, 0))
        if count + change <= 0:
            self._networks.pop(host, None)
            return
        try:
            self._networks[host] = network or parse_network(host), count + change
        except ValueError:
            return  # It matches no client, as in Kafka.

    def _build_requesters(self, principal: str, host: str) -> tuple[_Requester, ...]:
        """Return the (principal, host) pairs of entries that match a request."""
        hosts = [host, WILDCARD]
        if self._networks:
            address = ipaddress.ip_address(host)
            hosts += [text for text, (network, _) in self._networks.items() if address in network]
        return tuple((one, at) for one in (principal, ALL_USERS) for at in hosts)

    def _index(self, kind: ResourceType, pattern_key: _Named, requester: _Requester) -> None:
        """Follow a change of the entries of one requester for one pattern."""
        key = kind, *pattern_key
        pattern = self._patterns[key]
        acls = pattern.acls[requester]
        own = self._own.setdefault((kind, requester), {})
        if acls:
            pattern.by_requester[requester] = own[pattern_key] = _compute_bits(acls)
            return
        del pattern.acls[requester]
        pattern.by_requester.pop(requester, None)
        own.pop(pattern_key, None)
        if not own:
            del self._own[kind, requester]
        if not pattern.acls:
            del self._patterns[key]
            self._count_prefix(key, -1)

    def _count_prefix(self, key: tuple[ResourceType, PatternType, str], change: int) -> None:
        resource_type, pattern_type, name = key
        if pattern_type != PatternType.PREFIXED:
            return
        lengths = self._prefix_lengths.setdefault(resource_type, {})
        count = lengths.get(len(name), 0) + change
        if count:
            lengths[len(name)] = count
        else:
            del lengths[len(name)]

    def get_allowed_bits(
        self, principal: str, host: str, resource_type: ResourceType, name: str
    ) -> int:
        """Return the bits of the operations that `principal` may perform from `host` on the
        resource. `host` is canonical (`canonicalize_host`)."""
        key = principal, host, resource_type, name
        bits = self._decisions.get(key)
        if bits is None:
            bits = self._decide(principal, host, resource_type, name)
            if len(name) <= NAME_SIZE_MAX:
                if len(self._decisions) >= DECISIONS_MAX:
                    self._decisions.clear()
                self._decisions[key] = bits
        return bits

    def is_allowed(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Return whether `principal` may perform `operation` from `host` on the resource."""
        return bool(self.get_allowed_bits(principal, host, resource_type, name) >> operation & 1)

    def _decide(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        if principal in self._super_users:
            return EVERYTHING
        allowed = denied = 0
        is_matched = False
        requesters = self._build_requesters(principal, host)
        for pattern in self._find_matching(resource_type, name):
            is_matched = True
            for requester in requesters:
                bits = pattern.by_requester.get(requester)
                if bits is not None:
                    allowed |= bits[0]
                    denied |= bits[1]
        return allowed & ~denied if is_matched else self._default

    def _find_matching(self, resource_type: ResourceType, name: str) -> Iterator[_PatternEntries]:
        """Yield the patterns that match a resource."""
        patterns = self._patterns
        literals = (name,) if name == WILDCARD else (name, WILDCARD)
        for literal in literals:
            pattern = patterns.get((resource_type, PatternType.LITERAL, literal))
            if pattern is not None:
                yield pattern
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                pattern = patterns.get((resource_type, PatternType.PREFIXED, name[:length]))
                if pattern is not None:
                    yield pattern

    def is_any_allowed(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether `principal` may perform `operation` on at least one resource of the type
        (KIP-679). It may be one that does not exist."""
        key = principal, host, operation, resource_type
        decision = self._any_decisions.get(key)
        if decision is None:
            if len(self._any_decisions) >= DECISIONS_MAX:
                self._any_decisions.clear()
            decision = self._any_decisions[key] = self._decide_any(*key)
        return decision

    def _decide_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        if self.is_allowed(principal, host, operation, resource_type, _ANY_NAME):
            return True
        allowed: set[_Named] = set()
        denied: set[_Named] = set()
        for requester in self._build_requesters(principal, host):
            for pattern_key, bits in self._own.get((resource_type, requester), {}).items():
                if bits[0] >> operation & 1:
                    allowed.add(pattern_key)
                if bits[1] >> operation & 1:
                    denied.add(pattern_key)
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(not _is_dominated(pattern, denied) for pattern in allowed)

    def explain(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> MatchingRule:
        """Return the rule that decides whether `is_allowed` is true."""
        if principal in self._super_users:
            return MatchingRule(True, None, f"{principal} is a super user")
        requesters = self._build_requesters(principal, host)
        matching = list(self._find_matching(resource_type, name))
        if not matching:
            return MatchingRule(
                bool(self._default),
                None,
                "no entry matches the resource, and allow.everyone.if.no.acl.found is"
                f" {'true' if self._default else 'false'}",
            )
        mine = [acl for p in matching for r in requesters for acl in p.acls.get(r, ())]
        for acl in mine:
            if acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL):
                return MatchingRule(False, acl, "an entry denies it")
        for acl in mine:
            bits = 1 << acl.operation | _IMPLIED.get(acl.operation, 0)
            if acl.permission == Permission.ALLOW and bits >> operation & 1:
                return MatchingRule(True, acl, "an entry allows it")
        return MatchingRule(False, None, "no entry allows it")


def _is_dominated(pattern: _Named, denied: Collection[_Named]) -> bool:
    """Return whether a denied pattern covers all resources of the allowed `pattern`."""
    pattern_type, name = pattern
    if pattern_type == PatternType.LITERAL:
        if pattern in denied:
            return True
        if name == WILDCARD:
            return False
    return any((PatternType.PREFIXED, name[:end]) in denied for end in range(1, len(name) + 1))


class AllowAllAuthorizer:
    """The authorizer of a cluster without authorization."""

    def get_allowed_bits(
        self, principal: str, host: str, resource_type: ResourceType, name: str
    ) -> int:
        """Return the bits of all operations."""
        del principal, host, resource_type, name
        return EVERYTHING

    def is_allowed(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Return True."""
        del principal, host, operation, resource_type, name
        return True

    def is_any_allowed(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return True."""
        del principal, host, operation, resource_type
        return True
