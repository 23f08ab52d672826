"""Kombu on a real broker by `shoal://`: queues, exchanges, acknowledgements and the prefetch count.

In `compat/clients`, `test_celery.py` runs workers of Celery, and `test_kombu_suite.py` Kombu's
own tests.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
import uuid
from typing import TYPE_CHECKING, Any

import kombu
import pytest
import shoal.kombu
from kombu.exceptions import OperationalError
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import ConnectionLost, expect
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.servers import ShoalProcess

BROKER_CONFIG = {"group.share.min.record.lock.duration.ms": "1000"}
#: Seconds that a test waits for a message that must come.
SOON_S = 30.0

Connect = "Callable[..., kombu.Connection]"


@pytest.fixture
def connect(shared_broker: ShoalProcess) -> Iterator[Callable[..., Any]]:
    """Connect with queues that belong to this test: `connect(**transport_options)`."""
    prefix = f"k-{uuid.uuid4().hex[:8]}."
    with contextlib.ExitStack() as opened:

        def open_one(**options: Any) -> Any:
            url = f"shoal://{shared_broker.bootstrap}"
            options = {"queue_name_prefix": prefix, **options}
            connection = kombu.Connection(url, transport_options=options)
            opened.callback(connection.release)
            return connection

        open_one.prefix = prefix  # type: ignore[attr-defined]
        yield open_one


def put(connection: Any, queue: Any, *bodies: Any, **options: Any) -> None:
    """Publish to a queue by its exchange and routing key."""
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        for body in bodies:
            producer.publish(
                body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue],
                **options,
            )  # fmt: skip


class Consumer:
    """A consumer on a channel of its own, and the messages that it holds."""

    def __init__(self, connection: Any, *queues: Any, prefetch: int = 0) -> None:
        self._connection = connection
        self.channel = connection.channel()
        self.messages: list[Any] = []
        self.consumer = kombu.Consumer(
            self.channel, list(queues), on_message=self.messages.append, prefetch_count=prefetch
        )
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def take(self, number: int) -> list[Any]:
        """Wait until the consumer holds this number of messages."""
        end_s = time.monotonic() + SOON_S
        while len(self.messages) < number:
            self._connection.drain_events(timeout=max(0.0, end_s - time.monotonic()))
        return self.messages

    def is_quiet(self) -> bool:
        """Whether nothing comes within two fetches."""
        with contextlib.suppress(TimeoutError):
            self._connection.drain_events(timeout=0.5)
            return False
        return True


def count(connection: Any, queue: Any) -> int:
    """Return the size of a queue."""
    with connection.channel() as channel:
        return int(queue(channel).queue_declare(passive=True).message_count)


def test_celery_finds_the_transport_by_an_entry_point() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="kombu.serializers", name="shoal")
    assert found.load() is shoal.kombu.SERIALIZER


def test_members_of_one_partition_share_its_messages(connect: Any) -> None:
    queue = kombu.Queue("jobs", routing_key="jobs")
    put(connect(), queue, *range(6))
    consumers = [Consumer(connect(), queue, prefetch=2) for _ in range(3)]
    for consumer in consumers:
        consumer.take(2)
    bodies = sorted(m.payload for consumer in consumers for m in consumer.messages)
    assert bodies == list(range(6))


def test_a_prefetch_count_holds_over_several_queues(connect: Any) -> None:
    queues = [kombu.Queue(name, routing_key=name) for name in ("a", "b", "c")]
    connection = connect()
    for queue in queues:
        put(connection, queue, 1, 2)
    consumer = Consumer(connection, *queues, prefetch=2)
    consumer.take(2)
    assert consumer.is_quiet()
    other = Consumer(connect(), *queues)
    other.take(4)
    for message in consumer.messages:
        message.ack()
    assert consumer.is_quiet()


def test_a_message_of_several_seconds_keeps_its_lock(connect: Any) -> None:
    """The lock lasts a second, so another consumer would get the message after that."""
    queue = kombu.Queue("slow", routing_key="slow")
    options = {"group_configs": {"share.record.lock.duration.ms": "1000"}}
    put(connect(**options), queue, "job")
    consumer = Consumer(connect(**options), queue, prefetch=1)
    (message,) = consumer.take(1)
    other = Consumer(connect(**options), queue)
    end_s = time.monotonic() + 2.5
    while time.monotonic() < end_s:
        assert other.is_quiet()
    message.ack()
    eventually(lambda: count(connect(), queue) == 0)


def test_a_closed_channel_returns_messages_undelivered(connect: Any) -> None:
    queue = kombu.Queue("back", routing_key="back")
    connection = connect()
    put(connection, queue, "job")
    consumer = Consumer(connection, queue)
    (message,) = consumer.take(1)
    assert not message.delivery_info["redelivered"]
    consumer.channel.close()
    (again,) = Consumer(connect(), queue).take(1)
    assert not again.delivery_info["redelivered"], "it counted as a delivery"


def test_a_requeued_message_comes_again(connect: Any) -> None:
    queue = kombu.Queue("again", routing_key="again")
    put(connect(), queue, "job")
    consumer = Consumer(connect(), queue)
    consumer.take(1)[0].requeue()
    again = consumer.take(2)[1]
    assert again.delivery_info["redelivered"]
    again.ack()
    eventually(lambda: count(connect(), queue) == 0)


def test_a_rejected_message_is_a_dead_letter(connect: Any, shared_broker: ShoalProcess) -> None:
    letters = f"dlq.{connect.prefix}bad"
    configs = {"errors.deadletterqueue.group.enable": "true"}
    with SyncClient(shared_broker.bootstrap) as client:
        new = [NewTopic(letters, 1, configs=configs)]
        expect(client.run(client.admin.topics.create(new)))
    dead_letters = {
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    connection = connect(group_configs=dead_letters)
    queue = kombu.Queue("bad", routing_key="bad")
    put(connection, queue, "job")
    Consumer(connection, queue).take(1)[0].reject(requeue=False)
    with connect(queue_name_prefix="").channel() as channel:
        dead = kombu.Queue(letters, channel=channel, no_declare=True)
        assert eventually(dead.get).payload == "job"


@pytest.mark.parametrize("prefetch", [1, 0])
def test_urgent_messages_come_first(connect: Any, prefetch: int) -> None:
    """The broker chooses one at a time, or the channel sorts what one fetch returns."""
    queue = kombu.Queue("urgent", routing_key="urgent", max_priority=9)
    connection = connect()
    for priority in (1, 5, 9, 0):
        put(connection, queue, priority, priority=priority)
    consumer = Consumer(connection, queue, prefetch=prefetch)
    for number in range(1, 5):
        consumer.take(number)[-1].ack()
    assert [m.payload for m in consumer.messages] == [9, 5, 1, 0]


def test_the_broker_keeps_a_message_with_an_eta(connect: Any) -> None:
    queue = kombu.Queue("later", routing_key="later")
    due_s = time.time() + 1.5
    eta = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due_s)) + f"{due_s % 1:.3f}"[1:]
    put(connect(), queue, "later", headers={"eta": eta})
    put(connect(), queue, "now")
    consumer = Consumer(connect(), queue)
    assert [m.payload for m in consumer.take(2)] == ["now", "later"]
    assert time.time() >= due_s - 0.001


def test_an_expired_message_is_not_delivered(connect: Any) -> None:
    queue = kombu.Queue("old", routing_key="old")
    put(connect(), queue, "old", expiration=0.001)
    put(connect(), queue, "new")
    assert [m.payload for m in Consumer(connect(), queue).take(1)] == ["new"]


def test_another_process_binds_and_unbinds(connect: Any) -> None:
    """Each connection has its own copy of the bindings."""
    events = kombu.Exchange("events", type="topic")
    orders = kombu.Queue("orders", exchange=events, routing_key="order.#")
    publisher, consumer = connect(), connect()
    put(publisher, kombu.Queue("all", exchange=events, routing_key="#"), "before")
    with consumer.channel() as channel:
        orders(channel).declare()
    with publisher.channel() as channel:
        # The publisher read the bindings a moment ago, and reads them again after a second.
        eventually(lambda: publish_event(channel, events) and count(consumer, orders) > 0)
    with consumer.channel() as channel:
        orders(channel).purge()
        orders(channel).unbind_from(events, "order.#")
    put(connect(), kombu.Queue("all", exchange=events, routing_key="#"), "after")
    assert count(consumer, orders) == 0


def publish_event(channel: Any, exchange: Any) -> bool:
    kombu.Producer(channel).publish("new", exchange=exchange, routing_key="order.new.7")
    return True


def test_temporary_queues_leave_nothing_behind(connect: Any, shared_broker: ShoalProcess) -> None:
    control = kombu.Exchange("control", type="fanout", durable=False)
    queues = [
        kombu.Queue(f"worker{n}", exchange=control, auto_delete=True, durable=False)
        for n in range(2)
    ]
    consumers = [Consumer(connect(), queue) for queue in queues]
    with connect().channel() as channel:
        kombu.Producer(channel).publish("ping", exchange=control)
    for consumer in consumers:
        assert [m.payload for m in consumer.take(1)] == ["ping"]
    with SyncClient(shared_broker.bootstrap) as client:
        topics = client.run(client.admin.topics.list())
    own = {name.removeprefix(connect.prefix) for name in topics if name.startswith(connect.prefix)}
    assert own == {"kombu.exchange.control", "kombu.exchange.default"}


def test_a_queue_of_replies_is_declared_before_its_consumer_connects(connect: Any) -> None:
    """Celery declares it on one connection, asks, and consumes on another one."""
    replies = kombu.Queue("replies-7", routing_key="replies-7", exclusive=True)
    with connect().channel() as channel:
        replies(channel).declare()
    with connect().channel() as channel:
        kombu.Producer(channel).publish("pong", exchange="", routing_key="replies-7")
    assert [m.payload for m in Consumer(connect(), replies).take(1)] == ["pong"]


def test_messages_of_a_temporary_queue_wait_for_an_outcome(connect: Any) -> None:
    """As those of all queues do: what a program did not ask for, has released, or holds when its
    channel closes is delivered again."""
    queue = kombu.Queue("replies", routing_key="replies", auto_delete=True, expires=60)
    connection = connect()
    put(connection, queue, *range(4))
    with connection.channel() as channel:
        reading = queue(channel)
        first, second = reading.get(), reading.get()
        assert (first.payload, second.payload) == (0, 1)
        first.ack()
        second.requeue()
        assert reading.get().payload == 1, "it comes again"
        assert reading.get().payload == 2
    consumer = Consumer(connect(), queue)
    assert [message.payload for message in consumer.take(3)] == [1, 2, 3]
    consumer.messages[0].requeue()
    assert consumer.take(4)[3].payload == 1
    consumer.consumer.cancel()
    assert Consumer(connect(), queue).is_quiet(), "a cancelled consumer has taken them"


def test_a_queue_whose_group_is_reserved_is_refused(connect: Any) -> None:
    with connect(queue_name_prefix="redrive.").channel() as channel:
        with pytest.raises(kombu.exceptions.ChannelError, match=r"redrive\.mine is reserved"):
            kombu.Queue("mine")(channel).declare()
        kombu.Queue("mine", exclusive=True)(channel).declare()


def test_purge_size_and_delete(connect: Any) -> None:
    queue = kombu.Queue("full", routing_key="full")
    connection = connect()
    put(connection, queue, 1, 2, 3)
    assert count(connection, queue) == 3
    with connection.channel() as channel:
        assert queue(channel).purge() == 3
        assert count(connection, queue) == 0
        queue(channel).delete()
        with pytest.raises(kombu.exceptions.ChannelError, match="no queue 'full'"):
            queue(channel).queue_declare(passive=True)
    put(connect(), queue, 4)
    assert [m.payload for m in Consumer(connect(), queue).take(1)] == [4]


def test_a_forked_process_connects_again(connect: Any) -> None:
    connection = connect()
    connection.connect()
    queue = kombu.Queue("forked", routing_key="forked")
    put(connection, queue, "parent")
    child = os.fork()
    if not child:
        status = 1
        try:
            assert not connection.connected
            with pytest.raises(ConnectionLost):
                connection.transport.link.run(connection.transport.link.count("forked"))
            connection.close()
            connection.connect()
            put(connection, queue, "child")
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    bodies = [m.payload for m in Consumer(connection, queue).take(2)]
    assert bodies == ["parent", "child"]


def test_an_unreachable_broker_is_a_connection_error() -> None:
    connection = kombu.Connection("shoal://127.0.0.1:1", connect_timeout=0.2)
    with pytest.raises(OperationalError):
        connection.ensure_connection(max_retries=1, interval_start=0)


def test_consumers_and_publishers_outlive_a_broker(broker: ShoalProcess) -> None:
    """The test ends its broker, so it starts one of its own."""
    queue = kombu.Queue("jobs", routing_key="jobs")
    connection = kombu.Connection(f"shoal://{broker.bootstrap}", connect_timeout=SOON_S)
    try:
        consumer = Consumer(connection, queue)
        put(connection, queue, "before")
        consumer.take(1)[0].ack()
        eventually(lambda: count(connection, queue) == 0)
        broker.kill9()
        broker.start()
        put(connection, queue, "after")
        assert [m.payload for m in consumer.take(2)][-1] == "after"
    finally:
        connection.release()
