"""Admin requests on share groups' offsets: they span the group and the share coordinator.

The group may refuse a request; the share coordinator keeps the offsets. Each request first records
its start in the group, then changes the state, then records its end in the group. If a broker dies
in between, the next one finds the record, and the request is made again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.state_store import NONE
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.share.leader import Phase, ShareLeader
from shoal.server.share.state_write import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.coordinator.group.shard import GroupShard
    from shoal.protocol.share import InFlight
    from shoal.server.coordinators.groups import GroupService
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node
    from shoal.server.share.persister import Persister

_Partition = tuple[UUID, int]
#: How long a share partition may take to load.
LOAD_TIMEOUT_MS = 5_000


class SharePartitions(Protocol):
    """The share partitions of one broker, as far as admin requests use them."""

    def find(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | None:
        """A share partition that is loaded or loading."""

    def lead(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | Failure:
        """The share partition, loading if it was not loaded, or why it is not served here."""

    def drop(self, group_id: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Drop share partitions whose state was reset or deleted."""


class ShareAdmin:
    """Carries out admin requests. Owns nothing."""

    def __init__(
        self,
        node: Node,
        groups: GroupService,
        purgatory: Purgatory,
        persister: Persister,
        partitions: SharePartitions,
    ) -> None:
        self._node = node
        self._groups = groups
        self._purgatory = purgatory
        self._persister = persister
        self._partitions = partitions

    def initialize(
        self,
        group_id: str,
        partitions: Mapping[UUID, Iterable[int]],
        state_epoch: int,
        start_offsets: Mapping[_Partition, int] | None = None,
    ) -> asyncio.Future[dict[UUID, frozenset[int]]]:
        """Begin the state of share partitions, at given offsets or where the group's policy says.

        The future gets the partitions that have a state now, by topic id.
        """
        wanted = [(t, i) for t in sorted(partitions) for i in sorted(partitions[t])]
        offsets = start_offsets or {}

        def one(key: ShareKey) -> asyncio.Future[Any]:
            offset = offsets.get((key.topic_id, key.partition), NONE)
            return self._persister.initialize(key, state_epoch=state_epoch, start_offset=offset)

        async def all_of_them() -> dict[UUID, frozenset[int]]:
            results = await _each(group_id, wanted, one)
            initialized: dict[UUID, set[int]] = {}
            for (topic_id, index), code in results.items():
                if code is ErrorCode.none:
                    initialized.setdefault(topic_id, set()).add(index)
            self._partitions.drop(
                group_id, [(t, i) for t, found in initialized.items() for i in sorted(found)]
            )
            return {topic_id: frozenset(found) for topic_id, found in initialized.items()}

        return asyncio.ensure_future(all_of_them())

    async def set_offsets(
        self, group_id: str, offsets: Mapping[UUID, Mapping[int, int]]
    ) -> set[_Partition]:
        """Set start offsets by topic id and partition, and return the partitions that were set.

        Creates the group if it does not exist and `offsets` names a topic.
        Raises GROUP_ID_NOT_FOUND for a group of another type, and NON_EMPTY_GROUP.
        """
        partitions = {topic_id: frozenset(starts) for topic_id, starts in offsets.items()}
        begun = await self._groups.submit(
            group_id, lambda shard, _, token: shard.share.start_reset(group_id, partitions, token)
        )
        starts = {(t, i): offset for t, starts in offsets.items() for i, offset in starts.items()}
        done = await self.initialize(group_id, partitions, begun["state_epoch"], starts)
        if done:
            await self._record(group_id, lambda s, now: s.share.initialized(group_id, done, now))
        return {(topic_id, index) for topic_id, found in done.items() for index in found}

    async def delete_state(
        self, group_id: str, topic_ids: Sequence[UUID] | None = None
    ) -> dict[UUID, ErrorCode]:
        """Delete the state of some topics, or of all (None). Return the error of each topic that
        had a state.

        Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        begun = await self._groups.submit(
            group_id, lambda shard, _, token: shard.share.start_deletion(group_id, topic_ids, token)
        )
        partitions: Mapping[UUID, frozenset[int]] = begun["partitions"]
        wanted = [(t, i) for t, indexes in partitions.items() for i in sorted(indexes)]

        results = await _each(group_id, wanted, self._persister.delete)
        self._partitions.drop(group_id, wanted)
        by_topic = dict.fromkeys(partitions, ErrorCode.none)
        for (topic_id, _), code in results.items():
            # The state of a deleted topic is deleted as well.
            if code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
                by_topic[topic_id] = code
        deleted = [topic_id for topic_id, code in by_topic.items() if code is ErrorCode.none]
        if deleted:
            await self._record(group_id, lambda shard, _: shard.share.deleted(group_id, deleted))
        return by_topic

    async def free(
        self, group_id: str, topic_id: UUID, index: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Free the keys that dead-lettered records in these ranges hold, and wait for the commit.

        Raises `ApiError`: NOT_LEADER_OR_FOLLOWER, and the refusals of the share coordinator.
        """
        if self._partitions.find(group_id, topic_id, index) is None:
            summary = await self._persister.summary(ShareKey(group_id, topic_id, index))
            if not summary["error_code"] and not summary["delays"]:
                return  # No record holds a key.
        leader = await self._active(group_id, topic_id, index)
        done: asyncio.Future[Failure | None] = self._node.loop.create_future()

        def written(failure: Failure | None) -> None:
            if not done.done():
                done.set_result(failure)

        leader.free(ranges, written)
        failure = await done
        if failure is not None:
            raise ApiError(failure.code, failure.message or "")

    async def in_flight(
        self, group_id: str, topic_id: UUID, index: int, first: int, entries_max: int
    ) -> tuple[list[InFlight], int | None]:
        """Return the records in flight from offset `first` on, at most `entries_max` ranges, and
        the offset where the next page begins, or None after the last one.

        Raises `ApiError`: NOT_LEADER_OR_FOLLOWER, and the refusals of the share coordinator.
        """
        if self._partitions.find(group_id, topic_id, index) is None:
            summary = await self._persister.summary(ShareKey(group_id, topic_id, index))
            if summary["error_code"]:
                raise ApiError(summary["error_code"], summary.get("error_message") or "")
            if summary["start_offset"] == NONE:
                return [], None  # The group has not begun to read.
        leader = await self._active(group_id, topic_id, index)
        return leader.in_flight(first, entries_max)

    async def _active(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader:
        """Return a share partition once it is loaded. Raises `ApiError`."""
        leader = self._partitions.lead(group_id, topic_id, index)
        if isinstance(leader, Failure):
            raise ApiError(leader.code, leader.message or "")
        if leader.phase is Phase.LOADING:
            await self._purgatory.park(
                [leader.wake_key],
                lambda: None if leader.phase is Phase.LOADING else (),
                tuple,
                self._node.clock.now_ms() + LOAD_TIMEOUT_MS,
            )
        if leader.phase is not Phase.ACTIVE:
            refusal = leader.failure or Failure(ErrorCode.coordinator_load_in_progress)
            raise ApiError(refusal.code, refusal.message or "")
        return leader

    async def summaries(
        self, group_id: str, partitions: Iterable[_Partition]
    ) -> dict[_Partition, Mapping[str, Any]]:
        """Return the persisted facts of share partitions, as in ReadShareGroupStateSummary:
        `error_code`, `start_offset`, `leader_epoch`, `state_epoch`, `delivery_complete_count`."""
        found: dict[_Partition, Mapping[str, Any]] = {}
        for topic_id, index in partitions:
            key = ShareKey(group_id, topic_id, index)
            try:
                found[(topic_id, index)] = await self._persister.summary(key)
            except ApiError as refused:
                found[(topic_id, index)] = {"error_code": refused.code}
        return found

    async def _record(self, group_id: str, decide: Callable[[GroupShard, int], Result]) -> None:
        """Have the group decide, and wait until its records are committed."""
        await self._groups.submit(group_id, acknowledged(decide))


def acknowledged(
    decide: Callable[[GroupShard, int], Result],
) -> Callable[[GroupShard, int, Token], Result]:
    """Return `decide` with an empty reply."""

    def replying(shard: GroupShard, now_ms: int, token: Token) -> Result:
        result = decide(shard, now_ms)
        return Result(result.records, (*result.replies, Reply(token, {})), result.effects)

    return replying


async def _each(
    group_id: str,
    partitions: Sequence[_Partition],
    decide: Callable[[ShareKey], asyncio.Future[Any]],
) -> dict[_Partition, ErrorCode]:
    """Decide on all share partitions at once. Return the error of each."""
    replies = [decide(ShareKey(group_id, *partition)) for partition in partitions]
    results: dict[_Partition, ErrorCode] = {}
    for partition, reply in zip(partitions, replies, strict=True):
        try:
            results[partition] = (await reply)["error_code"]
        except ApiError as refused:
            results[partition] = refused.code
    return results
