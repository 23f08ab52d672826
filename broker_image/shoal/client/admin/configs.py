"""Admin calls on configs of topics, brokers, groups and client metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoal.client.errors import KafkaError, check
from shoal.client.net import message_fields
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class ConfigResourceType(IntEnum):
    """Kafka's numbers of config resources."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class AlterOperation(IntEnum):
    """The change of one key. APPEND and SUBTRACT are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigResource(NamedTuple):
    """The owner of configs. A broker's name is its node id, or empty for all brokers."""

    type: ConfigResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower().replace('_', ' ')} {self.name!r}"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key of a resource. `value` is None for a sensitive key."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    synonyms: tuple[tuple[str, str | None, int], ...] = ()
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT_CONFIG

    @property
    def has_default_value(self) -> bool:
        """Whether it is not set, or set for all brokers to the built-in default, as a cluster does
        with `min.insync.replicas`. Needs the synonyms."""
        if self.source != ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG:
            return self.is_default
        defaults = [v for _, v, source in self.synonyms if source == ConfigSource.DEFAULT_CONFIG]
        return self.value in defaults


class ConfigChange(NamedTuple):
    """A change of one key. `value` is None for DELETE, which restores the default."""

    name: str
    value: str | None
    operation: AlterOperation = AlterOperation.SET


class Nodes(Protocol):
    """The nodes that serve configs: a `Cluster`, for example."""

    async def request(self, node_id: int, api_key: ApiKey, body: Mapping[str, Any], /) -> Any:
        """Send a request to one node."""

    async def ask(self, api_key: ApiKey, body: Mapping[str, Any], /) -> Any:
        """Send a request to any node."""


class Configs:
    """Calls on configs, reached as `Admin.configs`."""

    def __init__(self, cluster: Nodes) -> None:
        self.cluster = cluster

    async def describe(
        self,
        resources: Iterable[ConfigResource],
        *,
        keys: Sequence[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        """Return the effective configs of resources: all keys, or only `keys`."""
        results: dict[ConfigResource, dict[str, ConfigEntry] | KafkaError] = {}
        for node, node_resources in self._group_by_node(resources).items():
            body = {
                "resources": [
                    {"resource_type": r.type, "resource_name": r.name, "configuration_keys": keys}
                    for r in node_resources
                ],
                "include_synonyms": synonyms,
                "include_documentation": documentation,
            }
            answer = await self._ask(node, ApiKey.DESCRIBE_CONFIGS, body)
            for entry in answer.results:
                resource = ConfigResource(
                    ConfigResourceType(entry.resource_type), entry.resource_name
                )
                error = message_fields.parse_error(entry, f"configs of {resource}")
                results[resource] = error or {c.name: _parse_entry(c) for c in entry.configs}
        return results

    async def alter(
        self,
        changes: Mapping[ConfigResource, Iterable[ConfigChange]],
        *,
        validate_only: bool = False,
    ) -> dict[ConfigResource, KafkaError | None]:
        """Change single keys and keep the others (IncrementalAlterConfigs, KIP-339)."""
        results: dict[ConfigResource, KafkaError | None] = {}
        for node, node_resources in self._group_by_node(changes).items():
            body = {
                "resources": [
                    {
                        "resource_type": r.type,
                        "resource_name": r.name,
                        "configs": [
                            {"name": c.name, "config_operation": c.operation, "value": c.value}
                            for c in changes[r]
                        ],
                    }
                    for r in node_resources
                ],
                "validate_only": validate_only,
            }
            answer = await self._ask(node, ApiKey.INCREMENTAL_ALTER_CONFIGS, body)
            for entry in answer.responses:
                resource = ConfigResource(
                    ConfigResourceType(entry.resource_type), entry.resource_name
                )
                results[resource] = message_fields.parse_error(entry, f"configs of {resource}")
        return results

    async def resources(self, types: Iterable[ConfigResourceType] = ()) -> list[ConfigResource]:
        """Return every resource of these types (default: all) that has configs (KIP-1142)."""
        body = {"resource_types": [int(t) for t in types]}
        answer = await self.cluster.ask(ApiKey.LIST_CONFIG_RESOURCES, body)
        check(answer.error_code, "listing config resources")
        return sorted(
            ConfigResource(ConfigResourceType(r.resource_type), r.resource_name)
            for r in answer.config_resources
        )

    def _group_by_node(
        self, resources: Iterable[ConfigResource]
    ) -> dict[int | None, list[ConfigResource]]:
        """Group resources by the broker to ask: a broker's own configs there, others anywhere."""
        resources_by_node: dict[int | None, list[ConfigResource]] = {}
        for resource in resources:
            own = resource.type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)
            node = int(resource.name) if own and resource.name.isdigit() else None
            resources_by_node.setdefault(node, []).append(resource)
        return resources_by_node

    async def _ask(self, node: int | None, api_key: ApiKey, body: Mapping[str, Any]) -> Any:
        if node is None:
            return await self.cluster.ask(api_key, body)
        return await self.cluster.request(node, api_key, body)


def _parse_entry(entry: Any) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        entry.config_source,
        entry.read_only,
        entry.is_sensitive,
        tuple((s.name, s.value, s.source) for s in entry.synonyms),
        getattr(entry, "documentation", None),
    )
