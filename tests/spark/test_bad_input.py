"""A query reports bad input in an error that names it; it takes no records and does not hang."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from shoal.client.client import SyncClient
from shoal.client.cluster import TopicPartition
from shoal.client.errors import expect
from streams import QUERY_TIMEOUT_S, Stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from servers import ShoalProcess

MakeQueue = Callable[..., Queue]


@contextmanager
def error_summary(pattern: str) -> Iterator[None]:
    """Expect the block to fail with this line as the summary in the driver's pod status."""
    from shoal_spark import termination_message

    # PySpark wraps the error in one of several classes; the summary unwraps it.
    with pytest.raises(Exception) as raised:  # noqa: PT011
        yield
    assert re.match(f"shoal_spark\\.\\w+\\.{pattern}", termination_message.summary(raised.value))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxRecordPerTrigger": "1"}, "unknown option 'maxRecordPerTrigger'"),
        ({"minPartitions": "many"}, "'minPartitions' is 'many'"),
        ({"startingOffsets": "earliest"}, "share.auto.offset.reset"),
        ({"kafka.securty.protocol": "SSL"}, "securty.protocol"),
        ({"share.renew": "perhaps"}, "'share.renew' is 'perhaps'"),
        ({"subscribe": " , "}, "'subscribe' is empty"),
        ({"group.id": ""}, "'group.id' is missing"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], words: str) -> None:
    from shoal_spark.options import InvalidOption, SourceOptions

    right = {"kafka.bootstrap.servers": "127.0.0.1:1", "group.id": "g", "subscribe": "t"}
    with pytest.raises(InvalidOption, match=words):
        SourceOptions.of({**right, **options})


def test_a_query_reports_bad_input(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """A wrong option, a missing topic, another checkpoint: each is an error of the query."""
    queue = shoal_queue(partitions=1)
    with error_summary("InvalidOption: unknown option 'maxrecords'"):
        Stream(spark, queue, tmp_path / "option").start(maxRecords=1)
    with error_summary("InvalidOption: option 'subscribe': there is no topic 'no-such-topic'"):
        Stream(spark, queue, tmp_path / "topic").drain(subscribe="no-such-topic")

    with error_summary(
        "InvalidOption: the schema has the columns x, .* key, value, .*; remove the schema"
    ):
        source = spark.readStream.format("sharegroup").schema("x int")
        source.options(**queue.options()).load().writeStream.format("noop").start(
            checkpointLocation=str(tmp_path / "schema")
        ).awaitTermination(QUERY_TIMEOUT_S)

    queue.produce(range(3))
    place = tmp_path / "checkpoint"
    Stream(spark, queue, place).drain()
    with error_summary(f"BadOffset: .*{queue.group}.*another-group.*checkpointLocation"):
        Stream(spark, queue, place).drain(**{"group.id": "another-group"})


def test_a_group_of_another_type(
    make_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    queue = make_queue(partitions=1)
    offsets = {TopicPartition(queue.topic, 0): 0}
    name = f"{queue.group}-classic"
    expect(queue.client.run(queue.client.admin.groups.alter_offsets(name, offsets)))
    with error_summary(f"InvalidOption: option 'group.id': .*{name}.*name another"):
        Stream(spark, queue, tmp_path).drain(**{"group.id": name})


def test_locks_that_are_not_renewed(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """By the group's config or by the option: a contradiction is refused when it is detected."""
    from shoal_spark.member import Member
    from shoal_spark.options import SourceOptions

    queue = shoal_queue(partitions=1, share_renew_acknowledge_enable="false")
    queue.produce(range(3))
    with error_summary("InvalidOption: option 'share.renew' is true, .*acknowledge.enable"):
        Stream(spark, queue, tmp_path / "group").drain(share_renew="true")
    with error_summary(
        "InvalidOption: option 'batch.target.ms' is 60000, .*'share.renew' is false"
    ):
        more = {"share.renew": "false", "batch.target.ms": "60000"}
        Stream(spark, queue, tmp_path / "option").drain(**more)
    # A refused renewal would look like a lost lock.
    member = Member(SourceOptions.of(queue.options()), list)
    member.join("")
    assert not member.renews
    member.close()
    Stream(spark, queue, tmp_path / "rows").drain()
    queue.drained()


def test_rows_that_nobody_can_decode(
    start_broker: Callable[..., ShoalProcess], spark: SparkSession, tmp_path: Path
) -> None:
    """A batch is damaged on the broker's disk: an error with its offsets, or the remaining rows."""
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
        with error_summary(f"DataLoss: rows of {said}failOnDataLoss"):
            stream.drain()
        stream.drain(failOnDataLoss="false")
        assert stream.values == [str(n) for n in range(10, 20)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    """Apache Kafka with its authorizer, which allows everything without a rule, and a listener with
    SASL."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required user_ann=secret;"
    configs = {
        "authorizer.class.name": authorizer,
        "allow.everyone.if.no.acl.found": "true",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": plain,
    }
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
            ResourceType[kind.upper()],
            name,
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            AclOperation.READ,
            AclPermissionType.DENY,
        )
        admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
        for future in admin.create_acls([acl]).values():
            future.result(20)
        option = "group.id" if kind == "group" else "subscribe"
        refused = f"{kind.upper()}_AUTHORIZATION_FAILED.*needs READ on the {kind}"
        with error_summary(f"InvalidOption: option '{option}': .*'{name}'.*{refused}"):
            Stream(spark, queue, tmp_path).drain()


@pytest.mark.java
def test_a_login_goes_to_driver_and_executors(
    guarded: KafkaProcess, spark: SparkSession, tmp_path: Path
) -> None:
    """The source and the sink pass on `kafka.*`; a wrong password is an error."""
    login = {
        "kafka.bootstrap.servers": guarded.addresses["SASL"],
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "ann",
        "kafka.sasl.password": "secret",
    }
    with SyncClient(guarded.bootstrap) as client:
        queue = Queue(client, guarded.bootstrap)
        rows = spark.createDataFrame([(str(n),) for n in range(20)], "value string")
        writer = rows.write.format("kafka-topic").options(**login, topic=queue.topic)
        writer.mode("append").save()
        stream = Stream(spark, queue, tmp_path / "right")
        stream.drain(**login)
        assert stream.values == [str(n) for n in range(20)]
        with error_summary("InvalidOption: options 'kafka.*': .*refuses user 'ann'.*kafka.sasl"):
            wrong = login | {"kafka.sasl.password": "wrong"}
            Stream(spark, queue, tmp_path / "wrong").drain(**wrong)
