"""Kafka's console, performance and verifiable clients, and its dump tool on the resulting logs."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.kafka.kafka_tools import KafkaTools, dump_log, events, objects
from support.runs.conditions import ceiling, eventually

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

pytestmark = pytest.mark.java

#: A console ends when it has `--max-messages`; and after this time without a record.
PATIENT = ("--timeout-ms", "60000")
TOOLS = "org.apache.kafka.tools.consumer"
#: From a subscription to the first record, with Java's first requests; Kafka takes 5 s.
FIRST_RECORD_MS = 500


@pytest.fixture
def topic(tools: KafkaTools) -> str:
    """A topic of two partitions, which share groups `s-…` and `v-…` read from its beginning."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    tools.run("topics", "--create", "--topic", name, "--partitions", "2")
    return name


def from_the_beginning(tools: KafkaTools, group: str) -> None:
    tools.run("configs", "--alter", "--entity-type", "groups", "--entity-name", group,
              "--add-config", "share.auto.offset.reset=earliest")  # fmt: skip


def test_console_clients_and_the_state_they_leave(tools: KafkaTools, topic: str) -> None:
    lines = "".join(f"a:1,b:2|k{i}|v{i}\n" for i in range(50))
    parsing = [
        word
        for prop in ("parse.headers=true", "parse.key=true", "headers.delimiter=|",
                     "key.separator=|")
        for word in ("--reader-property", prop)
    ]  # fmt: skip
    assert tools.run("console-producer", "--topic", topic, *parsing, stdin=lines) == ""

    printing = [
        word
        for what in ("headers", "key", "partition", "offset")
        for word in ("--formatter-property", f"print.{what}=true")
    ]
    said = tools.run("console-consumer", "--topic", topic, "--from-beginning", "--group", "classic",
                     "--max-messages", "50", *PATIENT, *printing)  # fmt: skip
    rows = re.findall(r"^Partition:(\d)\tOffset:(\d+)\ta:1,b:2\tk(\d+)\tv(\d+)$", said, re.M)
    assert sorted(int(value) for _, _, key, value in rows if key == value) == list(range(50))
    said = tools.run("console-consumer", "--topic", topic, "--from-beginning", "--group", "k848",
                     "--max-messages", "50", *PATIENT,
                     "--command-property", "group.protocol=consumer")  # fmt: skip
    assert "Processed a total of 50 messages" in said
    commits = objects(
        tools.run("console-consumer", "--topic", "__consumer_offsets", "--from-beginning",
                  "--formatter", f"{TOOLS}.OffsetsMessageFormatter", "--timeout-ms", "4000",
                  status=0)
    )  # fmt: skip
    for group in ("classic", "k848"):
        mine = [c for c in commits if c["key"]["data"]["group"] == group and c["value"]]
        last = {c["key"]["data"]["partition"]: c["value"]["data"]["offset"] for c in mine}
        assert sum(last.values()) == 50

    group = f"s-{topic}"
    from_the_beginning(tools, group)
    share = ("console-share-consumer", "--topic", topic, "--group", group, *PATIENT)
    said = tools.run(*share, "--max-messages", "50", *printing, "--formatter-property",
                     "print.delivery=true")  # fmt: skip
    rows = re.findall(r"^Partition:\d\tOffset:\d+\t.*a:1,b:2\tk(\d+)\tv(\d+)$", said, re.M)
    assert sorted(int(value) for key, value in rows if key == value) == list(range(50))
    eventually(lambda: {r["LAG"] for r in tools.rows("share-groups", "--describe", "--group",
                                                     group)} == {"0"})  # fmt: skip
    states = objects(
        tools.run("console-consumer", "--topic", "__share_group_state", "--from-beginning",
                  "--formatter", f"{TOOLS}.group.share.ShareGroupStateMessageFormatter",
                  "--timeout-ms", "4000")
    )  # fmt: skip
    mine = [s for s in states if s["key"]["data"]["groupId"] == group]
    assert {s["key"]["type"] for s in mine} == {0, 1}
    ends = {s["key"]["data"]["partition"]: s["value"]["data"]["startOffset"] for s in mine}
    assert sum(ends.values()) == 50


def test_a_released_record_is_there_for_the_next_console(tools: KafkaTools, topic: str) -> None:
    group = f"s-{topic}"
    from_the_beginning(tools, group)
    tools.run("console-producer", "--topic", topic, stdin="poison\n")
    share = ("console-share-consumer", "--topic", topic, "--group", group, *PATIENT,
             "--max-messages", "1")  # fmt: skip
    said = tools.run(*share, "--release")
    assert "poison" in said
    assert "poison" in tools.run(*share, "--reject")
    rows = tools.rows("share-groups", "--describe", "--group", group)
    assert {r["LAG"] for r in rows} == {"0"}


@pytest.mark.nightly
def test_the_perf_tools(tools: KafkaTools, topic: str) -> None:
    said = tools.run("producer-perf-test", "--topic", topic, "--num-records", "20000",
                     "--record-size", "100", "--throughput", "-1")  # fmt: skip
    assert "20000 records sent" in said.splitlines()[-1]
    want = ("--topic", topic, "--num-records", "20000", "--timeout", "20000")
    for protocol in ("classic", "consumer"):
        of = ("--group", f"{protocol}-{topic}", "--command-property", f"group.protocol={protocol}")
        said = tools.run("consumer-perf-test", *want, *of)
        assert int(said.splitlines()[-1].split(", ")[4]) >= 20_000, said
    from_the_beginning(tools, f"s-{topic}")
    said = tools.run("share-consumer-perf-test", *want, "--group", f"s-{topic}")
    assert int(said.splitlines()[-1].split(", ")[5]) >= 20_000, said


@pytest.mark.nightly
def test_the_verifiable_clients(tools: KafkaTools, topic: str) -> None:
    sent = tools.run("verifiable-producer", "--topic", topic, "--max-messages", "40", "--acks",
                     "-1", "--value-prefix", "7")  # fmt: skip
    tool_data = events(sent.splitlines(), "tool_data")[0]
    assert (tool_data["sent"], tool_data["acked"]) == (40, 40)
    values = {event["value"] for event in events(sent.splitlines(), "producer_send_success")}
    assert values == {f"7.{i}" for i in range(40)}

    for protocol in ("classic", "consumer"):
        reader = tools.start("verifiable-consumer", "--topic", topic, "--group-id",
                             f"{protocol}-{topic}", "--group-protocol", protocol,
                             "--reset-policy", "earliest")  # fmt: skip
        try:
            eventually(
                lambda lines=reader.lines: sum(
                    e["count"] for e in events(list(lines), "records_consumed")
                ) == 40
            )  # fmt: skip
            eventually(
                lambda lines=reader.lines: sum(
                    o["offset"]
                    for e in events(list(lines), "offsets_committed")[-1:]
                    for o in e["offsets"]
                ) == 40
            )  # fmt: skip
            reader.interrupt()
            assert events(reader.lines, "shutdown_complete")
        finally:
            reader.kill()


@pytest.mark.nightly
def test_the_verifiable_share_consumer(tools: KafkaTools, topic: str) -> None:
    tools.run("verifiable-producer", "--topic", topic, "--max-messages", "40")
    worker = tools.start("verifiable-share-consumer", "--topic", topic, "--group-id", f"v-{topic}",
                         "--offset-reset-strategy", "earliest", "--acknowledgement-mode",
                         "sync")  # fmt: skip
    try:
        for name in ("records_consumed", "offsets_acknowledged"):
            eventually(
                lambda name=name: sum(e["count"] for e in events(list(worker.lines), name)) == 40
            )
        (ready,) = events(worker.lines, "offset_reset_strategy_set")
        first = events(worker.lines, "records_consumed")[0]
        assert first["timestamp"] - ready["timestamp"] < ceiling(FIRST_RECORD_MS)
        assert all(e["success"] for e in events(list(worker.lines), "offsets_acknowledged"))
    finally:
        worker.interrupt()


DECODED = {
    "--cluster-metadata-decoder": ("__cluster_metadata-0", '"type":"TOPIC_RECORD"'),
    "--offsets-decoder": ("__consumer_offsets-*", '"type":"1","data":{"group":"dumped"'),
    "--share-group-state-decoder": ("__share_group_state-*", '"groupId":"s-dumped"'),
    "--print-data-log": ("dumped-0", "payload: 49"),
}


def test_kafka_dump_log_of_the_brokers_directories(
    tools: KafkaTools, tools_broker: ShoalProcess
) -> None:
    """Each of Kafka's decoders reads the broker's files, while the broker is running."""
    tools.run("topics", "--create", "--topic", "dumped")
    tools.run("console-producer", "--topic", "dumped", stdin="".join(f"{i}\n" for i in range(50)))
    from_the_beginning(tools, "s-dumped")
    for tool, group in (("console-consumer", "dumped"), ("console-share-consumer", "s-dumped")):
        beginning = ("--from-beginning",) if tool == "console-consumer" else ()
        tools.run(tool, "--topic", "dumped", "--group", group, *beginning, "--max-messages", "50",
                  *PATIENT)  # fmt: skip
    for decoder, (directory, expected) in DECODED.items():
        files = [
            str(f)
            for d in sorted(Path(tools_broker.data_dir).glob(directory))
            for f in sorted(d.glob("*.log"))
            if f.stat().st_size
        ]
        said = dump_log(decoder, "--files", ",".join(files))
        assert expected in said, (decoder, said[-2000:])
        assert "isvalid: true" in said
        assert "isvalid: false" not in said
        for fault in ("Could not", "mismatch", "Error"):
            assert fault not in said, (decoder, fault)
