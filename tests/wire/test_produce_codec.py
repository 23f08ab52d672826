"""The hand-written codec of Produce compared with the general one: same fields, same bytes."""

import random
import struct
import uuid
from collections.abc import Callable

import pytest
from shoal.protocol import codec, produce
from shoal.protocol.errors import WireError

VERSIONS = range(3, 14)


def body(rng: random.Random) -> dict[str, object]:
    return {
        "transactional_id": rng.choice([None, "", "tx", "x" * 200]),
        "acks": rng.choice([-1, 0, 1]),
        "timeout_ms": rng.randrange(1 << 31),
        "topic_data": [
            {
                "name": rng.choice(["a", "naïve", "t" * 249]),
                "topic_id": uuid.UUID(int=rng.getrandbits(128) | 1),
                "partition_data": [
                    {
                        "index": rng.randrange(1 << 31),
                        "records": rng.choice(
                            [None, b"", rng.randbytes(200), rng.randbytes(70000)]
                        ),
                    }
                    for _ in range(rng.randrange(4))
                ],
            }
            for _ in range(rng.randrange(4))
        ],
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", range(4))
def test_reads_what_kio_reads(version: int, number: int, seed: int) -> None:
    data = codec.write_request(0, version, body(random.Random(f"{seed}.{version}.{number}")))
    frame = bytearray(b"head") + data
    ours = produce.read(version, memoryview(frame), 4)
    theirs = codec.read_request(0, version, bytes(data))
    assert ours.transactional_id == theirs.transactional_id
    assert (ours.acks, ours.timeout_ms) == (theirs.acks, codec.to_ms(theirs.timeout))
    assert len(ours.topics) == len(theirs.topic_data)
    for topic, other in zip(ours.topics, theirs.topic_data, strict=True):
        assert topic.name == getattr(other, "name", "")
        assert topic.topic_id == getattr(other, "topic_id", None)
        records = [(i, None if r is None else bytes(r)) for i, r in topic.partitions]
        assert records == [(p.index, p.records) for p in other.partition_data]
        for _, view in topic.partitions:
            assert view is None or view.obj is frame


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_without_partitions(version: int) -> None:
    """Their entries are the smallest of all; in versions 9 to 12 they were refused."""
    topics = [{"name": "a", "topic_id": uuid.UUID(int=1), "partition_data": []}] * 3
    data = codec.write_request(0, version, {"acks": 1, "timeout_ms": 1, "topic_data": topics})
    assert [t.partitions for t in produce.read(version, memoryview(data), 0).topics] == [[]] * 3


@pytest.mark.parametrize("version", [3, 9, 13])
def test_every_cut_is_refused(version: int, seed: int) -> None:
    rng = random.Random(seed)
    while len(data := codec.write_request(0, version, body(rng))) <= 200:
        pass
    for end in range(min(len(data), 600)):
        with pytest.raises(WireError):
            produce.read(version, memoryview(data)[:end], 0)


@pytest.mark.parametrize("records", [None, b"", bytes(9), bytes(200)])
@pytest.mark.parametrize("name", ["a", "t" * 126, "t" * 127])
def test_a_single_batch_is_read_as_any(name: str, records: bytes | None) -> None:
    """The reader of the usual shape finds what the general one finds, whichever byte is wrong or
    missing."""
    partition = {"index": 7, "records": records}
    topics = [{"name": name, "partition_data": [partition]}]
    data = codec.write_request(0, 9, {"acks": -1, "timeout_ms": 9, "topic_data": topics})
    nothing = [{"name": name, "partition_data": []}]
    empty = codec.write_request(0, 9, {"acks": -1, "timeout_ms": 9, "topic_data": nothing})
    frames = [empty, data, data + b"\0", *(data[:end] for end in range(len(data)))]
    frames += [
        data[:at] + bytes([value]) + data[at + 1 :]
        for at in range(len(data))
        for value in {0, 1, 2, 3, 0x80, data[at] + 1 & 0xFF} - {data[at]}
    ]
    for frame in frames:
        view = memoryview(frame)
        assert outcome(produce.read, view) == outcome(produce.read_flexible, view)
    is_usual = len(name) < 127 and records is not None
    assert (produce.read_single(memoryview(data), 0) is not None) == is_usual


def outcome(read: Callable[[int, memoryview, int], object], frame: memoryview) -> object:
    """Return what a reader finds; None for bytes that it refuses."""
    try:
        return read(9, frame, 0)
    except (WireError, IndexError, struct.error):
        return None


def test_names_that_no_topic_has_are_not_kept() -> None:
    """A client chooses them: a topic without partitions is answered without an error."""
    kept = produce._encode_short_name.cache_info().misses  # noqa: SLF001
    for size in (250, 30_000):
        topics = [{"name": "x" * size, "partition_responses": []}]
        general = codec.write_response(0, 9, {"responses": topics})
        assert produce.write_success_response(9, topics) == general
    assert produce._encode_short_name.cache_info().misses == kept  # noqa: SLF001


def test_announced_millions_cost_nothing() -> None:
    head = b"\xff\xff" + b"\x00\x01" + b"\x00\x00\x00\x01"
    with pytest.raises(WireError, match="2000000000 entries in"):
        produce.read(3, memoryview(head + (2_000_000_000).to_bytes(4, "big")), 0)
    with pytest.raises(WireError, match="entries in 0 bytes"):
        produce.read(9, memoryview(b"\x00" + head[2:] + b"\xff\xff\xff\xff\x07"), 0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", range(3))
def test_writes_what_the_general_writer_writes(version: int, number: int, seed: int) -> None:
    rng = random.Random(f"{seed}.{version}.{number}")
    topics = [
        {
            "name": rng.choice(["a", "naïve", "t" * 249]),
            "topic_id": uuid.UUID(int=rng.getrandbits(128) | 1),
            "partition_responses": [
                {
                    "index": rng.randrange(1 << 31),
                    "error_code": 0,
                    "base_offset": rng.randrange(1 << 62),
                    "log_append_time_ms": rng.choice([-1, 1_700_000_000_000]),
                    "log_start_offset": rng.randrange(1 << 40),
                }
                for _ in range(rng.choice([0, 1, 3, 200]))
            ],
        }
        for _ in range(rng.randrange(4))
    ]
    general = codec.write_response(0, version, {"responses": topics})
    assert produce.write_success_response(version, topics) == general
