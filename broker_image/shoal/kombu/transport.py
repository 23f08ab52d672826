"""The transport as Kombu sees it: connections, channels, exchanges and queues of AMQP.

A queue that outlives its connection is a topic and a share group; a temporary one reads the logs of
its exchanges (`temporary`). This file belongs to the program's threads. Everything that talks to
brokers runs in the thread of a `ClientLink`, and hands messages over through the channel's inbox.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.utils.uuid import uuid

import shoal
from shoal.client.errors import (
    ConnectionLost,
    KafkaError,
    LoginUnavailable,
    RequestTimeout,
    Unreachable,
)
from shoal.client.settings import DEFAULT_PORT, Settings, get_variable_name
from shoal.client.share.acquired import AcknowledgeType
from shoal.kombu.intake import Intake
from shoal.kombu.link import ClientLink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.kombu.intake import ChannelDelivery


class Channel(virtual.Channel):
    """An AMQP channel. Its consumers share one prefetch count."""

    supports_fanout = True
    #: Bodies stay the bytes that the serializer made.
    body_encoding = None
    do_restore = False
    connection: Transport
    closed: bool

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self._link = connection.link
        self._intake = Intake(self.channel_id, self._link.signal.set)
        #: The queue, callback and acknowledgement mode of each consumer tag.
        self._callbacks: dict[str, tuple[str, Callable[[Any], None], bool]] = {}

    # Exchanges

    def exchange_declare(
        self, exchange: str | None = None, type: str = "direct", **options: Any
    ) -> None:
        """Declare an exchange. Only its log is stored: what it is called with decides its type."""
        super().exchange_declare(exchange, type=type, **options)
        if exchange and not options.get("passive"):
            self._link.run(self._link.declare_exchange(exchange, type or "direct"))

    def exchange_delete(self, exchange: str, **_: Any) -> None:
        """Delete an exchange with its bindings."""
        self.state.exchanges.pop(exchange, None)
        self._link.run(self._link.delete_exchange(exchange))

    def _get_kind(self, exchange: str | None) -> str:
        declared = self.state.exchanges.get(exchange or "")
        return str(declared["type"]) if declared else "direct"

    # Queues

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, **options: Any
    ) -> queue_declare_ok_t:
        """Declare a queue. With `x-max-priority` its group reads priorities."""
        queue = queue or f"amq.gen-{uuid()}"
        arguments = options.get("arguments") or {}
        if passive:
            if not self._link.run(self._link.has_queue(queue)):
                raise ChannelError(
                    f"NOT_FOUND - no queue {queue!r}", (50, 10), "Channel.queue_declare", "404"
                )
        else:
            is_temporary = bool(
                options.get("exclusive") or options.get("auto_delete") or "x-expires" in arguments
            )
            has_priorities = "x-max-priority" in arguments
            self._link.run(
                self._link.declare(queue, is_temporary=is_temporary, has_priorities=has_priorities)
            )
        return queue_declare_ok_t(queue, self._size(queue), 0)

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> dict[str, Any]:
        """Return Kombu's options of a queue as RabbitMQ names them."""
        named = {"expires": "x-expires", "max_priority": "x-max-priority"}
        from_options = {named[n]: v for n, v in options.items() if n in named and v is not None}
        return dict(arguments or {}) | from_options

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,  # noqa: ARG002
        **_: Any,
    ) -> None:
        """Let an exchange deliver to a queue."""
        exchange = exchange or "amq.direct"
        kind = self._get_kind(exchange)
        self._link.run(self._link.bind(queue, exchange, kind, routing_key or ""))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,  # noqa: ARG002
        **_: Any,
    ) -> None:
        """Delete a binding."""
        exchange = exchange or "amq.direct"
        kind = self._get_kind(exchange)
        self._link.run(self._link.unbind(queue, exchange, kind, routing_key or ""))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> None:
        """Delete a queue with its messages. `if_unused` has no effect: brokers do not know it."""
        del if_unused
        if not (if_empty and self._size(queue)):
            self._link.run(self._link.delete(queue))

    def _size(self, queue: str) -> int:
        return self._link.run(self._link.count(queue))

    def _purge(self, queue: str) -> int:
        return self._link.run(self._link.purge(queue))

    # Messages

    def basic_publish(
        self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **_: Any
    ) -> None:
        """Publish a message and wait until it is stored."""
        self._inplace_augment_message(message, exchange, routing_key)
        kind = self._get_kind(exchange)
        self._link.run(self._link.publish(message, exchange or "", kind, routing_key or ""))

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], None],
        consumer_tag: str,
        **_: Any,
    ) -> None:
        """Call `callback` for each message of a queue, when `drain_events` runs."""
        self._callbacks[consumer_tag] = queue, callback, no_ack
        self._consumers.add(consumer_tag)
        self._link.run(self._link.consume(self._intake, queue))

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. Its messages without an outcome stay with this channel."""
        self._consumers.discard(consumer_tag)
        if (cancelled := self._callbacks.pop(consumer_tag, None)) is None:
            return
        queue = cancelled[0]
        if not self._find_callback(queue) and self._link.is_usable:
            self._link.run(self._link.cancel(self._intake, queue))

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Return one message of a queue, or None."""
        delivery = self._link.run(self._link.get(self._intake, queue))
        return None if delivery is None else self._make_message(delivery, no_ack)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Accept a message. It does not wait for the broker; a lost lock is logged."""
        del multiple
        self._link.post(self._intake.settle, delivery_tag, AcknowledgeType.ACCEPT)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Release a message, or reject it: then it goes to the dead letters of its group."""
        kind = AcknowledgeType.RELEASE if requeue else AcknowledgeType.REJECT
        self._link.post(self._intake.settle, delivery_tag, kind)

    def basic_recover(self, requeue: bool = False) -> None:
        """Release all messages that the program holds."""
        del requeue
        self._link.post(self._intake.recover)

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set how many messages the channel may hold; 0 is no limit."""
        del prefetch_size, apply_global
        self._link.post(self._intake.set_limit, prefetch_count or 0)

    def deliver_next(self) -> bool:
        """Give the next message to its consumer. Return False if none waits."""
        while (delivery := self._intake.inbox.take()) is not None:
            consumer = self._find_callback(delivery.queue)
            if delivery.is_lost:
                continue
            if consumer is None:
                self.basic_reject(delivery.tag, requeue=True)
                continue
            callback, no_ack = consumer
            callback(self._make_message(delivery, no_ack))
            return True
        return False

    def _find_callback(self, queue: str) -> tuple[Callable[[Any], None], bool] | None:
        for consumed, callback, no_ack in self._callbacks.values():
            if consumed == queue:
                return callback, no_ack
        return None

    def _make_message(self, delivery: ChannelDelivery, no_ack: bool) -> Any:
        if no_ack:
            self.basic_ack(delivery.tag)
        return self.Message(delivery.payload, channel=self)

    def close(self) -> None:
        """Send the outcomes, and return all other messages undelivered."""
        if self.closed:
            return
        self.closed = True
        self._consumers.clear()
        self._callbacks.clear()
        if self._link.is_usable:
            self._link.run(self._link.close_intake(self._intake))
        if self.connection is not None:
            self.connection.close_channel(self)


class Transport(virtual.Transport):
    """A connection of Kombu to brokers of Shoal."""

    Channel = Channel
    default_port = DEFAULT_PORT
    driver_type = driver_name = "shoal"
    connection_errors = (
        ConnectionError,
        TimeoutError,
        Unreachable,
        ConnectionLost,
        RequestTimeout,
        LoginUnavailable,
    )
    channel_errors = (ChannelError, KafkaError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )
    link: ClientLink

    def driver_version(self) -> str:
        """Return the version of the client."""
        return shoal.__version__

    def establish_connection(self) -> Transport:
        """Connect. Raises one of `connection_errors` if no broker answers in time."""
        client = self.client
        self.link = ClientLink(
            _read_settings(client), client.transport_options, client.connect_timeout or 4.0
        )
        self._loop: Any = None
        return super().establish_connection()

    def close_connection(self, connection: Transport) -> None:
        """Close all channels, and disconnect."""
        self._unwatch()
        super().close_connection(connection)
        self.link.close()

    def verify_connection(self, connection: Transport) -> bool:
        """Whether the connection belongs to this process and works."""
        del connection
        return self.link.is_usable

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver one message. Raises `socket.timeout` if none arrives in time."""
        del connection
        end_s = None if timeout is None else time.monotonic() + timeout
        while True:
            self.link.signal.clear()
            if self._deliver_next():
                return
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            if not self.link.signal.wait(left_s):
                raise TimeoutError

    def _deliver_next(self) -> bool:
        """Deliver one message of any channel, and let the next one find the signal set."""
        if self.link.failure is not None:
            raise ConnectionLost(f"a consumer has ended: {self.link.failure}")
        channels = list(self.channels)
        for channel in channels:
            if channel.deliver_next():
                # The next call begins with another channel.
                if channel in self.channels:
                    self.channels.remove(channel)
                    self.channels.append(channel)
                self.link.signal.set()
                return True
        return False

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        """Let an event loop of Kombu deliver messages when there are some."""
        self._loop = loop
        loop.add_reader(self.link.signal.descriptor, self._on_readable, connection)

    def unregister_from_event_loop(self, connection: Transport, loop: Any) -> None:
        """End `register_with_event_loop`."""
        del connection, loop
        self._unwatch()

    def _unwatch(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove(self.link.signal.descriptor)

    def _on_readable(self, connection: Transport) -> None:
        """Deliver what waits now. New messages wake the loop again."""
        del connection
        self.link.signal.clear()
        while self._loop is not None and self._deliver_next():
            self.link.signal.clear()


def _read_settings(client: Any) -> Settings:
    """Return the settings of a Kombu connection: its URL, Kafka's client properties in the
    transport option `client_properties`, and otherwise the environment, as for `shoal`."""
    host = client.hostname or "localhost"
    address = f"[{host}]" if ":" in host else host
    bootstrap = [f"{address}:{client.port or DEFAULT_PORT}"]
    if more := client.transport_options.get("bootstrap_servers"):
        bootstrap.append(more)
    properties: Mapping[str, str] = client.transport_options.get("client_properties") or {}
    if client.userid:
        properties = {
            "security.protocol": "SASL_SSL" if client.ssl else "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": client.userid,
            "sasl.password": client.password or "",
            **properties,
        }
    variables = {get_variable_name(name): str(value) for name, value in properties.items()}
    return Settings.from_environment(
        {**os.environ, "SHOAL_BOOTSTRAP_SERVERS": ",".join(bootstrap), **variables}
    )
