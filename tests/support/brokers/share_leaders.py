"""Leaders of share partitions whose log, clock and share coordinator the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.coordinator.share.batches import AbortedTransaction
from shoal.coordinator.share.failure_reasons import ReasonBudget
from shoal.coordinator.share.tenant_limits import TenantLedger
from shoal.protocol.errors import ErrorCode
from shoal.server.metrics.share_meters import GroupedMean, ShareTopicMeter
from support.storage.log_material import NOW_MS

if TYPE_CHECKING:
    from shoal.coordinator.share.delivery_failure import DeadLetterRange
    from shoal.coordinator.share.records import ShareKey
    from shoal.coordinator.share.selection import Selection
    from shoal.coordinator.share.settings import ShareSettings
    from shoal.coordinator.share.share_partition import SharePartition
    from shoal.log.search import TimestampOffset
    from shoal.replication.partition import Partition
    from shoal.server.share.state_write import StateWrite

#: Returns about this many bytes of the log from an offset on, and the offset after them.
Read = Callable[[int, int, int], tuple[bytes | memoryview, int]]


class LogLeader:
    """Satisfies `selection_fetch.SelectiveLeader`. Its window is never full."""

    def __init__(
        self,
        share: SharePartition,
        read: Read,
        end: Callable[[], int],
        *,
        record_size: float,
        aborted_producer: int | None = None,
        wake_soon: Callable[[], None] = lambda: None,
    ) -> None:
        """All transactions of `aborted_producer` were aborted. `end` returns the log's end."""
        self.share = share
        self.selection: Selection | None = None
        self.record_size = record_size
        self.read = read
        self.wake_soon = wake_soon
        #: The work that waits for the worker thread, for a test to run.
        self.aside: list[Callable[[], None]] = []
        self.read_aside = self.aside.append
        self._ledger = TenantLedger()
        self._end = end
        self._aborted_producer = aborted_producer

    def get_limit(self, settings: ShareSettings) -> int:
        return self._end()

    def get_tenant_ledger(self, settings: ShareSettings) -> TenantLedger:
        self._ledger.configure(settings.tenants, 1, 1, NOW_MS)
        return self._ledger

    def is_full(self, settings: ShareSettings) -> bool:
        return False

    def list_aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        if self._aborted_producer is None:
            return []
        return [AbortedTransaction(self._aborted_producer, 0, self._end())]


class NoTimer:
    """A timer that never fires; the test makes the call instead."""

    def cancel(self) -> None:
        """Nothing is due."""


class NoDeadLetters:
    """Satisfies `DeadLetterQueue`, and keeps the ranges it receives."""

    failure = None

    def __init__(self) -> None:
        self.ranges: list[DeadLetterRange] = []

    @property
    def pending(self) -> bool:
        return bool(self.ranges)

    def add(self, ranges: Sequence[DeadLetterRange]) -> None:
        self.ranges += ranges

    def load(self) -> None:
        """A new share partition has none."""

    def stop(self) -> None:
        self.ranges.clear()


class FakePorts:
    """Satisfies `LeaderPorts`: a clock that the test sets, and state writes that it answers.

    Each share partition has a state that begins at offset 0.
    """

    draining = False

    def __init__(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._ledger = TenantLedger()
        self.time_ms = NOW_MS
        self.load_times, self.write_times = GroupedMean(), GroupedMean()
        self.reason_budget = ReasonBudget()
        self.writes: list[StateWrite] = []
        self.woken: list[Hashable] = []
        self.dropped_keys: list[ShareKey] = []
        self.due: list[tuple[int, Callable[[], None]]] = []
        self.dead_letters = NoDeadLetters()

    def now_ms(self) -> int:
        return self.time_ms

    def random(self) -> float:
        return 0.5

    def get_settings(self, group_id: str) -> ShareSettings:
        return self._settings

    def configure(self, settings: ShareSettings) -> None:
        """Change the group's configs."""
        self._settings = settings

    def get_tenant_ledger(self, key: ShareKey, settings: ShareSettings) -> TenantLedger:
        self._ledger.configure(settings.tenants, 1, 1, self.time_ms)
        return self._ledger

    def is_dlq_rate_exceeded(self, group_id: str, limit: int) -> bool:
        return False

    def make_dead_letters(self, source: object) -> NoDeadLetters:
        return self.dead_letters

    def get_meter(self, topic: str) -> ShareTopicMeter:
        return ShareTopicMeter()

    def call_at(self, deadline_ms: int, call: Callable[[], None]) -> NoTimer:
        self.due.append((deadline_ms, call))
        return NoTimer()

    def run_soon(self, call: Callable[[], None]) -> None:
        call()

    def find_offset_since(
        self, partition: Partition, timestamp_ms: int
    ) -> asyncio.Future[TimestampOffset | None]:
        raise AssertionError("each share partition has a state")

    def read_aside(self, call: Callable[[], None], then: Callable[[], None]) -> None:
        call()
        then()

    def wake(self, key: Hashable) -> None:
        self.woken.append(key)

    wake_soon = wake_later = wake

    def read_state(self, key: ShareKey, leader_epoch: int) -> asyncio.Future[Mapping[str, Any]]:
        state = {
            "error_code": ErrorCode.none,
            "start_offset": 0,
            "state_epoch": 0,
            "state_batches": [],
            "delays": [],
        }
        reply: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        reply.set_result(state)
        return reply

    def find_state_partition(self, key: ShareKey) -> int | None:
        return 0

    def write_state(self, write: StateWrite) -> None:
        self.writes.append(write)

    def commit(self) -> None:
        """Close the writes so far, and commit them."""
        writes, self.writes = self.writes, []
        for write in writes:
            write.is_closed = True
            write.set_result({"refusal": None})

    def on_dropped(self, key: ShareKey) -> None:
        self.dropped_keys.append(key)
