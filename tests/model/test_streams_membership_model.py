"""KIP-1071 streams groups as a state machine: random members, time, topics, configs and crashes.

After every step no two members own one active task, no two clients run one, no process has two
copies of a task, and a shard that is rebuilt from the log has the same hard state as the live one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shoal.coordinator.group.streams import target_assignment
from shoal.coordinator.group.streams.streams_group import StreamsGroupState
from shoal.coordinator.group.streams.tasks import flatten
from shoal.protocol.errors import ErrorCode
from support.runs.example_counts import scale_examples
from support.streams.streams_groups import (
    NO_DELAYS,
    REBALANCE_TIMEOUT_MS,
    Client,
    Streams,
    image_of,
    subtopology,
    topology,
)

SENT = topology(
    subtopology("0", ["in"]),
    subtopology("1", ["in", "other"], ["log"]),
)
LIMITS = target_assignment.STEPS_AT_ONCE, target_assignment.RECORDS_A_SLICE

if TYPE_CHECKING:
    from shoal.coordinator.group.streams.streams_group import StreamsGroupMember
    from shoal.metadata.image import MetadataImage

clients = st.integers(0, 4)


class StreamsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.counts = {"in": 2, "other": 3, "log": 3}
        self.deleted: set[str] = set()
        self.replicas = 0
        self.delays = dict(NO_DELAYS)
        # Two processes of two members, and one of a single member. The second of each is static.
        self.clients = [
            Client(f"member-{n}", f"process-{n // 2}", f"instance-{n}" if n % 2 else None)
            for n in range(5)
        ]
        self.restarts = 0

    @initialize(
        replicas=st.integers(0, 2), delay_ms=st.sampled_from((0, 3_000)), large=st.booleans()
    )
    def start(self, replicas: int, delay_ms: int, *, large: bool) -> None:
        """The assignments of a `large` group are computed in slices."""
        self.replicas = replicas
        if large:
            target_assignment.STEPS_AT_ONCE, target_assignment.RECORDS_A_SLICE = 0, 1
        self.delays["streams.initial.rebalance.delay.ms"] = str(delay_ms)
        self.delays["streams.assignment.interval.ms"] = str(delay_ms // 3)
        self.streams = Streams(self._image(), SENT)

    def teardown(self) -> None:
        target_assignment.STEPS_AT_ONCE, target_assignment.RECORDS_A_SLICE = LIMITS

    def _image(self) -> MetadataImage:
        replicas = {"streams.num.standby.replicas": str(self.replicas)}
        counts = {name: n for name, n in self.counts.items() if name not in self.deleted}
        return image_of(counts, self.delays | replicas)

    # Members.

    @rule(n=clients)
    def heartbeat(self, n: int) -> None:
        self.streams.heartbeat(self.clients[n])

    @rule(n=clients)
    def heartbeat_without_tasks(self, n: int) -> None:
        """Nothing has changed since the last heartbeat."""
        client = self.clients[n]
        if client.epoch:
            self.streams.heartbeat(client, active_tasks=None, standby_tasks=None, warmup_tasks=None)

    @rule(n=clients, other=clients)
    def lose_a_response(self, n: int, other: int) -> None:
        """Another member must not get what this one has not noticed to have lost."""
        self.streams.heartbeat(self.clients[n], follow=False)
        self.streams.heartbeat(self.clients[other])

    @rule(n=clients)
    def revoke_nothing_yet(self, n: int) -> None:
        """The member has a new assignment, but still owns the tasks of the last one."""
        client = self.clients[n]
        before = client.active, client.standby
        self.streams.heartbeat(client)
        if client.epoch:
            late = self.streams.heartbeat(
                client, active_tasks=before[0], standby_tasks=before[1], follow=False
            )
            assert late is not None

    @rule(n=clients)
    def leave(self, n: int) -> None:
        if self.clients[n].epoch:
            self.streams.leave(self.clients[n])

    @rule(n=clients)
    def restart_a_static_member(self, n: int) -> None:
        """It leaves with epoch -2, and rejoins with another member id."""
        client = self.clients[n]
        if client.instance_id is not None and client.epoch:
            self.streams.leave(client, epoch=-2)
            self.restarts += 1
            client.member_id = f"member-{n}-{self.restarts}"
            self.streams.heartbeat(client)

    @rule(n=clients)
    def restart_the_client(self, n: int) -> None:
        self.clients[n].lost()

    # The cluster.

    @rule(topic=st.sampled_from(("in", "other")))
    def add_a_partition(self, topic: str) -> None:
        self.counts[topic] = min(self.counts[topic] + 1, 5)
        self.counts["log"] = max(self.counts["in"], self.counts["other"])
        self.streams.change(self._image())

    @rule(topic=st.sampled_from(("in", "log")))
    def delete_a_topic(self, topic: str) -> None:
        self.deleted.add(topic)
        self.streams.change(self._image())

    @rule()
    def create_the_topics_again(self) -> None:
        self.deleted.clear()
        self.streams.change(self._image())

    @rule(replicas=st.integers(0, 2))
    def alter_the_config(self, replicas: int) -> None:
        self.replicas = replicas
        self.streams.change(self._image())

    @rule(ms=st.sampled_from((1, 1_000, 3_000, 44_000, REBALANCE_TIMEOUT_MS)))
    def wait(self, ms: int) -> None:
        self.streams.sim.advance(ms)

    @rule()
    def fail_over(self) -> None:
        self.streams.sim.restart()

    @rule()
    def fail_the_next_append(self) -> None:
        self.streams.sim.refuse_append = ErrorCode.kafka_storage_error

    @rule()
    def delete_the_group(self) -> None:
        self.streams.sim.submit(object(), lambda s, _now, t: s.delete_group("g", t))

    @precondition(lambda self: any(c.epoch for c in self.clients))
    @rule()
    def settle(self) -> None:
        """With working heartbeats and all topics, every task is assigned."""
        self.deleted.clear()
        self.streams.sim.refuse_append = None
        self.streams.change(self._image())
        alive = [c for c in self.clients if c.epoch]
        for _ in range(12):
            self.streams.sim.advance(1_000)
            for client in alive:
                self.streams.heartbeat(client)
        if not self.streams.exists:
            # All sessions had ended when it was deleted. Heartbeats get GROUP_ID_NOT_FOUND.
            return
        # Members that are not among them were fenced, or still hold tasks.
        others = set(self.streams.group.members) - {c.member_id for c in alive}
        if others:
            return
        assert self.streams.group.state is StreamsGroupState.STABLE
        tasks = [("0", p) for p in range(self.counts["in"])]
        tasks += [("1", p) for p in range(self.counts["log"])]
        assert sorted(t for c in alive for t in flatten(c.active)) == tasks
        copies = Counter(t for c in alive for t in flatten(c.standby))
        processes = len({c.process_id for c in alive})
        wanted = min(self.replicas, processes - 1)
        assert all(copies[task] == (wanted if task[0] == "1" else 0) for task in tasks)

    # Rules.

    def _members(self) -> list[StreamsGroupMember]:
        if not self.streams.exists:
            return []
        return list(self.streams.group.members.values())

    @invariant()
    def each_active_task_has_one_owner(self) -> None:
        owners = Counter(
            task
            for m in self._members()
            for side in (m.current.assigned, m.current.pending_revocation)
            for task in flatten(side.active)
        )
        assert all(count == 1 for count in owners.values()), owners

    @invariant()
    def no_two_clients_run_an_active_task(self) -> None:
        members = {m.member_id for m in self._members()}
        running = Counter(
            task for c in self.clients if c.member_id in members for task in flatten(c.active)
        )
        assert all(count == 1 for count in running.values()), running

    @invariant()
    def a_process_has_one_copy_of_a_task(self) -> None:
        copies = Counter(
            (m.process_id, task)
            for m in self._members()
            for side in (m.current.assigned, m.current.pending_revocation)
            for tasks in (side.active, side.standby)
            for task in flatten(tasks)
        )
        assert all(count == 1 for count in copies.values()), copies

    @invariant()
    def the_log_has_the_state(self) -> None:
        if hasattr(self, "streams"):
            live = self.streams.sim.shard.get_hard_state()
            assert live == self.streams.sim.rebuilt().get_hard_state()


TestStreamsGroups = StreamsMachine.TestCase
TestStreamsGroups.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=40, deadline=None
)
