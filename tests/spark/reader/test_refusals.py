"""What the source refuses, before it takes any record. `spark/test_bad_input.py` has queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from pyspark.sql import Row
from pyspark.sql.types import StringType, StructField, StructType
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal_spark.offsets import BadOffset
from shoal_spark.options import InvalidOption, SourceOptions, TopicOptions
from shoal_spark.reader import ShareGroupReader
from shoal_spark.topics import TopicWriter
from support.brokers.queues import Queue
from support.kafka.kafkas import KafkaProcess
from support.spark.micro_batches import Query

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

MakeQueue = Callable[..., Queue]


def refusal(pattern: str) -> AbstractContextManager[object]:
    return pytest.raises(InvalidOption, match=pattern)


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
    right = {"kafka.bootstrap.servers": "127.0.0.1:1", "group.id": "g", "subscribe": "t"}
    with refusal(words):
        SourceOptions.from_options({**right, **options})


def test_topics_schemas_and_checkpoints(shoal_queue: MakeQueue) -> None:
    queue = shoal_queue(partitions=1)
    with refusal("option 'subscribe': there is no topic 'no-such-topic'"):
        Query(queue).drain(subscribe="no-such-topic")
    wrong = ShareGroupReader(SourceOptions.from_options(queue.options()), ["x"])
    with refusal("the schema has the columns x, .* key, value, .*; remove the schema"):
        wrong.latestOffset(wrong.initialOffset(), wrong.getDefaultReadLimit())
    queue.produce(range(3))
    query = Query(queue)
    query.drain()
    with pytest.raises(BadOffset, match=f"{queue.group}.*another-group.*checkpointLocation"):
        query.drain(group_id="another-group")


def test_a_group_of_another_type(make_queue: MakeQueue) -> None:
    queue = make_queue(partitions=1)
    offsets = {TopicPartition(queue.topic, 0): 0}
    name = f"{queue.group}-classic"
    expect(queue.client.run(queue.client.admin.groups.alter_offsets(name, offsets)))
    with refusal(f"option 'group.id': .*{name}.*name another"):
        Query(queue).drain(group_id=name)


def test_locks_that_are_not_renewed(shoal_queue: MakeQueue) -> None:
    """By the group's config or by the option: a contradiction is refused when it is detected."""
    queue = shoal_queue(partitions=1, share_renew_acknowledge_enable="false")
    queue.produce(range(3))
    with refusal("option 'share.renew' is true, .*acknowledge.enable"):
        Query(queue).drain(share_renew="true")
    with refusal("option 'batch.target.ms' is 60000, .*'share.renew' is false"):
        Query(queue).drain(share_renew="false", batch_target_ms="60000")
    # A refused renewal would look like a lost lock.
    query = Query(queue)
    query.start()
    assert query.has_batch()
    assert not query.reader.driver.member.is_renewing
    query.run_batch()
    assert not query.has_batch()
    query.stop()
    queue.drained()


@pytest.fixture(scope="module")
def kafka_with_logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
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
def test_no_permission(kafka_with_logins: KafkaProcess, kind: str) -> None:
    with SyncClient(kafka_with_logins.bootstrap) as client:
        queue = Queue(client, kafka_with_logins.bootstrap)
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
        admin = AdminClient({"bootstrap.servers": kafka_with_logins.bootstrap})
        for future in admin.create_acls([acl]).values():
            future.result(20)
        option = "group.id" if kind == "group" else "subscribe"
        refused = f"{kind.upper()}_AUTHORIZATION_FAILED.*needs READ on the {kind}"
        with refusal(f"option '{option}': .*'{name}'.*{refused}"):
            Query(queue).drain()


@pytest.mark.java
def test_a_login_goes_to_driver_and_tasks(kafka_with_logins: KafkaProcess) -> None:
    """The source and the sink pass on `kafka.*`; a wrong password is an error."""
    login = {
        "kafka.bootstrap.servers": kafka_with_logins.addresses["SASL"],
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "ann",
        "kafka.sasl.password": "secret",
    }
    with SyncClient(kafka_with_logins.bootstrap) as client:
        queue = Queue(client, kafka_with_logins.bootstrap)
        sink = TopicOptions.from_sink_options({**login, "topic": queue.topic})
        writer = TopicWriter(sink, StructType([StructField("value", StringType())]))
        writer.write(Row(value=str(n)) for n in range(20))
        query = Query(queue)
        query.drain(**login)
        assert query.values == list(range(20))
        with refusal("options 'kafka.*': .*refuses user 'ann'.*kafka.sasl"):
            Query(queue).drain(**login | {"kafka.sasl.password": "wrong"})
