"""Admin requests on share groups' offsets: they span the group, which may refuse them, and the
share coordinator, which keeps the offsets.

Each follows one order: the group notes what is about to happen, the state is changed, the group
notes that it has. A broker that dies in between finds the note, and the request is made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.group.shard import GroupShard
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.state_store import NONE
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.share.leader import Phase
from shoal.server.share.state_write import Failure

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.share.service import ShareService

_Partition = tuple[UUID, int]
#: How long a share partition may take to load.
LOAD_TIMEOUT_MS = 5_000


def initialize(
    service: ShareService,
    group_id: str,
    partitions: Mapping[UUID, Iterable[int]],
    state_epoch: int,
    start_offsets: Mapping[_Partition, int] | None = None,
) -> asyncio.Future[dict[UUID, frozenset[int]]]:
    """Begin state; the future gets the partitions of which there is some now."""
    wanted = [(t, i) for t in sorted(partitions) for i in sorted(partitions[t])]
    offsets = start_offsets or {}

    def one(key: ShareKey) -> asyncio.Future[Any]:
        offset = offsets.get((key.topic_id, key.partition), NONE)
        return service.persister.initialize(key, state_epoch=state_epoch, start_offset=offset)

    async def all_of_them() -> dict[UUID, frozenset[int]]:
        results = await _each(group_id, wanted, one)
        there: dict[UUID, set[int]] = {}
        for (topic_id, index), code in results.items():
            if code is ErrorCode.none:
                there.setdefault(topic_id, set()).add(index)
        service.drop(group_id, [(t, i) for t, found in there.items() for i in sorted(found)])
        return {topic_id: frozenset(found) for topic_id, found in there.items()}

    return asyncio.ensure_future(all_of_them())


async def set_offsets(
    broker: Broker, group_id: str, offsets: Mapping[UUID, Mapping[int, int]]
) -> set[_Partition]:
    """Set start offsets by topic id and partition, and return the partitions where that worked.

    Creates the group if it does not exist and `offsets` names a topic.
    Raises GROUP_ID_NOT_FOUND for a group of another type, and NON_EMPTY_GROUP.
    """
    partitions = {topic_id: frozenset(starts) for topic_id, starts in offsets.items()}
    noted = await broker.groups.submit(
        group_id, lambda shard, _, token: shard.share.start_reset(group_id, partitions, token)
    )
    starts = {(t, i): offset for t, starts in offsets.items() for i, offset in starts.items()}
    there = await initialize(broker.share, group_id, partitions, noted["state_epoch"], starts)
    if there:
        await tell(broker, group_id, lambda s, now: s.share.initialized(group_id, there, now))
    return {(topic_id, index) for topic_id, found in there.items() for index in found}


async def delete_state(
    broker: Broker, service: ShareService, group_id: str, topic_ids: Sequence[UUID] | None
) -> dict[UUID, ErrorCode]:
    """Delete the state of some topics, or (None) of all; gives what became of each that had any.

    Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """
    noted = await broker.groups.submit(
        group_id, lambda shard, _, token: shard.share.start_deletion(group_id, topic_ids, token)
    )
    partitions: Mapping[UUID, frozenset[int]] = noted["partitions"]
    wanted = [(t, i) for t, indexes in partitions.items() for i in sorted(indexes)]

    results = await _each(group_id, wanted, service.persister.delete)
    service.drop(group_id, wanted)
    by_topic = dict.fromkeys(partitions, ErrorCode.none)
    for (topic_id, _), code in results.items():
        # What belongs to a topic that is gone is gone as well.
        if code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
            by_topic[topic_id] = code
    gone = [topic_id for topic_id, code in by_topic.items() if code is ErrorCode.none]
    if gone:
        await tell(broker, group_id, lambda shard, _: shard.share.deleted(group_id, gone))
    return by_topic


async def free(
    broker: Broker, group_id: str, topic_id: UUID, index: int, ranges: Sequence[tuple[int, int]]
) -> None:
    """Let keys go on that dead-lettered records among some offsets hold, until that is committed.

    Raises `ApiError`: NOT_LEADER_OR_FOLLOWER, and what the share coordinator refuses.
    """
    service = broker.share
    if service.find(group_id, topic_id, index) is None:
        summary = await service.persister.summary(ShareKey(group_id, topic_id, index))
        if not summary["error_code"] and not summary["delays"]:
            return  # Nothing is held.
    leader = service.lead(group_id, topic_id, index)
    if isinstance(leader, Failure):
        raise ApiError(leader.code, leader.message or "")
    if leader.phase is Phase.LOADING:
        await broker.purgatory.park(
            [leader.wake_key],
            lambda: None if leader.phase is Phase.LOADING else (),
            tuple,
            broker.clock.now_ms() + LOAD_TIMEOUT_MS,
        )
    if leader.phase is not Phase.ACTIVE:
        refusal = leader.failure or Failure(ErrorCode.coordinator_load_in_progress)
        raise ApiError(refusal.code, refusal.message or "")
    done: asyncio.Future[Failure | None] = broker.loop.create_future()

    def written(failure: Failure | None) -> None:
        if not done.done():
            done.set_result(failure)

    leader.free(ranges, written)
    failure = await done
    if failure is not None:
        raise ApiError(failure.code, failure.message or "")


async def summaries(
    service: ShareService, group_id: str, partitions: Iterable[_Partition]
) -> dict[_Partition, Mapping[str, Any]]:
    """What is persisted of share partitions: `error_code`, `start_offset`, `leader_epoch`,
    `state_epoch`, `delivery_complete_count`, as ReadShareGroupStateSummary has it."""
    found: dict[_Partition, Mapping[str, Any]] = {}
    for topic_id, index in partitions:
        key = ShareKey(group_id, topic_id, index)
        try:
            found[(topic_id, index)] = await service.persister.summary(key)
        except ApiError as refused:
            found[(topic_id, index)] = {"error_code": refused.code}
    return found


async def tell(broker: Broker, group_id: str, decide: Callable[[GroupShard, int], Result]) -> None:
    """Let the group note something, and wait until it is committed."""

    def acknowledged(shard: GroupShard, now_ms: int, token: Token) -> Result:
        result = decide(shard, now_ms)
        return Result(result.records, (*result.replies, Reply(token, {})), result.effects)

    await broker.groups.submit(group_id, acknowledged)


async def _each(
    group_id: str,
    partitions: Sequence[_Partition],
    decide: Callable[[ShareKey], asyncio.Future[Any]],
) -> dict[_Partition, ErrorCode]:
    """Decide on each share partition at once; gives what became of each."""
    replies = [decide(ShareKey(group_id, *partition)) for partition in partitions]
    results: dict[_Partition, ErrorCode] = {}
    for partition, reply in zip(partitions, replies, strict=True):
        try:
            results[partition] = (await reply)["error_code"]
        except ApiError as refused:
            results[partition] = refused.code
    return results
