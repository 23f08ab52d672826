"""Apache Kafka's own command-line tools, run with java from the jars that `make java` brings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from commands import RunningCommand

LIBRARY = Path(__file__).parent / "compat" / "lib"
#: Classes that the first tool loaded, ready for those that follow: halves the start of a JVM.
ARCHIVE = LIBRARY / "tools.jsa"
RUN_TIMEOUT_S = 180
#: What each script of Kafka's `bin` starts.
CLASSES = {
    "kafka-broker-api-versions": "BrokerApiVersionsCommand",
    "kafka-client-metrics": "ClientMetricsCommand",
    "kafka-cluster": "ClusterTool",
    "kafka-console-consumer": "consumer.ConsoleConsumer",
    "kafka-console-producer": "ConsoleProducer",
    "kafka-console-share-consumer": "consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "ConsumerPerformance",
    "kafka-delete-records": "DeleteRecordsCommand",
    "kafka-dump-log": "DumpLogSegments",
    "kafka-features": "FeatureCommand",
    "kafka-get-offsets": "GetOffsetShell",
    "kafka-groups": "GroupsCommand",
    "kafka-leader-election": "LeaderElectionCommand",
    "kafka-log-dirs": "LogDirsCommand",
    "kafka-metadata-quorum": "MetadataQuorumCommand",
    "kafka-producer-perf-test": "ProducerPerformance",
    "kafka-reassign-partitions": "reassign.ReassignPartitionsCommand",
    "kafka-share-consumer-perf-test": "ShareConsumerPerformance",
    "kafka-share-groups": "consumer.group.ShareGroupCommand",
    "kafka-topics": "TopicCommand",
    "kafka-transactions": "TransactionsCommand",
    "kafka-verifiable-consumer": "VerifiableConsumer",
    "kafka-verifiable-producer": "VerifiableProducer",
    "kafka-verifiable-share-consumer": "VerifiableShareConsumer",
}


def absent() -> str:
    """Why Kafka's tools cannot run here, and what helps; empty where they can."""
    if shutil.which("java") is None:
        return "no java on the PATH: install a JRE of 17 or newer"
    if not list(LIBRARY.glob("kafka-tools-*.jar")):
        return "no Kafka in tests/compat/lib: run `make java`"
    return ""


def java(*words: str, heap: str = "256m") -> list[str]:
    """A command line that starts a class of Kafka's, for a short life."""
    return [
        "java",
        f"-Xmx{heap}",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Dlog4j2.level=OFF",
        "-cp",
        f"{LIBRARY}/*",
        *words,
    ]


def command(script: str, *words: str) -> list[str]:
    """A command line that starts a tool, by the name of its script in Kafka's `bin`."""
    archive = "SharedArchiveFile" if ARCHIVE.exists() else "ArchiveClassesAtExit"
    tool = CLASSES.get(script)
    main = f"org.apache.kafka.tools.{tool}" if tool else "kafka.admin.ConfigCommand"
    return java("-Xlog:disable", f"-XX:{archive}={ARCHIVE}", main, *words)


class KafkaTools:
    """The tools against one broker; `tool` is a script's name without `kafka-`."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def _words(self, tool: str, words: tuple[str, ...]) -> list[str]:
        return command(f"kafka-{tool}", "--bootstrap-server", self.bootstrap, *words)

    def run(self, tool: str, *words: str, stdin: str = "", status: int = 0) -> str:
        """Run to the end, expect that exit status; all it said."""
        done = subprocess.run(
            self._words(tool, words),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == status, (tool, words, done.returncode, said)
        return said

    def rows(self, tool: str, *words: str) -> list[dict[str, str]]:
        """The rows of the tables it prints, by the names of their columns."""
        return table(self.run(tool, *words))

    def start(self, tool: str, *words: str) -> RunningCommand:
        """Start a tool that goes on until it is interrupted."""
        return RunningCommand(self._words(tool, words), dict(os.environ))


def table(text: str) -> list[dict[str, str]]:
    """Rows of blank-separated columns under a head in capitals; an empty line ends a table."""
    found: list[dict[str, str]] = []
    head: list[str] = []
    for line in text.splitlines():
        cells = line.split()
        if not cells:
            head = []
        elif not head:
            head = cells if cells[0].isupper() else []
        else:
            found.append(dict(zip(head, cells, strict=False)))
    return found


def events(lines: list[str], name: str) -> list[dict[str, Any]]:
    """What a verifiable client has told under that name."""
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return [event for event in told if event["name"] == name]


def objects(text: str) -> list[dict[str, Any]]:
    """JSON objects that a record formatter printed one behind the other."""
    found, at, decoder = [], text.find("{"), json.JSONDecoder()
    while at >= 0:
        value, end = decoder.raw_decode(text, at)
        found.append(value)
        at = text.find("{", end)
    return found
