"""Writing `status`: one patch, and only when it says something new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal_operator import clock, kube
from shoal_operator.conditions import Verdict, conditions, same
from shoal_operator.model.names import Manifest
from shoal_operator.store import Store


class Statuses:
    """Writes statuses and keeps the store's copy in step, so that no write is done twice."""

    def __init__(self, api: kube.Kube, store: Store) -> None:
        self._api, self._store = api, store
        self._measured_ms: dict[str, int] = {}

    async def write(
        self, resource: Manifest, verdict: Verdict, fields: Mapping[str, Any] | None = None
    ) -> bool:
        """Bring `status` to `verdict` and `fields`; whether that took a call."""
        meta, before = resource["metadata"], resource.get("status", {})
        generation = meta.get("generation", 0)
        status = {
            **(fields or {}),
            "observedGeneration": generation,
            "conditions": conditions(verdict, generation, kube.now(), before.get("conditions")),
        }
        return await self._patch(resource, status)

    async def update(
        self, resource: Manifest, measured: Mapping[str, Any], interval_seconds: float
    ) -> bool:
        """Bring measurements in `status` up to date, no more often than every so many seconds."""
        uid, now_ms = resource["metadata"]["uid"], clock.now_ms()
        last_ms = self._measured_ms.get(uid)
        if last_ms is not None and now_ms - last_ms < interval_seconds * 1000:
            return False
        written = await self._patch(resource, measured)
        if written:
            self._measured_ms[uid] = now_ms
        return written

    async def _patch(self, resource: Manifest, status: Mapping[str, Any]) -> bool:
        before = resource.get("status", {})
        if same({k: before.get(k) for k in status}, status):
            return False
        written = await self._api.merge(resource, {"status": dict(status)}, status=True)
        if written:
            self._store.put(written)
        return True
