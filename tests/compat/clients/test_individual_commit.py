"""Groups with individual commits, seen by Kafka's tools and coordinator, and by our commands."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer, IndividualCommit
from shoal.client.consume.start_offsets import Reset
from shoal.coordinator.group.offsets import individual_commit
from shoal.coordinator.group.offsets.individual_commit import KeyRangeProgress
from shoal.coordinator.group.records import RecordType, encode_record
from shoal.protocol.api import ApiKey
from shoal.record.finished_offsets import FinishedOffsets
from shoal.record.records import build_batch
from support.brokers.commands import Shoal
from support.brokers.wireclient import WireClient
from support.kafka.kafka_tools import KafkaTools, dump_log
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

RECORDS = 20
#: Offsets that the member does not finish.
KEPT = (3, 4, 9)
_names = (f"individual-{i}" for i in itertools.count())


@pytest.fixture
def topic(tools_broker: ShoalProcess) -> str:
    name = next(_names)
    with WireClient(tools_broker.bootstrap) as client:
        client.create_topic(name, 1)
        client.produce(name, *(b"%d" % value for value in range(RECORDS)))
    return name


def consumed(
    bootstrap: str,
    topic: str,
    *,
    kept: tuple[int, ...] = (),
    count: int = RECORDS,
    meanwhile: Callable[[], Any] = lambda: None,
) -> list[int]:
    """Have a member finish all records but `kept`; return the offsets that it got. Call `meanwhile`
    in a thread while it is a member."""

    async def main() -> list[int]:
        found: list[int] = []
        async with (
            Client(bootstrap) as client,
            await GroupConsumer.join(
                client.cluster,
                f"g-{topic}",
                [topic],
                reset=Reset.EARLIEST,
                individual_commit=IndividualCommit(interval_ms=1),
            ) as consumer,
        ):
            while len(found) < count:
                for one in await consumer.poll():
                    found.append(one.offset)
                    if one.offset not in kept:
                        consumer.finish(one)
            await consumer.commit()
            await asyncio.to_thread(meanwhile)
        return found

    return asyncio.run(main())


@pytest.mark.java
def test_kafka_consumer_groups_describes_and_resets(tools: KafkaTools, topic: str) -> None:
    of = ("--group", f"g-{topic}")

    def describe() -> tuple[str, str]:
        (row,) = tools.rows("consumer-groups", "--describe", *of)
        return row["CURRENT-OFFSET"], row["LAG"]

    described: list[tuple[str, str]] = []
    got = consumed(
        tools.bootstrap, topic, kept=KEPT, meanwhile=lambda: described.append(describe())
    )
    assert got == list(range(RECORDS))
    assert [*described, describe()] == [("3", "17"), ("3", "17")]
    assert consumed(tools.bootstrap, topic, kept=KEPT, count=3) == list(KEPT)

    reset = ("consumer-groups", "--reset-offsets", *of, "--topic", topic)
    tools.run(*reset, "--to-offset", "2", "--execute")
    assert describe() == ("2", "18")
    # A reset resets what was finished above, too.
    assert consumed(tools.bootstrap, topic, count=RECORDS - 2) == list(range(2, RECORDS))
    assert describe() == (str(RECORDS), "0")
    said = tools.run("consumer-groups", "--delete", *of)
    assert "was successful" in said
    assert consumed(tools.bootstrap, topic) == list(range(RECORDS))


def test_another_client_starts_at_the_stable_offset(tools_broker: ShoalProcess, topic: str) -> None:
    consumed(tools_broker.bootstrap, topic, kept=KEPT)
    consumer = Consumer(
        {
            "bootstrap.servers": tools_broker.bootstrap,
            "group.id": f"g-{topic}",
            "group.protocol": "consumer",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    got: list[int] = []

    def all_read() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            got.append(message.offset() or 0)
        return len(got) == RECORDS - 3

    eventually(all_read, what="the records above the stable offset")
    consumer.close()
    assert got == list(range(3, RECORDS))


@pytest.mark.java
def test_kafkas_dump_tool_and_ours(tools_broker: ShoalProcess, topic: str) -> None:
    consumed(tools_broker.bootstrap, topic, kept=KEPT)
    logs = sorted(tools_broker.data_dir.glob("__consumer_offsets-*/*.log"))
    files = ",".join(str(log) for log in logs if log.stat().st_size)
    dumped = dump_log("--offsets-decoder", "--files", files)
    (line, *_) = [
        line
        for line in dumped.splitlines()
        if f'"group":"g-{topic}"' in line and '"offset":3,' in line
    ]
    assert '"version":"4"' in line
    assert "Could not" not in dumped

    said = Shoal(tools_broker.bootstrap).says("dump", "--topic", "__consumer_offsets")
    rows = [json.loads(line) for line in said.splitlines()]
    values = [
        row["value"]
        for row in rows
        if row.get("type") == "OFFSET_COMMIT" and row["key"]["group"] == f"g-{topic}"
    ]
    (key_range,) = values[-1]["key_ranges"]
    assert (values[-1]["offset"], key_range["finished"]) == (3, "5-8,10-19")


@pytest.mark.nightly
@pytest.mark.java
def test_kafkas_coordinator_loads_the_records(tmp_path: Path) -> None:
    """Kafka's broker reads a record with finished offsets from its log, and has its offset. It
    skips records of Shoal's own."""
    kafka = KafkaProcess(tmp_path / "node").start()
    try:
        with WireClient(kafka.bootstrap, client_id="__admin_client") as client:
            client.create_topic("t", 1)
            find = {"key_type": 0, "coordinator_keys": ["g"]}

            def found() -> bool:
                (row,) = client.call(ApiKey.FIND_COORDINATOR, 6, find).coordinators
                return not row.error_code

            eventually(found, what="a coordinator")
            progress = KeyRangeProgress(3, FinishedOffsets.from_ranges([(5, 8), (10, 19)]), 1)
            value = {
                "offset": 3,
                "leader_epoch": -1,
                "metadata": "",
                "commit_timestamp": int(time.time() * 1000),
                "topic_id": None,
                "key_ranges": individual_commit.to_wire(
                    individual_commit.make_single_range(progress)
                ),
            }
            key = {"group": "g", "topic": "t", "partition": 0}
            stored = encode_record(RecordType.OFFSET_COMMIT, key, value)
            # Kafka ignores what a transaction has added to key ranges.
            ignored = encode_record(
                RecordType.KEY_RANGES_IN_TRANSACTION,
                {**key, "producer_id": 1},
                {**value, "key_ranges": []},
            )
            removed = encode_record(
                RecordType.KEY_RANGES_IN_TRANSACTION, {**key, "producer_id": 2}, None
            )
            now_ms = int(time.time() * 1000)
            batch = bytes(build_batch([(now_ms, *one, ()) for one in (ignored, removed, stored)]))
            for partition in range(4):
                # The coordinator of one partition may lead before the leaders of the others.
                eventually(
                    lambda p=partition: (
                        client.produce("__consumer_offsets", partition=p, records=batch).error_code
                        == 0
                    )
                )
        kafka.kill9()
        kafka.start()
        (row,) = KafkaTools(kafka.bootstrap).rows("consumer-groups", "--describe", "--group", "g")
        assert row["CURRENT-OFFSET"] == "3"
        said = (kafka.directory / "out").read_text()
        assert "Unknown" not in said
        assert "ERROR" not in said
    finally:
        kafka.kill9()


def test_describe_names_the_gap(tools_broker: ShoalProcess, topic: str) -> None:
    shoal = Shoal(tools_broker.bootstrap)
    described: list[str] = []
    begun_s = time.monotonic()
    words = ("groups", "describe", f"g-{topic}")
    consumed(
        tools_broker.bootstrap,
        topic,
        kept=KEPT,
        meanwhile=lambda: described.extend([shoal.says(*words), _json(shoal, *words)]),
    )
    table, as_json = described
    assert "Unfinished records below finished ones" in table
    (gap,) = json.loads(as_json)[0]["gaps"]
    (member,) = json.loads(as_json)[0]["members"]
    assert gap.pop("age_s") < time.monotonic() - begun_s
    assert gap == {
        "topic": topic,
        "partition": 0,
        "gap": "3-4",
        "finished_above": 14,
        "ranges": 2,
        "member": member["member"],
        "key_ranges": None,
    }
    (gap,) = json.loads(_json(shoal, *words))[0]["gaps"]
    assert gap["member"] is None
    consumed(tools_broker.bootstrap, topic, count=3)
    assert json.loads(_json(shoal, *words))[0]["gaps"] == []
    assert "Unfinished" not in shoal.says(*words)


def _json(shoal: Shoal, *words: str) -> str:
    return shoal.says(*words, "--format", "json")
