"""Rewrites resources that the API server stores in an earlier version of their kind.

A definition names the versions in which resources may be stored (`status.storedVersions`). A later
release can drop a version only once none is. Each resource is patched with nothing, and the API
server then stores it in the current version.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from shoal_operator.kube.kube import KubeClient, KubeError
from shoal_operator.model import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


log = structlog.get_logger()
API = "apiextensions.k8s.io/v1"
KIND = "CustomResourceDefinition"
#: Seconds until the next attempt after an error.
RETRY_SECONDS = 60.0


async def migrate_all(kube: KubeClient, definitions: Iterable[str]) -> None:
    """Migrate the resources of these definitions, and try again until none is left."""
    remaining = list(definitions)
    while remaining:
        remaining = [name for name in remaining if not await _try_migrate(kube, name)]
        if remaining:
            await asyncio.sleep(RETRY_SECONDS)


async def migrate(kube: KubeClient, definition: str) -> int:
    """Migrate the resources of a definition in all namespaces; return how many there were.

    Raises `KubeError`. An interrupted migration starts over and finds less to do.
    """
    manifest = await kube.get(API, KIND, definition, "")
    if manifest is None:
        return 0
    version = get_storage_version(manifest)
    if manifest.get("status", {}).get("storedVersions", [version]) == [version]:
        return 0
    group, kind = manifest["spec"]["group"], manifest["spec"]["names"]["kind"]
    resources, _ = await kube.list_snapshot(f"{group}/{version}", kind, None, {})
    for resource in resources:
        # A resource that is gone needs none.
        await kube.merge(resource, {})
    await kube.merge(manifest, {"status": {"storedVersions": [version]}}, status=True)
    return len(resources)


def get_storage_version(definition: Mapping[str, Any]) -> str:
    """Return the version in which the API server stores resources of a definition."""
    (version,) = (v["name"] for v in definition["spec"]["versions"] if v["storage"])
    return str(version)


async def _try_migrate(kube: KubeClient, definition: str) -> bool:
    try:
        count = await migrate(kube, definition)
    except KubeError as error:
        refused = error.status == 403
        log.warning("cannot migrate stored resources", kind=definition, error=str(error))
        # Without the permission, another attempt would fail as well.
        return refused
    except Exception:
        log.exception("a defect of the operator; will try again", kind=definition)
        return False
    if count:
        log.info("migrated stored resources", kind=definition, to=names.VERSION, resources=count)
    return True
