"""Admin calls on groups: classic, consumer (KIP-848), share (KIP-932) and streams (KIP-1071).

A group id belongs to one type. `describe` finds the type and returns all groups in one shape, with
members and their assignments.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client.errors import KafkaError, check
from shoal.client.net import message_fields
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.finished_offsets import EMPTY, FinishedOffsets
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

CLASSIC, CONSUMER, SHARE, STREAMS = "Classic", "Consumer", "Share", "Streams"
TYPES = (CLASSIC, CONSUMER, SHARE, STREAMS)
_INT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as ListGroups returns it. `protocol_type` is "consumer", "share", "streams" or a
    custom name."""

    group_id: str
    type: str
    state: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group. `member_epoch` is -1 in classic groups, which have no epochs.

    A member of a streams group has `tasks` and `standby_tasks`, as `SUBTOPOLOGY_PARTITION`. Its
    assignment has the partitions that its active tasks may read.
    """

    member_id: str
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]
    member_epoch: int = -1
    instance_id: str | None = None
    rack: str | None = None
    subscription: tuple[str, ...] = ()
    target: tuple[TopicPartition, ...] | None = None
    tasks: tuple[str, ...] = ()
    standby_tasks: tuple[str, ...] = ()
    #: What it has of the partitions that it shares with other members of a consumer group.
    key_ranges: Mapping[TopicPartition, KeyRanges] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members. Epochs are -1 in classic groups, which have no epochs."""

    group_id: str
    type: str
    state: str
    assignor: str
    coordinator: int
    members: tuple[GroupMember, ...] = field(default=())
    group_epoch: int = -1
    assignment_epoch: int = -1


class CommittedRange(NamedTuple):
    """What a group has finished of the records whose key hashes are in a range.

    These are all records below `position`, which is -1 if none is committed, and those at
    `finished` offsets above it. The lowest gap below these appeared at `gap_timestamp_ms`.
    """

    first_hash: int
    last_hash: int
    position: int
    finished: FinishedOffsets = EMPTY
    gap_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed position; `offset` is -1 if there is none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    #: Finished offsets above `offset`, if they were wanted, and when the lowest gap appeared (-1
    #: without one). They are empty if the partition has key ranges, which have their own.
    finished: FinishedOffsets = EMPTY
    gap_timestamp_ms: int = -1
    #: Key ranges that tile the hashes, if the partition has several. `offset` is their lowest
    #: position.
    key_ranges: tuple[CommittedRange, ...] = ()


class Groups:
    """Calls on groups, reached as `Admin.groups`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def list(
        self, *, types: Iterable[str] = (), states: Iterable[str] = ()
    ) -> dict[str, GroupListing]:
        """Return the groups of all coordinators by id, filtered by type and state if given."""
        body = {"types_filter": list(types), "states_filter": list(states)}
        if not self.cluster.brokers:
            await self.cluster.refresh(())
        nodes = sorted(self.cluster.brokers)
        answers = await asyncio.gather(
            *(self.cluster.retry(lambda n=n: self._list(n, body)) for n in nodes)  # type: ignore[misc]
        )
        groups = {}
        for node, answer in zip(nodes, answers, strict=True):
            for entry in answer.groups:
                kind = getattr(entry, "group_type", "") or CLASSIC
                groups[entry.group_id] = GroupListing(
                    entry.group_id,
                    kind.capitalize(),
                    getattr(entry, "group_state", ""),
                    entry.protocol_type,
                    node,
                )
        return dict(sorted(groups.items()))

    async def _list(self, node: int, body: Mapping[str, Any]) -> Any:
        answer = await self.cluster.request(node, ApiKey.LIST_GROUPS, body)
        check(answer.error_code, "listing groups")
        return answer

    async def describe(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | KafkaError]:
        """Describe groups of any type; GROUP_ID_NOT_FOUND for one that does not exist."""
        unique_ids = list(dict.fromkeys(group_ids))
        results: dict[str, GroupDescription | KafkaError] = {}
        for describe in (
            self.describe_consumer,
            self.describe_share,
            self.describe_streams,
            self.describe_classic,
        ):
            missing = [g for g in unique_ids if not isinstance(results.get(g), GroupDescription)]
            if not missing:
                break
            for group_id, result in (await describe(missing)).items():
                earlier = results.get(group_id)
                if isinstance(result, GroupDescription) or earlier is None or _is_absent(earlier):
                    results[group_id] = result
        return {g: results[g] for g in unique_ids}

    async def describe_share(
        self, group_ids: Iterable[str]
    ) -> dict[str, GroupDescription | KafkaError]:
        """Describe share groups; GROUP_ID_NOT_FOUND also for groups of another type."""
        return await self._describe(
            group_ids, ApiKey.SHARE_GROUP_DESCRIBE, "group_ids", _parse_share_group
        )

    async def describe_streams(
        self, group_ids: Iterable[str]
    ) -> dict[str, GroupDescription | KafkaError]:
        """Describe streams groups; GROUP_ID_NOT_FOUND also for groups of another type."""
        return await self._describe(
            group_ids, ApiKey.STREAMS_GROUP_DESCRIBE, "group_ids", _parse_streams_group
        )

    async def describe_consumer(
        self, group_ids: Iterable[str]
    ) -> dict[str, GroupDescription | KafkaError]:
        """Describe consumer groups (KIP-848); GROUP_ID_NOT_FOUND also for other types of group."""
        return await self._describe(
            group_ids,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            "group_ids",
            _parse_consumer_group,
            key_ranges_wanted=True,
        )

    async def describe_classic(
        self, group_ids: Iterable[str]
    ) -> dict[str, GroupDescription | KafkaError]:
        """Describe classic groups."""
        return await self._describe(
            group_ids, ApiKey.DESCRIBE_GROUPS, "groups", _parse_classic_group
        )

    async def _describe(
        self,
        group_ids: Iterable[str],
        api_key: ApiKey,
        field_name: str,
        read: Callable[[Any, int], GroupDescription],
        **fields: Any,
    ) -> dict[str, GroupDescription | KafkaError]:
        async def call(node: int, ids: list[str]) -> dict[str, GroupDescription | KafkaError]:
            answer = await self.cluster.request(node, api_key, {field_name: ids, **fields})
            return {
                entry.group_id: message_fields.parse_error(entry, _format_unknown(entry.group_id))
                or read(entry, node)
                for entry in answer.groups
            }

        return await self.cluster.call_coordinators(group_ids, call)

    async def delete(self, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        """Delete empty groups of any type and their offsets; NON_EMPTY_GROUP for others."""

        async def call(node: int, ids: list[str]) -> dict[str, KafkaError | None]:
            answer = await self.cluster.request(node, ApiKey.DELETE_GROUPS, {"groups_names": ids})
            return {entry.group_id: _find_delete_error(entry) for entry in answer.results}

        return await self.cluster.call_coordinators(group_ids, call)

    # Committed offsets of classic, consumer and streams groups

    async def offsets(
        self, group_ids: Iterable[str], *, require_stable: bool = False, finished: bool = False
    ) -> dict[str, dict[TopicPartition, CommittedOffset] | KafkaError]:
        """Return all committed offsets of groups, and with `finished` the finished offsets above
        them. With `require_stable`, a group with offsets in an open transaction has the error
        UNSTABLE_OFFSET_COMMIT."""

        async def call(
            node: int, ids: list[str]
        ) -> dict[str, dict[TopicPartition, CommittedOffset] | KafkaError]:
            body = {
                "groups": [
                    {
                        "group_id": g,
                        "topics": None,
                        "member_epoch": -1,
                        "key_ranges_wanted": finished,
                    }
                    for g in ids
                ],
                "require_stable": require_stable,
            }
            # Version 10 names topics by id only, and committed offsets of deleted topics need the
            # name.
            link = await self.cluster.get_connection(node)
            version = link.choose_version(ApiKey.OFFSET_FETCH, 9)
            answer = await link.request(ApiKey.OFFSET_FETCH, body, version=version)
            return {
                entry.group_id: KafkaError(entry.error_code, f"group {entry.group_id!r}")
                if entry.error_code
                else _find_unstable(entry) or _parse_committed_offsets(entry)
                for entry in answer.groups
            }

        return await self.cluster.call_coordinators(group_ids, call)

    async def alter_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Set positions of a group without members; UNKNOWN_MEMBER_ID if it has some."""
        committed_offsets = {
            p: o if isinstance(o, CommittedOffset) else CommittedOffset(o)
            for p, o in offsets.items()
        }

        async def attempt() -> dict[TopicPartition, KafkaError | None]:
            node = await self.cluster.find_coordinator(group_id)
            link = await self.cluster.get_connection(node)
            version = link.choose_version(ApiKey.OFFSET_COMMIT, 9)
            body = make_commit_body(group_id, "", -1, committed_offsets)
            answer = await link.request(ApiKey.OFFSET_COMMIT, body, version=version)
            return _parse_offset_errors(answer.topics, group_id)

        return await self._retry_moved(group_id, attempt)

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete positions; GROUP_SUBSCRIBED_TO_TOPIC while members subscribe to the topic."""
        selected = list(partitions)

        async def attempt() -> dict[TopicPartition, KafkaError | None]:
            body = {
                "group_id": group_id,
                "topics": message_fields.group_by_topic(
                    (p, {"partition_index": p.partition}) for p in selected
                ),
            }
            node = await self.cluster.find_coordinator(group_id)
            answer = await self.cluster.request(node, ApiKey.OFFSET_DELETE, body)
            if answer.error_code:
                error = KafkaError(answer.error_code, _format_unknown(group_id))
                return dict.fromkeys(selected, error)
            return _parse_offset_errors(answer.topics, group_id)

        return await self._retry_moved(group_id, attempt)

    async def _retry_moved(
        self,
        group_id: str,
        attempt: Callable[[], Awaitable[dict[TopicPartition, KafkaError | None]]],
    ) -> dict[TopicPartition, KafkaError | None]:
        """Retry while every result is an error that the coordinator has moved."""

        async def attempt_once() -> dict[TopicPartition, KafkaError | None]:
            results = await attempt()
            for error in results.values():
                if error is not None and error.code in _MOVED:
                    self.cluster.forget_coordinator(group_id)
                    raise error
            return results

        return await self.cluster.retry(attempt_once)


_MOVED = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)


def make_commit_body(
    group_id: str,
    member_id: str,
    epoch: int,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> dict[str, Any]:
    """Return the body of an OffsetCommit with topic names, for versions up to 9."""
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": epoch,
        "member_id": member_id,
        "group_instance_id": None,
        "topics": message_fields.group_by_topic(
            (
                partition,
                {
                    "partition_index": partition.partition,
                    "committed_offset": o.offset,
                    "committed_leader_epoch": o.leader_epoch,
                    "committed_metadata": o.metadata,
                },
            )
            for partition, o in offsets.items()
        ),
    }


def _parse_committed_offsets(entry: Any) -> dict[TopicPartition, CommittedOffset]:
    return {
        TopicPartition(topic.name, part.partition_index): CommittedOffset(
            part.committed_offset,
            part.committed_leader_epoch,
            part.metadata or "",
            parse_finished_above(part),
            max((r.gap_timestamp for r in getattr(part, "key_ranges", ())), default=-1),
            _parse_committed_ranges(part),
        )
        for topic in entry.topics
        for part in topic.partitions
        if not part.error_code
    }


def _find_unstable(entry: Any) -> KafkaError | None:
    for topic in entry.topics:
        for part in topic.partitions:
            if part.error_code == ErrorCode.unstable_offset_commit:
                partition = TopicPartition(topic.name, part.partition_index)
                return KafkaError(part.error_code, f"a transaction with an offset of {partition}")
    return None


def _parse_committed_ranges(part: Any) -> tuple[CommittedRange, ...]:
    """Return the key ranges of a shared partition; none for a whole one."""
    ranges = getattr(part, "key_ranges", ())
    if len(ranges) <= 1:
        return ()
    return tuple(
        CommittedRange(
            r.first_hash,
            r.last_hash,
            r.position,
            FinishedOffsets.decode(r.finished),
            r.gap_timestamp,
        )
        for r in ranges
    )


def parse_finished_above(part: Any) -> FinishedOffsets:
    """Return the finished offsets above the committed one of a partition in an OffsetFetch."""
    whole_ranges = [
        r
        for r in getattr(part, "key_ranges", ())
        if (r.first_hash, r.last_hash, r.position) == (0, KEY_HASH_MAX, part.committed_offset)
    ]
    return FinishedOffsets.decode(whole_ranges[0].finished) if whole_ranges else EMPTY


def _is_absent(result: GroupDescription | KafkaError) -> bool:
    return isinstance(result, KafkaError) and result.code == ErrorCode.group_id_not_found


def _format_unknown(group_id: str) -> str:
    return f"there is no group {group_id!r}"


def _find_delete_error(entry: Any) -> KafkaError | None:
    reason = {
        ErrorCode.non_empty_group: f"group {entry.group_id!r} still has members; stop them first",
        ErrorCode.group_id_not_found: _format_unknown(entry.group_id),
    }.get(entry.error_code, f"deleting group {entry.group_id!r}")
    return message_fields.parse_error(entry, reason)


def _parse_partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(t.topic_name, p)
        for t in assignment.topic_partitions
        for p in sorted(t.partitions)
    )


def _parse_share_group(entry: Any, node: int) -> GroupDescription:
    members = tuple(
        GroupMember(
            m.member_id,
            m.client_id,
            m.client_host,
            _parse_partitions(m.assignment),
            m.member_epoch,
            None,
            m.rack_id,
            tuple(m.subscribed_topic_names),
        )
        for m in entry.members
    )
    return GroupDescription(
        entry.group_id,
        SHARE,
        entry.group_state,
        entry.assignor_name,
        node,
        members,
        entry.group_epoch,
        entry.assignment_epoch,
    )


def _parse_consumer_group(entry: Any, node: int) -> GroupDescription:
    names = {t.topic_id: t.topic_name for m in entry.members for t in m.assignment.topic_partitions}
    members = tuple(
        GroupMember(
            m.member_id,
            m.client_id,
            m.client_host,
            _parse_partitions(m.assignment),
            m.member_epoch,
            m.instance_id,
            m.rack_id,
            tuple(m.subscribed_topic_names or ()) or _format_regex(m.subscribed_topic_regex),
            _parse_partitions(m.target_assignment),
            key_ranges={
                TopicPartition(
                    names.get(shared_partition.topic_id, ""), shared_partition.partition
                ): KeyRanges((r.first_hash, r.last_hash) for r in shared_partition.ranges)
                for shared_partition in getattr(m, "key_ranges", ())
            },
        )
        for m in entry.members
    )
    return GroupDescription(
        entry.group_id,
        CONSUMER,
        entry.group_state,
        entry.assignor_name,
        node,
        members,
        entry.group_epoch,
        entry.assignment_epoch,
    )


def _parse_streams_group(entry: Any, node: int) -> GroupDescription:
    topology = entry.topology
    sources = {
        s.subtopology_id: sorted(
            {*s.source_topics, *(topic.name for topic in s.repartition_source_topics)}
        )
        for s in (topology.subtopologies if topology is not None else None) or ()
    }
    members = tuple(
        GroupMember(
            m.member_id,
            m.client_id,
            m.client_host,
            _read_partitions(m.assignment.active_tasks, sources),
            m.member_epoch,
            m.instance_id,
            m.rack_id,
            target=_read_partitions(m.target_assignment.active_tasks, sources),
            tasks=_format_tasks(m.assignment.active_tasks),
            standby_tasks=_format_tasks(m.assignment.standby_tasks),
        )
        for m in entry.members
    )
    return GroupDescription(
        entry.group_id,
        STREAMS,
        entry.group_state,
        "",
        node,
        members,
        entry.group_epoch,
        entry.assignment_epoch,
    )


def _read_partitions(
    tasks: Iterable[Any], sources: Mapping[str, Iterable[str]]
) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic, partition)
        for task in tasks
        for topic in sources.get(task.subtopology_id, ())
        for partition in sorted(task.partitions)
    )


def _format_tasks(tasks: Iterable[Any]) -> tuple[str, ...]:
    return tuple(f"{t.subtopology_id}_{p}" for t in tasks for p in sorted(t.partitions))


def _format_regex(pattern: str | None) -> tuple[str, ...]:
    return (f"/{pattern}/",) if pattern else ()


def _parse_classic_group(entry: Any, node: int) -> GroupDescription:
    consumers = entry.protocol_type in ("consumer", "")
    members = tuple(
        GroupMember(
            m.member_id,
            m.client_id,
            m.client_host,
            parse_classic_assignment(m.member_assignment) if consumers else (),
            instance_id=getattr(m, "group_instance_id", None),
        )
        for m in entry.members
    )
    return GroupDescription(
        entry.group_id, CLASSIC, entry.group_state, entry.protocol_data, node, members
    )


def parse_classic_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a classic assignment (version i16, then topics); () if none."""
    partitions = []
    try:
        (topics,) = _INT.unpack_from(data, 2)
        position = 6
        for _ in range(topics):
            size = int.from_bytes(data[position : position + 2], "big")
            name = data[position + 2 : position + 2 + size].decode()
            position += 2 + size
            (count,) = _INT.unpack_from(data, position)
            position += 4
            for _ in range(count):
                partitions.append(TopicPartition(name, _INT.unpack_from(data, position)[0]))
                position += 4
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(partitions))


def _parse_offset_errors(
    topics: Iterable[Any], group_id: str
) -> dict[TopicPartition, KafkaError | None]:
    """Return what an answer says of each partition's offset."""
    return {
        partition: message_fields.parse_error(part, f"offset of {partition} in group {group_id!r}")
        for partition, part in message_fields.iterate_partitions(topics)
    }
