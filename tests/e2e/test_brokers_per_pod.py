"""Several brokers in a pod: three pods of two. Spread, rolled and killed under load, and
drained. Their rack is the zone of their node, which all may share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from e2e.cluster.layout import ZONE
from e2e.conftest import new_namespace
from e2e.producing import assert_taken_once, consuming, producing
from e2e.resources import (
    Manifest,
    Resources,
    queue_cluster,
    queue_rebalance,
    queue_topic,
    share_group,
)
from e2e.test_listeners import INSIDE, OUTSIDE
from e2e.test_three_brokers import BROKERS, replicas_of, wait_in_sync
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.release import Release

LISTENERS = [INSIDE, OUTSIDE]
SIX = [0, 1, 2, 1000, 1001, 1002]


def wanted(**spec: object) -> Manifest:
    defaults: dict[str, Any] = {
        "replicas": 3,
        "brokersPerPod": 2,
        "listeners": LISTENERS,
        "rack": {"topologyKey": ZONE},
    }
    return queue_cluster(**(defaults | spec))


@pytest.fixture(scope="module")
def six(release: Release) -> Iterator[Resources]:
    """Three pods of two brokers, a topic on all of them and a client's pod."""
    six = Resources(release.cluster, new_namespace(release.cluster, "pod-layout"))
    six.apply(wanted(), queue_topic(partitions=12), share_group())
    six.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=90)
    six.start_client()
    yield six
    release.cluster.kubectl("delete", "namespace", six.namespace, "--wait=false")


def assert_apart(six: Resources) -> None:
    """Check that no two replicas of a partition share a pod."""
    rows = replicas_of(six, "jobs")
    assert rows
    assert all(len({id % 1000 for id in row}) == len(row) == 3 for row in rows), rows


def containers(six: Resources, pod: str) -> dict[str, Manifest]:
    return {c["name"]: c for c in six.status(f"pod/{pod}")["containerStatuses"]}


def test_three_pods_of_two_stand_as_one_cluster(six: Resources) -> None:
    status = six.status("queuecluster/main")
    assert (status["brokersReady"], status["replicas"], status["readyReplicas"]) == ("6/6", 3, 3)
    assert sorted(b["id"] for b in status["brokers"]) == SIX
    assert {b["pod"] for b in status["brokers"]} == set(BROKERS)
    assert status["quorumVoters"] == [0, 1, 2]
    assert_apart(six)
    used = {id for row in replicas_of(six, "jobs") for id in row}
    assert used == set(SIX)
    assert {row[0] for row in replicas_of(six, "jobs")} == set(SIX)
    (described,) = json.loads(six.shoal("cluster", "describe", "--format=json"))
    zones = {n["metadata"]["labels"][ZONE] for n in six.find_all("nodes")}
    assert {row["rack"] for row in described["brokers"]} <= zones
    assert len(described["brokers"]) == len(SIX)


def test_each_broker_is_reached_from_outside(six: Resources) -> None:
    """All twelve partitions, led by all six brokers, are reached at the advertised addresses."""
    rows = six.status("queuecluster/main")["listeners"]
    (servers,) = [row["bootstrapServers"] for row in rows if row["name"] == "outside"]
    lines = "".join(f"{n}\n" for n in range(240))
    there = ("client", "--", "env", f"SHOAL_BOOTSTRAP_SERVERS={servers}", "shoal")
    six.kubectl("exec", "--stdin", *there, "produce", "jobs", "--quiet", stdin_text=lines)
    taken = ("share-consume", "jobs", "--group=workers", "--format={value}", "-n", "240")
    found = six.kubectl("exec", *there, *taken).stdout.split()
    assert sorted(map(int, found)) == list(range(240))


def test_a_roll_under_load_takes_pod_by_pod(six: Resources) -> None:
    before = {pod: six.uid(f"pod/{pod}") for pod in BROKERS}
    with consuming(six, "workers", members=2) as deliveries, producing(six) as counts:
        six.patch("queuecluster/main", {"spec": {"config": {"num.partitions": "3"}}})
        for pod in BROKERS:
            six.wait_replaced(f"pod/{pod}", before[pod])
        six.wait("queuecluster/main", timeout_s=120)
    sent, failed = counts
    assert (failed, sent > 50) == (0, True), counts
    assert {value for value, _ in deliveries} == set(range(sent))
    messages = six.events("QueueCluster", "main", "BrokerRestart")
    assert sorted(text.partition(":")[0] for text in messages) == BROKERS
    assert six.events("QueueCluster", "main", "BrokerNotReady") == []
    wait_in_sync(six)
    assert_apart(six)
    six.wait_status("sharegroup/workers", lag=0, inFlight=0)


def test_a_broker_killed_in_its_pod_comes_back(six: Resources) -> None:
    """The other broker of the pod continues, and the pod stays."""
    before = six.uid("pod/main-broker-1"), containers(six, "main-broker-1")
    id = before[1]["broker1"]["containerID"].rpartition("/")[2]
    with producing(six) as counts:
        processes = f"grep -l {id} /proc/[0-9]*/cgroup | cut -d/ -f3"
        six.cluster.in_node("sh", "-c", f"kill -KILL $({processes})")
        eventually(
            lambda: containers(six, "main-broker-1")["broker1"]["restartCount"] == 1, timeout_s=60
        )
        six.wait_status("queuecluster/main", brokersReady="6/6")
        six.wait("queuecluster/main", timeout_s=120)
    sent, failed = counts
    assert failed == 0
    after = containers(six, "main-broker-1")
    assert six.uid("pod/main-broker-1") == before[0]
    assert after["broker"]["containerID"] == before[1]["broker"]["containerID"]
    wait_in_sync(six)
    assert_taken_once(six, sent)


def test_a_pod_comes_takes_its_share_and_leaves(six: Resources) -> None:
    before = {pod: six.uid(f"pod/{pod}") for pod in BROKERS}
    six.produce("jobs", 100)
    six.patch("queuecluster/main", {"spec": {"replicas": 4}})
    six.wait_status("queuecluster/main", brokersReady="8/8")
    six.apply(queue_rebalance(approval="Automatic"))
    six.wait("queuerebalance/spread", timeout_s=120)
    assert {3, 1003} <= {id for row in replicas_of(six, "jobs") for id in row}
    wait_in_sync(six)
    assert_apart(six)
    six.patch("queuecluster/main", {"spec": {"replicas": 3}})
    six.kubectl("wait", "--for=delete", "pod/main-broker-3", "--timeout=120s")
    six.wait("queuecluster/main")
    assert_apart(six)
    assert {id for row in replicas_of(six, "jobs") for id in row} == set(SIX)
    for id in (3, 1003):
        eventually(
            lambda id=id: f"\n {id:>5} " not in six.shoal("cluster", "describe"), timeout_s=60
        )
    for claim in ("data-main-broker-3", "data1-main-broker-3"):
        assert six.find(f"pvc/{claim}") is not None
    assert {pod: six.uid(f"pod/{pod}") for pod in BROKERS} == before
    assert sorted(map(int, six.share_consume("jobs", "workers"))) == list(range(100))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"brokersPerPod": 3}, "brokersPerPod cannot change"),
        ({"brokersPerPod": 17}, "16"),
        ({"metrics": {"port": 10092}}, "differ in their last three digits"),
        ({"metrics": {"port": 65000}}, "above 65535"),
        ({"config": {"shoal.brokers.per.host": "2"}}, "brokersPerPod"),
    ],
)
def test_what_cannot_be_is_refused(six: Resources, spec: Manifest, words: str) -> None:
    assert words in six.refusal(wanted(**spec))


def test_a_cluster_recreated_over_its_volumes_may_have_more(resources: Resources) -> None:
    resources.apply(queue_cluster(), queue_topic(), share_group())
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers")
    resources.start_client()
    resources.produce("jobs", 50)
    resources.kubectl("delete", "queuecluster/main")
    resources.kubectl("wait", "--for=delete", "pod/main-broker-0", "--timeout=60s")
    resources.apply(queue_cluster(brokersPerPod=2))
    resources.wait_status("queuecluster/main", brokersReady="2/2", quorumVoters=[0])
    resources.wait("queuecluster/main", timeout_s=60)
    resources.apply(queue_topic("more"))
    resources.wait("queuetopic/more")
    assert set(replicas_of(resources, "more")) == {(0,), (1000,)}
    assert sorted(map(int, resources.share_consume("jobs", "workers"))) == list(range(50))
