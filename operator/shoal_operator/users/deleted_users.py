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
    from shoal_operator.model.resources.queue_user import QueueUser


class Departure(NamedTuple):
    """A deleted QueueUser, when it was deleted, and the end of its certificate, if it has one."""

    user: QueueUser
    deleted_at: datetime.datetime
    expires: datetime.datetime | None

    @property
    def principal(self) -> str:
        return model.format_principal(self.user)


def format_name(cluster: str) -> str:
    """Return the name of the ConfigMap."""
    return f"{cluster}-deleted-users"


def build_manifest(
    namespace: str, cluster: str, departures: Iterable[Departure], before: Mapping[str, str]
) -> Manifest:
    """Return the ConfigMap with these users, and those of its data `before`."""
    data = {departure.user["metadata"]["uid"]: _format_entry(departure) for departure in departures}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": format_name(cluster),
            "namespace": namespace,
            "labels": names.build_labels(cluster, "security"),
        },
        "data": {**before, **data},
    }


def _format_entry(departure: Departure) -> str:
    user, expires = departure.user, departure.expires
    return json.dumps(
        {
            "name": user["metadata"]["name"],
            "username": model.get_username(user),
            "type": model.get_authentication(user),
            "deleted": departure.deleted_at.isoformat(),
            "expires": expires.isoformat() if expires else None,
        }
    )


def parse_departures(config_map: Mapping[str, Any] | None, cluster: str) -> list[Departure]:
    """Return the users in the ConfigMap of a cluster, in the order of their uids.

    Entries that somebody has spoiled are left out.
    """
    read = []
    for uid, text in sorted(((config_map or {}).get("data") or {}).items()):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            read.append(_parse_departure(cluster, uid, json.loads(text)))
    return read


def _parse_departure(cluster: str, uid: str, entry: Mapping[str, Any]) -> Departure:
    user: QueueUser = {
        "apiVersion": names.API_VERSION,
        "kind": "QueueUser",
        "metadata": {"name": entry["name"], "uid": uid},
        "spec": {
            "cluster": cluster,
            "username": entry["username"],
            "authentication": {"type": entry["type"]},
        },
    }
    expires = entry["expires"]
    return Departure(
        user,
        datetime.datetime.fromisoformat(entry["deleted"]),
        datetime.datetime.fromisoformat(expires) if expires else None,
    )
