"""Single faults of a cluster and their consequences, in simulated time."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.errors import ConnectionLost, expect
from shoal.client.net.cluster import PATIENCE_S
from shoal.client.net.connection import connect
from shoal.client.share.member import AcknowledgeType
from shoal.log.uuids import format_uuid
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.replication.pending_append import PendingAppend
from shoal.server.coordinators.service import compute_partition
from shoal.server.coordinators.transaction_markers import TransactionMarkerChannel
from shoal.server.share.state_coordinator import TOPIC as STATES
from sim.cluster_brokers import CONFIGS
from sim.cluster_clients import wait
from sim.cluster_kernel import Violation
from sim.scenes import Asked, Scene, scene

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP, TRANSACTION, SHARE = 0, 1, 2
#: The write timeout of coordinators, and the other time of a request.
WRITE_TIMEOUT_S, SOON_S = 5.0, 0.5
SESSION_S = int(CONFIGS["broker.session.timeout.ms"]) / 1000
#: Time until a member finds the others once they lead: it pauses at most a second between tries.
FOUND_S = 5.0
#: How long a request waits for the controller, in milliseconds.
PATIENCE_MS = 1_500
NEW_TOPIC = {
    "name": "work",
    "num_partitions": 1,
    "replication_factor": 3,
    "assignments": (),
    "configs": (),
}
INIT = {
    "transactional_id": "t",
    "transaction_timeout_ms": 60_000,
    "producer_id": -1,
    "producer_epoch": -1,
}
#: The fields of InitProducerId for an idempotent producer.
NEW_PRODUCER = INIT | {"transactional_id": None}
#: Requests with a timeout (without it) that change something.
OF_THE_CONTROLLER: dict[ApiKey, dict[str, Any]] = {
    ApiKey.CREATE_TOPICS: {"topics": [NEW_TOPIC], "validate_only": False},
    ApiKey.DELETE_TOPICS: {"topics": [{"name": "work", "topic_id": None}]},
    ApiKey.CREATE_PARTITIONS: {
        "topics": [{"name": "work", "count": 2, "assignments": None}],
        "validate_only": False,
    },
    ApiKey.ELECT_LEADERS: {"election_type": 0, "topic_partitions": None},
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        "allow_replication_factor_change": True,
        "topics": [
            {
                "name": "work",
                "partitions": [{"partition_index": 0, "replicas": [1, 2]}],
            }
        ],
    },
    ApiKey.UPDATE_FEATURES: {
        "feature_updates": [
            {"feature": "group.version", "max_version_level": 0, "upgrade_type": 2}
        ],
        "validate_only": False,
    },
}


def test_a_coordinator_that_is_cut_off_refuses_in_time() -> None:
    """No replica commits its writes. Waiting requests fail when the write timeout is over, so that
    clients look for the coordinator again. The error used to come with the shard's next action: at
    the end of the transaction's own timeout, a minute."""
    with scene() as cluster:
        id = cluster.coordinator("t", TRANSACTION)
        find = {"key_type": TRANSACTION, "coordinator_keys": ["t"]}
        producer = cluster.asked(id, ApiKey.INIT_PRODUCER_ID, INIT, version=4)
        assert producer.error_code is ErrorCode.none
        create = {"topics": [NEW_TOPIC], "timeout_ms": 10_000, "validate_only": False}
        assert not cluster.asked(id, ApiKey.CREATE_TOPICS, create).topics[0].error_code

        cluster.cut_off(cluster.cluster.brokers[id])
        who = {
            "transactional_id": "t",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }
        asked = add_partition(cluster, id, who)
        assert added(asked) is ErrorCode.coordinator_not_available
        assert asked.after_s < WRITE_TIMEOUT_S + SOON_S

        # It does not name itself as the coordinator. A client that returns nevertheless does not
        # wait again. The others soon name a new coordinator.
        (coordinator,) = cluster.asked(id, ApiKey.FIND_COORDINATOR, find).coordinators
        assert coordinator.error_code is ErrorCode.coordinator_not_available
        again = add_partition(cluster, id, who)
        assert added(again) is ErrorCode.coordinator_not_available
        assert again.after_s < SOON_S
        other = id % 3 + 1
        cluster.until(lambda: cluster.leader("__transaction_state", 0, other) != id, "a new one")
        now = cluster.coordinator("t", TRANSACTION, other)
        add_partition(cluster, now, who).result()


def test_a_coordinator_without_replicas_serves_again_when_they_are_back() -> None:
    """Refused writes are committed later, and no further request is refused."""
    # The writes end before the session.
    patience = {"replica.lag.time.max.ms": "60000", "broker.session.timeout.ms": "9000"}
    with scene(configs=patience) as cluster:
        id = cluster.coordinator("t", TRANSACTION)
        for other in cluster.others(cluster.cluster.brokers[id]):
            other.pause()
        asked = cluster.ask(id, ApiKey.INIT_PRODUCER_ID, INIT, version=4)
        assert asked.result().error_code is ErrorCode.coordinator_not_available
        assert asked.after_s < WRITE_TIMEOUT_S + SOON_S
        for other in cluster.others(cluster.cluster.brokers[id]):
            other.resume()

        def serves() -> bool:
            now = cluster.coordinator("t", TRANSACTION)
            return not cluster.asked(now, ApiKey.INIT_PRODUCER_ID, INIT, version=4).error_code

        cluster.until(cluster.cluster.fully_replicated, "all is well")
        assert serves()


def test_a_leader_that_is_cut_off_refuses_when_its_session_is_over() -> None:
    """Clients that reach it go to the new leader. They used to wait for the whole timeout of each
    request, and then had to retry at the same broker."""
    with scene() as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        assert not written(cluster.produce(1, topic_id))
        cluster.cut_off(cluster.cluster.brokers[1])
        first = cluster.produce(1, topic_id)
        assert written(first) is ErrorCode.not_leader_or_follower
        assert first.after_s < 2 * SESSION_S + 2 * SOON_S
        again = cluster.produce(1, topic_id)
        assert written(again) is ErrorCode.not_leader_or_follower
        assert again.after_s < SOON_S
        metadata = cluster.asked(1, ApiKey.METADATA, {"topics": None})
        assert {row.node_id for row in metadata.brokers} == {2, 3}
        (partition,) = metadata.topics[0].partitions
        assert partition.leader_id == -1
        assert partition.error_code is ErrorCode.leader_not_available
        now = cluster.leader("work", 0, 2)
        assert now in (2, 3)
        assert not written(cluster.produce(now, topic_id))

        cluster.heal()
        cluster.until(cluster.cluster.fully_replicated, "all is well")
        assert not written(cluster.produce(cluster.leader("work", 0), topic_id))


def test_a_leader_that_was_frozen_takes_no_old_fetch_for_a_new_one() -> None:
    """Its followers' fetches had waited in its sockets, and it served as the leader that it no
    longer was, until a controller told it: share groups got records that they had accepted."""
    with scene() as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        assert not written(cluster.produce(1, topic_id))
        frozen = cluster.cluster.brokers[1]
        broker, partition = frozen.broker, cluster.partition("work", 0, 1)
        assert broker is not None
        cluster.passes(1.0)
        # It answers the fetches of its followers, and they fetch again.
        cluster.produce(1, topic_id)
        while partition.log.log_end_offset == 1:
            cluster.passes(0.0001)
        frozen.pause()
        cluster.until(lambda: cluster.leader("work", 0, 2) != 1, "another leader")
        frozen.resume()
        while partition.is_leader:
            assert broker.replicas.is_cut_off(partition)
            cluster.passes(0.0001)


def test_a_coordinator_that_is_cut_off_is_none_when_its_session_is_over() -> None:
    """Also without writes: a transaction whose markers it cannot deliver would stay in its end
    phase for ever, and its producer would get the same retriable error."""
    with scene() as cluster:
        id = cluster.coordinator("t", TRANSACTION)
        cluster.cut_off(cluster.cluster.brokers[id])
        lifecycle = cluster.cluster.brokers[id].broker.lifecycle  # type: ignore[union-attr]
        # A controller that is cut off answers itself until it has missed the others' fetches.
        cluster.until(lambda: lifecycle.is_lost, "its session is over", 2 * SESSION_S + SOON_S)
        cluster.passes(SOON_S)
        find = {"key_type": TRANSACTION, "coordinator_keys": ["t"]}
        (coordinator,) = cluster.asked(id, ApiKey.FIND_COORDINATOR, find).coordinators
        assert coordinator.error_code is ErrorCode.coordinator_not_available
        asked = cluster.ask(id, ApiKey.INIT_PRODUCER_ID, INIT, version=4)
        assert asked.result().error_code is ErrorCode.not_coordinator
        assert asked.after_s < SOON_S


def test_a_broker_that_is_cut_off_closes_connections_that_ask_for_a_coordinator() -> None:
    """librdkafka asks the broker that it last used, which is the one that is cut off, and did so
    until the cut was healed. A closed connection makes it ask the others. A broker whose writes are
    merely late may recover, so consumers continue to read from it."""
    with scene(configs={"broker.session.timeout.ms": "9000"}) as cluster:
        id = cluster.coordinator("t", TRANSACTION)
        settings = cluster.settings(id)
        find = {"key_type": TRANSACTION, "coordinator_keys": ["t"]}
        lifecycle = cluster.cluster.brokers[id].broker.lifecycle  # type: ignore[union-attr]
        errors: list[tuple[bool, ErrorCode]] = []

        async def look() -> None:
            connection = await connect(settings, settings.bootstrap[0])
            while True:
                (row,) = (await connection.request(ApiKey.FIND_COORDINATOR, find)).coordinators
                errors.append((lifecycle.is_lost, row.error_code))

        assert not cluster.asked(id, ApiKey.INIT_PRODUCER_ID, INIT, version=4).error_code
        cluster.cut_off(cluster.cluster.brokers[id])
        cluster.asked(id, ApiKey.INIT_PRODUCER_ID, INIT, version=4)  # It waits for its commit.
        with pytest.raises(ConnectionLost):
            Asked(cluster, look).result()
        assert {error for _, error in errors} == {ErrorCode.coordinator_not_available}
        assert not errors[0][0]
        assert errors[-1][0]


def test_a_producer_waits_for_its_id_no_longer_than_for_a_write() -> None:
    """The controller assigns ids in blocks. A coordinator without a block reports that in time for
    the producer to find another coordinator."""
    with scene(3, configs={"broker.session.timeout.ms": "20000"}) as cluster:
        id = cluster.coordinator("t", TRANSACTION)
        assert id != cluster.controller().id
        cluster.cut_off(cluster.cluster.brokers[id])
        asked = cluster.ask(id, ApiKey.INIT_PRODUCER_ID, INIT, version=4)
        assert asked.result().error_code is ErrorCode.coordinator_not_available
        assert asked.after_s < WRITE_TIMEOUT_S + SOON_S


def test_the_last_coordinator_still_names_itself() -> None:
    """If the other brokers' processes have ended, none can lead in its place, so consumers keep
    reading. Once another broker runs, even out of reach, that one may lead."""
    with scene() as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        assert not written(cluster.produce(1, topic_id))
        alone, *others = cluster.cluster.brokers.values()
        for other in others:
            other.crash()
        cluster.passes(3 * SESSION_S)
        metadata = cluster.asked(1, ApiKey.METADATA, {"topics": None})
        assert 1 in {row.node_id for row in metadata.brokers}
        assert metadata.topics[0].partitions[0].leader_id == 1

        cluster.cut_off(alone)
        for other in others:
            other.start()
        cluster.passes(SESSION_S)
        metadata = cluster.asked(1, ApiKey.METADATA, {"topics": None})
        assert metadata.topics[0].partitions[0].leader_id == -1


def test_brokers_without_a_controller_go_on() -> None:
    """A partition accepts writes as long as all its in-sync replicas fetch, and none if one does
    not."""
    with scene(brokers=4, voters=[4]) as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        cluster.cluster.brokers[4].crash()
        cluster.passes(3 * SESSION_S)
        broker = cluster.cluster.brokers[1].broker
        assert broker is not None
        assert broker.lifecycle.is_lost
        metadata = cluster.asked(1, ApiKey.METADATA, {"topics": None})
        assert 1 in {row.node_id for row in metadata.brokers}
        assert not written(cluster.produce(1, topic_id))
        process = cluster.cluster.brokers[2].process
        assert process is not None
        process.pause()
        cluster.passes(SESSION_S + SOON_S)
        assert written(cluster.produce(1, topic_id)) is ErrorCode.not_leader_or_follower
        process.resume()
        cluster.passes(SOON_S)
        assert not written(cluster.produce(1, topic_id))


def a_marker_is_lost() -> None:
    """A leader that is cut off waits for its marker's commit. Later it follows another leader, and
    its high watermark passes the marker's offset with other records."""
    with scene() as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        cluster.cut_off(cluster.cluster.brokers[1])
        topic = {"name": "work", "partition_indexes": [0]}
        marker = {
            "producer_id": 7,
            "producer_epoch": 1,
            "transaction_result": False,
            "coordinator_epoch": 0,
            "transaction_version": 2,
            "topics": [topic],
        }
        asked = cluster.ask(1, ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
        cluster.until(lambda: cluster.leader("work", 0, 2) in (2, 3), "another leader")
        assert not written(cluster.produce(cluster.leader("work", 0, 2), topic_id))
        assert not asked.done
        cluster.heal()
        (row,) = asked.result().markers[0].topics[0].partitions
        assert row.error_code is ErrorCode.not_leader_or_follower


def test_a_marker_that_is_lost_with_its_leader_is_not_taken_for_written() -> None:
    """The coordinator used to treat it as committed. The transaction's records had no marker, so
    the producer's next commit committed these aborted records too."""
    a_marker_is_lost()


def test_an_offset_of_a_deposed_leader_taken_for_its_own_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader's write counts as committed when its high watermark passes the offset, even if it is
    a follower by then."""
    monkeypatch.setattr(PendingAppend, "is_lost", property(lambda self: False))
    with pytest.raises(AssertionError, match=r"ErrorCode\.none"):
        a_marker_is_lost()


def a_marker_is_refused() -> None:
    """A transaction is committed whose coordinator has not yet learned that another broker leads
    its partition."""
    alone = {
        "transaction.state.log.num.partitions": "3",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.replication.factor": "1",
    }
    with scene(configs=alone) as cluster:
        controller = cluster.controller()
        coordinators = {f"t{n}": cluster.coordinator(f"t{n}", TRANSACTION) for n in range(9)}
        name, id = next(found for found in coordinators.items() if found[1] != controller.id)
        (leader,) = {1, 2, 3} - {id, controller.id}
        topic_id = cluster.make_topic("work", [leader, controller.id])
        init = {**INIT, "transactional_id": name}
        producer = cluster.asked(id, ApiKey.INIT_PRODUCER_ID, init, version=4)
        who = {
            "transactional_id": name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }
        assert not added(add_partition(cluster, id, who))
        assert not written(cluster.produce(leader, topic_id, transaction=who))

        cluster.cut(cluster.cluster.brokers[id], controller)
        moved = {
            "name": "work",
            "partitions": [{"partition_index": 0, "replicas": [controller.id]}],
        }
        move = {"allow_replication_factor_change": True, "timeout_ms": 10_000, "topics": [moved]}
        cluster.asked(controller.id, ApiKey.ALTER_PARTITION_REASSIGNMENTS, move)
        cluster.until(lambda: cluster.leader("work", 0, leader) == controller.id, "the next leader")
        end = {**who, "committed": True}
        assert not cluster.asked(id, ApiKey.END_TXN, end, version=4).error_code
        cluster.passes(SOON_S)
        assert cluster.leader("work", 0, id) == leader
        cluster.heal()
        led = cluster.partition("work", 0, controller.id)
        cluster.until(lambda: led.last_stable_offset == led.high_watermark == 2, "the marker")


def test_a_marker_that_was_refused_is_written_by_the_next_leader() -> None:
    """Otherwise no consumer could read the committed transaction, nor any later record."""
    a_marker_is_refused()


@pytest.mark.nightly
def test_a_marker_that_was_refused_and_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that a leader has refused counts as written."""
    ask = TransactionMarkerChannel._write_remotely

    async def write_at(*arguments: Any) -> dict[tuple[str, int], ErrorCode]:
        return dict.fromkeys(await ask(*arguments), ErrorCode.none)

    monkeypatch.setattr(TransactionMarkerChannel, "_write_remotely", write_at)
    with pytest.raises(Violation, match="the marker"):
        a_marker_is_refused()


def test_a_fenced_broker_with_old_metadata_is_not_unfenced() -> None:
    """Its heartbeat succeeds before it gets the metadata with the new leaders. If it were unfenced
    at once, it would act as the leader of its old partitions, unopposed by the controller."""
    with scene() as cluster:
        controller = cluster.controller()
        off = cluster.others(controller)[0]
        assert controller.broker is not None
        assert off.broker is not None
        known = controller.broker.image.brokers
        before = {
            "broker_id": off.id,
            "broker_epoch": known[off.id].broker_epoch,
            "current_metadata_offset": off.broker.image.offset,
            "want_fence": False,
            "want_shut_down": False,
        }
        off.pause()
        broker = controller.broker
        cluster.until(lambda: broker.image.brokers[off.id].fenced, "it is fenced")
        answer = cluster.asked(controller.id, ApiKey.BROKER_HEARTBEAT, before)
        assert answer.is_fenced
        assert not answer.is_caught_up
        assert broker.image.brokers[off.id].fenced
        now = before | {"current_metadata_offset": broker.image.offset}
        assert not cluster.asked(controller.id, ApiKey.BROKER_HEARTBEAT, now).is_fenced


def test_a_late_write_of_share_state_meets_a_coordinator_that_left_and_came_back() -> None:
    """A write was stuck in the network while another broker was the coordinator for a while and
    applied newer writes of the same leader, which have the same epochs. The late write must not
    overwrite them. A write on a connection that was opened after the return is applied."""
    with scene() as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        key = f"g:{format_uuid(topic_id)}:0"
        id = cluster.coordinator(key, SHARE)
        leader = next(other for other in (1, 2, 3) if other != id)
        back: list[bool] = []

        def row(**fields: Any) -> dict[str, Any]:
            partitions = [{"partition": 0, **fields}]
            return {"group_id": "g", "topics": [{"topic_id": topic_id, "partitions": partitions}]}

        def write(last: int) -> dict[str, Any]:
            batch = {
                "first_offset": 0,
                "last_offset": last,
                "delivery_state": 2,
                "delivery_count": 1,
            }
            return row(
                state_epoch=0,
                leader_epoch=5,
                start_offset=0,
                delivery_complete_count=0,
                state_batches=[batch],
                delays=[],
            )

        def code(answer: Any) -> ErrorCode:
            found: ErrorCode = answer.results[0].partitions[0].error_code
            return found

        async def late() -> Any:
            settings = cluster.settings(id, client_id=f"broker-{leader}")
            connection = await connect(settings, settings.bootstrap[0])
            answer = await connection.request(ApiKey.WRITE_SHARE_GROUP_STATE, write(0))
            assert not code(answer)
            while not back:
                await wait(0.1)
            return await connection.request(ApiKey.WRITE_SHARE_GROUP_STATE, write(1))

        new = row(state_epoch=0, start_offset=0)
        assert not code(cluster.asked(id, ApiKey.INITIALIZE_SHARE_GROUP_STATE, new))
        sent = Asked(cluster, late)
        cluster.passes(1.0)
        process = cluster.cluster.brokers[id].process
        assert process is not None
        process.pause()
        index, other = compute_partition(key, 3), id % 3 + 1
        cluster.until(lambda: cluster.leader(STATES, index, other) != id, "another coordinator")
        now = cluster.coordinator(key, SHARE, other)
        assert not code(cluster.asked(now, ApiKey.WRITE_SHARE_GROUP_STATE, write(9)))
        process.resume()
        cluster.passes(1.0)  # Until then it acts as the leader.
        cluster.until(lambda: cluster.leader(STATES, index, id) == id, "it is back")
        read = row(leader_epoch=5)
        assert not code(cluster.asked(id, ApiKey.READ_SHARE_GROUP_STATE, read))

        back.append(True)
        with pytest.raises(ConnectionLost):
            sent.result()
        answer = cluster.asked(id, ApiKey.READ_SHARE_GROUP_STATE, read)
        (batch,) = answer.results[0].partitions[0].state_batches
        assert (batch.first_offset, batch.last_offset) == (0, 9)
        assert not code(cluster.asked(id, ApiKey.WRITE_SHARE_GROUP_STATE, write(12)))


def test_a_share_partition_at_its_coordinator_refuses_in_time_too() -> None:
    """Its state is written in the same process without a request. No timer watched such writes, so
    acknowledgements got no response until the replicas were back.

    A fetch meanwhile returns no records and no error. A member that restarted after a temporary
    refusal would leave its old membership behind, which keeps its partitions until its session
    ends."""
    calm = {"replica.lag.time.max.ms": "60000", "broker.session.timeout.ms": "20000"}
    with scene(configs=calm) as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        groups = map("group-{}".format, count())
        key = f"{{}}:{format_uuid(topic_id)}:0"
        group = next(g for g in groups if cluster.coordinator(key.format(g), SHARE) == 1)
        assert not written(cluster.produce(1, topic_id))
        results: list[tuple[float, Any, int]] = []

        async def work() -> None:
            async with cluster.client() as client:
                changes = [
                    ConfigChange("share.auto.offset.reset", "earliest"),
                    ConfigChange("share.record.lock.duration.ms", "30000"),
                ]
                resource = ConfigResource(ConfigResourceType.GROUP, group)
                expect(await client.admin.configs.alter({resource: changes}))
                async with await client.share(group, ["work"]) as session:
                    while not (got := await session.acquire()).count:
                        pass
                    await wait(2 * WRITE_TIMEOUT_S)  # The timeouts of earlier writes are over.
                    for other in cluster.others(cluster.cluster.brokers[1]):
                        assert other.process is not None
                        other.pause()
                    began = cluster.kernel.now
                    acks = [a for one in got for a in one.acknowledge(AcknowledgeType.ACCEPT)]
                    (refused,) = await session.acknowledge(acks)
                    after_s = cluster.kernel.now - began
                    got = await session.acquire()
                    results.append((after_s, refused.error, got.count))

        Asked(cluster, work)
        cluster.until(lambda: results, "an answer", 4 * WRITE_TIMEOUT_S)
        ((after_s, error, count_now),) = results
        assert error.code is ErrorCode.coordinator_not_available
        assert after_s < WRITE_TIMEOUT_S + SOON_S
        assert not count_now


def test_a_member_that_asks_a_broker_that_is_cut_off_asks_the_others() -> None:
    """Clients ask the first broker of their list as long as it answers. Cut off from the others it
    did answer, and reported for ever that there is no coordinator; its partitions had no leader."""
    with scene() as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        names = map("group-{}".format, count())
        group = next(name for name in names if cluster.coordinator(name, GROUP) == 1)
        found: list[int] = []

        async def work() -> None:
            async with cluster.client() as client:
                changes = [ConfigChange("share.auto.offset.reset", "earliest")]
                resource = ConfigResource(ConfigResourceType.GROUP, group)
                expect(await client.admin.configs.alter({resource: changes}))
                async with await client.share(group, ["work"]) as session:
                    while len(found) < 2:
                        got = await session.acquire()
                        found.extend(r.offset for one in got for r in one.records())
                        acks = [a for one in got for a in one.acknowledge(AcknowledgeType.ACCEPT)]
                        await session.acknowledge(acks)

        working = Asked(cluster, work)
        assert not written(cluster.produce(1, topic_id))
        cluster.until(lambda: found == [0], "the first record")
        cluster.cut_off(cluster.cluster.brokers[1])
        cluster.until(lambda: cluster.leader("work", 0, 2) != 1, "another leader")
        assert not written(cluster.produce(cluster.leader("work", 0, 2), topic_id))
        cluster.until(lambda: found == [0, 1], "the second record", FOUND_S)
        working.result()


def test_a_share_fetch_that_waits_gets_records_once_its_leader_is_back() -> None:
    """A controller answers that the leader is fenced, and is deposed before it has committed that.
    The leader keeps its records from a fetch until its next heartbeat, which nobody told the fetch:
    it waited for its whole time."""
    with scene() as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        assert not written(cluster.produce(1, topic_id))
        names = map("group-{}".format, count())
        group = next(name for name in names if cluster.coordinator(name, GROUP) != 1)
        lifecycle = cluster.cluster.brokers[1].broker.lifecycle  # type: ignore[union-attr]
        counts: list[int] = []

        async def work() -> None:
            async with cluster.client() as client:
                changes = [ConfigChange("share.auto.offset.reset", "earliest")]
                resource = ConfigResource(ConfigResourceType.GROUP, group)
                expect(await client.admin.configs.alter({resource: changes}))
                async with await client.share(group, ["work"]) as session:
                    got = await session.acquire(max_wait_ms=60_000)
                    counts.append(got.count)
                    acks = [a for one in got for a in one.acknowledge(AcknowledgeType.RELEASE)]
                    lifecycle.is_put_out = True
                    await session.acknowledge(acks)
                    got = await session.acquire(max_wait_ms=60_000)
                    counts.append(got.count)

        working = Asked(cluster, work)
        cluster.until(lambda: counts == [1, 1], "the record twice", FOUND_S)
        working.result()


def test_a_client_asks_the_next_broker_if_one_does_not_answer() -> None:
    """A stopped process still accepts connections. It had 10 s to answer ApiVersions before the
    client asked another broker."""
    with scene() as cluster:
        cluster.cluster.brokers[1].pause()

        async def look() -> None:
            async with cluster.client() as client:
                await client.cluster.refresh(())

        asked = Asked(cluster, look)
        asked.result()
        assert asked.after_s < PATIENCE_S + SOON_S


def add_partition(cluster: Scene, id: int, who: dict[str, Any]) -> Asked:
    """Add the only partition of `work` to a transaction, at its coordinator."""
    fields = {**who, "topics": [{"name": "work", "partitions": [0]}]}
    body = {f"v3_and_below_{name}": value for name, value in fields.items()}
    return cluster.ask(id, ApiKey.ADD_PARTITIONS_TO_TXN, body, version=3)


def added(asked: Asked) -> ErrorCode:
    """Return the error that its producer got for that."""
    (row,) = asked.result().results_by_topic_v3_and_below[0].results_by_partition
    code: ErrorCode = row.partition_error_code
    return code


def written(asked: Asked) -> ErrorCode:
    """Return the error that the producer got for its only partition."""
    (row,) = asked.result().responses[0].partition_responses
    code: ErrorCode = row.error_code
    return code


def codes(answer: Any) -> list[ErrorCode]:
    """Return the error of the response, or of each of its rows."""
    if hasattr(answer, "error_code"):
        return [answer.error_code]
    rows = next(
        getattr(answer, n) for n in ("topics", "responses", "results") if hasattr(answer, n)
    )
    return [row.error_code for row in rows]


@pytest.mark.parametrize("of_controller", [True, False], ids=["controller", "broker"])
def test_requests_for_a_controller_end_in_their_own_time(of_controller: bool) -> None:
    """The controller, or the way to it, is cut off, so no request is decided. A request with a
    timeout is refused when that is over, not after request.timeout.ms."""
    with scene() as cluster:
        controller = cluster.controller()
        off = controller if of_controller else cluster.others(controller)[0]
        cluster.cut_off(off)
        asked = {}
        for api_key, fields in OF_THE_CONTROLLER.items():
            asked[api_key] = cluster.ask(off.id, api_key, fields | {"timeout_ms": PATIENCE_MS})
            cluster.passes(0.1)  # Later decisions wait for the commit of the first one.
        for api_key, one in asked.items():
            answer = one.result()
            (code,) = codes(answer)
            assert code is ErrorCode.request_timed_out, (api_key.name, answer)
            assert PATIENCE_MS <= one.after_s * 1000 < PATIENCE_MS + SOON_S * 1000, api_key.name


def test_a_request_without_patience_leaves_the_way_to_the_controller_as_it_is() -> None:
    """A client's short timeout ends before the controller answers. The broker's own requests on the
    same connection are not affected."""
    with scene() as cluster:
        controller = cluster.controller()
        asked = cluster.others(controller)[0]
        assert asked.broker is not None
        link = asked.broker.channel._link
        cluster.cluster.network.delay_s = (0.05, 0.06)
        fields = OF_THE_CONTROLLER[ApiKey.CREATE_TOPICS] | {"timeout_ms": 20}
        answer = cluster.asked(asked.id, ApiKey.CREATE_TOPICS, fields)
        assert codes(answer) == [ErrorCode.request_timed_out]
        assert asked.broker.channel._link is link


def test_a_batch_behind_a_refused_one_is_refused_too() -> None:
    """A producer has three batches under way to a broker that begins to lead before the last one.
    The first had been written, and its answer was lost. The last one used to break the sequence:
    librdkafka takes a new epoch then, and writes the first one once more."""
    with scene() as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        who = cluster.asked(1, ApiKey.INIT_PRODUCER_ID, NEW_PRODUCER)
        idempotent = {"producer_id": who.producer_id, "producer_epoch": 0}

        def produce(id: int, sequence: int) -> ErrorCode:
            return written(cluster.produce(id, topic_id, sequence=sequence, producer=idempotent))

        assert not produce(1, 0)
        assert produce(2, 0) is ErrorCode.not_leader_or_follower
        assert produce(2, 1) is ErrorCode.not_leader_or_follower
        cluster.cut_off(cluster.cluster.brokers[1])
        cluster.until(lambda: cluster.partition("work", 0, 2).is_leader, "broker 2 leads")
        assert produce(2, 2) is ErrorCode.not_leader_or_follower
        assert [produce(2, sequence) for sequence in range(4)] == [ErrorCode.none] * 4
        assert cluster.partition("work", 0, 2).log.log_end_offset == 4


def test_a_log_that_does_not_know_a_producer_takes_its_first_batch_first() -> None:
    """It takes any sequence then, and would refuse the first batch for ever."""
    with scene() as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])
        who = cluster.asked(1, ApiKey.INIT_PRODUCER_ID, NEW_PRODUCER)
        idempotent = {"producer_id": who.producer_id, "producer_epoch": 0}

        def produce(sequence: int) -> ErrorCode:
            return written(cluster.produce(2, topic_id, sequence=sequence, producer=idempotent))

        assert produce(0) is ErrorCode.not_leader_or_follower
        cluster.cut_off(cluster.cluster.brokers[1])
        cluster.until(lambda: cluster.partition("work", 0, 2).is_leader, "broker 2 leads")
        assert produce(1) is ErrorCode.not_leader_or_follower
        assert [produce(0), produce(1)] == [ErrorCode.none] * 2


def test_a_batch_that_overtakes_another_on_its_way_to_a_new_leader_is_sent_again() -> None:
    """librdkafka may send a producer's second batch to the new leader before it has the first one
    back from the former leader. OUT_OF_ORDER_SEQUENCE_NUMBER would make it take a new epoch."""
    with scene() as cluster:
        topic_id = cluster.make_topic("work", [1, 2, 3])

        def producer() -> Callable[[int, int], ErrorCode]:
            who = cluster.asked(1, ApiKey.INIT_PRODUCER_ID, NEW_PRODUCER)
            idempotent = {"producer_id": who.producer_id, "producer_epoch": 0}
            return lambda id, sequence: written(
                cluster.produce(id, topic_id, sequence=sequence, producer=idempotent)
            )

        overtaken, broken, idle = producer(), producer(), producer()
        for produce in (overtaken, broken, idle):
            assert not produce(1, 0)
            # The former leader judges as Kafka does.
            assert produce(1, 2) is ErrorCode.out_of_order_sequence_number
        cluster.cut_off(cluster.cluster.brokers[1])
        cluster.until(lambda: cluster.partition("work", 0, 2).is_leader, "broker 2 leads")
        assert overtaken(2, 2) is ErrorCode.not_leader_or_follower
        assert overtaken(2, 3) is ErrorCode.not_leader_or_follower
        assert [overtaken(2, sequence) for sequence in range(1, 4)] == [ErrorCode.none] * 3
        # It has written to this leader, so nothing of it is on the way.
        assert overtaken(2, 9) is ErrorCode.out_of_order_sequence_number
        # If the sequence stays broken, the batch gets Kafka's answer the second time.
        assert broken(2, 2) is ErrorCode.not_leader_or_follower
        assert broken(2, 2) is ErrorCode.out_of_order_sequence_number
        assert not idle(2, 1)
