"""The configs of share groups in force, and the policies that go beyond KIP-932."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.share import compiled
from shoal.coordinator.share.backoff import Backoff
from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.metadata.image import MetadataImage
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

#: The level of the feature `share.version` with which there are dead letters (KIP-1191).
DEAD_LETTERS_FROM = 2


class ShareGroupSettings:
    """Owns the settings of groups under the newest image. Each is computed when it is first
    used."""

    def __init__(self, node: Node, cache: MetadataCache) -> None:
        self._node = node
        self._cache = cache
        self._settings: dict[str, ShareSettings] = {}
        self._image: MetadataImage | None = None
        self._subscribers: list[Callable[[str, ShareSettings], None]] = []
        self._logged_loops = False

    def subscribe(self, subscriber: Callable[[str, ShareSettings], None]) -> None:
        """Call with each group and its settings when they are computed."""
        self._subscribers.append(subscriber)

    def of(self, group_id: str) -> ShareSettings:
        """Return the group's configs in force."""
        image = self._cache.image
        if image is not self._image:
            self._settings, self._image = {}, image
        found = self._settings.get(group_id)
        if found is None:
            found = self._settings[group_id] = _settings(image, group_id)
            if found.selection is not None and found.selection.key_order:
                self._log_loops()
            for subscriber in self._subscribers:
                subscriber(group_id, found)
        return found

    def _log_loops(self) -> None:
        """Log once whether the loops of key order are compiled, if a group has it."""
        if not self._logged_loops:
            self._logged_loops = True
            self._node.log.info("a group has key order", loops=compiled.description())


def _settings(image: MetadataImage, group_id: str) -> ShareSettings:
    config = image.group_config(group_id)
    return ShareSettings(
        config["share.record.lock.duration.ms"],
        config["share.delivery.count.limit"],
        config["share.partition.max.record.locks"],
        config["share.isolation.level"] == "read_committed",
        config["share.renew.acknowledge.enable"],
        config["share.auto.offset.reset"],
        backoff(config),
        config["share.delivery.paused"],
        image.features.get("share.version", 0) >= DEAD_LETTERS_FROM
        and bool(config["errors.deadletterqueue.topic.name"]),
        config["shoal.errors.deadletterqueue.flood.per.minute"],
        config["share.redelivery.backoff.max.ms"],
        selection(config),
    )


def backoff(config: Mapping[str, Any]) -> Backoff | None:
    """Return the group's retry back-off; None while `share.redelivery.backoff.ms` is 0."""
    first_ms = config["share.redelivery.backoff.ms"]
    if first_ms == 0:
        return None
    return Backoff(
        first_ms,
        config["share.redelivery.backoff.max.ms"],
        config["share.redelivery.backoff.multiplier"],
        config["share.redelivery.backoff.jitter"],
    )


def selection(config: Mapping[str, Any]) -> SelectionPolicy | None:
    """Return the group's key order, delay and priority, or None."""
    policy = SelectionPolicy(
        key_order=config["share.ordering"] == "key",
        key_batch=config["share.ordering.key.batch"],
        key_held_by_dead_letter=config["share.ordering.key.dead.letter"] == "hold",
        dead_letters_held_max=config["share.ordering.key.dead.letter.max.held"],
        lookahead=config["share.ordering.key.lookahead"],
        delay_max_ms=config["share.delay.max.ms"],
        delayed_max=config["share.delay.max.records"],
        priority_header=config["share.priority.header"],
        priority_lookahead=config["share.priority.lookahead"],
        priority_ageing_ms=config["share.priority.ageing.ms"],
    )
    chosen = policy.key_order or policy.delay_max_ms or policy.priority_header
    return policy if chosen else None
