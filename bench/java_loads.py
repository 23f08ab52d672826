"""Loads of Kafka's Java clients: its perf producer, and a share consumer (ShareLoad.java).

The jars are those of the broker that is compared (`brokers.LIBRARY`). A JVM has some time to warm
before its rate counts: the producer sends records for it, and a share consumer's group has more
of them to take.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from brokers import LIBRARY
from filling import FILLED, Figures, Run, produce

SOURCE = Path(__file__).parent / "ShareLoad.java"
TIMEOUT_S = 300
_RATE = re.compile(r"([\d.]+) records/sec")


def _java(*words: str) -> str:
    command = ["java", "-Xmx1g", "-Dlog4j2.level=OFF", "-cp", f"{LIBRARY}/*", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if ended.returncode:
        raise SystemExit(f"{words[0]}: {(ended.stdout + ended.stderr)[-2000:]}")
    return ended.stdout


def rate_of_produce(run: Run, records: int, size: int, acks: str) -> Figures:
    topic, count = run.topic(), run.count(records)
    warm = count // 2
    said = _java(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic,
        "--num-records", str(count + warm), "--warmup-records", str(warm),
        "--record-size", str(size), "--throughput", "-1", "--bootstrap-server", run.bootstrap,
        "--command-property", f"acks={acks}", "linger.ms=5", "batch.size=65536",
    )  # fmt: skip
    steady = said.strip().splitlines()[-1]
    found = _RATE.search(steady)
    if found is None:
        raise SystemExit(f"the perf producer said no rate: {steady}")
    return {"rate": float(found[1]), "bytes": count * size}


def rate_of_share(run: Run, records: int, size: int, mode: str) -> Figures:
    topic, count, group = run.topic(), run.count(records), run.share_group()
    produce(run, topic, count, size, acks="all")
    print(FILLED, flush=True)
    said = _java(str(SOURCE), run.bootstrap, group, topic, str(count), mode)
    return {"rate": float(said.strip().splitlines()[-1]), "bytes": count * size}
