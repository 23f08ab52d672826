"""Hand-written Fetch codec for bodies without rare fields; all others take the general codec.

A replicated record of 100 B is fetched by each follower in a request and a response of their own.
With the general codec these took a sixth of what the interpreter of a leader executed for it. Both
codecs agree byte for byte (`tests/wire/test_fetch_codec`). Source: Kafka's FetchRequest.json and
FetchResponse.json.

The reader of requests and the writers here know the versions in which a follower names itself in a
tag, and all topics have ids. A body with any other tag is left to `codec`: key ranges, a quorum's
fetch, a log that has diverged.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.protocol import codec, slices
from shoal.protocol.api import ApiKey
from shoal.protocol.compiler import GATHER_SIZE_MIN, get_uvarint, parse_uuid, put_uvarint
from shoal.protocol.errors import ErrorCode, WireError, to_error_code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

#: A buffer, or a slice of a file (`log.slices`).
Records = Any
#: The first version with topic ids, and the first with the replica in a tag.
TOPIC_IDS_FROM, REPLICA_TAG_FROM = 13, 15
#: More entries than this are left to `codec`, which checks how many a request may have.
ENTRIES_MAX = 100
#: max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch.
_REQUEST_HEAD = struct.Struct(">iiibii")
#: partition, current_leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset,
#: partition_max_bytes, no tags.
_REQUESTED = struct.Struct(">iiqiqiB")
#: One tag of 13 bytes, the replica: replica_id, replica_epoch, no tags.
_REPLICA = struct.Struct(">BBBiqB")
_REPLICA_TAG = (1, 1, 13)
#: A request of a follower for one partition: the head; one topic, its id, one partition; no tags of
#: the topic; none that leave the session, no rack; the replica, no tags.
_SINGLE_REQUEST = struct.Struct(">iiibiiB16sBiiqiqiBBBBBBBiqB")
_SINGLE_REQUEST_MIDDLE = (0, 0, 1, 1, *_REPLICA_TAG)
#: throttle_time_ms, error_code, session_id.
_RESPONSE_HEAD = struct.Struct(">ihi")
#: partition_index, error_code, high_watermark, last_stable_offset, log_start_offset.
_FETCHED = struct.Struct(">ihqqq")
#: No aborted_transactions, which are null, and no preferred_read_replica.
_NO_ABORTED = b"\0\xff\xff\xff\xff"


class ReplicaState(NamedTuple):
    """The broker that fetches; -1 for a consumer."""

    replica_id: int
    replica_epoch: int


class FetchPartition(NamedTuple):
    """What is asked of a partition."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


class FetchTopic(NamedTuple):
    """The partitions of a topic."""

    topic_id: UUID | None
    partitions: Sequence[FetchPartition]


class FetchRequest(NamedTuple):
    """A request in the names of the general codec, in milliseconds and bytes."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[FetchTopic]
    replica_state: ReplicaState
    #: Topics with the partitions that leave the session. Readers leave such a request to `codec`.
    forgotten_topics_data: Sequence[tuple[UUID, Sequence[int]]] = ()
    rack_id: str = ""


class PartitionData(NamedTuple):
    """What was fetched of a partition."""

    partition_index: int
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Records
    diverging_epoch: Any = None


class FetchedTopic(NamedTuple):
    """The partitions of a topic."""

    topic_id: UUID | None
    partitions: Sequence[PartitionData]


class FetchResponse(NamedTuple):
    """A response in the names of the general codec."""

    error_code: ErrorCode
    session_id: int
    responses: Sequence[FetchedTopic]


_CONSUMER = ReplicaState(-1, -1)


def get_max_wait_ms(body: Any) -> int:
    """Return the longest wait of a request, which the general codec has as a timedelta."""
    plain: int | None = getattr(body, "max_wait_ms", None)
    return codec.to_ms(body.max_wait) if plain is None else plain


def read_request(version: int, frame: memoryview, at: int) -> Any:
    """Parse the body that starts at `at`. Raises `WireError` for invalid bytes."""
    if version >= REPLICA_TAG_FROM:
        try:
            request = read_usual_request(frame, at)
        except (IndexError, struct.error):
            request = None
        if request is not None:
            return request
    return codec.read_request(ApiKey.FETCH, version, frame.toreadonly(), at)


def read_request_in_slices(version: int, frame: memoryview, at: int) -> slices.Slices:
    """Parse a large body, in slices."""
    return codec.read_request_in_slices(ApiKey.FETCH, version, frame.toreadonly(), at)


def read_usual_request(frame: memoryview, at: int) -> FetchRequest | None:
    """Parse a request without rare fields; None for any other, or bytes that may be invalid. Raises
    `IndexError` or `struct.error` where it is cut."""
    if len(frame) - at == _SINGLE_REQUEST.size:
        request = _read_single_request(frame, at)
        if request is not None:
            return request
    head = _REQUEST_HEAD.unpack_from(frame, at)
    at += _REQUEST_HEAD.size
    count, at = frame[at] - 1, at + 1
    if not 0 <= count < ENTRIES_MAX:
        return None
    topics: list[FetchTopic] = []
    for _ in range(count):
        topic = _read_topic(frame, at)
        if topic is None:
            return None
        at += 18 + len(topic.partitions) * _REQUESTED.size
        topics.append(topic)
    # No topics that leave the session, and no rack.
    if frame[at] != 1 or frame[at + 1] != 1:
        return None
    at += 2
    state = _CONSUMER
    if frame[at]:
        fields = _REPLICA.unpack_from(frame, at)
        if fields[:3] != _REPLICA_TAG or fields[5]:
            return None
        state = ReplicaState(*fields[3:5])
        at += _REPLICA.size - 1
    is_whole = at + 1 == len(frame)
    return FetchRequest._make((*head, topics, state, (), "")) if is_whole else None


def _read_topic(frame: memoryview, at: int) -> FetchTopic | None:
    """Parse a topic of a request: its id, the partitions, no tags."""
    count = frame[at + 16] - 1
    topic_id = parse_uuid(bytes(frame[at : at + 16]))
    at += 17
    if not 0 <= count < ENTRIES_MAX:
        return None
    partitions: list[FetchPartition] = []
    for _ in range(count):
        fields = _REQUESTED.unpack_from(frame, at)
        if fields[6]:
            return None
        partitions.append(FetchPartition(*fields[:6]))
        at += _REQUESTED.size
    return None if frame[at] else FetchTopic(topic_id, partitions)


def _read_single_request(frame: memoryview, at: int) -> FetchRequest | None:
    """Parse the request of a follower for one partition, in which only one has changed."""
    fields = _SINGLE_REQUEST.unpack_from(frame, at)
    if fields[6] != 2 or fields[8] != 2 or fields[15:22] != _SINGLE_REQUEST_MIDDLE or fields[24]:
        return None
    topic = FetchTopic(parse_uuid(fields[7]), (FetchPartition(*fields[9:15]),))
    return FetchRequest._make((*fields[:6], (topic,), ReplicaState(*fields[22:24]), (), ""))


def write_request(version: int, request: FetchRequest) -> bytearray:
    """Encode the request of a follower."""
    if version < REPLICA_TAG_FROM or request.forgotten_topics_data or request.rack_id:
        return codec.write_request(ApiKey.FETCH, version, _to_mapping(request))
    out = bytearray(_REQUEST_HEAD.pack(*request[:6]))
    put_uvarint(out, len(request.topics) + 1)
    for topic_id, partitions in request.topics:
        assert topic_id is not None
        out += topic_id.bytes
        put_uvarint(out, len(partitions) + 1)
        for partition in partitions:
            out += _REQUESTED.pack(*partition, 0)
        out.append(0)
    out += b"\x01\x01"
    out += _REPLICA.pack(*_REPLICA_TAG, *request.replica_state, 0)
    return out


def _to_mapping(request: FetchRequest) -> Mapping[str, Any]:
    topics = [
        {"topic_id": topic_id, "partitions": [p._asdict() for p in partitions]}
        for topic_id, partitions in request.topics
    ]
    forgotten = [
        {"topic_id": topic_id, "partitions": partitions}
        for topic_id, partitions in request.forgotten_topics_data
    ]
    state = request.replica_state._asdict()
    return {
        **request._asdict(),
        "topics": topics,
        "forgotten_topics_data": forgotten,
        "replica_state": state,
        "replica_id": request.replica_state.replica_id,
    }


def write_response(
    session_id: int, topics: Sequence[tuple[UUID | None, Sequence[PartitionData]]]
) -> list[Records]:
    """Encode a response without an error of the whole, in a version with topic ids. No entry
    has a diverging epoch. Large records stay where they are."""
    parts: list[Records] = []
    out = bytearray(_RESPONSE_HEAD.pack(0, 0, session_id))
    put_uvarint(out, len(topics) + 1)
    for topic_id, partitions in topics:
        out += bytes(16) if topic_id is None else topic_id.bytes
        put_uvarint(out, len(partitions) + 1)
        for index, code, high_watermark, stable, start, records, _ in partitions:
            out += _FETCHED.pack(index, code, high_watermark, stable, start)
            out += _NO_ABORTED
            size = len(records)
            put_uvarint(out, size + 1)
            if size < GATHER_SIZE_MIN:
                out += records
            else:
                parts += (out, records)
                out = bytearray()
            out.append(0)
        out.append(0)
    out.append(0)
    parts.append(out)
    return parts


def read_response(version: int, frame: bytes, at: int) -> Any:
    """Parse the response to a follower. Raises `WireError` for invalid bytes."""
    if version >= TOPIC_IDS_FROM:
        try:
            response = read_usual_response(frame, at)
        except (IndexError, struct.error, WireError):
            response = None
        if response is not None:
            return response
    return codec.read_response(ApiKey.FETCH, version, frame, at)


def read_usual_response(frame: bytes, at: int) -> FetchResponse | None:
    """Parse a response without rare fields; None for any other, or bytes that may be invalid.
    Raises `IndexError` or `struct.error` where it is cut, and `WireError` for an invalid size."""
    _, error_code, session_id = _RESPONSE_HEAD.unpack_from(frame, at)
    view = memoryview(frame)
    count, at = get_uvarint(view, at + _RESPONSE_HEAD.size)
    responses: list[FetchedTopic] = []
    for _ in range(count - 1):
        entries, behind = get_uvarint(view, at + 16)
        topic_id, at = parse_uuid(frame[at : at + 16]), behind
        partitions: list[PartitionData] = []
        for _ in range(entries - 1):
            index, code, high_watermark, stable, start = _FETCHED.unpack_from(frame, at)
            at += _FETCHED.size
            if frame[at : at + 5] != _NO_ABORTED:
                return None
            size, at = get_uvarint(view, at + 5)
            end = at + size - 1
            if not size or frame[end]:
                return None
            records = frame[at:end]
            error = to_error_code(code)
            partitions.append(PartitionData(index, error, high_watermark, stable, start, records))
            at = end + 1
        if frame[at] or entries < 1:
            return None
        at += 1
        responses.append(FetchedTopic(topic_id, partitions))
    is_whole = count > 0 and at + 1 == len(frame) and not frame[at]
    error = to_error_code(error_code)
    return FetchResponse(error, session_id, responses) if is_whole else None
