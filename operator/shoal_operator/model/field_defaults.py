"""What the operator assumes for fields that a list's item or an empty object leaves out. Pure.

The schemas have no defaults inside the items of lists. The API server would write them into the
stored list, which would then never be the manifest's: a manager that applies the list server-side
has a conflict, and Argo CD with server-side apply calls it drift for ever. Each reader asks here.
Nor have they in objects that may be empty, such as `create: {}`: if a second manager applies the
same manifest server-side, the API server takes the defaults that the first one owns out, and then
refuses the rest as null. `spec.template.pod` is the same schema for the cluster and for the items
of `nodePools`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

Item = TypeVar("Item", bound="Mapping[str, Any]")
#: The fields of each kind of item, with the values that their descriptions name.
LISTENER = MappingProxyType({"type": "Internal"})
NODE_POOL = MappingProxyType({"replicas": 1, "roles": ("broker",)})
POD_TEMPLATE = MappingProxyType({"terminationGracePeriodSeconds": 60})
ACL = MappingProxyType({"permission": "allow", "host": "*"})
ACL_RESOURCE = MappingProxyType({"patternType": "literal"})
SCHEDULE = MappingProxyType({"timeZone": "Etc/UTC"})
#: The same of each kind of object that may be empty.
AUTHORITY = MappingProxyType(
    {
        "type": "internal",
        "generate": True,
        "validityDays": 365,
        "renewalDays": 30,
        "overlap": "10m",
    }
)
DEAD_LETTER_TOPIC = MappingProxyType({"partitions": 1})
KEY_ORDER = MappingProxyType({"batch": 1, "deadLetter": "Continue", "maxHeld": 1000})
SCALING = MappingProxyType(
    {
        "minReplicas": 0,
        "maxReplicas": 10,
        "targetLagPerReplica": 1000,
        "recordsPerReplica": 500,
        "cooldown": "60s",
        "scaleToZeroAfter": "5m",
        "startupTime": "30s",
    }
)


def fill(item: Item, assumed: Mapping[str, Any]) -> Item:
    """Return an item with the assumed values of the fields that it leaves out."""
    return cast("Item", {**assumed, **item})
