"""Consumers of plain offsets: `Reader` for chosen partitions, `GroupConsumer` for a group member.

The group uses KIP-848: the broker assigns, and the member reports its owned partitions. A member
commits its position in a revoked partition before it gives the partition up. The next owner starts
after that position.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from shoal.client import message_fields
from shoal.client.cluster import Cluster, TopicPartition
from shoal.client.errors import ClientError, KafkaError
from shoal.client.fetcher import Fetcher, Isolation
from shoal.client.groups import CommittedOffset, commit_body
from shoal.client.membership import Assignment, Membership
from shoal.client.topics import OffsetSpec, Topics
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Milliseconds that a member may take to give up partitions.
REBALANCE_TIMEOUT_MS = 60_000


class Reset(Enum):
    """Where to start without a valid committed offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


class ConsumedRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Reader:
    """Reads forward from given offsets. `positions` are the next offsets to read."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        reset: Reset = Reset.NONE,
    ) -> None:
        self.cluster = cluster
        self.positions = dict(positions)
        self.isolation = isolation
        self.reset = reset
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._fetcher = Fetcher(cluster)

    async def poll(self, max_wait_ms: int = 500) -> Iterator[ConsumedRecord]:
        """Return new records, decoded on demand. Positions advance as if all were read.

        Raises `KafkaError`; OFFSET_OUT_OF_RANGE only if `reset` is NONE.
        """
        results = await self._fetcher.poll(
            self.positions, max_wait_ms=max_wait_ms, isolation=self.isolation
        )
        out_of_range = []
        found = []
        for where, result in results.items():
            if isinstance(result, KafkaError):
                if result.code != ErrorCode.offset_out_of_range or self.reset == Reset.NONE:
                    raise result
                out_of_range.append(where)
                continue
            if where not in self.positions:
                continue
            self.positions[where] = result.next_offset
            self.high_watermarks[where] = result.high_watermark
            found.append(result)
        if out_of_range:
            self.positions.update(await starts(self.cluster, out_of_range, self.reset))
        return (
            ConsumedRecord(fetched.topic, fetched.partition, *record)
            for fetched in found
            for record in fetched.records()
        )


async def starts(
    cluster: Cluster, partitions: Sequence[TopicPartition], reset: Reset
) -> dict[TopicPartition, int]:
    """Return the first or next offsets of partitions. Raises `KafkaError`."""
    spec = OffsetSpec.EARLIEST if reset == Reset.EARLIEST else OffsetSpec.LATEST
    listed = await Topics(cluster).offsets(dict.fromkeys(partitions, int(spec)))
    found = {}
    for where, result in listed.items():
        if isinstance(result, KafkaError):
            raise result
        found[where] = result.offset
    return found


class ConsumerMembership(Membership):
    """The heartbeat of a consumer-group member, which reports owned partitions that changed.

    `lost` is set when the member was fenced. Its positions belong to other members then and must
    not be committed.
    """

    api_key: ClassVar[ApiKey] = ApiKey.CONSUMER_GROUP_HEARTBEAT

    def __init__(self, cluster: Cluster, group: str, topics: Sequence[str]) -> None:
        super().__init__(cluster, group)
        self.owned: Assignment = {}
        self._topics = sorted(topics)
        self._reported: Assignment | None = None
        #: The last received assignment, with its member epoch.
        self._last_confirmed: tuple[Assignment, int] | None = None
        self.lost = False

    def _assigned(self, given: Assignment) -> None:
        """Report the assignment even if nothing changed here: the coordinator waits for that
        report. It may have sent and withdrawn another assignment in between. Each assignment is
        reported once, because some brokers answer a report with the assignment.
        """
        super()._assigned(given)
        current = self.assignment, self.member_epoch
        if current != self._last_confirmed and self.owned == self.assignment:
            self._reported = None
            self.hurry()
        self._last_confirmed = current

    def _fenced(self) -> None:
        super()._fenced()
        self.owned = {}
        self.lost = True

    async def _beat(self) -> None:
        try:
            await super()._beat()
        except ClientError:
            self._reported = None
            raise

    def _body(self, *, whole: bool) -> dict[str, Any]:
        owned = None
        if whole or self._reported != self.owned:
            owned = [{"topic_id": t, "partitions": p} for t, p in self.owned.items()]
            self._reported = dict(self.owned)
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.member_epoch,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS if whole else -1,
            "subscribed_topic_names": self._topics if whole else None,
            "topic_partitions": owned,
        }


class GroupConsumer:
    """One member of a consumer group. Created by `GroupConsumer.join`; `await close()` commits."""

    def __init__(
        self,
        cluster: Cluster,
        membership: ConsumerMembership,
        *,
        reset: Reset,
        isolation: Isolation,
    ) -> None:
        self.cluster = cluster
        self.membership = membership
        self._reader = Reader(cluster, {}, isolation=isolation, reset=reset)
        self._reset = reset
        self._committed: dict[TopicPartition, int] = {}

    @classmethod
    async def join(
        cls,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        *,
        reset: Reset = Reset.LATEST,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> GroupConsumer:
        """Become a member of `group`.

        Raises the coordinator's refusal, such as GROUP_ID_NOT_FOUND or INVALID_GROUP_ID for a group
        of another type.
        """
        membership = ConsumerMembership(cluster, group, topics)
        await membership.join()
        return cls(cluster, membership, reset=reset, isolation=isolation)

    async def __aenter__(self) -> GroupConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        return self._reader.positions

    async def poll(self, max_wait_ms: int = 500) -> Iterator[ConsumedRecord]:
        """Return new records of the partitions that this member owns."""
        self.membership.check()
        await self._reconcile()
        if not self._reader.positions:
            await self.membership.changed(max_wait_ms / 1000)
            return iter(())
        return await self._reader.poll(max_wait_ms)

    def rewind(self, where: TopicPartition, offset: int) -> None:
        """Move a position back to `offset` if it is ahead; `commit` then commits that."""
        positions = self._reader.positions
        if where in positions:
            positions[where] = min(positions[where], offset)

    async def commit(self) -> None:
        """Commit the positions after all records that `poll` returned. Raises `KafkaError`.

        FENCED_MEMBER_EPOCH means that the coordinator removed the member. Other members then own
        its partitions and start at the last commit. `poll` continues with the next assignment.
        """
        self._check_not_lost()
        moved = {
            p: CommittedOffset(o)
            for p, o in self._reader.positions.items()
            if self._committed.get(p) != o
        }
        if not moved:
            return
        member = self.membership

        async def attempt() -> None:
            node = await self.cluster.coordinator(member.group)
            link = await self.cluster.connection(node, "coordinator")
            version = link.version(ApiKey.OFFSET_COMMIT, 9)
            self._check_not_lost()
            body = commit_body(member.group, member.member_id, member.member_epoch, moved)
            answer = await link.request(ApiKey.OFFSET_COMMIT, body, version=version)
            for where, part in message_fields.each_partition(answer.topics):
                error = message_fields.error_of(
                    part, f"offset of {where} in group {member.group!r}"
                )
                if error is not None:
                    if error.code == ErrorCode.not_coordinator:
                        self.cluster.forget_coordinator(member.group)
                    raise error
                self._committed[where] = moved[where].offset

        await self.cluster.retrying(attempt)

    async def close(self) -> None:
        """Commit, leave the group, and give up its partitions."""
        try:
            if self.membership.member_epoch > 0 and not self.membership.lost:
                await self.commit()
        finally:
            await self.membership.leave()

    async def _reconcile(self) -> None:
        """Revoke partitions, then start new ones. Check the assignment again after each await, so
        that no revoked partition is read.
        """
        member = self.membership
        while member.lost or member.owned != member.assignment:
            if member.lost:
                member.lost = False
                self._reader.positions.clear()
                self._committed.clear()
                continue
            wanted = dict(member.assignment)
            await self._take_over(wanted)
            if not member.lost:
                member.owned = wanted
                member.hurry()

    def _check_not_lost(self) -> None:
        """Raise if the member was fenced. It has joined again since, and the broker would accept
        its old positions under the new epoch, although other members continue from them.
        """
        if self.membership.lost:
            raise KafkaError(
                ErrorCode.fenced_member_epoch, f"positions in group {self.membership.group!r}"
            )

    async def _take_over(self, wanted: Assignment) -> None:
        names = {t: await self.cluster.topic_name(t) for t in wanted}
        target = {
            TopicPartition(names[t] or "", p)
            for t, some in wanted.items()
            if names[t]
            for p in some
        }
        positions = self._reader.positions
        if set(positions) - target and self.membership.member_epoch > 0:
            try:
                await self.commit()
            except ClientError as error:
                if not isinstance(error, KafkaError):
                    raise
        for where in [p for p in positions if p not in target]:
            del positions[where]
            self._committed.pop(where, None)
        new = sorted(target - set(positions))
        if new:
            positions.update(await self._start_positions(new))

    async def _start_positions(self, new: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        member = self.membership

        async def attempt() -> dict[TopicPartition, int]:
            body = {
                "groups": [
                    {
                        "group_id": member.group,
                        "member_id": member.member_id,
                        "member_epoch": member.member_epoch,
                        "topics": [
                            {
                                "name": entry["name"],
                                "partition_indexes": [
                                    p["partition_index"] for p in entry["partitions"]
                                ],
                            }
                            for entry in message_fields.group_by_topic(
                                (p, {"partition_index": p.partition}) for p in new
                            )
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
            found = {}
            for where, part in message_fields.each_partition(group.topics):
                if part.error_code:
                    raise KafkaError(part.error_code, f"offset of {where}")
                if part.committed_offset >= 0:
                    found[where] = part.committed_offset
            return found

        found = await self.cluster.retrying(attempt)
        self._committed.update(found)
        missing = [p for p in new if p not in found]
        if missing and self._reset == Reset.NONE:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"group {member.group!r} has committed nothing for {missing[0]}",
            )
        if missing:
            found |= await starts(self.cluster, missing, self._reset)
        return found
