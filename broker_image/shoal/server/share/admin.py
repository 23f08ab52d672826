"""Admin requests on share groups' offsets: they span the group and the share coordinator.

The group may refuse a request; the share coordinator keeps the offsets. Each request first records
its start in the group, then changes the state, then records its end in the group. If a broker dies
in between, the next one finds the record, and the request is made again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.state_store import NONE
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.share.cooperative_scheduler import CooperativeScheduler
from shoal.server.share.leader import LeaderPhase, ShareLeader
from shoal.server.share.state_write import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.coordinator.group.shard import GroupShard
    from shoal.protocol.share import CancelledRecords, InFlightRecords
    from shoal.server.coordinators.groups import GroupService
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node
    from shoal.server.share.persister import Persister

_Partition = tuple[UUID, int]
#: Ranges that one turn of the loop cancels: 10 ms of work in a window of 100,000 runs.
CANCELLED_AT_ONCE = 100
#: Share partitions whose persisted facts one turn of the loop reads: 5 ms of work.
SUMMARIES_AT_ONCE = 200
#: How long a share partition may take to load.
LOAD_TIMEOUT_MS = 5_000
#: Share partitions whose state is begun or deleted in one turn of the loop: some 5 ms of work, here
#: or for the requests to other brokers.
DECISIONS_MAX = 50


class AdminPartitionsPort(Protocol):
    """The share partitions of one broker, as far as admin requests use them."""

    def find(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | None:
        """A share partition that is loaded or loading."""

    def lead(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | Failure:
        """The share partition, loading if it was not loaded, or why it is not served here."""

    def drop(self, group_id: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Drop share partitions whose state was reset or deleted."""


class ShareAdmin:
    """Carries out admin requests. Owns the decisions on share partitions that wait for a turn of
    the loop: one request may need thousands."""

    def __init__(
        self,
        node: Node,
        groups: GroupService,
        purgatory: Purgatory,
        persister: Persister,
        partitions: AdminPartitionsPort,
    ) -> None:
        self._node = node
        self._groups = groups
        self._purgatory = purgatory
        self._persister = persister
        self._partitions = partitions
        self._decisions = CooperativeScheduler(node.loop, DECISIONS_MAX)

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
        partition_keys = [(t, i) for t in sorted(partitions) for i in sorted(partitions[t])]
        offsets = start_offsets or {}

        def initialize_one(key: ShareKey) -> asyncio.Future[Any]:
            offset = offsets.get((key.topic_id, key.partition), NONE)
            return self._persister.initialize(key, state_epoch=state_epoch, start_offset=offset)

        async def initialize_all() -> dict[UUID, frozenset[int]]:
            results = await self._decide_each(group_id, partition_keys, initialize_one)
            initialized: dict[UUID, set[int]] = {}
            for (topic_id, index), code in results.items():
                if code is ErrorCode.none:
                    initialized.setdefault(topic_id, set()).add(index)
            self._partitions.drop(
                group_id, [(t, i) for t, indexes in initialized.items() for i in sorted(indexes)]
            )
            return {topic_id: frozenset(indexes) for topic_id, indexes in initialized.items()}

        return asyncio.ensure_future(initialize_all())

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
        initialized = await self.initialize(group_id, partitions, begun["state_epoch"], starts)
        if initialized:
            await self._record(
                group_id, lambda s, now: s.share.on_initialized(group_id, initialized, now)
            )
        return {(topic_id, index) for topic_id, indexes in initialized.items() for index in indexes}

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
        partition_keys = [(t, i) for t, indexes in partitions.items() for i in sorted(indexes)]

        results = await self._decide_each(group_id, partition_keys, self._persister.delete)
        self._partitions.drop(group_id, partition_keys)
        by_topic = dict.fromkeys(partitions, ErrorCode.none)
        for (topic_id, _), code in results.items():
            # The state of a deleted topic is deleted as well.
            if code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
                by_topic[topic_id] = code
        deleted = [topic_id for topic_id, code in by_topic.items() if code is ErrorCode.none]
        if deleted:
            await self._record(group_id, lambda shard, _: shard.share.on_deleted(group_id, deleted))
        return by_topic

    async def free(
        self, group_id: str, topic_id: UUID, index: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Free the keys that dead-lettered records in these ranges hold, and wait for the commit.

        Raises `ApiError`: NOT_LEADER_OR_FOLLOWER, and the refusals of the share coordinator.
        """
        if self._partitions.find(group_id, topic_id, index) is None:
            summary = await self._persister.read_summary(ShareKey(group_id, topic_id, index))
            if not summary["error_code"] and not summary["delays"]:
                return  # No record holds a key.
        leader = await self._await_active(group_id, topic_id, index)
        written = self._node.loop.create_future()
        leader.free(ranges, partial(_set_written, written))
        await written

    async def cancel(
        self,
        group_id: str,
        topic_id: UUID,
        index: int,
        ranges: Sequence[tuple[int, int]],
        *,
        dead_letter: bool,
    ) -> list[CancelledRecords]:
        """Cancel the records of these ranges for the group, wait for the commit, and return what
        became of them. With `dead_letter`, each gets one.

        Raises `ApiError`: NOT_LEADER_OR_FOLLOWER, INVALID_REQUEST for a group that has not begun
        to read, or that has no dead letters, and the refusals of the share coordinator.
        """
        if self._partitions.find(group_id, topic_id, index) is None:
            summary = await self._persister.read_summary(ShareKey(group_id, topic_id, index))
            if summary["error_code"]:
                raise ApiError(summary["error_code"], summary.get("error_message") or "")
            if summary["start_offset"] == NONE:
                raise ApiError(
                    ErrorCode.invalid_request,
                    f"group {group_id} has not begun to read partition {index}. Start a member,"
                    " then cancel.",
                )
        leader = await self._await_active(group_id, topic_id, index)
        if dead_letter and not leader.settings.dead_letters:
            raise ApiError(
                ErrorCode.invalid_request,
                f"group {group_id} has no dead-letter topic. Set"
                " errors.deadletterqueue.topic.name, or cancel without dead letters.",
            )
        records: list[CancelledRecords] = []
        writes: list[asyncio.Future[None]] = []
        for begin in range(0, len(ranges), CANCELLED_AT_ONCE):
            if begin:
                await asyncio.sleep(0)  # Others may use the loop.
                # A leader without members may be dropped meanwhile. The next one knows as much.
                try:
                    leader = await self._await_active(group_id, topic_id, index)
                except ApiError:
                    await asyncio.gather(*writes, return_exceptions=True)
                    raise
            writes.append(self._node.loop.create_future())
            records += leader.cancel(
                ranges[begin : begin + CANCELLED_AT_ONCE],
                partial(_set_written, writes[-1]),
                dead_letter=dead_letter,
            )
        await asyncio.gather(*writes)
        return records

    async def list_in_flight(
        self, group_id: str, topic_id: UUID, index: int, first: int, entries_max: int
    ) -> tuple[list[InFlightRecords], int | None]:
        """Return the records in flight from offset `first` on, at most `entries_max` ranges, and
        the offset where the next page begins, or None after the last one.

        Raises `ApiError`: NOT_LEADER_OR_FOLLOWER, and the refusals of the share coordinator.
        """
        if self._partitions.find(group_id, topic_id, index) is None:
            summary = await self._persister.read_summary(ShareKey(group_id, topic_id, index))
            if summary["error_code"]:
                raise ApiError(summary["error_code"], summary.get("error_message") or "")
            if summary["start_offset"] == NONE:
                return [], None  # The group has not begun to read.
        leader = await self._await_active(group_id, topic_id, index)
        return leader.list_in_flight(first, entries_max)

    async def _await_active(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader:
        """Return a share partition once it is loaded. Raises `ApiError`."""
        leader = self._partitions.lead(group_id, topic_id, index)
        if isinstance(leader, Failure):
            raise ApiError(leader.code, leader.message or "")
        if leader.phase is LeaderPhase.LOADING:
            await self._purgatory.park(
                [leader.wake_key],
                lambda: None if leader.phase is LeaderPhase.LOADING else (),
                tuple,
                self._node.clock.now_ms() + LOAD_TIMEOUT_MS,
            )
        if leader.phase is not LeaderPhase.ACTIVE:
            refusal = leader.failure or Failure(ErrorCode.coordinator_load_in_progress)
            raise ApiError(refusal.code, refusal.message or "")
        return leader

    async def read_summaries(
        self, group_id: str, partitions: Iterable[_Partition]
    ) -> dict[_Partition, Mapping[str, Any]]:
        """Return the persisted facts of share partitions, as in ReadShareGroupStateSummary:
        `error_code`, `start_offset`, `leader_epoch`, `state_epoch`, `delivery_complete_count`."""
        summaries: dict[_Partition, Mapping[str, Any]] = {}
        for number, (topic_id, index) in enumerate(partitions):
            if not number % SUMMARIES_AT_ONCE:
                await asyncio.sleep(0)  # Those of this broker's states are there at once.
            key = ShareKey(group_id, topic_id, index)
            try:
                summaries[(topic_id, index)] = await self._persister.read_summary(key)
            except ApiError as refused:
                summaries[(topic_id, index)] = {"error_code": refused.code}
        return summaries

    async def _decide_each(
        self,
        group_id: str,
        partitions: Sequence[_Partition],
        decide: Callable[[ShareKey], asyncio.Future[Any]],
    ) -> dict[_Partition, ErrorCode]:
        """Decide on all share partitions, after those of earlier requests. Return the error of
        each."""
        replies: list[asyncio.Future[Any]] = []

        def decide_one(partition: _Partition) -> None:
            replies.append(decide(ShareKey(group_id, *partition)))

        for partition in partitions:
            self._decisions.add(partial(decide_one, partition))
        decided = asyncio.Event()
        self._decisions.add(decided.set)
        await decided.wait()
        results: dict[_Partition, ErrorCode] = {}
        for partition, reply in zip(partitions, replies, strict=True):
            try:
                results[partition] = (await reply)["error_code"]
            except ApiError as refused:
                results[partition] = refused.code
        return results

    async def _record(
        self, group_id: str, decide: Callable[[GroupShard, int], CoordinatorResult]
    ) -> None:
        """Have the group decide, and wait until its records are committed."""
        await self._groups.submit(group_id, with_empty_reply(decide))


def with_empty_reply(
    decide: Callable[[GroupShard, int], CoordinatorResult],
) -> Callable[[GroupShard, int, Token], CoordinatorResult]:
    """Return `decide` with an empty reply."""

    def replying(shard: GroupShard, now_ms: int, token: Token) -> CoordinatorResult:
        result = decide(shard, now_ms)
        return CoordinatorResult(
            result.records, (*result.replies, Reply(token, {})), result.effects
        )

    return replying


def _set_written(written: asyncio.Future[None], failure: Failure | None) -> None:
    """End the wait for a write of the share partition's state."""
    if written.done():
        return
    if failure is None:
        written.set_result(None)
    else:
        written.set_exception(ApiError(failure.code, failure.message or ""))
