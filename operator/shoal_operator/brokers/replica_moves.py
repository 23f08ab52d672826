"""A move of replicas, which the brokers carry out."""

from __future__ import annotations

from typing import NamedTuple


class RebalanceMove(NamedTuple):
    """A partition whose replicas change; `size_bytes` is copied to each new replica."""

    partition: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int = 0

    @property
    def added_brokers(self) -> tuple[int, ...]:
        """The brokers that get a replica."""
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def bytes_copied(self) -> int:
        return self.size_bytes * len(self.added_brokers)
