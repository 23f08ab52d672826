"""Kafka's verifiable clients on a cluster of three, one of whose brokers is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster.test_replication import CONFIGS, in_sync
from support.brokers.clusters import ShoalCluster, running
from support.kafka.kafka_tools import KafkaTools, events
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from support.brokers.commands import RunningCommand

pytestmark = pytest.mark.java

COUNT, RATE = 2_400, 300


def count(command: RunningCommand, name: str) -> int:
    """Count the records in events of this name, without failed acknowledgements."""
    all_events = events(list(command.lines), name)
    return sum(event["count"] for event in all_events if event.get("success", True))


def offsets(command: RunningCommand, name: str, *, success: bool = True) -> set[tuple[int, int]]:
    """Return partition and offset of each record in events of this name."""
    return {
        (partition["partition"], offset)
        for event in events(list(command.lines), name)
        if event.get("success", True) == success
        for partition in event["partitions"]
        for offset in partition["offsets"]
    }


def acknowledged(command: RunningCommand) -> set[tuple[int, int]]:
    return offsets(command, "offsets_acknowledged")


def unanswered(command: RunningCommand) -> set[tuple[int, int]]:
    """Return the records whose acknowledgements all failed."""
    failed = offsets(command, "offsets_acknowledged", success=False)
    return failed - acknowledged(command)


def lags(tools: KafkaTools, group: str) -> list[str]:
    """Return the lag of each share partition, as `kafka-share-groups` prints it."""
    return [row["LAG"] for row in tools.rows("share-groups", "--describe", "--group", group)]


@pytest.mark.nightly
def test_the_verifiable_clients_lose_nothing_with_a_killed_leader(tmp_path: Path) -> None:
    with running(ShoalCluster(tmp_path, configs=CONFIGS)) as cluster:
        tools = KafkaTools(cluster.bootstrap)
        # By default the tool's producer gives up at the first error.
        settings = tmp_path / "producer.properties"
        settings.write_text("retries=2147483647\nenable.idempotence=true\n")
        tools.run(
            "topics", "--create", "--topic", "t", "--partitions", "3", "--replication-factor", "3"
        )
        writer = tools.start(
            "verifiable-producer",
            "--topic",
            "t",
            "--max-messages",
            str(COUNT),
            "--throughput",
            str(RATE),
            "--acks",
            "-1",
            "--command-config",
            str(settings),
        )
        reader = tools.start(
            "verifiable-consumer", "--topic", "t", "--group-id", "g", "--reset-policy", "earliest"
        )
        sharer = tools.start(
            "verifiable-share-consumer",
            "--topic",
            "t",
            "--group-id",
            "s",
            "--offset-reset-strategy",
            "earliest",
            "--acknowledgement-mode",
            "sync",
        )
        try:
            eventually(lambda: count(reader, "records_consumed") > 100)
            eventually(lambda: count(sharer, "offsets_acknowledged") > 100)
            victim = cluster.topic(1, "t")[0].leader_id
            led = {p.partition_index for p in cluster.topic(1, "t") if p.leader_id == victim}
            cluster.nodes[victim].kill9()
            sent = eventually(lambda: events(list(writer.lines), "tool_data"), timeout_s=120)[0]
            lost = unanswered(sharer)
            cluster.nodes[victim].start()
            eventually(lambda: in_sync(cluster, victim, "t"))
            assert (sent["sent"], sent["acked"]) == (COUNT, COUNT)
            assert not events(list(writer.lines), "producer_send_error")
            eventually(lambda: count(reader, "records_consumed") >= COUNT)
            # The killed broker may have stored an acknowledgement whose answer it never sent. The
            # client reports it as failed, and the group does not deliver its records again.
            eventually(lambda: len(acknowledged(sharer) | unanswered(sharer)) == COUNT)
            eventually(lambda: lags(tools, "s") == ["0"] * 3)
            assert {partition for partition, _ in lost} <= led
            assert unanswered(sharer) <= lost
            assert offsets(sharer, "records_consumed") == acknowledged(sharer) | unanswered(sharer)
        finally:
            for command in (writer, reader, sharer):
                command.kill()
