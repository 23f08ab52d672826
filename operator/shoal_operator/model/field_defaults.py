"""What the operator assumes for the fields that an item of a list leaves out. Pure.

The schemas have no defaults inside the items of lists. The API server would write them into the
stored list, which would then never be the manifest's: a manager that applies the list server-side
has a conflict, and Argo CD with server-side apply calls it drift for ever. Each reader asks here.
`spec.template.pod` is the same schema for the cluster and for the items of `nodePools`.
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


def fill(item: Item, assumed: Mapping[str, Any]) -> Item:
    """Return an item with the assumed values of the fields that it leaves out."""
    return cast("Item", {**assumed, **item})
