"""Where a replicated record waits, and for whom: `python bench/trace_record.py [RECORDS]`.

Three brokers run, and each notes when its calls are in a room (`traced_server.py`). One record at a
time is on its way, so that what happens between its produce and its acknowledgement belongs to it,
and the same for the acknowledgement of a job. The tables have the medians in µs after the client's
call, of each broker and room that most records visit: when the first call of a record begins, when
the last one ends, the time in them all, and their number. The time includes inner rooms. Tracing
takes about a µs a call.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cluster_loads import create
from clusters import Cluster, ShoalNode
from confluent_kafka import Producer, ShareConsumer
from load_checks import Sent, check_commit, check_errors
from load_setup import CHECKED, QUIET, Run
from record_rooms import STATE, Span, medians_of, read_trace
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Records before those that count, and the pause between two, in seconds.
WARM, PAUSE_S = 200, 0.005
#: The program of a broker, and the name of the file with its calls.
SERVER, TRACE = Path(__file__).with_name("traced_server.py"), "trace"


class TracedNode(ShoalNode):
    """A broker that notes its calls."""

    def command(self) -> list[str]:
        words, trace = super().command(), self.directory / TRACE
        return [sys.executable, str(SERVER), str(trace), *words[words.index("server") :]]


def measure(
    count: int, call: Callable[[], None], prepare: Callable[[], None] = lambda: None
) -> list[Span]:
    """Prepare and call a client again and again, with pauses; return the calls that count."""
    spans = []
    for _ in range(WARM + count):
        prepare()
        time.sleep(PAUSE_S)
        began = time.monotonic_ns()
        call()
        spans.append(Span(-1, began, time.monotonic_ns()))
    return spans[WARM:]


def produce(cluster: Cluster, topic: str, count: int) -> list[Span]:
    """Produce records of 100 B, and wait for each."""
    sent = Sent()
    conf = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "acks": "all", **QUIET}
    producer = Producer(conf)

    def call() -> None:
        sent.note(0, b"v" * 100)
        producer.produce(topic, b"v" * 100, partition=0, on_delivery=sent)
        sent.check(producer.flush(60))

    return measure(count, call)


def acknowledge(cluster: Cluster, topic: str, count: int) -> list[Span]:
    """Acknowledge records one by one, and wait for each."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": Run(cluster.bootstrap, 1.0).share_group(),
            "share.acknowledgement.mode": "explicit",
            **CHECKED,
            **QUIET,
        }
    )
    consumer.subscribe([topic])

    def receive() -> Iterator[object]:
        while True:
            messages = consumer.poll(1.0)
            check_errors(messages)
            yield from messages

    received = receive()
    spans = measure(
        count,
        lambda: check_commit(consumer.commit_sync(10)),
        lambda: consumer.acknowledge(next(received)),
    )
    consumer.close()
    return spans


def show(title: str, calls: list[Span], traces: dict[str, list[Span]]) -> None:
    """Print a table of the rooms of each broker, in the order in which a record visits them."""
    whole = statistics.median(call.ended - call.began for call in calls) / 1000
    table = Table("µs", "until", "inside", "calls", "broker", "room", title=title)
    rows: list[tuple[tuple[float, ...], str, str]] = []
    for name, spans in traces.items():
        rooms = medians_of(calls, spans)
        label = f"{name}, coordinator" if STATE in rooms else name
        rows += [(medians, label, room) for room, medians in rooms.items()]
    for (first, last, inside, times), name, room in sorted(rows):
        table.add_row(f"{first:.0f}", f"{last:.0f}", f"{inside:.0f}", f"{times:g}", name, room)
    table.add_row(f"{whole:.0f}", "", "", "", "client", "it has the answer")
    Console(width=110).print(table)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(TracedNode, Path(folder))
        try:
            cluster.start()
            (topic,) = create(cluster, 1)
            (leader,) = cluster.leaders(topic)
            produced = produce(cluster, topic, count)
            acknowledged = acknowledge(cluster, topic, count)
            # A broker that stops writes its trace.
            for node in cluster.nodes.values():
                node.stop()
            names = {id: "leader" if id == leader else f"broker {id}" for id in cluster.nodes}
            traces = {
                names[id]: read_trace(node.directory / TRACE) for id, node in cluster.nodes.items()
            }
        finally:
            cluster.kill9()
    show("A produced record, acks=all", produced, traces)
    show("An acknowledged job", acknowledged, traces)


if __name__ == "__main__":
    main()
