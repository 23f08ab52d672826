"""A transport's connection to the cluster: a client in a thread, which publishes and consumes.

Kombu's callers are threads that block, and Celery's workers fork. So the client has an event loop
in a thread of its own, which fetches, renews locks and heartbeats while tasks run. A process that
was forked has no such thread: there, calls raise `ConnectionLost`, and Kombu connects again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from kombu.exceptions import ChannelError

from shoal.client.client import SyncClient
from shoal.client.errors import ConnectionLost, KafkaError
from shoal.client.queues import reserved_groups
from shoal.kombu import names
from shoal.kombu.bindings import Binding, Bindings
from shoal.kombu.members import Member
from shoal.kombu.messages import encode
from shoal.kombu.queues import COMPACTED, LOG_CONFIGS, Queues
from shoal.kombu.temporary import ROUTING_KEY, TemporaryQueue, TemporaryReader
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from shoal.client.settings import Settings
    from shoal.kombu.intake import ChannelDelivery, Intake

T = TypeVar("T")
log = logging.getLogger("shoal.kombu")

#: Milliseconds after which a message that no broker stores raises an error.
DELIVERY_TIMEOUT_MS = 30_000
#: Seconds that the end of a connection may take.
CLOSE_S = 10.0
#: Exchange types whose messages temporary queues get without a binding that others can see.
_LOGGED = ("fanout", "topic")
#: The temporary queues of this process, by cluster.
_temporary: dict[str, dict[str, TemporaryQueue]] = {}
#: Links whose thread runs. A forked process keeps those of its parent, so that nothing closes the
#: connections, which both have.
_open: set[ClientLink] = set()


class Signal:
    """Wakes the thread that waits for messages, or the event loop that has its descriptor."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)

    def set(self) -> None:
        """Wake the thread. Any thread may call this."""
        if not self._event.is_set():
            self._event.set()
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Call this before looking for messages."""
        try:
            os.read(self.descriptor, 64)
        except BlockingIOError:
            pass
        self._event.clear()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for `set`. Return False if the time is over."""
        return self._event.wait(timeout_s)

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._write)


class ClientLink:
    """One client. The methods that are not coroutines belong to the caller's thread."""

    def __init__(self, settings: Settings, options: Mapping[str, Any], timeout_s: float) -> None:
        """Connect. Raises `ClientError` or `TimeoutError` if no broker answers in time."""
        self.signal = Signal()
        self.failure: BaseException | None = None
        self._pid = os.getpid()
        self._prefix = str(options.get("queue_name_prefix", ""))
        self._sync = SyncClient(settings)
        self._client = self._sync.client
        self._readers: dict[Intake, dict[str, Member | TemporaryReader]] = {}
        _open.add(self)
        address = ",".join(f"{host}:{port}" for host, port in settings.bootstrap)
        self._temporary = _temporary.setdefault(f"{address}/{self._prefix}", {})
        try:
            self.run(self._connect(options), timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def is_usable(self) -> bool:
        """Whether this process may use the link: it has its thread, and no member was lost."""
        return self._pid == os.getpid() and self in _open and self.failure is None

    def run(self, call: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a call on the event loop and return its result."""
        if self._pid != os.getpid() or self not in _open:
            call.close()
            raise ConnectionLost("this process has not connected itself, or the link is closed")
        return self._sync.run(call, timeout_s)

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Let the event loop call a function, without waiting for it."""
        if self._pid == os.getpid() and self in _open:
            self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Close all readers, which return what they hold, and end the thread."""
        if self._pid != os.getpid() or self not in _open:
            return
        try:
            self.run(self._close(), CLOSE_S)
        except TimeoutError:
            log.warning("the brokers do not answer, so the locks of this connection expire")
        finally:
            _open.discard(self)
            self._sync.close()
            self.signal.close()

    async def _connect(self, options: Mapping[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._producer = self._client.producer(
            linger_ms=0,
            delivery_timeout_ms=int(options.get("delivery_timeout_ms", 0)) or DELIVERY_TIMEOUT_MS,
        )
        self._queues = Queues(
            self._client,
            partitions=int(options.get("partitions", -1)),
            group_configs=options.get("group_configs", {}),
        )
        bindings = names.make_topic_name(names.BINDINGS, self._prefix)
        self._bindings = Bindings(self._client, self._producer, bindings)
        await self._client.admin.describe_cluster()

    async def _close(self) -> None:
        for intake in list(self._readers):
            await self.close_intake(intake)
        if hasattr(self, "_producer"):
            await self._producer.close()

    def fail(self, error: BaseException) -> None:
        """Remember why a member ended, for the thread that waits for messages."""
        self.failure = error
        self.signal.set()

    # Queues and exchanges

    def is_temporary(self, queue: str) -> bool:
        """Whether this process has declared a temporary queue of this name."""
        return queue in self._temporary

    def _get_topic(self, queue: str) -> str:
        return names.make_topic_name(queue, self._prefix)

    def _get_log(self, exchange: str) -> str:
        return names.make_log_name(exchange, self._prefix)

    async def declare_exchange(self, exchange: str, kind: str) -> None:
        """Create the log of an exchange that temporary queues read."""
        if kind in _LOGGED:
            await self._queues.make_topic(self._get_log(exchange), LOG_CONFIGS)

    async def delete_exchange(self, exchange: str) -> None:
        """Delete the bindings and the log of an exchange."""
        await self._bindings.remove(exchange=exchange)
        if await self._queues.has_topic(topic := self._get_log(exchange)):
            await self._client.admin.topics.delete([topic])

    async def declare(self, queue: str, *, is_temporary: bool, has_priorities: bool) -> None:
        """Create what is missing of a queue. Raises `ChannelError` for a reserved group."""
        if is_temporary:
            if queue not in self._temporary:
                self._temporary[queue] = TemporaryQueue(queue)
                await self.bind(queue, "", "direct", queue)
            return
        group = self._get_topic(queue)
        if reserved_groups.is_reserved(group):
            refusal = f"ACCESS_REFUSED - {reserved_groups.format_refusal(group)}"
            raise ChannelError(refusal, (50, 10), "Channel.queue_declare", "403")
        await self._queues.make_topic(self._bindings.topic, COMPACTED)
        await self._queues.declare(group, has_priorities=has_priorities)
        await self._bindings.add(Binding("", queue, queue), "direct")

    async def has_queue(self, queue: str) -> bool:
        """Whether a queue exists."""
        return queue in self._temporary or await self._queues.has_topic(self._get_topic(queue))

    async def bind(self, queue: str, exchange: str, kind: str, routing_key: str) -> None:
        """Let an exchange deliver to a queue."""
        if queue in self._temporary:
            topic = self._get_log(exchange)
            await self._queues.make_topic(topic, LOG_CONFIGS)
            await self._temporary[queue].bind(self._client, topic, kind, routing_key)
        else:
            await self._queues.make_topic(self._bindings.topic, COMPACTED)
            await self._bindings.add(Binding(exchange, routing_key, queue), kind)

    async def unbind(self, queue: str, exchange: str, kind: str, routing_key: str) -> None:
        """Delete a binding."""
        if queue in self._temporary:
            self._temporary[queue].unbind(self._get_log(exchange), kind, routing_key)
        elif await self._bindings.has(binding := Binding(exchange, routing_key, queue)):
            await self._bindings.remove_all([binding])

    async def delete(self, queue: str) -> None:
        """Delete a queue with its messages and bindings."""
        if self._temporary.pop(queue, None) is None:
            await self._bindings.remove(queue=queue)
            await self._queues.delete(self._get_topic(queue))

    async def count(self, queue: str) -> int:
        """Return the number of messages in a queue that have no outcome."""
        return 0 if queue in self._temporary else await self._queues.count(self._get_topic(queue))

    async def purge(self, queue: str) -> int:
        """Delete the messages of a queue; return their number."""
        if queue in self._temporary or not await self._queues.has_topic(self._get_topic(queue)):
            return 0
        return await self._queues.purge(self._get_topic(queue))

    # Messages

    async def publish(
        self, message: dict[str, Any], exchange: str, kind: str, routing_key: str
    ) -> None:
        """Store a message in all queues that it belongs to. Without one it is dropped, as in AMQP.
        Raises the broker's refusal, or the network's error after the delivery timeout."""
        record = encode(message)
        for attempt in range(2):
            queues = await self._bindings.find_queues(exchange, kind, routing_key)
            topics = [self._get_topic(queue) for queue in queues]
            try:
                await self._send(topics, record)
                break
            except KafkaError as error:
                if error.code is not ErrorCode.unknown_topic_or_partition or attempt:
                    raise
                await self._bindings.refresh()  # Somebody has deleted a queue.
        topic = self._get_log(exchange)
        if (kind in _LOGGED or not queues) and await self._queues.has_topic(topic):
            headers = (*record["headers"], (ROUTING_KEY, routing_key.encode()))
            await self._send([topic], record | {"headers": headers})

    async def _send(self, topics: list[str], record: Mapping[str, Any]) -> None:
        stored = [await self._producer.send(topic, **record) for topic in topics]
        await asyncio.gather(*stored)

    async def _open_reader(self, intake: Intake, queue: str) -> Member | TemporaryReader:
        readers = self._readers.setdefault(intake, {})
        if (reader := readers.get(queue)) is not None:
            return reader
        if queue in self._temporary:
            temporary = self._temporary[queue]
            readers[queue] = TemporaryReader(self._client, intake, temporary, self.fail)
        else:
            group = self._get_topic(queue)
            count = lambda: sum(isinstance(r, Member) for r in readers.values())  # noqa: E731
            member = Member(self._client, intake, queue, group, count, self.fail)
            await member.open()
            readers[queue] = member
        return readers[queue]

    async def consume(self, intake: Intake, queue: str) -> None:
        """Deliver the messages of a queue to a channel."""
        (await self._open_reader(intake, queue)).start()

    async def get(self, intake: Intake, queue: str) -> ChannelDelivery | None:
        """Return one message that waits, if there is one."""
        return await (await self._open_reader(intake, queue)).get()

    async def cancel(self, intake: Intake, queue: str) -> None:
        """Deliver no more of a queue. What the program holds stays locked."""
        reader = self._readers.get(intake, {}).get(queue)
        if reader is not None and await reader.stop():
            del self._readers[intake][queue]

    async def close_intake(self, intake: Intake) -> None:
        """Return everything that a channel holds."""
        readers = self._readers.pop(intake, {})
        await asyncio.gather(*(reader.close() for reader in readers.values()))
