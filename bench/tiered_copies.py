"""Loads beside copies to an object store, and readers beside scans of it.

A load runs twice on the same broker: beside a topic that is copied, and beside one that is not.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokers import Broker, Measured
from clusters import eventually
from confluent_kafka import Consumer, Producer, TopicPartition
from load_checks import LoadFailed, check_errors, text_values
from load_setup import CHECKED, QUIET, Figures, Run, produce
from loads import check_processes
from run import run_load
from s3_server import PARTS, PUTS, total
from tiered_reads import GB, RECORD_BYTES, TIERED, alter, local_segments
from watched_server import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from s3_server import S3Server
    from tiered_reads import Stored

#: Bytes per second of a producer beside another load, and of each scan.
PACE, SCAN_PACE = 20 << 20, 40 << 20
SCANS = 2
#: Small segments, so that each second has copies.
SMALL_MB, PRODUCED_MB = 4, 16
#: Limit on repeats of a load that ends between two passes of the copier.
REPEATS = 20
#: Copies that were begun.
BEGUN = "kafka_server_BrokerTopicMetrics_RemoteCopyRequestsPerSec_total"
PART_BYTES = 8 << 20
#: Loads of `loads.py`.
SYNCHRONOUS, END_TO_END = "synchronous produce, 1 producer", "end to end, consumer"
NOT_TIERED = {
    "produce 1 KB, not tiered": "produce 1 KB acks=all",
    "consume 1 KB, not tiered": "consume 1 KB, 1 partition, classic",
}


class Watched(Measured):
    """A broker with a clock on its event loop (`watched_server.py`)."""

    def __init__(self, directory: Path, configs: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, configs)
        self._pauses = directory / "pauses"

    def command(self) -> list[str]:
        python, _, _, *words = super().command()
        program = str(Path(__file__).with_name("watched_server.py"))
        return ["env", f"{VARIABLE}={self._pauses}", python, program, *words]

    def pauses(self) -> Figures:
        """Return the longest pauses of the event loop since the last call."""
        self._pauses.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR2)
        eventually(self._pauses.exists, "the broker reports no pauses", 60)
        found: Figures = json.loads(self._pauses.read_text())
        return found


def _topic(run: Run, segment_mb: int, *, tiered: bool) -> str:
    configs = {"segment.bytes": str(segment_mb << 20)} | (TIERED if tiered else {})
    return run.topic(configs=configs)


def wait_until_copied(broker: Broker, topic: str) -> None:
    """Wait until the disk has the active segment only."""
    eventually(lambda: len(local_segments(broker, topic)) == 1, f"{topic} is not copied")


def wait_for_a_copy(broker: Measured, begun: float) -> None:
    """Wait until a copy was begun, after that many."""
    eventually(lambda: broker.metric(BEGUN) > begun, "nothing is copied")


def wait_for_segments(broker: Broker, topic: str) -> None:
    """Wait until a segment was closed."""
    closed = lambda: local_segments(broker, topic) not in ([], [0])  # noqa: E731
    eventually(closed, f"no segment of {topic} was closed")


def produce_while_copying(broker: Watched, run: Run, records: int) -> Figures:
    """Produce 1 KB records to a topic that is copied meanwhile, and to one that is not."""
    # Fewer records are written before the first pass of the copier.
    count, values, found = max(100_000, run.count(records)), text_values(RECORD_BYTES), {}
    segment_mb = min(PRODUCED_MB, max(1, count * RECORD_BYTES // (8 << 20)))
    pauses: Figures = {}
    for tiered in (False, True):
        topic = _topic(run, segment_mb, tiered=tiered)
        begun = broker.metric(BEGUN)
        more = 2 * (segment_mb << 20) // RECORD_BYTES
        produce(run.bootstrap, topic, more, values, acks="all")
        if tiered:
            wait_for_a_copy(broker, begun)
        begun, before = broker.metric(BEGUN), broker.cpu_s()
        broker.pauses()
        sent = elapsed = 0.0
        for _ in range(REPEATS):
            elapsed += produce(run.bootstrap, topic, count, values, acks="all")[0]
            sent += count
            if not tiered or broker.metric(BEGUN) > begun:
                break
        used = broker.cpu_s() - before
        found[tiered] = sent / elapsed
        if tiered:
            pauses = broker.pauses()
            if broker.metric(BEGUN) == begun:
                raise LoadFailed("nothing was copied while records were produced")
            wait_until_copied(broker, topic)
            pauses |= {"cpu_s_gb": used / (sent * RECORD_BYTES / GB)}
        run.remove_topics()
    rates = {
        "rate": found[True],
        "without_per_s": found[False],
        "ratio": found[True] / found[False],
    }
    return {**rates, **pauses}


def _pace(bootstrap: str, topic: str, end: Any) -> None:
    """Produce `PACE` bytes per second until the end."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all", **QUIET})
    values, sent, began = text_values(RECORD_BYTES), 0, time.perf_counter()
    while not end.is_set():
        due = int((time.perf_counter() - began) * PACE / RECORD_BYTES)
        try:
            while sent < due:
                producer.produce(topic, values[sent % len(values)])
                sent += 1
        except BufferError:
            pass  # The machine is too slow for this pace.
        producer.poll(0.002)
    producer.flush(30)


@contextmanager
def _beside(target: Callable[..., None], *words: Any, count: int = 1) -> Iterator[Any]:
    """Run processes with an event that ends them. Raises `LoadFailed` if one fails."""
    processes = multiprocessing.get_context("spawn")
    end = processes.Event()
    started = [processes.Process(target=target, args=(*words, end)) for _ in range(count)]
    for one in started:
        one.start()
    try:
        yield started
        check_processes(started)
    finally:
        end.set()
        for one in started:
            one.join(60)


def synchronous_while_copying(broker: Watched, run: Run) -> Figures:
    """Synchronous produces beside 20 MB/s to a topic that is copied, and to one that is not."""
    found = {}
    pauses: Figures = {}
    for tiered in (False, True):
        topic = _topic(run, SMALL_MB, tiered=tiered)
        with _beside(_pace, run.bootstrap, topic):
            wait_for_segments(broker, topic)
            begun = broker.metric(BEGUN)
            broker.pauses()
            found[tiered] = run_load(broker, SYNCHRONOUS, run.scale)["p99_ms"]
            pauses = broker.pauses()
            if tiered and broker.metric(BEGUN) == begun:
                raise LoadFailed("nothing was copied beside the synchronous produces")
        run.remove_topics()
    ratio = found[True] / found[False]
    return {"p99_ms": found[True], "without_p99_ms": found[False], "ratio": ratio, **pauses}


def _scan(bootstrap: str, topic: str, count: int, end: Any) -> None:
    """Read a topic again and again, `SCAN_PACE` bytes per second."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "scan",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 16 << 10,
            "fetch.message.max.bytes": 8 << 20,
            **CHECKED,
            **QUIET,
        }
    )
    taken, began = 0, time.perf_counter()
    while not end.is_set():
        consumer.assign([TopicPartition(topic, 0, 0)])
        at = 0
        while at < count and not end.is_set():
            if taken * RECORD_BYTES > (time.perf_counter() - began) * SCAN_PACE:
                time.sleep(0.01)
                continue
            messages = consumer.consume(1000, 0.5)
            check_errors(messages)
            at, taken = at + len(messages), taken + len(messages)
    consumer.close()


def tail_beside_scans(broker: Broker, run: Run, local: Stored, remote: Stored) -> Figures:
    """A reader of new records, 1,000 per second: alone, beside scans of the disk, and of the
    store. Both scans have the same pace.
    """
    alone = run_load(broker, END_TO_END, run.scale)["p99_ms"]
    found = {}
    for stored in (local, remote):
        with _beside(_scan, run.bootstrap, stored.topic, stored.count, count=SCANS):
            found[stored] = run_load(broker, END_TO_END, run.scale)["p99_ms"]
        run.remove_topics()
    ratio = found[remote] / found[local]
    return {
        "p99_ms": found[remote],
        "local_p99_ms": found[local],
        "alone_p99_ms": alone,
        "ratio_to_local": ratio,
    }


def copy(broker: Measured, run: Run, s3: S3Server, records: int, segment_mb: int) -> Figures:
    """Copy a topic that is on the disk: CPU, and requests of each segment."""
    topic = _topic(run, segment_mb, tiered=False)
    count = run.count(records)
    more = (segment_mb << 20) // RECORD_BYTES + 1
    _, sent = produce(run.bootstrap, topic, count + more, text_values(RECORD_BYTES), acks="all")
    s3.requests()
    before, began = broker.cpu_s(), time.perf_counter()
    alter(run, TIERED, "topic", topic)
    wait_until_copied(broker, topic)
    used, elapsed = broker.cpu_s() - before, time.perf_counter() - began
    requests, objects = s3.requests(f"{topic}-"), s3.segments(topic)
    copied = sum(path.stat().st_size for path in objects)
    parts = total(requests, PARTS)
    singles = sum(path.stat().st_size <= PART_BYTES for path in objects)
    run.verify(topic, sent)
    run.remove_topics()
    return {
        "copied_mb_s": copied / elapsed / 1e6,
        "cpu_s_gb": used / (copied / GB),
        "puts_segment": (total(requests, PUTS) - parts - singles) / len(objects),
        "requests_segment": (requests.total() - parts) / len(objects),
    }


def beside_the_feature(brokers: Sequence[Broker], scale: float) -> dict[str, Figures]:
    """Loads on topics that are not tiered: on a broker without tiered storage, and on one with."""
    found: dict[str, Figures] = {}
    for row, load in NOT_TIERED.items():
        without, rate = (run_load(broker, load, scale)["rate"] for broker in brokers)
        if not without:
            raise LoadFailed(f"{load} ended with its first records: give it a larger scale")
        for broker in brokers:
            Run(broker.bootstrap, scale).remove_topics()
        found[row] = {"rate": rate, "without_per_s": without, "ratio": rate / without}
    return found
