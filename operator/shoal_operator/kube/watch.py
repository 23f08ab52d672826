"""A watch of a kind that may not exist: SparkApplications, which Kubeflow's chart defines.

kopf scans for a kind when its definition changes, which is before the API server serves it, and
not again. This watch retries until the kind exists, and after every failure: later each time, until
a watch has lasted. What a handler fails at concerns one object; the others go on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from shoal_operator import metrics
from shoal_operator.kube.kube import KubeClient, KubeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal_operator.model.names import Manifest

log = structlog.get_logger()
#: Seconds between attempts while the kind does not exist.
ABSENT_SECONDS = 60.0
#: The same after `retry_now`, and the number of those attempts.
CHANGED_SECONDS, CHANGED_ATTEMPTS = 1.0, 15
#: Seconds until the next attempt after a failure, doubled each time, and the most of them. A watch
#: that lasted for that long begins anew with the first number.
RETRY_SECONDS, RETRY_SECONDS_MAX = 2.0, 30.0
#: A watch that ends earlier has failed: the API server ends one after minutes.
LASTING_SECONDS = 1.0


class KindWatch:
    """Calls `on_update` and `on_delete` for the objects of one kind.

    `namespace` None means all namespaces.
    """

    def __init__(
        self,
        kube: KubeClient,
        api_version: str,
        kind: str,
        labels: Mapping[str, str],
        namespace: str | None,
        on_update: Callable[[Manifest], None],
        on_delete: Callable[[Manifest], None],
    ) -> None:
        self._kube, self._target = kube, (api_version, kind, namespace, labels)
        self._on_update, self._on_delete = on_update, on_delete
        self._objects: dict[tuple[str, str], Manifest] = {}
        self._changed = asyncio.Event()
        self._attempts = 0
        self._failures = 0
        #: Whether the objects have been listed once, or the kind is known not to exist.
        self.synced = False
        #: The sentence about a watch that fails, empty while it works.
        self.problem = ""

    def retry_now(self) -> None:
        """Retry soon: the definition of the kind has changed."""
        self._attempts = CHANGED_ATTEMPTS
        self._changed.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            began = asyncio.get_running_loop().time()
            failure = ""
            try:
                await self._follow()
            except KubeError as error:
                if error.status == 404:
                    self._forget({})
                    self._note_success()
                    await self._wait()
                    continue
                if error.status != 410:
                    failure = str(error) or f"HTTP status {error.status}"
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                failure = "a call was cancelled"
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                log.exception("a defect of the operator; will watch again", kind=self._target[1])
            lasted = asyncio.get_running_loop().time() - began
            if failure or lasted < LASTING_SECONDS:
                await self._pause(failure or "the API server ended it at once", lasted)

    def _note_success(self) -> None:
        if self.problem:
            log.info("watches again", kind=self._target[1], api_version=self._target[0])
        self.synced, self.problem = True, ""

    async def _pause(self, failure: str, lasted: float) -> None:
        """Report a failure, and wait until the next attempt."""
        api_version, kind, namespace, _ = self._target
        self._failures = 1 if lasted >= RETRY_SECONDS_MAX else self._failures + 1
        seconds = min(RETRY_SECONDS * 2 ** min(self._failures - 1, 10), RETRY_SECONDS_MAX)
        subject = f"{kind} ({api_version})" + (f" in namespace {namespace!r}" if namespace else "")
        self.problem = f"The watch of {subject} fails: {failure}"
        metrics.ERRORS.labels(f"{kind} watch").inc()
        log.warning("watch broke off", kind=kind, error=failure, again_in_seconds=seconds)
        await asyncio.sleep(seconds)

    async def _wait(self) -> None:
        if self._attempts:
            self._attempts -= 1
            await asyncio.sleep(CHANGED_SECONDS)
            return
        try:
            async with asyncio.timeout(ABSENT_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    async def _follow(self) -> None:
        """List and watch until the API server ends the watch."""
        objects, version = await self._kube.list_snapshot(*self._target)
        self._attempts = 0
        self._forget({_get_key(o): o for o in objects})
        for manifest in objects:
            self._take(manifest)
        self.synced = True
        async with self._kube.watch(*self._target, version) as changes:
            self._note_success()
            async for change, manifest in changes:
                if change == "DELETED":
                    self._objects.pop(_get_key(manifest), None)
                    self._report(self._on_delete, manifest)
                else:
                    self._take(manifest)

    def _take(self, manifest: Manifest) -> None:
        self._objects[_get_key(manifest)] = manifest
        self._report(self._on_update, manifest)

    def _forget(self, present: Mapping[tuple[str, str], Manifest]) -> None:
        """Report the objects that were deleted while there was no watch."""
        for key in sorted(self._objects.keys() - present.keys()):
            self._report(self._on_delete, self._objects.pop(key))

    def _report(self, on_change: Callable[[Manifest], None], manifest: Manifest) -> None:
        """Call a handler. Its defect is logged, and keeps no other object from it: the pass through
        all resources makes up for what is missed."""
        try:
            on_change(manifest)
        except Exception:
            kind, (namespace, name) = self._target[1], _get_key(manifest)
            metrics.ERRORS.labels(f"{kind} watch").inc()
            log.exception("a defect of the operator", kind=kind, namespace=namespace, name=name)


def _get_key(manifest: Manifest) -> tuple[str, str]:
    return (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
