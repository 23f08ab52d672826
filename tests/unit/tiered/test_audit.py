"""The comparison of a partition's objects with its metadata: its result, and how much of it one
turn of the event loop does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.server.tiered import reconciliation
from shoal.tiered import audit, keys
from shoal.tiered.metadata_records import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
)
from shoal.tiered.remote_log import RemoteLog, RemoteSegment, encode_custom_metadata, unpack
from shoal.tiered.store import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "c/t-AAAAAAAAAAAAAAAAAAAAAQ/0/"
TOPIC_ID = UUID(int=1)
SIZE = 700


def key_of(number: int) -> str:
    return keys.format_segment_key(PREFIX, number, UUID(int=number))


def info(number: int, size: int = SIZE) -> ObjectInfo:
    return ObjectInfo(key_of(number), size, 1000 - number)


def remote_log(finished: range | list[int], started: list[int] | None = None) -> RemoteLog:
    """Return a log whose segments have the ids of these numbers."""
    made = RemoteLog()
    for number in [*finished, *(started or [])]:
        identity = RemoteLogSegmentId("t", TOPIC_ID, 0, UUID(int=number))
        made.replay(
            RemoteLogSegmentMetadata(
                identity,
                number,
                number,
                1,
                0,
                0,
                ((0, number),),
                500,
                RemoteLogSegmentState.COPY_SEGMENT_STARTED,
                True,
            )
        )
        if number in finished:
            done = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            made.replay(
                RemoteLogSegmentUpdate(identity, 1, 0, encode_custom_metadata(SIZE, 100), done)
            )
    return made


numbers = st.lists(st.integers(1, 12), unique=True)


@given(numbers, numbers, numbers, numbers, st.integers(1, 5))
def test_the_result_is_that_of_a_plain_comparison(
    finished: list[int], started: list[int], objects: list[int], short: list[int], step: int
) -> None:
    started = [n for n in started if n not in finished]
    remote = remote_log(finished, started)
    infos = [info(n, SIZE - (n in short)) for n in objects]
    infos.insert(len(infos) // 2, ObjectInfo(f"{PREFIX}manifest", 5, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "STEP", step)
        found = audit.compare(infos, remote)
    assert found.objects == len(objects)
    assert found.size_bytes == sum(one.size for one in infos) - 5
    unknown = sorted(set(objects) - set(finished) - set(started), reverse=True)
    assert [one.key for one in found.orphans] == [key_of(n) for n in unknown]
    lost = [n for n in sorted(finished) if n not in objects or n in short]
    assert [segment.base_offset for segment in found.missing] == lost
    assert audit.find_unnamed(found.orphans, remote) == list(found.orphans)
    # Their metadata arrives before they are deleted.
    assert audit.find_unnamed(found.orphans, remote_log(unknown[:1], unknown[1:])) == []


def test_a_step_looks_at_few_objects_and_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 10_000
    remote, work = remote_log(range(1, count + 1)), 0

    def counted(packed: bytes) -> RemoteSegment:
        nonlocal work
        work += 1
        return unpack(packed)

    def listed() -> Iterator[ObjectInfo]:
        nonlocal work
        for number in range(1, count + 1):
            work += 1
            yield info(number)

    monkeypatch.setattr(audit, "unpack", counted)
    each = []
    for _ in audit.compare_in_steps(listed(), remote):
        each.append(work)
        work = 0
    assert max(each) == audit.STEP
    assert sum(each) + work == 2 * count
    # The ids of the segments are read in steps of their own.
    assert len(each) == 3 * count // audit.STEP


def test_the_event_loop_turns_between_the_steps() -> None:
    async def run() -> int:
        turns = 0
        running = True

        async def other_work() -> None:
            nonlocal turns
            while running:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other_work())
        infos = [info(number) for number in range(1, 4 * audit.STEP + 1)]
        found = await reconciliation.compare_in_steps(infos, remote_log(range(1, audit.STEP + 1)))
        running = False
        await task
        assert len(found.orphans) == 3 * audit.STEP
        return turns

    # One step has the ids, four the objects, and one the segments.
    assert asyncio.run(run()) >= 6
