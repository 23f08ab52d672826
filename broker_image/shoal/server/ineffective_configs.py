"""Settings that were given and have no effect: named at the start, and when they are altered.

Such a config is accepted because it tunes machinery that this broker does not have
(`docs/configs.md`). A user who sets one expects something, so the broker names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.configs import BROKER, GROUP, TOPIC, Table, without_effect
from shoal.metadata.image import ResourceType

if TYPE_CHECKING:
    from shoal.metadata.delta import MetadataDelta
    from shoal.server.broker import Broker

_TABLES: dict[int, tuple[str, Table]] = {
    ResourceType.TOPIC: ("topic", TOPIC),
    ResourceType.BROKER: ("broker", BROKER),
    ResourceType.GROUP: ("group", GROUP),
}


def of_broker(broker: Broker) -> list[str]:
    """Names of the configs of this broker that were set, in its file, by flags or by an
    alteration, and that have no effect."""
    return without_effect(BROKER, {name for layer in broker.image.layers for name in layer})


def sentence(names: list[str]) -> str:
    """The line for the console."""
    return f"Set without effect: {', '.join(names)}. docs/configs.md lists what has an effect."


def log_altered(broker: Broker, delta: MetadataDelta) -> None:
    """Log the configs without effect of each resource that was altered. The active controller
    reports on topics and groups, and each broker on its own configs."""
    for kind, name in delta.configs:
        if kind not in _TABLES:
            continue
        if kind == ResourceType.BROKER:
            concerns_us = name in (str(broker.node_id), "")
        else:
            concerns_us = broker.metadata.is_active
        type_name, table = _TABLES[kind]
        found = without_effect(table, broker.image.configs.get((kind, name), ()))
        if concerns_us and found:
            broker.log.warning(
                "settings without effect", type=type_name, name=name or "all", settings=found
            )
