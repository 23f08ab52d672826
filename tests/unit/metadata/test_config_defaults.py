"""Broker configs that are the defaults of topics and groups, or the bounds of groups.

Other tests prove what a topic or group config does. These tests check that each broker config is
the value in force for a topic or group. `tests/support/pages/config_effects.py` combines the two.
"""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from shoal.coordinator.group.offsets.requests import CommitRequest, PartitionCommit, TopicCommit
from shoal.coordinator.group.settings import PROPERTIES, GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.metadata.config_keys import format_value
from shoal.metadata.configs import BROKER, GROUP, TOPIC
from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import ConfigResourceType, ImageScope, MetadataImage
from shoal.protocol.errors import ErrorCode
from shoal.quorum.events import Event, MessageReceived, RequestFailed, Tick
from shoal.quorum.log_index import LogIndex
from shoal.quorum.messages import RaftMessage, VoteRequest, VoteResponse
from shoal.quorum.quorum_state import QuorumState
from shoal.quorum.raft import Raft
from shoal.quorum.replica import QuorumSettings
from shoal.quorum.voters import ReplicaKey, Voter, VoterHistory, VoterSet
from shoal.record.records import build_batch
from shoal.replication.partition import Partition, ReplicaFetchResult
from shoal.replication.replica_fetcher import FetchSessionResponse, ReplicaFetcher
from shoal.server.cluster_config import make_cluster_config
from shoal.server.config import resolve
from shoal.server.metadata_cache import MetadataCache
from shoal.server.metrics.registry import MetricRegistry
from shoal.server.node import Node
from shoal.server.replication.quotas import FOLLOWER, ReplicationQuota
from shoal.server.share import group_settings
from support.brokers.coordinator_sim import Simulation
from support.pages.config_effects import BOUNDS, INHERITED, another
from unit.coordinator.group.test_share_membership import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def image(static: dict[str, str], **own: dict[str, str]) -> MetadataImage:
    kinds = {"topic": (ConfigResourceType.TOPIC, "t"), "group": (ConfigResourceType.GROUP, "g")}
    return MetadataImage(
        scope=ImageScope(1, static), configs={kinds[kind]: texts for kind, texts in own.items()}
    )


def test_defaults_come_from_the_broker() -> None:
    for name, (kind, heir, factor) in INHERITED.items():
        check_default(name, kind, heir, factor)


def check_default(name: str, kind: str, heir: str, factor: int) -> None:
    # One more is within the bounds that a group's value has by default.
    value = another(BROKER[name]) if kind == "topic" else BROKER[name].default + 1
    found = image({name: format_value(value) or ""})
    if kind == "topic":
        expected = value * factor if factor != 1 else value
        assert TOPIC[heir].default != expected, name
        assert found.resolve_topic_config("t")[heir] == expected, name
        field = heir.replace(".", "_")
        if field in {f.name for f in dataclasses.fields(LogConfig)}:
            assert (
                getattr(LogConfig.from_settings(found.resolve_topic_config("t")), field) == expected
            ), name
        # A topic's own value has precedence.
        own = format_value(TOPIC[heir].default) or ""
        found = image({name: format_value(value) or ""}, topic={heir: own})
        assert found.resolve_topic_config("t")[heir] == TOPIC[heir].default, name
    else:
        assert found.resolve_group_config("g")[heir] == value != GROUP[heir].default, name


def test_groups_are_held_between_bounds() -> None:
    """KIP-1240: a value that was set under wider bounds is limited to the bound."""
    for name, (heir, lower) in BOUNDS.items():
        default = BROKER[name].default
        bound = default + 1 if lower else default - 1
        outside = bound - 1 if lower else bound + 1
        found = image({name: str(bound)}, group={heir: str(outside)})
        assert found.resolve_group_config("g")[heir] == bound, (name, GROUP[heir].bounds)


def test_settings_of_the_group_coordinator() -> None:
    """Each is read from the config of its name."""
    for field, name in PROPERTIES.items():
        value = another(BROKER[name])
        config = image({name: format_value(value) or ""}).broker_config
        assert getattr(GroupSettings.from_properties(config), field) == value, name
        assert getattr(GroupSettings(), field) != value, name


QUORUM = {
    "controller.quorum.election.timeout.ms": "election_timeout_ms",
    "controller.quorum.election.backoff.max.ms": "election_backoff_max_ms",
    "controller.quorum.fetch.timeout.ms": "fetch_timeout_ms",
    "controller.quorum.request.timeout.ms": "request_timeout_ms",
    "controller.quorum.retry.backoff.ms": "retry_backoff_ms",
    "controller.quorum.fetch.max.bytes": "fetch_max_bytes",
    "controller.quorum.fetch.snapshot.max.bytes": "fetch_snapshot_max_bytes",
}


def test_settings_of_the_quorum() -> None:
    """`quorum.raft` and its simulation use them."""
    for name, field in QUORUM.items():
        settings = make_cluster_config(resolve({name: "4321"}, {})).settings
        assert getattr(settings, field) == 4321, name


def test_listeners_among_nodes() -> None:
    """listeners, listener.security.protocol.map, inter.broker.listener.name,
    controller.listener.names, controller.quorum.bootstrap.servers, process.roles, node.id"""
    found = make_cluster_config(
        resolve(
            {
                "node.id": "4",
                "process.roles": "broker",
                "listeners": "A://127.0.0.1:1,B://127.0.0.1:2",
                "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT",
                "inter.broker.listener.name": "B",
                "controller.listener.names": "C",
                "controller.quorum.bootstrap.servers": "10.0.0.1:9093,10.0.0.2:9093",
            },
            {},
        )
    )
    assert (found.inter_broker, found.listener, found.roles) == ("B", "C", {"broker"})
    assert found.voters is not None
    addresses = {(v.endpoints[0].host, v.endpoints[0].port) for v in found.voters}
    assert addresses == {("10.0.0.1", 9093), ("10.0.0.2", 9093)}


def test_the_directory_of_logs() -> None:
    """log.dir, where log.dirs is unset"""
    assert resolve({"log.dir": "/here"}, {}).data_dir == "/here"
    assert resolve({"log.dir": "/here", "log.dirs": "/there"}, {}).data_dir == "/there"


def test_back_off_of_followers() -> None:
    """replica.fetch.backoff.ms: pauses double up to it."""
    fetcher = ReplicaFetcher(1, backoff_max_ms=70)
    partition = Partition(
        "t",
        UUID(int=1),
        0,
        Log.open(MemoryStorage(), "t-0", LogConfig(), now_ms=0, clean=False),
        node_id=2,
        leader_id=1,
        leader_epoch=1,
        isr=(1, 2),
        replicas=(1, 2),
    )
    fetcher.follow(partition)
    refusal = ReplicaFetchResult(ErrorCode.unknown_leader_epoch)
    pauses, now_ms = [], 1_000
    for _ in range(4):
        assert fetcher.build_next_fetch(now_ms) is not None
        response = FetchSessionResponse(ErrorCode.none, 7, {partition.key: refusal})
        fetcher.complete_fetch(response, now_ms)
        assert fetcher.build_next_fetch(now_ms) is None
        due_ms = fetcher.find_next_due_ms()
        assert due_ms is not None
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
    assert pauses == [20, 40, 70, 70]


@pytest.fixture
def node() -> Iterator[Node]:
    """A node without any part of a broker."""
    loop = asyncio.new_event_loop()
    node = Node(resolve({"node.id": "1"}, {}), loop)
    yield node
    node.disk.close()
    loop.close()


def test_samples_of_throttled_replication(node: Node) -> None:
    """replication.quota.window.size.seconds: a burst of that many seconds' worth is allowed.
    replication.quota.window.num: the debt may be that many times as much."""
    waits = {}
    for size, num in (("1", "11"), ("3", "11"), ("1", "2")):
        static = {
            "replication.quota.window.size.seconds": size,
            "replication.quota.window.num": num,
            "follower.replication.throttled.rate": "1000",
        }
        found = image(static, topic={"follower.replication.throttled.replicas": "*"})
        cache = MetadataCache(found.scope)
        cache.publish(found, MetadataDelta())
        quota = ReplicationQuota(node, cache, MetricRegistry(), FOLLOWER)
        quota.apply_configs(found)
        room = quota.get_available_bytes(1_000_000)
        quota.record(1_000_000, 1_000_000)
        ms = 0
        while not quota.get_available_bytes(1_000_000 + ms):
            ms += 100
        waits[size, num] = (room, ms)
    assert waits["1", "11"][0] == 1_000
    assert waits["3", "11"][0] == 3_000
    assert waits["1", "2"][1] < waits["1", "11"][1]


POLICIES = sorted(
    name
    for name in GROUP
    if name.startswith(("share.ordering", "share.delay.", "share.priority", "share.redelivery"))
    or name in ("share.fairness.by", "share.fairness.lookahead.records")
)


def test_policies_of_share_groups() -> None:
    """Each is part of the policies of selection and back-off."""
    for name in POLICIES:
        check_policy(name)


def check_policy(name: str) -> None:
    on = {
        "share.ordering": "key",
        "share.delay.max.ms": "1000",
        "share.priority.header": "p",
        "share.fairness.by": "key",
        "share.redelivery.backoff.ms": "10",
    }
    before = image({}, group=on).resolve_group_config("g")
    choices = ("share.ordering", "share.fairness.by")
    value = "none" if name in choices else format_value(another(GROUP[name])) or ""
    after = image({}, group={**on, name: value}).resolve_group_config("g")
    found = [
        (group_settings.build_selection_policy(config), group_settings.build_backoff(config))
        for config in (before, after)
    ]
    assert found[0] != found[1], name


@pytest.mark.parametrize(
    ("codec", "config", "low", "high"),
    [
        ("gzip", "compression.gzip.level", 1, 9),
        ("lz4", "compression.lz4.level", 1, 17),
        ("zstd", "compression.zstd.level", 1, 22),
    ],
)
def test_levels_of_compression(codec: str, config: str, low: int, high: int) -> None:
    words = [b"%d" % (n * 7919 % 1009) for n in range(20_000)]
    batch = build_batch([(1, None, b" ".join(words), ())])
    sizes = []
    for level in (low, high):
        settings = {"compression.type": codec, config: level}
        log = Log.open(
            MemoryStorage(), "t-0", LogConfig.from_settings(settings), now_ms=1, clean=False
        )
        log.append(batch, now_ms=1, leader_epoch=0)
        sizes.append(log.size_bytes)
    assert sizes[1] < sizes[0]


def test_an_initialization_without_an_answer_is_asked_for_again() -> None:
    """group.share.initialize.retry.interval.ms"""
    for retry_ms, asked in ((500, 2), (60_000, 1)):
        share = Share(group_share_initialize_retry_interval_ms=retry_ms)
        share.heartbeat("a")
        share.sim.advance(1_000)
        share.heartbeat("b")
        assert len(share.sim.performed) == asked


def test_expiry_of_offsets_is_looked_for() -> None:
    """offsets.retention.check.interval.ms"""
    for interval_ms in (5_000, 70_000):
        settings = GroupSettings(offsets_retention_check_interval_ms=interval_ms)
        sim = Simulation(partial(GroupShard, settings))
        rows = [PartitionCommit(0, 1, -1, None)]
        request = CommitRequest("g", "", None, -1, [TopicCommit("t", None, rows)], 9)

        def commit(
            shard: GroupShard, now_ms: int, token: Any, request: CommitRequest = request
        ) -> Any:
            return shard.offsets.commit(request, now_ms, token)

        sim.submit(object(), commit)
        (_, shard), *_ = sim.runtime.list_active()
        assert shard.next_deadline_ms == sim.now_ms + interval_ms


def asks(settings: QuorumSettings, *, answers: bool) -> list[tuple[int, str]]:
    """Return what a follower sends in ten seconds, and when. Its leader is gone. If `answers`, the
    other voters let it stand for election and then refuse their votes."""
    raft = Raft(
        ReplicaKey(1),
        settings,
        state=QuorumState(leader_id=2, leader_epoch=1),
        index=LogIndex(),
        voters=VoterHistory(VoterSet.from_voters(Voter(ReplicaKey(id)) for id in (1, 2, 3))),
        choose=lambda n: n // 2,
        now_ms=0,
    )
    now_ms, sent = 0, []
    events: list[Event] = [Tick()]
    while now_ms < 10_000:
        for message in raft.step(events.pop(0), now_ms).messages:
            sent.append((now_ms, type(message.body).__name__))
            if answers and isinstance(message.body, VoteRequest):
                response = VoteResponse(raft.epoch, None, message.body.pre_vote)
                answer = RaftMessage(message.to, 1, message.correlation, response)
                events.append(MessageReceived(answer))
            elif answers:
                events.append(RequestFailed(message.to, message.correlation))
        if not events:
            assert raft.next_deadline_ms is not None
            now_ms = max(now_ms + 1, raft.next_deadline_ms)
            events.append(Tick())
    return sent


def times(sent: list[tuple[int, str]], kind: str) -> list[int]:
    """Return the times at which requests of this kind were sent; several may have one time."""
    return list(dict.fromkeys(at_ms for at_ms, sent_kind in sent if sent_kind == kind))


def first_vote_ms(sent: list[tuple[int, str]]) -> int:
    return times(sent, "VoteRequest")[0]


def second_vote_ms(sent: list[tuple[int, str]]) -> int:
    """Return the time between the first request for votes and its repetition."""
    first, second, *_ = times(sent, "VoteRequest")
    return second - first


def standing_ms(sent: list[tuple[int, str]]) -> int:
    """Return how long the follower stands for election before it fetches again."""
    stands_ms = first_vote_ms(sent)
    return min(at_ms for at_ms in times(sent, "FetchRequest") if at_ms > stands_ms) - stands_ms


def second_fetch_ms(sent: list[tuple[int, str]]) -> int:
    first, second, *_ = times(sent, "FetchRequest")
    return second - first


def longest_pause_ms(sent: list[tuple[int, str]]) -> int:
    """Return the longest time between two elections that it loses."""
    return max(after - before for before, after in pairwise(times(sent, "VoteRequest")))


@pytest.mark.parametrize("value_ms", [300, 700])
@pytest.mark.parametrize(
    ("name", "answers", "waited_ms", "factor", "more_ms"),
    [
        ("controller.quorum.fetch.timeout.ms", False, first_vote_ms, 1.0, 0),
        ("controller.quorum.election.timeout.ms", False, standing_ms, 1.5, 0),
        ("controller.quorum.request.timeout.ms", False, second_vote_ms, 1.0, 20),
        ("controller.quorum.retry.backoff.ms", True, second_fetch_ms, 1.0, 0),
        ("controller.quorum.election.backoff.max.ms", True, longest_pause_ms, 0.5, 1),
    ],
)
def test_when_a_quorum_acts(
    name: str,
    answers: bool,
    waited_ms: Callable[[list[tuple[int, str]]], int],
    factor: float,
    more_ms: int,
    value_ms: int,
) -> None:
    """How long a follower without a leader waits. A draw is half of its range here, and a request
    is repeated after controller.quorum.retry.backoff.ms, 20 by default."""
    settings = QuorumSettings()._replace(**{QUORUM[name]: value_ms})
    assert waited_ms(asks(settings, answers=answers)) == value_ms * factor + more_ms
