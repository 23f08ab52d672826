"""The queue of a fair group without priority, key order, delay and limits, compiled.

`native/tenants.c` keeps records and tenants as numbers, by the rules of `FairQueue`, and its loops
add, choose and end the records of whole reads and requests. When a tenant gets a limit, the records
move to `FairQueue`, and stay there until the next selection: limits are counted for all share
partitions of a topic, by objects.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from shoal.coordinator.share import compiled
from shoal.coordinator.share.fair_queue import (
    DEBT_MAX_MS,
    IDLE_KEPT_MAX,
    IDLE_MIN,
    RECORD_COST_MS,
    TENANTS_VISITED_MAX,
    FairQueue,
    find_quantum,
)
from shoal.coordinator.share.tenants import NAME_BYTES_MAX, make_tenant_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shoal.coordinator.share.batches import Batches
    from shoal.coordinator.share.reach import Reach
    from shoal.coordinator.share.runs import OffsetRuns
    from shoal.coordinator.share.settings import SelectionPolicy
    from shoal.coordinator.share.states import StateBatch
    from shoal.coordinator.share.tenant_limits import TenantLedger
    from shoal.coordinator.share.tenants import TenantPolicy
    from shoal.record.batch import Buffer


def make_fair_queue(
    policy: SelectionPolicy, tenants: TenantPolicy, ledger: TenantLedger
) -> FairQueue:
    """Return an empty queue, compiled if possible."""
    is_fair_alone = not (policy.key_order or policy.priority_header or policy.delay_max_ms)
    if compiled.native is None or ledger.is_limited or not is_fair_alone:
        return FairQueue(policy, tenants, ledger)
    return CompiledFairQueue(policy, tenants, ledger)


class CompiledFairQueue(FairQueue):
    """`FairQueue` in C, as long as no tenant has a limit."""

    __slots__ = ("_header", "_native")

    def __init__(
        self, policy: SelectionPolicy, tenants: TenantPolicy, ledger: TenantLedger
    ) -> None:
        super().__init__(policy, tenants, ledger)
        assert compiled.native is not None
        header = policy.tenant_header
        #: The header that names tenants; None if keys do.
        self._header = header.encode() if header else None
        self._native: Any = compiled.native.TenantQueues(
            make_tenant_name, NAME_BYTES_MAX, RECORD_COST_MS, DEBT_MAX_MS, IDLE_MIN, IDLE_KEPT_MAX
        )
        self._native.configure(dict(tenants.weights))

    def __len__(self) -> int:
        return len(self._native)

    @property
    def is_compiled(self) -> bool:
        return True

    @property
    def has_ready(self) -> bool:
        return len(self._native) > 0

    def get_offsets(self) -> set[int]:
        return set(self._native.list_available())

    def list_names(self) -> list[bytes]:
        return [name for name, *_ in self._native.list_tenants(self._native.tenants)]

    @property
    def size_bytes(self) -> int:
        """The memory of the records and tenants in C."""
        return sys.getsizeof(self._native)

    def configure(self, policy: TenantPolicy) -> None:
        if policy != self._policy:
            self._native.configure(dict(policy.weights))
            self._policy = policy

    def may_take(self, _offset: int) -> bool:
        return True

    def iterate_work(self) -> Iterator[tuple[str, int, int]]:
        for name, _, _, in_flight, available in self._native.list_tenants(TENANTS_VISITED_MAX):
            if in_flight or available:
                yield name.decode(errors="replace"), in_flight, available

    # Records come and go.

    def add(self, offset: int, _priority: int, tenant_name: bytes) -> None:
        self._native.add(offset, tenant_name)

    def put_new(self, batches: Batches, first: int, budget: int) -> int:
        count: int = self._native.put_new(
            batches.data, batches.bases, batches.lasts, batches.ends, first, budget, self._header
        )
        return count

    def put_body(
        self, body: Buffer, begin: int, end: int, base: int, count: int, first: int
    ) -> bool:
        done: bool = self._native.put_body(body, begin, end, count, base, first, self._header)
        return done

    def push(self, offset: int, _now_ms: int) -> None:
        self._native.push(offset)

    def end(self, offsets: Iterable[int], now_ms: int) -> None:
        self._native.end(offsets, now_ms)

    def end_all(self, changes: Sequence[StateBatch], below: int, now_ms: int) -> bool:
        done: bool = self._native.end_all(changes, below, now_ms)
        return done

    def drop_below(self, start: int, now_ms: int) -> None:
        gone = [record[0] for record in self._native.list_records() if record[0] < start]
        self._native.end(gone, now_ms)

    # Members get records and give them back.

    def begin(self, now_ms: int, records: int = 1) -> None:
        self._native.begin(now_ms, find_quantum(records))

    def choose(
        self,
        runs: OffsetRuns,
        records: int,
        splitting: int,
        reach: Reach | None,
        now_ms: int,
        chosen: list[int],
    ) -> bool:
        span, spans_max = (0, 0) if reach is None else (reach.span, reach.spans_max)
        ends: bool = self._native.choose(runs, records, splitting, span, spans_max, now_ms, chosen)
        if not ends and reach is not None:
            for offset in chosen:
                reach.has(offset)
        return ends

    def pop(self) -> int | None:
        offset: int | None = self._native.pop()
        return offset

    def take(self, offset: int, now_ms: int) -> None:
        self._native.take(offset, now_ms)

    def hold(self, offset: int, now_ms: int) -> None:
        self._native.hold(offset, now_ms)

    def put_back(self, offset: int, _now_ms: int) -> None:
        self._native.put_back(offset)

    def restore(self, offset: int) -> None:
        self._native.restore(offset)

    def release(self, offsets: Iterable[int], now_ms: int) -> None:
        self._native.release(offsets, now_ms)
