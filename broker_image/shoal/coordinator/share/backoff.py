"""How long a record waits between a failed delivery and the next one: the group's retry back-off.

A record that a member released, or whose lock ended, is WAITING until its time has come and only
then AVAILABLE. It keeps its place in the window: it is in flight, and holds the start offset. Time
and chance come as arguments. When a wait ends is persisted beside the state batches, so a restart
or a new leader keeps it: a `Delay` holds for those of its offsets that are available with exactly
its delivery count, so one that was overtaken by a further delivery says nothing any more and
nothing has to be taken back.

A delay until `UNTIL_FREED` tells of offsets that are ARCHIVING that their dead letters are written
and they hold their keys, until somebody frees them.

KIP-932 knows no such thing: without `share.redelivery.backoff.ms` nothing of this is ever called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

#: Offsets that wait alike: first, last, delivery count, and when they are available (epoch ms).
Delay = tuple[int, int, int, int]
#: In place of a time: for as long as nobody frees them.
UNTIL_FREED = (1 << 63) - 1


class Backoff(NamedTuple):
    """The group's `share.redelivery.backoff.*` configs."""

    #: `share.redelivery.backoff.ms`: the wait after the first delivery.
    first_ms: int
    #: `share.redelivery.backoff.max.ms`: no wait is longer, jitter included.
    max_ms: int
    #: `share.redelivery.backoff.multiplier`: each further wait is so many times the one before.
    multiplier: float = 2.0
    #: `share.redelivery.backoff.jitter`: by what part of itself a wait may be shorter or longer.
    jitter: float = 0.0

    def delay_ms(self, delivery_count: int, random: Callable[[], float]) -> int:
        """The wait after so many deliveries; `random` gives numbers in [0, 1)."""
        delay = min(self.first_ms * self.multiplier ** (delivery_count - 1), self.max_ms)
        if self.jitter:
            delay *= 1 + self.jitter * (2 * random() - 1)
        return min(round(delay), self.max_ms)


def still_due(delays: Iterable[Delay], *, now_ms: int, start_offset: int) -> list[Delay]:
    """The delays that have not ended yet, of offsets that are still in the window."""
    return [d for d in delays if d[3] > now_ms and d[1] >= start_offset]
