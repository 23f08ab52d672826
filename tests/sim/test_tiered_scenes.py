"""Tiered topics on simulated clusters whose object store fails, and whose leaders crash."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from shoal.metadata.names import REMOTE_LOG_METADATA
from shoal.protocol.api import ApiKey
from shoal.record.batch import iter_headers
from shoal.record.records import read_records
from shoal.server.tiered import service
from sim.scenes import ErrorCode, Scene, scene
from sim.seeds import draw_by_day
from sim.test_scenes import written
from support.runs.seeding import drawn_seeds
from support.storage import object_stores
from support.storage.object_stores import FaultyStore

if TYPE_CHECKING:
    from uuid import UUID

CONFIGS = {
    "remote.log.storage.system.enable": "true",
    "shoal.remote.store.url": "memory:///",
    "shoal.remote.store.request.timeout.ms": "500",
    "shoal.remote.copy.interval.ms": "400",
    "remote.log.manager.task.interval.ms": "200",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    "log.retention.check.interval.ms": "300",
}
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "0"}
#: Some closed segments stay on the disk, although they are copied.
LONG_LOCAL = {"local.retention.bytes": "1200"}
ROUNDS, BATCHES = 6, 5
#: Errors of reads that clients repeat.
RETRIABLE = (
    ErrorCode.kafka_storage_error,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.fenced_leader_epoch,
)


def produced(cluster: Scene, topic_id: UUID, keys: list[bytes]) -> None:
    """Produce one batch, and repeat it until it is acknowledged."""
    while True:
        running = [id for id, machine in cluster.cluster.brokers.items() if machine.ready]
        leader = cluster.leader("t", 0, running[0]) if running else -1
        if leader in running:
            asked = cluster.produce(leader, topic_id, keys=keys)
            if written(asked) is ErrorCode.none:
                return
        cluster.passes(0.2)


def read_from(
    cluster: Scene, topic_id: UUID, offset: int, asked: int = 1
) -> tuple[list[bytes], int] | None:
    """Fetch once from the leader that a broker names. Return keys and the next offset, None after a
    retriable error."""
    leader = cluster.leader("t", 0, asked)
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    fields = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "topic_id": topic_id, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    answer = cluster.asked(leader, ApiKey.FETCH, fields)
    (row,) = answer.responses[0].partitions
    if row.error_code:
        assert ErrorCode(row.error_code) in RETRIABLE, ErrorCode(row.error_code)
        return None
    keys: list[bytes] = []
    for at, header in iter_headers(bytes(row.records or b"")):
        found = [r for r in read_records(bytes(row.records), at) if r.offset >= offset]
        keys += [record.key or b"" for record in found]
        offset = header.next_offset
    return keys, offset


def read_all(cluster: Scene, topic_id: UUID, end: int, asked: int = 1) -> list[bytes]:
    """Read the keys up to an offset, without repetitions: a retry after a lost answer may have
    written a batch twice."""
    got: list[bytes] = []
    offset = tries = 0
    while offset < end:
        tries += 1
        assert tries < 2_000, f"offset {offset} of {end} is not readable"
        found = read_from(cluster, topic_id, offset, asked)
        if found is None:
            cluster.passes(0.2)
            continue
        got += found[0]
        offset = found[1]
    return list(dict.fromkeys(got))


def lose_metadata(cluster: Scene) -> None:
    """All brokers stop, and lose the logs of `__remote_log_metadata`."""
    machines = cluster.cluster.brokers.values()
    for machine in machines:
        machine.crash()
    lost = 0
    for machine in machines:
        data_dir = machine.config.data_dir
        for name in machine.disk.list_directory(data_dir):
            if name.startswith(f"{REMOTE_LOG_METADATA}-"):
                machine.disk.remove_directory(f"{data_dir}/{name}")
                lost += 1
    assert lost == 6, "two partitions on three brokers"
    for machine in machines:
        machine.start()
    cluster.until(cluster.cluster.fully_replicated, "the brokers are back", 120)


@pytest.mark.parametrize("seed", draw_by_day(drawn_seeds(3), 1))
def test_acknowledged_records_are_read_from_a_failing_store(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    rate = 0.2

    def choose(_operation: str, _key: str) -> str:
        return rng.choice(object_stores.FAULTS) if rng.random() < rate else ""

    store = FaultyStore(choose)
    monkeypatch.setattr(service, "make_store", lambda config: store)
    sent: list[bytes] = []
    with scene(seed, configs=CONFIGS) as cluster:
        topic_id = cluster.make_topic("t", [1, 2, 3], configs=TIERED)
        for number in range(ROUNDS):
            for at in range(BATCHES):
                keys = [b"%d-%d-%d" % (number, at, n) for n in range(3)]
                produced(cluster, topic_id, keys)
                sent += keys
                cluster.passes(0.3)
            machine = cluster.cluster.brokers[rng.randint(1, 3)]
            machine.crash()
            machine.start()
            cluster.until(cluster.cluster.fully_replicated, "the broker is back", 120)
        cluster.passes(5)
        lose_metadata(cluster)
        end = cluster.partition("t", 0, cluster.leader("t", 0)).high_watermark
        assert read_all(cluster, topic_id, end) == sent
        assert len(store.objects) > ROUNDS
        starts = [cluster.partition("t", 0, id).log.local_start_offset for id in (1, 2, 3)]
        assert min(starts) > end // 2, f"{starts} of {end}: nothing left the disks"


@pytest.mark.parametrize("last_tiered", [False, True])
@pytest.mark.parametrize("seed", drawn_seeds(1))
def test_a_broker_that_lost_its_disk_copies_the_tail(
    seed: int, last_tiered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes leader epochs and producer states from the store, while that fails, and then leads.
    follower.fetch.last.tiered.offset.enable: it begins behind the last remote record."""
    rng = random.Random(seed)
    rate = 0.0

    def choose(_operation: str, _key: str) -> str:
        return rng.choice(object_stores.FAULTS) if rng.random() < rate else ""

    store = FaultyStore(choose)
    monkeypatch.setattr(service, "make_store", lambda config: store)
    configs = CONFIGS | {"follower.fetch.last.tiered.offset.enable": str(last_tiered).lower()}
    sent: list[bytes] = []
    # Broker 3 is no voter: without its disk and broker 1 there would be no quorum.
    with scene(seed, brokers=4, voters=(1, 2, 4), configs=configs) as cluster:
        topic_id = cluster.make_topic("t", [1, 3, 4], configs=TIERED | LONG_LOCAL)

        def produce(count: int) -> None:
            for _ in range(count):
                keys = [b"%d-%d" % (len(sent), n) for n in range(3)]
                produced(cluster, topic_id, keys)
                sent.extend(keys)
                cluster.passes(0.3)

        produce(12)
        # Broker 3 leads in another epoch, whose records are in the store as well.
        cluster.cluster.brokers[1].crash()
        cluster.until(lambda: cluster.leader("t", 0, 3) == 3, "another leader")
        cluster.cluster.brokers[1].start()
        cluster.until(cluster.cluster.fully_replicated, "the broker is back", 120)
        produce(12)
        cluster.passes(3)
        rate = 0.3
        lost = cluster.cluster.brokers[3]
        lost.crash()
        lost.disk.remove_directory(lost.config.data_dir)
        lost.start()
        cluster.until(cluster.cluster.fully_replicated, "the broker is back", 120)
        leader = cluster.partition("t", 0, cluster.leader("t", 0)).log
        log = cluster.partition("t", 0, 3).log
        assert leader.log_start_offset == log.log_start_offset == 0
        assert 0 < leader.local_start_offset < leader.log_end_offset == log.log_end_offset
        expected = leader.log_end_offset if last_tiered else leader.local_start_offset
        assert log.local_start_offset == expected
        produce(3)
        end = leader.log_end_offset
        cluster.until(lambda: log.log_end_offset == end, "the new records are copied")
        assert log.epochs.entries == leader.epochs.entries
        assert len(log.epochs.entries) > 2
        cluster.cluster.brokers[1].crash()
        cluster.until(lambda: cluster.leader("t", 0, 3) == 3, "the broker leads")
        assert read_all(cluster, topic_id, end, asked=3) == sent
        produced(cluster, topic_id, [b"new"])
