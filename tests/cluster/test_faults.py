"""Real clients while brokers are killed, frozen and restarted, and a checker of what they saw.

A cluster of three gets a kill and a freeze, at night each kind of fault. Then five brokers get
faults that a seed draws, up to two at once.
`FAULTS_S=900 FAULTS_SEED=7 pytest -s tests/cluster/test_faults.py -k five` draws for 900 seconds.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from cluster.test_replication import CONFIGS
from support.brokers.clusters import ShoalCluster, running
from support.runs import seeding
from support.scenarios.fault_runs import Fault, Run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: 0: `FEW` times.
DURATION_S = float(os.environ.get("FAULTS_S", "0"))
#: Drawn for each run, unless it is given.
SEED = os.environ.get("FAULTS_SEED") or str(seeding.SEED)
FEW = 4
BY_DAY = [Fault("kill", "leader"), Fault("freeze", "controller")]
ONCE = [*BY_DAY, Fault("restart", "follower"), Fault("freeze", "leader")]
HOW, WHOM = ("kill", "freeze", "restart"), ("leader", "follower", "controller")
#: A rebalance moves leaders without a fault, and locks end with their leader.
STEADY = CONFIGS | {"auto.leader.rebalance.enable": "false"}
#: Two of five may be down: everything has five replicas, and two in sync are enough.
FIVE = {
    "default.replication.factor": "5",
    "offsets.topic.replication.factor": "5",
    "share.coordinator.state.topic.replication.factor": "5",
    "share.coordinator.state.topic.min.isr": "2",
    "transaction.state.log.replication.factor": "5",
    "transaction.state.log.min.isr": "2",
}


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(BY_DAY, id="two"),
        pytest.param(ONCE, id="each", marks=pytest.mark.nightly),
    ],
)
def test_what_clients_see_while_brokers_die_freeze_and_restart(
    tmp_path: Path, faults: list[Fault]
) -> None:
    with running(ShoalCluster(tmp_path, configs=STEADY)) as cluster:
        run = Run(cluster)
        run.prepare()
        for fault in faults:
            run.suffer(fault)
        run.judge()


def drawn() -> Iterator[list[Fault]]:
    """Yield the faults of each moment: of one broker, or of two."""
    draw, end = random.Random(SEED), time.monotonic() + DURATION_S
    count = 0
    while count < FEW if not DURATION_S else time.monotonic() < end:
        count += 1
        yield [Fault(draw.choice(HOW), draw.choice(WHOM)) for _ in range(draw.choice((1, 2)))]


@pytest.mark.parametrize(
    "brokers", [pytest.param(5, marks=() if DURATION_S else pytest.mark.nightly)]
)
def test_five_brokers_lose_a_minority_at_a_time(tmp_path: Path, brokers: int) -> None:
    print(f"FAULTS_SEED={SEED}", flush=True)
    seen: Counter[str] = Counter()
    with running(ShoalCluster(tmp_path, brokers, configs=STEADY | FIVE)) as cluster:
        run = Run(cluster, replicas=brokers)
        run.prepare()
        for faults in drawn():
            run.suffer(*faults)
            seen.update(f"{one.how} {one.role}" for one in faults)
        run.judge()
    print(dict(seen))
