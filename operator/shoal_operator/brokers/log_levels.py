"""Levels of loggers of brokers and controllers, as configs of the type BROKER_LOGGER (KIP-412).

Each node serves its own levels. Brokers list no dedicated controllers, so the operator connects to
the listener of each controller, as Kafka's tools do with `--bootstrap-controller`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog
from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    Configs,
)
from shoal.client.errors import ClientError, KafkaError, Unreachable
from shoal.client.net.connection import connect
from shoal.client.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.client.net.connection import Connection
    from shoal.protocol.api import ApiKey

logger = structlog.get_logger()


async def describe(
    configs: Configs, ids: Iterable[int], loggers: Sequence[str]
) -> dict[int, dict[str, str]]:
    """Return the levels in effect, by node id and logger; unknown loggers are absent. Raises
    `ClientError`."""
    resources = [ConfigResource(ConfigResourceType.BROKER_LOGGER, str(node)) for node in ids]
    results = await configs.describe(resources, keys=loggers)
    return {
        int(resource.name): {e.name: e.value or "" for e in entries.values()}
        for resource, entries in results.items()
        if not isinstance(entries, KafkaError)
    }


async def alter(
    configs: Configs, changes: Mapping[int, Mapping[str, str | None]]
) -> dict[int, KafkaError]:
    """Set, or with None unset, the levels of loggers; return the errors by node id. Raises
    `ClientError`."""
    alterations = {
        ConfigResource(ConfigResourceType.BROKER_LOGGER, str(node)): [
            ConfigChange(name, level, *([AlterOperation.DELETE] if level is None else []))
            for name, level in sorted(levels.items())
        ]
        for node, levels in changes.items()
    }
    return {
        int(resource.name): e for resource, e in (await configs.alter(alterations)).items() if e
    }


class ControllerLevels:
    """The log levels of dedicated controllers, over a connection to each, which opens on first use.

    `addresses` has `host:port` of the controllers' listener by node id. `properties` returns the
    client's properties for a new connection. A controller that does not answer is left out, and
    logged: it gets its levels later.
    """

    def __init__(
        self, addresses: Mapping[int, str], properties: Callable[[], Mapping[str, str]]
    ) -> None:
        self._addresses = dict(addresses)
        self._properties = properties
        self._connections: dict[int, Connection] = {}

    def set_addresses(self, addresses: Mapping[int, str]) -> None:
        """Use these addresses from now on."""
        if addresses != self._addresses:
            self.close()
            self._addresses = dict(addresses)

    def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __contains__(self, node: int) -> bool:
        return node in self._addresses

    async def describe(self, loggers: Sequence[str]) -> dict[int, dict[str, str]]:
        """Return the levels in effect, by node id and logger."""

        async def describe_node(node: int) -> dict[int, dict[str, str]]:
            try:
                return await describe(Configs(self), [node], loggers)
            except ClientError as error:
                _log_unanswered(node, error)
                return {}

        results = await asyncio.gather(*map(describe_node, sorted(self._addresses)))
        return {node: levels for node_levels in results for node, levels in node_levels.items()}

    async def alter(self, changes: Mapping[int, Mapping[str, str | None]]) -> dict[int, KafkaError]:
        """Set, or with None unset, the levels of loggers; return the errors by node id."""

        async def alter_node(node: int) -> dict[int, KafkaError]:
            try:
                return await alter(Configs(self), {node: changes[node]})
            except ClientError as error:
                _log_unanswered(node, error)
                return {}

        results = await asyncio.gather(*map(alter_node, sorted(changes)))
        return {node: error for node_errors in results for node, error in node_errors.items()}

    # What `Configs` needs.

    async def request(self, node_id: int, api_key: ApiKey, body: Mapping[str, Any]) -> Any:
        """Send one request to a controller. Raises `ClientError`."""
        connection = self._connections.get(node_id)
        if connection is None or connection.closed:
            settings = Settings.from_bootstrap(self._addresses[node_id], self._properties)
            connection = await connect(settings, settings.bootstrap[0])
            self._connections[node_id] = connection
        return await connection.request(api_key, body)

    async def ask(self, api_key: ApiKey, _body: Mapping[str, Any]) -> Any:
        """Refuse a request that names no node."""
        raise Unreachable(f"{api_key.name} needs the id of a controller")


def _log_unanswered(node: int, error: ClientError) -> None:
    logger.warning("a controller does not serve its log levels", controller=node, error=str(error))
