"""Key workers on a member of which the test decides everything: records, ends, and rebalances.

The rules deliver records, let handlers end or fail in any order, revoke and lose partitions, and
stop or cancel the workers. Time is virtual.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shoal.client.consume.consumer import Record
from shoal.client.consume.key_workers import HandlerError, KeyWorkers, WorkerConsumer
from shoal.client.consume.range_positions import WHOLE
from shoal.client.errors import ClientError, KafkaError
from shoal.client.net.batches import CorruptRecords
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.errors import ErrorCode
from shoal.record.key_hash import hash_record
from shoal.record.key_ranges import KeyRanges
from support.runs.example_counts import scale_examples
from support.runs.virtual_time import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from shoal.client.consume.rebalance_listener import RebalanceListener

PARTITIONS = 2
KEYS = (b"a", b"b", b"c", None)
DRAIN_MS = 5_000
Where = tuple[int, int]


def record(partition: int, offset: int, key: bytes | None, value: bytes = b"v") -> Record:
    return Record("t", partition, offset, 0, key, value, ())


class FakeMember:
    """A group member with a log in memory, as `KeyWorkers` sees it."""

    commits_individually = True

    def __init__(self) -> None:
        self.listeners: list[RebalanceListener] = []
        self.logs: dict[int, list[Record]] = defaultdict(list)
        self.owned = set(range(PARTITIONS))
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.done: set[Where] = set()
        self.committed: set[Where] = set()
        #: What the coordinator decided, and the next poll carries out: partition, and if it is
        #: lost instead of revoked.
        self.decided: list[tuple[int, bool]] = []
        self.given_up: list[int] = []
        self.error: ClientError | None = None
        self.polled_max = 4
        self._news = asyncio.Event()

    def wake(self) -> None:
        self._news.set()

    def restart(self) -> None:
        """Another member continues: it gets what is not committed."""
        self.done &= self.committed
        self.owned = set(range(PARTITIONS))
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.decided.clear()

    def assign(self, partition: int) -> None:
        self.owned.add(partition)
        self.positions[partition] = 0
        self.wake()

    async def poll(self, max_wait_ms: int = 0) -> Iterator[Record]:
        await self.tend()
        found = self._take()
        if not found and not self.decided:
            self._news.clear()
            try:
                async with asyncio.timeout(max_wait_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                pass
            found = self._take()
        return iter(found)

    def _take(self) -> list[Record]:
        found: list[Record] = []
        for partition in sorted(self.owned):
            at = self.positions[partition]
            for one in self.logs[partition][at : at + self.polled_max]:
                self.positions[partition] += 1
                if (partition, one.offset) not in self.done:
                    found.append(one)
        return found

    async def tend(self) -> None:
        if self.error is not None:
            raise self.error
        while self.decided:
            partition, lost = self.decided.pop(0)
            if partition not in self.owned:
                continue
            ranges = {TopicPartition("t", partition): KeyRanges(WHOLE)}
            if lost:
                self.owned.remove(partition)
                self.done = {w for w in self.done if w[0] != partition or w in self.committed}
            for listener in self.listeners:
                await (listener.on_lost if lost else listener.on_revoked)(ranges)
            if not lost:
                await self.commit()
                self.owned.remove(partition)
            self.given_up.append(partition)

    def finish(self, record: Record) -> None:
        where = (record.partition, record.offset)
        if record.partition in self.owned:
            assert where not in self.done
            self.done.add(where)

    async def commit(self) -> None:
        self.committed |= self.done


class Workers(RuleBasedStateMachine):
    @initialize(keys_max=st.integers(1, 4), records_max=st.integers(1, 8))
    def begin(self, keys_max: int, records_max: int) -> None:
        self.limits = (keys_max, records_max)
        self.loop = VirtualLoop()
        self.member = FakeMember()
        self.problems: list[str] = []
        self._start()

    def _start(self) -> None:
        self.running: dict[Where, asyncio.Future[None]] = {}
        self.over = False
        self.failed: Where | None = None
        keys_max, records_max = self.limits
        self.workers = KeyWorkers(
            self.member,
            self._handler,
            keys_max=keys_max,
            records_max=records_max,
            drain_ms=DRAIN_MS,
        )
        self.task = self.loop.create_task(self.workers.run())
        self.loop.advance(1)

    async def _handler(self, one: Record) -> None:
        where = (one.partition, one.offset)
        self._check_start(one)
        self.running[where] = self.loop.create_future()
        try:
            await self.running[where]
        finally:
            del self.running[where]

    def _check_start(self, one: Record) -> None:
        member = self.member
        where = (one.partition, one.offset)
        if self.over:
            self.problems.append(f"{where} started after the end")
        if one.partition not in member.owned or where in member.done or where in self.running:
            self.problems.append(f"{where} was given up, finished or running")
        earlier = member.logs[one.partition][: one.offset]
        if one.key is not None and any(
            (e.partition, e.offset) not in member.done for e in earlier if e.key == one.key
        ):
            self.problems.append(f"{where} started before an earlier one of {one.key!r}")
        if len(self.running) >= self.limits[0]:
            self.problems.append(f"{where} is one too many")

    @property
    def alive(self) -> bool:
        return not self.task.done()

    @rule(
        partition=st.integers(0, PARTITIONS - 1), keys=st.lists(st.sampled_from(KEYS), max_size=9)
    )
    def deliver(self, partition: int, keys: list[bytes | None]) -> None:
        log = self.member.logs[partition]
        for key in keys:
            log.append(record(partition, len(log), key))
        self.member.wake()
        self.loop.advance(1)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 5))
    def end(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.running))):
            where = data.draw(st.sampled_from(sorted(self.running)))
            self.running[where].set_result(None)
            self.loop.advance(1)
            if not self.running:
                break
        if not self.alive:
            self._ended_with_the_failure()

    @precondition(lambda self: self.running and self.alive)
    @rule(data=st.data(), cancelled=st.booleans())
    def fail(self, data: st.DataObject, cancelled: bool) -> None:
        where = data.draw(st.sampled_from(sorted(self.running)))
        if self.failed is None:
            self.failed = where
        if cancelled:
            self.running[where].cancel()
        else:
            self.running[where].set_exception(RuntimeError("no luck"))
        self.over = True
        self.loop.advance(1)
        if not self.alive:
            self._ended_with_the_failure()

    def _ended_with_the_failure(self) -> None:
        error = self.task.exception()
        assert isinstance(error, HandlerError)
        assert (error.record.partition, error.record.offset) == self.failed
        self._ended()

    @precondition(lambda self: self.alive and not self.over)
    @rule(partition=st.integers(0, PARTITIONS - 1), lost=st.booleans(), patient=st.booleans())
    def give_up(self, partition: int, lost: bool, patient: bool) -> None:
        """After `drain_ms` the handlers are cancelled."""
        before = len(self.member.given_up)
        held = [w for w in self.running if w[0] == partition]
        self.member.decided.append((partition, lost))
        self.member.wake()
        self.loop.advance(1)
        if held and not lost:
            assert len(self.member.given_up) == before
            assert all(where in self.running for where in held)
            if patient:
                for where in held:
                    self.running[where].set_result(None)
                self.loop.advance(1)
                assert self.member.done.issuperset(held)
            else:
                self.loop.advance(DRAIN_MS / 1000)
        assert partition not in self.member.owned
        assert not any(where[0] == partition for where in self.running)

    @precondition(lambda self: self.alive)
    @rule(partition=st.integers(0, PARTITIONS - 1))
    def assign(self, partition: int) -> None:
        if partition not in self.member.owned:
            self.member.assign(partition)
            self.loop.advance(1)

    @precondition(lambda self: self.alive and not self.over)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        """The running handlers end; nothing else starts."""
        self.over = True
        self.workers.stop()
        self.loop.advance(1)
        while self.running:
            where = data.draw(st.sampled_from(sorted(self.running)))
            self.running[where].set_result(None)
            self.loop.advance(1)
        assert self.task.result() is None
        self._ended()

    @precondition(lambda self: self.alive)
    @rule()
    def cancel(self) -> None:
        self.over = True
        self.task.cancel()
        self.loop.advance(1)
        assert self.task.cancelled()
        self.loop.run_until_complete(self.member.commit())  # As `GroupConsumer.close` does.
        self._ended()

    @precondition(lambda self: self.alive and not self.over)
    @rule()
    def fail_the_poll(self) -> None:
        """The member cannot continue; what is running ends and is committed as far as possible."""
        self.over = True
        self.member.error = KafkaError(ErrorCode.group_authorization_failed, "group 'g'")
        self.member.wake()
        self.loop.advance(1)
        for where in list(self.running):
            self.running[where].set_result(None)
        self.loop.advance(1)
        assert self.task.exception() is self.member.error
        self.member.error = None
        self._ended()

    def _ended(self) -> None:
        """All that was finished is committed, nothing runs, and another member continues."""
        assert not self.running
        assert self.workers.in_flight == 0
        assert not self.member.listeners
        assert self.member.committed >= self.member.done
        self.member.restart()
        self._start()

    @invariant()
    def no_problem(self) -> None:
        if hasattr(self, "problems"):
            assert not self.problems
            assert self.workers.in_flight <= self.limits[1]

    def teardown(self) -> None:
        """No record is lost: in the end all are finished."""
        if not hasattr(self, "loop"):
            return
        if self.over:  # A handler has failed, and others still run.
            for where in list(self.running):
                self.running[where].set_result(None)
            self.loop.advance(1)
            self._ended_with_the_failure()
        for partition in range(PARTITIONS):
            self.assign(partition)
        for _ in range(1000):
            for where in list(self.running):
                self.running[where].set_result(None)
            self.loop.advance(1)
            if not self.running:
                break
        everything = {(p, one.offset) for p, log in self.member.logs.items() for one in log}
        assert self.member.done == everything
        self.workers.stop()
        self.loop.advance(1)
        assert self.task.result() is None
        assert self.member.committed == everything
        self.no_problem()
        self.loop.close()


Workers.TestCase.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=25, deadline=None
)
TestWorkers = Workers.TestCase


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def test_the_fake_is_a_member() -> None:
    async def main() -> WorkerConsumer:
        return FakeMember()

    assert not asyncio.run(main()).listeners


def held(
    loop: VirtualLoop,
) -> tuple[dict[int, asyncio.Future[None]], Callable[[Record], Awaitable[None]]]:
    """Return a handler that waits, and the futures by offset that let it continue."""
    running: dict[int, asyncio.Future[None]] = {}

    async def handler(one: Record) -> None:
        running[one.offset] = loop.create_future()
        await running[one.offset]
        del running[one.offset]

    return running, handler


def test_bytes_are_bounded(loop: VirtualLoop) -> None:
    """Records wait in the poll while those in flight have `bytes_max`; a larger one runs alone."""
    member = FakeMember()
    for offset, size in enumerate((300, 300, 300, 5_000, 10)):
        member.logs[0].append(record(0, offset, None, b"v" * size))
    member.polled_max = 10
    running, handler = held(loop)
    workers = KeyWorkers(member, handler, bytes_max=1_000)
    task = loop.create_task(workers.run())
    expected: list[list[int]] = [[0, 1], [1, 2], [2], [3], [4]]
    for offsets in expected:
        loop.advance(1)
        assert sorted(running) == offsets
        assert workers.in_flight == len(offsets)
        running[offsets[0]].set_result(None)
    loop.advance(1)
    workers.stop()
    loop.run_until_complete(task)
    assert member.committed == {(0, offset) for offset in range(5)}


def test_each_failure_is_named(loop: VirtualLoop) -> None:
    """A second failure while the first one waits for running handlers is a note of the first."""
    member = FakeMember()
    member.logs[0] = [record(0, 0, b"a"), record(0, 1, b"b"), record(0, 2, None)]
    go = [loop.create_future() for _ in member.logs[0]]

    async def handler(one: Record) -> None:
        await go[one.offset]
        raise RuntimeError(f"no luck with {one.offset}")

    task = loop.create_task(KeyWorkers(member, handler).run())
    loop.advance(1)
    go[0].set_result(None)
    loop.advance(1)
    assert not task.done()
    for other in go[1:]:
        other.set_result(None)
    with pytest.raises(HandlerError) as caught:
        loop.run_until_complete(task)
    assert str(caught.value).startswith(
        "the handler failed on the record at offset 0 of t-0 with key b'a': "
        "RuntimeError('no luck with 0'). "
    )
    assert isinstance(caught.value.__cause__, RuntimeError)
    notes = sorted(caught.value.__notes__)
    assert "offset 1 of t-0 with key b'b'" in notes[0]
    assert "offset 2 of t-0 without a key" in notes[1]
    assert not member.committed


def test_a_corrupt_batch_ends_the_work(loop: VirtualLoop) -> None:
    """The handlers that run end, and are committed."""

    class Corrupt(FakeMember):
        async def poll(self, max_wait_ms: int = 0) -> Iterator[Record]:
            def records() -> Iterator[Record]:
                yield record(0, 0, b"a")
                yield record(0, 1, b"b")
                raise CorruptRecords("the batch at offset 2 has a wrong CRC")

            return records()

    async def handler(_: Record) -> None:
        over = loop.create_future()
        loop.call_later(1, over.set_result, None)
        await over

    member = Corrupt()
    with pytest.raises(CorruptRecords):
        loop.run_until_complete(KeyWorkers(member, handler, records_max=1).run())
    assert member.committed == {(0, 0)}


def test_a_handler_that_survives_its_cancellation(loop: VirtualLoop) -> None:
    """It ends its record. Its worker is replaced, and does not take another record."""
    member = FakeMember()
    member.logs[0] = [record(0, 0, b"a")]
    member.logs[1] = [record(1, offset, b"a") for offset in range(3)]
    got: list[Where] = []

    async def handler(one: Record) -> None:
        got.append((one.partition, one.offset))
        if one.partition == 0:
            try:
                await loop.create_future()
            except asyncio.CancelledError:
                pass

    workers = KeyWorkers(member, handler, keys_max=1, records_max=3)
    task = loop.create_task(workers.run())
    loop.advance(1)
    member.decided.append((0, True))
    member.wake()
    loop.advance(1)
    assert got == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert member.done == {(1, 0), (1, 1), (1, 2)}
    workers.stop()
    loop.run_until_complete(task)


def test_a_key_range_is_given_up(loop: VirtualLoop) -> None:
    """Records of its keys that wait are dropped, and what runs ends. Other keys continue."""
    member = FakeMember()
    keys = [b"a", b"b", None, b"a", b"b", None]
    member.logs[0] = [record(0, offset, key) for offset, key in enumerate(keys)]
    member.polled_max = 10
    running, handler = held(loop)
    workers = KeyWorkers(member, handler, keys_max=4)
    task = loop.create_task(workers.run())
    loop.advance(1)
    assert sorted(running) == [0, 1, 2, 5]
    hashes = [hash_record(b"a", 0), hash_record(None, 5)]
    ranges = {TopicPartition("t", 0): KeyRanges((one, one) for one in hashes)}
    revoking = loop.create_task(workers.on_revoked(ranges))
    loop.advance(1)
    for offset in (1, 2, 0):
        running[offset].set_result(None)
        loop.advance(1)
        assert not revoking.done()
    assert sorted(running) == [4, 5]
    running[5].set_result(None)
    loop.run_until_complete(revoking)
    assert (sorted(running), workers.in_flight) == ([4], 1)
    running[4].set_result(None)
    loop.advance(1)
    assert not running
    workers.stop()
    loop.run_until_complete(task)
    assert member.committed == {(0, offset) for offset in (0, 1, 2, 4, 5)}


@pytest.mark.parametrize("name", ["keys_max", "records_max", "bytes_max"])
def test_limits_are_checked(name: str) -> None:
    async def handler(one: Record) -> None: ...

    with pytest.raises(ValueError, match=f"{name} is 0; it is at least 1"):
        KeyWorkers(FakeMember(), handler, **{name: 0})


def test_workers_run_once(loop: VirtualLoop) -> None:
    async def handler(one: Record) -> None: ...

    workers = KeyWorkers(FakeMember(), handler)
    workers.stop()
    loop.run_until_complete(workers.run())
    with pytest.raises(ValueError, match="run these workers once"):
        loop.run_until_complete(workers.run())
