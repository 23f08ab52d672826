"""A cluster of three from one manifest: ready soon, rolled under load, killed, grown and shrunk."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from e2e.conftest import new_namespace
from e2e.producing import assert_taken_once, consuming, producing
from e2e.resources import Resources, queue_cluster, queue_rebalance, queue_topic, share_group
from support.runs.conditions import ceiling, eventually, stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.release import Release

READY_SECONDS_MAX = 30
BROKER = "app.kubernetes.io/component=broker"
BROKERS = [f"main-broker-{n}" for n in range(3)]


@pytest.fixture(scope="module")
def three(release: Release) -> Iterator[Resources]:
    """Three brokers, a topic on all of them and a client's pod."""
    three = Resources(release.cluster, new_namespace(release.cluster, "three-brokers"))
    three.apply(queue_cluster(replicas=3), queue_topic(partitions=6), share_group())
    three.wait("queuecluster/main", timeout_s=120)
    three.wait("queuetopic/jobs", "sharegroup/workers")
    three.start_client()
    yield three
    release.cluster.kubectl("delete", "namespace", three.namespace, "--wait=false")


def wait_in_sync(three: Resources) -> None:
    """Wait until every replica of every partition is in sync."""

    def in_sync() -> bool:
        said = three.shoal("cluster", "describe")
        assert ", 0 offline, 0 under-replicated" in said, said
        return True

    eventually(in_sync, timeout_s=90)


def replicas_of(three: Resources, topic: str) -> list[tuple[int, ...]]:
    """Return the replicas of each partition, through Kafka's protocol."""
    said = three.shoal("topics", "describe", topic, "--format=json")
    return [
        tuple(map(int, re.findall(r"\d+", r)))
        for r in re.findall(r'"replicas": \[(.*?)\]', said, re.S)
    ]


def test_three_brokers_stand_as_one_cluster(three: Resources) -> None:
    status = three.status("queuecluster/main")
    assert status["brokersReady"] == "3/3"
    assert status["quorumVoters"] == [0, 1, 2]
    assert [b["pod"] for b in status["brokers"]] == BROKERS
    assert replicas_of(three, "jobs")
    assert all(sorted(r) == [0, 1, 2] for r in replicas_of(three, "jobs"))
    assert three.events("QueueCluster", "main", "BrokersUnreachable") == []


def test_three_brokers_are_ready_soon(resources: Resources) -> None:
    with stopwatch() as passed_s:
        resources.apply(queue_cluster(replicas=3))
        resources.wait("queuecluster/main", timeout_s=120)
        took = passed_s()
    assert took < ceiling(READY_SECONDS_MAX), f"{took:.0f} s to Ready"


def test_a_roll_under_load_loses_no_record_and_hardly_repeats_one(three: Resources) -> None:
    before = {pod: three.uid(f"pod/{pod}") for pod in BROKERS}
    # From the brokers, as the roller reads it: the status may be half a minute old.
    (described,) = json.loads(three.shoal("cluster", "describe", "--format=json"))
    controller = described["controller"]
    with consuming(three, "workers", members=2) as deliveries, producing(three) as counts:
        three.patch("queuecluster/main", {"spec": {"config": {"num.partitions": "3"}}})
        for pod in BROKERS:
            three.wait_replaced(f"pod/{pod}", before[pod])
        three.wait("queuecluster/main", timeout_s=120)
    sent, failed = counts
    assert (failed, sent > 50) == (0, True), counts
    assert {value for value, _ in deliveries} == set(range(sent))
    # A broker that shuts down waits a second for members' records. A member that is stuck on the
    # old pod's address for longer is too late, and its records come again.
    twice = len(deliveries) - len(set(deliveries))
    assert twice <= len(deliveries) // 20, Counter(deliveries).most_common(5)
    three.wait_status("sharegroup/workers", lag=0, inFlight=0)
    events = three.events("QueueCluster", "main", "BrokerRestart")
    restarted = [int(text.partition(":")[0].rpartition("-")[2]) for text in events]
    assert sorted(restarted) == [0, 1, 2]
    assert restarted[0] != controller


def test_a_broker_killed_under_load_loses_nothing(three: Resources) -> None:
    wait_in_sync(three)
    before = three.uid("pod/main-broker-1")
    with producing(three) as counts:
        three.kubectl("delete", "pod", "main-broker-1", "--grace-period=0", "--force")
        three.wait_replaced("pod/main-broker-1", before)
        three.wait("queuecluster/main", timeout_s=120)
    sent, failed = counts
    assert failed == 0
    assert_taken_once(three, sent)


def test_an_operator_killed_in_a_roll_of_three_is_followed_by_one_that_ends_it(
    three: Resources, release: Release, tmp_path: Path
) -> None:
    wait_in_sync(three)
    before = {pod: three.uid(f"pod/{pod}") for pod in BROKERS}
    restarts_before = len(restarts(three))
    with watching(three, tmp_path / "pods") as up, producing(three) as counts:
        three.patch("queuecluster/main", {"spec": {"config": {"num.partitions": "4"}}})
        eventually(lambda: len(restarts(three)) > restarts_before, timeout_s=60)
        release.kill(release.leader())
        # The roll has begun and is not over.
        assert three.find_all("pods", BROKER), "the brokers' pods are gone"
        assert len(restarts(three)) < restarts_before + len(BROKERS)
        for pod in BROKERS:
            three.wait_replaced(f"pod/{pod}", before[pod])
        three.wait("queuecluster/main", timeout_s=120)
    sent, failed = counts
    assert (failed, sent > 50) == (0, True), counts
    assert min(up) == len(BROKERS) - 1, up
    again = restarts(three)[restarts_before:]
    assert sorted(text.partition(":")[0] for text in again) == BROKERS
    assert_taken_once(three, sent)


def restarts(three: Resources) -> list[str]:
    return three.events("QueueCluster", "main", "BrokerRestart")


@contextmanager
def watching(three: Resources, path: Path) -> Iterator[list[int]]:
    """Watch the brokers' pods; afterwards the list has the number of those that run after each
    change. The operator asks brokers themselves whether they serve, and the kubelet may report that
    a second later."""
    get = ("kubectl", "get", "pods", f"--namespace={three.namespace}", f"--selector={BROKER}")
    up: list[int] = []
    with path.open("w") as file:
        watch = subprocess.Popen(
            [*get, "--watch", "--output-watch-events", "--output=json"],
            stdout=file,
            env={**os.environ, **three.cluster.environment()},
        )
        try:
            eventually(lambda: path.read_text().count('"ADDED"') >= len(BROKERS), timeout_s=30)
            yield up
        finally:
            watch.terminate()
            watch.wait()
    text, decoder, running = path.read_text(), json.JSONDecoder(), {}
    while text := text.lstrip():
        event, end = decoder.raw_decode(text)
        text, pod = text[end:], event["object"]
        leaves = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
        said = pod.get("status", {}).get("containerStatuses", [])
        runs = bool(said) and all(container.get("started") for container in said)
        running[pod["metadata"]["name"]] = runs and not leaves
        if len(running) == len(BROKERS):
            up.append(sum(running.values()))


def test_brokers_come_take_their_share_and_leave(three: Resources) -> None:
    before = {pod: three.uid(f"pod/{pod}") for pod in BROKERS}
    three.produce("jobs", 100)
    three.patch("queuecluster/main", {"spec": {"replicas": 4}})
    three.wait_status("queuecluster/main", brokersReady="4/4")
    three.apply(queue_rebalance(approval="Automatic"))
    three.wait("queuerebalance/spread", timeout_s=120)
    assert any(3 in r for r in replicas_of(three, "jobs"))
    wait_in_sync(three)
    three.patch("queuecluster/main", {"spec": {"replicas": 3}})
    three.kubectl("wait", "--for=delete", "pod/main-broker-3", "--timeout=120s")
    three.wait("queuecluster/main")
    assert all(3 not in r for r in replicas_of(three, "jobs"))
    eventually(lambda: "\n     3 " not in three.shoal("cluster", "describe"), timeout_s=60)
    assert three.find("pvc/data-main-broker-3") is not None
    assert {pod: three.uid(f"pod/{pod}") for pod in BROKERS} == before
    assert_taken_once(three, 100)


def test_a_change_that_leaves_no_majority_is_refused(three: Resources) -> None:
    assert "neither broker has a majority" in three.refusal(queue_cluster("other", replicas=2))
    assert "cannot fall below 3" in three.refusal(queue_cluster(replicas=1))


def test_a_lone_broker_grows_into_three(resources: Resources) -> None:
    resources.apply(queue_cluster(), queue_topic(), share_group())
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers")
    resources.start_client()
    resources.wait_status("queuecluster/main", quorumVoters=[0])
    resources.produce("jobs", 50)
    resources.patch("queuecluster/main", {"spec": {"replicas": 3}})
    resources.wait_status("queuecluster/main", brokersReady="3/3", quorumVoters=[0, 1, 2])
    resources.wait("queuecluster/main", timeout_s=120)
    resources.apply(queue_topic("wide", replicas=3))
    resources.wait("queuetopic/wide")
    assert_taken_once(resources, 50)


def test_a_topic_gets_another_number_of_replicas(three: Resources) -> None:
    three.apply(queue_topic("few", partitions=6, replicas=1))
    three.wait("queuetopic/few")
    three.produce("few", 100)
    for count in (3, 2):
        three.patch("queuetopic/few", {"spec": {"replicas": count}})
        three.wait_reason("queuetopic/few", "Reconciled", timeout_s=90)
        assert [len(r) for r in replicas_of(three, "few")] == [count] * 6
        three.wait_status("queuetopic/few", replicas=count)
        assert "reassignment" not in three.status("queuetopic/few")
    wait_in_sync(three)
    three.patch("queuetopic/few", {"spec": {"replicas": 4}})
    said = three.wait_reason("queuetopic/few", "ReplicasNotPlaceable")
    assert "the cluster has 3 broker pods" in said
    three.kubectl("delete", "queuetopic/few")
