"""`shoal topics reassign` on three brokers, with Kafka's tool beside it, and on Apache Kafka."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_replication import CONFIGS
from cluster.test_throttles import moved, write
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.clusters import ShoalCluster, running
from support.brokers.commands import Shoal
from support.kafka.kafka_tools import KafkaTools
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.kafka.kafkas import KafkaProcess

#: So slow that a move does not end during a test.
CRAWL_BYTES = 1
RECORDS = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("cluster"), configs=CONFIGS)) as found:
        eventually(lambda: len(found.metadata(1).brokers) == 3, timeout_s=60)
        yield found


@pytest.fixture
def shoal(cluster: ShoalCluster) -> Shoal:
    return Shoal(cluster.bootstrap)


def create(cluster: ShoalCluster, topic: str, replicas: list[list[int]]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    configs = {"min.insync.replicas": "1"}
    new = NewTopic(topic, len(replicas), replica_assignment=replicas, config=configs)
    admin.create_topics([new])[topic].result(60)
    eventually(lambda: all(p.isr_nodes for p in cluster.topic(replicas[0][0], topic)))
    write(cluster, topic, RECORDS)


def plan_file(folder: Path, topic: str, *replicas: list[int]) -> str:
    rows = [
        {"topic": topic, "partition": index, "replicas": ids} for index, ids in enumerate(replicas)
    ]
    file = folder / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(file)


def throttles(shoal: Shoal, topic: str, brokers: str = "123") -> set[str]:
    found: list[Any] = shoal.json("configs", "describe", "topic", topic, "--changed")
    for broker in brokers:
        found += shoal.json("configs", "describe", "broker", broker, "--changed")
    return {row["config"] for row in found if ".replication.throttled." in row["config"]}


@pytest.mark.java
def test_a_plan_is_made_applied_and_verified(
    cluster: ShoalCluster, shoal: Shoal, tmp_path: Path
) -> None:
    create(cluster, "planned", [[1], [1], [1]])
    made = shoal.run("topics", "reassign", "plan", "planned", "--replication-factor", "2")
    file = tmp_path / "plan.json"
    file.write_text(made.stdout)
    rows = json.loads(made.stdout)["partitions"]
    assert sorted(id for row in rows for id in row["replicas"]) == [1, 1, 2, 2, 3, 3]
    assert "of 3 partitions change" in made.stderr
    tools = KafkaTools(cluster.bootstrap)
    words = ("reassign-partitions", "--reassignment-json-file", str(file), "--verify")
    assert "planned-0" in tools.run(*words), "Kafka's tool reads the plan"
    said = shoal.refusal("topics", "reassign", "verify", str(file))
    assert "3 of 3 partitions are not complete" in said
    back = tmp_path / "back.json"
    done = shoal.says("topics", "reassign", "apply", str(file))
    assert "Began to reassign 3 partitions." in done
    back.write_text(done.splitlines()[1])

    def complete(plan: Path) -> bool:
        verified = shoal.start_to_end("topics", "reassign", "verify", str(plan), "-o", "json")
        rows = json.loads(verified.stdout)
        done = all(row["state"] == "complete" for row in rows)
        assert done is (verified.returncode == 0)
        return done

    eventually(lambda: complete(file), timeout_s=60)
    assert "is completed" in tools.run(*words)
    assert shoal.says("topics", "reassign", "list") == "No partition is being reassigned.\n"
    shoal.run("topics", "reassign", "apply", str(back))
    eventually(lambda: complete(back), timeout_s=60)


def test_a_throttled_move_is_cancelled(cluster: ShoalCluster, shoal: Shoal, tmp_path: Path) -> None:
    create(cluster, "slow", [[1]])
    file = plan_file(tmp_path, "slow", [2, 3])
    words = ("topics", "reassign")
    shoal.run(*words, "apply", file, "--throttle", str(CRAWL_BYTES))
    assert throttles(shoal, "slow") == {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
    }
    (row,) = shoal.json(*words, "list")
    assert (sorted(row["adding"]), row["removing"]) == ([2, 3], [1])
    done = shoal.start_to_end(*words, "verify", file)
    assert "in progress" in done.stdout
    assert len(throttles(shoal, "slow")) == 4
    assert "are being reassigned already (slow-0)" in shoal.refusal(*words, "apply", file)
    said = shoal.says(*words, "cancel", file)
    assert said == "Cancelled the reassignment of 1 partition.\n"
    eventually(lambda: moved(cluster, "slow", [1]))
    assert throttles(shoal, "slow") == set()
    assert shoal.says(*words, "cancel", file) == "Cancelled the reassignment of 0 partitions.\n"


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("{", 2, "is not JSON"),
        ('{"version": 2, "partitions": []}', 2, 'needs "version": 1'),
        ('{"version": 1, "partitions": [{"topic": "bad"}]}', 2, "an entry needs topic"),
        (
            '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}',
            2,
            "each broker once",
        ),
        (
            '{"version": 1, "partitions": [{"topic": "bad", "partition": 7, "replicas": [1]}]}',
            1,
            "partitions that do not exist: bad-7",
        ),
        (
            '{"version": 1, "partitions": [{"topic": "bad", "partition": 0, "replicas": [9]}]}',
            1,
            "no such brokers run: 9. Those that run: 1, 2, 3",
        ),
    ],
)
def test_bad_plans(shoal: Shoal, tmp_path: Path, text: str, status: int, said: str) -> None:
    shoal.run("topics", "create", "bad", "-p", "1")
    file = tmp_path / "bad.json"
    file.write_text(text)
    assert said in shoal.refusal("topics", "reassign", "apply", str(file), status=status)
    shoal.run("topics", "delete", "bad", "--yes")


def test_bad_requests_for_plans(shoal: Shoal) -> None:
    shoal.run("topics", "create", "few", "-p", "1", "--replication-factor", "2")
    words = ("topics", "reassign", "plan", "few", "--brokers")
    assert "few-0 has 2 replicas, but only 1 brokers" in shoal.refusal(*words, "1")
    assert "no such brokers run: 8" in shoal.refusal(*words, "1,8")
    assert "--brokers must be ids" in shoal.refusal(*words, "a", status=2)
    assert "cannot read" in shoal.refusal("topics", "reassign", "verify", "none", status=2)


@pytest.mark.java
def test_apache_kafka(kafka: KafkaProcess, tmp_path: Path) -> None:
    """One node has nowhere to move a replica to; the requests and the throttles work."""
    shoal = Shoal(kafka.bootstrap)
    shoal.run("topics", "create", "one", "-p", "1")
    file = tmp_path / "plan.json"
    file.write_text(shoal.says("topics", "reassign", "plan", "one"))
    assert json.loads(file.read_text())["partitions"] == [
        {"topic": "one", "partition": 0, "replicas": [1]}
    ]
    words = ("topics", "reassign")
    shoal.run(*words, "apply", str(file), "--throttle", "1000000")
    eventually(lambda: len(throttles(shoal, "one", "1")) == 3)
    (row, *_) = eventually(lambda: shoal.json(*words, "verify", str(file)))
    assert row["state"] == "complete"
    eventually(lambda: throttles(shoal, "one", "1") == set())
    assert shoal.says(*words, "cancel", str(file)).startswith("Cancelled the reassignment of 0 ")
    assert shoal.says(*words, "list") == "No partition is being reassigned.\n"
