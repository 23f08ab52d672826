"""Rebalances of three brokers of Apache Kafka, by the same scenarios as those of Shoal.

The operator refuses external clusters. What this compares are the calls: reassignments and their
cancellation, elections, throttles and sizes have the same effects in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kube.rebalance import test_rebalances as scenarios
from kube.rebalance.test_rebalances import soon
from support.kafka.kafkas import KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["soon"]
pytestmark = [pytest.mark.nightly, pytest.mark.java, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(tmp_path_factory.mktemp("kafka"))
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.test_a_proposal_waits_and_its_approval_moves_the_bytes,
        scenarios.test_new_brokers_get_replicas_and_leaving_ones_lose_them,
        scenarios.test_leadership_alone_copies_nothing,
        scenarios.test_a_proposal_of_other_replicas_is_replaced,
        scenarios.test_a_throttle_changes_while_replicas_move,
        scenarios.test_an_operator_may_die_after_each_change,
    ],
)
def test_kafka_does_the_same(kafka: KafkaCluster, scenario: Callable[[Any], None]) -> None:
    scenario(kafka)
