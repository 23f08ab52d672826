"""Incremental fetch sessions (KIP-227)."""

import itertools
import uuid
from typing import Any

import pytest
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.network.fetch_sessions import FetchSessions

TOPIC = uuid.UUID(int=1)
OTHER = uuid.UUID(int=2)


def request(
    session_id: int, epoch: int, *asked: tuple[uuid.UUID, int, int], forgotten: Any = ()
) -> Any:
    """A Fetch request of version 16. `asked` are (topic id, partition, fetch offset)."""
    body = {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "session_id": session_id,
        "session_epoch": epoch,
        "topics": [
            {
                "topic_id": topic_id,
                "partitions": [
                    {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1000}
                ],
            }
            for topic_id, index, offset in asked
        ],
        "forgotten_topics_data": [
            {"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in forgotten
        ],
    }
    data = bytes(codec.write_request(ApiKey.FETCH, 16, body))
    return codec.read_request(ApiKey.FETCH, 16, memoryview(data), 0)


def sessions(slots: int = 2) -> FetchSessions:
    ids = itertools.count(100)
    return FetchSessions(slots, eviction_ms=120_000, random_id=lambda: next(ids))


def test_an_incremental_request_changes_the_session() -> None:
    cache = sessions()
    session, incremental, cursors = cache.begin(request(0, 0, (TOPIC, 0, 5), (OTHER, 1, 6)), 16, 0)
    assert session is not None
    assert session.id == 100
    assert not incremental
    assert [(c.topic_id, c.fetch_offset) for c in cursors] == [(TOPIC, 5), (OTHER, 6)]

    session, incremental, cursors = cache.begin(request(100, 1, (TOPIC, 0, 9)), 16, 0)
    assert incremental
    assert [(c.topic_id, c.fetch_offset) for c in cursors] == [(TOPIC, 9), (OTHER, 6)]

    _, _, cursors = cache.begin(request(100, 2, forgotten=[(TOPIC, [0])]), 16, 0)
    assert [c.topic_id for c in cursors] == [OTHER]


@pytest.mark.parametrize(
    ("session_id", "epoch", "version", "code"),
    [
        (7, 1, 16, ErrorCode.fetch_session_id_not_found),
        (100, 2, 16, ErrorCode.invalid_fetch_session_epoch),
        (100, 1, 12, ErrorCode.fetch_session_topic_id_error),
    ],
)
def test_invalid_session_ids_and_epochs(
    session_id: int, epoch: int, version: int, code: ErrorCode
) -> None:
    cache = sessions()
    cache.begin(request(0, 0, (TOPIC, 0, 5)), 16, 0)
    with pytest.raises(ApiError) as refused:
        cache.begin(request(session_id, epoch), version, 0)
    assert refused.value.code is code


def test_the_session_ends_with_its_last_partition_or_by_the_final_epoch() -> None:
    cache = sessions()
    cache.begin(request(0, 0, (TOPIC, 0, 5)), 16, 0)
    session, _, cursors = cache.begin(request(100, 1, forgotten=[(TOPIC, [0])]), 16, 0)
    assert session is not None
    assert not cursors
    assert len(cache) == 0
    cache.begin(request(0, 0, (TOPIC, 0, 5)), 16, 0)
    session, _, _ = cache.begin(request(101, -1, (TOPIC, 0, 5)), 16, 0)
    assert session is None
    assert len(cache) == 0


def test_a_full_cache_replaces_only_idle_sessions() -> None:
    cache = sessions(slots=1)
    cache.begin(request(0, 0, (TOPIC, 0, 5)), 16, now_ms=0)
    session, _, cursors = cache.begin(request(0, 0, (OTHER, 0, 5)), 16, now_ms=120_000)
    assert session is None
    assert len(cursors) == 1
    session, _, _ = cache.begin(request(0, 0, (OTHER, 0, 5)), 16, now_ms=120_001)
    assert session is not None
    assert cache.evictions_total == 1


def test_partitions_with_data_move_to_the_end() -> None:
    cache = sessions()
    session, _, cursors = cache.begin(request(0, 0, (TOPIC, 0, 0), (OTHER, 0, 0)), 16, 0)
    assert session is not None
    session.rotate(cursors[0])
    _, _, cursors = cache.begin(request(100, 1), 16, 0)
    assert [c.topic_id for c in cursors] == [OTHER, TOPIC]
