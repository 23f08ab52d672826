"""Writing `status`: one patch, and only when it says something new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator import clock, kube
from shoal_operator.conditions import UNSEEN, Verdict, conditions, same

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.names import Manifest
    from shoal_operator.store import Store


def unreported(verdict: Verdict, before: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What somebody should hear of that the conditions `before` do not say, with its reason."""
    known = {c["reason"] for c in before if c["type"] in ("Ready", "Degraded")}
    found = [(verdict.reason, verdict.message)] if verdict.alarm else []
    found += [verdict.warning] if verdict.warning else []
    return [(reason, message) for reason, message in found if reason not in known]


def transition_key(before: Sequence[Mapping[str, Any]] | None) -> str:
    """What tells this change of conditions from any other of the same resource: an operator that
    dies between the event and the status tells the event once. Times are whole seconds, so the
    generation is in it too: a new spec may be refused or rolled out within the same second."""
    return " ".join(
        f"{c['reason']}@{c['lastTransitionTime']}#{c.get('observedGeneration', UNSEEN)}"
        for c in before or ()
    )


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
        said = before.get("conditions")
        status = {
            **(fields or {}),
            "observedGeneration": generation,
            "conditions": conditions(verdict, generation, kube.now(), said),
        }
        for reason, message in unreported(verdict, said or ()):
            await self._api.event(
                resource, reason, message, warning=True, once=transition_key(said)
            )
        return await self._patch(resource, status)

    async def update_measurements(
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

    async def merge(self, resource: Manifest, fields: Mapping[str, Any]) -> None:
        """Put these fields into `status` now, whatever else is to be said later."""
        await self._patch(resource, fields)

    async def _patch(self, resource: Manifest, status: Mapping[str, Any]) -> bool:
        before = resource.get("status", {})
        if same({k: before.get(k) for k in status}, status):
            return False
        written = await self._api.merge(resource, {"status": dict(status)}, status=True)
        if written:
            self._store.put(written)
        return True
