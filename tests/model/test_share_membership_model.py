"""Share-group membership as a state machine: random members, deaths, time, topics and crashes."""

from __future__ import annotations

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from logged_groups import GROUP, LoggedGroups, build_image
from shoal.coordinator.group.share.membership import (
    ShareGroupHeartbeatRequest,
    ShareGroupManager,
    ShareStateInitialization,
)
from shoal.protocol.errors import ApiError, ErrorCode
from support.runs.example_counts import scale_examples

NAMES = ["apples", "berries"]
TAKEOVER_MS = 1_000


class Broker(LoggedGroups):
    """One shard's share groups, and a share coordinator that may fail."""

    manager = ShareGroupManager

    def __init__(self, image):
        self.works = True
        super().__init__(image)

    def load(self, now_ms):
        self.asked, self.replies = [], {}
        super().load(now_ms)

    def run(self, result):
        super().run(result)
        self.asked += (e for e in result.effects if isinstance(e, ShareStateInitialization))
        for token, response in result.replies:
            assert self.replies.setdefault(token, response) is response, "answered twice"

    def initialize(self, now_ms):
        """Carry out the requests to the share coordinator."""
        while self.asked:
            effect = self.asked.pop(0)
            decide = (
                self.groups.on_initialized if self.works else self.groups.on_initialization_failed
            )
            self.run(decide(effect.group_id, effect.partitions, now_ms))


class Client:
    """A share consumer: reads its assigned partitions as soon as it gets the assignment."""

    def __init__(self, member_id, topics, connection_id):
        self.member_id, self.topics = member_id, topics
        self.connection_id = connection_id
        self.epoch, self.assigned = 0, set()
        self.next_ms = 0
        self.token = None
        #: A response was lost: the next heartbeat is complete.
        self.missed = False


class ShareMembershipMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.now_ms = 1_000_000
        self.counts, self.ids = {"apples": 2}, {"apples": 1, "berries": 2}
        self.broker = Broker(build_image(self.counts, self.ids))
        self.clients = []
        self.made = 0

    def send(self, client, topics=None, epoch=None):
        """Send a heartbeat; `receive` takes its response later."""
        joins = client.epoch == 0 or client.missed
        client.token = f"{client.member_id}@{self.now_ms}#{self.made}"
        self.made += 1
        request = ShareGroupHeartbeatRequest(
            GROUP,
            client.member_id,
            client.epoch if epoch is None else epoch,
            subscribed_topic_names=client.topics if joins else topics,
            connection_id=client.connection_id,
        )
        try:
            self.broker.run(self.broker.groups.heartbeat(request, self.now_ms, client.token))
        except ApiError as refused:
            self.broker.replies[client.token] = {"error_code": refused.code}
        self.receive(client)

    def receive(self, client):
        response = self.broker.replies.get(client.token)
        if client.token is None or response is None:
            return
        client.token = None
        error = response.get("error_code", ErrorCode.none)
        if error != ErrorCode.none:
            assert error in (
                ErrorCode.unknown_member_id,
                ErrorCode.fenced_member_epoch,
                ErrorCode.group_id_not_found,
                ErrorCode.coordinator_load_in_progress,
            )
            if error != ErrorCode.coordinator_load_in_progress:
                client.epoch, client.assigned = 0, set()
            client.next_ms = self.now_ms
            client.missed = True
            return
        client.missed = False
        client.epoch = response["member_epoch"]
        client.next_ms = self.now_ms + response.get("heartbeat_interval_ms", 0)
        if response.get("assignment") is not None:
            client.assigned = {
                (t["topic_id"], p)
                for t in response["assignment"]["topic_partitions"]
                for p in t["partitions"]
            }

    def pass_time(self, until_ms):
        """Let time pass: the share coordinator answers, and live members send heartbeats in
        time."""
        while self.now_ms < until_ms:
            due = [c.next_ms for c in self.clients if c.token is None]
            if (deadline_ms := self.broker.context.deadlines.next_ms) is not None:
                due.append(deadline_ms)
            self.now_ms = min(until_ms, max(self.now_ms + 5, min(due, default=until_ms)))
            self.broker.initialize(self.now_ms)
            self.broker.tick(self.now_ms)
            for client in self.clients:
                self.receive(client)
                if client.token is None and client.next_ms <= self.now_ms:
                    self.send(client)

    @precondition(lambda self: len(self.clients) < 6)
    @rule(topics=st.frozensets(st.sampled_from(NAMES), min_size=1))
    def join(self, topics):
        self.made += 1
        client = Client(f"m{self.made}", topics, f"c{self.made}")
        self.clients.append(client)
        self.send(client)

    @precondition(lambda self: len(self.clients) < 6)
    @rule(topics=st.frozensets(st.sampled_from(NAMES), min_size=1))
    def join_and_read_at_once(self, topics):
        """The first response to a new member assigns partitions, if there are any."""
        self.join(topics)
        client = self.clients[-1]
        for _ in range(20):
            self.broker.initialize(self.now_ms)
            self.broker.tick(self.now_ms)
            self.receive(client)
        there = any(self.counts.get(t) for t in topics)
        if self.broker.works and there:
            assert client.token is None
            assert client.assigned

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), topics=st.frozensets(st.sampled_from(NAMES), min_size=1))
    def subscribe_otherwise(self, data, topics):
        client = data.draw(st.sampled_from(self.clients))
        client.topics = topics
        self.send(client, topics=topics)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data):
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self.send(client, epoch=-1)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def die(self, data):
        """Within a second, another member reads the partitions that only the dead member read."""
        client = data.draw(st.sampled_from(self.clients))
        # It died in a group that was left alone long enough to have its members' state.
        self.settle()
        self.clients.remove(client)
        groups = self.broker.groups
        result = groups.on_connection_lost(
            GROUP, client.member_id, client.connection_id, self.now_ms
        )
        self.broker.run(result)
        self.pass_time(self.now_ms + TAKEOVER_MS)
        self.everything_is_read()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def lose_a_connection_and_come_back(self, data):
        """A member whose heartbeat arrives within the grace period stays."""
        client = data.draw(st.sampled_from(self.clients))
        old, client.connection_id = client.connection_id, f"{client.connection_id}'"
        self.broker.run(
            self.broker.groups.on_connection_lost(GROUP, client.member_id, old, self.now_ms)
        )
        if client.epoch:
            self.send(client)
        if client.epoch:  # Otherwise it had missed too much for its epoch to count.
            self.now_ms += 2_000
            self.broker.tick(self.now_ms)
            assert client.member_id in self.broker.group.members

    @rule(step_ms=st.sampled_from([50, 1_000, 20_000]))
    def time_passes(self, step_ms):
        self.pass_time(self.now_ms + step_ms)

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 4))
    def change_topics(self, name, count):
        deleted = []
        old = self.counts.get(name, 0)
        if count > old:
            self.counts[name] = count
        elif count == 0 and old:
            deleted = [(name, UUID(int=self.ids[name]))]
            del self.counts[name]
            self.ids[name] += 10
        self.broker.image = self.broker.context.image = build_image(self.counts, self.ids)
        self.broker.run(self.broker.groups.on_metadata_changed(deleted, self.now_ms))

    @rule(works=st.booleans())
    def the_share_coordinator(self, works):
        self.broker.works = works

    @rule()
    def crash(self):
        before = None if self.broker.group is None else self.broker.group.get_hard_state()
        self.broker.load(self.now_ms)
        after = None if self.broker.group is None else self.broker.group.get_hard_state()
        assert before == after
        for client in self.clients:
            client.missed = client.missed or client.token is not None
            client.token = None
            client.next_ms = self.now_ms

    @rule()
    def settle(self):
        self.broker.works = True
        self.pass_time(self.now_ms + 60_000)
        self.everything_is_read()
        group = self.broker.group
        if group is not None:
            assert group.state_name == ("Stable" if self.clients else "Empty")
            assert sorted(group.members) == sorted(c.member_id for c in self.clients)

    def everything_is_read(self):
        read = {tp for client in self.clients for tp in client.assigned}
        wanted = {
            (UUID(int=self.ids[name]), p)
            for client in self.clients
            for name in client.topics
            for p in range(self.counts.get(name, 0))
        }
        assert read == wanted

    @invariant()
    def members_are_assigned_what_is_initialized(self):
        group = getattr(self, "broker", None) and self.broker.group
        if group is None:
            return
        for target in group.target.values():
            for topic, partitions in target.items():
                if topic in self.broker.image.topics_by_id:
                    assert partitions <= group.initialization.get_initialized(topic)


ShareMembershipMachine.TestCase.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=25, deadline=None
)
test_share_membership = ShareMembershipMachine.TestCase
