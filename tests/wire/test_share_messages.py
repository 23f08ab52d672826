"""The codec of ShareFetch and ShareAcknowledge compared with kio: same fields, same bytes."""

import random
import uuid
from typing import Any

import pytest
from shoal.protocol import codec, share
from shoal.protocol.errors import WireError
from shoal.protocol.share import Acknowledgements, ShareAcknowledgePartition, ShareFetchPartition

FETCH, ACKNOWLEDGE = 78, 79
VERSIONS = (1, 2)


def topics(rng: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "topic_id": uuid.UUID(int=rng.getrandbits(128) | 1),
            "partitions": [
                {
                    "partition_index": rng.randrange(1 << 31),
                    "acknowledgement_batches": [
                        {
                            "first_offset": rng.getrandbits(60),
                            "last_offset": rng.getrandbits(60),
                            "acknowledge_types": [
                                rng.randrange(5) for _ in range(rng.choice(sizes))
                            ],
                        }
                        for _ in range(rng.choice([0, 1, 2, 3, 9, 150]))
                    ],
                }
                for sizes in rng.choices([(1,), (0, 1, 9), (1,) * 8 + (2,)], k=rng.randrange(4))
            ],
        }
        for _ in range(rng.randrange(4))
    ]


def request(rng: random.Random) -> dict[str, Any]:
    return {
        "group_id": rng.choice([None, "", "g", "naïve" * 40]),
        "member_id": rng.choice([None, "m" * 22]),
        "share_session_epoch": rng.choice([-1, 0, 5, (1 << 31) - 1]),
        "max_wait_ms": rng.randrange(1 << 31),
        "min_bytes": rng.randrange(1 << 31),
        "max_bytes": rng.randrange(1 << 31),
        "max_records": rng.randrange(1 << 31),
        "batch_size": rng.randrange(1 << 31),
        "share_acquire_mode": rng.choice([0, 1]),
        "is_renew_ack": rng.choice([True, False]),
        "topics": topics(rng),
        "forgotten_topics_data": [
            {"topic_id": uuid.UUID(int=7), "partitions": [1, 2, rng.randrange(1 << 31)]}
            for _ in range(rng.randrange(3))
        ],
    }


def plain(entities: Any) -> list[Any]:
    return [
        (
            t.topic_id,
            [
                (
                    p.partition_index,
                    [
                        (b.first_offset, b.last_offset, bytes(b.acknowledge_types))
                        for b in p.acknowledgement_batches
                    ],
                )
                for p in t.partitions
            ],
        )
        for t in entities
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", range(6))
def test_a_fetch_is_read_as_kio_reads_it(version: int, number: int, seed: int) -> None:
    data = codec.write_request(FETCH, version, request(random.Random(f"{seed}.{version}.{number}")))
    ours = share.read_fetch(version, memoryview(bytearray(b"head") + data), 4)
    theirs = codec.read_request(FETCH, version, bytes(data))
    for name in (
        "group_id",
        "member_id",
        "share_session_epoch",
        "min_bytes",
        "max_bytes",
        "max_records",
        "batch_size",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.max_wait_ms == codec.to_ms(theirs.max_wait)
    assert ours.share_acquire_mode == getattr(theirs, "share_acquire_mode", 0)
    assert ours.is_renew_ack == getattr(theirs, "is_renew_ack", False)
    assert ours.topics == plain(theirs.topics)
    assert ours.forgotten == [
        (f.topic_id, list(f.partitions)) for f in theirs.forgotten_topics_data
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", range(6))
def test_an_acknowledgement_is_read_as_kio_reads_it(version: int, number: int, seed: int) -> None:
    data = codec.write_request(
        ACKNOWLEDGE, version, request(random.Random(f"{seed}.{version}.{number}"))
    )
    ours = share.read_acknowledge(version, memoryview(bytearray(b"head") + data), 4)
    theirs = codec.read_request(ACKNOWLEDGE, version, bytes(data))
    assert (ours.group_id, ours.member_id) == (theirs.group_id, theirs.member_id)
    assert ours.share_session_epoch == theirs.share_session_epoch
    assert ours.is_renew_ack == getattr(theirs, "is_renew_ack", False)
    assert ours.topics == plain(theirs.topics)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("read", [share.read_fetch, share.read_acknowledge])
def test_every_cut_is_refused(version: int, read: Any, seed: int) -> None:
    key = FETCH if read is share.read_fetch else ACKNOWLEDGE
    rng = random.Random(seed)
    body = request(rng)
    while not any(t["partitions"] for t in body["topics"]):
        body = request(rng)
    data = codec.write_request(key, version, body)
    read(version, memoryview(data), 0)
    for size in range(len(data)):
        with pytest.raises(WireError):
            read(version, memoryview(data)[:size], 0)


def test_announced_entries_without_bytes_are_refused() -> None:
    data = codec.write_request(ACKNOWLEDGE, 1, {"group_id": "g", "member_id": "m", "topics": []})
    hostile = bytes(data[:-2]) + b"\xff\xff\xff\xff\x07" + b"\x00" * 100
    with pytest.raises(WireError, match="entries"):
        share.read_acknowledge(1, memoryview(hostile), 0)


def partition(rng: random.Random) -> ShareFetchPartition:
    failed = rng.random() < 0.3
    return ShareFetchPartition(
        rng.randrange(1 << 31),
        rng.choice([6, 100]) if failed else 0,
        rng.choice([None, "why", "x" * 300]) if failed else None,
        rng.choice([0, 121]),
        rng.choice([None, "because"]),
        (rng.randrange(9), rng.randrange(9)),
        [memoryview(rng.randbytes(rng.choice([70, 9000]))) for _ in range(rng.randrange(3))],
        [
            (rng.getrandbits(60), rng.getrandbits(60), rng.randrange(9))
            for _ in range(rng.randrange(4))
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", range(6))
def test_a_fetch_response_is_the_bytes_that_the_compiled_writer_gives(
    version: int, number: int, seed: int
) -> None:
    rng = random.Random(f"{seed}.{version}.{number}")
    answered = {
        uuid.UUID(int=rng.getrandbits(128)): [partition(rng) for _ in range(rng.randrange(3))]
        for _ in range(rng.randrange(3))
    }
    endpoints = [(1, "host", 9092, None), (2, "b", 1, "rack")][: rng.randrange(3)]
    ours = b"".join(
        share.write_fetch(
            answered,
            error_code=number % 2,
            error_message=None if number % 3 else "m",
            acquisition_lock_timeout_ms=number,
            endpoints=endpoints,
        )
    )
    body = {
        "error_code": number % 2,
        "error_message": None if number % 3 else "m",
        "acquisition_lock_timeout_ms": number,
        "responses": [
            {
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": p.partition,
                        "error_code": p.error_code,
                        "error_message": p.error_message,
                        "acknowledge_error_code": p.acknowledge_error_code,
                        "acknowledge_error_message": p.acknowledge_error_message,
                        "current_leader": {
                            "leader_id": p.current_leader[0],
                            "leader_epoch": p.current_leader[1],
                        },
                        "records": b"".join(p.records),
                        "acquired_records": [
                            {"first_offset": a, "last_offset": b, "delivery_count": c}
                            for a, b, c in p.acquired
                        ],
                    }
                    for p in partitions
                ],
            }
            for topic_id, partitions in answered.items()
        ],
        "node_endpoints": [
            {"node_id": n, "host": h, "port": p, "rack": r} for n, h, p, r in endpoints
        ],
    }
    assert ours == codec.write_response(FETCH, version, body)
    codec.read_response(FETCH, version, ours)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", range(3))
def test_an_acknowledge_response_is_the_bytes_that_the_compiled_writer_gives(
    version: int, number: int, seed: int
) -> None:
    rng = random.Random(f"{seed}.{version}.{number}")
    answered = {
        uuid.UUID(int=rng.getrandbits(128)): [
            ShareAcknowledgePartition(
                rng.randrange(99), rng.choice([0, 121]), rng.choice([None, "why"]), (1, 2)
            )
            for _ in range(rng.randrange(3))
        ]
        for _ in range(rng.randrange(3))
    }
    ours = b"".join(
        share.write_acknowledge(
            version, list(answered.items()), error_code=number, acquisition_lock_timeout_ms=9
        )
    )
    body = {
        "error_code": number,
        "acquisition_lock_timeout_ms": 9,
        "responses": [
            {
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": p.partition,
                        "error_code": p.error_code,
                        "error_message": p.error_message,
                        "current_leader": {"leader_id": 1, "leader_epoch": 2},
                    }
                    for p in partitions
                ],
            }
            for topic_id, partitions in answered.items()
        ],
    }
    assert ours == codec.write_response(ACKNOWLEDGE, version, body)


def alone(kind: int, **changed: Any) -> dict[str, Any]:
    """Return an acknowledgement of a single record, which takes a separate path in the codec."""
    batch = {"first_offset": 7, "last_offset": 7, "acknowledge_types": [kind], **changed}
    partition = {"partition_index": 5, "acknowledgement_batches": [batch]}
    return {
        "group_id": "g",
        "member_id": "m" * 22,
        "share_session_epoch": 9,
        "topics": [{"topic_id": uuid.UUID(int=3), "partitions": [partition]}],
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("types", [[1], [0], [4], [1, 2], []])
def test_a_record_acknowledged_alone(version: int, types: list[int]) -> None:
    data = codec.write_request(ACKNOWLEDGE, version, alone(0, acknowledge_types=types))
    ours = share.read_acknowledge(version, memoryview(data), 0)
    assert ours.topics == [(uuid.UUID(int=3), [(5, [(7, 7, bytes(types))])])]
    for size in range(len(data)):
        with pytest.raises(WireError):
            share.read_acknowledge(version, memoryview(data)[:size], 0)
    tagged = bytes(data[:-1]) + b"\x01\x63\x00"
    assert share.read_acknowledge(version, memoryview(tagged), 0).topics == ours.topics


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("partitions", [0, 1, 2])
def test_the_response_without_a_refusal(version: int, partitions: int) -> None:
    asked: Acknowledgements = [
        (uuid.UUID(int=3), [(5 + i, [(7, 7, b"\x01")]) for i in range(partitions)])
    ]
    answered = [(uuid.UUID(int=3), [ShareAcknowledgePartition(5 + i) for i in range(partitions)])]
    ours = share.write_acknowledge_success(version, asked, 30_000)
    assert b"".join(ours) == b"".join(
        share.write_acknowledge(version, answered, acquisition_lock_timeout_ms=30_000)
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("delay_ms", [0, 1, 86_400_000])
def test_a_release_with_a_delay_of_its_own(version: int, delay_ms: int) -> None:
    body = alone(2, release_delay_ms=delay_ms)
    data = codec.write_request(ACKNOWLEDGE, version, body)
    ours = share.read_acknowledge(version, memoryview(data), 0)
    assert ours.topics == [(uuid.UUID(int=3), [(5, [(7, 7, b"\x02", delay_ms)])])]
    for size in range(len(data)):
        with pytest.raises(WireError):
            share.read_acknowledge(version, memoryview(data)[:size], 0)
    assert b"\xe8\x07" in data
    assert b"\xe8\x07" not in codec.write_request(ACKNOWLEDGE, version, alone(2))


@pytest.mark.parametrize("tags", [b"\x01\xe8\x07\x04abcd", b"\x02\x05\x01a\x63\x00"])
def test_other_tags_of_a_batch_are_ignored(tags: bytes) -> None:
    plain = codec.write_request(ACKNOWLEDGE, 1, alone(1))
    data = plain[:-4] + tags + plain[-3:]
    assert share.read_acknowledge(1, memoryview(data), 0).topics == [
        (uuid.UUID(int=3), [(5, [(7, 7, b"\x01")])])
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("undelivered", [False, True])
def test_a_session_closed_with_records_that_count_as_undelivered(
    version: int, undelivered: bool
) -> None:
    body = {"group_id": "g", "member_id": "m" * 22, "share_session_epoch": -1, "topics": ()}
    plain = codec.write_request(ACKNOWLEDGE, version, body)
    data = codec.write_request(ACKNOWLEDGE, version, {**body, "undelivered": undelivered})
    assert share.read_acknowledge(version, memoryview(data), 0).undelivered is undelivered
    assert not share.read_acknowledge(version, memoryview(plain), 0).undelivered
    assert (data == plain) is not undelivered
    for size in range(len(data)):
        with pytest.raises(WireError):
            share.read_acknowledge(version, memoryview(data)[:size], 0)
