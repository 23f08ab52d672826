"""An append that waits until it is committed.

An offset identifies the appended records only while the same leader leads in the same epoch. After
another leader, the high watermark can pass the offset with other records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shoal.replication.partition import Partition


class PendingAppend(NamedTuple):
    """An append that ends at `end_offset`, in the leader epoch in which it was made."""

    partition: Partition
    leader_epoch: int
    end_offset: int

    @classmethod
    def from_partition(cls, partition: Partition, end_offset: int) -> PendingAppend:
        """Return the append that the partition's leader has just made below `end_offset`."""
        return cls(partition, partition.leader_epoch, end_offset)

    @property
    def is_lost(self) -> bool:
        """Whether this broker can no longer know if the append was committed."""
        return self.partition.has_lost_leadership_since(self.leader_epoch)

    @property
    def is_committed(self) -> bool:
        return not self.is_lost and self.partition.is_committed(self.end_offset)
