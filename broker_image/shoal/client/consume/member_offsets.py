"""Requests of a group member about committed offsets: what is committed, and a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shoal.client.admin.groups import CommittedOffset, make_commit_body
from shoal.client.errors import KafkaError
from shoal.client.net import message_fields
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal.client.net.connection import Connection


class OffsetsMember(Protocol):
    """What is used of `ConsumerMembership`. `lost` means that the coordinator has removed it."""

    group: str
    member_id: str
    member_epoch: int
    lost: bool


def check_not_lost(member: OffsetsMember) -> None:
    """Raise FENCED_MEMBER_EPOCH if the member was fenced. It has joined again since, and the broker
    would accept its old positions under the new epoch, although other members continue from them.
    """
    if member.lost:
        raise KafkaError(ErrorCode.fenced_member_epoch, f"positions in group {member.group!r}")


async def connect_to_coordinator(cluster: Cluster, member: OffsetsMember) -> Connection:
    """Return the connection to the coordinator of the member's group."""
    node = await cluster.find_coordinator(member.group)
    return await cluster.get_connection(node, "coordinator")


async def request_committed(
    link: Connection,
    member: OffsetsMember,
    partitions: Sequence[TopicPartition],
    *,
    key_ranges_wanted: bool,
) -> Any:
    """Return a group's answer of OffsetFetch, with stable offsets only. With `key_ranges_wanted` it
    has what is finished above them, too. Raises the `KafkaError` of the group."""
    topics = message_fields.group_by_topic(
        (partition, {"partition_index": partition.partition}) for partition in partitions
    )
    body = {
        "groups": [
            {
                "group_id": member.group,
                "member_id": member.member_id,
                "member_epoch": member.member_epoch,
                "key_ranges_wanted": key_ranges_wanted,
                "topics": [
                    {
                        "name": entry["name"],
                        "partition_indexes": [p["partition_index"] for p in entry["partitions"]],
                    }
                    for entry in topics
                ],
            }
        ],
        "require_stable": True,
    }
    version = link.choose_version(ApiKey.OFFSET_FETCH, 9)
    answer = await link.request(ApiKey.OFFSET_FETCH, body, version=version)
    group = answer.groups[0]
    if group.error_code:
        raise KafkaError(group.error_code, f"offsets of group {member.group!r}")
    return group


def iterate_committed(group: Any) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield the partitions of a group's answer of OffsetFetch. Raises the first `KafkaError`."""
    for partition, part in message_fields.iterate_partitions(group.topics):
        if part.error_code:
            raise KafkaError(part.error_code, f"offset of {partition}")
        yield partition, part


def find_committed(group: Any) -> dict[TopicPartition, Any]:
    """Return the partitions with a committed offset. Raises the first `KafkaError`."""
    return {
        partition: part
        for partition, part in iterate_committed(group)
        if part.committed_offset >= 0
    }


async def request_commit(
    link: Connection,
    member: OffsetsMember,
    offsets: Mapping[TopicPartition, int],
    fields: Mapping[TopicPartition, Mapping[str, Any]] | None = None,
) -> Iterator[tuple[TopicPartition, Any, KafkaError | None]]:
    """Send an OffsetCommit of these offsets, with more fields of some partitions. Returns the
    answer of each partition and its error. Raises FENCED_MEMBER_EPOCH as `check_not_lost` does."""
    version = link.choose_version(ApiKey.OFFSET_COMMIT, 9)
    check_not_lost(member)
    committed = {partition: CommittedOffset(offset) for partition, offset in offsets.items()}
    body = make_commit_body(member.group, member.member_id, member.member_epoch, committed)
    for topic in body["topics"] if fields else ():
        for row in topic["partitions"]:
            row |= (fields or {}).get(TopicPartition(topic["name"], row["partition_index"]), {})
    answer = await link.request(ApiKey.OFFSET_COMMIT, body, version=version)
    return _parse_commit(answer, member.group)


def _parse_commit(
    answer: Any, group: str
) -> Iterator[tuple[TopicPartition, Any, KafkaError | None]]:
    for partition, part in message_fields.iterate_partitions(answer.topics):
        message = getattr(getattr(part, "individual_commit", None), "error_message", None)
        detail = message or f"offset of {partition} in group {group!r}"
        yield partition, part, message_fields.parse_error(part, detail)


def raise_first(cluster: Cluster, member: OffsetsMember, failures: Sequence[KafkaError]) -> None:
    """Raise the first error of a commit, if there is one."""
    for error in failures:
        if error.code == ErrorCode.not_coordinator:
            cluster.forget_coordinator(member.group)
        raise error
