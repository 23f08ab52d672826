"""Limits on responses in memory, over all connections.

Responses wait in memory for clients that are slow to read them. The more bytes wait, the fewer
records the next fetch gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Bytes of responses that may wait in memory, over all connections.
BUFFERED_BYTES_MAX = 128 << 20
#: Bytes of records that a fetch may return in any case: a client's default for one partition.
FETCH_BYTES_MIN = 1 << 20


class BufferingListener(Protocol):
    """A listener that counts the bytes its clients are slow to read."""

    bytes_buffered: int


class ResponseLimits:
    """Derives the limit from the counts of the listeners. It owns no state."""

    def __init__(self, listeners: Iterable[BufferingListener]) -> None:
        self._listeners = listeners

    def compute_fetch_bytes_max(self) -> int:
        """Return how many bytes of records one more fetch may return."""
        buffered = sum(listener.bytes_buffered for listener in self._listeners)
        return max(FETCH_BYTES_MIN, BUFFERED_BYTES_MAX - buffered)
