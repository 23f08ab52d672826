"""Apache Kafka's own command-line tools, run with java from the jars of `make java`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from commands import RunningCommand

LIBRARY = Path(__file__).parent / "compat" / "lib"
#: Archive of the classes that the first tool loaded. It halves the start of the following JVMs.
ARCHIVE = LIBRARY / "tools.jsa"
RUN_TIMEOUT_S = 180
#: The class that each script of Kafka's `bin` starts.
CLASSES = {
    "kafka-acls": "AclCommand",
    "kafka-broker-api-versions": "BrokerApiVersionsCommand",
    "kafka-client-metrics": "ClientMetricsCommand",
    "kafka-cluster": "ClusterTool",
    "kafka-console-consumer": "consumer.ConsoleConsumer",
    "kafka-console-producer": "ConsoleProducer",
    "kafka-console-share-consumer": "consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "ConsumerPerformance",
    "kafka-delegation-tokens": "DelegationTokenCommand",
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
    "kafka-streams-groups": "streams.StreamsGroupCommand",
    "kafka-topics": "TopicCommand",
    "kafka-transactions": "TransactionsCommand",
    "kafka-verifiable-consumer": "VerifiableConsumer",
    "kafka-verifiable-producer": "VerifiableProducer",
    "kafka-verifiable-share-consumer": "VerifiableShareConsumer",
}


def absent() -> str:
    """Return why Kafka's tools cannot run here, with the remedy; empty if they can."""
    if shutil.which("java") is None:
        return "no java on the PATH: install a JRE of 17 or newer"
    if not list(LIBRARY.glob("kafka-tools-*.jar")):
        return "no Kafka in tests/compat/lib: run `make java`"
    return ""


def java(*words: str, heap: str = "256m") -> list[str]:
    """Return a command line that starts a class of Kafka's, tuned for short runs."""
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
    """Return a command line that starts a tool, by the name of its script in Kafka's `bin`."""
    archive = "SharedArchiveFile" if ARCHIVE.exists() else "ArchiveClassesAtExit"
    tool = CLASSES.get(script)
    main = f"org.apache.kafka.tools.{tool}" if tool else "kafka.admin.ConfigCommand"
    return java("-Xlog:disable", f"-XX:{archive}={ARCHIVE}", main, *words)


class KafkaTools:
    """The tools against one broker, or one controller with `--bootstrap-controller`, with a file of
    client properties; `tool` is a script's name without `kafka-`."""

    def __init__(
        self,
        bootstrap: str,
        properties: Path | None = None,
        *,
        option: str = "--bootstrap-server",
    ) -> None:
        self.bootstrap = bootstrap
        self._option = option
        self._login = ("--command-config", str(properties)) if properties else ()

    def _words(self, tool: str, words: tuple[str, ...]) -> list[str]:
        where = (self._option, self.bootstrap, *self._login)
        return command(f"kafka-{tool}", *where, *words)

    def run(self, tool: str, *words: str, stdin: str = "", status: int = 0) -> str:
        """Run to the end, expect this exit status, and return all output."""
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
        """Return the rows of the tables that the tool prints, by column name."""
        return table(self.run(tool, *words))

    def start(self, tool: str, *words: str) -> RunningCommand:
        """Start a tool that runs until it is interrupted."""
        return RunningCommand(self._words(tool, words), dict(os.environ))


def table(text: str) -> list[dict[str, str]]:
    """Parse blank-separated columns below a header in capitals; an empty line ends a table."""
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
    """Return the events of this name that a verifiable client has printed."""
    all_events = [json.loads(line) for line in lines if line.startswith("{")]
    return [event for event in all_events if event["name"] == name]


def objects(text: str) -> list[dict[str, Any]]:
    """Parse consecutive JSON objects that a record formatter printed."""
    found, at, decoder = [], text.find("{"), json.JSONDecoder()
    while at >= 0:
        value, end = decoder.raw_decode(text, at)
        found.append(value)
        at = text.find("{", end)
    return found
