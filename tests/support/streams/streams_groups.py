"""A shard with streams groups on a simulated clock, and members that behave as clients do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.coordinator.group.streams.membership import MISSING_TOPICS, StreamsGroupHeartbeatRequest
from shoal.coordinator.group.streams.tasks import Tasks, from_wire
from shoal.metadata.image import ConfigResourceType, MetadataImage, PartitionImage, TopicImage
from shoal.protocol.errors import ErrorCode
from support.brokers.coordinator_sim import Simulation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.group.streams.streams_group import StreamsGroup

GROUP = "g"
REBALANCE_TIMEOUT_MS = 60_000
NO_DELAYS = {
    "streams.initial.rebalance.delay.ms": "0",
    "streams.assignment.interval.ms": "0",
}


def image_of(
    counts: Mapping[str, int], group_configs: Mapping[str, str] = NO_DELAYS
) -> MetadataImage:
    """Return metadata with these topics: name -> partition count."""
    partition = PartitionImage((0,), (0,), 0, 0, 0)
    topics = {
        name: TopicImage(name, UUID(int=hash_of(name)), (partition,) * count)
        for name, count in counts.items()
    }
    return MetadataImage(
        topics=topics,
        topics_by_id={t.topic_id: t for t in topics.values()},
        configs={(ConfigResourceType.GROUP, GROUP): dict(group_configs)},
    )


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode(), "big")


def subtopology(name: str, sources: Sequence[str], changelogs: Sequence[str] = ()) -> Any:
    internal = [
        {"name": c, "partitions": 0, "replication_factor": 0, "topic_configs": ()}
        for c in changelogs
    ]
    return {
        "subtopology_id": name,
        "source_topics": sources,
        "source_topic_regex": (),
        "state_changelog_topics": internal,
        "repartition_sink_topics": (),
        "repartition_source_topics": (),
        "copartition_groups": (),
    }


def topology(*subtopologies: Any, epoch: int = 0) -> Any:
    return {"epoch": epoch, "subtopologies": subtopologies}


class Client:
    """A member as in KIP-1071: it owns what it was assigned last, once it has noticed."""

    def __init__(self, member_id: str, process_id: str, instance_id: str | None = None) -> None:
        self.member_id, self.process_id = member_id, process_id
        #: The instance id of a static member.
        self.instance_id = instance_id
        self.epoch = 0
        self.active: Tasks = {}
        self.standby: Tasks = {}
        #: A response was lost: the next heartbeat has all fields.
        self.missed = False

    def follow(self, response: Mapping[str, Any]) -> None:
        """Take over what a response assigns."""
        self.epoch = response["member_epoch"]
        self.missed = False
        if response["active_tasks"] is not None:
            self.active = from_wire(response["active_tasks"])
            self.standby = from_wire(response["standby_tasks"])

    def lost(self) -> None:
        """The member was fenced, or has left: it abandons its tasks."""
        self.epoch = 0
        self.active, self.standby = {}, {}


class Streams:
    """One group in one shard."""

    def __init__(self, metadata: MetadataImage, sent: Any, **settings: Any) -> None:
        self.metadata = metadata
        self.sent = sent
        self.sim: Simulation[GroupShard] = Simulation(
            lambda: GroupShard(GroupSettings(**settings), self.metadata)
        )
        self._count = 0

    def heartbeat(self, client: Client, *, follow: bool = True, **more: Any) -> Any:
        """Return the response, or the error code of a refusal. Unless it is to `follow`, the client
        does not see the response."""
        self._count += 1
        token = f"{client.member_id}-{self._count}"
        joins = client.epoch == 0
        full = joins or client.missed
        client.missed = not follow
        fields = {
            "member_epoch": client.epoch,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS if full else -1,
            "topology": self.sent if joins else None,
            "process_id": client.process_id,
            "instance_id": client.instance_id,
            "active_tasks": client.active,
            "standby_tasks": client.standby,
            "warmup_tasks": {},
            **more,
        }
        request = StreamsGroupHeartbeatRequest(GROUP, client.member_id, **fields)
        self.sim.submit(token, lambda s, now_ms, t: s.streams.heartbeat(request, now_ms, t))
        response = self.sim.failed.get(token, self.sim.delivered.get(token))
        if isinstance(response, ErrorCode):
            if follow and response in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch):
                client.lost()
        elif response is not None and follow:
            client.follow(response)
        return response

    def leave(self, client: Client, epoch: int = -1) -> Any:
        """Leave; a static member with epoch -2 may rejoin."""
        response = self.heartbeat(
            client, member_epoch=epoch, topology=None, rebalance_timeout_ms=-1, follow=False
        )
        client.lost()
        return response

    def settle(self, *clients: Client, rounds: int = 10) -> None:
        for _ in range(rounds):
            for client in clients:
                self.heartbeat(client)

    def change(self, metadata: MetadataImage) -> None:
        """Apply new metadata."""
        self.metadata = metadata
        self.sim.runtime.apply(
            0,
            lambda shard, now_ms: shard.on_metadata_changed(metadata, [], now_ms),
            self.sim.now_ms,
        )
        self.sim.runtime.flush()

    @property
    def group(self) -> StreamsGroup:
        group = self.sim.shard.context.groups.get(GROUP)
        assert group is not None
        return group  # type: ignore[return-value]

    @property
    def exists(self) -> bool:
        return GROUP in self.sim.shard.context.groups


def status_codes(response: Any) -> list[int]:
    return [status["status_code"] for status in response["status"]]


def missing(response: Any) -> dict[str, int]:
    """The internal topics that the server has to create, with their numbers of partitions."""
    return {t.name: t.partitions for t in response.get(MISSING_TOPICS, {}).values()}
