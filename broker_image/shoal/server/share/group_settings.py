"""What a group's configs ask for beyond KIP-932, as the coordinator's policies take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.coordinator.share.backoff import Backoff
from shoal.coordinator.share.settings import SelectionPolicy


def backoff(config: Mapping[str, Any]) -> Backoff | None:
    """The group's retry back-off; None while `share.redelivery.backoff.ms` is 0."""
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
    """The group's key order, delay and priority; None where it has none of them."""
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
