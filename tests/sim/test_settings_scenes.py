"""Settings whose effect needs several brokers, in simulated time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from shoal.log.uuids import format_uuid
from shoal.protocol.api import ApiKey
from shoal.protocol.fetch import get_max_wait_ms
from shoal.quorum import wire
from shoal.replication.partition import Partition, ReplicaFetchResult
from shoal.server.network.envelopes import EnvelopeHandler
from shoal.server.replication.replica_fetch import ReplicaFetches
from sim.scenes import ErrorCode, Scene, scene
from sim.test_scenes import GROUP, INIT, SHARE, SOON_S, TRANSACTION, WRITE_TIMEOUT_S, written


def test_produces_that_wait_for_a_coordinator_are_bounded() -> None:
    """queued.max.requests: a produce request waits to be appended while its coordinator cannot
    commit. Meanwhile no further one is read, whatever its topic; other requests are."""
    configs = {"queued.max.requests": "1", "replica.lag.time.max.ms": "60000"}
    with scene(configs=configs) as cluster:
        id = cluster.coordinator("t", TRANSACTION)
        producer = cluster.asked(id, ApiKey.INIT_PRODUCER_ID, INIT, version=4)
        topic_id = cluster.make_topic("own", [id], partitions=2)
        plain = cluster.make_topic("plain", [id])
        for other in cluster.others(cluster.cluster.brokers[id]):
            other.pause()
        who = {
            "transactional_id": "t",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }
        held = cluster.produce(id, topic_id, transaction=who)
        broker = cluster.cluster.brokers[id].broker
        assert broker is not None
        cluster.until(lambda: broker.request_limits.requests == 1, "a produce that waits")
        late = cluster.produce(id, plain, acks=1)
        metadata = cluster.ask(id, ApiKey.METADATA, {"topics": None})
        metadata.result()
        assert metadata.after_s < SOON_S
        assert not late.done
        assert broker.request_limits.waiting == 1
        held.result()
        assert held.after_s < WRITE_TIMEOUT_S + SOON_S
        assert not late.result().responses[0].partition_responses[0].error_code
        assert late.after_s > WRITE_TIMEOUT_S - SOON_S
        assert (broker.request_limits.requests, broker.request_limits.bytes) == (0, 0)


def test_a_produce_that_waits_for_replicas_takes_no_room() -> None:
    """As in Kafka, since slow followers would otherwise stop all producers. Its records are not
    kept in memory either."""
    configs = {"queued.max.requests": "1", "replica.lag.time.max.ms": "60000"}
    with scene(configs=configs) as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3], partitions=1)
        for other in cluster.others(cluster.cluster.brokers[1]):
            other.pause()
        waiting = [cluster.produce(1, topic_id, timeout_ms=3_000) for _ in range(3)]
        broker = cluster.cluster.brokers[1].broker
        assert broker is not None
        cluster.until(lambda: broker.purgatory.size >= 3, "produces that wait")
        assert (broker.request_limits.requests, broker.request_limits.bytes) == (0, 0)
        for asked in waiting:
            row = asked.result().responses[0].partition_responses[0]
            assert row.error_code == ErrorCode.request_timed_out


def test_partitions_are_spread_over_fetch_loops_and_move_between_them() -> None:
    """num.replica.fetchers: a leader has this number of sessions with each follower, and every
    write is committed before, during and after a change of the number."""
    with scene(configs={"num.replica.fetchers": "3"}) as cluster:
        topic_id = cluster.make_topic("spread", [1, 2, 3], partitions=9)
        for index in range(9):
            cluster.produce(1, topic_id, index).result()
        loops = lambda: [  # noqa: E731
            len([key for key in one.broker.replicas.fetchers.tasks if key.leader_id == 1])
            for one in cluster.cluster.brokers.values()
            if one.broker is not None
        ]
        cluster.until(lambda: loops()[1:] == [3, 3], "three loops for each follower")
        for count in ("1", "4", "2"):
            entry = {"name": "num.replica.fetchers", "config_operation": 0, "value": count}
            resource = {"resource_type": 4, "resource_name": "", "configs": [entry]}
            fields = {"resources": [resource], "validate_only": False}
            asked = cluster.ask(1, ApiKey.INCREMENTAL_ALTER_CONFIGS, fields)
            written = [cluster.produce(1, topic_id, index) for index in range(9)]
            for one in (asked, *written):
                one.result()
            cluster.until(lambda c=int(count): loops()[1:] == [c, c], f"{count} loops")
            again = [cluster.produce(1, topic_id, index) for index in range(9)]
            for one in again:
                one.result()
                assert one.after_s < SOON_S
        for index in range(9):
            cluster.until(
                lambda i=index: (
                    cluster.partition("spread", i, 2).log.log_end_offset
                    == cluster.partition("spread", i, 3).log.log_end_offset
                    == 7
                ),
                "all replicas have all",
            )
            owners = [
                key
                for key, task in cluster.cluster.brokers[2].broker.replicas.fetchers.tasks.items()  # type: ignore[union-attr]
                if any(p.index == index and p.topic == "spread" for p in task.fetcher)
            ]
            assert len(owners) == 1, owners


def test_how_a_follower_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch requests to a leader contain replica.fetch.max.bytes, replica.fetch.response.max.bytes,
    replica.fetch.min.bytes and replica.fetch.wait.max.ms."""
    asked: list[Any] = []
    handle = ReplicaFetches.handle

    def spied(fetches: Any, request: Any, replica_id: int) -> Any:
        asked.append(request.body)
        return handle(fetches, request, replica_id)

    monkeypatch.setattr(ReplicaFetches, "handle", spied)
    configs = {
        "replica.fetch.max.bytes": "5000",
        "replica.fetch.response.max.bytes": "70000",
        "replica.fetch.min.bytes": "2",
        "replica.fetch.wait.max.ms": "321",
    }
    with scene(configs=configs) as cluster:
        cluster.make_topic("work", [1, 2, 3])
        cluster.passes(1)
    assert {(b.max_bytes, b.min_bytes, get_max_wait_ms(b)) for b in asked} == {(70_000, 2, 321)}
    found = {p.partition_max_bytes for b in asked for t in b.topics for p in t.partitions}
    assert found == {5_000}


@pytest.mark.parametrize("timeout_ms", [1_500, 4_000])
def test_a_follower_gives_up_a_leader_that_is_silent(
    monkeypatch: pytest.MonkeyPatch, timeout_ms: int
) -> None:
    """replica.socket.timeout.ms: the leader takes a fetch and never answers it. After this time the
    follower fetches again, on another connection."""
    silent: list[float] = []
    handle = ReplicaFetches.handle

    def spied(fetches: Any, request: Any, replica_id: int) -> Any:
        if deaf and replica_id == 3 and fetches is deaf[0]:
            silent.append(cluster.kernel.now)
            if len(silent) == 1:
                return asyncio.get_running_loop().create_future()
        return handle(fetches, request, replica_id)

    deaf: list[ReplicaFetches] = []
    monkeypatch.setattr(ReplicaFetches, "handle", spied)
    with scene(configs={"replica.socket.timeout.ms": str(timeout_ms)}) as cluster:
        cluster.make_topic("work", [1, 2, 3])
        broker = cluster.cluster.brokers[1].broker
        assert broker is not None
        deaf.append(broker.replica_fetches)
        cluster.until(lambda: len(silent) == 2, "another fetch")
    assert timeout_ms / 1000 <= silent[1] - silent[0] < timeout_ms / 1000 + SOON_S


@pytest.mark.parametrize("backoff_ms", [100, 700])
def test_a_follower_that_is_refused_waits(monkeypatch: pytest.MonkeyPatch, backoff_ms: int) -> None:
    """replica.fetch.backoff.ms: its pauses double up to this time."""
    refused: list[float] = []
    fetch = Partition.fetch_for_follower

    def spied(
        partition: Partition, replica_id: int, *rest: Any, **options: Any
    ) -> ReplicaFetchResult:
        if partition.topic == "work":
            refused.append(cluster.kernel.now)
            return ReplicaFetchResult(ErrorCode.kafka_storage_error)
        return fetch(partition, replica_id, *rest, **options)

    monkeypatch.setattr(Partition, "fetch_for_follower", spied)
    configs = {"replica.fetch.backoff.ms": str(backoff_ms), "replica.lag.time.max.ms": "60000"}
    with scene(configs=configs) as cluster:
        cluster.make_topic("work", [1, 2])
        cluster.until(lambda: len(refused) > 10, "refusals")
    pauses_ms = [(after - before) * 1000 for before, after in pairwise(refused)]
    assert pauses_ms[0] < 50
    assert all(backoff_ms - 1 < pause_ms < backoff_ms + 50 for pause_ms in pauses_ms[6:]), pauses_ms


def test_how_a_controller_fetches_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to the leader of the quorum contain controller.quorum.fetch.max.bytes, and those for
    a snapshot controller.quorum.fetch.snapshot.max.bytes. The leader has dropped what broker 3 has
    missed, and its snapshot takes several requests."""
    asked: dict[ApiKey, list[Any]] = {ApiKey.FETCH: [], ApiKey.FETCH_SNAPSHOT: []}
    read = wire.read_request

    def spied(api_key: ApiKey, entity: Any) -> Any:
        asked.setdefault(api_key, []).append(entity)
        return read(api_key, entity)

    monkeypatch.setattr(wire, "read_request", spied)
    configs = {
        "controller.quorum.fetch.max.bytes": "54321",
        "controller.quorum.fetch.snapshot.max.bytes": "1234",
        "metadata.log.max.record.bytes.between.snapshots": "1000",
        "metadata.max.retention.bytes": "1",
    }
    with scene(configs=configs) as cluster:
        behind = cluster.others(cluster.controller())[0]
        behind.crash()
        ahead = next(m.id for m in cluster.others(behind))
        for number in range(12):
            cluster.make_topic(f"t{number}", [ahead])
            cluster.passes(0.5)
        behind.start()
        cluster.until(cluster.cluster.fully_replicated, "all is well")
    fetches, snapshots = asked[ApiKey.FETCH], asked[ApiKey.FETCH_SNAPSHOT]
    assert {body.max_bytes for body in fetches} == {54_321}
    found = {p.partition_max_bytes for body in fetches for t in body.topics for p in t.partitions}
    assert found == {54_321}
    assert {body.max_bytes for body in snapshots} == {1_234}
    positions = [body.topics[0].partitions[0].position for body in snapshots]
    assert positions[:2] == [0, 1_234]


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_leaders_go_back_to_preferred_replicas(enabled: str) -> None:
    """auto.leader.rebalance.enable, leader.imbalance.check.interval.seconds"""
    configs = {
        "auto.leader.rebalance.enable": enabled,
        "leader.imbalance.check.interval.seconds": "2",
    }
    with scene(configs=configs) as cluster:
        cluster.make_topic("work", [1, 2, 3])
        machine = cluster.cluster.brokers[1]
        machine.stop()
        cluster.until(lambda: cluster.leader("work", 0, 2) != 1, "another leader")
        cluster.until(lambda: machine.process is None, "its end")
        machine.start()
        cluster.until(cluster.cluster.fully_replicated, "all is well")
        cluster.passes(3)
        assert (cluster.leader("work", 0, 2) == 1) == (enabled == "true")


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_broker_that_stops_hands_over(enabled: str) -> None:
    """controlled.shutdown.enable; without it, broker.session.timeout.ms has to pass first."""
    with scene(configs={"controlled.shutdown.enable": enabled}) as cluster:
        cluster.make_topic("work", [1, 2, 3])
        machine = cluster.cluster.brokers[1]
        machine.stop()
        begun = cluster.kernel.now
        other = 2 if cluster.leader("work", 0, 2) else 3
        cluster.until(lambda: machine.process is None, "its end")
        ended = cluster.kernel.now
        handed_over = cluster.leader("work", 0, other) != 1
        assert handed_over == (enabled == "true"), ended - begun
        cluster.until(lambda: cluster.leader("work", 0, other) != 1, "another leader")


def test_a_follower_that_lags_leaves_the_isr() -> None:
    """replica.lag.time.max.ms"""
    with scene(configs={"replica.lag.time.max.ms": "1500"}) as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        cluster.cut(cluster.cluster.brokers[1], cluster.cluster.brokers[3])
        written = cluster.produce(1, topic_id)
        written.result()
        # The leader checks after at most half of the limit.
        assert 1.0 < written.after_s < 2.25 + SOON_S


@pytest.mark.parametrize(("interval_ms", "elected"), [("1000", True), ("300000", False)])
def test_unclean_elections_are_looked_for(interval_ms: str, elected: bool) -> None:
    """unclean.leader.election.interval.ms, and unclean.leader.election.enable"""
    configs = {"unclean.leader.election.interval.ms": interval_ms, "min.insync.replicas": "1"}
    with scene(configs=configs, brokers=4) as cluster:
        controller = cluster.controller()
        first, second, _ = cluster.others(controller)
        cluster.make_topic("work", [first.id, second.id])
        second.stop()
        cluster.until(
            lambda: cluster.partition("work", 0, first.id).isr == (first.id,), "a single one"
        )
        cluster.until(lambda: second.process is None, "its end")
        first.crash()
        first.wanted = False
        second.start()
        cluster.until(lambda: second.ready, "the other one")
        cluster.until(lambda: cluster.leader("work", 0, controller.id) == -1, "no leader")
        entry = {"name": "unclean.leader.election.enable", "config_operation": 0, "value": "true"}
        resource = {"resource_type": 2, "resource_name": "work", "configs": [entry]}
        fields = {"resources": [resource], "validate_only": False}
        cluster.asked(controller.id, ApiKey.INCREMENTAL_ALTER_CONFIGS, fields)
        cluster.passes(2)
        assert (cluster.leader("work", 0, controller.id) == second.id) == elected


def test_files_with_another_min_insync_replicas_lose_no_record() -> None:
    """min.insync.replicas: the controller keeps broker 2 eligible while the ISR is smaller than its
    own number. The leader's file says that it may commit alone, which broker 2 then lacks."""
    files = {1: {"min.insync.replicas": "1"}, 3: {"min.insync.replicas": "2"}}
    with scene(voters=(3,), own_configs=files) as cluster:
        first, second = (cluster.cluster.brokers[id] for id in (1, 2))
        topic_id = cluster.make_topic("work", [1, 2])
        second.stop()
        cluster.until(lambda: cluster.partition("work", 0, 1).isr == (1,), "a single one")
        cluster.until(lambda: second.process is None, "its end")
        row = cluster.produce(1, topic_id, timeout_ms=1_000).result().responses[0]
        refusal = row.partition_responses[0].error_code
        first.crash()
        second.start()
        cluster.until(lambda: second.ready and cluster.leader("work", 0, 3) == 2, "a new leader")
        assert bool(refusal) or cluster.partition("work", 0, 2).log.log_end_offset == 1
        assert refusal == ErrorCode.not_enough_replicas


@pytest.mark.parametrize("interval_ms", [500, 2_000])
def test_brokers_send_heartbeats(monkeypatch: pytest.MonkeyPatch, interval_ms: int) -> None:
    """broker.heartbeat.interval.ms"""
    count = 0
    handle = EnvelopeHandler.handle

    async def spied(self: Any, frame: bytes, *words: Any) -> bytes:
        nonlocal count
        count += frame[0] << 8 | frame[1] == ApiKey.BROKER_HEARTBEAT
        return await handle(self, frame, *words)

    monkeypatch.setattr(EnvelopeHandler, "handle", spied)
    configs = {
        "broker.heartbeat.interval.ms": str(interval_ms),
        "broker.session.timeout.ms": "9000",
    }
    with scene(configs=configs) as cluster:
        cluster.passes(1)
        count = 0
        cluster.passes(20)
        expected = 3 * 20_000 / interval_ms
        assert 0.8 * expected < count < 1.2 * expected


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_logs_are_compacted(enabled: str) -> None:
    """log.cleaner.enable"""
    configs = {
        "log.cleaner.enable": enabled,
        "log.cleaner.backoff.ms": "500",
        "log.cleanup.policy": "compact",
        "log.roll.ms": "1000",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.flush.interval.messages": "1",
        "log.retention.check.interval.ms": "500",
    }
    with scene(configs=configs) as cluster:
        id = cluster.coordinator("g", GROUP)
        cluster.make_topic("t", [id])
        row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        body = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "t", "partitions": [row]}],
        }
        for _ in range(4):
            answer = cluster.asked(id, ApiKey.OFFSET_COMMIT, body, version=9)
            assert not answer.topics[0].partitions[0].error_code
            cluster.passes(3)
        broker = cluster.cluster.brokers[id].broker
        assert broker is not None
        assert (broker.log_maintenance.compactions_total > 0) == (enabled == "true")


#: A compacted topic's log is cleaned as soon as a segment is closed.
COMPACTED = {
    "cleanup.policy": "compact",
    "flush.messages": "1",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "1000",
}


def closes_a_segment(cluster: Scene, topic_id: UUID) -> None:
    """Produce a record, whose time closes the segment of earlier ones."""
    cluster.passes(1)
    assert not written(cluster.produce(1, topic_id, keys=[b"last"]))


@pytest.mark.parametrize("backoff_ms", [500, 5_000])
def test_pauses_of_compaction(backoff_ms: int) -> None:
    """log.cleaner.backoff.ms: logs are looked at this often, while a log has something to clean
    every second."""
    rounds: list[float] = []
    configs = {"log.cleaner.backoff.ms": str(backoff_ms)}
    with scene(brokers=1, configs=configs) as cluster:
        topic_id = cluster.make_topic("t", [1], configs=COMPACTED)
        broker = cluster.cluster.brokers[1].broker
        assert broker is not None
        for _ in range(20):
            before = broker.log_maintenance.compactions_total
            closes_a_segment(cluster, topic_id)
            if broker.log_maintenance.compactions_total != before:
                rounds.append(cluster.kernel.now)
    pauses = [after - before for before, after in pairwise(rounds)]
    assert len(pauses) >= 2
    expected_s = max(1.0, backoff_ms / 1000)
    assert all(expected_s - 0.6 < pause_s < expected_s + 0.6 for pause_s in pauses), pauses


@pytest.mark.parametrize(("buffer_bytes", "rounds"), [(1 << 27, 1), ((1 << 20) + 160, 3)])
def test_memory_for_compaction(buffer_bytes: int, rounds: int) -> None:
    """log.cleaner.dedupe.buffer.size: a round takes as many whole batches as there is memory for,
    160 bytes for each key."""
    configs = {
        "log.cleaner.dedupe.buffer.size": str(buffer_bytes),
        "log.cleaner.backoff.ms": "100",
    }
    with scene(brokers=1, configs=configs) as cluster:
        topic_id = cluster.make_topic("t", [1], configs=COMPACTED)
        size = (1 << 20) // 160 // 3
        for batch in range(9):
            keys = [b"%d" % number for number in range(batch * size, (batch + 1) * size)]
            assert not written(cluster.produce(1, topic_id, keys=keys))
        broker = cluster.cluster.brokers[1].broker
        assert broker is not None
        closes_a_segment(cluster, topic_id)
        cluster.passes(5)
        assert broker.log_maintenance.compactions_total == rounds


@pytest.mark.parametrize("delay_ms", [0, 1_000, 3_000])
def test_the_first_rebalance_waits_for_more_members(delay_ms: int) -> None:
    """group.initial.rebalance.delay.ms"""
    with scene(brokers=1, configs={"group.initial.rebalance.delay.ms": str(delay_ms)}) as cluster:
        cluster.coordinator("g", GROUP)
        body = {
            "group_id": "g",
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        joined = cluster.ask(1, ApiKey.JOIN_GROUP, body, version=3)
        assert joined.result().generation_id == 1
        assert delay_ms / 1000 <= joined.after_s < delay_ms / 1000 + SOON_S


@pytest.mark.parametrize(
    ("config", "key_type"),
    [("offsets.commit.timeout.ms", GROUP), ("share.coordinator.write.timeout.ms", SHARE)],
)
def test_writes_of_coordinators_are_given_up(config: str, key_type: int) -> None:
    configs = {config: "2000", "replica.lag.time.max.ms": "60000"}
    with scene(configs=configs) as cluster:
        topic_id = cluster.make_topic("t", [1])
        key = f"g:{format_uuid(topic_id)}:0" if key_type == SHARE else "g"
        id = cluster.coordinator(key, key_type)
        for other in cluster.others(cluster.cluster.brokers[id]):
            other.pause()
        if key_type == GROUP:
            row: dict[str, Any] = {
                "partition_index": 0,
                "committed_offset": 1,
                "committed_metadata": "",
            }
            body: dict[str, Any] = {
                "group_id": "g",
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "topics": [{"name": "t", "partitions": [row]}],
            }
            asked = cluster.ask(id, ApiKey.OFFSET_COMMIT, body, version=9)
        else:
            row = {"partition": 0, "state_epoch": 0, "start_offset": 0}
            body = {"group_id": "g", "topics": [{"topic_id": topic_id, "partitions": [row]}]}
            asked = cluster.ask(id, ApiKey.INITIALIZE_SHARE_GROUP_STATE, body)
        asked.result()
        assert 2 <= asked.after_s < 2 + SOON_S


def test_a_produce_waits_for_the_end_of_the_last_transaction() -> None:
    """add.partitions.to.txn.retry.backoff.max.ms: the maximum wait if a marker cannot be
    written."""
    configs = {
        "add.partitions.to.txn.retry.backoff.max.ms": "1700",
        "replica.lag.time.max.ms": "60000",
    }
    with scene(configs=configs) as cluster:
        id = cluster.coordinator("t", TRANSACTION)
        producer = cluster.asked(id, ApiKey.INIT_PRODUCER_ID, INIT, version=4)
        far = cluster.others(cluster.cluster.brokers[id])[0]
        away = cluster.make_topic("away", [far.id])
        own = cluster.make_topic("own", [id])
        who = {
            "transactional_id": "t",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }
        cluster.produce(far.id, away, transaction=who).result()
        cluster.cut(cluster.cluster.brokers[id], far)
        ended = cluster.asked(id, ApiKey.END_TXN, {**who, "committed": True}, version=5)
        assert ended.error_code is ErrorCode.none
        who["producer_epoch"] = ended.producer_epoch
        asked = cluster.produce(id, own, transaction=who)
        row = asked.result().responses[0].partition_responses[0]
        assert row.error_code is ErrorCode.concurrent_transactions
        assert 1.7 <= asked.after_s < 1.7 + SOON_S


def group_config(cluster: Scene, id: int, **values: str) -> None:
    entries = [
        {"name": name.replace("_", "."), "config_operation": 0, "value": value}
        for name, value in values.items()
    ]
    resource = {"resource_type": 32, "resource_name": "g", "configs": entries}
    fields = {"resources": [resource], "validate_only": False}
    (row,) = cluster.asked(id, ApiKey.INCREMENTAL_ALTER_CONFIGS, fields).responses
    assert not row.error_code, row


#: Each request of a scene has its own connection.
GRACE = {"shoal.group.share.connection.lost.grace.ms": "100000"}
KINDS = {
    "consumer": (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE),
    "share": (ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_DESCRIBE),
}


def beats(cluster: Scene, id: int, kind: str, member: UUID, epoch: int = 0) -> Any:
    """Send a heartbeat: at epoch 0 one that joins, else one without changes."""
    joins = epoch == 0
    fields: dict[str, Any] = {
        "group_id": "g",
        "member_id": format_uuid(member),
        "member_epoch": epoch,
        "subscribed_topic_names": ["work"] if joins else None,
    }
    if kind == "consumer":
        fields |= {
            "rebalance_timeout_ms": 5_000 if joins else -1,
            "topic_partitions": [] if joins else None,
        }
    answer = cluster.asked(id, KINDS[kind][0], fields)
    assert not answer.error_code, answer
    return answer


def described(cluster: Scene, id: int, kind: str) -> Any:
    return cluster.asked(id, KINDS[kind][1], {"group_ids": ["g"]}).groups[0]


@pytest.mark.parametrize(
    ("kind", "config"),
    [("consumer", "consumer.session.timeout.ms"), ("share", "share.session.timeout.ms")],
)
def test_a_member_that_is_silent_is_out(kind: str, config: str) -> None:
    with scene(configs=GRACE) as cluster:
        id = cluster.coordinator("g", GROUP)
        cluster.make_topic("work", [id])
        group_config(cluster, id, **{config: "7000"})
        beats(cluster, id, kind, UUID(int=1))
        cluster.passes(6)
        assert len(described(cluster, id, kind).members) == 1
        cluster.passes(2)
        assert len(described(cluster, id, kind).members) == 0


@pytest.mark.parametrize(
    ("kind", "config"),
    [("consumer", "consumer.assignment.interval.ms"), ("share", "share.assignment.interval.ms")],
)
def test_assignments_are_spaced(kind: str, config: str) -> None:
    """Only after this time does the second member get partitions of the first one."""
    with scene(configs=GRACE) as cluster:
        id = cluster.coordinator("g", GROUP)
        cluster.make_topic("work", [id], partitions=2)
        group_config(cluster, id, **{config: "8000"})
        first = beats(cluster, id, kind, UUID(int=1))
        begun = cluster.kernel.now
        taken_s = 0.0
        while not taken_s:
            cluster.passes(0.5)
            beats(cluster, id, kind, UUID(int=2))
            first = beats(cluster, id, kind, UUID(int=1), first.member_epoch)
            if first.assignment is not None:
                count = sum(len(t.partitions) for t in first.assignment.topic_partitions)
                if count == 1:
                    taken_s = cluster.kernel.now - begun
        assert 7.5 < taken_s < 10


def test_requests_to_the_controller_are_given_up() -> None:
    """request.timeout.ms: how long a broker tries to reach the controller."""
    with scene(configs={"request.timeout.ms": "1700"}) as cluster:
        cut = cluster.others(cluster.controller())[0]
        cluster.cut_off(cut)
        new = {
            "name": "t",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": (),
            "configs": (),
        }
        fields = {"topics": [new], "timeout_ms": 60_000, "validate_only": False}
        asked = cluster.ask(cut.id, ApiKey.CREATE_TOPICS, fields)
        (row,) = asked.result().topics
        assert row.error_code is ErrorCode.request_timed_out
        assert 1.7 <= asked.after_s < 1.7 + SOON_S


@pytest.mark.parametrize("interval_ms", ["2000", "300000"])
def test_cold_share_partitions_get_snapshots(interval_ms: str) -> None:
    """share.coordinator.cold.partition.snapshot.interval.ms"""
    configs = {
        "share.coordinator.cold.partition.snapshot.interval.ms": interval_ms,
        "share.coordinator.state.topic.num.partitions": "1",
    }
    with scene(configs=configs) as cluster:
        topic_id = cluster.make_topic("t", [1], partitions=2)
        id = cluster.coordinator(f"g:{format_uuid(topic_id)}:0", SHARE)
        rows = [{"partition": p, "state_epoch": 0, "start_offset": 0} for p in (0, 1)]
        body: dict[str, Any] = {
            "group_id": "g",
            "topics": [{"topic_id": topic_id, "partitions": rows}],
        }
        cluster.asked(id, ApiKey.INITIALIZE_SHARE_GROUP_STATE, body)
        for offset in range(25):
            row = {
                "partition": 1,
                "state_epoch": 0,
                "leader_epoch": 0,
                "start_offset": offset,
                "state_batches": [],
            }
            body = {"group_id": "g", "topics": [{"topic_id": topic_id, "partitions": [row]}]}
            cluster.asked(id, ApiKey.WRITE_SHARE_GROUP_STATE, body)
        log = cluster.partition("__share_group_state", 0, id).log
        before = log.log_end_offset
        cluster.passes(10)
        assert (log.log_end_offset > before) == (interval_ms == "2000")
