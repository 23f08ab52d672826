"""Streams groups (KIP-1071) against Apache Kafka, alternating in one run: `make bench-streams`.

Instances of a Kafka Streams application join a group and are killed with -9, with the default
settings of groups and clients. A broker's coordinator is measured with a large group, in a process
of its own and without clients (`streams_coordinator.py`). `--rounds N` shortens the run, `--only
WORD` selects rows by a word of their name, and `--side shoal` leaves Kafka out.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from brokers import LIBRARY, WAIT_S, Broker, Kafka, Shoal, describe_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from in_turn import in_turn
from line_process import LineProcess
from load_checks import LoadFailed
from load_setup import QUIET, figures_of
from results import Figures, Goal, Results
from whole_run import is_wanted, options_of, run_bench

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "StreamsLoad.java"
TOPIC, PARTITIONS = "streams-in", 4
JOINS, KILLED = "an instance joins, first task", "an instance is killed, its tasks elsewhere"
LARGE = "500 members, 5,000 tasks"
FIGURES = ["wait_ms", "heartbeat_cpu_ms", "assignment_cpu_ms", "pause_ms"]
GOALS: dict[str, dict[str, Goal]] = {
    JOINS: {"wait_ms": Goal(1.0, more=False)},
    KILLED: {"wait_ms": Goal(0.5, more=False)},
    LARGE: {
        "heartbeat_cpu_ms": Goal(0.3, more=False, alone=True),
        "assignment_cpu_ms": Goal(200, more=False, alone=True),
        "pause_ms": Goal(20, more=False, alone=True),
    },
}


class Instance(LineProcess):
    """An instance of the application, in a JVM of its own."""

    def __init__(self, broker: Broker, application: str, folder: Path) -> None:
        #: When each task began, in ms of the wall clock, and the tasks that run.
        self.began_ms: dict[str, int] = {}
        self.started_ms = 0
        words = (str(SOURCE), broker.bootstrap, application, TOPIC, str(folder))
        options = ("-Xmx384m", "-XX:+UseSerialGC", "-Dlog4j2.level=OFF")
        super().__init__(["java", *options, "-cp", f"{LIBRARY}/*", *words])

    def noted(self, line: str) -> None:
        match line.split():
            case ["started", at]:
                self.started_ms = int(at)
            case ["task", task, at]:
                self.began_ms[task] = int(at)
            case ["closed", task]:
                self.began_ms.pop(task, None)

    def until(self, reached: Callable[[dict[str, int]], bool], what: str) -> None:
        """Wait for a condition on the tasks that run. Raises `LoadFailed`."""
        if not self.wait_for(lambda: reached(self.began_ms), WAIT_S):
            raise LoadFailed(f"no {what}: {' | '.join(self.lines)[-2000:]}")


def instances(broker: Broker) -> dict[str, Figures]:
    """Start two instances of a new application and kill the second one."""
    application = f"application-{uuid.uuid4().hex[:10]}"
    first = Instance(broker, application, broker.directory / f"{application}-first")
    second = None
    try:
        first.until(lambda tasks: len(tasks) == PARTITIONS, "tasks of the first instance")
        second = Instance(broker, application, broker.directory / f"{application}-second")
        second.until(bool, "task of the second instance")
        joined_ms = min(second.began_ms.values()) - second.started_ms
        half = PARTITIONS // 2
        second.until(lambda tasks: len(tasks) == half, "tasks of the second instance")
        first.until(lambda tasks: len(tasks) == half, "revoked tasks")
        moving = set(second.began_ms)
        killed_ms = time.time() * 1000
        second.kill9()
        first.until(lambda tasks: moving <= tasks.keys(), "tasks of the killed instance")
        moved_ms = max(first.began_ms[task] for task in moving) - killed_ms
    finally:
        if second is not None:
            second.kill9()
        first.end()
    return {JOINS: {"wait_ms": joined_ms}, KILLED: {"wait_ms": moved_ms}}


def prepare(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        made.result(60)


def coordinator() -> Figures:
    """Measure a broker's coordinator in a process of its own."""
    return figures_of("streams_coordinator.py")


def measure(options: argparse.Namespace, folder: Path, results: Results) -> None:
    def wanted(name: str) -> bool:
        return is_wanted(options.only, name)

    if wanted(JOINS) or wanted(KILLED):
        kinds: list[type[Broker]] = [k for k in (Shoal, Kafka) if options.side in ("both", k.name)]
        brokers = [kind(folder / kind.name) for kind in kinds]
        in_turn(JOINS, options.rounds, brokers, results, instances, prepare)
    if wanted(LARGE) and options.side != "kafka":
        for _ in range(options.rounds):
            try:
                results.add(LARGE, "shoal", coordinator())
            except LoadFailed as error:
                results.fail(LARGE, "shoal", error)


def main() -> None:
    options = options_of(__doc__, rounds=5).parse_args()
    run_bench(
        "streams",
        partial(measure, options),
        FIGURES,
        lambda name, figure: GOALS[name].get(figure),
        into=options.into,
        **describe_kafka(),
    )


if __name__ == "__main__":
    main()
