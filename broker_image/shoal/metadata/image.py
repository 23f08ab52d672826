"""The metadata image: the state of the cluster at one offset of the metadata log.

An image is immutable, so a request is served from one image without locks. `delta.apply` makes the
next image and reports the differences. Images share unchanged topics. A change of some topics
copies two dicts of all topics.

Effective configs are computed on first use and kept with the image (`resolve_topic_config` and
similar). The next image inherits those that its records did not change. The returned dicts are
shared: do not modify them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from shoal.metadata import configs
from shoal.metadata.answers import EncodedResponseCache
from shoal.metadata.configs import (
    BROKER,
    GROUP,
    TOPIC,
    ConfigLayers,
    ConfigOrigin,
    ConfigSource,
    Texts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.security.acls import Acl
    from shoal.security.delegation_tokens import DelegationToken
    from shoal.security.scram import ScramCredential

NO_LEADER = -1
#: Kafka's DirectoryId.UNASSIGNED: the broker assigns the replica's directory.
UNASSIGNED = UUID(int=0)


class ConfigResourceType:
    """Types of config resource, with the numbers of ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class PartitionImage(NamedTuple):
    """One partition's registration. `replicas` are in preferred order; `-1` means no leader."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    directories: tuple[UUID, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


class TopicImage(NamedTuple):
    """A topic; partition `i` is at index `i`."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionImage, ...]


class BrokerEndpoint(NamedTuple):
    name: str
    host: str
    port: int
    security_protocol: int = 0


class BrokerImage(NamedTuple):
    """A broker's registration. `features` maps a feature to its supported (min, max) levels."""

    broker_id: int
    incarnation_id: UUID | None
    broker_epoch: int
    endpoints: tuple[BrokerEndpoint, ...]
    features: Mapping[str, tuple[int, int]]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[UUID, ...] = ()
    cordoned_log_dirs: tuple[UUID, ...] = ()

    @property
    def may_get_replicas(self) -> bool:
        """Whether new replicas may be placed here: it runs, and a log directory is not cordoned."""
        return not (self.fenced or self.in_controlled_shutdown or self.is_cordoned)

    @property
    def is_cordoned(self) -> bool:
        """Whether all its log directories are cordoned (KIP-1066)."""
        return bool(self.log_dirs) and set(self.log_dirs) <= set(self.cordoned_log_dirs)

    def find_endpoint(self, listener: str) -> BrokerEndpoint | None:
        """Return the broker's endpoint of a listener, or None."""
        return next((e for e in self.endpoints if e.name == listener), None)


class ImageScope(NamedTuple):
    """The broker that reads the image: `node_id` and the configs of its file and flags."""

    node_id: int = 1
    static: Texts = configs.NONE
    cluster_id: str = ""


@dataclass(frozen=True)
class MetadataImage:
    """The state of the cluster. Empty except for its scope until records are applied."""

    scope: ImageScope = field(default_factory=ImageScope)
    #: Offset of the last record, and the leader epoch in which it was appended.
    offset: int = -1
    epoch: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[UUID, TopicImage] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    #: Config texts by name, by (resource type, resource name).
    configs: Mapping[tuple[int, str], Texts] = field(default_factory=dict)
    next_producer_id: int = 0
    #: Quota values by key, by entity (`client_quotas.Entity`).
    client_quotas: Mapping[Any, Mapping[str, float]] = field(default_factory=dict)
    acls: Mapping[UUID, Acl] = field(default_factory=dict)
    #: SCRAM credentials by (user name, number of the mechanism).
    scram_credentials: Mapping[tuple[str, int], ScramCredential] = field(default_factory=dict)
    #: Delegation tokens by token id.
    delegation_tokens: Mapping[str, DelegationToken] = field(default_factory=dict)
    #: Encoded responses about this image; they are dropped with the image.
    answers: EncodedResponseCache = field(
        default_factory=EncodedResponseCache, compare=False, repr=False
    )
    #: Cache of the effective configs of topics and groups with configs of their own, by name.
    known_topic_configs: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False)
    known_group_configs: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False)

    def find_topic_by_id(self, topic_id: UUID | None) -> TopicImage | None:
        return self.topics_by_id.get(topic_id) if topic_id is not None else None

    @cached_property
    def running(self) -> Mapping[int, BrokerImage]:
        """Brokers that are not fenced, ordered by id."""
        return {b: self.brokers[b] for b in sorted(self.brokers) if not self.brokers[b].fenced}

    @cached_property
    def active(self) -> frozenset[int]:
        """Brokers that may lead: neither fenced nor in a controlled shutdown."""
        return frozenset(
            id for id, b in self.brokers.items() if not b.fenced and not b.in_controlled_shutdown
        )

    def find_partition(self, topic: str, index: int) -> PartitionImage | None:
        """Return the partition with this name and index, or None."""
        topic_image = self.topics.get(topic)
        if topic_image is None or not 0 <= index < len(topic_image.partitions):
            return None
        return topic_image.partitions[index]

    # Effective configs

    @cached_property
    def layers(self) -> ConfigLayers:
        """Return the layers of this broker's configs, the strongest first."""
        own = self.configs.get((ConfigResourceType.BROKER, str(self.scope.node_id)), configs.NONE)
        default = self.configs.get((ConfigResourceType.BROKER, ""), configs.NONE)
        return ConfigLayers(own, default, self.scope.static)

    @cached_property
    def broker_config(self) -> Mapping[str, Any]:
        """Return every effective broker config of this broker, typed."""
        return configs.resolve_broker_values(self.layers)

    @cached_property
    def _topic_defaults(self) -> dict[str, Any]:
        return configs.resolve_inherited(TOPIC, self.broker_config)

    @cached_property
    def _group_defaults(self) -> dict[str, Any]:
        return configs.clamp_to_bounds(
            configs.resolve_inherited(GROUP, self.broker_config), self.broker_config
        )

    def resolve_topic_config(self, name: str) -> Mapping[str, Any]:
        """Return every effective config of topic `name`, typed; defaults for an unknown topic."""
        config = self.known_topic_configs.get(name)
        if config is None:
            own = self.configs.get((ConfigResourceType.TOPIC, name))
            if own is None:
                return self._topic_defaults
            config = configs.override(TOPIC, self._topic_defaults, own)
            self.known_topic_configs[name] = config
        return config

    def resolve_group_config(self, group_id: str) -> Mapping[str, Any]:
        """Return every effective config of group `group_id`, typed and within the bounds."""
        config = self.known_group_configs.get(group_id)
        if config is None:
            own = self.configs.get((ConfigResourceType.GROUP, group_id))
            if own is None:
                return self._group_defaults
            merged = configs.override(GROUP, self._group_defaults, own)
            config = self.known_group_configs[group_id] = configs.clamp_to_bounds(
                merged, self.broker_config
            )
        return config

    def find_config_origins(
        self, resource_type: int, resource_name: str, name: str
    ) -> list[ConfigOrigin]:
        """Return the sources of a config's value, the effective one first (DescribeConfigs)."""
        if resource_type == ConfigResourceType.BROKER:
            return configs.find_config_origins(BROKER[name], self.layers)
        table, source = (
            (TOPIC, ConfigSource.TOPIC)
            if resource_type == ConfigResourceType.TOPIC
            else (GROUP, ConfigSource.GROUP)
        )
        text = self.configs.get((resource_type, resource_name), configs.NONE).get(name)
        own = None if text is None else ConfigOrigin(name, text, source)
        return configs.find_config_origins(table[name], self.layers, own)
