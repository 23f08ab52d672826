"""KIP-848 consumer groups as a state machine: random members, time, topics and crashes."""

from __future__ import annotations

from typing import Any

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
from shoal.coordinator.group.consumer.membership import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupManager,
)
from shoal.protocol.errors import ApiError, ErrorCode
from support.runs.example_counts import scale_examples

NAMES = ["apples", "berries", "cherries"]
REBALANCE_TIMEOUT_MS = 60_000


def image_of(counts):
    """Return metadata with these topics: name -> partition count."""
    ids = {name: index + 1 for index, name in enumerate(NAMES)}
    return build_image(counts, ids, offset=sum(counts.values()))


class Broker(LoggedGroups):
    """One shard's consumer groups."""

    manager = ConsumerGroupManager

    def run(self, result):
        super().run(result)
        return [reply.response for reply in result.replies]

    def heartbeat(self, now_ms, **fields):
        request = ConsumerGroupHeartbeatRequest(GROUP, **fields)
        (response,) = self.run(self.groups.heartbeat(request, now_ms, "token"))
        return response


class Client:
    """A consumer as in KIP-848: it owns what it is assigned, and gives up what is revoked."""

    def __init__(self, member_id, instance_id, subscription):
        self.member_id, self.instance_id = member_id, instance_id
        self.subscription = subscription
        self.epoch = 0
        self.owned = set()
        self.assigned_new = None
        self.in_group = False
        #: A response was lost: as KIP-848 requires, the next heartbeat is complete.
        self.missed = False

    def fields(self, owned=None):
        joins = self.epoch == 0
        full = joins or self.missed
        names, regex = self.subscription if full else (None, None)
        owned = set() if joins else (self.owned if owned is None else owned)
        topics: dict[Any, set[int]] = {}
        for topic, partition in owned:
            topics.setdefault(topic, set()).add(partition)
        return {
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS if full else -1,
            "subscribed_topic_names": names,
            "subscribed_topic_regex": regex,
            "owned": {t: frozenset(p) for t, p in topics.items()},
        }

    def take(self, response):
        self.in_group, self.missed = True, False
        self.epoch = response["member_epoch"]
        assignment = response.get("assignment")
        if assignment is not None:
            self.assigned_new = {
                (t["topic_id"], p) for t in assignment["topic_partitions"] for p in t["partitions"]
            }

    def reconcile(self):
        """Stop reading revoked partitions, and start with new ones."""
        if self.assigned_new is not None:
            self.owned = set(self.assigned_new)

    def lose_everything(self):
        self.epoch, self.owned, self.assigned_new, self.in_group = 0, set(), None, False


SUBSCRIPTIONS = st.one_of(
    st.frozensets(st.sampled_from(NAMES), min_size=1).map(lambda names: (names, None)),
    st.sampled_from([".*", "[ab].*", "c.*"]).map(lambda regex: (None, regex)),
)


class ConsumerGroupMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.now_ms = 1_000_000
        self.counts = {"apples": 3, "berries": 1}
        self.broker = Broker(image_of(self.counts))
        self.clients = []
        self.ids = 0
        self.dead = []

    def new_id(self):
        self.ids += 1
        return f"member-{self.ids}"

    def beat(self, client, **fields):
        """Send one heartbeat, and let the client act on the response."""
        try:
            response = self.broker.heartbeat(self.now_ms, **{**client.fields(), **fields})
        except ApiError as refused:
            if refused.code not in (
                ErrorCode.unknown_member_id,
                ErrorCode.fenced_member_epoch,
                ErrorCode.fenced_instance_id,
                ErrorCode.unreleased_instance_id,
                ErrorCode.group_id_not_found,
            ):
                raise
            client.lose_everything()
            if refused.code == ErrorCode.unreleased_instance_id:
                # It was fenced after responses that it had missed. Its own session prevents it from
                # joining again, in Kafka too. The client gives up, and the session expires.
                assert self.broker.group.find_static_member(client.instance_id).member_id == (
                    client.member_id
                )
            if refused.code in (ErrorCode.fenced_instance_id, ErrorCode.unreleased_instance_id):
                self.clients.remove(client)
            return
        client.take(response)

    @precondition(lambda self: len(self.clients) < 5)
    @rule(subscription=SUBSCRIPTIONS)
    def join(self, subscription):
        self.clients.append(Client(self.new_id(), None, subscription))
        self.beat(self.clients[-1])

    @precondition(lambda self: len(self.clients) < 5)
    @rule(subscription=SUBSCRIPTIONS, instance=st.sampled_from(["i-1", "i-2"]))
    def join_static(self, subscription, instance):
        """A static member starts; a running member with its instance id keeps it out."""
        client = Client(self.new_id(), instance, subscription)
        group = self.broker.group
        owner = None if group is None else group.find_static_member(instance)
        try:
            response = self.broker.heartbeat(self.now_ms, **client.fields())
        except ApiError as refused:
            if refused.code != ErrorCode.unreleased_instance_id:
                raise
            assert owner is not None
            assert not owner.has_left
            return
        assert owner is None or owner.has_left
        client.take(response)
        self.clients.append(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def heartbeat(self, data):
        self.beat(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def reconcile(self, data):
        data.draw(st.sampled_from(self.clients)).reconcile()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), subscription=SUBSCRIPTIONS)
    def subscribe_otherwise(self, data, subscription):
        client = data.draw(st.sampled_from(self.clients))
        client.subscription = subscription
        names, regex = subscription
        self.beat(
            client, subscribed_topic_names=names or frozenset(), subscribed_topic_regex=regex or ""
        )

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def lose_a_response(self, data):
        """The broker has advanced the member's state, and the member has no response."""
        client = data.draw(st.sampled_from(self.clients))
        try:
            self.broker.heartbeat(self.now_ms, **client.fields())
            client.missed = True
        except ApiError:
            client.lose_everything()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), for_good=st.booleans())
    def leave(self, data, for_good):
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        if client.in_group:
            epoch = -2 if client.instance_id is not None and not for_good else -1
            self.beat(client, member_epoch=epoch)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def die(self, data):
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self.dead.append(client)

    @rule(step_ms=st.sampled_from([100, 1_000, 10_000]))
    def time_passes(self, step_ms):
        """Live members keep sending heartbeats; the sessions of others expire."""
        for _ in range(step_ms // 1_000 or 1):
            self.now_ms += min(step_ms, 1_000)
            self.broker.tick(self.now_ms)
            for client in list(self.clients):
                self.beat(client)

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 5))
    def change_topics(self, name, count):
        old = self.counts.get(name, 0)
        if count > old:
            self.counts[name] = count
        elif count == 0:
            self.counts.pop(name, None)
        self.broker.image = self.broker.context.image = image_of(self.counts)
        self.broker.run(self.broker.groups.on_metadata_changed([], self.now_ms))

    @rule()
    def crash(self):
        """The coordinator is rebuilt from its records, which contain its whole state."""
        before = None if self.broker.group is None else self.broker.group.get_hard_state()
        self.broker.load(self.now_ms)
        after = None if self.broker.group is None else self.broker.group.get_hard_state()
        assert before == after

    @rule()
    def settle(self):
        """Without further changes, the group becomes stable and complete."""
        for _ in range(200):
            self.now_ms += 1_000
            self.broker.tick(self.now_ms)
            for client in list(self.clients):
                client.reconcile()
                self.beat(client)
        group = self.broker.group
        if group is None:
            return
        assert group.state_name == ("Stable" if self.clients else "Empty")
        owned = [tp for client in self.clients for tp in sorted(client.owned)]
        assert len(owned) == len(set(owned)), "two members read one partition"
        names = group.get_subscribed_topics()
        image = self.broker.image
        wanted = {
            (image.topics[n].topic_id, p)
            for n in names
            if n in image.topics
            for p in range(len(image.topics[n].partitions))
        }
        assert set(owned) == wanted

    @invariant()
    def no_partition_has_two_owners(self):
        group = getattr(self, "broker", None) and self.broker.group
        if group is None:
            return
        seen = {}
        for member in group.members.values():
            for side in (member.current.assigned, member.current.pending_revocation):
                for topic, partitions in side.items():
                    for partition in partitions:
                        assert (topic, partition) not in seen
                        seen[topic, partition] = member.member_id
        assert seen == group.owners

    @invariant()
    def live_members_never_share_a_partition(self):
        """Only members in the group count: a fenced client has not learned of it yet."""
        group = getattr(self, "broker", None) and self.broker.group
        if group is None:
            return
        seen: set[Any] = set()
        for client in self.clients:
            member = group.members.get(client.member_id)
            if member is None or client.epoch != member.current.member_epoch:
                continue
            assert not seen & client.owned
            seen |= client.owned


ConsumerGroupMachine.TestCase.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=40, deadline=None
)
test_consumer_groups = ConsumerGroupMachine.TestCase
