"""The configs of share groups in force, and the policies that go beyond KIP-932."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.share import compiled
from shoal.coordinator.share.backoff import RedeliveryBackoff
from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings
from shoal.coordinator.share.tenant_limits import TenantLedger
from shoal.coordinator.share.tenant_loans import TenantLoans
from shoal.coordinator.share.tenants import TenantPolicy
from shoal.metadata.config_keys import parse_by_tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from shoal.coordinator.share.records import ShareKey
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
        #: By group and topic.
        self._ledgers: dict[tuple[str, UUID], TenantLedger] = {}
        #: What brokers lend each other of them.
        self.loans: dict[tuple[str, UUID], TenantLoans] = {}
        self._led: dict[UUID, tuple[int, int]] = {}

    def subscribe(self, subscriber: Callable[[str, ShareSettings], None]) -> None:
        """Call with each group and its settings when they are computed."""
        self._subscribers.append(subscriber)

    def get(self, group_id: str) -> ShareSettings:
        """Return the group's configs in force."""
        image = self._cache.image
        if image is not self._image:
            self._settings, self._image, self._led = {}, image, {}
            if self._ledgers:
                self._drop_ledgers()
        settings = self._settings.get(group_id)
        if settings is None:
            settings = self._settings[group_id] = _build_settings(image, group_id)
            if settings.selection is not None and settings.selection.key_order:
                self._log_loops()
            for subscriber in self._subscribers:
                subscriber(group_id, settings)
        return settings

    def _drop_ledgers(self) -> None:
        """Forget ledgers of which no queue and no other broker has anything."""
        topics = self._cache.image.topics_by_id
        for key, ledger in list(self._ledgers.items()):
            if not ledger.queues and not (self.loans[key].is_active and key[1] in topics):
                del self._ledgers[key], self.loans[key]

    def get_tenant_ledger(self, key: ShareKey, settings: ShareSettings) -> TenantLedger:
        """Return what the group's tenants use in the share partitions of a topic that this broker
        leads, with its part of the limits in force."""
        ledger = self._ledgers.get((key.group_id, key.topic_id))
        if ledger is None:
            ledger = self._ledgers[key.group_id, key.topic_id] = TenantLedger()
            self.loans[key.group_id, key.topic_id] = TenantLoans(ledger)
        led = self._led.get(key.topic_id)
        if led is None:
            topic = self._cache.image.topics_by_id.get(key.topic_id)
            partitions = () if topic is None else topic.partitions
            led_count = sum(partition.leader == self._node.id for partition in partitions)
            led = self._led[key.topic_id] = (led_count, len(partitions))
        ledger.configure(settings.tenants, *led, self._node.clock.now_ms())
        return ledger

    def _log_loops(self) -> None:
        """Log once whether the loops of key order are compiled, if a group has it."""
        if not self._logged_loops:
            self._logged_loops = True
            self._node.log.info("a group has key order", loops=compiled.describe())


def _build_settings(image: MetadataImage, group_id: str) -> ShareSettings:
    config = image.resolve_group_config(group_id)
    return ShareSettings(
        config["share.record.lock.duration.ms"],
        config["share.delivery.count.limit"],
        config["share.partition.max.record.locks"],
        config["share.isolation.level"] == "read_committed",
        config["share.renew.acknowledge.enable"],
        config["share.auto.offset.reset"],
        build_backoff(config),
        config["share.delivery.paused"],
        image.features.get("share.version", 0) >= DEAD_LETTERS_FROM
        and bool(config["errors.deadletterqueue.topic.name"]),
        config["shoal.errors.deadletterqueue.flood.per.minute"],
        config["share.redelivery.backoff.max.ms"],
        build_selection_policy(config),
        build_tenant_policy(config),
    )


def build_backoff(config: Mapping[str, Any]) -> RedeliveryBackoff | None:
    """Return the group's retry back-off; None while `share.redelivery.backoff.ms` is 0."""
    first_ms = config["share.redelivery.backoff.ms"]
    if first_ms == 0:
        return None
    return RedeliveryBackoff(
        first_ms,
        config["share.redelivery.backoff.max.ms"],
        config["share.redelivery.backoff.multiplier"],
        config["share.redelivery.backoff.jitter"],
    )


def build_selection_policy(config: Mapping[str, Any]) -> SelectionPolicy | None:
    """Return the group's key order, delay, priority and fairness, or None."""
    fairness_by = config["share.fairness.by"]
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
        fairness_by="" if fairness_by == "none" else fairness_by,
        fairness_lookahead=config["share.fairness.lookahead.records"],
    )
    ordered = policy.key_order or policy.delay_max_ms or policy.priority_header
    return policy if ordered or policy.fairness_by else None


def build_tenant_policy(config: Mapping[str, Any]) -> TenantPolicy:
    """Return what the group's tenants may use."""
    per_second = "share.tenant.max.per.second"
    return TenantPolicy(
        weights=parse_by_tenant(config["share.fairness.weights"]),
        max_in_flight=config["share.tenant.max.in.flight"],
        max_in_flight_of=parse_by_tenant(config["share.tenant.max.in.flight.overrides"]),
        max_per_second=config[per_second],
        max_per_second_of=parse_by_tenant(config[f"{per_second}.overrides"]),
        burst=config[f"{per_second}.burst"],
        paused=frozenset(name.encode() for name in config["share.tenant.paused"]),
    )
