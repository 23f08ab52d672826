"""A watch of a kind that may not exist: SparkApplications, whose definition somebody else brings.

kopf looks for a new kind when its definition changes, which is a moment before the API server
serves it, and then never again. This one tries until the kind is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from shoal_operator.kube import Kube, KubeError
from shoal_operator.model.names import Manifest

log = structlog.get_logger()
#: A kind that is not there is looked for that often, and oftener after a nudge.
ABSENT_SECONDS = 60.0
NUDGED_SECONDS, NUDGED_TRIES = 1.0, 15
RETRY_SECONDS = 2.0


class Watch:
    """Keeps telling `seen` and `gone` of the objects of one kind in one namespace, or in all."""

    def __init__(
        self,
        kube: Kube,
        api_version: str,
        kind: str,
        labels: Mapping[str, str],
        namespace: str | None,
        seen: Callable[[Manifest], None],
        gone: Callable[[Manifest], None],
    ) -> None:
        self._kube, self._what = kube, (api_version, kind, namespace, labels)
        self._seen, self._gone = seen, gone
        self._known: dict[tuple[str, str], Manifest] = {}
        self._nudged = asyncio.Event()
        self._tries = 0

    def nudge(self) -> None:
        """The kind may have come or gone."""
        self._tries = NUDGED_TRIES
        self._nudged.set()

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
                    log.warning("watch broke off", kind=self._what[1], error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _wait(self) -> None:
        if self._tries:
            self._tries -= 1
            await asyncio.sleep(NUDGED_SECONDS)
            return
        try:
            async with asyncio.timeout(ABSENT_SECONDS):
                await self._nudged.wait()
        except TimeoutError:
            pass
        self._nudged.clear()

    async def _follow(self) -> None:
        """List, then watch from there; returns when the API server ends the watch."""
        found, version = await self._kube.snapshot(*self._what)
        self._tries = 0
        self._forget({_key(o): o for o in found})
        for manifest in found:
            self._take(manifest)
        async for change, manifest in self._kube.watch(*self._what, version):
            if change == "DELETED":
                self._known.pop(_key(manifest), None)
                self._gone(manifest)
            else:
                self._take(manifest)

    def _take(self, manifest: Manifest) -> None:
        self._known[_key(manifest)] = manifest
        self._seen(manifest)

    def _forget(self, present: Mapping[tuple[str, str], Manifest]) -> None:
        """Tell of those that went while nobody watched."""
        for key in sorted(self._known.keys() - present.keys()):
            self._gone(self._known.pop(key))


def _key(manifest: Manifest) -> tuple[str, str]:
    return (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
