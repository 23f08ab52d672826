"""Topics and producer ids that the quorum's leader decides, under the quorum's faults.

`METADATA_SEEDS=from-to` chooses the seeds; `make nightly` runs many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sim.metadata_cluster import MetadataCluster, MetadataNode
from sim.quorum_checker import Violation
from sim.quorum_cluster import torment
from sim.seeds import chosen, chunked, one_seed, run

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage

SEEDS = chosen("METADATA_SEEDS", recorded=2, drawn=3)


def simulate(seed: int) -> int:
    """Run a seed. Return the number of decisions that were acknowledged."""
    cluster = MetadataCluster(seed, voters=3, observers=2)
    torment(cluster, (), duration_ms=10_000)
    cluster.check_images()
    return len(cluster.acknowledged_topics) + len(cluster.acknowledged_blocks)


@chunked(SEEDS, 20)
def test_all_nodes_converge_to_the_acknowledged_image(seeds: range) -> None:
    acknowledged = 0

    def one(seed: int) -> None:
        nonlocal acknowledged
        acknowledged += simulate(seed)

    run(one, seeds)
    assert acknowledged > 8 * len(seeds)


def test_one_seed() -> None:
    """The seed of the environment, or a drawn one."""
    simulate(one_seed())


def test_a_leader_that_decides_on_the_committed_image_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two consecutive decisions would not take each other into account."""

    def head(node: MetadataNode) -> MetadataImage:
        node._head = node.image
        return node.image

    def torment_each() -> None:
        for seed in range(1, 21):
            torment(MetadataCluster(seed, voters=3), ("slow_disk",), duration_ms=10_000)

    monkeypatch.setattr(MetadataNode, "head", head)
    with pytest.raises(Violation, match=r"producer_ids|topic_names"):
        torment_each()
