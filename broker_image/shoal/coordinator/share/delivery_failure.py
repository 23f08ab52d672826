"""Policies of a group for deliveries that failed: retry back-off and dead letters.

A record whose delivery failed may wait before it is available again (`backoff`). After the last
attempt it may need a dead letter before it leaves the window (KIP-1191). It is ARCHIVING until
then. Callers of the state machine pass a `FailurePolicy`. Without one, KIP-932 alone applies.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.coordinator.share.backoff import RedeliveryBackoff


class FailurePolicy(NamedTuple):
    """A group's policies at `now_ms`. `random` returns numbers in [0, 1)."""

    now_ms: int
    random: Callable[[], float]
    backoff: RedeliveryBackoff | None = None
    dead_letters: bool = False

    def compute_due_ms(self, delivery_count: int) -> int | None:
        """Return when a record with `delivery_count` deliveries is available again; None for
        now."""
        if self.backoff is None or delivery_count == 0:
            return None
        return self.now_ms + self.backoff.compute_delay_ms(delivery_count, self.random)


class FailureCause(Enum):
    """Why delivery of a record failed permanently. The texts are Kafka's, which archives corrupt
    batches without a dead letter, and cancels nothing."""

    REJECTED = "Offset rejected by client."
    LIMIT = "Offset delivery count exceeded the threshold."
    CORRUPT = "Record batch is corrupt."
    CANCELLED = "Offset cancelled by an administrator."


class DeadLetterRange(NamedTuple):
    """ARCHIVING offsets with equal facts. `member_id` held them last; `client_id` is its client.id,
    or "" if unknown."""

    first: int
    last: int
    delivery_count: int
    cause: FailureCause
    member_id: str
    client_id: str = ""
    since_ms: int = 0
