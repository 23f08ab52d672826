"""The partitions of a group member that may own key ranges (`GroupConsumer` with `key_ranges`).

The coordinator assigns whole partitions, and key ranges of partitions that members share. A range
that comes from another member continues at that member's last commit. A member commits before it
gives up a range, and continues to read the others meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from shoal.client import message_fields
from shoal.client.cluster import TopicPartition
from shoal.client.consumer_membership import offers_key_ranges
from shoal.client.errors import ClientError, KafkaError
from shoal.client.fetcher import Fetched, Fetcher, Isolation
from shoal.client.groups import CommittedOffset, commit_body
from shoal.client.membership import FENCED
from shoal.client.range_positions import (
    WHOLE,
    Cursor,
    Piece,
    Range,
    RangePositions,
    commit_fields,
)
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record import key_range_map
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from shoal.client.cluster import Cluster
    from shoal.client.key_loads import KeyLoads
    from shoal.client.membership import Assignment

#: Milliseconds between commits of positions that passed only records of other members.
PASSED_COMMIT_MS = 1_000
#: Milliseconds between fetches that return nothing.
TURN_PAUSE_MS = 20
#: Milliseconds to repeat a commit until the member has its newest epoch.
STALE_COMMIT_MS = 5_000
#: Codes of an OffsetFetch that a later one may not get: the member moves to another epoch.
_NOT_NOW = frozenset({*FENCED, ErrorCode.stale_member_epoch})
#: Milliseconds that a fetch waits for records. A member that waits gets the ranges of a killed one
#: only afterwards.
FETCH_WAIT_MS = 200
#: Milliseconds after which a refused fetch of a key range is an error: the assignment should have
#: changed by then.
REFUSED_MS = 15_000
Ranges = dict[TopicPartition, KeyRanges]


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
        transactional: bool = False,
    ) -> None:
        """`starts` returns where partitions without a valid committed offset begin. With
        `transactional`, the transactions of a producer commit what the application has got."""
        self.cluster = cluster
        self.positions = RangePositions()
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

    # Assignment.

    async def take_over(
        self, whole: Assignment, shared: Mapping[tuple[UUID, int], KeyRanges]
    ) -> None:
        """Give up what is not assigned any more, then start what is new."""
        wanted = await self._named(whole, shared)
        owned = self.positions.owned
        revoked = _difference(owned, wanted)
        if revoked and self._member.member_epoch > 0:
            await self._listener.revoked(_as_key_ranges(revoked))
            self._note_lost(revoked)
            try:
                await self.commit()
            except ClientError as error:
                if not isinstance(error, KafkaError):
                    raise
        self.positions.keep(wanted)
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
        if lost:
            await self._listener.lost(_as_key_ranges(lost))

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
            if known:
                self.positions.start(where, known, committed=True)
            rest = key_range_map.minus(ranges, [(a, b) for a, b, _ in known])
            if rest:
                starting[where] = rest
        if starting:
            begins = await self._starts(sorted(starting))
            for where, ranges in starting.items():
                at = begins[where]
                pieces = [(first, last, at) for first, last in ranges]
                self.positions.start(where, pieces, committed=False)

    async def _committed_now(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, list[Piece]]:
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
    ) -> dict[TopicPartition, list[Piece]]:
        """Return the committed positions of partitions, by key range."""
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
        found: dict[TopicPartition, list[Piece]] = {}
        for where, part in message_fields.each_partition(group.topics):
            if part.error_code:
                raise KafkaError(part.error_code, f"offset of {where}")
            ranges = getattr(part, "key_ranges", ())
            pieces = [(r.first_hash, r.last_hash, r.position) for r in ranges if r.position >= 0]
            if not ranges and part.committed_offset >= 0:
                pieces = [(*WHOLE[0], part.committed_offset)]
            found[where] = pieces
        return found

    # Reading.

    async def fetch(self, max_wait_ms: int) -> list[tuple[Fetched, list[Any]]]:
        """Return what is new, with the decoded records of this member. Raises `KafkaError`."""
        await self._commit_passed()
        max_wait_ms = min(max_wait_ms, FETCH_WAIT_MS)
        cursors = {cursor.where: cursor for cursor in self.positions.cursors()}
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
                begin = (await self._starts([where]))[where]
                self.positions.advance(cursor, begin, delivered=False)
            elif result.code == ErrorCode.policy_violation:
                refused |= not self.positions.collapse(where)
                self._check_refused(where, result)
            else:
                raise result
        self._advance(cursors, found)
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
    ) -> None:
        """Move the positions over records that are returned; an error would have lost them."""
        for fetched, records in found:
            where = TopicPartition(fetched.topic, fetched.partition)
            self.positions.advance(cursors[where], fetched.next_offset, delivered=bool(records))
            if records and where in self._shared_ids:
                self._member.loads.add(self._shared_ids[where], records)

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

    async def commit(self) -> None:
        """Commit the positions that moved; with `transactional`, those that moved over records of
        other members alone. Raises `KafkaError`."""
        passed = self._transactional
        backoff = self.cluster.backoff()
        last_s = self.cluster.now() + STALE_COMMIT_MS / 1000
        while True:
            try:
                await self.cluster.retrying(lambda: self._commit_once(passed=passed))
            except KafkaError as error:
                # The member got more of a partition: the heartbeat with its epoch is on its way.
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
        self._passed_due_s = now_s + PASSED_COMMIT_MS / 1000
        try:
            async with asyncio.timeout(PASSED_COMMIT_MS / 1000):
                await self._commit_once(passed=True)
        except (ClientError, TimeoutError):
            return  # A later commit has the same positions or higher ones.

    async def _commit_once(self, *, passed: bool = False) -> None:
        """Send one commit, if there is something to commit."""
        member = self._member
        node = await self.cluster.coordinator(member.group)
        link = await self.cluster.connection(node, "coordinator")
        self._check_not_lost()
        commits = self.positions.to_commit(passed=passed)
        fields = {where: commit_fields(pieces) for where, pieces in commits.items()}
        if not offers_key_ranges(link):
            # An older coordinator, which assigns whole partitions.
            commits = {where: pieces for where, pieces in commits.items() if not fields[where]}
        if not commits:
            return
        version = link.version(ApiKey.OFFSET_COMMIT, 9)
        offsets = {w: CommittedOffset(min(p[2] for p in some)) for w, some in commits.items()}
        body = commit_body(member.group, member.member_id, member.member_epoch, offsets)
        for topic in body["topics"]:
            for row in topic["partitions"]:
                row |= fields[TopicPartition(topic["name"], row["partition_index"])]
        answer = await link.request(ApiKey.OFFSET_COMMIT, body, version=version)
        failures = []
        for where, part in message_fields.each_partition(answer.topics):
            detail = getattr(part, "individual_commit", None)
            about = getattr(detail, "error_message", None)
            error = message_fields.error_of(
                part, about or f"offset of {where} in group {member.group!r}"
            )
            if error is None:
                self.positions.committed(where, commits[where])
            else:
                failures.append(error)
        for error in failures:
            if error.code == ErrorCode.not_coordinator:
                self.cluster.forget_coordinator(member.group)
            raise error

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


def _as_key_ranges(ranges: Mapping[TopicPartition, Sequence[Range]]) -> Ranges:
    return {where: KeyRanges(some) for where, some in ranges.items()}
