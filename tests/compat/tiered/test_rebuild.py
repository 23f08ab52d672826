"""What happens to tiered topics when metadata or objects are lost, and `shoal storage`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import metrics_page
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families
from shoal.tiered import manifest
from shoal_operator.brokers import tiered_health
from shoal_operator.brokers.calls import Brokers
from shoal_operator.queues import topics
from support.brokers.clusters import ShoalCluster, running
from support.brokers.commands import Shoal
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually
from support.storage.tiered_topics import (
    MB,
    TIMEOUT_S,
    Tiered,
    consume,
    create,
    produce,
    settings,
    sizes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shoal_operator.brokers.tiered_health import TieredHealth

pytest.importorskip("obstore")
METADATA = "__remote_log_metadata"
DAY_S = 86_400


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[Tiered]:
    """A broker that compares objects and metadata every second."""
    configs = settings(tmp_path / "store") | {"shoal.remote.orphan.check.interval.ms": "1000"}
    broker = ShoalProcess(tmp_path / "data", configs=configs).start()
    yield Tiered(broker, tmp_path / "store", AdminClient({"bootstrap.servers": broker.bootstrap}))
    broker.stop()


def copied(tiered: Tiered, topic: str = "t", count: int = 4000) -> None:
    create(tiered.admin, topic)
    produce(tiered.broker.bootstrap, count, topic=topic)
    eventually(lambda: len(tiered.local_logs(topic)) == 1, timeout_s=TIMEOUT_S)


def manifests(store: Path) -> list[manifest.Manifest]:
    return [manifest.decode(path.read_bytes()) for path in store.rglob("manifest")]


def age(path: Path, seconds: int = 2 * DAY_S) -> None:
    """Make a file as old as if it had been written that long ago."""
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_a_lost_metadata_topic_is_written_again(tmp_path: Path) -> None:
    """All brokers lose the logs of `__remote_log_metadata`, and no record is lost."""
    store = tmp_path / "store"
    with running(ShoalCluster(tmp_path, configs=settings(store))) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        create(admin, replicas=3)
        produce(cluster.bootstrap, 5000)

        def local_starts() -> list[int]:
            folders = [node.data_dir / "t-0" for node in cluster.nodes.values()]
            return [min(int(p.stem) for p in folder.glob("*.log")) for folder in folders]

        eventually(lambda: min(local_starts()) > 2500, timeout_s=TIMEOUT_S)
        (before,) = manifests(store)
        objects = sorted(store.rglob("*.segment"))
        for node in cluster.nodes.values():
            node.kill9()
        for node in cluster.nodes.values():
            lost = list(node.data_dir.glob(f"{METADATA}-*"))
            assert lost
            for folder in lost:
                shutil.rmtree(folder)
        cluster.start()
        consume(cluster.bootstrap, 5000)
        eventually(
            lambda: manifests(store)[0].leader_epoch > before.leader_epoch, timeout_s=TIMEOUT_S
        )
        (after,) = manifests(store)
        assert set(before.segments) <= set(after.segments)
        assert set(objects) <= set(store.rglob("*.segment"))
        # Copying continues.
        produce(cluster.bootstrap, 3000, start=5000)
        eventually(lambda: min(local_starts()) > 5500, timeout_s=TIMEOUT_S)
        consume(cluster.bootstrap, 8000)


@pytest.mark.nightly
def test_lost_metadata_and_manifests_are_written_again_from_the_objects(tiered: Tiered) -> None:
    copied(tiered)
    tiered.broker.kill9()
    for folder in tiered.broker.data_dir.glob(f"{METADATA}-*"):
        shutil.rmtree(folder)
    for path in tiered.store.rglob("manifest"):
        path.unlink()
    tiered.broker.start()
    consume(tiered.broker.bootstrap, 4000)
    assert tiered.broker.metric("shoal_remote_segments_rebuilt_total") >= 2
    assert len(manifests(tiered.store)) == 1


@pytest.mark.nightly
def test_orphans_are_swept_after_the_grace_period(tiered: Tiered) -> None:
    copied(tiered)
    first, second = [o for o in tiered.objects() if "/t-" in str(o)][:2]
    for name, old in (("A" * 21 + "Q", True), ("A" * 21 + "g", False)):
        orphan = first.with_name(f"{first.name[:20]}-{name}.segment")
        shutil.copy(second, orphan)
        if old:
            age(orphan)
    eventually(
        lambda: (
            tiered.broker.metric("shoal_remote_orphans") == 1
            and tiered.broker.metric("shoal_remote_orphans_deleted_total") == 1
        ),
        timeout_s=TIMEOUT_S,
    )
    assert [o.name[21:43] for o in tiered.objects() if o.name[21:24] == "AAA"] == ["A" * 21 + "g"]
    consume(tiered.broker.bootstrap, 4000)


def test_shoal_storage(tiered: Tiered) -> None:
    shoal = Shoal(tiered.broker.bootstrap)
    assert "No topic is tiered" in shoal.says("storage", "status")
    copied(tiered)
    shoal.run("topics", "create", "plain")
    (local_start,) = tiered.local_logs()
    (row,) = shoal.json("storage", "status")
    assert (row["topic"], row["partition"], row["start"], row["end"]) == ("t", 0, 0, 4000)
    assert row["local_start"] == row["copied_to"] == local_start
    assert row["not_copied"] == 4000 - local_start
    assert row["segments"] == len(tiered.objects())
    assert 0.9 < row["bytes"] / sum(sizes(tiered.objects()).values()) <= 1
    rows = shoal.json("storage", "segments", "t")
    assert [r["base_offset"] for r in rows] == tiered.bases()
    assert {r["state"] for r in rows} == {"COPY_SEGMENT_FINISHED"}
    keys = {str(path.relative_to(tiered.store)) for path in tiered.objects()}
    assert {r["key"] for r in rows} == keys
    assert "plain is not tiered" in shoal.refusal("storage", "segments", "plain")
    assert "No problems" in shoal.says("storage", "check")


@pytest.mark.nightly
def test_shoal_storage_check_finds_and_repairs(tiered: Tiered) -> None:
    shoal = Shoal(tiered.broker.bootstrap)
    copied(tiered)
    tiered.broker.kill9()  # It would delete the orphan itself.
    configs = settings(tiered.store)
    broker = ShoalProcess(tiered.broker.data_dir, configs=configs).start()
    try:
        shoal = Shoal(broker.bootstrap)
        # Its next check is in 6 hours.
        lists = 'shoal_remote_store_requests_total{operation="list"}'
        eventually(lambda: broker.metric(lists) >= 1, timeout_s=TIMEOUT_S)
        first, second = tiered.objects()[:2]
        orphan = first.with_name(f"{first.name[:20]}-{'A' * 21}Q.segment")
        young = first.with_name(f"{first.name[:20]}-{'A' * 21}g.segment")
        for path in (orphan, young):
            shutil.copy(second, path)
        age(orphan)
        aside = first.with_suffix(".aside")
        first.rename(aside)
        found = shoal.run("storage", "check", status=1)
        assert "3 problems" in found.stderr
        repaired = [("missing", ""), ("orphan", ""), ("orphan", "deleted")]
        assert problems(shoal, "--repair") == repaired
        assert (orphan.exists(), young.exists()) == (False, True)
        assert problems(shoal, "--repair", "--grace=0s") == [("missing", ""), ("orphan", "deleted")]
        aside.rename(first)
        leave_gone_topic(tiered.store)
        assert problems(shoal, "--repair") == [("topic gone", "")] * 2
        assert problems(shoal, "--delete-gone-topics") == [("topic gone", "deleted")] * 2
        assert "No problems" in shoal.says("storage", "check")
        next(tiered.store.rglob("manifest")).unlink()
        assert problems(shoal) == [("manifest missing", "")]
        message = shoal.refusal("storage", "check", "--url=ftp://x", status=1)
        assert "unknown scheme" in message
    finally:
        broker.stop()


def leave_gone_topic(store: Path) -> None:
    """Add old objects of a topic that does not exist."""
    (cluster,) = store.iterdir()
    folder = cluster / f"gone-{'A' * 21}Q" / "0"
    folder.mkdir(parents=True)
    for name in ("manifest", f"{0:020d}-{'A' * 21}Q.segment"):
        (folder / name).write_bytes(b"x")
        age(folder / name)


def problems(shoal: Shoal, *words: str) -> list[tuple[str, str]]:
    """Return the problems that `shoal storage check` finds, and what it did."""
    done = shoal.start_to_end("storage", "check", "-o", "json", *words)
    return sorted((row["problem"], row["done"] or "") for row in json.loads(done.stdout))


def test_metrics_have_the_labels_of_their_page(tiered: Tiered) -> None:
    copied(tiered)
    copies = len(tiered.objects())
    consume(tiered.broker.bootstrap, 4000)
    tiered.admin.delete_records([TopicPartition("t", 0, 2500)])
    eventually(lambda: tiered.bases()[0] > 0, timeout_s=TIMEOUT_S)
    prefix = "kafka_server_BrokerTopicMetrics_Remote"
    found: dict[str, set[str]] = {}
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(tiered.broker.scrape()):
        for sample in family.samples:
            if sample.name.startswith((prefix, "shoal_remote_")):
                found.setdefault(sample.name, set()).update(sample.labels)
                values[sample.name] = values.get(sample.name, 0) + sample.value
    assert {
        n: labels for n, labels in found.items() if set(metrics_page.find_labels(n)) != labels
    } == {}
    assert values[f"{prefix}CopyRequestsPerSec_total"] == copies
    assert values[f"{prefix}CopyBytesPerSec_total"] > 3_000_000
    assert values[f"{prefix}FetchBytesPerSec_total"] > 3_000_000
    assert values[f"{prefix}DeleteRequestsPerSec_total"] >= 1
    assert values[f"{prefix}LogMetadataCount"] == len(tiered.objects())
    assert values[f"{prefix}CopyLagSegments"] == 0
    assert values["shoal_remote_chunk_cache_hits_total"] > 0
    assert values["shoal_remote_failing_partitions"] == 0
    assert values["shoal_remote_store_bytes_total"] > 6_000_000


@pytest.mark.nightly
def test_a_store_that_is_away_is_seen_in_the_metrics(tiered: Tiered) -> None:
    copied(tiered)
    aside = tiered.store.parent / "aside"
    shutil.move(tiered.store, aside)
    tiered.store.write_text("not a directory")
    produce(tiered.broker.bootstrap, 3000, start=4000)
    failing = "shoal_remote_failing_partitions"
    eventually(lambda: tiered.broker.metric(failing) == 1, timeout_s=TIMEOUT_S)
    tiered.store.unlink()
    shutil.move(aside, tiered.store)
    eventually(lambda: tiered.broker.metric(failing) == 0, timeout_s=TIMEOUT_S)
    consume(tiered.broker.bootstrap, 7000)


@pytest.mark.nightly
def test_the_operator_creates_a_tiered_topic_and_sees_the_store(tiered: Tiered) -> None:
    """A QueueTopic's fields become configs, and the brokers' metrics the condition."""
    spec = {
        "partitions": 1,
        "tiered": True,
        "localRetention": {"size": "1"},
        "config": {"segment.bytes": str(MB), "retention.ms": "-1"},
    }
    resource: Any = {"metadata": {"name": "t"}, "spec": spec}
    wanted = topics.decide(resource, None)
    url = f"{tiered.broker.metrics_url}/"

    async def create_and_look() -> TieredHealth | None:
        brokers = Brokers(tiered.broker.bootstrap, {1: url})
        try:
            known = await brokers.describe_topics(["t"])
            if not known:
                assert not await brokers.create_topics([topics.make_new_topic(resource)])
                known = await brokers.describe_topics(["t"])
            assert known["t"].config == wanted.config
            return await brokers.fetch_tiered_health()
        finally:
            await brokers.close()

    assert asyncio.run(create_and_look()) is not None
    produce(tiered.broker.bootstrap, 4000)
    eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
    found = asyncio.run(create_and_look())
    assert found is not None
    assert found.segments == len(tiered.objects())
    assert 0.9 < found.size_bytes / sum(sizes(tiered.objects()).values()) <= 1
    assert (found.failing_partitions, found.missing_objects) == (0, 0)
    assert tiered_health.build_condition(found).holds
    tiered.broker.kill9()
    assert asyncio.run(look(tiered.broker.bootstrap, url)) is None


async def look(bootstrap: str, url: str) -> TieredHealth | None:
    brokers = Brokers(bootstrap, {1: url})
    try:
        return await brokers.fetch_tiered_health()
    finally:
        await brokers.close()
