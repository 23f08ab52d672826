"""Leader election over a Lease: one replica of the operator leads, the others stand by.

A leader that cannot renew the Lease stops before another replica may take over: its own deadline
counts from the time before the renewal was sent.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from typing import TYPE_CHECKING

import structlog

from shoal_operator import metrics
from shoal_operator.kube.kube import KubeClient, KubeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal_operator.kube.scope import OperatorScope
    from shoal_operator.model.names import Manifest

log = structlog.get_logger()
API_VERSION, KIND = "coordination.k8s.io/v1", "Lease"
DURATION_SECONDS = 15
RENEW_SECONDS = 5
RETRY_SECONDS = 2


def _format_micro_time() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LeaderElection:
    """Holds or acquires the Lease `name` as `identity`; notifies subscribers of changes.

    With a `scope`, it does not acquire the Lease while another operator acts on that scope.
    """

    def __init__(
        self,
        kube: KubeClient,
        name: str,
        namespace: str,
        identity: str,
        scope: OperatorScope | None = None,
    ) -> None:
        self._kube, self._name, self._namespace = kube, name, namespace
        self._identity, self._scope = identity, scope
        self._subscribers: list[Callable[[bool], None]] = []
        self.leading = False
        #: Whether another replica has renewed the Lease and the Lease has not expired.
        self.another_leads = False
        #: The last renewal by any replica, and the monotonic time at which it was observed.
        self._observed: tuple[str, float] = ("", 0.0)
        #: The Lease as this replica wrote it last; one call renews it while no other one writes.
        self._own_lease: Manifest | None = None

    def subscribe(self, subscriber: Callable[[bool], None]) -> None:
        """Call `subscriber` with True when this replica becomes leader, else with False."""
        self._subscribers.append(subscriber)

    def _set(self, leading: bool) -> None:
        if leading != self.leading:
            self.leading = leading
            metrics.LEADER.set(leading)
            for subscriber in self._subscribers:
                subscriber(leading)

    async def run(self) -> None:
        """Acquire and renew the Lease until cancelled; then release it."""
        deadline = 0.0
        try:
            while True:
                began = time.monotonic()
                # A leader whose calls hang steps down before its Lease expires.
                limit = min(RENEW_SECONDS, deadline - began) if self.leading else RENEW_SECONDS
                failed = False
                try:
                    async with asyncio.timeout(max(0.0, limit)):
                        leads = await self._attempt()
                except Exception as error:
                    if not isinstance(error, KubeError | TimeoutError):
                        log.exception("a defect of the operator; will try again", kind=KIND)
                    self.another_leads = False
                    failed, leads = True, self.leading and time.monotonic() < deadline
                else:
                    if leads:
                        deadline = began + DURATION_SECONDS - RETRY_SECONDS
                self._set(leads)
                await asyncio.sleep(RENEW_SECONDS if leads and not failed else RETRY_SECONDS)
        finally:
            if self.leading:
                self._set(False)
                await asyncio.shield(self._release())

    async def _attempt(self) -> bool:
        """Renew or acquire the Lease; return whether this replica holds it."""
        if self._own_lease and await self._write(self._build_lease(self._own_lease)):
            return True
        lease = await self._kube.get(API_VERSION, KIND, self._name, self._namespace)
        if lease is None:
            return await self._acquire(None)
        spec = lease.get("spec", {})
        holder = spec.get("holderIdentity") or ""
        renewal = f"{holder} {spec.get('renewTime')}"
        renewed = bool(self._observed[0]) and renewal != self._observed[0]
        if renewal != self._observed[0]:
            self._observed = (renewal, time.monotonic())
        expired = time.monotonic() - self._observed[1] > spec.get("leaseDurationSeconds", 0)
        if holder not in ("", self._identity) and not expired:
            self.another_leads |= renewed
            return False
        self.another_leads = False
        return await self._acquire(lease)

    async def _acquire(self, lease: Manifest | None) -> bool:
        """Write the Lease with this replica as its holder, unless another operator acts."""
        if self._scope is None:
            return await self._write(self._build_lease(lease))
        if await self._scope.has_rival() or not await self._write(self._build_lease(lease)):
            return False
        assert self._own_lease is not None, "it was written"
        # Another operator may have looked and written at the same time.
        if not await self._scope.has_rival(since=self._own_lease["spec"]["acquireTime"]):
            return True
        self._own_lease = None
        await self._release()
        return False

    def _build_lease(self, before: Manifest | None) -> Manifest:
        """Return the Lease with this replica as its holder; `before` is the Lease as it is."""
        spec = (before or {}).get("spec", {})
        took_over = spec.get("holderIdentity") != self._identity
        meta: Manifest = {"name": self._name, "namespace": self._namespace}
        if before:
            meta = {k: v for k, v in before["metadata"].items() if k != "managedFields"}
        if self._scope:
            meta |= self._scope.metadata
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": meta,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": DURATION_SECONDS,
                "acquireTime": _format_micro_time() if took_over else spec.get("acquireTime"),
                "renewTime": _format_micro_time(),
                "leaseTransitions": spec.get("leaseTransitions", 0) + took_over,
            },
        }

    async def _write(self, lease: Manifest) -> bool:
        """Write the Lease; return False if another replica has written or deleted it."""
        before, self._own_lease = self._own_lease, None
        try:
            if "resourceVersion" in lease["metadata"]:
                self._own_lease = await self._kube.replace(lease)
            else:
                self._own_lease = await self._kube.create(lease)
        except KubeError as error:
            # 409: another replica wrote the Lease; 404: it was deleted.
            if error.status in (404, 409):
                return False
            self._own_lease = before
            raise
        return True

    async def _release(self) -> None:
        """Give up the Lease, so that another replica need not wait until it expires."""
        try:
            lease = await self._kube.get(API_VERSION, KIND, self._name, self._namespace)
            if lease and lease.get("spec", {}).get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._kube.replace(lease)
        except KubeError:
            return
