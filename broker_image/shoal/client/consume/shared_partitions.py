"""The partitions of a group member that may own key ranges (`GroupConsumer` with `key_ranges`).

The coordinator assigns whole partitions, and key ranges of partitions that members share. A range
that comes from another member continues at that member's last commit. A member commits before it
gives up a range, and continues to read the others meanwhile.

With individual commits, a commit has the finished offsets of each range, too (`range_progress`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from shoal.client.consume import member_offsets
from shoal.client.consume.consumer_membership import can_assign_key_ranges
from shoal.client.consume.fetcher import FetchedBatches, Fetcher, Isolation
from shoal.client.consume.member_offsets import OffsetsMember
from shoal.client.consume.range_positions import (
    WHOLE,
    Range,
    RangeCursor,
    RangePosition,
    RangePositions,
)
from shoal.client.consume.range_progress import (
    Commits,
    KeyRangeCommit,
    RangeProgress,
    compute_width,
    make_progress_fields,
)
from shoal.client.consume.reader import Record
from shoal.client.errors import ClientError, KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.client.net.membership import FENCED
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import INDIVIDUAL_COMMIT_FEATURE
from shoal.record import key_range_map
from shoal.record.finished_offsets import EMPTY, FinishedOffsets
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from uuid import UUID

    from shoal.client.consume.key_loads import KeyLoads
    from shoal.client.consume.rebalance_listener import Ranges, RebalanceListener
    from shoal.client.net.cluster import Cluster
    from shoal.client.net.connection import Connection
    from shoal.client.net.membership import Assignment

#: Milliseconds between commits of positions that passed only records of other members.
PASSED_COMMIT_MS = 1_000
#: The same if transactions of other members may wait for these positions.
ORDERED_PASSED_COMMIT_MS = 100
#: Milliseconds without records after which a transaction gets those of other partitions, too.
ALONE_MS = 1_000
#: Milliseconds between fetches that return nothing.
TURN_PAUSE_MS = 20
#: Milliseconds to repeat a commit until the member has its newest epoch.
STALE_COMMIT_MS = 5_000
#: Milliseconds to commit finished records before partitions are given up.
REVOKE_COMMIT_MS = 5_000
#: Ranges of finished offsets of a partition, if the broker does not report its limit.
RANGES_MAX = 10_000
#: Codes of an OffsetFetch that a later one may not get: the member moves to another epoch.
_NOT_NOW = frozenset({*FENCED, ErrorCode.stale_member_epoch})
#: Milliseconds that a fetch waits for records. A member that waits gets the ranges of a killed one
#: only afterwards.
FETCH_WAIT_MS = 200
#: Milliseconds after which a refused fetch of a key range is an error: the assignment should have
#: changed by then.
REFUSED_MS = 15_000
_NONE_APART: Mapping[TopicPartition, Sequence[Range]] = {}
#: A key range with its committed position, and the finished offsets above it.
Stored = tuple[int, int, tuple[int, FinishedOffsets]]


class KeyRangeMember(OffsetsMember, Protocol):
    """What is used of `ConsumerMembership`."""

    loads: KeyLoads

    async def wait_for_change(self, timeout_s: float) -> bool: ...

    def check(self) -> None: ...

    def hurry(self) -> None: ...


class SharedPartitions:
    """Reads and commits the key ranges of one member."""

    def __init__(
        self,
        cluster: Cluster,
        member: KeyRangeMember,
        *,
        isolation: Isolation,
        starts: Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]],
        listeners: Sequence[RebalanceListener] = (),
        individually: bool = False,
        transactional: bool = False,
        in_order: bool = False,
    ) -> None:
        """`starts` returns where partitions without a valid committed offset begin. With
        `individually`, records are finished one by one (`finish`). With `transactional`, the
        transactions of a producer commit what the application has got, `in_order` of the
        partitions if wanted. Not both."""
        self.cluster = cluster
        self.in_order = in_order
        self.positions = RangePositions(in_order=in_order)
        #: After an aborted transaction `in_order`, the number of the partition to read next.
        self._alone: int | None = None
        #: When it reads the others again, if that partition has no more records.
        self._alone_until_s = 0.0
        #: With individual commits.
        self.progress = RangeProgress() if individually else None
        self.member = member
        self._isolation = isolation
        self._starts = starts
        self._listeners = listeners
        self._transactional = transactional
        #: The partition of which the application got records that this member has lost since, so
        #: that their transaction must abort.
        self._lost: TopicPartition | None = None
        self._fetcher = Fetcher(cluster)
        self._passed_due_s = 0.0
        #: Fetches in a row that returned nothing.
        self._empty = 0
        self._refused_since: dict[TopicPartition, float] = {}
        #: The topic ids of the partitions that it shares with others.
        self._shared_ids: dict[TopicPartition, tuple[UUID, int]] = {}
        self._ranges_max = RANGES_MAX
        self._commit_lock = asyncio.Lock()
        #: Partitions whose finished offsets do not fit: the next commit has their positions alone.
        self._crowded: set[TopicPartition] = set()
        #: Set when a record is finished, which may make room for others.
        self._room = asyncio.Event()
        #: The connection of the last commit: another coordinator may lack what was committed.
        self._committed_over: Connection | None = None

    @property
    def next_offsets(self) -> Mapping[TopicPartition, int]:
        """The next offset to read of each partition; of several key ranges the lowest one."""
        return self.positions.lowest

    @property
    def key_ranges(self) -> Mapping[TopicPartition, KeyRanges]:
        """What the member reads of each partition."""
        return _as_key_ranges(self.positions.owned)

    # Assignment.

    async def take_over(
        self, assignment: Assignment, shared: Mapping[tuple[UUID, int], KeyRanges]
    ) -> None:
        """Give up what is not assigned any more, then start what is new."""
        target = await self._resolve_names(assignment, shared)
        owned = self.positions.owned
        revoked = _subtract(owned, target)
        if revoked and self.member.member_epoch > 0:
            ranges = _as_key_ranges(revoked)
            for listener in self._listeners:
                await listener.on_revoked(ranges)
            self._note_lost(revoked)
            try:
                timeout_ms = None if self.progress is None else REVOKE_COMMIT_MS
                await self.commit(timeout_ms, apart=revoked)
            except ClientError as error:
                if not isinstance(error, KafkaError):
                    raise
        self.positions.keep(target)
        if self.progress is not None:
            self.progress.keep(target)
        added = _subtract(target, owned)
        if added:
            await self._start(added)
            if not self.member.lost:
                for listener in self._listeners:
                    await listener.on_assigned(_as_key_ranges(added))

    async def lose(self) -> None:
        """Forget everything: this member was fenced."""
        lost = self.positions.owned
        self._note_lost(lost)
        self.positions.clear()
        if self.progress is not None:
            self.progress.clear()
        if lost:
            ranges = _as_key_ranges(lost)
            for listener in self._listeners:
                await listener.on_lost(ranges)

    def _note_lost(self, ranges: Mapping[TopicPartition, Sequence[Range]]) -> None:
        for partition, lost_ranges in ranges.items() if self._transactional else ():
            if self.positions.has_unfinished(partition, lost_ranges):
                self._lost = partition

    async def _resolve_names(
        self, assignment: Assignment, shared: Mapping[tuple[UUID, int], KeyRanges]
    ) -> dict[TopicPartition, list[Range]]:
        ranges_by_name: dict[TopicPartition, list[Range]] = {}
        for topic_id, partitions in assignment.items():
            name = await self.cluster.get_topic_name(topic_id)
            for partition in partitions if name else ():
                ranges_by_name[TopicPartition(name or "", partition)] = list(WHOLE)
        self._shared_ids.clear()
        for (topic_id, partition), ranges in shared.items():
            name = await self.cluster.get_topic_name(topic_id)
            if name:
                topic_partition = TopicPartition(name, partition)
                ranges_by_name[topic_partition] = [(r.first, r.last) for r in ranges]
                self._shared_ids[topic_partition] = topic_id, partition
        return ranges_by_name

    async def _start(self, added: Mapping[TopicPartition, Sequence[Range]]) -> None:
        """Set the positions of new ranges: those that are committed, or where `starts` begins."""
        committed = await self._fetch_committed(sorted(added))
        if self.member.lost:
            return
        starting: dict[TopicPartition, list[Range]] = {}
        for partition, ranges in added.items():
            known_ranges = [
                piece
                for first, last in ranges
                for piece in key_range_map.clip_to_range(committed.get(partition, ()), first, last)
            ]
            self._begin(partition, known_ranges, committed=True)
            uncommitted = key_range_map.subtract(ranges, [(a, b) for a, b, _ in known_ranges])
            if uncommitted:
                starting[partition] = uncommitted
        if starting:
            begins = await self._starts(sorted(starting))
            for partition, ranges in starting.items():
                position = begins[partition]
                pieces = [(first, last, (position, EMPTY)) for first, last in ranges]
                self._begin(partition, pieces, committed=False)

    def _begin(
        self, partition: TopicPartition, pieces: Sequence[Stored], *, committed: bool
    ) -> None:
        if pieces:
            positions = [(first, last, position) for first, last, (position, _) in pieces]
            self.positions.start(partition, positions, committed=committed)
        if self.progress is not None:
            for first, last, (_, finished) in pieces:
                self.progress.start(partition, first, last, finished.iter_ranges())

    async def _fetch_committed(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, list[Stored]]:
        """Return the committed positions, in the epoch of a heartbeat that may still be on its way.
        Nothing is found if the member is fenced meanwhile."""
        backoff = self.cluster.make_backoff()
        while not self.member.lost:
            try:
                return await self.cluster.retry(lambda: self._request_committed(partitions))
            except KafkaError as error:
                if error.code not in _NOT_NOW:
                    raise
            self.member.check()
            self.member.hurry()
            await backoff.pause()
        return {}

    async def _request_committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[Stored]]:
        """Return what is committed of partitions, by key range."""
        link = await member_offsets.connect_to_coordinator(self.cluster, self.member)
        group = await member_offsets.request_committed(
            link, self.member, partitions, key_ranges_wanted=True
        )
        stored: dict[TopicPartition, list[Stored]] = {}
        for partition, part in member_offsets.iterate_committed(group):
            ranges = getattr(part, "key_ranges", ())
            pieces: list[Stored] = [
                (r.first_hash, r.last_hash, (r.position, FinishedOffsets.decode(r.finished)))
                for r in ranges
                if r.position >= 0
            ]
            if not ranges and part.committed_offset >= 0:
                pieces = [(*WHOLE[0], (part.committed_offset, EMPTY))]
            stored[partition] = pieces
        self._ranges_max = getattr(group, "ranges_max", 0) or RANGES_MAX
        return stored

    # Reading.

    async def poll(self, max_wait_ms: int) -> Iterator[Record]:
        """Return new records. Raises `KafkaError`."""
        fetched = await self.fetch(max_wait_ms)
        return iter(
            [
                Record(batch.topic, batch.partition, *record)
                for batch, records in fetched
                for record in records
            ]
        )

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Move a position back to `offset` if it is ahead."""
        self.positions.rewind(partition, offset)

    async def fetch(self, max_wait_ms: int) -> list[tuple[FetchedBatches, list[Any]]]:
        """Return what is new, with the decoded records of this member. Raises `KafkaError`."""
        if self.progress is None:
            await self._commit_passed()
        max_wait_ms = min(max_wait_ms, FETCH_WAIT_MS)
        cursors = {c.partition: c for c in self._select_cursors() if self._has_room(c)}
        if not cursors:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max_wait_ms / 1000):
                    await self._room.wait()
            return []
        results = await self._fetcher.poll(
            {partition: cursor.position for partition, cursor in cursors.items()},
            max_wait_ms=0 if self.positions.has_different_positions else max_wait_ms,
            isolation=self._isolation,
            key_ranges={w: c.key_ranges for w, c in cursors.items() if c.key_ranges is not None},
        )
        batches: list[tuple[FetchedBatches, list[Any]]] = []
        refused = False
        for partition, result in results.items():
            cursor = cursors[partition]
            if isinstance(result, FetchedBatches):
                self._refused_since.pop(partition, None)
                fetched = cursor.cut(result)
                batches.append((fetched, list(fetched.records())))
            elif result.code == ErrorCode.offset_out_of_range:
                await self._restart(cursor)
            elif result.code == ErrorCode.policy_violation:
                refused |= not self._collapse(partition)
                self._check_refused(partition, result)
            else:
                raise result
        batches = self._advance(cursors, batches)
        self._empty = 0 if batches else self._empty + 1
        if refused and not batches:
            await self.member.wait_for_change(max_wait_ms / 1000)
        elif self._empty > len(cursors):
            # The fetches of turns do not wait at the broker, and no leader may have answered.
            await self.member.wait_for_change(min(max_wait_ms, TURN_PAUSE_MS) / 1000)
        return batches

    def _advance(
        self,
        cursors: Mapping[TopicPartition, RangeCursor],
        batches: Sequence[tuple[FetchedBatches, list[Any]]],
    ) -> list[tuple[FetchedBatches, list[Any]]]:
        """Move the positions over records that are returned; an error would have lost them. Returns
        those that were not finished before."""
        unfinished = []
        for fetched, all_records in batches:
            partition = TopicPartition(fetched.topic, fetched.partition)
            records = all_records
            if self.progress is not None:
                records = self.progress.deliver(partition, records)
            first = records[0][0] if records else -1
            self.positions.advance(
                cursors[partition], fetched.next_offset, delivered=bool(records), first=first
            )
            if self.progress is not None:
                self.progress.forget_below(partition, self.positions.lowest[partition])
            if records:
                self._alone_until_s = self.cluster.now() + ALONE_MS / 1000
            if records and partition in self._shared_ids:
                self.member.loads.add(self._shared_ids[partition], records)
            unfinished.append((fetched, records))
        return unfinished

    def _select_cursors(self) -> list[RangeCursor]:
        """Return what to fetch: all partitions. After an aborted transaction `in_order`, return one
        of them, which has the records of the next transaction. Members that wait for each other in
        several partitions would otherwise do so again and again."""
        cursors = self.positions.make_cursors()
        if self._alone is None:
            return cursors
        begun = [c for c in cursors if self.positions.get_first_offset(c.partition) >= 0]
        if begun and self.cluster.now() > self._alone_until_s:
            self._alone = None  # The program waits for more records.
            return cursors
        if begun or not cursors:
            return begun
        number = self._alone % len(cursors)
        self._alone += 1
        return [sorted(cursors, key=lambda c: c.partition)[number]]

    def _has_room(self, cursor: RangeCursor) -> bool:
        partition = cursor.partition
        return self.progress is None or self.progress.should_fetch(
            partition, cursor.position, self._compute_ranges_max(partition)
        )

    def _compute_ranges_max(self, partition: TopicPartition) -> int:
        """The member's part of the ranges of finished offsets that a partition may have."""
        owned = [(first, last) for first, last, _ in self.positions.by_partition[partition]]
        return max(1, int(self._ranges_max * compute_width(owned)))

    async def _restart(self, cursor: RangeCursor) -> None:
        """Read on where the log begins or ends: it does not have the position."""
        partition = cursor.partition
        begin = (await self._starts([partition]))[partition]
        if self.progress is not None:
            self.progress.restart(partition, cursor.key_ranges or KeyRanges(WHOLE), begin)
        self.positions.advance(cursor, begin, delivered=False)

    def _collapse(self, partition: TopicPartition) -> bool:
        before = self.positions.by_partition[partition]
        collapsed = self.positions.collapse(partition)
        if collapsed and self.progress is not None:
            self.progress.reread(partition, before, self.positions.lowest[partition])
        return collapsed

    def _check_refused(self, partition: TopicPartition, error: KafkaError) -> None:
        """Raise an error that lasts. The topic's switch may just have been turned off. Then the
        coordinator assigns whole partitions soon."""
        now_s = self.cluster.now()
        since_s = self._refused_since.setdefault(partition, now_s)
        if now_s - since_s > REFUSED_MS / 1000:
            raise error

    # Committing.

    def collect_for_transaction(self) -> dict[TopicPartition, tuple[RangePosition, ...]]:
        """Return what a transaction commits. Raises TRANSACTION_ABORTABLE if other members may have
        records that the application got."""
        if self._lost is not None or self.member.lost:
            lost_partition = "its partitions" if self._lost is None else str(self._lost)
            raise KafkaError(
                ErrorCode.transaction_abortable,
                f"this member no longer has all records of {lost_partition} that it read",
            )
        return self.positions.collect_uncommitted()

    def on_transaction_aborted(self) -> None:
        """Read again what no transaction has committed."""
        self._lost = None
        self.positions.rewind_all()
        if self.in_order:
            # Others may wait for the positions up to the first record.
            self._passed_due_s = 0.0
        if self.in_order and self._alone is None:
            self._alone = 0

    def on_transaction_committed(
        self, pieces: Mapping[TopicPartition, Sequence[RangePosition]]
    ) -> None:
        """Note what a transaction has committed."""
        self._alone = None
        for partition, range_positions in pieces.items():
            self.positions.on_committed(partition, range_positions)

    def finish(self, partition: TopicPartition, offset: int) -> bool:
        """Finish a record. Return False if it is not unfinished here: it was finished before, or
        revoked. Raises `ValueError` if the offset was not delivered."""
        assert self.progress is not None
        if self.progress.finish(partition, offset):
            self._room.set()
            return True
        end = max(self.positions.find_end(partition), self.progress.find_end(partition))
        if partition in self.positions.by_partition and offset >= end:
            raise ValueError(f"offset {offset} of {partition} was not delivered")
        return False

    async def commit(
        self,
        timeout_ms: int | None = None,
        apart: Mapping[TopicPartition, Sequence[Range]] | None = None,
    ) -> None:
        """Commit the positions that moved; with individual commits, what is finished. Transient
        errors are retried for `timeout_ms`. With `transactional`, only positions are committed that
        moved over records of other members alone. Raises `KafkaError`.

        With individual commits, the ranges in `apart` get positions of their own. Otherwise their
        next owner would start at the lowest unfinished record of all ranges that are read together.
        """
        async with self._commit_lock:
            committed: set[TopicPartition] = set()

            async def attempt() -> bool:
                return await self._commit_once(
                    passed=self._transactional, apart=apart or {}, committed=committed
                )

            backoff = self.cluster.make_backoff()
            stale_ms = STALE_COMMIT_MS if timeout_ms is None else min(STALE_COMMIT_MS, timeout_ms)
            last_s = self.cluster.now() + stale_ms / 1000
            while True:
                try:
                    while await self.cluster.retry(attempt, timeout_ms):
                        pass
                except KafkaError as error:
                    # The member got more of a partition: the heartbeat with its epoch is coming.
                    if error.code != ErrorCode.stale_member_epoch or self.cluster.now() > last_s:
                        raise
                else:
                    return
                self.member.hurry()
                await backoff.pause()

    async def _commit_passed(self) -> None:
        """Commit positions that moved over records of other members alone. Otherwise the stable
        offset would wait for a member without records."""
        now_s = self.cluster.now()
        if now_s < self._passed_due_s or not self.positions.collect_uncommitted(passed=True):
            return
        pause_ms = ORDERED_PASSED_COMMIT_MS if self.in_order else PASSED_COMMIT_MS
        self._passed_due_s = now_s + pause_ms / 1000
        try:
            async with asyncio.timeout(PASSED_COMMIT_MS / 1000):
                await self._commit_once(passed=True)
        except (ClientError, TimeoutError):
            return  # A later commit has the same positions or higher ones.

    async def _commit_once(
        self,
        *,
        passed: bool = False,
        apart: Mapping[TopicPartition, Sequence[Range]] = _NONE_APART,
        committed: set[TopicPartition] | None = None,
    ) -> bool:
        """Send one commit of partitions that are not `committed`, if there is something to commit.
        Return whether another one follows."""
        link = await member_offsets.connect_to_coordinator(self.cluster, self.member)
        member_offsets.check_not_lost(self.member)
        if self.progress is not None and link is not self._committed_over:
            self._committed_over = link
            self.progress.forget_commits()
        commits, more = self._collect_commits(
            passed=passed, apart=apart, committed=committed or set()
        )
        individually = self.progress is not None and INDIVIDUAL_COMMIT_FEATURE in link.features
        rows = {
            w: make_progress_fields(partition_commits, individually=individually)
            for w, partition_commits in commits.items()
        }
        if not can_assign_key_ranges(link):
            # An older coordinator, which assigns whole partitions.
            commits = {
                w: partition_commits
                for w, partition_commits in commits.items()
                if _is_whole(partition_commits)
            }
        if not commits:
            return False
        offsets = {
            w: min(p[2] for p in partition_commits) for w, partition_commits in commits.items()
        }
        answers = await member_offsets.request_commit(link, self.member, offsets, rows)
        repeated = self._on_response(commits, answers)
        if committed is not None:
            committed.update(commits.keys() - self._crowded)
        return repeated or more

    def _collect_commits(
        self,
        *,
        passed: bool,
        apart: Mapping[TopicPartition, Sequence[Range]],
        committed: Collection[TopicPartition],
    ) -> tuple[dict[TopicPartition, Commits], bool]:
        """Return the commits of one request, and whether more may be left."""
        if self.progress is None:
            uncommitted = self.positions.collect_uncommitted(passed=passed)
            return {
                w: tuple(KeyRangeCommit(*piece) for piece in range_positions)
                for w, range_positions in uncommitted.items()
            }, False
        commits: dict[TopicPartition, Commits] = {}
        ranges = 0
        for partition, partition_positions in self.positions.by_partition.items():
            limit = 0 if partition in self._crowded else self._compute_ranges_max(partition)
            cut = divide(partition_positions, apart.get(partition, ()))
            commit = self.progress.collect_commits(partition, cut, limit)
            if commit is None or partition in committed:
                continue
            ranges += sum(len(range_commit.finished) for range_commit in commit)
            if commits and ranges > self._ranges_max:
                return commits, True
            commits[partition] = commit
        return commits, False

    def _on_response(
        self,
        commits: Mapping[TopicPartition, Commits],
        answers: Iterable[tuple[TopicPartition, Any, KafkaError | None]],
    ) -> bool:
        """Note what is committed. Return whether to repeat some of it. Raises the first error."""
        failures = []
        repeated = False
        for partition, _, error in answers:
            if error is None:
                self._crowded.discard(partition)
                if self.progress is None:
                    self.positions.on_committed(
                        partition, [commit[:3] for commit in commits[partition]]
                    )
                else:
                    self.progress.on_committed(partition, commits[partition])
            elif error.code == ErrorCode.invalid_commit_offset_size and any(
                commit.finished for commit in commits[partition]
            ):
                # Those of other members fill the partition. What is not named is delivered again
                # if this member ends.
                self._crowded.add(partition)
                repeated = True
            else:
                failures.append(error)
        member_offsets.raise_first(self.cluster, self.member, failures)
        return repeated


def _subtract(
    ranges_by_partition: Mapping[TopicPartition, Sequence[Range]],
    removed: Mapping[TopicPartition, Sequence[Range]],
) -> dict[TopicPartition, list[Range]]:
    differences = {
        partition: key_range_map.subtract(
            ranges_by_partition[partition], removed.get(partition, ())
        )
        for partition in ranges_by_partition
    }
    return {partition: ranges for partition, ranges in differences.items() if ranges}


def divide(range_positions: Sequence[RangePosition], apart: Sequence[Range]) -> list[RangePosition]:
    """Return the pieces, cut at the bounds of ranges."""
    owned = [(first, last) for first, last, _ in range_positions]
    ranges = [*apart, *key_range_map.subtract(owned, apart)]
    return sorted(
        range_position
        for first, last in ranges
        for range_position in key_range_map.clip_to_range(range_positions, first, last)
    )


def _is_whole(commits: Commits) -> bool:
    return [commit[:2] for commit in commits] == list(WHOLE)


def _as_key_ranges(ranges: Mapping[TopicPartition, Sequence[Range]]) -> Ranges:
    return {
        partition: KeyRanges(partition_ranges) for partition, partition_ranges in ranges.items()
    }
