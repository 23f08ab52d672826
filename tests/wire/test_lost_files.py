"""A data directory that lacks files or has damaged ones: nothing is deleted, no other cluster
begins in it, and the error names the file and what to do."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from shoal.log.uuids import format_uuid
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

METADATA_LOG = "__cluster_metadata-0"


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files except the lock."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def stopped(broker: ShoalProcess) -> ShoalProcess:
    """Return a stopped broker with one record in the topic `t`."""
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")
        assert client.produce("t", b"kept").error_code == 0
    broker.stop()
    return broker


def read(broker: ShoalProcess, topic: str = "t") -> int:
    with WireClient(broker.bootstrap) as client:
        return int(client.fetch(topic, 0).high_watermark)


@pytest.mark.parametrize("loses", ["directory", "contents", "directory, without topics"])
def test_a_lost_metadata_log_begins_no_new_cluster(stopped: ShoalProcess, loses: str) -> None:
    """Found from outside: the node removed the directories of all its topics."""
    lost = stopped.data_dir / METADATA_LOG
    aside = stopped.data_dir.parent / "aside"
    lost.rename(aside)
    if loses == "contents":
        lost.mkdir()
    if "without" in loses:
        shutil.rmtree(stopped.data_dir / "t-0")
    before = files_of(stopped.data_dir)
    said = stopped.refusal()
    assert f"no metadata log in {lost}" in said
    assert "Restore that directory" in said
    assert files_of(stopped.data_dir) == before
    if "without" not in loses:
        assert "logs of topics (t-0)" in said
        shutil.rmtree(lost, ignore_errors=True)
        aside.rename(lost)
        stopped.start()
        assert read(stopped) == 1


def test_a_first_start_that_was_interrupted_is_repeated(broker: ShoalProcess) -> None:
    broker.stop()
    for path in (broker.data_dir / METADATA_LOG).iterdir():
        path.unlink()
    broker.start()
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")


def test_a_lost_identity_is_not_invented(stopped: ShoalProcess) -> None:
    path = stopped.data_dir / "meta.properties"
    identity = path.read_text()
    path.unlink()
    before = files_of(stopped.data_dir)
    said = stopped.refusal()
    assert f"{path} is missing" in said
    assert 'or write it again: the lines "version=1", "node.id="' in said
    assert files_of(stopped.data_dir) == before
    path.write_text(identity)
    stopped.start()
    assert read(stopped) == 1


@pytest.mark.parametrize(
    "text",
    [b"", b"\0" * 80, b"\xff\xfe", b"version=1\nnode.id=1\n"],
    ids=["empty", "zeros", "no text", "a part"],
)
def test_a_damaged_identity_is_named(stopped: ShoalProcess, text: bytes) -> None:
    path = stopped.data_dir / "meta.properties"
    path.write_bytes(text)
    said = stopped.refusal()
    assert f"{path} is damaged: it lacks cluster.id" in said
    assert "Restore it from a backup" in said
    assert path.read_bytes() == text


def test_a_damaged_topic_id_is_named_and_its_records_are_kept(stopped: ShoalProcess) -> None:
    path = stopped.data_dir / "t-0" / "partition.metadata"
    whole = path.read_bytes()
    path.write_bytes(b"version: 0\ntopic_id: \xff\xff")
    stopped.start()
    # The other partitions are served, and this one as soon as the file is whole.
    with WireClient(stopped.bootstrap) as client:
        client.create_topic("other")
        assert client.produce("other", b"v").error_code == 0
        assert client.fetch("t", 0).error_code != 0
        assert any(f"{path} is damaged" in line for line in stopped.log)
        path.write_bytes(whole)
        eventually(lambda: client.fetch("t", 0).error_code == 0)
    assert read(stopped) == 1


@pytest.mark.parametrize("text", [None, b"", b"\0" * 40], ids=["missing", "empty", "zeros"])
def test_a_topic_id_that_a_power_loss_took_is_written_again(
    stopped: ShoalProcess, text: bytes | None
) -> None:
    """It is durable only with the first sync of records."""
    path = stopped.data_dir / "t-0" / "partition.metadata"
    whole = path.read_bytes()
    path.unlink()
    if text is not None:
        path.write_bytes(text)
    stopped.start()
    assert read(stopped) == 1
    assert path.read_bytes() == whole


def test_logs_that_the_metadata_does_not_know_are_kept_as_strays(
    stopped: ShoalProcess,
) -> None:
    """One of an unknown topic, one of an unknown partition, and one of an earlier topic."""
    folder = stopped.data_dir
    for name in ("gone-0", "t-7"):
        shutil.copytree(folder / "t-0", folder / name)
    earlier = (folder / "t-0" / "partition.metadata").read_bytes()
    (folder / "t-0" / "partition.metadata").write_text(
        f"version: 0\ntopic_id: {format_uuid(UUID(int=99))}"
    )
    records = (folder / "t-0" / "00000000000000000000.log").read_bytes()
    assert records
    stopped.start()
    strays = sorted(path.name.partition(".")[0] for path in folder.glob("*-stray"))
    assert strays == ["gone-0", "t-0", "t-7"]
    for path in folder.glob("*-stray"):
        assert (path / "00000000000000000000.log").read_bytes() == records
    assert read(stopped) == 0
    assert (folder / "t-0" / "partition.metadata").read_bytes() == earlier
    (line,) = [line for line in stopped.log if "renamed to -stray" in line]
    assert "count=3" in line
    assert stopped.metric("shoal_log_stray_directories") == 3
    # They stay over restarts.
    stopped.restart()
    assert stopped.metric("shoal_log_stray_directories") == 3


def test_strays_are_removed_after_the_configured_time(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    configs = {"log.retention.check.interval.ms": "50", "shoal.log.stray.retention.ms": "0"}
    broker = start_broker()
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")
        client.produce("t", b"v")
        broker.kill9()
    (broker.data_dir / "t-0").rename(broker.data_dir / "gone-0")
    # Kafka's names have no time, so nobody knows how old it is.
    kafkas = broker.data_dir / "u-0.3b2a1f5c9d8e47f6a0b1c2d3e4f50617-stray"
    kafkas.mkdir()
    broker.configs = configs
    broker.start()
    eventually(lambda: list(broker.data_dir.glob("*-stray")) == [kafkas])
    assert any("metadata does not know is removed" in line for line in broker.log)
