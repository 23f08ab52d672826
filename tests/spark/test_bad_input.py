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
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.dead_letters.dead_letter_topics import read_dead_letters
from shoal.protocol.reasons import FailureReason
from streams import QUERY_TIMEOUT_S, Stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from servers import ShoalProcess
    from shoal.dead_letters.records import DeadLetter

MakeQueue = Callable[..., Queue]
#: The class and the message of the error of a damaged batch.
DAMAGE = (
    "shoal.client.net.batches.CorruptRecords",
    "the batch at offset 0 has a wrong CRC",
)


@contextmanager
def error_summary(pattern: str) -> Iterator[None]:
    """Expect the block to fail with this line as the summary in the driver's pod status."""
    from shoal_spark import termination_message

    # PySpark wraps the error in one of several classes; the summary unwraps it.
    with pytest.raises(Exception) as raised:  # noqa: PT011
        yield
    assert re.match(f"shoal_spark\\.\\w+\\.{pattern}", termination_message.summarize(raised.value))


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
        SourceOptions.from_options({**right, **options})


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
    from shoal_spark.member import DriverMember
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
    member = DriverMember(SourceOptions.from_options(queue.options()), list)
    member.join("")
    assert not member.is_renewing
    member.close()
    Stream(spark, queue, tmp_path / "rows").drain()
    queue.drained()


@pytest.fixture
def damaged_queue(spark_broker: ShoalProcess, shoal_queue: MakeQueue) -> Queue:
    """A topic with two batches of ten records, the first of which is damaged on the disk."""
    queue = shoal_queue(partitions=1)
    queue.produce(range(20), batch=10)
    damage_first_batch(spark_broker, queue.topic)
    return queue


def test_rows_that_nobody_can_decode_are_an_error_or_left_out_or_have_the_reason(
    damaged_queue: Queue,
) -> None:
    """What an executor reads, without Spark."""
    from shoal_spark import range_reader
    from shoal_spark.options import SourceOptions
    from shoal_spark.ranges import OffsetRange

    def read_rows(**options: str) -> list[tuple[bytes | None, str | None]]:
        given = SourceOptions.from_options(damaged_queue.options(**options))
        found = range_reader.read(given, [OffsetRange(damaged_queue.topic, 0, 0, 19)])
        rows = [row for batch in found for row in batch.to_pylist()]
        return [(row["value"], row.get("decodeError")) for row in rows]

    rest = [(str(n).encode(), None) for n in range(10, 20)]
    text = r"offsets 0 to 9, cannot be decoded: .*CRC.*includeDecodeErrors.*failOnDataLoss"
    with pytest.raises(range_reader.DataLoss, match=text):
        read_rows()
    assert read_rows(failOnDataLoss="false") == rest
    assert read_rows(includeDecodeErrors="true") == [(None, ": ".join(DAMAGE))] * 10 + rest


def test_a_query_rejects_rows_that_nobody_can_decode(
    damaged_queue: Queue, spark: SparkSession, tmp_path: Path
) -> None:
    """It ends with an error that names them. With `includeDecodeErrors` it continues: they are dead
    letters with the reason, and the function gets the others. Two queries take some seconds."""
    from shoal_spark import outcomes

    client, letters = damaged_queue.client, f"dlq.{damaged_queue.topic}"
    new = NewTopic(letters, configs={"errors.deadletterqueue.group.enable": "true"})
    expect(client.run(client.admin.topics.create([new])))
    damaged_queue.configure(errors_deadletterqueue_topic_name=letters)
    stream = Stream(spark, damaged_queue, tmp_path)
    said = f"topic '{damaged_queue.topic}' partition 0, offsets 0 to 9, cannot be decoded.*CRC.*"
    with error_summary(f"DataLoss: rows of {said}failOnDataLoss"):
        stream.drain()

    done: list[int] = []
    outcomes_dir = str(tmp_path / "outcomes")

    def sink(frame: DataFrame, _batch: int) -> None:
        judged = outcomes.apply(frame, lambda row: {"n": int(row["value"])}, "n int").persist()
        done.extend(row["n"] for row in outcomes.select_accepted(judged).collect())
        outcomes.report(judged, damaged_queue.options(outcomes_dir=outcomes_dir))
        judged.unpersist()

    stream.drain(sink, outcomes_dir=outcomes_dir, includeDecodeErrors="true")
    assert sorted(done) == list(range(10, 20))
    damaged_queue.drained()
    found = client.run(list_dead_letters(client, letters))
    assert [letter.source_offset for letter in found] == list(range(10))
    reasons = {letter.failure._replace(worker="") for letter in found}
    assert reasons == {FailureReason(*DAMAGE)}


def damage_first_batch(broker: ShoalProcess, topic: str) -> None:
    (segment,) = broker.data_dir.rglob(f"{topic}-0/*.log")
    with segment.open("r+b") as file:
        file.seek(80)
        byte = file.read(1)
        file.seek(80)
        file.write(bytes([byte[0] ^ 1]))


async def list_dead_letters(client: SyncClient, topic: str) -> list[DeadLetter]:
    return [letter async for letter in read_dead_letters(client.client, topic)]


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
