"""How many of the requested records a fetch gets when keys collide, and how keys are read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.coordinator.share import fetch_limit, read_cache
from shoal.coordinator.share.acquisition import AcquireRequest
from shoal.coordinator.share.fetch_limit import RECORDS_MAX, STEP_RECORDS, FetchLimit
from shoal.coordinator.share.record_facts import BatchFacts, compute_key_hashes
from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings
from shoal.coordinator.share.share_partition import SharePartition
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.record.records import build_batch
from shoal.server.share import selection_fetch as share_selection
from support.brokers.share_leaders import LogLeader

SETTINGS = ShareSettings(selection=SelectionPolicy(key_order=True), max_record_locks=4000)
#: The minimum with compiled loops exceeds the records that 2,000 keys have free.
LEAST = 100


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_limit, "RECORDS_MIN", LEAST)


class Queue:
    """A share partition over a log of batches of ten records with these keys."""

    def __init__(self, keys: list[bytes | None]) -> None:
        self._batches = [
            bytes(build_batch([(0, k, b"v", ()) for k in keys[at : at + 10]], base_offset=at))
            for at in range(0, len(keys), 10)
        ]
        self.leader = LogLeader(SharePartition(0), self._read, lambda: len(keys), record_size=20.0)
        self.locks = 0

    def _read(self, offset: int, size: int, _: int) -> tuple[bytes, int]:
        found = self._batches[offset // 10 : offset // 10 + max(1, size // 200)]
        return b"".join(found), offset // 10 * 10 + 10 * len(found)

    def fetch(self, records: int) -> Any:
        self.locks += 1
        wanted = AcquireRequest(f"m{self.locks}", records, records)
        return share_selection.fetch(self.leader, wanted, 1 << 20, SETTINGS, 0)[1]

    def accept(self, got: Any) -> None:
        member = self.leader.share.locks.live[got.lock].member_id
        acks = [(first, last, [1]) for first, last, _ in got.records]
        outcome = self.leader.share.acknowledge(0, member, acks, SETTINGS)
        assert not outcome.error
        assert self.leader.selection is not None
        self.leader.selection.apply_changes(outcome.changes, 0)

    @property
    def fetch_limit(self) -> int:
        assert self.leader.selection is not None
        return self.leader.selection.fetch_limit.records


def work(queue: Queue, fetches: int, records: int) -> int:
    """Four members acquire and accept in turn; return the size of the last fetch."""
    held = [queue.fetch(records) for _ in range(3)]
    for _ in range(fetches):
        held.append(queue.fetch(records))
        queue.accept(held.pop(0))
    for got in held:
        queue.accept(got)
    return held[-1].total


def spread(count: int, keys: int) -> list[bytes | None]:
    """Return keys in an order that looks random."""
    return [b"k%d" % (n * n * 7919 % 104_729 % keys) for n in range(count)]


def test_where_keys_collide_a_fetch_is_limited() -> None:
    queue = Queue(spread(20_000, 2000))
    assert queue.fetch(500).total > 300
    assert LEAST <= work(queue, 30, 500) <= 250


def test_where_no_key_comes_twice_a_fetch_gets_what_it_asks_for() -> None:
    queue = Queue([b"%d" % n for n in range(20_000)])
    assert work(queue, 30, 500) == 500
    assert queue.fetch_limit == RECORDS_MAX


def test_without_keys_a_fetch_gets_what_it_asks_for() -> None:
    assert work(Queue([None] * 20_000), 30, 500) == 500


def test_a_small_fetch_is_not_limited() -> None:
    queue = Queue(spread(20_000, 2000))
    work(queue, 20, 500)
    assert queue.fetch_limit < RECORDS_MAX
    assert [queue.fetch(n).total for n in (1, 2, 50)] == [1, 2, 50]


def test_records_behind_a_hot_key_do_not_lower_the_limit() -> None:
    queue = Queue([b"hot" if n % 2 else b"%d" % n for n in range(20_000)])
    work(queue, 15, 500)
    assert queue.fetch_limit == RECORDS_MAX


def test_the_limit_rises_again_when_keys_no_longer_collide() -> None:
    queue = Queue(spread(15_000, 2000) + [b"n%d" % n for n in range(40_000)])
    work(queue, 30, 500)
    assert queue.fetch_limit < 500
    work(queue, 100, 500)
    assert queue.fetch_limit > 500


def test_however_much_collides_the_limit_has_a_minimum() -> None:
    limit = FetchLimit()
    for _ in range(100):
        limit.note_delivery(STEP_RECORDS, 1000, 900)
    assert limit.records == LEAST
    for _ in range(100):
        limit.note_delivery(STEP_RECORDS // 2, 1000, 1)
    assert limit.records == RECORDS_MAX


def test_a_fetch_whose_read_fails_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_cache, "BYTES_MAX", 0)
    queue = Queue([b"%d" % n for n in range(100)])
    assert queue.fetch(1).records == [(0, 0, 1)]

    def fails(*_: int) -> tuple[bytes, int]:
        raise ApiError(ErrorCode.kafka_storage_error)

    with monkeypatch.context() as patch:
        patch.setattr(queue.leader, "read", fails)
        with pytest.raises(ApiError):
            queue.fetch(5)
    assert queue.fetch(5).records == [(1, 5, 1)]


@pytest.mark.parametrize("codec", ["none", "lz4"])
@given(
    records=st.lists(
        st.tuples(
            st.none() | st.binary(max_size=3) | st.binary(min_size=60, max_size=200),
            st.sampled_from([b"", b"v", b"v" * 70, b"v" * 9000]),
            st.sampled_from([0, 1, 100, 20_000, 1 << 40]),
        ),
        min_size=1,
        max_size=150,
    )
)
def test_keys_read_at_once_are_those_read_one_by_one(codec: str, records: list[Any]) -> None:
    rows = [(1000 + late_ms, key, value, ()) for key, value, late_ms in records]
    one = bytes(build_batch(rows, base_offset=7, compression=codec))
    data = b"before" + one + b"behind"
    assert compute_key_hashes(data, 6, 6 + len(one))[0] == [
        key for _, key, *_ in BatchFacts(one, 0, keys=True).take(len(records), None)
    ]


def test_keys_are_not_read_at_once_where_records_are_missing_or_cut() -> None:
    one = build_batch([(0, b"k", b"v", ()), (0, b"l", b"v", ())])
    cut = bytes(one[:-3])
    assert compute_key_hashes(cut, 0, len(cut)) == (None, 0)
    one[57:61] = (3).to_bytes(4, "big")
    assert compute_key_hashes(bytes(one), 0, len(one)) == (None, 0)
    one[23:27] = (2).to_bytes(4, "big")
    assert compute_key_hashes(bytes(one), 0, len(one)) == (None, 0)
