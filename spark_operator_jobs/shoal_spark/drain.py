"""The end of a query with Trigger.AvailableNow, decided by the group's state.

Pure. The drain notes the log end offsets at its start. A partition is done when the group's start
offset has passed its end, whichever member settled the records. It is also done when the only
unsettled records are locked here and delayed for longer than the drain waits.

Until then records may be unavailable: locked by a live member or by a dead one, or in a back-off.
Records of a dead member become available when its locks expire. So the drain waits for a lock's
duration since the last change in the group. It counts only answered polls, because a machine or
broker that stalls proves nothing. Records that are still unavailable then belong to live members
that renew their locks.
"""

from __future__ import annotations

from collections.abc import Mapping

Places = Mapping[tuple[str, int], int]

#: Lock duration in milliseconds until a response reports it; Kafka's default.
LOCK_MS = 30_000
#: Seconds between the expiry of a lock and the poll that returns its records.
MARGIN_S = 5.0
#: Maximum seconds that one answered poll counts, however late its answer came.
POLL_S_MAX = 0.5


class NotAssigned(RuntimeError):
    """The group assigned this member no partition, so nothing could be drained."""


class Drain:
    """One AvailableNow: `target` are log end offsets by topic and partition at its start."""

    def __init__(self, target: Places) -> None:
        self.target = {partition: end for partition, end in target.items() if end > 0}
        self._last_state: tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]] | None = (
            None
        )
        self._quiet_s = 0.0
        self._unassigned_s = 0.0

    def list_open(self, starts: Places) -> list[tuple[str, int]]:
        """Return the partitions that may have unsettled records before the target."""
        return [
            partition for partition, end in self.target.items() if starts.get(partition, -1) < end
        ]

    def is_done(self, starts: Places, lags: Places, kept_counts: Places) -> bool:
        """Whether all records are settled, by start offsets and lags; a lag of -1 is unknown.

        `kept_counts` counts records that are locked here and will not be delivered. Partitions that
        were empty at the start are ignored: Apache Kafka reports neither start offset nor lag of
        partitions from which the group has acquired nothing.
        """
        now = (dict(starts), dict(lags))
        if now != self._last_state:
            self._last_state, self._quiet_s = now, 0.0
        return all(
            partition in starts and 0 <= lags.get(partition, -1) <= kept_counts.get(partition, 0)
            for partition in self.list_open(starts)
        )

    def note_found(self) -> None:
        """Note that a poll locked records."""
        self._quiet_s = self._unassigned_s = 0.0

    def note_nothing(self, took_s: float, *, assigned: bool) -> None:
        """Note that a poll was answered after `took_s` and locked nothing."""
        if assigned:
            self._quiet_s += min(took_s, POLL_S_MAX)
            self._unassigned_s = 0.0
        else:
            self._unassigned_s += took_s

    def is_vain(self, lock_ms: int) -> bool:
        """Whether dead members' locks have expired without any change."""
        return self._quiet_s > idle_timeout_s(lock_ms)

    def is_left_out(self, timeout_s: float) -> bool:
        """Whether the group has assigned nothing to this member for `timeout_s`."""
        return self._unassigned_s > timeout_s


def idle_timeout_s(lock_ms: int) -> float:
    """Return the seconds that a drain waits without any change."""
    return (lock_ms or LOCK_MS) / 1000 + MARGIN_S
