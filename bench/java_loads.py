"""Loads of Kafka's Java clients: its perf producer, and a share consumer (ShareLoad.java).

The jars are those of the compared broker (`brokers.LIBRARY`). A JVM needs time to warm up before
its rate counts, so the producer first sends records for that. The perf producer chooses random
values, so their checksums are unknown. A verifying pass counts its records and checks the CRC32C of
each batch.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from brokers import LIBRARY
from load_checks import LoadFailed, Sent, random_values
from load_setup import BEGIN, END, Figures, Run, mark, produce
from page_cache import take_memory

SOURCE = Path(__file__).parent / "ShareLoad.java"
TIMEOUT_S = 300
_TOTAL = re.compile(r"^(\d+) records sent,", re.MULTILINE)
_STEADY = re.compile(r"^(\d+) steady state records sent, ([\d.]+) records/sec", re.MULTILINE)


def _java(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["java", "-Xmx1g", "-Dlog4j2.level=OFF", "-cp", f"{LIBRARY}/*", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if ended.returncode:
        raise LoadFailed(f"{words[0]}: {(ended.stdout + ended.stderr)[-2000:]}")
    return ended


def perf_rate(stdout: str, stderr: str, *, warm: int, count: int) -> float:
    """Parse the rate of the perf producer's last `count` records from its output.

    It counts only acknowledged records. Raises LoadFailed unless it counted all `warm` and `count`
    records, or if it printed the stack trace of a failed one.
    """
    traces = [line for line in (stdout + stderr).splitlines() if "Exception" in line]
    if traces:
        raise LoadFailed(f"the perf producer failed: {traces[0]}")
    found, totals = _STEADY.findall(stdout), _TOTAL.findall(stdout)
    if not found or not totals:
        raise LoadFailed(f"the perf producer printed no rate: {stdout[-500:]}")
    steady, rate = found[-1]
    if (int(totals[-1]), int(steady)) != (warm + count, count):
        raise LoadFailed(f"the perf producer sent {totals[-1]} of {warm + count} records")
    return float(rate)


def rate_of_produce(run: Run, records: int, size: int, acks: str) -> Figures:
    topic, count = run.topic(), run.count(records)
    warm = count // 2
    take_memory()
    mark(BEGIN)
    ended = _java(
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        str(count + warm),
        "--warmup-records",
        str(warm),
        "--record-size",
        str(size),
        "--throughput",
        "-1",
        "--bootstrap-server",
        run.bootstrap,
        "--command-property",
        f"acks={acks}",
        "linger.ms=5",
        "batch.size=65536",
    )
    mark(END)
    rate = perf_rate(ended.stdout, ended.stderr, warm=warm, count=count)
    sent = Sent()
    sent.counts, sent.checksums = {0: count + warm}, None
    run.verify(topic, sent)
    return {"rate": rate}


def rate_of_share(run: Run, records: int, size: int, mode: str) -> Figures:
    topic, count, group = run.topic(), run.count(records), run.share_group()
    _, sent = produce(run.bootstrap, topic, count, random_values(size), acks="all")
    mark(BEGIN)
    ended = _java(str(SOURCE), run.bootstrap, group, topic, str(count), mode)
    mark(END)
    run.verify(topic, sent)
    return {"rate": float(ended.stdout.strip().splitlines()[-1])}
