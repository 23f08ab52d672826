"""Apache Kafka's own command-line tools, run with java from the jars of `make java`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from support.brokers.commands import RunningCommand
from support.kafka import java_classes, tool_runner

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = java_classes.LIBRARY
java = java_classes.java
RUN_TIMEOUT_S = 180
#: Beginnings of the names of tools that read standard input or keep a state in their class. The
#: others run in a JVM that they share.
OWN_PROCESS = ("console-", "consumer-perf", "producer-perf", "share-consumer-perf", "verifiable-")
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


def command(script: str, *words: str) -> list[str]:
    """Return a command line that starts a tool, by the name of its script in Kafka's `bin`."""
    return java(_class_of(script), *words)


def _class_of(script: str) -> str:
    tool = CLASSES.get(script)
    return f"org.apache.kafka.tools.{tool}" if tool else "org.apache.kafka.tools.ConfigCommand"


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

    def _words(self, words: tuple[str, ...]) -> tuple[str, ...]:
        return (self._option, self.bootstrap, *self._login, *words)

    def run(self, tool: str, *words: str, stdin: str = "", status: int = 0) -> str:
        """Run to the end, expect this exit status, and return all output."""
        given = self._words(words)
        if tool.startswith(OWN_PROCESS):
            ended = _run(command(f"kafka-{tool}", *given), stdin)
        else:
            main = _class_of(f"kafka-{tool}")
            ended = tool_runner.shared().run(main, *given, timeout_s=RUN_TIMEOUT_S)
        said = ended.out + ended.errors
        assert ended.status == status, (tool, words, ended.status, said)
        return said

    def rows(self, tool: str, *words: str) -> list[dict[str, str]]:
        """Return the rows of the tables that the tool prints, by column name."""
        return table(self.run(tool, *words))

    def start(self, tool: str, *words: str) -> RunningCommand:
        """Start a tool that runs until it is interrupted."""
        return RunningCommand(command(f"kafka-{tool}", *self._words(words)), dict(os.environ))


def _run(command: list[str], stdin: str) -> tool_runner.Ended:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
    )
    return tool_runner.Ended(done.returncode, done.stdout, done.stderr)


def dump_log(*words: str) -> str:
    """Return what `kafka-dump-log` prints; fail if it fails."""
    main = _class_of("kafka-dump-log")
    ended = tool_runner.shared().run(main, *words, timeout_s=RUN_TIMEOUT_S)
    assert ended.status == 0, (words, ended.status, ended.out, ended.errors)
    return ended.out + ended.errors


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
