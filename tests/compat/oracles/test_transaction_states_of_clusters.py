"""Three brokers of Shoal answer requests of transactions as three of Apache Kafka do.

Here markers travel between brokers. The coordinator runs on one, the markers that are written are
those of a partition that another one leads, and the third one is frozen while markers wait. Then it
goes on, and each transaction ends as its markers say.

`test_transaction_states` compares single brokers.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.clusters import CALM, ShoalCluster
from support.brokers.wireclient import WireClient
from support.kafka.kafkas import KafkaCluster
from support.runs.conditions import eventually
from support.scenarios.transaction_answers import WRITERS
from support.scenarios.transaction_drivers import (
    ABSENT,
    HERE,
    STATES,
    Answer,
    Case,
    Driver,
    check_answers,
    collect_answers,
    create_topic_on,
    draw_cases,
    find_coordinator,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.nightly, pytest.mark.timeout(3600)]

REPLICAS = 3
CONFIGS = {
    **CALM,
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": str(REPLICAS),
    "transaction.state.log.min.isr": "2",
    # One for each broker, so that some group is not coordinated by the one that is frozen.
    "offsets.topic.num.partitions": str(REPLICAS),
    "offsets.topic.replication.factor": str(REPLICAS),
    # The frozen broker leads its partition however long that takes, and leaves the ISR of others.
    "broker.session.timeout.ms": "1800000",
    "replica.lag.time.max.ms": "5000",
}
MARKERS_WAIT = tuple(state for state in STATES if state.startswith("Prepare"))
OTHERS = tuple(state for state in STATES if state not in MARKERS_WAIT)


class Places(NamedTuple):
    """Where things are: the coordinators of transactions and of a group, the leader of the
    partition whose markers are written, and the broker that is frozen."""

    transactions: int
    groups: int
    leader: int
    frozen: int
    group_id: str


class Found(NamedTuple):
    """The answers of a cluster, and by transactional id the state and the epoch after all markers
    were written."""

    answers: dict[Case, Answer]
    ends: dict[str, tuple[str, int]]


def _choose(cluster: KafkaCluster | ShoalCluster, client: WireClient) -> Places:
    transactions = find_coordinator(client, 1, "id-0")
    controller = cluster.controller()
    frozen = min({*cluster.brokers} - {transactions, controller})
    (leader,) = {*cluster.brokers} - {transactions, frozen}
    for number in range(100):
        group_id = f"group-{number}"
        groups = find_coordinator(client, 0, group_id)
        if groups != frozen:
            return Places(transactions, groups, leader, frozen, group_id)
    raise AssertionError(f"broker {frozen} coordinates all groups")


@contextlib.contextmanager
def _driving(cluster: KafkaCluster | ShoalCluster) -> Iterator[tuple[Driver, Places]]:
    """Create the topics, and yield the driver, and where its partitions are."""
    address = {id: node.bootstrap for id, node in cluster.nodes.items()}
    with WireClient(address[cluster.brokers[0]]) as client:
        places = _choose(cluster, client)
        create_topic_on(client, HERE, [places.leader, places.transactions, places.frozen])
        create_topic_on(client, ABSENT, [places.frozen])
    for id in cluster.brokers:
        eventually(lambda id=id: {HERE, ABSENT} <= {t.name for t in cluster.metadata(id).topics})
    with (
        WireClient(address[places.transactions]) as client,
        WireClient(address[places.leader]) as leader,
        WireClient(address[places.groups]) as groups,
    ):
        yield (
            Driver(client, leader=leader, groups=groups, group_id=places.group_id),
            places,
        )


def _write_without_the_frozen_one(driver: Driver) -> None:
    """Write to each log that the cases write to, until its ISR is without the frozen broker. A
    follower leaves an ISR only after a record that it lacks."""
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    body = {"group_id": driver.group_id, "topics": [{"name": HERE, "partitions": [partition]}]}

    def commit() -> bool:
        answer = driver.groups.call(ApiKey.OFFSET_COMMIT, 5, body)
        return answer.topics[0].partitions[0].error_code == 0

    eventually(lambda: driver.leader.produce(HERE, b"v").error_code == 0, timeout_s=180)
    eventually(commit, timeout_s=180)
    driver.id = "without the frozen one"
    eventually(lambda: driver.init((-1, -1)) is ErrorCode.none, timeout_s=180)


def _describe_end(driver: Driver, id: str) -> tuple[str, int]:
    def look() -> Any:
        row = driver.described(id)
        return row if row.transaction_state.startswith("Complete") else None

    row = eventually(look, timeout_s=180, what=f"the end of {id}")
    return row.transaction_state, row.producer_epoch


def _collect(cluster: KafkaCluster | ShoalCluster) -> Found:
    try:
        cluster.start()
        with _driving(cluster) as (driver, places):
            answers = collect_answers(driver, draw_cases(0, len(WRITERS), OTHERS))
            cluster.freeze(places.frozen)
            _write_without_the_frozen_one(driver)
            reached = len(driver.ids)
            answers |= collect_answers(driver, draw_cases(0, len(WRITERS), MARKERS_WAIT))
            cluster.thaw(places.frozen)
            return Found(answers, {id: _describe_end(driver, id) for id in driver.ids[reached:]})
    finally:
        cluster.stop()


def test_the_answers_are_kafkas(tmp_path: Path) -> None:
    """Each cluster gets thousands of requests, most of which wait for three replicas: minutes."""
    theirs = _collect(KafkaCluster(tmp_path / "kafka", configs=CONFIGS))
    ours = _collect(ShoalCluster(tmp_path / "shoal", configs=CONFIGS))
    check_answers(ours.answers, theirs.answers)
    assert ours.ends == theirs.ends
