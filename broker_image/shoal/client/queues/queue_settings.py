"""The settings of a work queue, as configs of its share group: what `shoal queue create` and
`shoal.worker` give to a group.

Configs that somebody has set stay as they are. Callers decide whether a different value is an
error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.client.admin.configs import (
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
)
from shoal.client.errors import expect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.client.admin.admin import Admin
    from shoal.client.admin.configs import ConfigEntry

RESET = "share.auto.offset.reset"
RENEWS = "share.renew.acknowledge.enable"
DELIVERY_LIMIT = "share.delivery.count.limit"
BACKOFF = "share.redelivery.backoff.ms"
BACKOFF_MAX = "share.redelivery.backoff.max.ms"
ORDERING = "share.ordering"
DELAY_MAX_MS = "share.delay.max.ms"
PRIORITY_HEADER = "share.priority.header"
FAIRNESS_BY = "share.fairness.by"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
COPY_RECORDS = "errors.deadletterqueue.copy.record.enable"
#: The config of topics that may hold dead letters.
DEAD_LETTERS_ENABLED = "errors.deadletterqueue.group.enable"
#: A new queue starts at the earliest record: jobs that were enqueued before the first worker ran
#: are work like any other.
FIRST_POSITION = "earliest"
#: The header of a priority in the jobs of `shoal.worker.Queue`.
PRIORITY = "priority"
#: The sources of values that somebody has set on the resource itself.
_OWN_SOURCES = (ConfigSource.GROUP_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG)


class QueueSettings(NamedTuple):
    """What a queue is asked to do; None leaves it to the group.

    `retries` are deliveries after the first one. `backoff_ms` is the first and the longest wait.
    `delay_max_ms` is the longest delay that a job may ask for. `fairness_by` names the tenant of a
    record: `key`, or `header:NAME`.
    """

    retries: int | None = None
    backoff_ms: tuple[int, int] | None = None
    dead_letter_topic: str | None = None
    order: str | None = None
    delay_max_ms: int | None = None
    has_priorities: bool = False
    fairness_by: str | None = None

    def build_group_configs(self) -> dict[str, str]:
        """Return the group configs by name."""
        configs: dict[str, str] = {}
        if self.retries is not None:
            configs[DELIVERY_LIMIT] = str(self.retries + 1)
        if self.backoff_ms is not None:
            first_ms, longest_ms = self.backoff_ms
            configs |= {BACKOFF: str(first_ms), BACKOFF_MAX: str(longest_ms)}
        if self.order is not None:
            configs[ORDERING] = self.order
        if self.delay_max_ms is not None:
            configs[DELAY_MAX_MS] = str(self.delay_max_ms)
        if self.has_priorities:
            configs[PRIORITY_HEADER] = PRIORITY
        if self.fairness_by is not None:
            configs[FAIRNESS_BY] = self.fairness_by
        if self.dead_letter_topic is not None:
            configs |= {DEAD_LETTER_TOPIC: self.dead_letter_topic, COPY_RECORDS: "true"}
        return configs


def make_group(name: str) -> ConfigResource:
    """Return the group as an owner of configs."""
    return ConfigResource(ConfigResourceType.GROUP, name)


def make_topic(name: str) -> ConfigResource:
    """Return the topic as an owner of configs."""
    return ConfigResource(ConfigResourceType.TOPIC, name)


async def read_configs(admin: Admin, resource: ConfigResource) -> dict[str, ConfigEntry]:
    """Return the effective configs of a group or topic. Raises `KafkaError`."""
    return expect(await admin.configs.describe([resource]))[resource]


async def set_configs(
    admin: Admin,
    resource: ConfigResource,
    values: Mapping[str, str],
    *,
    validate_only: bool = False,
) -> None:
    """Set configs in one step, or only check that they can be set. Raises `KafkaError`."""
    changes = {resource: [ConfigChange(name, value) for name, value in values.items()]}
    expect(await admin.configs.alter(changes, validate_only=validate_only))


def list_own(configs: Mapping[str, ConfigEntry]) -> dict[str, str]:
    """Return the values that somebody has set on the resource, by name."""
    return {
        name: entry.value or "" for name, entry in configs.items() if entry.source in _OWN_SOURCES
    }


def find_unset(configs: Mapping[str, ConfigEntry], desired: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted configs that nobody has set."""
    own = list_own(configs)
    return {name: value for name, value in desired.items() if name not in own}


def find_different(
    configs: Mapping[str, ConfigEntry], desired: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return the values that somebody has set, with the wanted ones, where these differ."""
    own = list_own(configs)
    return {
        name: (own[name], value)
        for name, value in desired.items()
        if name in own and own[name] != value
    }


def find_unknown(configs: Mapping[str, ConfigEntry], desired: Iterable[str]) -> list[str]:
    """Return the wanted configs that the brokers do not have."""
    return [name for name in desired if name not in configs]


async def is_unseen(admin: Admin, group: str) -> bool:
    """Return whether a group has neither members nor positions nor configs. Raises `KafkaError`."""
    if group in await admin.groups.list():
        return False
    return not list_own(await read_configs(admin, make_group(group)))
