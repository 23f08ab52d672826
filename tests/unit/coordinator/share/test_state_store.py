"""The persisted state of share partitions: Kafka's bytes, fencing, snapshots, log truncation."""

from __future__ import annotations

import gc
import random
import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from shoal.coordinator.contract import CoordinatorRecord, RecordOrigin
from shoal.coordinator.share import records
from shoal.coordinator.share.backoff import Delay
from shoal.coordinator.share.records import ShareKey, ShareRecordType, ShareSnapshot, ShareUpdate
from shoal.coordinator.share.state_batches import StateBatches, combine
from shoal.coordinator.share.state_store import ShareStateShard, StateChange, StateStoreConfig
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.coordinator.share.states import StateBatch

TOPIC = UUID(int=5)
KEY = ShareKey("g", TOPIC, 0)

# Written by Apache Kafka 4.3.1: group q1795251346746846496, partition 0 of topic
# 9ea7d78a-6579-485f-b0d0-646448fade6d.
GROUP_KEY = "00156771313739353235313334363734363834393439369ea7d78a6579485fb0d0646448fade6d00000000"
FROM_KAFKA = [
    (
        ShareRecordType.SHARE_SNAPSHOT,
        "0000000000000000000200000000ffffffffffffffff000001a1fd519fad000001a1fd519fad0100",
        [],
    ),
    (
        ShareRecordType.SHARE_UPDATE,
        "00000000000000000000000000000000000002000000000000000000000000000000000200010001000400000001",
        [(0, 0, 2, 1)],
    ),
    (
        ShareRecordType.SHARE_SNAPSHOT,
        "000000000009000000020000000000000000000010a0000001a1fd51c074000001a1fd51c074030000000000"
        "0010a000000000000010a0020001000000000000001194000000000000128f02000100010004000000fd",
        [(4256, 4256, 2, 1), (4500, 4751, 2, 1)],
    ),
]


class Store:
    """A shard with its log."""

    def __init__(self, **config: int) -> None:
        self.config = StateStoreConfig(**config)
        self.log: list[CoordinatorRecord] = []
        self.shard = self._empty()
        self.now_ms = 1000

    def _empty(self) -> ShareStateShard:
        return ShareStateShard(self.config, lambda topic: 3 if topic == TOPIC else None)

    def take(self, change: StateChange) -> ErrorCode:
        if change.refusal is not None:
            return change.refusal.code
        if change.record is not None:
            self.append(change.record)
        return ErrorCode.none

    def append(self, record: CoordinatorRecord) -> None:
        self.shard.replay(record, RecordOrigin(len(self.log), self.now_ms))
        self.log.append(record)

    def write(
        self,
        *batches: StateBatch,
        start: int = -1,
        complete: int = 0,
        state_epoch: int = 0,
        leader_epoch: int = 0,
        key: ShareKey = KEY,
    ) -> ErrorCode:
        return self.take(
            self.shard.write(
                self.now_ms,
                key,
                state_epoch=state_epoch,
                leader_epoch=leader_epoch,
                start_offset=start,
                delivery_complete_count=complete,
                batches=batches,
            )
        )

    def initialize(self, key: ShareKey = KEY, *, state_epoch: int = 0, start: int = 0) -> ErrorCode:
        return self.take(
            self.shard.initialize(self.now_ms, key, state_epoch=state_epoch, start_offset=start)
        )

    def persisted(self, key: ShareKey = KEY) -> tuple[int, int, list[StateBatch]]:
        state, refusal = self.shard.read_summary(key)
        assert state is not None
        assert refusal is None
        return state.start_offset, state.delivery_complete_count, list(state.batches)

    def rebuilt(self, first: int = 0) -> Store:
        again = Store()
        again.config, again.shard = self.config, self._empty()
        for offset, record in enumerate(self.log):
            if offset >= first:
                again.shard.replay(record, RecordOrigin(offset, 0))
        return again


@pytest.mark.parametrize(("kind", "value", "batches"), FROM_KAFKA)
def test_records_are_kafkas_to_the_byte(
    kind: ShareRecordType, value: str, batches: list[StateBatch]
) -> None:
    key, data = kind.to_bytes(2, "big") + bytes.fromhex(GROUP_KEY), bytes.fromhex(value)
    decoded = records.decode(CoordinatorRecord(key, data))
    assert decoded is not None
    assert decoded.value is not None
    assert records.read_state_batches(decoded.value) == batches
    assert records.encode_key(kind, decoded.key) == key
    if kind is ShareRecordType.SHARE_UPDATE:
        update = records.read_update(data)
        assert update is not None
        assert records.encode_update(update) == data
    else:
        fields = {k: v for k, v in decoded.value.items() if k != "state_batches"}
        made = records.encode_snapshot(
            decoded.key, state_batches=records.read_state_batches(decoded.value), **fields
        )
        assert made == CoordinatorRecord(key, data)


@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 16_383, 16_384])
def test_updates_of_any_length_are_read_alike(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    update = ShareUpdate(1, 2, 3, count, [(5, 6, 2, 1)] * count)
    value = records.encode_update(update)
    assert records.read_update(value) == update
    assert records.read_update(value[:-1]) is None
    if 0 < count < 16_383:  # Encoded by hand if the length takes at most two bytes.
        monkeypatch.setattr(records, "_read_value", None)
        assert records.read_update(value) == update


@pytest.mark.parametrize("count", [0, 1, 127, 128, 16_384])
@pytest.mark.parametrize("complete", [-1, 7])
@pytest.mark.parametrize("delays", [(), (Delay(5, 6, 1, 99),)])
def test_snapshots_are_read_as_their_layout_says(
    count: int, complete: int, delays: tuple[Delay, ...]
) -> None:
    batches = [(5 + 2 * n, 5 + 2 * n, 2, 1) for n in range(count)]
    made = records.encode_snapshot(
        KEY,
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=5,
        delivery_complete_count=complete,
        create_timestamp=6,
        write_timestamp=7,
        state_batches=batches,
        delays=delays,
    )
    assert made.value is not None
    expected = ShareSnapshot(1, 2, 3, 5, 6, 7, complete, batches, delays)
    assert records.read_snapshot(made.value) == expected
    decoded = records.decode(made)
    assert decoded is not None
    assert decoded.value is not None
    assert records.read_state_batches(decoded.value) == batches
    assert records.read_delays(decoded.value) == delays
    assert decoded.value["delivery_complete_count"] == complete
    assert records.read_snapshot(made.value[:-1]) is None
    assert records.read_snapshot(made.value[:20]) is None


def test_an_update_that_is_laid_out_otherwise_is_read_all_the_same() -> None:
    update = ShareUpdate(1, 2, 3, -1, [(5, 6, 2, 1)] * 200)
    assert records.read_update(records.encode_update(update)) == update
    value = bytearray(records.encode_update(ShareUpdate(1, 2, 3, 4, [(5, 6, 2, 1)])))
    unknown_tag = value[:-7] + b"\x02" + value[-6:] + b"\x07\x01x"
    assert records.read_update(bytes(unknown_tag)) == ShareUpdate(1, 2, 3, 4, [(5, 6, 2, 1)])
    assert records.read_update(bytes(value[:-3])) is None
    assert records.read_update(b"\x00\x09" + value[2:]) is None


def test_nothing_can_be_written_or_read_before_it_is_initialized() -> None:
    store = Store()
    assert store.write((0, 0, 2, 1)) is ErrorCode.invalid_request
    assert store.take(store.shard.read(0, KEY, 0)[1]) is ErrorCode.invalid_request
    assert store.shard.read_summary(KEY) == (None, None)
    elsewhere = ShareKey("g", UUID(int=6), 0)
    assert store.initialize(elsewhere) is ErrorCode.unknown_topic_or_partition
    assert store.initialize(ShareKey("g", TOPIC, 3)) is ErrorCode.unknown_topic_or_partition
    assert store.initialize(ShareKey("g", TOPIC, -1)) is ErrorCode.invalid_request


def test_written_state_is_kept_in_one_form_only() -> None:
    store = Store()
    store.initialize()
    store.write((0, 10_000, 0, 1))
    tracemalloc.start()
    store.write(*((n, n, 2 * (n % 2), 1) for n in range(10_000)))
    store.log.clear()
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 30 * 10_000, "tuples of the write are kept in addition to columns"


def test_former_leaders_and_former_states_are_fenced() -> None:
    store = Store()
    store.initialize(state_epoch=2)
    assert store.take(store.shard.read(0, KEY, 5)[1]) is ErrorCode.none
    assert store.write((0, 0, 2, 1), leader_epoch=4, state_epoch=2) is ErrorCode.fenced_leader_epoch
    assert store.write((0, 0, 2, 1), leader_epoch=5, state_epoch=1) is ErrorCode.fenced_state_epoch
    assert store.take(store.shard.read(0, KEY, 4)[1]) is ErrorCode.fenced_leader_epoch
    assert store.initialize(state_epoch=1) is ErrorCode.fenced_state_epoch
    assert store.write((0, 0, 2, 1), leader_epoch=5, state_epoch=2) is ErrorCode.none
    assert store.rebuilt().write(leader_epoch=4, state_epoch=2) is ErrorCode.fenced_leader_epoch


def test_every_nth_write_is_a_snapshot_and_the_log_before_it_can_go() -> None:
    store = Store(updates_per_snapshot=3)
    store.initialize(start=0)
    for offset in range(10):
        store.write((2 * offset, 2 * offset, 2, 1), complete=offset + 1)
    kinds = [record.key[1] for record in store.log]
    assert kinds == [0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1]
    assert store.shard.redundant_offset == 8
    assert store.rebuilt().persisted() == store.rebuilt(first=8).persisted() == store.persisted()
    assert store.persisted() == (0, 10, [(2 * o, 2 * o, 2, 1) for o in range(10)])


def test_a_new_start_forgets_what_lies_below_it() -> None:
    store = Store()
    store.initialize(start=0)
    store.write((0, 9, 2, 1), (12, 14, 0, 2))
    store.write((10, 10, 2, 1), start=11, complete=0)
    assert store.persisted() == (11, 0, [(12, 14, 0, 2)])
    store.initialize(state_epoch=1, start=3)
    assert store.persisted() == (3, 0, [])


def test_deleted_state_does_not_delay_pruning() -> None:
    store = Store()
    other = ShareKey("h", TOPIC, 1)
    store.initialize()
    store.initialize(other)
    assert store.shard.redundant_offset == 0
    assert store.take(store.shard.delete(KEY)) is ErrorCode.none
    assert store.take(store.shard.delete(KEY)) is ErrorCode.none, "already gone"
    assert store.shard.redundant_offset == 1
    assert store.rebuilt().shard.read_summary(KEY) == (None, None)
    for record in store.shard.delete_topics([TOPIC]).records:
        store.append(record)
    assert len(store.shard) == 0


def test_cold_partitions_get_a_new_snapshot_until_there_is_nothing_to_cut() -> None:
    store = Store(cold_snapshot_interval_ms=1000, updates_per_snapshot=100)
    cold, busy = KEY, ShareKey("busy", TOPIC, 0)
    store.initialize(cold)
    store.initialize(busy)
    for offset in range(20):
        store.write((offset, offset, 2, 1), key=busy)
    store.shard.on_loaded(store.now_ms)
    assert store.shard.next_deadline_ms == 2000
    written = []
    for _ in range(5):
        store.now_ms += 1000
        made = store.shard.tick(store.now_ms).records
        written.append(len(made))
        for record in made:
            store.append(record)
    assert written == [2, 0, 0, 0, 0]
    assert store.shard.redundant_offset == len(store.log) - 2
    assert store.rebuilt(store.shard.redundant_offset).persisted(busy) == store.persisted(busy)


def test_batches_are_combined_as_a_twin_with_one_entry_an_offset_combines_them(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        written = []
        for _ in range(rng.randrange(8)):
            first = rng.randrange(30)
            last = first + rng.randrange(8)
            written.append((first, last, rng.choice([0, 2, 4]), rng.randrange(3)))
        start = rng.randrange(30)
        twin = {}
        for first, last, state, count in written:
            for offset in range(max(first, start), last + 1):
                twin[offset] = (state, count)
        combined = combine(written, start)
        assert spread(combined) == twin
        for left, right in pairwise(combined):
            assert left[1] < right[0], "they rise and do not overlap"
            assert left[1] + 1 < right[0] or left[2:] != right[2:], "they are as few as can be"
        laid = StateBatches(0, written)
        laid.move_start(start)
        assert spread(laid) == twin


def spread(batches: Iterable[StateBatch]) -> dict[int, tuple[int, int]]:
    """Return state and delivery count of each offset."""
    return {
        offset: (state, count)
        for first, last, state, count in batches
        for offset in range(first, last + 1)
    }


def test_the_key_of_no_topic_is_read() -> None:
    """No broker writes one. A damaged log may have it, and must not keep the others from being
    read."""
    key = ShareKey("g", UUID(int=0), 1)
    assert records.decode_key(records.encode_tombstone(key).key) == key
