"""Recovery from `__transaction_state` after a crash: a decided transaction gets its missing markers
in every partition, and its offsets are committed or dropped."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.contract import CoordinatorRecord
from shoal.log.appends import AppendOrigin
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.storage import DiskStorage
from shoal.protocol.api import ApiKey
from shoal.record.batch import iter_headers
from shoal.record.control import build_marker
from shoal.record.records import build_batch, read_records
from shoal.server.coordinators.service import compute_partition
from shoal.transaction.records import build_record, decode
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess


class Scene(NamedTuple):
    """What a dead broker has left of a transaction."""

    committed: bool
    #: The first partition has its marker.
    marked: bool

    @property
    def name(self) -> str:
        """The name of its topic, its group and its transactional id."""
        return f"{'commit' if self.committed else 'abort'}-{self.marked:d}"


SCENES = [Scene(*flags) for flags in itertools.product((True, False), repeat=2)]


def begin(client: WireClient, name: str) -> tuple[int, int]:
    """Open a transaction of that id with a record in both partitions of the topic and an offset of
    the group."""
    client.create_topic(name, 2)
    given = client.call(
        ApiKey.INIT_PRODUCER_ID, 5, {"transactional_id": name, "transaction_timeout_ms": 60_000}
    )
    who = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
    rows = [(int(time.time() * 1000), None, b"v", ())]
    batch = bytes(build_batch(rows, base_sequence=0, transactional=True, **who))
    data = [{"index": index, "records": batch} for index in range(2)]
    body = {
        "transactional_id": name,
        "acks": -1,
        "timeout_ms": 1_000,
        "topic_data": [{"name": name, "partition_data": data}],
    }
    (topic,) = client.call(ApiKey.PRODUCE, 12, body).responses
    assert [p.error_code for p in topic.partition_responses] == [0, 0]
    client.call(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [name]})
    offsets = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
    commit = {
        "transactional_id": name,
        "group_id": name,
        **who,
        "topics": [{"name": name, "partitions": offsets}],
    }
    (topic,) = client.call(ApiKey.TXN_OFFSET_COMMIT, 5, commit).topics
    assert topic.partitions[0].error_code == 0
    return given.producer_id, given.producer_epoch


def committed_offset(client: WireClient, name: str) -> tuple[int, int]:
    """Return the group's offset in the first partition, and the error of a request for a stable
    one."""
    body = {
        "groups": [{"group_id": name, "topics": [{"name": name, "partition_indexes": [0]}]}],
        "require_stable": True,
    }
    (group,) = client.call(ApiKey.OFFSET_FETCH, 8, body).groups
    found = group.topics[0].partitions[0]
    return found.committed_offset, found.error_code


def decide(data_dir: Path, scene: Scene) -> None:
    """Write what a dead broker would have written next to its logs: the decision, and optionally
    the marker of one of the partitions."""
    now_ms = int(time.time() * 1000)
    directory = data_dir / f"__transaction_state-{compute_partition(scene.name, 50)}"
    log = Log.open(DiskStorage(), str(directory), LogConfig(), now_ms=now_ms, clean=False)
    data = log.read(0, 1 << 20).data
    found = [r for at, _ in iter_headers(data) for r in read_records(data, at)]
    decoded = dict(decode(CoordinatorRecord(r.key or b"", r.value)) or ("", None) for r in found)
    transaction = decoded[scene.name]
    assert transaction is not None
    assert len(transaction.partitions) == 3
    decided = transaction.prepare(
        committed=scene.committed, version=2, next_producer_id=-1, now_ms=now_ms
    )
    key, value = build_record(scene.name, decided)
    log.append(
        build_batch([(now_ms, key, value, ())]),
        now_ms=now_ms,
        leader_epoch=log.latest_epoch,
        origin=AppendOrigin.COORDINATOR,
    )
    log.sync()
    if scene.marked:
        log = Log.open(
            DiskStorage(),
            str(data_dir / f"{scene.name}-0"),
            LogConfig(),
            now_ms=now_ms,
            clean=False,
        )
        marker = build_marker(
            committed=scene.committed,
            producer_id=decided.producer_id,
            producer_epoch=decided.producer_epoch,
            coordinator_epoch=0,
            timestamp_ms=now_ms,
        )
        log.append(
            marker, now_ms=now_ms, leader_epoch=log.latest_epoch, origin=AppendOrigin.COORDINATOR
        )
        log.sync()


def test_decided_transactions_are_completed(start_broker: Callable[..., ShoalProcess]) -> None:
    broker = start_broker()
    with WireClient(broker.bootstrap) as client:
        producer_ids = {scene: begin(client, scene.name)[0] for scene in SCENES}
        for scene in SCENES:
            assert committed_offset(client, scene.name)[1] != 0, "the offset is pending"
    broker.kill9()
    for scene in SCENES:
        decide(broker.data_dir, scene)
    broker.start()
    with WireClient(broker.bootstrap) as client:
        for scene in SCENES:
            check_completed(client, scene, producer_ids[scene])


def check_completed(client: WireClient, scene: Scene, producer_id: int) -> None:
    """Check that the transaction of a scene has its markers, and its offset its effect."""
    body = {"transactional_ids": [scene.name]}
    done = "CompleteCommit" if scene.committed else "CompleteAbort"

    def state() -> str:
        (row,) = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, body).transaction_states
        return row.transaction_state

    eventually(lambda: state() == done, what=f"{scene} is {done}")
    for index in range(2):
        found = client.fetch(scene.name, 0, partition=index, isolation_level=1)
        assert found.last_stable_offset == found.high_watermark
        aborted = [(a.producer_id, a.first_offset) for a in found.aborted_transactions]
        assert aborted == ([] if scene.committed else [(producer_id, 0)]), scene
    expected = (5, 0) if scene.committed else (-1, 0)
    assert committed_offset(client, scene.name) == expected, scene


def test_an_open_transaction_continues(start_broker: Callable[..., ShoalProcess]) -> None:
    broker = start_broker()
    with WireClient(broker.bootstrap) as client:
        producer_id, epoch = begin(client, "open")
    broker.kill9()
    broker.start()
    with WireClient(broker.bootstrap) as client:
        assert committed_offset(client, "open")[1] != 0, "the offset is still pending"
        body = {
            "transactional_id": "open",
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": True,
        }
        answer = eventually(
            lambda: a if (a := client.call(ApiKey.END_TXN, 5, body)).error_code == 0 else None
        )
        assert answer is not None
        assert (answer.producer_id, answer.producer_epoch) == (producer_id, epoch + 1)
        eventually(lambda: committed_offset(client, "open") == (5, 0))
        found = client.fetch("open", 0, isolation_level=1)
        assert found.last_stable_offset == found.high_watermark == 2
