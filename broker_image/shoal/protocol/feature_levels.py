"""Features that a cluster finalizes in its metadata: the levels of each release (KIP-584)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The feature that guards the records of security. The first request that needs them raises it.
SECURITY_FEATURE = "shoal.security.version"
_OF_0_1 = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 2,
    SECURITY_FEATURE: 1,
    "streams.version": 1,
    "transaction.version": 2,
}
#: The levels that a release (major.minor) gives a new cluster, oldest release first. Kafka's
#: kraft.version is left out: it concerns changes of voters.
RELEASE_FEATURES: Mapping[str, Mapping[str, int]] = {
    "0.1": _OF_0_1,
    # Networks as hosts of ACLs, and the registrations of controllers.
    "0.2": {**_OF_0_1, "metadata.version": 33},
}
