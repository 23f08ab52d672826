"""The group shard under random requests, time, crashes and failed writes, compared with a twin.

The twin keeps the clients' responses: offsets as a dict, and the last assignment of each group.
After every step, a shard that is rebuilt from the log has the same hard state as the live one. At
the end every request has a response.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.group.classic.classic_group import ClassicGroup, ClassicGroupState
from shoal.coordinator.group.classic.requests import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupRequest,
)
from shoal.coordinator.group.offsets.requests import (
    CommitRequest,
    PartitionCommit,
    TopicCommit,
    TopicQuery,
)
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.protocol.errors import ErrorCode
from support.brokers.coordinator_sim import Simulation
from support.runs.example_counts import scale_examples

GROUPS = ("g", "h")
TOPICS = {"t": UUID(int=1), "u": UUID(int=2)}
SETTINGS = GroupSettings(group_max_size=3, offsets_retention_minutes=60)
PROTOCOLS = ({"range": b"\x00\x00\x00\x00\x00\x00"}, {"range": b"r", "sticky": b"s"})

groups = st.sampled_from(GROUPS)
clients = st.integers(0, 4)
topics = st.sampled_from(sorted(TOPICS))


class Client:
    """One client's state of its membership in one group."""

    def __init__(self, instance_id: str | None) -> None:
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation(lambda: GroupShard(SETTINGS))
        self.count = 0
        #: Clients 0 and 1 are static members.
        self.clients = {
            (g, n): Client(f"instance-{n}" if n < 2 else None) for g in GROUPS for n in range(5)
        }
        self.asked: dict[str, tuple[str, str, Any]] = {}
        self.seen = 0
        # The twin.
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.generations = dict.fromkeys(GROUPS, 0)
        self.assigned: dict[tuple[str, int], dict[str, bytes]] = {}

    # Requests.

    def _ask(self, verb: str, group: str, about: Any, decide: Any) -> str:
        self.count += 1
        token = f"{verb}-{self.count}"
        self.asked[token] = (verb, group, about)
        self.sim.submit(token, decide)
        self._listen()
        return token

    @rule(group=groups, n=clients, version=st.sampled_from((3, 9)), p=st.sampled_from((0, 1)))
    def join(self, group: str, n: int, version: int, p: int) -> None:
        client = self.clients[(group, n)]
        request = JoinGroupRequest(
            group,
            client.member_id,
            client.instance_id,
            f"client-{n}",
            "/h",
            "consumer",
            dict(PROTOCOLS[p]),
            10_000,
            30_000,
            f"m{self.count}",
            version,
        )
        self._ask("join", group, client, lambda s, now, t: s.classic.join(request, now, t))

    @rule(group=groups, n=clients)
    def sync(self, group: str, n: int) -> None:
        client = self.clients[(group, n)]
        live = self._live(group)
        parts = {m: f"{m}@{client.generation}".encode() for m in (live.members if live else ())}
        request = SyncGroupRequest(
            group, client.generation, client.member_id, client.instance_id, assignments=parts
        )
        self._ask("sync", group, client, lambda s, now, t: s.classic.sync(request, now, t))

    @rule(group=groups, n=clients)
    def heartbeat(self, group: str, n: int) -> None:
        client = self.clients[(group, n)]
        request = HeartbeatRequest(group, client.generation, client.member_id, client.instance_id)
        self._ask("beat", group, client, lambda s, now, t: s.classic.heartbeat(request, now, t))

    @rule(group=groups, n=clients)
    def leave(self, group: str, n: int) -> None:
        client = self.clients[(group, n)]
        request = LeaveGroupRequest(group, [LeavingMember(client.member_id, client.instance_id)])
        self._ask("leave", group, client, lambda s, now, t: s.classic.leave(request, now, t))

    @rule(group=groups, n=clients)
    def forget(self, group: str, n: int) -> None:
        """The client's process restarts."""
        self.clients[(group, n)].member_id = ""
        self.clients[(group, n)].generation = -1

    @rule(group=groups, n=clients, topic=topics, partition=st.integers(0, 1), member=st.booleans())
    def commit(self, group: str, n: int, topic: str, partition: int, member: bool) -> None:
        client = self.clients[(group, n)] if member else Client(None)
        request = CommitRequest(
            group,
            client.member_id,
            client.instance_id,
            client.generation,
            [TopicCommit(topic, TOPICS[topic], [PartitionCommit(partition, self.count, 0, "")])],
            9,
        )
        about = ((group, topic, partition), self.count)
        self._ask("commit", group, about, lambda s, now, t: s.offsets.commit(request, now, t))

    @rule(group=groups, topic=topics)
    def delete_offsets(self, group: str, topic: str) -> None:
        self._ask(
            "forget", group, topic, lambda s, now, t: s.offsets.delete(group, [(topic, [0, 1])], t)
        )

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        self._ask("delete", group, None, lambda s, now, t: s.delete_group(group, t))

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        deleted = [(topic, TOPICS[topic])]
        self.sim.refuse_append = None
        self.sim.runtime.apply(
            0,
            lambda shard, now: shard.on_metadata_changed(shard.context.image, deleted, now),
            self.sim.now_ms,
        )
        self.sim.runtime.flush()
        self.sim.advance(0)  # The offsets go in the next tick.
        self.offsets = {k: v for k, v in self.offsets.items() if k[1] != topic}
        self._listen()

    # Faults and time.

    @rule(ms=st.sampled_from((1, 3_000, 9_000, 31_000, 301_000)))
    def wait(self, ms: int) -> None:
        self.sim.advance(ms)
        self._listen()

    @rule()
    def restart(self) -> None:
        self.sim.restart()
        self._listen()

    @rule()
    def fail_next_append(self) -> None:
        self.sim.refuse_append = ErrorCode.kafka_storage_error

    @rule()
    def wait_for_retention(self) -> None:
        """Every member is silent for longer than any session, and all offsets expire."""
        self.sim.refuse_append = None
        self.sim.advance(3 * 3_600_000)
        self._listen()
        assert not self.sim.shard.offsets.get_hard_state()[0]
        assert not list(self.sim.shard.context.groups)
        assert not set(self.asked), "requests without an answer"
        self.offsets = {}
        self.generations = dict.fromkeys(GROUPS, 0)
        self.assigned = {}

    # Rules.

    def _live(self, group: str) -> ClassicGroup | None:
        found = self.sim.shard.context.groups.get(group)
        return found if isinstance(found, ClassicGroup) else None

    def _listen(self) -> None:
        """Pass the responses to clients and twin."""
        for token, answer in self.sim.events[self.seen :]:
            verb, group, about = self.asked.pop(token)
            if not isinstance(answer, ErrorCode):
                getattr(self, f"_{verb}ed", lambda *_: None)(group, about, answer)
        self.seen = len(self.sim.events)

    def _joined(self, group: str, client: Client, answer: Any) -> None:
        error = answer["error_code"]
        if error in (ErrorCode.none, ErrorCode.member_id_required):
            client.member_id = answer["member_id"]
        if error is ErrorCode.none:
            client.generation = answer["generation_id"]
            if answer["members"]:
                assert answer["leader"] == client.member_id
                assert len(answer["members"]) <= SETTINGS.group_max_size
        elif error is not ErrorCode.member_id_required:
            client.member_id, client.generation = "", -1

    def _synced(self, group: str, client: Client, answer: Any) -> None:
        if answer["error_code"] is ErrorCode.none:
            assignments = self.assigned.setdefault((group, client.generation), {})
            before = assignments.setdefault(client.member_id, answer["assignment"])
            assert before == answer["assignment"], "one generation, one assignment"

    def _commited(self, group: str, about: Any, answer: Any) -> None:
        key, offset = about
        assert answer["topics"][0]["partitions"][0]["error_code"] is ErrorCode.none
        self.offsets[key] = offset

    def _forgeted(self, group: str, topic: str, answer: Any) -> None:
        if answer["topics"][0]["partitions"][0]["error_code"] is ErrorCode.none:
            for partition in (0, 1):
                self.offsets.pop((group, topic, partition), None)

    def _deleteed(self, group: str, about: Any, answer: Any) -> None:
        self.offsets = {k: v for k, v in self.offsets.items() if k[0] != group}
        self._forgotten(group)

    def _forgotten(self, group: str) -> None:
        """A group that was deleted, or that had neither members nor offsets, starts again."""
        self.generations[group] = 0
        self.assigned = {k: v for k, v in self.assigned.items() if k[0] != group}

    @invariant()
    def a_rebuilt_shard_equals_the_live_one(self) -> None:
        assert self.sim.rebuilt().get_hard_state() == self.sim.shard.get_hard_state()

    @invariant()
    def offsets_are_those_that_were_acknowledged(self) -> None:
        def fetch(shard: GroupShard, _now_ms: int, token: Token) -> CoordinatorResult:
            found: dict[Any, int] = {}
            for group in GROUPS:
                query = [TopicQuery(t, TOPICS[t], (0, 1)) for t in sorted(TOPICS)]
                row = shard.offsets.fetch(
                    group, query, member_id=None, member_epoch=-1, require_stable=True
                )
                for topic in row["topics"]:
                    for p in topic["partitions"]:
                        if p["committed_offset"] >= 0:
                            key = (group, topic["name"], p["partition_index"])
                            found[key] = p["committed_offset"]
            return CoordinatorResult((), (Reply(token, found),))

        self.count += 1
        self.sim.submit(self.count, fetch)
        self.sim.events.pop()
        found: Any = self.sim.delivered[self.count]
        assert found == self.offsets

    @invariant()
    def groups_are_whole(self) -> None:
        for name in GROUPS:
            group = self._live(name)
            if group is None:
                self._forgotten(name)
                continue
            assert (group.leader in group.members) if group.members else group.leader is None
            assert group.is_empty == (group.state is ClassicGroupState.EMPTY)
            if group.state is not ClassicGroupState.PREPARING_REBALANCE:
                assert bool(group.members) != group.is_empty
                assert group.awaiting_join_count == 0
            assert set(group.static_members.values()) <= set(group.members)
            if group.committed is not None:
                assert group.committed.generation_id >= self.generations[name]
                self.generations[name] = group.committed.generation_id

    @precondition(lambda self: bool(self.asked))
    @invariant()
    def only_joins_and_syncs_are_parked(self) -> None:
        assert {self.asked[token][0] for token in self.asked} <= {"join", "sync"}

    def teardown(self) -> None:
        self.wait_for_retention()


GroupMachine.TestCase.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=40, deadline=None
)
TestGroupShard = GroupMachine.TestCase
