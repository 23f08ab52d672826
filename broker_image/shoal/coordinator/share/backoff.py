"""Retry back-off of a group: the wait between a failed delivery and the next one.

A record that was released, or whose lock expired, is WAITING until it is due, then AVAILABLE. It
stays in the window: it is in flight, and the start offset does not pass it. Time and random numbers
are arguments.

The end of a wait is persisted beside the state batches, so it survives restarts and new leaders. A
`Delay` applies only to available offsets with exactly its delivery count. A further delivery thus
invalidates it, and no record has to revoke it.

A delay of ARCHIVING offsets with `UNTIL_FREED` means that their dead letters are written, and that
they hold their keys until they are freed.

KIP-932 has no back-off. Without `share.redelivery.backoff.ms` this module is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: The due time of offsets that wait until they are freed.
UNTIL_FREED = (1 << 63) - 1


class Delay(NamedTuple):
    """Offsets that wait until the same time, if they still have this delivery count."""

    first: int
    last: int
    delivery_count: int
    #: In epoch milliseconds, or `UNTIL_FREED`.
    due_ms: int


class RedeliveryBackoff(NamedTuple):
    """The group's `share.redelivery.backoff.*` configs."""

    #: `share.redelivery.backoff.ms`: the wait after the first delivery.
    first_ms: int
    #: `share.redelivery.backoff.max.ms`: no wait is longer, jitter included.
    max_ms: int
    #: `share.redelivery.backoff.multiplier`: the factor from one wait to the next.
    multiplier: float = 2.0
    #: `share.redelivery.backoff.jitter`: the part of a wait that is random, up or down.
    jitter: float = 0.0

    def compute_delay_ms(self, delivery_count: int, random: Callable[[], float]) -> int:
        """Return the wait after `delivery_count` deliveries. `random` returns numbers in [0, 1)."""
        delay = min(self.first_ms * self.multiplier ** (delivery_count - 1), self.max_ms)
        if self.jitter:
            delay *= 1 + self.jitter * (2 * random() - 1)
        return min(round(delay), self.max_ms)


def select_pending_delays(
    delays: Iterable[Delay], *, now_ms: int, start_offset: int
) -> list[Delay]:
    """Return the delays that have not ended, of offsets in the window."""
    return [d for d in delays if d[3] > now_ms and d[1] >= start_offset]
