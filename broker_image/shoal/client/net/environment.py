"""The wall clock and the random numbers that a client uses.

A simulation passes in its own. The client takes everything else from its event loop: monotonic
time, timers and sockets.
"""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid4

if TYPE_CHECKING:
    from collections.abc import Callable


class Environment(NamedTuple):
    """The wall clock and the random numbers of one machine."""

    #: Nanoseconds since 1970 by the wall clock.
    wall_ns: Callable[[], int] = time.time_ns
    random: Random = Random()
    #: A new random id (RFC 9562, version 4).
    uuid: Callable[[], UUID] = uuid4

    def now_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return self.wall_ns() // 1_000_000


#: This machine.
HERE = Environment()
