"""What is wrong is said by the query, in words that name it; nothing is taken and nothing hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafkas import KafkaProcess
from queues import Queue
from servers import ShoalProcess
from shoal.client.client import SyncClient
from shoal.client.cluster import TopicPartition
from shoal.client.errors import expect
from streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeQueue = Callable[..., Queue]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxRecordPerTrigger": "1"}, "unknown option 'maxRecordPerTrigger'"),
        ({"minPartitions": "many"}, "'minPartitions' is 'many'"),
        ({"startingOffsets": "earliest"}, "share.auto.offset.reset"),
        ({"kafka.securty.protocol": "SSL"}, "securty.protocol"),
        ({"share.renew": "perhaps"}, "'share.renew' is 'perhaps'"),
        ({"subscribe": " , "}, "'subscribe' names nothing"),
        ({"group.id": ""}, "'group.id' is missing"),
    ],
)
def test_wrong_options_are_named(spark: SparkSession, options: dict[str, str], words: str) -> None:
    from shoal_spark.options import InvalidOption, SourceOptions

    right = {"kafka.bootstrap.servers": "127.0.0.1:1", "group.id": "g", "subscribe": "t"}
    with pytest.raises(InvalidOption, match=words):
        SourceOptions.of({**right, **options})


def test_a_query_says_what_is_wrong(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """A wrong option, a missing topic, another checkpoint: an error of the query, in words."""
    queue = shoal_queue(partitions=1)
    with pytest.raises(Exception, match=r"unknown option .{0,2}'maxrecords"):
        Stream(spark, queue, tmp_path / "option").start(maxRecords=1)
    with pytest.raises(Exception, match="'subscribe': topic 'no-such-topic'"):
        Stream(spark, queue, tmp_path / "topic").drain(subscribe="no-such-topic")

    queue.produce(range(3))
    place = tmp_path / "checkpoint"
    Stream(spark, queue, place).drain()
    with pytest.raises(Exception, match=f"{queue.group}.*another-group"):
        Stream(spark, queue, place).drain(**{"group.id": "another-group"})


def test_a_group_of_another_type(
    make_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    queue = make_queue(partitions=1)
    offsets = {TopicPartition(queue.topic, 0): 0}
    name = f"{queue.group}-classic"
    expect(queue.client.run(queue.client.admin.groups.alter_offsets(name, offsets)))
    with pytest.raises(Exception, match=name):
        Stream(spark, queue, tmp_path).drain(**{"group.id": name})


def test_rows_that_nobody_can_decode(
    start_broker: Callable[..., ShoalProcess], spark: SparkSession, tmp_path: Path
) -> None:
    """A batch is damaged on the broker's disk: an error with its offsets, or what is left."""
    broker = start_broker()
    with SyncClient(broker.bootstrap) as client:
        queue = Queue(client, broker.bootstrap)
        queue.produce(range(20), batch=10)
        (segment,) = broker.data_dir.rglob(f"{queue.topic}-0/*.log")
        with segment.open("r+b") as file:
            file.seek(80)
            byte = file.read(1)
            file.seek(80)
            file.write(bytes([byte[0] ^ 1]))
        stream = Stream(spark, queue, tmp_path)
        said = f"topic '{queue.topic}' partition 0, offsets 0 to 9, cannot be decoded.*CRC.*"
        with pytest.raises(Exception, match=f"{said}failOnDataLoss"):
            stream.drain()
        stream.drain(failOnDataLoss="false")
        assert stream.values == [str(n) for n in range(10, 20)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    """Apache Kafka with its authorizer, where everybody may do what nobody has forbidden, and a
    listener that asks for a login."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required user_ann=secret;"
    configs = {
        "authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true",
        "sasl.enabled.mechanisms": "PLAIN", "listener.name.sasl.plain.sasl.jaas.config": plain,
    }  # fmt: skip
    process = KafkaProcess(
        tmp_path_factory.mktemp("guarded") / "kafka",
        listeners={"SASL": "SASL_PLAINTEXT"},
        configs=configs,
    ).start()
    yield process
    process.kill9()


@pytest.mark.java
@pytest.mark.parametrize("kind", ["group", "topic"])
def test_no_permission(
    guarded: KafkaProcess, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    with SyncClient(guarded.bootstrap) as client:
        queue = Queue(client, guarded.bootstrap)
        name = getattr(queue, kind)
        acl = AclBinding(
            ResourceType[kind.upper()], name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*",
            AclOperation.READ, AclPermissionType.DENY,
        )  # fmt: skip
        admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
        for future in admin.create_acls([acl]).values():
            future.result(20)
        with pytest.raises(Exception, match=f"(?i){kind}.authorization.failed"):
            Stream(spark, queue, tmp_path).drain()


@pytest.mark.java
def test_a_login_goes_to_driver_and_executors(
    guarded: KafkaProcess, spark: SparkSession, tmp_path: Path
) -> None:
    """`kafka.*` is passed on by the source and the sink; a wrong password is said."""
    login = {
        "kafka.bootstrap.servers": guarded.addresses["SASL"],
        "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "ann", "kafka.sasl.password": "secret",
    }  # fmt: skip
    with SyncClient(guarded.bootstrap) as client:
        queue = Queue(client, guarded.bootstrap)
        rows = spark.createDataFrame([(str(n),) for n in range(20)], "value string")
        writer = rows.write.format("kafka-topic").options(**login, topic=queue.topic)
        writer.mode("append").save()
        stream = Stream(spark, queue, tmp_path / "right")
        stream.drain(**login)
        assert stream.values == [str(n) for n in range(20)]
        with pytest.raises(Exception, match="refuses user 'ann'"):
            wrong = login | {"kafka.sasl.password": "wrong"}
            Stream(spark, queue, tmp_path / "wrong").drain(**wrong)
