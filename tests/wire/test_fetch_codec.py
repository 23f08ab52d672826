"""The hand-written codec of Fetch compared with the general one: same fields, same bytes."""

import random
import uuid
from typing import Any

import pytest
from kio.static.constants import EntityType
from shoal.protocol import codec, compiler, fetch
from shoal.protocol.errors import ErrorCode, WireError

FETCH = 1
VERSIONS = range(4, 19)
WITH_REPLICA_TAG = range(fetch.REPLICA_TAG_FROM, 19)


def make_id(rng: random.Random) -> uuid.UUID | None:
    return rng.choice([None, uuid.UUID(int=rng.getrandbits(128) | 1)])


def make_request(rng: random.Random) -> dict[str, Any]:
    """Return a request of any shape that a follower or a consumer may send."""
    topics = [
        {
            "topic": rng.choice(["a", "naïve", "t" * 249]),
            "topic_id": make_id(rng),
            "partitions": [make_requested(rng) for _ in range(rng.choice([0, 1, 2]))],
        }
        for _ in range(rng.choice([0, 1, 1, 3, 110]))
    ]
    forgotten = {"topic": "f", "topic_id": make_id(rng), "partitions": [1, 2]}
    state = {"replica_id": rng.choice([-1, 3]), "replica_epoch": rng.choice([-1, 1 << 40])}
    return {
        "max_wait_ms": rng.randrange(1 << 31),
        "min_bytes": rng.randrange(1 << 31),
        "max_bytes": rng.randrange(1 << 31),
        "isolation_level": rng.randrange(2),
        "session_id": rng.randrange(1 << 31),
        "session_epoch": rng.choice([-1, 0, 7]),
        "topics": topics,
        "forgotten_topics_data": [forgotten] * rng.choice([0, 0, 0, 1]),
        "rack_id": rng.choice(["", "", "east"]),
        "replica_id": state["replica_id"],
        "replica_state": rng.choice([state, {"replica_id": -1, "replica_epoch": -1}]),
        "cluster_id": rng.choice([None, None, None, "c"]),
    }


def make_requested(rng: random.Random) -> dict[str, Any]:
    tags: list[dict[str, Any]] = [
        {},
        {},
        {},
        {"replica_directory_id": uuid.UUID(int=5)},
        {"high_watermark": 9},
    ]
    return {
        "partition": rng.randrange(1 << 31),
        "current_leader_epoch": rng.randrange(-1, 9),
        "fetch_offset": rng.randrange(1 << 60),
        "last_fetched_epoch": rng.randrange(-1, 9),
        "log_start_offset": rng.randrange(1 << 60),
        "partition_max_bytes": rng.randrange(1 << 31),
        **rng.choice(tags),
    }


def flatten_request(body: Any) -> Any:
    state = getattr(body, "replica_state", None)
    return (
        fetch.get_max_wait_ms(body),
        body.min_bytes,
        body.max_bytes,
        body.isolation_level,
        getattr(body, "session_id", 0),
        getattr(body, "session_epoch", -1),
        getattr(body, "rack_id", ""),
        None if state is None else (state.replica_id, state.replica_epoch),
        [
            (
                getattr(topic, "topic_id", None),
                [
                    tuple(getattr(p, n, -1) for n in fetch.FetchPartition._fields)
                    for p in topic.partitions
                ],
            )
            for topic in body.topics
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_reads_the_requests_that_kio_reads(version: int, seed: int) -> None:
    rng = random.Random(f"{seed}.{version}")
    for _ in range(20):
        data = bytes(codec.write_request(FETCH, version, make_request(rng)))
        frame = bytearray(b"head") + data
        ours = fetch.read_request(version, memoryview(frame), 4)
        assert flatten_request(ours) == flatten_request(codec.read_request(FETCH, version, data))


def test_usual_requests_need_no_general_codec() -> None:
    partition = fetch.FetchPartition(7, 1, 1 << 40, 1, 5, 1 << 20)
    topic = fetch.FetchTopic(uuid.UUID(int=9), [partition])
    for topics in ([], [topic], [topic, topic]):
        state = fetch.ReplicaState(2, 77)
        request = fetch.FetchRequest(500, 1, 1 << 20, 0, 1234, 5, topics, state)
        data = fetch.write_request(18, request)
        read = fetch.read_usual_request(memoryview(data), 0)
        assert read is not None
        assert flatten_request(read) == flatten_request(request)


@pytest.mark.parametrize("version", WITH_REPLICA_TAG)
def test_writes_the_requests_that_the_general_codec_writes(version: int, seed: int) -> None:
    rng = random.Random(f"{seed}.{version}")
    for _ in range(20):
        topics = [
            fetch.FetchTopic(
                uuid.UUID(int=rng.getrandbits(128) | 1),
                [fetch.FetchPartition(n, 1, 2, 3, 4, 5) for n in range(rng.choice([0, 1, 130]))],
            )
            for _ in range(rng.choice([0, 1, 2]))
        ]
        forgotten = [(uuid.UUID(int=3), [1])] * rng.choice([0, 0, 1])
        state = fetch.ReplicaState(1, rng.choice([5, 1 << 50]))
        request = fetch.FetchRequest(1, 2, 3, 0, 5, 6, topics, state, forgotten)
        general = codec.write_request(FETCH, version, fetch._to_mapping(request))  # noqa: SLF001
        assert fetch.write_request(version, request) == general


@pytest.mark.parametrize("version", [13, 17, 18])
def test_the_responses_are_those_of_the_general_codec(version: int, seed: int) -> None:
    rng = random.Random(f"{seed}.{version}")
    for _ in range(20):
        topics = [
            (
                make_id(rng),
                [
                    fetch.PartitionData(
                        rng.randrange(1 << 31),
                        ErrorCode(rng.choice([0, 3, 6])),
                        rng.randrange(1 << 60),
                        rng.randrange(-1, 1 << 60),
                        rng.randrange(1 << 60),
                        rng.choice([b"", rng.randbytes(100), rng.randbytes(200_000)]),
                    )
                    for _ in range(rng.choice([0, 1, 3, 130]))
                ],
            )
            for _ in range(rng.choice([0, 1, 2]))
        ]
        written = b"".join(fetch.write_response(11, topics))
        mapping = {
            "session_id": 11,
            "responses": [
                {"topic_id": id, "partitions": [without_divergence(p) for p in partitions]}
                for id, partitions in topics
            ],
        }
        out = compiler.ScatterBuffer()
        codec.get_writer(FETCH, version, EntityType.response)(out, mapping)
        assert written == b"".join(out.get_parts())
        read = fetch.read_response(version, written, 0)
        general = codec.read_response(FETCH, version, written)
        assert flatten_response(read) == flatten_response(general)


def without_divergence(partition: fetch.PartitionData) -> dict[str, Any]:
    """Return an entry as leaders write it with the general codec."""
    fields = {**partition._asdict(), "aborted_transactions": None}
    del fields["diverging_epoch"]
    return fields


def flatten_response(body: Any) -> Any:
    return (
        body.error_code,
        body.session_id,
        [
            (
                topic.topic_id,
                [
                    (
                        p.partition_index,
                        p.error_code,
                        p.high_watermark,
                        p.last_stable_offset,
                        p.log_start_offset,
                        p.records or b"",
                    )
                    for p in topic.partitions
                ],
            )
            for topic in body.responses
        ],
    )


def test_every_change_of_a_byte_is_read_as_any(seed: int) -> None:
    """Whichever byte of a usual message is wrong or missing, the reader of the usual shape agrees
    with the general one, or leaves the message to it."""
    partition = fetch.FetchPartition(7, 1, 1 << 40, 1, 5, 1 << 20)
    topics = [fetch.FetchTopic(uuid.UUID(int=seed + 1), [partition])]
    request = fetch.FetchRequest(500, 1, 1 << 20, 0, 1, 5, topics, fetch.ReplicaState(2, 77))
    for frame in list_changes(bytes(fetch.write_request(18, request))):
        general = attempt(lambda data: codec.read_request(FETCH, 18, data), frame)
        ours = attempt(lambda data: fetch.read_request(18, memoryview(data), 0), frame)
        assert ours is general is None or flatten_request(ours) == flatten_request(general)
    fetched = fetch.PartitionData(7, ErrorCode.none, 9, -1, 0, b"records")
    response = b"".join(fetch.write_response(3, [(uuid.UUID(int=seed + 1), [fetched])]))
    for frame in list_changes(response):
        general = attempt(lambda data: codec.read_response(FETCH, 18, data), frame)
        ours = attempt(lambda data: fetch.read_response(18, data, 0), frame)
        assert ours is general is None or flatten_response(ours) == flatten_response(general)


def list_changes(data: bytes) -> list[bytes]:
    """Return the bytes cut at each place, with one more, and with other values of each byte."""
    frames = [data + b"\0", *(data[:end] for end in range(len(data)))]
    for at in range(len(data)):
        others = {0, 1, 0x80, data[at] + 1 & 0xFF} - {data[at]}
        frames += [data[:at] + bytes([value]) + data[at + 1 :] for value in others]
    return frames


def attempt(read: Any, frame: bytes) -> Any:
    """Return what a reader finds; None for bytes that it refuses."""
    try:
        return read(frame)
    except WireError:
        return None
