"""The parts of `SyncClient`: a producer, a transactional producer and a share consumer that block.

Each call runs on the client's event loop, in its thread, and returns the result. Several threads
may use one object; sends of several threads share batches. `timeout_s` is in seconds, and None
waits as long as the client's own timeouts last. A `TimeoutError` cancels the call, but what was
sent may take effect.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from shoal.client.produce.producer import Producer, RecordMetadata
    from shoal.client.produce.transactional import TransactionalProducer
    from shoal.client.share.acquired import RejectedAcknowledgement, SharedRecord
    from shoal.client.share.consumer import ShareConsumer
    from shoal.protocol.reasons import FailureReason

T = TypeVar("T")


class Runner(Protocol):
    """What runs calls on an event loop: `SyncClient`."""

    def run(self, call: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T: ...


class SyncProducer:
    """A `Producer` whose `send` returns where the record is stored. Created by
    `SyncClient.producer`."""

    def __init__(self, runner: Runner, producer: Producer) -> None:
        self._runner = runner
        self._producer = producer

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> RecordMetadata:
        """Store one record, and return where. Raises as `Producer.send` and its future do, and
        `TimeoutError`: the record may be stored then."""

        async def send() -> RecordMetadata:
            future = await self._producer.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
            return await future

        return self._runner.run(send(), timeout_s)

    def send_many(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        key: bytes | None = None,
        timeout_s: float | None = None,
    ) -> list[RecordMetadata]:
        """Store records in batches, and return where, in the order of the values. Raises the first
        error once all have been tried; some may be stored."""

        async def send() -> list[RecordMetadata]:
            futures = [await self._producer.send(topic, value, key=key) for value in values]
            results = await asyncio.gather(*futures, return_exceptions=True)
            stored = []
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                stored.append(result)
            return stored

        return self._runner.run(send(), timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait until the records of other threads are stored, or have failed."""
        self._runner.run(self._producer.close(), timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncTransactionalProducer:
    """A `TransactionalProducer` for one thread. Created by `SyncClient.transactional_producer`."""

    def __init__(self, runner: Runner, producer: TransactionalProducer) -> None:
        self._runner = runner
        self._producer = producer

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begin a transaction. Commit it at the end of the block, or abort it if an error leaves
        the block. Raises `TransactionError`, such as `TransactionAbortable`: repeat the block."""
        transaction = self._producer.transaction()
        self._runner.run(transaction.__aenter__())
        try:
            yield self
        except BaseException as error:
            self._runner.run(transaction.__aexit__(type(error), error, error.__traceback__))
            raise
        self._runner.run(transaction.__aexit__(None, None, None))

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Add a record to the transaction, whose commit waits for it. Raises `TransactionError`."""
        self._runner.run(
            self._producer.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            ),
            timeout_s,
        )

    def close(self, timeout_s: float | None = None) -> None:
        """Abort an open transaction."""
        self._runner.run(self._producer.close(), timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncShareConsumer:
    """A `ShareConsumer` that blocks. Created by `SyncClient.share_consumer`.

    Heartbeats continue in the client's thread, so a long job costs no membership; its lock ends
    unless you `renew` it. While one thread polls, others may settle records, but what they send
    waits for the poll.
    """

    def __init__(self, runner: Runner, consumer: ShareConsumer) -> None:
        self._runner = runner
        self._consumer = consumer

    @property
    def lock_timeout_ms(self) -> int:
        """See `ShareConsumer.lock_timeout_ms`."""
        return self._consumer.lock_timeout_ms

    def poll(
        self, max_records: int = 500, max_wait_ms: int = 500, *, timeout_s: float | None = None
    ) -> list[SharedRecord]:
        """Return newly locked records; see `ShareConsumer.poll`."""
        return self._runner.run(self._consumer.poll(max_records, max_wait_ms), timeout_s)

    def accept(self, *records: SharedRecord) -> None:
        """Note that these records are done; see `ShareConsumer.accept`."""
        self._runner.run(_call(lambda: self._consumer.accept(*records)))

    def release(
        self, *records: SharedRecord, delay_ms: int = -1, reason: FailureReason | None = None
    ) -> None:
        """Note that these records are to be delivered again; see `ShareConsumer.release`."""
        self._runner.run(
            _call(lambda: self._consumer.release(*records, delay_ms=delay_ms, reason=reason))
        )

    def reject(self, *records: SharedRecord, reason: FailureReason | None = None) -> None:
        """Note that these records can never succeed; see `ShareConsumer.reject`."""
        self._runner.run(_call(lambda: self._consumer.reject(*records, reason=reason)))

    def renew(
        self, *records: SharedRecord, timeout_s: float | None = None
    ) -> tuple[RejectedAcknowledgement, ...]:
        """Start the locks of these records again; see `ShareConsumer.renew`."""
        return self._runner.run(self._consumer.renew(*records), timeout_s)

    def commit(self, timeout_s: float | None = None) -> tuple[RejectedAcknowledgement, ...]:
        """Send the noted outcomes; see `ShareConsumer.commit`."""
        return self._runner.run(self._consumer.commit(), timeout_s)

    def close(self, *, undelivered: bool = False, timeout_s: float | None = None) -> None:
        """Send the noted outcomes and leave the group; see `ShareConsumer.close`."""
        self._runner.run(self._consumer.close(undelivered=undelivered), timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _call(call: Callable[[], None]) -> None:
    """Make a call on the event loop, where nothing else runs meanwhile."""
    call()
