"""Consumer groups with members that share partitions by key ranges, under random histories.

Members join, leave, are killed and restarted, some of them plain. Responses are lost, sessions and
rebalance timeouts pass, topics allow key ranges or not, the coordinator moves, and boundaries
follow the load. No slot of a partition ever has two owners, in the coordinator or at live members.
A group that is left alone becomes stable, and its members tile all partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shoal.coordinator.group.consumer.heartbeat import ConsumerGroupHeartbeatRequest
from shoal.coordinator.group.key_ranges.key_range_loads import KeyRangeLoad
from shoal.coordinator.group.key_ranges.key_slots import ALL, SLOTS, from_ranges, to_ranges
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.metadata.image import ConfigResourceType, MetadataImage, PartitionImage, TopicImage
from shoal.protocol.errors import ErrorCode
from support.brokers.coordinator_sim import Simulation
from support.runs.example_counts import scale_examples

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = ("a", "b")
IDS = {name: UUID(int=n + 1) for n, name in enumerate(NAMES)}
REBALANCE_TIMEOUT_MS = 10_000
PLAIN = "plain"
#: The topics that allow key ranges.
SHARED = st.sampled_from([frozenset(NAMES), frozenset({"a"}), frozenset[str]()])
#: Slots by topic id and partition.
Slots = dict[tuple[UUID, int], int]


def image_of(counts: dict[str, int], shared: frozenset[str], version: int) -> MetadataImage:
    partition = PartitionImage((0,), (0,), 0, 0, 0)
    topics = {n: TopicImage(n, IDS[n], (partition,) * count) for n, count in counts.items()}
    return MetadataImage(
        offset=version,
        topics=topics,
        topics_by_id={t.topic_id: t for t in topics.values()},
        configs={
            (ConfigResourceType.TOPIC, n): {"shoal.key.ranges.enable": "true"} for n in shared
        },
    )


class Client:
    """A member that follows KIP-848, slot by slot."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.shares = not member_id.startswith(PLAIN)
        self.epoch = 0
        self.owned: Slots = {}
        self.assigned: Slots | None = None
        self.missed = False

    def request(self, loads: list[KeyRangeLoad] | None = None) -> ConsumerGroupHeartbeatRequest:
        """A heartbeat, which reports these records of all slots of shared partitions."""
        full = self.epoch == 0 or self.missed
        owned = {} if self.epoch == 0 else self.owned
        whole: dict[UUID, set[int]] = {}
        for (topic, partition), slots in owned.items():
            if slots == ALL:
                whole.setdefault(topic, set()).add(partition)
        return ConsumerGroupHeartbeatRequest(
            "g",
            self.member_id,
            self.epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if full else -1,
            subscribed_topic_names=frozenset(NAMES) if full else None,
            owned={t: frozenset(p) for t, p in whole.items()},
            key_hash_version=int(self.shares),
            owned_slices={where: slots for where, slots in owned.items() if slots != ALL},
            loads={where: list(loads) for where in owned} if loads else {},
        )

    def take(self, response: dict[str, Any]) -> None:
        self.epoch, self.missed = response["member_epoch"], False
        assignment = response.get("assignment")
        if assignment is None:
            return
        self.assigned = {
            (t["topic_id"], p): ALL for t in assignment["topic_partitions"] for p in t["partitions"]
        }
        for one in assignment.get("key_ranges", ()):
            assert self.shares
            ranges = [(r["first_hash"], r["last_hash"]) for r in one["ranges"]]
            self.assigned[one["topic_id"], one["partition"]] = from_ranges(ranges)

    def reconcile(self) -> None:
        if self.assigned is not None:
            self.owned = dict(self.assigned)

    def lose_everything(self) -> None:
        self.epoch, self.owned, self.assigned = 0, {}, None


def report_of(loads: Sequence[int]) -> list[KeyRangeLoad]:
    return [KeyRangeLoad(*to_ranges(1 << slot)[0], count) for slot, count in enumerate(loads)]


def add(taken: Slots, more: Slots) -> None:
    for where, slots in more.items():
        assert not taken.get(where, 0) & slots, "two owners"
        taken[where] = taken.get(where, 0) | slots


class KeyRangeGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.image = MetadataImage()
        self.clients: dict[str, Client] = {}
        self.count = 0

    @initialize(
        a=st.integers(1, 3),
        b=st.integers(0, 2),
        shared=SHARED,
        members=st.integers(0, 5),
        skew=st.sampled_from([0, 1, 3]),
    )
    def start(self, a: int, b: int, shared: frozenset[str], members: int, skew: int) -> None:
        self.loads = report_of([100 * (slot % 64) ** skew for slot in range(SLOTS)])
        self.counts = {"a": a, "b": b} if b else {"a": a}
        self.image = image_of(self.counts, shared, 1)
        self.sim = Simulation(lambda: GroupShard(GroupSettings(), self.image))
        for n in range(members):
            self.join(n, plain=False)

    def beat(self, client: Client) -> dict[str, Any] | None:
        self.count += 1
        # Reports take most of the time, and are alike.
        request = client.request(self.loads if self.count % 4 == 1 else None)
        token = f"t{self.count}"
        self.sim.submit(token, lambda s, now_ms, t: s.consumer.heartbeat(request, now_ms, t))
        if token in self.sim.failed:
            code = self.sim.failed[token]
            assert code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id)
            client.lose_everything()
            return None
        self.every_slot_has_one_owner()
        return dict(self.sim.delivered[token])

    @rule(n=st.integers(0, 5), plain=st.sampled_from([False, False, True]))
    def join(self, n: int, plain: bool) -> None:
        member_id = f"{PLAIN}-{n}" if plain else f"m{n}"
        if member_id not in self.clients:
            client = self.clients[member_id] = Client(member_id)
            self.take(client)

    def take(self, client: Client) -> None:
        response = self.beat(client)
        if response is not None:
            client.take(response)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), reconciles=st.booleans(), lost=st.sampled_from([False, False, True]))
    def heartbeat(self, data: st.DataObject, reconciles: bool, lost: bool) -> None:
        client = data.draw(st.sampled_from(list(self.clients.values())))
        if reconciles:
            client.reconcile()
        response = self.beat(client)
        if response is None:
            return
        if lost:
            client.missed = True
        else:
            client.take(response)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = self.clients.pop(data.draw(st.sampled_from(sorted(self.clients))))
        client.epoch = -1 if client.epoch else 0
        if client.epoch:
            self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.clients.pop(data.draw(st.sampled_from(sorted(self.clients))))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def restart_as_another_kind(self, data: st.DataObject) -> None:
        """A member rejoins under its id, and shares or no longer shares."""
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.lose_everything()
        client.shares = not client.shares
        self.take(client)

    @rule(ms=st.sampled_from([500, 5_000, 20_000, 50_000]))
    def wait(self, ms: int) -> None:
        self.sim.advance(ms)

    @rule()
    def move_coordinator(self) -> None:
        before = self.group and self.group.get_hard_state()
        self.sim.restart()
        assert (self.group and self.group.get_hard_state()) == before

    @rule(shared=SHARED)
    def alter_topics(self, shared: frozenset[str]) -> None:
        self.image = image_of(self.counts, shared, self.image.offset + 1)
        self.sim.runtime.apply(
            0,
            lambda shard, now_ms: shard.on_metadata_changed(self.image, (), now_ms),
            self.sim.now_ms,
        )

    @rule()
    def settle(self) -> None:
        for _ in range(60):
            self.sim.advance(1_000)
            for client in self.clients.values():
                client.reconcile()
                self.take(client)
        if not self.clients:
            return
        assert self.group.state_name == "Stable"
        taken: Slots = {}
        for client in self.clients.values():
            add(taken, client.owned)
        assert taken == {(IDS[n], p): ALL for n, c in self.counts.items() for p in range(c)}

    @property
    def group(self) -> Any:
        return self.sim.shard.context.groups.get("g")

    @invariant()
    def every_slot_has_one_owner(self) -> None:
        if not self.image.topics or self.group is None:
            return
        taken: Slots = {}
        live: Slots = {}
        for member in self.group.members.values():
            current = member.current
            mine = {
                (t, p): current.get_slots(t, p)
                for side in (current.assigned, current.pending_revocation)
                for t, partitions in side.items()
                for p in partitions
            }
            add(taken, mine)
            client = self.clients.get(member.member_id)
            if client is not None and client.epoch == member.current.member_epoch:
                add(live, client.owned)


KeyRangeGroups.TestCase.settings = settings(
    max_examples=scale_examples(40), stateful_step_count=30, deadline=None
)
test_key_range_groups = KeyRangeGroups.TestCase
