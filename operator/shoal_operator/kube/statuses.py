"""Writes `status` in one patch, and only if it has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator import clock
from shoal_operator.kube import kube
from shoal_operator.kube.conditions import (
    UNSEEN,
    ExtraCondition,
    Verdict,
    build_conditions,
    is_same,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.kube.store import Store

#: The event about a resource whose status cannot be written.
REFUSED = "StatusRefused"
#: The API server will refuse the same status again.
_REFUSED = (400, 403, 422)


def list_unreported(verdict: Verdict, before: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the reasons and messages of alarms and warnings that `before` does not have."""
    known_reasons = {c["reason"] for c in before if c["type"] in ("Ready", "Degraded")}
    alarms = [(verdict.reason, verdict.message)] if verdict.alarm else []
    alarms += [verdict.warning] if verdict.warning else []
    return [(reason, message) for reason, message in alarms if reason not in known_reasons]


def build_transition_key(before: Sequence[Mapping[str, Any]] | None) -> str:
    """Return a key of the transition from these conditions, unique within the resource.

    With this key, an operator that crashes between the event and the status records the event once.
    Times are whole seconds, so the generation is part of the key: a new spec may be refused or
    rolled out within the same second.
    """
    return " ".join(
        f"{c['reason']}@{c['lastTransitionTime']}#{c.get('observedGeneration', UNSEEN)}"
        for c in before or ()
    )


class StatusWriter:
    """Writes statuses and updates the store's copies, so that no write is repeated."""

    def __init__(self, api: kube.KubeClient, store: Store) -> None:
        self._api, self._store = api, store
        self._measured_ms: dict[str, int] = {}

    async def write(
        self,
        resource: Mapping[str, Any],
        verdict: Verdict,
        fields: Mapping[str, Any] | None = None,
        further: Sequence[ExtraCondition] = (),
    ) -> bool:
        """Write the conditions and `fields`; return whether the status has changed."""
        meta, before = resource["metadata"], resource.get("status", {})
        generation = meta.get("generation", 0)
        old = before.get("conditions")
        status = {
            **(fields or {}),
            "observedGeneration": generation,
            "conditions": build_conditions(verdict, generation, kube.format_now(), old, further),
        }
        for reason, message in list_unreported(verdict, old or ()):
            await self._api.record_event(
                resource, reason, message, warning=True, once=build_transition_key(old)
            )
        return await self._patch(resource, status)

    async def update_measurements(
        self, resource: Mapping[str, Any], measured: Mapping[str, Any], interval_seconds: float
    ) -> bool:
        """Write measurements at most once in `interval_seconds`; return whether they were."""
        uid, now_ms = resource["metadata"]["uid"], clock.now_ms()
        last_ms = self._measured_ms.get(uid)
        if last_ms is not None and now_ms - last_ms < interval_seconds * 1000:
            return False
        written = await self._patch(resource, measured)
        if written:
            self._measured_ms[uid] = now_ms
        return written

    async def merge(self, resource: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        """Write these fields of `status`."""
        await self._patch(resource, fields)

    async def _patch(self, resource: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        before = resource.get("status", {})
        if is_same({k: before.get(k) for k in status}, status):
            return False
        try:
            written = await self._api.merge(resource, {"status": dict(status)}, status=True)
        except kube.KubeError as error:
            if error.status in _REFUSED and not error.terminating:
                # No condition can say so, and the operator's log is not for everybody.
                text = f"The API server refuses the status: {error}."
                once = str(resource["metadata"].get("generation"))
                await self._api.record_event(resource, REFUSED, text, warning=True, once=once)
            raise
        if written:
            self._store.put(written)
        return True
