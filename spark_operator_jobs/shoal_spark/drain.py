"""When a query with Trigger.AvailableNow is done: by what the group says, not by a clock.

Pure. At its start the log ends are written down. The drain of a partition is over when the group's
start offset has passed its end, whoever settled the records; or when all that is left to settle is
locked here and put off for longer than anybody waits. Until then records may be out of sight:
locked by a member that is alive, or by one that died, or waiting out a back-off. Those of a dead
member come back when its locks run out, so the drain waits that long, counted from the last thing
that moved in the group, and only over polls that were answered: a machine or a broker that stood
still proves nothing. What has not come by then, members that live hold and renew; it is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

Places = Mapping[tuple[str, int], int]

#: How long locks last where no answer has told it yet; Kafka's default.
LOCK_MS = 30_000
#: What a lock's end, and the way from there to a poll, may take beyond the lock's time.
MARGIN_S = 5.0
#: One answered poll counts for no more than this, however late its answer came.
POLL_S_MAX = 0.5


class NotAssigned(RuntimeError):
    """The group gave this member no partition, so nothing could be drained."""


class Drain:
    """One AvailableNow: `target` are log end offsets by topic and partition at its start."""

    def __init__(self, target: Places) -> None:
        self.target = {where: end for where, end in target.items() if end > 0}
        self._seen: tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]] | None = None
        self._quiet_s = 0.0
        self._unassigned_s = 0.0

    def open(self, starts: Places) -> list[tuple[str, int]]:
        """The partitions in which something before the target is not settled, as far as known."""
        return [where for where, end in self.target.items() if starts.get(where, -1) < end]

    def done(self, starts: Places, lags: Places, kept: Places) -> bool:
        """Whether all is settled, going by start offsets and lags; a lag of -1 is not known.

        `kept` counts records that are locked here and will not be delivered. Partitions that were
        empty at the start do not matter: of those in which the group never delivered anything,
        Apache Kafka tells neither start nor lag.
        """
        now = (dict(starts), dict(lags))
        if now != self._seen:
            self._seen, self._quiet_s = now, 0.0
        return all(
            where in starts and 0 <= lags.get(where, -1) <= kept.get(where, 0)
            for where in self.open(starts)
        )

    def found(self) -> None:
        """A poll locked records."""
        self._quiet_s = self._unassigned_s = 0.0

    def nothing(self, took_s: float, *, assigned: bool) -> None:
        """A poll was answered after that long, and locked nothing."""
        if assigned:
            self._quiet_s += min(took_s, POLL_S_MAX)
            self._unassigned_s = 0.0
        else:
            self._unassigned_s += took_s

    def is_vain(self, lock_ms: int) -> bool:
        """Whether dead members' locks have run out and still nothing has moved."""
        return self._quiet_s > patience_s(lock_ms)

    def is_left_out(self, timeout_s: float) -> bool:
        """Whether the group has given this member nothing for so long."""
        return self._unassigned_s > timeout_s


def patience_s(lock_ms: int) -> float:
    """How long a drain waits while nothing moves."""
    return (lock_ms or LOCK_MS) / 1000 + MARGIN_S
