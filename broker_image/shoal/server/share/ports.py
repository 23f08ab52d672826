"""What a share partition's leader needs from the rest of its broker.

`ShareService` provides the ports; tests provide them with a clock of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from shoal.coordinator.share.dead_letters import DeadLetterFailure
    from shoal.coordinator.share.delivery_failure import DeadLetterRange
    from shoal.coordinator.share.failure_reasons import ReasonBudget
    from shoal.coordinator.share.records import ShareKey
    from shoal.coordinator.share.settings import ShareSettings
    from shoal.coordinator.share.tenant_limits import TenantLedger
    from shoal.log.search import TimestampOffset
    from shoal.replication.partition import Partition
    from shoal.server.metrics.share_meters import GroupedMean, ShareTopicMeter
    from shoal.server.share.dead_letters import DeadLetterSourcePort
    from shoal.server.share.state_write import StateWrite


class DeadLetterQueue(Protocol):
    """The dead letters that one share partition still has to write (`dead_letters`)."""

    @property
    def pending(self) -> bool:
        """Whether there are dead letters yet to be written."""

    @property
    def failure(self) -> DeadLetterFailure | None:
        """Why they cannot be written now."""

    def add(self, ranges: Sequence[DeadLetterRange]) -> None:
        """Write the dead letters of records that are persisted as ARCHIVING from now on."""

    def load(self) -> None:
        """Write the dead letters that a former leader has not written."""

    def stop(self) -> None:
        """Stop writing: the share partition is dropped."""


class Cancellable(Protocol):
    """A timer."""

    def cancel(self) -> None:
        """Do not call."""


class LeaderPorts(Protocol):
    """The ports of `ShareLeader`."""

    @property
    def now_ms(self) -> Callable[[], int]:
        """The broker's clock, in milliseconds since the epoch."""

    @property
    def random(self) -> Callable[[], float]:
        """Random numbers in [0, 1)."""

    @property
    def load_times(self) -> GroupedMean:
        """Times to load a share partition, in milliseconds by group."""

    @property
    def write_times(self) -> GroupedMean:
        """Times to commit a write of share-group state, in milliseconds under ""."""

    @property
    def reason_budget(self) -> ReasonBudget:
        """The memory of all share partitions for reasons of failures."""

    @property
    def draining(self) -> bool:
        """Whether the broker hands over its partitions and has stopped delivery."""

    def get_settings(self, group_id: str) -> ShareSettings:
        """The group's configs in force."""

    def get_tenant_ledger(self, key: ShareKey, settings: ShareSettings) -> TenantLedger:
        """What the group's tenants use in the share partitions of a topic that are led here."""

    def is_dlq_rate_exceeded(self, group_id: str, limit: int) -> bool:
        """Whether the group had `limit` dead letters or more in the last minute; 0 is no limit."""

    def make_dead_letters(self, source: DeadLetterSourcePort) -> DeadLetterQueue:
        """The writer of a share partition's dead letters."""

    def get_meter(self, topic: str) -> ShareTopicMeter:
        """The meter of a topic."""

    def call_at(self, deadline_ms: int, call: Callable[[], None]) -> Cancellable:
        """A timer that calls once at `deadline_ms`."""

    def run_soon(self, call: Callable[[], None]) -> None:
        """Call in a later turn of the loop, with other calls but for a bounded time."""

    def find_offset_since(
        self, partition: Partition, timestamp_ms: int
    ) -> asyncio.Future[TimestampOffset | None]:
        """The first committed record of a partition that has reached a timestamp."""

    def read_aside(self, call: Callable[[], None], callback: Callable[[], None]) -> None:
        """Run `call` in a worker thread, and then `callback` on the event loop."""

    def wake(self, key: Hashable) -> None:
        """Wake the requests that wait for `key`."""

    def wake_soon(self, key: Hashable) -> None:
        """`wake` in the next turn of the loop."""

    def wake_later(self, key: Hashable) -> None:
        """`wake` after a pause, for requests that would ask at once for what was refused."""

    def read_state(self, key: ShareKey, leader_epoch: int) -> asyncio.Future[Mapping[str, Any]]:
        """The persisted state of a share partition, or its `error_code`."""

    def find_state_partition(self, key: ShareKey) -> int | None:
        """The partition of `__share_group_state` that keeps a share partition's state."""

    def write_state(self, write: StateWrite) -> None:
        """Send a write at the end of this turn; it takes changes until then."""

    def on_dropped(self, key: ShareKey) -> None:
        """A share partition is no longer served."""
