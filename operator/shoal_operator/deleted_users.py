"""QueueUsers that were deleted while their QueueCluster was away. Pure.

A deleted QueueCluster keeps its volumes, and on them the permissions, passwords and quotas of its
users. No broker can remove them then, and a deletion must not wait for a cluster that may never
return. So the operator keeps what it needs in a ConfigMap, and removes the users' access when the
cluster is back. The ConfigMap has an entry for each user, by uid, and no owner.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator.model import names
from shoal_operator.model import users as model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal_operator.model.names import Manifest


class Departure(NamedTuple):
    """A deleted QueueUser, when it was deleted, and the end of its certificate, if it has one."""

    user: Manifest
    at: datetime.datetime
    expires: datetime.datetime | None

    @property
    def principal(self) -> str:
        return model.principal(self.user)


def name(cluster: str) -> str:
    """Return the name of the ConfigMap."""
    return f"{cluster}-deleted-users"


def manifest(
    namespace: str, cluster: str, departures: Iterable[Departure], before: Mapping[str, str]
) -> Manifest:
    """Return the ConfigMap with these users, and those of its data `before`."""
    data = {one.user["metadata"]["uid"]: _entry(one) for one in departures}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name(cluster),
            "namespace": namespace,
            "labels": names.labels(cluster, "security"),
        },
        "data": {**before, **data},
    }


def _entry(departure: Departure) -> str:
    user, expires = departure.user, departure.expires
    return json.dumps(
        {
            "name": user["metadata"]["name"],
            "username": model.username(user),
            "type": model.authentication(user),
            "deleted": departure.at.isoformat(),
            "expires": expires.isoformat() if expires else None,
        }
    )


def departures(found: Mapping[str, Any] | None) -> list[Departure]:
    """Return the users in the ConfigMap, in the order of their uids.

    Entries that somebody has spoiled are left out.
    """
    read = []
    for uid, text in sorted(((found or {}).get("data") or {}).items()):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            read.append(_departure(uid, json.loads(text)))
    return read


def _departure(uid: str, entry: Mapping[str, Any]) -> Departure:
    spec = {"username": entry["username"], "authentication": {"type": entry["type"]}}
    expires = entry["expires"]
    return Departure(
        {"kind": "QueueUser", "metadata": {"name": entry["name"], "uid": uid}, "spec": spec},
        datetime.datetime.fromisoformat(entry["deleted"]),
        datetime.datetime.fromisoformat(expires) if expires else None,
    )
