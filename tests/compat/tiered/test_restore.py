"""A cluster that lost all brokers comes back from its bucket."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from shoal.coordinator.contract import CoordinatorRecord
from shoal.coordinator.group import records as group_records
from shoal.coordinator.share import records as share_records
from shoal.log.storage import DiskStorage
from shoal.metadata.records import decode
from shoal.server.tiered.backups import INCARNATION
from shoal.server.tiered.key_ring import KeyDirectory
from shoal.tiered import backup
from support.brokers.clusters import CLUSTER_ID, ShoalCluster, running
from support.brokers.commands import SHOAL
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually
from support.storage.object_stores import gateway
from support.storage.tiered_topics import (
    TIMEOUT_S,
    Tiered,
    consume,
    create,
    produce,
    read_committed,
    settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("obstore")
COUNT, COMMITTED, ACKNOWLEDGED = 3000, 1200, 500


def configs_of(store: Path) -> dict[str, str]:
    return settings(
        store, shoal_remote_backup_interval_ms="300", shoal_remote_lease_interval_ms="200"
    ) | {"offsets.topic.num.partitions": "2", "share.coordinator.state.topic.num.partitions": "2"}


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[Tiered]:
    store = tmp_path / "store"
    broker = ShoalProcess(tmp_path / "lost", configs=configs_of(store)).start()
    yield Tiered(broker, store, AdminClient({"bootstrap.servers": broker.bootstrap}))
    broker.stop()


def run_restore(store: Path, data_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    options = (f"--url=file://{store}", f"--data-dir={data_dir}", "-o", "json")
    return run_command(*options, *words)


def run_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*SHOAL, "storage", "restore", *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def restored(store: Path, data_dir: Path, *words: str) -> list[dict[str, Any]]:
    """Restore as soon as the lost cluster has been silent for a second."""

    def attempt() -> list[dict[str, Any]] | None:
        done = run_restore(store, data_dir, "--idle=1s", *words)
        if done.returncode:
            assert "is alive" in done.stderr, done.stderr
            return None
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    return eventually(attempt, timeout_s=TIMEOUT_S)


def pairs(store: Path, path: Path, keys: str) -> Iterator[backup.Pair]:
    """Yield the records of a backup. `keys` is the directory of the key ring."""
    ring = KeyDirectory(DiskStorage(), keys)
    found = backup.decode(path.read_bytes()).open_records(ring, str(path.relative_to(store)))
    return backup.read_pairs(found)


def read_saved(store: Path, topic: str, keys: str = "") -> list[CoordinatorRecord]:
    """Return the records in the backups of an internal topic; none while the backup of the
    metadata lacks the topic."""
    known = [
        decode(value)
        for path in store.rglob("backup/metadata")
        for _, value in pairs(store, path, keys)
        if value is not None
    ]
    if topic not in {one.fields["name"] for one in known if one.kind == "TopicRecord"}:
        return []
    return [
        CoordinatorRecord(key, value)
        for path in store.rglob(f"backup/{topic}/*")
        if path.name.isdigit()
        for key, value in pairs(store, path, keys)
        if key is not None
    ]


def saved_positions(store: Path, keys: str = "") -> dict[str, int]:
    """Return the committed offsets of topic t in the backups, by group."""
    found = [
        group_records.decode(record) for record in read_saved(store, "__consumer_offsets", keys)
    ]
    return {
        one.key["group"]: one.value["offset"]
        for one in found
        if one is not None and one.value is not None and one.key.get("topic") == "t"
    }


def saved_share_start(store: Path) -> int:
    """Return the largest start offset of share partitions in the backups."""
    found = [share_records.decode(record) for record in read_saved(store, "__share_group_state")]
    values = [one.value["start_offset"] for one in found if one is not None and one.value]
    return max(values, default=-1)


def commit(bootstrap: str, offset: int) -> None:
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    client.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    client.close()


def committed(bootstrap: str) -> int:
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    (found,) = client.committed([TopicPartition("t", 0)], TIMEOUT_S)
    client.close()
    return int(found.offset)


def from_the_start(admin: AdminClient) -> None:
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    group = ConfigResource("group", "workers", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([group]).values():
        future.result(TIMEOUT_S)


def work(bootstrap: str, count: int) -> set[int]:
    """Acknowledge at least `count` records of the share group. Return their offsets."""
    client = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "workers"})
    client.subscribe(["t"])
    done: set[int] = set()

    def enough() -> bool:
        done.update(message.offset() for message in client.poll(timeout=1.0))
        return len(done) >= count

    eventually(enough, timeout_s=TIMEOUT_S)
    client.commit_sync(TIMEOUT_S)
    client.close()
    return done


def produce_in_transaction(bootstrap: str) -> None:
    """Commit a transaction over 1.5 MB: its first record is in the store, its marker is not."""
    client = Producer({"bootstrap.servers": bootstrap, "transactional.id": "x"})
    client.init_transactions(TIMEOUT_S)
    client.begin_transaction()
    client.produce("t", b"v", b"open")
    assert client.flush(TIMEOUT_S) == 0
    produce(bootstrap, 1500, start=COUNT)
    client.commit_transaction(TIMEOUT_S)


def copied_to(tiered: Tiered) -> int:
    """Return the offset behind the last remote segment, once only the active one is local."""
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    return tiered.local_logs()[0]


def test_a_cluster_comes_back_from_its_bucket(tiered: Tiered, tmp_path: Path) -> None:
    """shoal.remote.backup.interval.ms: topics, configs, records, positions and share groups come
    back, and what refers to lost records does not."""
    bootstrap = tiered.broker.bootstrap
    create(tiered.admin)
    create(tiered.admin, "plain", remote_storage_enable="false")
    produce(bootstrap, COUNT)
    produce_in_transaction(bootstrap)
    produce(bootstrap, 10, topic="plain")
    from_the_start(tiered.admin)
    done = work(bootstrap, ACKNOWLEDGED)
    commit(bootstrap, COMMITTED)
    end = copied_to(tiered)
    assert COUNT < end < COUNT + 1502
    eventually(
        lambda: (
            saved_positions(tiered.store).get("readers") == COMMITTED
            and saved_share_start(tiered.store) == max(done) + 1
        ),
        timeout_s=TIMEOUT_S,
    )
    tiered.broker.kill9()

    rows = restored(tiered.store, tmp_path / "new")
    assert [(row["topic"], row["start"], row["end"], row["aborted"]) for row in rows] == [
        ("plain", 0, 0, 0),
        ("t", 0, end + 1, 1),
    ]
    again = run_restore(tiered.store, tmp_path / "new", "--idle=1s")
    assert "is not empty" in again.stderr
    broker = ShoalProcess(tmp_path / "new", configs=configs_of(tiered.store)).start()
    try:
        bootstrap = broker.bootstrap
        consume(bootstrap, COUNT)
        keys = read_committed(bootstrap)
        assert len(keys) == end - 1, "all but the record of the transaction"
        assert b"open" not in keys
        assert committed(bootstrap) == COMMITTED
        assert work(bootstrap, end - len(done)) == set(range(max(done) + 1, end))
        # It continues: positions, copies, and the metadata of old segments.
        produce(bootstrap, 2500, start=end + 1)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        after = Tiered(broker, tiered.store, admin)
        assert copied_to(after) > end + 1
        assert len(read_committed(bootstrap)) == end - 1 + 2500
    finally:
        broker.stop()


def test_a_bucket_belongs_to_one_cluster(tiered: Tiered, tmp_path: Path) -> None:
    """shoal.remote.lease.interval.ms: the bucket of a live cluster is refused.
    shoal.remote.store.incarnation: a lost cluster that comes back leaves it alone."""
    create(tiered.admin)
    produce(tiered.broker.bootstrap, 2500)
    copied_to(tiered)
    eventually(lambda: next(tiered.store.rglob("backup/lease"), None), timeout_s=TIMEOUT_S)
    refused = run_restore(tiered.store, tmp_path / "new")
    assert refused.returncode == 1
    assert "is alive: it wrote its lease" in refused.stderr
    wrong = run_restore(tiered.store, tmp_path / "new", "--cluster-id=other")
    assert "no backup of cluster other" in wrong.stderr
    assert not (tmp_path / "new").exists()

    tiered.broker.kill9()
    unknown = run_restore(tiered.store, tmp_path / "new", "--topic=unknown")
    assert "has no topic unknown" in unknown.stderr
    restored(tiered.store, tmp_path / "new")
    lease = next(tiered.store.rglob("backup/lease"))
    before = (lease.stat().st_mtime_ns, tiered.objects())
    tiered.broker.start()
    eventually(
        lambda: any("another cluster was restored" in line for line in tiered.broker.log),
        timeout_s=TIMEOUT_S,
    )
    # Segments are closed and not copied, and metrics show it.
    produce(tiered.broker.bootstrap, 5000, start=2500)
    failing = "shoal_remote_failing_partitions"
    eventually(lambda: tiered.broker.metric(failing) == 1, timeout_s=TIMEOUT_S)
    assert len(tiered.local_logs()) > 4
    assert (lease.stat().st_mtime_ns, tiered.objects()) == before
    config = ConfigResource("broker", "1")
    found = tiered.admin.describe_configs([config])[config].result(TIMEOUT_S)
    assert found[INCARNATION].value == ""


@pytest.mark.nightly
def test_commands_end_with_their_status(tmp_path: Path) -> None:
    """The store's library has threads that could abort the process at its end."""
    folder = tmp_path / "store" / backup.format_folder("lost")
    folder.mkdir(parents=True)
    (folder / "lease").write_bytes(b"{}")
    (folder / "metadata").write_bytes(backup.encode({"offset": 1, "written_ms": 1}, b""))
    for _ in range(20):
        done = run_restore(tmp_path / "store", tmp_path / "new", "--idle=1h")
        assert (done.returncode, "is alive" in done.stderr) == (1, True)


@pytest.mark.nightly
def test_one_topic_comes_back_alone(tiered: Tiered, tmp_path: Path) -> None:
    create(tiered.admin)
    create(tiered.admin, "other")
    produce(tiered.broker.bootstrap, 2500)
    produce(tiered.broker.bootstrap, 2500, topic="other")
    end = copied_to(tiered)
    commit(tiered.broker.bootstrap, 7)
    eventually(lambda: saved_positions(tiered.store).get("readers") == 7, timeout_s=TIMEOUT_S)
    tiered.broker.kill9()
    (row,) = restored(tiered.store, tmp_path / "new", "--topic=t")
    assert (row["topic"], row["end"]) == ("t", end)
    broker = ShoalProcess(tmp_path / "new", configs=configs_of(tiered.store)).start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        assert {t for t in admin.list_topics().topics if t[:2] != "__"} == {"t"}
        consume(broker.bootstrap, end)
        assert committed(broker.bootstrap) == 7
    finally:
        broker.stop()


def test_an_encrypted_cluster_comes_back_with_its_keys(tmp_path: Path) -> None:
    """shoal.remote.encryption.key.id: a reader of the bucket finds no credential and no group,
    and the restore needs the key."""
    store, keys = tmp_path / "store", tmp_path / "keys"
    keys.mkdir()
    (keys / "first").write_bytes(base64.b64encode(os.urandom(32)))
    configs = configs_of(store) | {
        "shoal.remote.encryption.key.directory": str(keys),
        "shoal.remote.encryption.key.id": "first",
    }
    lost = ShoalProcess(tmp_path / "lost", configs=configs).start()
    tiered = Tiered(lost, store, AdminClient({"bootstrap.servers": lost.bootstrap}))
    create(tiered.admin)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = UserScramCredentialUpsertion("mallory", info, b"a password")
    tiered.admin.alter_user_scram_credentials([user])["mallory"].result(TIMEOUT_S)
    produce(lost.bootstrap, COUNT)
    commit(lost.bootstrap, COMMITTED)
    end = copied_to(tiered)
    eventually(
        lambda: saved_positions(store, str(keys)).get("readers") == COMMITTED, timeout_s=TIMEOUT_S
    )
    lost.kill9()
    stored = b"".join(path.read_bytes() for path in store.rglob("backup/**/*") if path.is_file())
    assert not [word for word in (b"mallory", b"readers") if word in stored]

    eventually(
        lambda: "'first' is needed" in run_restore(store, tmp_path / "new", "--idle=1s").stderr,
        timeout_s=TIMEOUT_S,
    )
    assert not (tmp_path / "new").exists()
    (row,) = restored(store, tmp_path / "new", f"--key-directory={keys}")
    assert row["end"] == end
    broker = ShoalProcess(tmp_path / "new", configs=configs).start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        found = admin.describe_user_scram_credentials(["mallory"])["mallory"].result(TIMEOUT_S)
        assert [one.iterations for one in found.scram_credential_infos] == [4096]
        consume(broker.bootstrap, end)
        assert committed(broker.bootstrap) == COMMITTED
    finally:
        broker.stop()


@pytest.mark.nightly
def test_a_cluster_comes_back_from_an_s3_server(tmp_path: Path) -> None:
    with gateway(tmp_path / "s3") as s3:
        configs = configs_of(tmp_path) | s3.configs
        own = {"configs": configs, "environment": s3.credentials}
        lost = ShoalProcess(tmp_path / "lost", **own).start()  # type: ignore[arg-type]
        tiered = Tiered(lost, s3.bucket, AdminClient({"bootstrap.servers": lost.bootstrap}))
        create(tiered.admin)
        produce(lost.bootstrap, COUNT)
        commit(lost.bootstrap, COMMITTED)
        end = copied_to(tiered)
        eventually(
            lambda: saved_positions(s3.bucket).get("readers") == COMMITTED, timeout_s=TIMEOUT_S
        )
        lost.kill9()
        where = (f"--url={s3.url}", f"--endpoint={s3.endpoint}", f"--region={s3.region}")
        options = (*where, f"--data-dir={tmp_path / 'new'}", "--idle=2s", "-o", "json")

        def attempt() -> str | None:
            done = run_command(*options, **s3.credentials)
            assert not done.returncode or "is alive" in done.stderr, done.stderr
            return done.stdout or None

        (row,) = json.loads(eventually(attempt, timeout_s=TIMEOUT_S))
        assert row["end"] == end
        new = ShoalProcess(tmp_path / "new", **own).start()  # type: ignore[arg-type]
        try:
            consume(new.bootstrap, end)
            assert committed(new.bootstrap) == COMMITTED
        finally:
            new.stop()


@pytest.mark.nightly
def test_three_brokers_come_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    configs = configs_of(store)
    with running(ShoalCluster(tmp_path / "lost", configs=configs)) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        create(admin, replicas=3)
        produce(cluster.bootstrap, COUNT)
        commit(cluster.bootstrap, COMMITTED)
        folders = [node.data_dir / "t-0" for node in cluster.nodes.values()]
        eventually(
            lambda: all(len(list(folder.glob("*.log"))) == 1 for folder in folders),
            timeout_s=TIMEOUT_S,
        )
        end = int(next(folders[0].glob("*.log")).stem)
        eventually(lambda: saved_positions(store).get("readers") == COMMITTED, timeout_s=TIMEOUT_S)
    new = ShoalCluster(tmp_path / "new", configs=configs)
    rows = [
        restored(
            store,
            new.nodes[id].data_dir,
            f"--node-id={id}",
            "--brokers=1,2,3",
            f"--cluster-id={CLUSTER_ID}",
        )
        for id in new.nodes
    ]
    assert rows[0] == rows[1] == rows[2]
    assert [(row["topic"], row["end"]) for row in rows[0]] == [("t", end)]
    with running(new):
        consume(new.bootstrap, end)
        assert committed(new.bootstrap) == COMMITTED
        eventually(lambda: sorted(new.topic(1, "t")[0].isr_nodes) == [1, 2, 3], timeout_s=TIMEOUT_S)
        produce(new.bootstrap, 2500, start=end)
        leader = new.topic(1, "t")[0].leader_id
        new.nodes[leader].kill9()
        consume(new.bootstrap, end + 2500)


@pytest.mark.nightly
def test_dedicated_controllers_come_back(tmp_path: Path) -> None:
    """Controllers get the metadata alone, and are the voters. Brokers have the partitions."""
    store = tmp_path / "store"
    configs = configs_of(store)
    roles = {1: "broker", 2: "broker", **dict.fromkeys((3, 4, 5), "controller")}
    with running(ShoalCluster(tmp_path / "lost", 5, configs=configs, roles=roles)) as lost:
        admin = AdminClient({"bootstrap.servers": lost.bootstrap})
        create(admin, replicas=2)
        produce(lost.bootstrap, COUNT)
        commit(lost.bootstrap, COMMITTED)
        folder = lost.nodes[1].data_dir / "t-0"
        eventually(lambda: len(list(folder.glob("*.log"))) == 1, timeout_s=TIMEOUT_S)
        end = int(next(folder.glob("*.log")).stem)
        eventually(lambda: saved_positions(store).get("readers") == COMMITTED, timeout_s=TIMEOUT_S)
    new = ShoalCluster(tmp_path / "new", 5, configs=configs, roles=roles)
    words = ("--brokers=1,2", f"--cluster-id={CLUSTER_ID}")
    rows = [
        restored(store, node.data_dir, f"--node-id={id}", *words) for id, node in new.nodes.items()
    ]
    assert rows[1:] == rows[:1] * 4
    (row,) = rows[0]
    assert (row["topic"], row["end"]) == ("t", end)
    for id in (3, 4, 5):
        assert folders(new.nodes[id].data_dir) == ["__cluster_metadata-0"]
    assert {"__consumer_offsets-0", "t-0"} <= {*folders(new.nodes[1].data_dir)}
    with running(new):
        voters = [voter.replica_id for voter in new.describe_quorum(1).current_voters]
        assert sorted(voters) == [3, 4, 5]
        assert sorted(b.node_id for b in new.metadata(1).brokers) == [1, 2]
        consume(new.bootstrap, end)
        assert committed(new.bootstrap) == COMMITTED
        eventually(lambda: sorted(new.topic(1, "t")[0].isr_nodes) == [1, 2], timeout_s=TIMEOUT_S)
        # It continues behind what was in the store, also without the broker that led.
        produce(new.bootstrap, 1500, start=end)
        new.nodes[new.topic(1, "t")[0].leader_id].kill9()
        consume(new.bootstrap, end + 1500)


def folders(data_dir: Path) -> list[str]:
    return sorted(path.name for path in data_dir.iterdir() if path.is_dir())
