"""Leader election over a Lease: of several operator replicas one acts, the others stand by.

A replica that cannot renew within the lease's duration stops acting before another may take over,
since its own deadline counts from before the renewal was sent.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable

from shoal_operator import metrics
from shoal_operator.kube import Kube, KubeError
from shoal_operator.model.names import Manifest

DURATION_SECONDS = 15
RENEW_SECONDS = 5
RETRY_SECONDS = 2


def _micro_time() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Election:
    """Holds or seeks the Lease `name` as `identity`; tells `on_change` when that changes."""

    def __init__(
        self,
        kube: Kube,
        name: str,
        namespace: str,
        identity: str,
        on_change: Callable[[bool], None],
    ) -> None:
        self._kube, self._name, self._namespace = kube, name, namespace
        self._identity, self._on_change = identity, on_change
        self.leading = False
        #: Whether another replica was seen to renew the Lease, and it has not expired.
        self.another_leads = False
        self._seen: tuple[str, float] = ("", 0.0)
        #: The Lease as we wrote it last; while it is ours, one call renews it.
        self._held: Manifest | None = None

    def _set(self, leading: bool) -> None:
        if leading != self.leading:
            self.leading = leading
            metrics.LEADER.set(leading)
            self._on_change(leading)

    async def run(self) -> None:
        """Campaign until cancelled; then give the lease back."""
        deadline = 0.0
        try:
            while True:
                began = time.monotonic()
                # A leader whose calls hang steps down before its lease has run out.
                limit = min(RENEW_SECONDS, deadline - began) if self.leading else RENEW_SECONDS
                failed = False
                try:
                    async with asyncio.timeout(max(0.0, limit)):
                        held = await self._attempt()
                except (KubeError, TimeoutError):
                    self.another_leads = False
                    failed, held = True, self.leading and time.monotonic() < deadline
                else:
                    if held:
                        deadline = began + DURATION_SECONDS - RETRY_SECONDS
                self._set(held)
                await asyncio.sleep(RENEW_SECONDS if held and not failed else RETRY_SECONDS)
        finally:
            if self.leading:
                self._set(False)
                await asyncio.shield(self._release())

    async def _attempt(self) -> bool:
        if self._held and await self._write(self._lease(self._held)):
            return True
        lease = await self._kube.get("coordination.k8s.io/v1", "Lease", self._name, self._namespace)
        if lease is None:
            return await self._write(self._lease(None))
        spec = lease.get("spec", {})
        holder = spec.get("holderIdentity") or ""
        stamp = f"{holder} {spec.get('renewTime')}"
        renewed = bool(self._seen[0]) and stamp != self._seen[0]
        if stamp != self._seen[0]:
            self._seen = (stamp, time.monotonic())
        expired = time.monotonic() - self._seen[1] > spec.get("leaseDurationSeconds", 0)
        if holder not in ("", self._identity) and not expired:
            self.another_leads |= renewed
            return False
        self.another_leads = False
        return await self._write(self._lease(lease))

    def _lease(self, before: Manifest | None) -> Manifest:
        spec = (before or {}).get("spec", {})
        took_over = spec.get("holderIdentity") != self._identity
        meta = {"name": self._name, "namespace": self._namespace}
        if before:
            meta = {k: v for k, v in before["metadata"].items() if k != "managedFields"}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": DURATION_SECONDS,
                "acquireTime": _micro_time() if took_over else spec.get("acquireTime"),
                "renewTime": _micro_time(),
                "leaseTransitions": spec.get("leaseTransitions", 0) + took_over,
            },
        }

    async def _write(self, lease: Manifest) -> bool:
        before, self._held = self._held, None
        try:
            if "resourceVersion" in lease["metadata"]:
                self._held = await self._kube.replace(lease)
            else:
                self._held = await self._kube.create(lease)
        except KubeError as error:
            # 409: somebody else wrote; 404: it was deleted.
            if error.status in (404, 409):
                return False
            self._held = before
            raise
        return True

    async def _release(self) -> None:
        try:
            lease = await self._kube.get(
                "coordination.k8s.io/v1", "Lease", self._name, self._namespace
            )
            if lease and lease.get("spec", {}).get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._kube.replace(lease)
        except KubeError:
            return
