"""Admin calls on a share group's positions: start offsets, lag, resets (KIP-932, KIP-1226).

The broker computes the lag: log end offset, minus start offset, minus settled records after the
start offset. Records in flight count as lag. -1 means unknown.

If dead-lettered records block their keys (`share.ordering.key.dead.letter=hold`), `offsets` returns
these records and `free` releases their keys. `in_flight` lists the records in flight, and `cancel`
takes records from the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shoal.client.errors import KafkaError
from shoal.client.net import message_fields
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import CANCEL_FEATURE, HELD_KEYS_FEATURE, IN_FLIGHT_FEATURE
from shoal.protocol.share import (
    CancelledRecords,
    CancelOutcome,
    InFlightRecords,
    InFlightState,
)

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.client.net.cluster import Cluster

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """A share group's position in one partition; -1 for unknown.

    `key_holder_offsets` are ranges of dead-lettered records that block their keys.
    """

    start_offset: int
    leader_epoch: int
    lag: int
    topic_id: UUID | None = None
    key_holder_offsets: tuple[tuple[int, int], ...] = ()


class InFlightPage(NamedTuple):
    """Records in flight in one partition, and the offset of the next page; None after the last."""

    entries: Sequence[InFlightRecords]
    next_offset: int | None


class ShareGroups:
    """Calls on share groups, reached as `Admin.share_groups`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def offsets(
        self, groups: Mapping[str, Iterable[TopicPartition] | None] | Iterable[str]
    ) -> dict[str, dict[TopicPartition, ShareOffset | KafkaError] | KafkaError]:
        """Return positions and lag of share groups for the named partitions, or for all (None).

        Hundreds of groups need one request per coordinator.
        """
        requested = groups if isinstance(groups, Mapping) else dict.fromkeys(groups)

        async def call(
            node: int, group_ids: list[str]
        ) -> dict[str, dict[TopicPartition, ShareOffset | KafkaError] | KafkaError]:
            body = {
                "groups": [{"group_id": g, "topics": _make_topics(requested[g])} for g in group_ids]
            }
            answer = await self.cluster.request(node, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, body)
            return {
                entry.group_id: message_fields.parse_error(
                    entry, f"there is no share group {entry.group_id!r}"
                )
                or _parse_offsets(entry)
                for entry in answer.groups
            }

        return await self.cluster.call_coordinators(requested, call)

    async def alter_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Set start offsets of a group without members; raises NON_EMPTY_GROUP if it has some."""
        body = {
            "group_id": group_id,
            "topics": message_fields.group_by_topic(
                (
                    (p, {"partition_index": p.partition, "start_offset": o})
                    for p, o in offsets.items()
                ),
                "topic_name",
            ),
        }
        answer = await self._ask(group_id, ApiKey.ALTER_SHARE_GROUP_OFFSETS, body)
        return {
            partition: message_fields.parse_error(
                part, f"offset of {partition} in share group {group_id!r}"
            )
            for partition, part in message_fields.iterate_partitions(answer.responses, "topic_name")
        }

    async def free(
        self, group_id: str, offsets: Mapping[TopicPartition, Sequence[tuple[int, int]]]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Release the keys that dead-lettered records at these offsets block; ignore other offsets.
        Sends requests to the partition leaders; UNSUPPORTED_VERSION if they do not support it.
        """

        return await self._ask_leaders(
            group_id,
            {p: {"freed_offsets": _make_ranges(ranges)} for p, ranges in offsets.items() if ranges},
            HELD_KEYS_FEATURE,
            "the broker does not support keys that dead letters hold",
            lambda _: None,
        )

    async def cancel(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, Sequence[tuple[int, int]]],
        *,
        dead_letter: bool = False,
    ) -> dict[TopicPartition, Sequence[CancelledRecords] | KafkaError]:
        """Cancel the records at these ranges of offsets, and return what became of them. With
        `dead_letter`, each gets a dead letter.

        Sends requests to the partition leaders, each of which takes `CANCELLED_MAX` offsets at
        most. UNSUPPORTED_VERSION if they do not support it.
        """
        return await self._ask_leaders(
            group_id,
            {
                p: {"cancelled_offsets": _make_ranges(ranges), "dead_letter": dead_letter}
                for p, ranges in offsets.items()
                if ranges
            },
            CANCEL_FEATURE,
            "the broker does not support to cancel records",
            _parse_cancelled,
        )

    async def _ask_leaders(
        self,
        group_id: str,
        fields: Mapping[TopicPartition, Mapping[str, Any]],
        feature: str,
        unsupported: str,
        parse: Callable[[Any], V],
    ) -> dict[TopicPartition, V | KafkaError]:
        """Send AlterShareGroupOffsets with fields of Shoal to the partition leaders. Return what
        `parse` makes of each partition's answer."""

        async def call(
            node: int, partitions: list[TopicPartition]
        ) -> dict[TopicPartition, V | KafkaError]:
            link = await self.cluster.get_connection(node)
            if feature not in link.features:
                error = KafkaError(ErrorCode.unsupported_version, unsupported)
                return dict.fromkeys(partitions, error)
            rows = (
                (p, {"partition_index": p.partition, "start_offset": -1, **fields[p]})
                for p in partitions
            )
            topics = message_fields.group_by_topic(rows, "topic_name")
            body = {"group_id": group_id, "topics": topics}
            answer = await self.cluster.request(node, ApiKey.ALTER_SHARE_GROUP_OFFSETS, body)
            if refused := message_fields.parse_error(answer, f"share group {group_id!r}"):
                return dict.fromkeys(partitions, refused)
            return {
                p: message_fields.parse_error(part, f"{p} in share group {group_id!r}")
                or parse(part)
                for p, part in message_fields.iterate_partitions(answer.responses, "topic_name")
            }

        return await self.cluster.call_leaders(fields, call)

    async def in_flight(
        self, group_id: str, starts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, InFlightPage | KafkaError]:
        """Return a page of the records in flight of each partition, from the given offset on.
        Sends requests to the partition leaders; UNSUPPORTED_VERSION if they do not support it.
        """

        async def call(
            node: int, partitions: list[TopicPartition]
        ) -> dict[TopicPartition, InFlightPage | KafkaError]:
            link = await self.cluster.get_connection(node)
            if IN_FLIGHT_FEATURE not in link.features:
                error = KafkaError(
                    ErrorCode.unsupported_version,
                    f"broker {node} does not list records in flight",
                )
                return dict.fromkeys(partitions, error)
            topics = [
                {
                    **topic,
                    "in_flight_from": [
                        starts[TopicPartition(topic["topic_name"], p)] for p in topic["partitions"]
                    ],
                }
                for topic in _make_topics(partitions) or ()
            ]
            body = {"groups": [{"group_id": group_id, "topics": topics}]}
            answer = await self.cluster.request(node, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, body)
            (entry,) = answer.groups
            if refused := message_fields.parse_error(entry, f"share group {group_id!r}"):
                return dict.fromkeys(partitions, refused)
            return {
                partition: message_fields.parse_error(
                    part, f"{partition} in share group {group_id!r}"
                )
                or _parse_page(part)
                for partition, part in message_fields.iterate_partitions(entry.topics, "topic_name")
            }

        return await self.cluster.call_leaders(starts, call)

    async def delete_offsets(
        self, group_id: str, topics: Iterable[str]
    ) -> dict[str, KafkaError | None]:
        """Delete a group's state of these topics; raises NON_EMPTY_GROUP if it has members."""
        body = {"group_id": group_id, "topics": [{"topic_name": t} for t in topics]}
        answer = await self._ask(group_id, ApiKey.DELETE_SHARE_GROUP_OFFSETS, body)
        return {
            entry.topic_name: message_fields.parse_error(
                entry, f"topic {entry.topic_name!r} of group {group_id!r}"
            )
            for entry in answer.responses
        }

    async def _ask(self, group_id: str, api_key: ApiKey, body: Mapping[str, Any]) -> Any:
        try:
            return await self.cluster.request_coordinator(group_id, api_key, body)
        except KafkaError as error:
            if error.code == ErrorCode.non_empty_group:
                raise KafkaError(
                    error.code, f"share group {group_id!r} has members; stop them first"
                ) from None
            raise


def _parse_cancelled(part: Any) -> Sequence[CancelledRecords]:
    return [
        CancelledRecords(x.first_offset, x.last_offset, CancelOutcome(x.outcome))
        for x in getattr(part, "cancelled", ())
    ]


def _make_ranges(ranges: Iterable[tuple[int, int]]) -> list[Mapping[str, int]]:
    return [{"first_offset": first, "last_offset": last} for first, last in ranges]


def _make_topics(partitions: Iterable[TopicPartition] | None) -> Sequence[Mapping[str, Any]] | None:
    if partitions is None:
        return None
    indexes_by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        indexes_by_topic.setdefault(partition.topic, []).append(partition.partition)
    return [{"topic_name": t, "partitions": sorted(p)} for t, p in indexes_by_topic.items()]


def _parse_page(part: Any) -> InFlightPage:
    next_offset = getattr(part, "next_offset", -1)
    entries = [
        InFlightRecords(
            entry.first_offset,
            entry.last_offset,
            InFlightState(entry.state),
            entry.delivery_count,
            entry.member_id,
            entry.time_left_ms,
            getattr(entry, "failure", ""),
        )
        for entry in getattr(part, "in_flight", ())
    ]
    return InFlightPage(entries, next_offset if next_offset >= 0 else None)


def _parse_offsets(entry: Any) -> dict[TopicPartition, ShareOffset | KafkaError]:
    return {
        partition: message_fields.parse_error(
            part, f"{partition} in share group {entry.group_id!r}"
        )
        or ShareOffset(
            part.start_offset,
            part.leader_epoch,
            getattr(part, "lag", -1),
            ids[partition.topic],
            tuple((x.first_offset, x.last_offset) for x in getattr(part, "held_offsets", ())),
        )
        for ids in [{t.topic_name: t.topic_id for t in entry.topics}]
        for partition, part in message_fields.iterate_partitions(entry.topics, "topic_name")
    }
