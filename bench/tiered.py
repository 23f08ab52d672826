"""Reads of remote records against local ones, and produce while segments are copied:
`python bench/tiered.py`.

One broker, and a directory as its object store, so a request costs about what a local read does.
Records are JSON of 1 KB. Each topic is filled first; the tiered ones keep nothing on the disk. The
cache holds 32 MB, so a round reads nearly all chunks from the store. Rounds alternate between the
kinds, and a warm-up comes first. `--scale 0.2` shortens the loads, and `--rounds N` sets the number
of rounds.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from brokers import Shoal
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from load_checks import LoadFailed, Stall, text_values
from load_setup import CHECKED, QUIET, Run, produce

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Records of a topic that is read, and of a produce.
RECORDS = 300_000
SEGMENT_BYTES = 32 << 20
CACHE_BYTES = 32 << 20
WAIT_S = 120
COMPRESSION, KEY_ID = "shoal.remote.compression.type", "shoal.remote.encryption.key.id"
#: By kind: whether the topic is tiered, and how its objects are sealed.
KINDS: dict[str, tuple[bool, dict[str, str]]] = {
    "on the disk": (False, {}),
    "in the store": (True, {}),
    "in the store, zstd": (True, {COMPRESSION: "zstd"}),
    "in the store, encrypted": (True, {KEY_ID: "k"}),
    "in the store, zstd, encrypted": (True, {COMPRESSION: "zstd", KEY_ID: "k"}),
}


class Measured(NamedTuple):
    """Records per second, and CPU seconds of the broker for each GB of records."""

    rate: float
    cpu_s: float


class Bench:
    """A broker with a store, and its topics."""

    def __init__(self, broker: Shoal, scale: float) -> None:
        self._broker = broker
        self._run = Run(broker.bootstrap, scale)
        self.count = self._run.count(RECORDS)
        self._values = text_values(1024)

    def create(self, name: str, *, tiered: bool) -> None:
        config = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
        if tiered:
            config |= {"remote.storage.enable": "true", "local.retention.ms": "1"}
        new = NewTopic(name, 1, 1, config=config)
        self._run.admin.create_topics([new])[name].result(30)

    def seal(self, configs: dict[str, str]) -> None:
        """Set how new objects are sealed."""
        given = {COMPRESSION: "uncompressed", KEY_ID: "", **configs}
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in given.items()
        ]
        resource = ConfigResource("broker", "1", incremental_configs=entries)
        for future in self._run.admin.incremental_alter_configs([resource]).values():
            future.result(30)

    def fill(self, name: str) -> Measured:
        before = self._broker.cpu_s()
        elapsed, _ = produce(self._run.bootstrap, name, self.count, self._values, acks="all")
        return self._measured(elapsed, before)

    def wait_until_copied(self, name: str) -> None:
        """Wait until the disk has an empty active segment only."""
        end = time.monotonic() + WAIT_S
        while [int(path.stem) for path in self._logs(name)] != [self.count]:
            if time.monotonic() > end:
                raise LoadFailed(f"{name} is not copied after {WAIT_S} s")
            time.sleep(0.1)

    def _logs(self, name: str) -> list[Path]:
        return list((self._broker.directory / "data" / f"{name}-0").glob("*.log"))

    def stored_bytes(self, name: str) -> int:
        """Return the size of a topic's objects."""
        objects = (self._broker.directory / "store").rglob("*.segment")
        return sum(path.stat().st_size for path in objects if f"/{name}-" in str(path))

    def read(self, name: str) -> Measured:
        client = Consumer(
            {
                "bootstrap.servers": self._run.bootstrap,
                "group.id": "g",
                "enable.auto.commit": False,
                "queued.min.messages": 1_000_000,
                "queued.max.messages.kbytes": 1 << 20,
                "fetch.message.max.bytes": 8 << 20,
                **CHECKED,
                **QUIET,
            }
        )
        client.assign([TopicPartition(name, 0, 0)])
        taken, stall = 0, Stall(self.count)
        before, began = self._broker.cpu_s(), time.perf_counter()
        while taken < self.count:
            taken += sum(m.error() is None for m in client.consume(10_000, timeout=1.0))
            stall.look(taken)
        elapsed = time.perf_counter() - began
        client.close()
        return self._measured(elapsed, before)

    def _measured(self, elapsed: float, cpu_before: float) -> Measured:
        used = self._broker.cpu_s() - cpu_before
        return Measured(self.count / elapsed, used / (self.count * 1024 / 1e9))


def rounds_of(count: int, loads: Mapping[str, Callable[[], Measured]]) -> dict[str, list[Measured]]:
    """Run the loads in turn, after a warm-up."""
    found: dict[str, list[Measured]] = {name: [] for name in loads}
    for number in range(count + 1):
        for name, load in loads.items():
            result = load()
            if number:
                found[name].append(result)
    return found


def show(title: str, found: dict[str, list[Measured]]) -> None:
    """Print medians, with ratios to the first load."""
    print(f"\n{title:34} {'records/s':>10} {'ratio':>6} {'CPU s/GB':>9}  range of records/s")
    first = 0.0
    for name, results in found.items():
        rates = [one.rate for one in results]
        rate, cpu_s = statistics.median(rates), statistics.median(one.cpu_s for one in results)
        first = first or rate
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        print(f"{name:34} {rate:10,.0f} {rate / first:6.2f} {cpu_s:9.2f}  {spread}", flush=True)


def measure(bench: Bench, rounds: int) -> None:
    topics = {kind: f"read-{number}" for number, kind in enumerate(KINDS)}
    for kind, (tiered, sealed) in KINDS.items():
        bench.create(topics[kind], tiered=tiered)
        bench.seal(sealed)
        bench.fill(topics[kind])
        if tiered:
            bench.wait_until_copied(topics[kind])
            stored = bench.stored_bytes(topics[kind]) / (bench.count * 1024)
            print(f"{kind}: the objects have {stored:.2f} times the bytes of the values")
    reads = {kind: partial(bench.read, name) for kind, name in topics.items()}
    show("read 1 KB", rounds_of(rounds, reads))
    numbers = iter(range(1_000))

    def produced(kind: str) -> Measured:
        tiered, sealed = KINDS[kind]
        name = f"produce-{next(numbers)}"
        bench.create(name, tiered=tiered)
        bench.seal(sealed)
        result = bench.fill(name)
        if tiered:
            bench.wait_until_copied(name)
        return result

    produces: dict[str, Callable[[], Measured]] = {
        "not tiered": lambda: produced("on the disk"),
        "while copying": lambda: produced("in the store"),
        "while copying, zstd, encrypted": lambda: produced("in the store, zstd, encrypted"),
    }
    show("produce 1 KB, acks=all", rounds_of(rounds, produces))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shoal-tiered-"))
    (folder / "keys").mkdir()
    (folder / "keys/k").write_bytes(base64.b64encode(os.urandom(32)))
    configs = {
        "remote.log.storage.system.enable": "true",
        "shoal.remote.store.url": f"file://{folder / 'store'}",
        "shoal.remote.chunk.cache.bytes": str(CACHE_BYTES),
        "shoal.remote.encryption.key.directory": str(folder / "keys"),
        "remote.log.manager.task.interval.ms": "100",
        "shoal.remote.copy.interval.ms": "2000",
        "log.retention.check.interval.ms": "200",
    }
    broker = Shoal(folder, configs=configs)
    try:
        broker.start()
        measure(Bench(broker, given.scale), given.rounds)
    finally:
        broker.kill9()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
