"""The operator's calls on cordoned brokers, which get no new replicas (KIP-1066)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    Configs,
)
from shoal.client.errors import ClientError, expect
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shoal.client.net.cluster import Cluster
    from shoal.protocol.api import ApiKey

CORDONED = "cordoned.log.dirs"
#: Errors of brokers that are not registered, or whose version does not have the config.
_ABSENT = (ErrorCode.invalid_request, ErrorCode.invalid_config)


class CordonCalls:
    """Calls of one connection; `count` is called with the name of each API."""

    def __init__(self, cluster: Cluster, count: Callable[[str], None]) -> None:
        self._own, self._shared = Configs(cluster), Configs(_AnyBroker(cluster))
        self._count = count

    async def describe(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the cordoned log directories by broker id, empty for none. Brokers that do not
        answer are absent, and so are those whose version cannot be cordoned."""
        cordoned: dict[int, str] = {}
        for id in sorted(ids):
            self._count("DescribeConfigs")
            with contextlib.suppress(ClientError):
                configs = await self._own.describe([_make_resource(id)], keys=[CORDONED])
                for entry in expect(configs)[_make_resource(id)].values():
                    cordoned[id] = entry.value or ""
        return cordoned

    async def cordon(self, ids: Iterable[int]) -> bool:
        """Cordon all log directories of these brokers; return whether one has accepted it."""
        accepted = False
        for id in sorted(ids):
            self._count("IncrementalAlterConfigs")
            # Only the broker itself knows its directories, so only it accepts this.
            with contextlib.suppress(ClientError):
                expect(await self._own.alter({_make_resource(id): [ConfigChange(CORDONED, "*")]}))
                accepted = True
        return accepted

    async def uncordon(self, ids: Iterable[int]) -> None:
        """End the cordons of these brokers, which need not run. Raises `ClientError`."""
        change = ConfigChange(CORDONED, None, AlterOperation.DELETE)
        self._count("IncrementalAlterConfigs")
        results = await self._shared.alter({_make_resource(id): [change] for id in sorted(ids)})
        for error in results.values():
            if error and error.code not in _ABSENT:
                raise error


class _AnyBroker:
    """Sends requests about a broker to any broker."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def request(self, _node_id: int, api_key: ApiKey, body: Mapping[str, Any]) -> Any:
        """Send a request to any broker. Raises `ClientError`."""
        return await self._cluster.ask(api_key, body)

    async def ask(self, api_key: ApiKey, body: Mapping[str, Any]) -> Any:
        """Send a request to any broker. Raises `ClientError`."""
        return await self._cluster.ask(api_key, body)


def _make_resource(id: int) -> ConfigResource:
    return ConfigResource(ConfigResourceType.BROKER, str(id))
