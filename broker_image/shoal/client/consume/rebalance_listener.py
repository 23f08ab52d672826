"""What a member of a consumer group calls when its partitions change (`RebalanceListener`)."""

from __future__ import annotations

from shoal.client.net.cluster import TopicPartition
from shoal.record.key_ranges import KeyRanges

Ranges = dict[TopicPartition, KeyRanges]


class RebalanceListener:
    """Is called while `GroupConsumer.poll` or `tend` takes over partitions, or gives them up.

    Override the methods that you need. Each gets the key ranges by partition; a whole partition is
    the range of all hashes. The member reads nothing until a method has returned, so let it end
    within the group's rebalance timeout (60 s). An exception leaves `poll`.
    """

    async def on_assigned(self, ranges: Ranges) -> None:
        """Handle new ranges, before their first record is returned."""

    async def on_revoked(self, ranges: Ranges) -> None:
        """Complete the work on ranges that other members get. The member commits afterwards."""

    async def on_lost(self, ranges: Ranges) -> None:
        """End the work on these ranges, because this member was fenced. Others may have them."""
