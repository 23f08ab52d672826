"""Configs that were set and have no effect: named at the start, and when they are altered.

The broker accepts such a config because it tunes a mechanism of Kafka's that the broker does not
have (`docs/configs.md`). A user who sets one expects an effect, so the broker names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata import listener_configs
from shoal.metadata.config_keys import ConfigEffect
from shoal.metadata.configs import BROKER, GROUP, TOPIC, Table, find_without_effect
from shoal.metadata.image import ConfigResourceType, MetadataImage
from shoal.metadata.min_insync_replicas import MIN_ISR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.metadata.delta import MetadataDelta
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

_TABLES: dict[int, tuple[str, Table]] = {
    ConfigResourceType.TOPIC: ("topic", TOPIC),
    ConfigResourceType.BROKER: ("broker", BROKER),
    ConfigResourceType.GROUP: ("group", GROUP),
}


def list_for_broker(image: MetadataImage) -> list[str]:
    """Return the names of this broker's configs that have no effect, whether its file, a flag or
    an alteration sets them."""
    return _find_ineffective(BROKER, {name for layer in image.layers for name in layer})


def _find_ineffective(table: Table, config_names: Iterable[str]) -> list[str]:
    """Return the names among `config_names` that have no effect, overrides of listeners
    included."""
    names = list(config_names)
    overrides = [
        name
        for name in names
        if listener_configs.split_name(name) is not None
        and (key := listener_configs.find_key(name)) is not None
        and key.effect is ConfigEffect.ACCEPTED
    ]
    return sorted([*find_without_effect(table, names), *overrides])


def describe_hidden_min_isr(image: MetadataImage) -> str:
    """Return a sentence if the cluster's min.insync.replicas hides another one of this broker's
    file or flags, or an empty string."""
    text = image.scope.static.get(MIN_ISR)
    ours, cluster_wide = BROKER[MIN_ISR].read(text), image.broker_config[MIN_ISR]
    if text is None or ours == cluster_wide:
        return ""
    return (
        f"The cluster has {MIN_ISR}={cluster_wide}, which hides this broker's {MIN_ISR}={ours}."
        f" `shoal configs set broker default {MIN_ISR}={ours}` changes it."
    )


def format_sentence(names: list[str]) -> str:
    """Return the line for the console."""
    return f"Set without effect: {', '.join(names)}. docs/configs.md lists what has an effect."


def log_alterations(
    node: Node, cache: MetadataCache, *, is_active_controller: Callable[[], bool]
) -> None:
    """From now on, log configs without effect when a resource is altered.

    The active controller reports on topics and groups. Each broker reports on its own configs.
    """

    def on_image_changed(image: MetadataImage, delta: MetadataDelta) -> None:
        for kind, name in delta.configs:
            if kind not in _TABLES:
                continue
            if kind == ConfigResourceType.BROKER:
                is_reported = name in (str(node.id), "")
            else:
                is_reported = is_active_controller()
            type_name, table = _TABLES[kind]
            ineffective = _find_ineffective(table, image.configs.get((kind, name), ()))
            if is_reported and ineffective:
                node.log.warning(
                    "settings without effect",
                    type=type_name,
                    name=name or "all",
                    settings=ineffective,
                )

    cache.subscribe(on_image_changed)
