"""Tenants of a group: what their records are told by, and what each of them may use.

A tenant is named by the key of its records or by one of their headers (`share.fairness.by`).
Records without that share the tenant with the empty name.
"""

from __future__ import annotations

from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A longer name is cut, and a digest of all of it added, so that a record's key of a megabyte costs
#: no more memory than this.
NAME_BYTES_MAX = 128
_DIGEST_BYTES = 16
#: The tenant of records without one.
NO_TENANT = b""


class TenantPolicy(NamedTuple):
    """What the tenants of a group may use. A change needs no new scan."""

    #: `share.fairness.weights`: the weight of named tenants; the others have 1.
    weights: Mapping[bytes, float] = MappingProxyType({})
    #: `share.tenant.max.in.flight` and its overrides, in records; 0 for no limit.
    max_in_flight: int = 0
    max_in_flight_of: Mapping[bytes, float] = MappingProxyType({})
    #: `share.tenant.max.per.second` and its overrides, in deliveries; 0 for no limit.
    max_per_second: float = 0.0
    max_per_second_of: Mapping[bytes, float] = MappingProxyType({})
    #: `share.tenant.max.per.second.burst`, in deliveries; 0 for those of one second.
    burst: int = 0
    #: `share.tenant.paused`.
    paused: frozenset[bytes] = frozenset()

    @property
    def is_limited(self) -> bool:
        """Whether any tenant has a limit."""
        limits = (self.max_in_flight, self.max_in_flight_of)
        return any((*limits, self.max_per_second, self.max_per_second_of, self.paused))


#: The policy of a group that does not tell tenants apart.
ALL_EQUAL = TenantPolicy()


def make_tenant_name(name: bytes) -> bytes:
    """Return the name by which a tenant is kept: `name`, or the beginning of a long one with a
    digest."""
    if len(name) <= NAME_BYTES_MAX:
        return name
    digest = blake2b(name, digest_size=_DIGEST_BYTES).hexdigest().encode()
    return name[: NAME_BYTES_MAX - len(digest) - 1] + b"~" + digest
