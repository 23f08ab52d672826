"""Admin calls on a share group's positions: start offsets, lag, resets (KIP-932, KIP-1226).

The broker computes the lag: log end offset, minus start offset, minus settled records after the
start offset. Records in flight count as lag. -1 means unknown.

If dead-lettered records block their keys (`share.ordering.key.dead.letter=hold`), `offsets` returns
these records and `free` releases their keys. `in_flight` lists the records in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client import message_fields
from shoal.client.cluster import TopicPartition
from shoal.client.errors import KafkaError
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import HELD_KEYS_FEATURE, IN_FLIGHT_FEATURE
from shoal.protocol.share import InFlight, InFlightState

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.client.cluster import Cluster


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

    entries: Sequence[InFlight]
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
        wanted = groups if isinstance(groups, Mapping) else dict.fromkeys(groups)

        async def call(
            node: int, some: list[str]
        ) -> dict[str, dict[TopicPartition, ShareOffset | KafkaError] | KafkaError]:
            body = {"groups": [{"group_id": g, "topics": _topics(wanted[g])} for g in some]}
            answer = await self.cluster.request(node, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, body)
            return {
                entry.group_id: message_fields.error_of(
                    entry, f"there is no share group {entry.group_id!r}"
                )
                or _offsets(entry)
                for entry in answer.groups
            }

        return await self.cluster.on_coordinators(wanted, call)

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
            where: message_fields.error_of(part, f"offset of {where} in share group {group_id!r}")
            for where, part in message_fields.each_partition(answer.responses, "topic_name")
        }

    async def free(
        self, group_id: str, offsets: Mapping[TopicPartition, Sequence[tuple[int, int]]]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Release the keys that dead-lettered records at these offsets block; ignore other offsets.
        Sends requests to the partition leaders; UNSUPPORTED_VERSION if they do not support it.
        """

        async def call(
            node: int, some: list[TopicPartition]
        ) -> dict[TopicPartition, KafkaError | None]:
            link = await self.cluster.connection(node)
            if HELD_KEYS_FEATURE not in link.features:
                error = KafkaError(
                    ErrorCode.unsupported_version,
                    "the broker does not support keys that dead letters hold",
                )
                return dict.fromkeys(some, error)
            body = {
                "group_id": group_id,
                "topics": message_fields.group_by_topic(
                    (
                        (
                            p,
                            {
                                "partition_index": p.partition,
                                "start_offset": -1,
                                "freed_offsets": [
                                    {"first_offset": first, "last_offset": last}
                                    for first, last in offsets[p]
                                ],
                            },
                        )
                        for p in some
                    ),
                    "topic_name",
                ),
            }
            answer = await self.cluster.request(node, ApiKey.ALTER_SHARE_GROUP_OFFSETS, body)
            return {
                where: message_fields.error_of(
                    part, f"keys held in {where} by share group {group_id!r}"
                )
                for where, part in message_fields.each_partition(answer.responses, "topic_name")
            }

        wanted = {where: ranges for where, ranges in offsets.items() if ranges}
        return await self.cluster.on_leaders(wanted, call)

    async def in_flight(
        self, group_id: str, starts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, InFlightPage | KafkaError]:
        """Return a page of the records in flight of each partition, from the given offset on.
        Sends requests to the partition leaders; UNSUPPORTED_VERSION if they do not support it.
        """

        async def call(
            node: int, some: list[TopicPartition]
        ) -> dict[TopicPartition, InFlightPage | KafkaError]:
            link = await self.cluster.connection(node)
            if IN_FLIGHT_FEATURE not in link.features:
                error = KafkaError(
                    ErrorCode.unsupported_version,
                    f"broker {node} does not list records in flight",
                )
                return dict.fromkeys(some, error)
            topics = [
                {
                    **topic,
                    "in_flight_from": [
                        starts[TopicPartition(topic["topic_name"], p)] for p in topic["partitions"]
                    ],
                }
                for topic in _topics(some) or ()
            ]
            body = {"groups": [{"group_id": group_id, "topics": topics}]}
            answer = await self.cluster.request(node, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, body)
            (entry,) = answer.groups
            if refused := message_fields.error_of(entry, f"share group {group_id!r}"):
                return dict.fromkeys(some, refused)
            return {
                where: message_fields.error_of(part, f"{where} in share group {group_id!r}")
                or _page(part)
                for where, part in message_fields.each_partition(entry.topics, "topic_name")
            }

        return await self.cluster.on_leaders(starts, call)

    async def delete_offsets(
        self, group_id: str, topics: Iterable[str]
    ) -> dict[str, KafkaError | None]:
        """Delete a group's state of these topics; raises NON_EMPTY_GROUP if it has members."""
        body = {"group_id": group_id, "topics": [{"topic_name": t} for t in topics]}
        answer = await self._ask(group_id, ApiKey.DELETE_SHARE_GROUP_OFFSETS, body)
        return {
            entry.topic_name: message_fields.error_of(
                entry, f"topic {entry.topic_name!r} of group {group_id!r}"
            )
            for entry in answer.responses
        }

    async def _ask(self, group_id: str, api_key: ApiKey, body: Mapping[str, Any]) -> Any:
        try:
            return await self.cluster.at_coordinator(group_id, api_key, body)
        except KafkaError as error:
            if error.code == ErrorCode.non_empty_group:
                raise KafkaError(
                    error.code, f"share group {group_id!r} has members; stop them first"
                ) from None
            raise


def _topics(partitions: Iterable[TopicPartition] | None) -> Sequence[Mapping[str, Any]] | None:
    if partitions is None:
        return None
    found: dict[str, list[int]] = {}
    for where in partitions:
        found.setdefault(where.topic, []).append(where.partition)
    return [{"topic_name": t, "partitions": sorted(p)} for t, p in found.items()]


def _page(part: Any) -> InFlightPage:
    next_offset = getattr(part, "next_offset", -1)
    entries = [
        InFlight(
            one.first_offset,
            one.last_offset,
            InFlightState(one.state),
            one.delivery_count,
            one.member_id,
            one.time_left_ms,
        )
        for one in getattr(part, "in_flight", ())
    ]
    return InFlightPage(entries, next_offset if next_offset >= 0 else None)


def _offsets(entry: Any) -> dict[TopicPartition, ShareOffset | KafkaError]:
    return {
        where: message_fields.error_of(part, f"{where} in share group {entry.group_id!r}")
        or ShareOffset(
            part.start_offset,
            part.leader_epoch,
            getattr(part, "lag", -1),
            ids[where.topic],
            tuple((x.first_offset, x.last_offset) for x in getattr(part, "held_offsets", ())),
        )
        for ids in [{t.topic_name: t.topic_id for t in entry.topics}]
        for where, part in message_fields.each_partition(entry.topics, "topic_name")
    }
