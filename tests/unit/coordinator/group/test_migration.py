"""Groups that migrate between the classic and the consumer protocol, and their mixed membership.

Sentences in quotes are from KIP-848, "Upgrade and downgrade".
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from shoal.coordinator.contract import CoordinatorResult, RecordOrigin
from shoal.coordinator.group.classic import requests
from shoal.coordinator.group.consumer import membership
from shoal.coordinator.group.consumer.consumer_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.coordinator.group.topics import TopicCatalog
from shoal.metadata.image import MetadataImage, PartitionImage, TopicImage
from shoal.protocol.errors import ApiError, ErrorCode, WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPIC, TOPIC_ID = "orders", UUID(int=7)
_TOPIC = TopicImage(TOPIC, TOPIC_ID, (PartitionImage((0,), (0,), 0, 0, 0),) * 4)
IMAGE = MetadataImage(topics={TOPIC: _TOPIC}, topics_by_id={TOPIC_ID: _TOPIC})
GROUP = "g"


def subscription(owned: Sequence[int] = ()) -> bytes:
    """A ConsumerProtocolSubscription of version 1."""
    name = len(TOPIC).to_bytes(2, "big") + TOPIC.encode()
    out = b"\x00\x01" + b"\x00\x00\x00\x01" + name + b"\xff\xff\xff\xff"
    if not owned:
        return out + b"\x00\x00\x00\x00"
    partitions = b"".join(p.to_bytes(4, "big") for p in owned)
    return out + b"\x00\x00\x00\x01" + name + len(owned).to_bytes(4, "big") + partitions


class Shard:
    """A group shard over a log from which it can be rebuilt."""

    def __init__(self, **settings: Any) -> None:
        self.settings = GroupSettings(group_initial_rebalance_delay_ms=0, **settings)
        self.log: list[Any] = []
        self.shard = GroupShard(self.settings, IMAGE)
        self.shard.on_loaded(0)
        self.now_ms = 1_000
        self.tokens = itertools.count(1)
        self.replies: dict[int, Any] = {}

    def take(self, result: CoordinatorResult) -> None:
        for record in result.records:
            self.shard.replay(record, RecordOrigin(len(self.log), self.now_ms))
            self.log.append(record)
        self.replies.update((token, dict(response)) for token, response in result.replies)

    def ask(self, decide: Any, request: Any) -> Any:
        """Return the reply to a request, or None while it is parked."""
        token = next(self.tokens)
        self.take(decide(request, self.now_ms, token))
        self.settle()
        return self.replies.get(token)

    def settle(self, step_ms: int = 0) -> None:
        self.now_ms += step_ms
        while (at_ms := self.shard.next_deadline_ms) is not None and at_ms <= self.now_ms:
            self.take(self.shard.tick(self.now_ms))

    def rebuilt(self) -> Any:
        other = GroupShard(self.settings, IMAGE)
        for offset, record in enumerate(self.log):
            other.replay(record, RecordOrigin(offset, 0))
        return other.get_hard_state()

    @property
    def group(self) -> Any:
        return self.shard.context.groups.get(GROUP)

    # Members.

    def classic_join(self, member_id: str = "", owned: list[int] | None = None) -> Any:
        request = requests.JoinGroupRequest(
            GROUP,
            member_id,
            None,
            "c",
            "/h",
            "consumer",
            {"range": subscription(owned or [])},
            45_000,
            60_000,
            f"classic-{next(self.tokens)}",
        )
        return self.ask(self.shard.classic.join, request)

    def classic_sync(self, joined: Any, assignments: dict[str, list[int]] | None = None) -> Any:
        request = requests.SyncGroupRequest(
            GROUP,
            joined["generation_id"],
            joined["member_id"],
            None,
            "consumer",
            "range",
            {
                m: write_assignment({TOPIC_ID: frozenset(p)}, subscription(), TopicCatalog(IMAGE))
                for m, p in (assignments or {}).items()
            },
        )
        return self.ask(self.shard.classic.sync, request)

    def classic_heartbeat(self, joined: Any) -> ErrorCode:
        request = requests.HeartbeatRequest(GROUP, joined["generation_id"], joined["member_id"])
        return self.ask(self.shard.classic.heartbeat, request)["error_code"]

    def classic_member(self) -> Any:
        """Add the only member of a classic group, with all partitions."""
        first = self.classic_join()
        joined = self.classic_join(first["member_id"])
        self.classic_sync(joined, {joined["member_id"]: [0, 1, 2, 3]})
        return joined

    def heartbeat(self, member_id: str, epoch: int, owned: set[int] | None = None) -> Any:
        joins = epoch == 0
        request = membership.ConsumerGroupHeartbeatRequest(
            GROUP,
            member_id,
            epoch,
            rebalance_timeout_ms=60_000 if joins else -1,
            subscribed_topic_names=frozenset([TOPIC]) if joins else None,
            owned={} if not owned else {TOPIC_ID: frozenset(owned)},
        )
        return self.ask(self.shard.consumer.heartbeat, request)


def assigned(reply: Any) -> set[int]:
    """Return the partitions of a SyncGroup or ConsumerGroupHeartbeat response."""
    if isinstance(reply["assignment"], bytes):
        return set(read_assignment(reply["assignment"], TopicCatalog(IMAGE)).get(TOPIC_ID, ()))
    return {p for t in reply["assignment"]["topic_partitions"] for p in t["partitions"]}


def test_the_first_member_of_the_consumer_protocol_upgrades_the_group():
    """ "The group is converted when the first consumer joins with the new protocol": the classic
    member keeps its partitions, is asked to rejoin, and gives up half of them."""
    shard = Shard()
    old = shard.classic_member()
    assert shard.group.type is GroupType.CLASSIC
    new = shard.heartbeat("new", 0)
    assert shard.group.type is GroupType.CONSUMER
    assert assigned(new) == set()
    assert len(shard.group.owners) == 4
    assert shard.shard.get_hard_state() == shard.rebuilt()

    shard.settle(1_000)  # The assignment interval is over.
    assert shard.classic_heartbeat(old) is ErrorCode.rebalance_in_progress
    again = shard.classic_join(old["member_id"], [0, 1, 2, 3])
    kept = assigned(shard.classic_sync(again))
    assert len(kept) == 2
    assert shard.classic_heartbeat(again) is ErrorCode.rebalance_in_progress
    again = shard.classic_join(old["member_id"], sorted(kept))
    assert assigned(shard.classic_sync(again)) == kept
    assert shard.classic_heartbeat(again) is ErrorCode.none
    new = shard.heartbeat("new", new["member_epoch"])
    assert assigned(new) == {0, 1, 2, 3} - kept
    assert shard.group.state_name == "Stable"
    assert shard.shard.get_hard_state() == shard.rebuilt()


def test_a_classic_member_joins_a_consumer_group():
    """It gets an id before it counts as a member, and the broker's assignor assigns its
    partitions."""
    shard = Shard()
    new = shard.heartbeat("new", 0)
    assert assigned(new) == {0, 1, 2, 3}
    first = shard.classic_join()
    assert first["error_code"] is ErrorCode.member_id_required
    joined = shard.classic_join(first["member_id"])
    assert joined["error_code"] is ErrorCode.none
    shard.settle(1_000)
    new = shard.heartbeat("new", new["member_epoch"], {0, 1, 2, 3})
    mine = assigned(new)
    shard.heartbeat("new", new["member_epoch"], mine)
    while shard.classic_heartbeat(joined) is ErrorCode.rebalance_in_progress:
        joined = shard.classic_join(joined["member_id"])
    assert assigned(shard.classic_sync(joined)) == {0, 1, 2, 3} - mine
    described = shard.group.describe(TopicCatalog(IMAGE), "uniform")
    assert {m["member_type"] for m in described["members"]} == {0, 1}


def test_the_last_member_of_the_consumer_protocol_downgrades_the_group():
    """ "When the last consumer leaves, the group is converted back"; classic members rejoin."""
    shard = Shard()
    old = shard.classic_member()
    shard.heartbeat("new", 0)
    assert shard.group.type is GroupType.CONSUMER
    shard.heartbeat("new", -1)
    assert shard.group.type is GroupType.CLASSIC
    assert shard.shard.get_hard_state() == shard.rebuilt()
    generation = shard.group.generation_id
    old["generation_id"] = generation
    assert shard.classic_heartbeat(old) is ErrorCode.rebalance_in_progress
    again = shard.classic_join(old["member_id"])
    assert again["generation_id"] == generation + 1
    assert again["leader"] == old["member_id"]


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_policy_may_forbid_the_upgrade(policy):
    shard = Shard(group_consumer_migration_policy=policy)
    shard.classic_member()
    with pytest.raises(ApiError) as refused:
        shard.heartbeat("new", 0)
    assert refused.value.code is ErrorCode.group_id_not_found
    assert "online upgrade is disabled" in str(refused.value)


def test_a_policy_may_forbid_the_downgrade():
    shard = Shard(group_consumer_migration_policy="upgrade")
    shard.classic_member()
    shard.heartbeat("new", 0)
    shard.heartbeat("new", -1)
    assert shard.group.type is GroupType.CONSUMER
    assert len(shard.group.members) == 1


def test_a_classic_group_of_other_members_is_not_touched():
    """Groups of Connect workers and similar clients are not groups of consumers."""
    shard = Shard()
    request = requests.JoinGroupRequest(
        GROUP, "", None, "c", "/h", "connect", {"default": b"x"}, 45_000, 60_000, "w", 0
    )
    shard.ask(shard.shard.classic.join, request)
    with pytest.raises(ApiError) as refused:
        shard.heartbeat("new", 0)
    assert refused.value.code is ErrorCode.group_id_not_found
    assert shard.group.type is GroupType.CLASSIC


def test_an_empty_classic_group_becomes_a_consumer_group_with_its_id():
    shard = Shard()
    old = shard.classic_member()
    leave = requests.LeaveGroupRequest(GROUP, [requests.LeavingMember(old["member_id"])])
    shard.ask(shard.shard.classic.leave, leave)
    shard.settle(60_000)
    assert shard.group.is_empty
    shard.heartbeat("new", 0)
    assert shard.group.type is GroupType.CONSUMER
    assert shard.shard.get_hard_state() == shard.rebuilt()


def test_the_embedded_messages_are_read_in_every_version_and_refused_when_cut():
    data = subscription([1, 2])
    assert read_subscription(data).owned == ((TOPIC, 1), (TOPIC, 2))
    assert read_subscription(b"\x00\x09" + data[2:] + b"\x00" * 12).topics == {TOPIC}
    for end in range(len(data)):
        with pytest.raises(WireError):
            read_subscription(data[:end])
