"""The lag gauge of share partitions right after an election (KIP-207)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.coordinator.share.share_partition import SharePartition
from shoal.server.metrics.queue import compute_lags

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass
class Partition:
    """`queue.LagOffsetsPort`"""

    index: int
    is_behind: bool
    topic: str = "t"
    high_watermark: int = 10


@dataclass
class Leader:
    """`queue.LagLeaderPort`"""

    partition: Partition
    share: SharePartition


@dataclass
class Service:
    """`queue.LagServicePort`"""

    leaders: Mapping[str, Mapping[int, Leader]]
    not_loaded: list[tuple[str, Partition, int]] = field(default_factory=list)

    def iterate_unloaded(self) -> Iterable[tuple[str, Partition, int]]:
        return self.not_loaded


def test_a_leader_that_is_behind_has_no_lag() -> None:
    behind = Leader(Partition(0, is_behind=True), SharePartition(12))
    current = Leader(Partition(1, is_behind=False), SharePartition(4))
    current.share.complete = 1
    service = Service(
        leaders={"g": {0: behind, 1: current}},
        not_loaded=[
            ("g", Partition(2, is_behind=True), 3),
            ("g", Partition(3, is_behind=False), 3),
        ],
    )
    found = {dict(labels)["partition"]: lag for labels, lag in compute_lags(service)}
    assert found == {"1": 5, "3": 3}
