"""Selection over a batch that takes several scans, and over a delivery limit that was lowered."""

from __future__ import annotations

from typing import Any

import pytest
from shoal.coordinator.share.backoff import UNTIL_FREED, Delay
from shoal.coordinator.share.batches import scan
from shoal.coordinator.share.record_facts import HeaderReader
from shoal.coordinator.share.selection import Selection, open_lock
from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings
from shoal.coordinator.share.share_partition import SharePartition
from shoal.coordinator.share.states import ARCHIVED, ARCHIVING, AVAILABLE
from shoal.record.compression import Compression, compress
from shoal.record.records import build_batch
from support.attacks import faulty_batches
from support.attacks.faulty_batches import record

NOW_MS = 1000


def batch(*records: tuple[bytes | None, dict[str, int]]) -> Any:
    """Return a batch of records with these keys and headers, from offset 0 and at `NOW_MS`."""
    rows = [
        (NOW_MS, key, b"x", [(name, str(value).encode()) for name, value in headers.items()])
        for key, headers in records
    ]
    return scan(bytes(build_batch(rows, base_offset=0)), 0)


def delaying(header: str, value: int) -> Selection:
    """Return a selection with delays of up to 200 ms that has scanned two of three records at
    `NOW_MS`; the third has the header."""
    known = Selection(SharePartition(0), SelectionPolicy(delay_max_ms=200))
    known.scan(NOW_MS, 2, ShareSettings(), batch((None, {}), (None, {}), (None, {header: value})))
    assert known.is_open
    return known


def test_a_record_that_falls_due_between_two_scans_of_its_batch_is_not_delayed() -> None:
    known = delaying("shoal.deliver.after", 100)
    known.scan(NOW_MS + 100, 2, ShareSettings(), None)
    assert (known.delayed, known.next_due_ms) == (0, None)
    assert known.choose(3, ShareSettings(), NOW_MS + 100)[0] == [0, 1, 2]


def test_a_later_look_at_the_same_batch_still_delays_what_is_not_due() -> None:
    known = delaying("shoal.deliver.after", 100)
    known.scan(NOW_MS + 99, 2, ShareSettings(), None)
    assert (known.delayed, known.next_due_ms) == (1, NOW_MS + 100)
    assert known.choose(3, ShareSettings(), NOW_MS + 99)[0] == [0, 1]


def test_a_delay_is_cut_by_the_time_of_the_look_that_finds_it() -> None:
    known = delaying("shoal.deliver.at", NOW_MS + 250)
    known.scan(NOW_MS + 100, 2, ShareSettings(), None)
    assert known.next_due_ms == NOW_MS + 250
    assert known.headers is not None
    assert known.headers.clamped == 0


def test_an_exhausted_record_does_not_change_the_urgency_of_the_next_one() -> None:
    policy = SelectionPolicy(key_order=True, priority_header="p", priority_ageing_ms=10)
    share = SharePartition.from_state_batches(
        0,
        [(0, 0, int(AVAILABLE), 3)],
        state_epoch=0,
        leader_epoch=0,
        log_start_offset=0,
        log_end_offset=3,
    )
    known, lowered = Selection(share, policy), ShareSettings(delivery_count_limit=2)
    known.scan(NOW_MS, 9, lowered, batch((b"a", {"p": 9}), (b"a", {}), (b"b", {"p": 5})))
    chosen, changes = known.choose(1, lowered, NOW_MS)
    assert [(c[0], c[1]) for c in changes] == [(0, 0)]
    assert chosen == [2]


def test_a_record_that_comes_back_alone_waits_for_those_of_its_key_that_are_out() -> None:
    policy, share = SelectionPolicy(key_order=True, key_batch=2), SharePartition(0)
    known, log = Selection(share, policy), batch((b"a", {}), (b"a", {}), (b"a", {}), (b"b", {}))
    known.scan(NOW_MS, 9, ShareSettings(), log)
    assert known.choose(2, ShareSettings(), NOW_MS)[0] == [0, 1]
    assert known.held_by_key == 1
    known.put_back([0], NOW_MS)
    assert known.held_by_key == 2
    assert known.choose(4, ShareSettings(), NOW_MS)[0] == [3]
    known.put_back([1], NOW_MS)
    assert known.held_by_key == 2
    assert known.choose(1, ShareSettings(), NOW_MS)[0] == [0]


def test_a_record_that_was_put_back_keeps_its_waiting_time() -> None:
    policy = SelectionPolicy(priority_header="p", priority_ageing_ms=50)
    known = Selection(SharePartition(0), policy)
    known.scan(NOW_MS, 9, ShareSettings(), batch((None, {"p": 2})))
    assert known.choose(1, ShareSettings(), NOW_MS)[0] == [0]
    known.put_back([0], NOW_MS + 400)
    later = build_batch([(NOW_MS, None, b"x", [("p", b"5")])], base_offset=1)
    known.scan(NOW_MS + 400, 9, ShareSettings(), scan(bytes(later), 1))
    assert known.choose(1, ShareSettings(), NOW_MS + 400)[0] == [0]


def test_a_record_that_was_put_back_and_delivered_waits_again_when_released() -> None:
    """It was ready twice: when it was put back, and when that was recorded. One entry outlived its
    delivery, and would give it its former place."""
    policy, share = SelectionPolicy(priority_header="p", priority_ageing_ms=50), SharePartition(0)
    known, settings = Selection(share, policy), ShareSettings()
    read = batch((None, {"p": 2}))
    known.scan(NOW_MS, 9, settings, read)
    assert known.choose(1, settings, NOW_MS)[0] == [0]
    known.put_back([0], NOW_MS)
    chosen = known.choose(1, settings, NOW_MS)[0]
    records, _ = known.lock(chosen, 1, read, settings, NOW_MS)
    open_lock(share, 1, "m", NOW_MS + 1000, records, 1, now_ms=NOW_MS)
    later = build_batch([(NOW_MS, None, b"x", [("p", b"2")])], base_offset=1)
    known.scan(NOW_MS + 100, 9, settings, scan(bytes(later), 1))
    released = share.acknowledge(NOW_MS + 200, "m", [(0, 0, b"\2")], settings)
    known.apply_changes(released.changes, NOW_MS + 200)
    assert known.choose(1, settings, NOW_MS + 200)[0] == [1]
    assert known.choose(1, settings, NOW_MS + 200)[0] == [0]


@pytest.mark.parametrize("raw", [b"no gzip", bytes(compress(Compression.GZIP, record()))])
def test_a_batch_that_claims_two_billion_offsets_is_skipped(raw: bytes) -> None:
    """share.partition.max.record.locks holds for any log content, and no dead letter is written."""
    absurd = scan(faulty_batches.batch(codec=1, count=2**31 - 1, raw=raw), 0)
    share = SharePartition(0)
    known = Selection(share, SelectionPolicy(key_order=True))
    settings = ShareSettings(dead_letters=True)
    known.scan(NOW_MS, 100, settings, absurd)
    while known.is_open:
        known.scan(NOW_MS, 100, settings, None)
    offsets, *_ = known.choose(500, settings, NOW_MS)
    assert offsets == ([0] if raw != b"no gzip" else [])
    assert (share.end_offset, share.in_flight) == (2**31 - 1, len(offsets))
    assert not share.dead_letters


def held_after_a_restart(*offsets: int) -> tuple[SharePartition, Selection]:
    """Return a window of three offsets, some of which hold their keys for dead letters. A new
    leader loads it before it has read any key."""
    share = SharePartition.from_state_batches(
        0,
        [(offset, offset, int(ARCHIVING), 1) for offset in offsets],
        state_epoch=0,
        leader_epoch=0,
        log_start_offset=0,
        log_end_offset=3,
        delays=[Delay(offset, offset, 1, UNTIL_FREED) for offset in offsets],
    )
    assert share.key_holders == len(offsets)
    policy = SelectionPolicy(key_order=True, key_held_by_dead_letter=True)
    return share, Selection(share, policy)


def test_a_held_record_without_a_key_is_freed() -> None:
    share, known = held_after_a_restart(0, 1)
    _, changes = known.scan(NOW_MS, 9, ShareSettings(), batch((None, {}), (b"a", {}), (b"a", {})))
    assert changes == [(0, 0, int(ARCHIVED), 1)]
    assert (share.key_holders, known.keys_held, known.held_by_key) == (1, 1, 1)
    assert not known.may_choose()


def test_a_held_record_deleted_from_the_log_is_freed() -> None:
    share, known = held_after_a_restart(0, 1)
    rows = [(NOW_MS, b"a", b"x", ()), (NOW_MS, b"b", b"x", ())]
    later = scan(bytes(build_batch(rows, base_offset=1)), 0)
    _, changes = known.scan(NOW_MS, 9, ShareSettings(), later)
    assert changes == [(0, 0, int(ARCHIVED), 1)]
    assert (share.start_offset, share.key_holders) == (1, 1)
    assert known.choose(9, ShareSettings(), NOW_MS)[0] == [2]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"7", 7),
        (b"-7", -7),
        (b"1_0", None),
        (b"1e3", None),
        (b"", None),
        (b" ", None),
        (b"0x1", None),
        (b"9" * 18, 10**18 - 1),
        (b"9" * 19, None),
        (None, None),
    ],
)
def test_numbers_in_headers(text: bytes | None, number: int | None) -> None:
    """`int` alone accepts 1_0 as ten."""
    reader = HeaderReader(10**18, "p")
    due_ms, *_ = reader.read((("shoal.deliver.at", text),), 0)
    assert due_ms == max(0, number or 0)
    assert reader.invalid == (number is None)
