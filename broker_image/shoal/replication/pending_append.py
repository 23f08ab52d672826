"""What a leader has appended, for those who wait until it is committed.

An offset stands for the records that were appended there only as long as that leader leads on: when
it has followed another one, its high watermark passes the same offset with other records.
"""

from __future__ import annotations

from typing import NamedTuple

from shoal.replication.partition import Partition


class PendingAppend(NamedTuple):
    """An append that ends at `end_offset`, in the leader epoch in which it was made."""

    partition: Partition
    leader_epoch: int
    end_offset: int

    @classmethod
    def of(cls, partition: Partition, end_offset: int) -> PendingAppend:
        """What its leader has just appended below `end_offset`."""
        return cls(partition, partition.leader_epoch, end_offset)

    @property
    def is_lost(self) -> bool:
        """Whether nobody here can tell any more what became of it."""
        return self.partition.lost_leadership_since(self.leader_epoch)

    @property
    def is_committed(self) -> bool:
        return not self.is_lost and self.partition.is_committed(self.end_offset)
