"""Metadata of remote segments: Kafka's bytes, and the replayed state against a simple twin."""

from __future__ import annotations

import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.protocol.errors import WireError
from shoal.server.tiered import rebuild
from shoal.tiered import remote_log
from shoal.tiered.metadata_records import (
    MOVES,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    build_tombstones,
    decode,
    decode_by_layout,
    decode_usual,
    encode,
    encode_key,
)
from shoal.tiered.remote_log import Encryption, RemoteLog, RemoteSegment, encode_custom_metadata

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
ORDERS = RemoteLogSegmentId(
    "orders",
    UUID("00000000-0000-0001-0000-000000000002"),
    3,
    UUID("00000000-0000-0005-0000-000000000006"),
)
ID_BYTES = "076f7264657273000000000000000100000000000000020000000300" + (
    "0000000000000005000000000000000600"
)
#: Values that the RemoteLogMetadataSerde of Kafka 4.3.1 wrote.
OF_KAFKA: list[tuple[RemoteLogSegmentMetadata | RemoteLogSegmentUpdate, str]] = [
    (
        RemoteLogSegmentMetadata(
            ORDERS,
            base_offset=100,
            end_offset=199,
            broker_id=2,
            max_timestamp=1_700_000_000_000,
            event_timestamp=1_700_000_000_500,
            leader_epochs=((1, 100), (4, 150)),
            log_size=12_345,
            state=STARTED,
            txn_index_empty=True,
        ),
        f"010000{ID_BYTES}000000000000006400000000000000c7000000020000018bcfe568000000018bcfe569f4"
        "030000000100000000000000640000000004000000000000009600000030390000"
        "01000101",
    ),
    (
        RemoteLogSegmentUpdate(ORDERS, 2, 1_700_000_001_000, b"\x01\x02\x03", FINISHED),
        f"010100{ID_BYTES}000000020000018bcfe56be8040102030100",
    ),
    (
        RemoteLogSegmentUpdate(ORDERS, 2, 1_700_000_002_000, None, DELETING),
        f"010100{ID_BYTES}000000020000018bcfe56fd0000200",
    ),
]


@pytest.mark.parametrize(("record", "expected"), OF_KAFKA)
def test_values_are_those_of_kafka(record, expected) -> None:
    assert encode(record).hex() == expected
    assert decode(bytes.fromhex(expected)) == record


def test_records_of_other_releases_are_skipped() -> None:
    value = bytearray(encode(OF_KAFKA[0][0]))
    for at, other in ((0, 2), (1, 2), (1, 3), (2, 1)):
        changed = bytes([*value[:at], other, *value[at + 1 :]])
        assert decode(changed) is None


def test_cut_values_are_invalid() -> None:
    value = encode(OF_KAFKA[0][0])
    for size in range(3, len(value)):
        with pytest.raises(WireError):
            decode(value[:size])


INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
IDS = st.builds(RemoteLogSegmentId, st.text(max_size=130), st.uuids(), INT32, st.uuids())
STATES = st.sampled_from(RemoteLogSegmentState)
EPOCHS = st.lists(st.tuples(INT32, INT64), max_size=130).map(tuple)
RECORDS = st.builds(
    RemoteLogSegmentMetadata,
    IDS,
    INT64,
    INT64,
    INT32,
    INT64,
    INT64,
    EPOCHS,
    INT32,
    STATES,
    st.booleans(),
) | st.builds(
    RemoteLogSegmentUpdate, IDS, INT32, INT64, st.none() | st.binary(max_size=126), STATES
)


@given(RECORDS)
def test_usual_values_are_parsed_alike(record) -> None:
    value = encode(record)
    assert decode_by_layout(value) == record
    assert decode_usual(value) in (None, record)
    if len(record.id.topic) < 30 and len(value) < 1_000:
        assert decode_usual(value) == record


@given(RECORDS, st.data())
def test_changed_values_are_parsed_alike(record, data) -> None:
    value = bytearray(encode(record))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(value[: data.draw(st.integers(0, len(value)))])
    found = decode_usual(changed)
    if found is not None:
        assert found == decode_by_layout(changed)


def test_keys_are_of_the_segment_and_the_type() -> None:
    added, updated, deleting = (encode_key(record) for record, _ in OF_KAFKA)
    assert added != updated == deleting
    assert build_tombstones(ORDERS) == [(added, None), (updated, None)]
    other = ORDERS._replace(segment_id=UUID(int=1))
    assert not {key for key, _ in build_tombstones(other)} & {added, updated}


def added(number: int, base: int, end: int, epoch: int = 0) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        ORDERS._replace(segment_id=UUID(int=number)),
        base,
        end,
        1,
        base * 10,
        5,
        ((epoch, base),),
        100 + number,
        STARTED,
        True,
    )


def updated(number: int, state: RemoteLogSegmentState) -> RemoteLogSegmentUpdate:
    custom = encode_custom_metadata(1000 + number, 50) if state is FINISHED else None
    return RemoteLogSegmentUpdate(ORDERS._replace(segment_id=UUID(int=number)), 1, 6, custom, state)


def finished(log: RemoteLog, number: int, base: int, end: int, epoch: int = 0) -> None:
    log.replay(added(number, base, end, epoch))
    log.replay(updated(number, FINISHED))


class Twin:
    """The same, in the most obvious way."""

    def __init__(self) -> None:
        self.segments: dict[int, list] = {}

    def replay(self, number, base, end, epoch, state) -> None:
        known = self.segments.get(number)
        if state is None:
            if known is None:
                self.segments[number] = [base, end, epoch, STARTED]
        elif known is not None and state in MOVES[known[3]]:
            known[3] = state
            if state is DELETED:
                del self.segments[number]

    def finished(self):
        return {n: s for n, s in self.segments.items() if s[3] is FINISHED}


STEPS = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.sampled_from([None, FINISHED, FINISHED, DELETING, DELETED]),
    ),
    max_size=40,
)


@given(STEPS)
def test_replay_is_that_of_the_twin(steps) -> None:
    log, twin = RemoteLog(), Twin()
    for number, state in steps:
        # A segment's offsets never change.
        base, length, epoch = number * 13 % 41, number * 7 % 16, number % 3
        record = added(number, base, base + length, epoch)
        log.replay(record if state is None else updated(number, state))
        twin.replay(number, base, base + length, epoch, state)
        expected = twin.finished()
        assert {s.segment_id.int for s in log} == set(expected)
        assert [s.base_offset for s in log] == sorted(s[0] for s in expected.values())
        assert log.size_bytes == sum(100 + n for n in expected)
        assert log.end_offset == max((s[1] for s in expected.values()), default=-1)
        assert log.start_offset == min((s[0] for s in expected.values()), default=None)
        assert log.is_empty == (not twin.segments)
        for other in (STARTED, DELETING):
            found = {s.segment_id.int for s in log.find_in_state(other)}
            assert found == {n for n, s in twin.segments.items() if s[3] is other}
        for offset in range(0, 60, 3):
            for wanted in (-1, 0, 1):
                fits = [
                    s[1]
                    for s in expected.values()
                    if s[0] <= offset <= s[1] and wanted in (-1, s[2])
                ]
                segment = log.find(offset, wanted)
                assert (None if segment is None else segment.end_offset) == max(fits, default=None)
        offsets = {o for s in expected.values() for o in range(s[0], s[1] + 1)}
        for start, end in ((0, 10), (5, 30), (20, 21), (7, 7)):
            assert log.has_offsets(start, end) == (set(range(start, end)) <= offsets)


def test_a_finished_copy_has_its_sizes() -> None:
    log = RemoteLog()
    finished(log, 7, 10, 19)
    assert list(log) == [
        RemoteSegment(UUID(int=7), 10, 19, 100, 107, 1007, 50, 1, True, ((0, 10),))
    ]


@pytest.mark.parametrize("encryption", Encryption)
def test_the_topic_says_whether_an_object_was_encrypted(encryption: Encryption) -> None:
    """And the manifest does not, as every writer of the bucket can replace it."""
    log = RemoteLog()
    log.replay(added(7, 10, 19))
    custom = encode_custom_metadata(1007, 50, encryption)
    assert custom.startswith(encode_custom_metadata(1007, 50)), "earlier releases read the sizes"
    finish = updated(7, FINISHED)._replace(custom=custom)
    read = decode_usual(encode(finish))
    assert read is not None
    log.replay(read)
    (segment,) = log
    assert (segment.object_size, segment.encryption) == (1007, encryption)
    assert log.find(10, 0) == segment
    log.replay(updated(7, FINISHED))
    assert [s.encryption for s in log] == [encryption], "a record from the bucket changes nothing"
    (known,) = remote_log.unpack_all(log.pack_finished())
    assert (known.segment_id, known.encryption) == (UUID(int=7), Encryption.UNKNOWN)


def test_a_segment_that_left_the_topic_is_forgotten() -> None:
    log = RemoteLog()
    finished(log, 7, 10, 19)
    log.forget(UUID(int=8))
    assert not log.is_empty
    log.forget(UUID(int=7))
    assert log.is_empty
    assert log.size_bytes == 0


def test_a_pass_over_many_segments_unpacks_none(monkeypatch) -> None:
    """Each pass of a leader looks at all of them, in one turn of the event loop."""
    count = 1_000
    log = RemoteLog()
    for number in range(count):
        finished(log, number, 10 * number, 10 * number + 9)
    packed, unpacked = log.pack_finished(), []
    real = remote_log.unpack

    def unpack(data: bytes) -> RemoteSegment:
        unpacked.append(data)
        return real(data)

    monkeypatch.setattr(remote_log, "unpack", unpack)
    assert log.has_offsets(0, 10 * count)
    assert not log.has_offsets(0, 10 * count + 1)
    extents = list(log.iter_segment_ranges())
    assert len(extents) == count
    assert extents[7] == (70, 80, 107, 700)
    assert not rebuild.find_unfinished(packed, log)
    assert not unpacked
    # Only what is lost is unpacked.
    log.forget(UUID(int=7))
    unpacked.clear()
    assert [s.segment_id.int for s in rebuild.find_unfinished(packed, log)] == [7]
    assert len(unpacked) == 1


def test_memory_of_a_segment_that_is_not_read() -> None:
    count = 5_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        log = RemoteLog()
        for number in range(count):
            finished(log, number, 10 * number, 10 * number + 9)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / count < 300, f"{used / count:.0f} bytes"
