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

from shoal.client import message_fields
from shoal.client.cluster import TopicPartition
from shoal.client.consumer_membership import offers_key_ranges
from shoal.client.errors import ClientError, KafkaError
from shoal.client.fetcher import Fetched, Fetcher, Isolation
from shoal.client.groups import CommittedOffset, commit_body
from shoal.client.membership import FENCED
from shoal.client.range_positions import WHOLE, Cursor, Piece, Range, RangePositions
from shoal.client.range_progress import Commit, Commits, RangeProgress, fields, width_of
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import INDIVIDUAL_COMMIT_FEATURE
from shoal.record import key_range_map
from shoal.record.finished_offsets import EMPTY, FinishedOffsets
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from shoal.client.cluster import Cluster
    from shoal.client.connection import Connection
    from shoal.client.key_loads import KeyLoads
    from shoal.client.membership import Assignment

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
Ranges = dict[TopicPartition, KeyRanges]
_NONE_APART: Mapping[TopicPartition, Sequence[Range]] = {}
#: A key range with its committed position, and the finished offsets above it.
Stored = tuple[int, int, tuple[int, FinishedOffsets]]


class RebalanceListener(Protocol):
    """Is called while `GroupConsumer.poll` or `tend` gives partitions, or key ranges of them, up. A
    whole partition has all hashes."""

    async def revoked(self, ranges: Ranges) -> None:
        """Complete the work on these ranges. The member commits what is finished afterwards, and
        then another member gets them."""

    async def lost(self, ranges: Ranges) -> None:
        """End the work on these ranges. Another member may have them already."""


class KeyRangeListener:
    """Reports changes of a member's key ranges. Override what is of interest.

    A whole partition is the range of all hashes. `GroupConsumer.poll` awaits these methods.
    """

    async def assigned(self, ranges: Ranges) -> None:
        """Handle new ranges, before their first record is returned."""

    async def revoked(self, ranges: Ranges) -> None:
        """Handle ranges that other members get, before their positions are committed."""

    async def lost(self, ranges: Ranges) -> None:
        """Handle ranges that other members may have already, because this one was fenced."""


class Member(Protocol):
    """What is used of `ConsumerMembership`."""

    group: str
    member_id: str
    member_epoch: int
    lost: bool
    loads: KeyLoads

    async def changed(self, timeout_s: float) -> bool: ...

    def check(self) -> None: ...

    def hurry(self) -> None: ...


class SharedPartitions:
    """Reads and commits the key ranges of one member."""

    def __init__(
        self,
        cluster: Cluster,
        member: Member,
        *,
        isolation: Isolation,
        starts: Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]],
        listener: KeyRangeListener | None = None,
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
        #: Is called before the application's listener.
        self.workers: RebalanceListener | None = None
        self._member = member
        self._isolation = isolation
        self._starts = starts
        self._listener = listener or KeyRangeListener()
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

    # Assignment.

    async def take_over(
        self, whole: Assignment, shared: Mapping[tuple[UUID, int], KeyRanges]
    ) -> None:
        """Give up what is not assigned any more, then start what is new."""
        wanted = await self._named(whole, shared)
        owned = self.positions.owned
        revoked = _difference(owned, wanted)
        if revoked and self._member.member_epoch > 0:
            ranges = _as_key_ranges(revoked)
            if self.workers is not None:
                await self.workers.revoked(ranges)
            await self._listener.revoked(ranges)
            self._note_lost(revoked)
            try:
                timeout_ms = None if self.progress is None else REVOKE_COMMIT_MS
                await self.commit(timeout_ms, apart=revoked)
            except ClientError as error:
                if not isinstance(error, KafkaError):
                    raise
        self.positions.keep(wanted)
        if self.progress is not None:
            self.progress.keep(wanted)
        added = _difference(wanted, owned)
        if added:
            await self._start(added)
            if not self._member.lost:
                await self._listener.assigned(_as_key_ranges(added))

    async def lose(self) -> None:
        """Forget everything: this member was fenced."""
        lost = self.positions.owned
        self._note_lost(lost)
        self.positions.clear()
        if self.progress is not None:
            self.progress.clear()
        if lost:
            ranges = _as_key_ranges(lost)
            if self.workers is not None:
                await self.workers.lost(ranges)
            await self._listener.lost(ranges)

    def _note_lost(self, ranges: Mapping[TopicPartition, Sequence[Range]]) -> None:
        for where, some in ranges.items() if self._transactional else ():
            if self.positions.has_unfinished(where, some):
                self._lost = where

    async def _named(
        self, whole: Assignment, shared: Mapping[tuple[UUID, int], KeyRanges]
    ) -> dict[TopicPartition, list[Range]]:
        wanted: dict[TopicPartition, list[Range]] = {}
        for topic_id, partitions in whole.items():
            name = await self.cluster.topic_name(topic_id)
            for partition in partitions if name else ():
                wanted[TopicPartition(name or "", partition)] = list(WHOLE)
        self._shared_ids.clear()
        for (topic_id, partition), ranges in shared.items():
            name = await self.cluster.topic_name(topic_id)
            if name:
                where = TopicPartition(name, partition)
                wanted[where] = [(r.first, r.last) for r in ranges]
                self._shared_ids[where] = topic_id, partition
        return wanted

    async def _start(self, added: Mapping[TopicPartition, Sequence[Range]]) -> None:
        """Set the positions of new ranges: those that are committed, or where `starts` begins."""
        found = await self._committed_now(sorted(added))
        if self._member.lost:
            return
        starting: dict[TopicPartition, list[Range]] = {}
        for where, ranges in added.items():
            known = [
                piece
                for first, last in ranges
                for piece in key_range_map.within(found.get(where, ()), first, last)
            ]
            self._begin(where, known, committed=True)
            rest = key_range_map.minus(ranges, [(a, b) for a, b, _ in known])
            if rest:
                starting[where] = rest
        if starting:
            begins = await self._starts(sorted(starting))
            for where, ranges in starting.items():
                at = begins[where]
                pieces = [(first, last, (at, EMPTY)) for first, last in ranges]
                self._begin(where, pieces, committed=False)

    def _begin(self, where: TopicPartition, pieces: Sequence[Stored], *, committed: bool) -> None:
        if pieces:
            positions = [(first, last, position) for first, last, (position, _) in pieces]
            self.positions.start(where, positions, committed=committed)
        if self.progress is not None:
            for first, last, (_, finished) in pieces:
                self.progress.start(where, first, last, finished.ranges())

    async def _committed_now(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, list[Stored]]:
        """Return the committed positions, in the epoch of a heartbeat that may still be on its way.
        Nothing is found if the member is fenced meanwhile."""
        backoff = self.cluster.backoff()
        while not self._member.lost:
            try:
                return await self.cluster.retrying(lambda: self._committed(partitions))
            except KafkaError as error:
                if error.code not in _NOT_NOW:
                    raise
            self._member.check()
            self._member.hurry()
            await backoff.pause()
        return {}

    async def _committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[Stored]]:
        """Return what is committed of partitions, by key range."""
        member = self._member
        topics = message_fields.group_by_topic(
            (where, {"partition_index": where.partition}) for where in partitions
        )
        body = {
            "groups": [
                {
                    "group_id": member.group,
                    "member_id": member.member_id,
                    "member_epoch": member.member_epoch,
                    "key_ranges_wanted": True,
                    "topics": [
                        {
                            "name": entry["name"],
                            "partition_indexes": [
                                p["partition_index"] for p in entry["partitions"]
                            ],
                        }
                        for entry in topics
                    ],
                }
            ],
            "require_stable": True,
        }
        node = await self.cluster.coordinator(member.group)
        link = await self.cluster.connection(node, "coordinator")
        version = link.version(ApiKey.OFFSET_FETCH, 9)
        answer = await link.request(ApiKey.OFFSET_FETCH, body, version=version)
        group = answer.groups[0]
        if group.error_code:
            raise KafkaError(group.error_code, f"offsets of group {member.group!r}")
        found: dict[TopicPartition, list[Stored]] = {}
        for where, part in message_fields.each_partition(group.topics):
            if part.error_code:
                raise KafkaError(part.error_code, f"offset of {where}")
            ranges = getattr(part, "key_ranges", ())
            pieces: list[Stored] = [
                (r.first_hash, r.last_hash, (r.position, FinishedOffsets.decode(r.finished)))
                for r in ranges
                if r.position >= 0
            ]
            if not ranges and part.committed_offset >= 0:
                pieces = [(*WHOLE[0], (part.committed_offset, EMPTY))]
            found[where] = pieces
        self._ranges_max = getattr(group, "ranges_max", 0) or RANGES_MAX
        return found

    # Reading.

    async def fetch(self, max_wait_ms: int) -> list[tuple[Fetched, list[Any]]]:
        """Return what is new, with the decoded records of this member. Raises `KafkaError`."""
        if self.progress is None:
            await self._commit_passed()
        max_wait_ms = min(max_wait_ms, FETCH_WAIT_MS)
        cursors = {c.where: c for c in self._in_turn() if self._has_room(c)}
        if not cursors:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max_wait_ms / 1000):
                    await self._room.wait()
            return []
        results = await self._fetcher.poll(
            {where: cursor.position for where, cursor in cursors.items()},
            max_wait_ms=0 if self.positions.take_turns else max_wait_ms,
            isolation=self._isolation,
            key_ranges={w: c.key_ranges for w, c in cursors.items() if c.key_ranges is not None},
        )
        found: list[tuple[Fetched, list[Any]]] = []
        refused = False
        for where, result in results.items():
            cursor = cursors[where]
            if isinstance(result, Fetched):
                self._refused_since.pop(where, None)
                fetched = cursor.cut(result)
                found.append((fetched, list(fetched.records())))
            elif result.code == ErrorCode.offset_out_of_range:
                await self._restart(cursor)
            elif result.code == ErrorCode.policy_violation:
                refused |= not self._collapse(where)
                self._check_refused(where, result)
            else:
                raise result
        found = self._advance(cursors, found)
        self._empty = 0 if found else self._empty + 1
        if refused and not found:
            await self._member.changed(max_wait_ms / 1000)
        elif self._empty > len(cursors):
            # The fetches of turns do not wait at the broker, and no leader may have answered.
            await self._member.changed(min(max_wait_ms, TURN_PAUSE_MS) / 1000)
        return found

    def _advance(
        self,
        cursors: Mapping[TopicPartition, Cursor],
        found: Sequence[tuple[Fetched, list[Any]]],
    ) -> list[tuple[Fetched, list[Any]]]:
        """Move the positions over records that are returned; an error would have lost them. Returns
        those that were not finished before."""
        unfinished = []
        for fetched, all_records in found:
            where = TopicPartition(fetched.topic, fetched.partition)
            records = all_records
            if self.progress is not None:
                records = self.progress.deliver(where, records)
            first = records[0][0] if records else -1
            self.positions.advance(
                cursors[where], fetched.next_offset, delivered=bool(records), first=first
            )
            if self.progress is not None:
                self.progress.read_to(where, self.positions.lowest[where])
            if records:
                self._alone_until_s = self.cluster.now() + ALONE_MS / 1000
            if records and where in self._shared_ids:
                self._member.loads.add(self._shared_ids[where], records)
            unfinished.append((fetched, records))
        return unfinished

    def _in_turn(self) -> list[Cursor]:
        """Return what to fetch: all partitions. After an aborted transaction `in_order`, return one
        of them, which has the records of the next transaction. Members that wait for each other in
        several partitions would otherwise do so again and again."""
        cursors = self.positions.cursors()
        if self._alone is None:
            return cursors
        begun = [c for c in cursors if self.positions.first_offset(c.where) >= 0]
        if begun and self.cluster.now() > self._alone_until_s:
            self._alone = None  # The program waits for more records.
            return cursors
        if begun or not cursors:
            return begun
        number = self._alone % len(cursors)
        self._alone += 1
        return [sorted(cursors, key=lambda c: c.where)[number]]

    def _has_room(self, cursor: Cursor) -> bool:
        where = cursor.where
        return self.progress is None or self.progress.takes(
            where, cursor.position, self._ranges_max_of(where)
        )

    def _ranges_max_of(self, where: TopicPartition) -> int:
        """The member's part of the ranges of finished offsets that a partition may have."""
        owned = [(first, last) for first, last, _ in self.positions.pieces[where]]
        return max(1, int(self._ranges_max * width_of(owned)))

    async def _restart(self, cursor: Cursor) -> None:
        """Read on where the log begins or ends: it does not have the position."""
        where = cursor.where
        begin = (await self._starts([where]))[where]
        if self.progress is not None:
            self.progress.restart(where, cursor.key_ranges or KeyRanges(WHOLE), begin)
        self.positions.advance(cursor, begin, delivered=False)

    def _collapse(self, where: TopicPartition) -> bool:
        before = self.positions.pieces[where]
        collapsed = self.positions.collapse(where)
        if collapsed and self.progress is not None:
            self.progress.reread(where, before, self.positions.lowest[where])
        return collapsed

    def _check_refused(self, where: TopicPartition, error: KafkaError) -> None:
        """Raise an error that lasts. The topic's switch may just have been turned off. Then the
        coordinator assigns whole partitions soon."""
        now_s = self.cluster.now()
        since_s = self._refused_since.setdefault(where, now_s)
        if now_s - since_s > REFUSED_MS / 1000:
            raise error

    # Committing.

    def to_commit_in_transaction(self) -> dict[TopicPartition, tuple[Piece, ...]]:
        """Return what a transaction commits. Raises TRANSACTION_ABORTABLE if other members may have
        records that the application got."""
        if self._lost is not None or self._member.lost:
            where = "its partitions" if self._lost is None else str(self._lost)
            raise KafkaError(
                ErrorCode.transaction_abortable,
                f"this member no longer has all records of {where} that it read",
            )
        return self.positions.to_commit()

    def rewind(self) -> None:
        """Read again what no transaction has committed."""
        self._lost = None
        self.positions.rewind_all()
        if self.in_order:
            # Others may wait for the positions up to the first record.
            self._passed_due_s = 0.0
        if self.in_order and self._alone is None:
            self._alone = 0

    def committed_in_transaction(self, pieces: Mapping[TopicPartition, Sequence[Piece]]) -> None:
        """Note what a transaction has committed."""
        self._alone = None
        for where, some in pieces.items():
            self.positions.committed(where, some)

    def finish(self, where: TopicPartition, offset: int) -> bool:
        """Finish a record. Return False if it is not unfinished here: it was finished before, or
        revoked. Raises `ValueError` if the offset was not delivered."""
        assert self.progress is not None
        if self.progress.finish(where, offset):
            self._room.set()
            return True
        end = max(self.positions.end_of(where), self.progress.end_of(where))
        if where in self.positions.pieces and offset >= end:
            raise ValueError(f"offset {offset} of {where} was not delivered")
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
            done: set[TopicPartition] = set()

            async def attempt() -> bool:
                return await self._commit_once(
                    passed=self._transactional, apart=apart or {}, done=done
                )

            backoff = self.cluster.backoff()
            stale_ms = STALE_COMMIT_MS if timeout_ms is None else min(STALE_COMMIT_MS, timeout_ms)
            last_s = self.cluster.now() + stale_ms / 1000
            while True:
                try:
                    while await self.cluster.retrying(attempt, timeout_ms):
                        pass
                except KafkaError as error:
                    # The member got more of a partition: the heartbeat with its epoch is coming.
                    if error.code != ErrorCode.stale_member_epoch or self.cluster.now() > last_s:
                        raise
                else:
                    return
                self._member.hurry()
                await backoff.pause()

    async def _commit_passed(self) -> None:
        """Commit positions that moved over records of other members alone. Otherwise the stable
        offset would wait for a member without records."""
        now_s = self.cluster.now()
        if now_s < self._passed_due_s or not self.positions.to_commit(passed=True):
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
        done: set[TopicPartition] | None = None,
    ) -> bool:
        """Send one commit of partitions that are not `done`, if there is something to commit.
        Return whether another one follows."""
        member = self._member
        node = await self.cluster.coordinator(member.group)
        link = await self.cluster.connection(node, "coordinator")
        self._check_not_lost()
        if self.progress is not None and link is not self._committed_over:
            self._committed_over = link
            self.progress.forget_commits()
        commits, more = self._to_commit(passed=passed, apart=apart, done=done or set())
        individually = self.progress is not None and INDIVIDUAL_COMMIT_FEATURE in link.features
        rows = {w: fields(some, individually=individually) for w, some in commits.items()}
        if not offers_key_ranges(link):
            # An older coordinator, which assigns whole partitions.
            commits = {w: some for w, some in commits.items() if _is_whole(some)}
        if not commits:
            return False
        version = link.version(ApiKey.OFFSET_COMMIT, 9)
        offsets = {w: CommittedOffset(min(p[2] for p in some)) for w, some in commits.items()}
        body = commit_body(member.group, member.member_id, member.member_epoch, offsets)
        for topic in body["topics"]:
            for row in topic["partitions"]:
                row |= rows[TopicPartition(topic["name"], row["partition_index"])]
        answer = await link.request(ApiKey.OFFSET_COMMIT, body, version=version)
        repeated = self._answered(commits, answer)
        if done is not None:
            done.update(commits.keys() - self._crowded)
        return repeated or more

    def _to_commit(
        self,
        *,
        passed: bool,
        apart: Mapping[TopicPartition, Sequence[Range]],
        done: Collection[TopicPartition],
    ) -> tuple[dict[TopicPartition, Commits], bool]:
        """Return the commits of one request, and whether more may be left."""
        if self.progress is None:
            found = self.positions.to_commit(passed=passed)
            return {w: tuple(Commit(*piece) for piece in some) for w, some in found.items()}, False
        commits: dict[TopicPartition, Commits] = {}
        ranges = 0
        for where, pieces in self.positions.pieces.items():
            limit = 0 if where in self._crowded else self._ranges_max_of(where)
            cut = divided(pieces, apart.get(where, ()))
            commit = self.progress.to_commit(where, cut, limit)
            if commit is None or where in done:
                continue
            ranges += sum(len(one.finished) for one in commit)
            if commits and ranges > self._ranges_max:
                return commits, True
            commits[where] = commit
        return commits, False

    def _answered(self, commits: Mapping[TopicPartition, Commits], answer: Any) -> bool:
        """Note what is committed. Return whether to repeat some of it. Raises the first error."""
        group = self._member.group
        failures = []
        repeated = False
        for where, part in message_fields.each_partition(answer.topics):
            detail = getattr(part, "individual_commit", None)
            about = getattr(detail, "error_message", None)
            error = message_fields.error_of(part, about or f"offset of {where} in group {group!r}")
            if error is None:
                self._crowded.discard(where)
                if self.progress is None:
                    self.positions.committed(where, [one[:3] for one in commits[where]])
                else:
                    self.progress.committed(where, commits[where])
            elif error.code == ErrorCode.invalid_commit_offset_size and any(
                one.finished for one in commits[where]
            ):
                # Those of other members fill the partition. What is not named is delivered again
                # if this member ends.
                self._crowded.add(where)
                repeated = True
            else:
                failures.append(error)
        for error in failures:
            if error.code == ErrorCode.not_coordinator:
                self.cluster.forget_coordinator(group)
            raise error
        return repeated

    def _check_not_lost(self) -> None:
        if self._member.lost:
            raise KafkaError(
                ErrorCode.fenced_member_epoch, f"positions in group {self._member.group!r}"
            )


def _difference(
    some: Mapping[TopicPartition, Sequence[Range]], others: Mapping[TopicPartition, Sequence[Range]]
) -> dict[TopicPartition, list[Range]]:
    found = {where: key_range_map.minus(some[where], others.get(where, ())) for where in some}
    return {where: ranges for where, ranges in found.items() if ranges}


def divided(pieces: Sequence[Piece], apart: Sequence[Range]) -> list[Piece]:
    """Return the pieces, cut at the bounds of ranges."""
    owned = [(first, last) for first, last, _ in pieces]
    ranges = [*apart, *key_range_map.minus(owned, apart)]
    return sorted(
        piece for first, last in ranges for piece in key_range_map.within(pieces, first, last)
    )


def _is_whole(commits: Commits) -> bool:
    return [one[:2] for one in commits] == list(WHOLE)


def _as_key_ranges(ranges: Mapping[TopicPartition, Sequence[Range]]) -> Ranges:
    return {where: KeyRanges(some) for where, some in ranges.items()}
