"""A watch of a kind that may not exist: SparkApplications, which Kubeflow's chart defines.

kopf scans for a kind when its definition changes, which is before the API server serves it, and
not again. This watch retries until the kind exists.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from shoal_operator.kube.kube import KubeClient, KubeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal_operator.model.names import Manifest

log = structlog.get_logger()
#: Seconds between attempts while the kind does not exist.
ABSENT_SECONDS = 60.0
#: The same after `retry_now`, and the number of those attempts.
CHANGED_SECONDS, CHANGED_ATTEMPTS = 1.0, 15
RETRY_SECONDS = 2.0


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

    def retry_now(self) -> None:
        """Retry soon: the definition of the kind has changed."""
        self._attempts = CHANGED_ATTEMPTS
        self._changed.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                await self._follow()
            except KubeError as error:
                if error.status == 404:
                    self._forget({})
                    await self._wait()
                    continue
                if error.status != 410:
                    log.warning("watch broke off", kind=self._target[1], error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

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
        async for change, manifest in self._kube.watch(*self._target, version):
            if change == "DELETED":
                self._objects.pop(_get_key(manifest), None)
                self._on_delete(manifest)
            else:
                self._take(manifest)

    def _take(self, manifest: Manifest) -> None:
        self._objects[_get_key(manifest)] = manifest
        self._on_update(manifest)

    def _forget(self, present: Mapping[tuple[str, str], Manifest]) -> None:
        """Report the objects that were deleted while there was no watch."""
        for key in sorted(self._objects.keys() - present.keys()):
            self._on_delete(self._objects.pop(key))


def _get_key(manifest: Manifest) -> tuple[str, str]:
    return (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
