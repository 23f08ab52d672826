"""What a group's configs ask for beyond KIP-932, as the coordinator's policies take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.coordinator.share.backoff import Backoff


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
