"""Batches as Kafka 4.3.1's console producer wrote them, in every codec, and its producer snapshot.

Taken from the segments of a broker: six records with keys k1 to k6 and two headers each.
"""

from __future__ import annotations

import pytest
from shoal.log.producers import CorruptSnapshot, ProducerStateManager
from shoal.record.batch import check_crc, iter_headers, read_header
from shoal.record.compression import Compression
from shoal.record.records import read_records

SEGMENTS = {
    "none": bytes.fromhex(
        "00000000000000000000015d0000000002a6245902000000000005000001a1fd46739b000001a1fd4673"
        "b300000000000000000000000000000000000662000000046b313e76616c75652d312d76616c75652d76"
        "616c75652d76616c75652d76616c7565040468310261046832026262003002046b323e76616c75652d32"
        "2d76616c75652d76616c75652d76616c75652d76616c7565040468310261046832026262003004046b33"
        "3e76616c75652d332d76616c75652d76616c75652d76616c75652d76616c756504046831026104683202"
        "6262003006046b343e76616c75652d342d76616c75652d76616c75652d76616c75652d76616c75650404"
        "68310261046832026262003008046b353e76616c75652d352d76616c75652d76616c75652d76616c7565"
        "2d76616c756504046831026104683202626200300a046b363e76616c75652d362d76616c75652d76616c"
        "75652d76616c75652d76616c75650404683102610468320262"
    ),
    "gzip": bytes.fromhex(
        "000000000000000000000094000000000249803de3000100000005000001a1fd4681e8000001a1fd4682"
        "0a0000000000000001000000000000000000061f8b08000000000000ff8dcb3b0a80400c45d1303c44dc"
        "cb14c97c4a2b3732016120b6ba7e0bd3d9a4b9b73a4a4430de9f71dd67e6fcfd5760721a989254e94830"
        "7121310158715162628155173526565873d162628375173d205e91adc6fb2c010000"
    ),
    "snappy": bytes.fromhex(
        "0000000000000000000000cc0000000002a7a56472000200000005000001a1fd469048000001a1fd4690"
        "a700000000000000020000000000000000000682534e4150505900000000010000000100000087b1023c"
        "62000000046b313e76616c75652d312d09084206004804046831026104683202626400ba0102046b320d"
        "330032462d00091232330014be0104046b330d33003309214606003a33000c06046b340d330034462d00"
        "09123a33000c08046b350d33003509214606003a33000c0a046b360d330036462d000912280404683102"
        "610468320262"
    ),
    "lz4": bytes.fromhex(
        "0000000000000000000000a900000000022deda728000300000005000001a1fd469d51000001a1fd469d"
        "a500000000000000030000000000000000000604224d1860408269000000f20162000000046b313e7661"
        "6c75652d312d08000d0600f30404046831026104683202626400a80102046b3233001f32330014430404"
        "6b3333001f333300144306046b3433001f343300144308046b3533001f35330014430a046b3633001f36"
        "33000b50046832026200000000"
    ),
    "zstd": bytes.fromhex(
        "0000000000000000000000930000000002eae58248000400000005000001a1fd46a78d000001a1fd46a7"
        "a900000000000000040000000000000000000628b52ffd0058b40200840362000000046b313e76616c75"
        "652d312d040468310261046832026262003602046b323204046b33333806046b343408046b35350a046b"
        "36360c000011c0a5e05d9051f02ec814780c64193ca6aacc52e632ac8001010000"
    ),
}
SNAPSHOT = bytes.fromhex(
    "0001b8d50fc3000000010000000000000004000000000005000000000000000500000005000001a1fd46a7a9"
    "ffffffffffffffffffffffff"
)


@pytest.mark.parametrize("codec", list(SEGMENTS))
def test_a_segment_of_kafkas(codec: str) -> None:
    data = SEGMENTS[codec]
    [(at, header)] = iter_headers(data)
    assert at == 0
    assert header.size == len(data)
    assert check_crc(data, 0, header)
    assert header.compression == Compression.from_name(codec)
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 5, 6)
    assert (header.leader_epoch, header.producer_epoch, header.base_sequence) == (0, 0, 0)
    found = list(read_records(data))
    assert [(r.offset, r.key) for r in found] == [(i, b"k%d" % (i + 1)) for i in range(6)]
    assert found[2].value == b"value-3-value-value-value-value"
    assert found[2].headers == (("h1", b"a"), ("h2", b"b"))
    assert max(r.timestamp_ms for r in found) == header.max_timestamp


@pytest.mark.parametrize("codec", list(SEGMENTS))
def test_no_cut_of_it_is_a_whole_batch(codec: str) -> None:
    data = SEGMENTS[codec]
    assert all(not list(iter_headers(data[:end])) for end in range(len(data)))


def test_a_producer_snapshot_of_kafkas() -> None:
    states = ProducerStateManager()
    states.load(SNAPSHOT, now_ms=0)
    [producer] = states
    header = read_header(SEGMENTS["zstd"])
    assert producer.producer_id == header.producer_id
    assert (producer.epoch, producer.last_sequence, producer.last_offset) == (0, 5, 5)
    assert producer.last_timestamp == header.max_timestamp
    assert states.to_snapshot() == SNAPSHOT


@pytest.mark.parametrize("at", range(len(SNAPSHOT)))
def test_a_damaged_snapshot_is_detected(at: int) -> None:
    data = bytearray(SNAPSHOT)
    data[at] ^= 0x10
    with pytest.raises(CorruptSnapshot):
        ProducerStateManager().load(bytes(data), now_ms=0)
    with pytest.raises(CorruptSnapshot):
        ProducerStateManager().load(SNAPSHOT[:at], now_ms=0)
