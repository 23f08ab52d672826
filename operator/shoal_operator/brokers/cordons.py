"""Cordons brokers that are to be empty, and uncordons those that stay after all (KIP-1066).

`status.cordonedBrokers` of a resource has the brokers that the operator cordoned for it. It is
written before the cordon and shortened after its end, so an operator that restarts leaves no cordon
behind. A broker that somebody else has cordoned is not in it, and stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.kube.statuses import StatusWriter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store

FIELD = "cordonedBrokers"


def list_cordoned(resource: Mapping[str, Any]) -> list[int]:
    """Return the brokers that the operator cordoned for this resource."""
    return list(resource.get("status", {}).get(FIELD) or ())


class BrokerCordons:
    """The cordons of one cluster's resources; has no state of its own."""

    def __init__(self, kube: KubeClient, store: Store, brokers: Brokers) -> None:
        self._store, self._brokers = store, brokers
        self._statuses = StatusWriter(kube, store)

    async def cordon(self, resource: Mapping[str, Any], brokers: Iterable[int]) -> bool:
        """Cordon those of these brokers that are not; return whether one has been cordoned just
        now. Brokers that refuse it, or do not answer, are left out."""
        cordoned = await self._brokers.cordons.describe(brokers)
        uncordoned = [broker for broker, directories in cordoned.items() if not directories]
        if not uncordoned:
            return False
        stored = self._find_newest(resource)
        remembered = sorted({*list_cordoned(stored), *uncordoned})
        await self._statuses.merge(stored, {FIELD: remembered})
        return await self._brokers.cordons.cordon(uncordoned)

    async def uncordon(
        self, resource: Mapping[str, Any], staying: Collection[int] | None = None
    ) -> None:
        """End the operator's cordons of these brokers, by default of all. Raises `ClientError`."""
        stored = self._find_newest(resource)
        cordoned = list_cordoned(stored)
        ending = [broker for broker in cordoned if staying is None or broker in staying]
        if ending:
            await self._brokers.cordons.uncordon(ending)
            await self._forget(stored, ending)

    async def forget(self, resource: Mapping[str, Any], broker: int) -> None:
        """Take a broker that is gone off the status."""
        stored = self._find_newest(resource)
        if broker in list_cordoned(stored):
            await self._forget(stored, [broker])

    async def _forget(self, stored: Mapping[str, Any], brokers: Collection[int]) -> None:
        left = [broker for broker in list_cordoned(stored) if broker not in brokers]
        await self._statuses.merge(stored, {FIELD: left or None})

    def _find_newest(self, resource: Mapping[str, Any]) -> Mapping[str, Any]:
        meta = resource["metadata"]
        return self._store.get(resource["kind"], meta["namespace"], meta["name"]) or resource
