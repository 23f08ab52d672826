"""Bad input under Spark: each kind is a condition on its ShareConsumer that names the remedy.

Failing drivers are restarted repeatedly, so each ShareConsumer is deleted once it has reported.
Shoal's brokers have no users: a login that they refuse stands for one without permission, which
tests/spark tests with Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e.cluster import images, spark_operator
from e2e.resources import Resources, queue_topic, share_consumer, share_group
from e2e.spark_consumers import prepare, spark
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.cluster.backend import Cluster

#: Flips a bit of the first batch on the broker's disk, after its header, so that its CRC is wrong.
DAMAGE = """
import glob
(path,) = glob.glob("/var/lib/shoal/**/torn-0/*.log", recursive=True)
with open(path, "r+b") as file:
    file.seek(80)
    (byte,) = file.read(1)
    file.seek(80)
    file.write(bytes([byte ^ 1]))
"""
LOGIN = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "ann",
    "kafka.sasl.password": "wrong",
}


def job(group: str, **options: str) -> dict[str, object]:
    """Return the job of `spark_job.py` on this group, with further options of the source."""
    given = [f"--option={name}={value}" for name, value in options.items()]
    words = ["--results=done", "--topics=$(TOPICS)", f"--group={group}", *given]
    return spark(arguments=words, maxExecutors=1)


def tells(queue: Resources, name: str, reason: str, *words: str) -> None:
    """Wait until the ShareConsumer reports this, then delete it."""

    def is_reported() -> bool:
        condition = queue.condition(f"shareconsumer/{name}")
        said = condition["message"]
        assert condition["reason"] == reason, condition
        assert all(word in said for word in words), condition
        return True

    eventually(is_reported, timeout_s=240)
    queue.kubectl("delete", f"shareconsumer/{name}", "--wait=false")


@pytest.mark.timeout(900)
def test_each_kind_is_reported_with_its_remedy(queue: Resources, cluster: Cluster) -> None:
    cluster.load(images.archive("spark"))
    spark_operator.install(cluster, [queue.namespace])
    prepare(queue)
    queue.apply(
        queue_topic("torn", partitions=1),
        share_group("torn", topics=["torn"]),
        share_group("early", topics=["nope"]),
        share_group("locked-out"),
    )
    queue.wait("queuetopic/torn", "sharegroup/torn", "sharegroup/locked-out")
    queue.produce("torn", 20)
    queue.kubectl("exec", "main-broker-0", "--", "python3", "-c", DAMAGE)
    queue.produce("jobs", 3)
    queue.shoal("consume", "jobs", "--group=classic", "--from-beginning", "-n", "1")
    queue.apply(
        share_group("classic"),
        share_consumer("early", "early", spark=job("early")),
        share_consumer("classic", "classic", spark=job("classic")),
        share_consumer("moved", "workers", spark=job("workers"), replicas=1),
        share_consumer("torn", "torn", spark=job("torn"), replicas=1),
        share_consumer("out", "locked-out", spark=job("locked-out", **LOGIN), replicas=1, user=""),
        # The ShareGroup names its topics, and the query names its own.
        share_consumer("lost", "workers", spark=job("workers", subscribe="nowhere"), replicas=1),
    )
    # The operator reports brokers' errors without Spark.
    tells(queue, "early", "TopicNotFound", "Topic nope does not exist", "Apply a QueueTopic")
    tells(queue, "classic", "OtherGroupType", "Choose another groupId or delete it")
    tells(queue, "lost", "ApplicationFailed", "no topic 'nowhere'", "create it, or name another")
    tells(queue, "out", "ApplicationFailed", "InvalidOption", "check kafka.security.protocol")
    tells(
        queue,
        "torn",
        "ApplicationFailed",
        "DataLoss: rows of topic 'torn' partition 0, offsets ",
        "cannot be decoded",
        "Set failOnDataLoss to false",
    )
    # A checkpoint exists, and an application starts again over it for another group.
    queue.wait_status("sharegroup/workers", lag=0, timeout_s=240)
    queue.patch("shareconsumer/moved", {"spec": {"spark": job("others")}})
    tells(
        queue,
        "moved",
        "ApplicationFailed",
        "BadOffset: the checkpoint is of share group",
        "'workers', and the query's group.id is 'others'",
        "separate checkpointLocation for each group",
    )
