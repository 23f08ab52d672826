"""Clients that continue through faults of the brokers and record every response.

Each runs in a thread from `start` to `finish`. There are idempotent producers, transactional ones
that abort every third transaction, and members of a consumer group and of a share group.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.errors import KafkaError as Refused
from shoal.client.settings import Settings, parse_addresses
from shoal.client.share.member import Acknowledgement, AcknowledgeType, ShareSession
from shoal.protocol.errors import ErrorCode
from support.scenarios.histories import Acquire, Assigned, Commit, History, Poll, Send, Settle

if TYPE_CHECKING:
    from collections.abc import Sequence

#: When requests to the old coordinator fail, librdkafka also discards the one that it has just
#: found. It looks it up again on the connection of its own fetch, which delays the request. After a
#: kill this loop lasted up to 32 s, half a second a turn. Short fetches end it.
SHORT_FETCHES = {"fetch.wait.max.ms": 50}
#: Ends a hang. Faults are far shorter.
TIMEOUT_S = 120
#: The timeout of a request: a frozen broker does not close its connections.
SOCKET_TIMEOUT_MS = 6_000
#: Lines of a trace that are kept: a fault causes some ten.
TRACE_MAX = 1_000
#: Pause between two records of a producer. The night's are shorter: by day, most of the tests' time
#: on two cores would be that of the records.
PACE_S = float(os.environ.get("FAULTS_PACE_S", "0.02"))
#: Errors after which the broker has certainly not applied an acknowledgement.
_NOT_TAKEN = (
    ErrorCode.invalid_record_state,
    ErrorCode.share_session_not_found,
    ErrorCode.invalid_share_session_epoch,
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
)
_ACTIONS = {
    "accept": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
    "reject": AcknowledgeType.REJECT,
}


class Worker:
    """A thread that works until `finish`, which raises the error that ended it early."""

    def __init__(self, bootstrap: str, topic: str, history: History) -> None:
        self.bootstrap, self.topic, self.history = bootstrap, topic, history
        #: Operations so far, to see progress.
        self.done = 0
        self.stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def __str__(self) -> str:
        return type(self).__name__

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self.stopping.set()
        self._thread.join(2 * TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self} hangs"
        self.check()

    def check(self) -> None:
        if self._error is not None:
            raise AssertionError(f"{self} failed") from self._error

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error

    def run(self) -> None:
        raise TypeError("only a subclass runs")

    def client(self, **more: object) -> dict[str, Any]:
        known = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        known["socket.timeout.ms"] = SOCKET_TIMEOUT_MS
        # By default, librdkafka waits up to 10 s before it connects to a broker that had refused it
        # while it was down. Its partitions would have no new records for that long.
        known["reconnect.backoff.max.ms"] = 200
        return known | {name.replace("_", "."): value for name, value in more.items()}


class Writer(Worker):
    """An idempotent producer with acks=all."""

    def __init__(self, bootstrap: str, topic: str, history: History, name: str, partitions: int):
        super().__init__(bootstrap, topic, history)
        self._name, self._partitions = name, partitions
        self.errors: list[str] = []
        #: What librdkafka did about its epoch and its sequences, to find the cause of a duplicate.
        self.trace: deque[str] = deque(maxlen=TRACE_MAX)

    def run(self) -> None:
        settings = self.client(enable_idempotence=True, delivery_timeout_ms=TIMEOUT_S * 1000)
        traced = {"linger.ms": 1, "debug": "eos", "log_level": 7}
        producer = Producer(settings | traced, logger=traced_to(self.trace))
        for n in itertools.count():
            if self.stopping.is_set():
                break
            send = Send(self._name, n % self._partitions, b"%s-%d" % (self._name.encode(), n))
            self.history.sends.append(send)
            producer.produce(
                self.topic, send.value, partition=send.partition, on_delivery=self._report_to(send)
            )
            producer.poll(0)
            self.stopping.wait(PACE_S)
        assert producer.flush(TIMEOUT_S) == 0

    def _report_to(self, send: Send) -> Any:
        def report(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.errors.append(f"{send.value!r}: {error}")
            else:
                send.offset = message.offset()
                self.done += 1

        return report


class _Lines(logging.Handler):
    """Adds each message with its time to `lines`."""

    def __init__(self, lines: deque[str]) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


def traced_to(lines: deque[str]) -> logging.Logger:
    """Return a logger that writes to `lines` alone."""
    logger = logging.Logger("librdkafka", logging.DEBUG)
    logger.addHandler(_Lines(lines))
    return logger


class TransactionalWriter(Worker):
    """Transactions of a few records over all partitions; every third is aborted."""

    RECORDS = 6

    def __init__(self, bootstrap: str, topic: str, history: History, name: str, partitions: int):
        super().__init__(bootstrap, topic, history)
        self._name, self._partitions = name, partitions
        self._sent = itertools.count()
        self.lives = 0

    def run(self) -> None:
        producer = self._producer()
        for number in itertools.count():
            if self.stopping.is_set():
                return
            producer.begin_transaction()
            whole = self._write(producer, number) and number % 3 != 2
            result = self._end(producer.commit_transaction if whole else producer.abort_transaction)
            if result == "abort":
                whole, result = False, self._end(producer.abort_transaction)
            if result == "done":
                ended = self.history.committed if whole else self.history.aborted
                ended.add((self._name, number))
                self.done += 1
            else:  # a new producer ends the open transaction
                producer = self._producer()

    def _producer(self) -> Producer:
        self.lives += 1
        while True:
            producer = Producer(self.client(transactional_id=self._name, linger_ms=1))
            if self._end(producer.init_transactions) == "done":
                return producer

    def _write(self, producer: Producer, number: int) -> bool:
        try:
            for _ in range(self.RECORDS):
                n = next(self._sent)
                value = b"%s-%d" % (self._name.encode(), n)
                send = Send(self._name, n % self._partitions, value, transaction=number)
                self.history.sends.append(send)
                producer.produce(
                    self.topic, value, partition=send.partition, on_delivery=_note(send)
                )
                producer.poll(PACE_S)
            return producer.flush(TIMEOUT_S) == 0
        except KafkaException:
            return False

    def _end(self, call: Any) -> str:
        """Return the result of a step of a transaction: done, abort it, or the producer is lost."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                call(20)
                return "done"
            except KafkaException as caught:
                error = caught.args[0]
                if error.txn_requires_abort():
                    return "abort"
                if not error.retriable() or time.monotonic() > deadline:
                    return "lost"


def _note(send: Send) -> Any:
    def report(error: KafkaError | None, message: Any) -> None:
        if error is None:
            send.offset = message.offset()

    return report


class GroupMember(Worker):
    """A read_committed member of a consumer group that commits the records it has got."""

    GROUP = "readers"

    def __init__(self, bootstrap: str, topic: str, history: History, name: str) -> None:
        super().__init__(bootstrap, topic, history)
        self._name, self._generation = name, 0

    def run(self) -> None:
        consumer = Consumer(
            self.client(
                group_id=self.GROUP,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
                session_timeout_ms=10_000,
            )
            | SHORT_FETCHES
        )
        consumer.subscribe([self.topic], on_assign=self._assigned)
        try:
            while not self.stopping.is_set():
                self._read(consumer)
        finally:
            consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._generation += 1
        asked = time.monotonic()
        with contextlib.suppress(KafkaException):
            for one in consumer.committed(partitions, 20):
                if one.error is None:
                    offset = max(0, one.offset)
                    self.history.assigned.append(Assigned(one.partition, offset, asked))

    def _read(self, consumer: Consumer) -> None:
        """Read some records, one at a time so that assignments fall between them, and commit."""
        reached: dict[int, int] = {}
        for _ in range(50):
            message = consumer.poll(0.05)
            if message is None or message.error() is not None:
                break
            partition, offset = message.partition(), message.offset()
            self.history.polls.append(
                Poll(self._name, self._generation, partition, offset, message.value())
            )
            reached[partition] = offset + 1
        if not reached:
            return
        offsets = [TopicPartition(self.topic, p, o) for p, o in reached.items()]
        with contextlib.suppress(KafkaException):
            for one in consumer.commit(offsets=offsets, asynchronous=False):
                if one.error is None:
                    commit = Commit(one.partition, one.offset, time.monotonic())
                    self.history.commits.append(commit)
                    # The poll's result does not count: the client has buffered some records.
                    self.done += 1


class ShareMember(Worker):
    """A member of a share group: most records are accepted, some rejected, some released once."""

    GROUP = "sharers"

    def __init__(self, bootstrap: str, topic: str, history: History, name: str) -> None:
        super().__init__(bootstrap, topic, history)
        self._name = name

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        settings = Settings(parse_addresses(self.bootstrap), request_timeout_ms=SOCKET_TIMEOUT_MS)
        async with Client(settings) as client:
            while not self.stopping.is_set():
                with contextlib.suppress(ClientError):
                    async with await client.share(self.GROUP, [self.topic]) as session:
                        late: dict[int, float] = {}
                        while not self.stopping.is_set():
                            late = await self._work(session, late)

    async def _work(self, session: ShareSession, late: dict[int, float]) -> dict[int, float]:
        """Acquire and settle once. `late` has the starts of earlier calls, by leader that had not
        answered them: its records, and locks, may be of that time. Return them for the next call.
        """
        sent = time.monotonic()
        # It waits for each leader, also for those without records. With 100 records every 300 ms,
        # what one leader had gathered in a stall of 20 s took the members more than `HANG_S`.
        found = await session.acquire(max_records=500, max_wait_ms=100)
        answered, lock_s = time.monotonic(), found.lock_timeout_ms / 1000
        settles: dict[tuple[int, int], Settle] = {}
        for record, leader in ((r, one.leader_id) for one in found for r in one.records()):
            place = (record.partition, record.offset)
            self.history.acquires.append(
                Acquire(
                    self._name,
                    *place,
                    record.value or b"",
                    record.delivery_count,
                    late.get(leader, sent),
                    answered,
                    lock_s,
                    leader,
                )
            )
            settles[place] = Settle(
                self._name, *place, _action(record.offset, record.delivery_count), 0.0, 0.0, None
            )
        late = {id: late.get(id, sent) for id in session.late}
        gaps = [a for one in found for a in one.acknowledge(AcknowledgeType.GAP)]
        await self._settle(session, settles, _without(gaps, settles))
        return late

    async def _settle(
        self,
        session: ShareSession,
        settles: dict[tuple[int, int], Settle],
        gaps: Sequence[Acknowledgement],
    ) -> None:
        sent = time.monotonic()
        acks = [
            Acknowledgement(self.topic, s.partition, s.offset, s.offset, _ACTIONS[s.type])
            for s in settles.values()
        ]
        for one in settles.values():
            one.sent, one.ok = sent, None
        try:
            refusals = await session.acknowledge([*acks, *gaps])
        finally:
            self.history.settles += settles.values()
        now = time.monotonic()
        refused = {
            (r.acknowledgement.partition, r.acknowledgement.first_offset): r.error for r in refusals
        }
        for place, one in settles.items():
            error = refused.get(place)
            one.answered = now
            if error is None:
                one.ok = True
                self.done += 1
            elif isinstance(error, Refused) and error.code in _NOT_TAKEN:
                one.ok = False


def _action(offset: int, delivery_count: int) -> str:
    if offset % 10 == 3 and delivery_count == 1:
        return "release"
    return "reject" if offset % 10 == 7 else "accept"


def _without(
    ranges: Sequence[Acknowledgement], records: dict[tuple[int, int], Settle]
) -> list[Acknowledgement]:
    """Return acknowledgements of the offsets in `ranges` that hold no record, one for each."""
    return [
        one._replace(first_offset=offset, last_offset=offset)
        for one in ranges
        for offset in range(one.first_offset, one.last_offset + 1)
        if (one.partition, offset) not in records
    ]
