"""Tiered storage against the same broker without it, and against Kafka's: `make bench-tiered`.

The store is a real S3 server, versitygw, on this machine. Kafka has `LocalTieredStorage`, which
reads and writes files. Rows with "30 ms" add that time to each request. `--full` uses the sizes of
the goals: 10 GB of reads, 20 GB in front of an empty disk, a million segments. Without it a run has
a tenth, or another part by `--scale`, and a note names the sizes. `--only WORD` selects rows by a
word of their name, `--rounds N` repeats loads, and `--side shoal` leaves Kafka out.

A load that finds an error (`load_checks.py`) has a row "failed", and the exit code is 1.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from brokers import Measured, Shoal, describe_kafka
from confluent_kafka import KafkaException
from load_checks import LoadFailed
from load_setup import Run
from loads import percentiles
from results import Figures, Goal, Results
from s3_server import GETS, S3Server, total
from tiered_clusters import empty_disk, many_segments, restored
from tiered_copies import (
    NOT_TIERED,
    Watched,
    beside_the_feature,
    copy,
    produce_while_copying,
    synchronous_while_copying,
    tail_beside_scans,
)
from tiered_reads import (
    GB,
    RECORD_BYTES,
    SEGMENT_MB,
    SOON,
    Stored,
    TieredKafka,
    alter,
    first_records,
)
from whole_run import is_wanted, options_of, run_bench

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

DELAY_MS = 30
#: Records at full size.
READ, SEALED, PRODUCED = 10_000_000, 3_000_000, 1_000_000
CACHE_BYTES, CACHE_MIN = 64 << 20, 2 << 20
#: Samples of the first record, at most one of each segment.
FIRST_SAMPLES = 20
COMPRESSION, KEY_ID = "shoal.remote.compression.type", "shoal.remote.encryption.key.id"

REMOTE, DELAYED = "read 1 KB from remote", "read 1 KB from remote, 30 ms"
AGAINST_KAFKA = "read 1 KB from remote, both"
SHARE, SHARE_DELAYED = "share 1 KB from remote", "share 1 KB from remote, 30 ms"
FIRST = "first remote record, 30 ms"
TAIL = "tail beside scans of remote"
PRODUCE, SYNCHRONOUS = "produce 1 KB while copying", "synchronous produce while copying"
COPY, COPY_UNSIGNED = "copy", "copy, with a checksum instead of a signature"
UNSIGNED = {"shoal.remote.store.payload.signing": "never"}
EMPTY_DISK, RESTORED = "a broker with an empty disk", "a cluster from its bucket"
SEGMENTS = "many remote segments"
SEALED_ROWS: dict[str, dict[str, str]] = {
    "read 1 KB from remote, zstd": {COMPRESSION: "zstd"},
    "read 1 KB from remote, encrypted": {KEY_ID: "k"},
    "read 1 KB from remote, zstd, encrypted": {COMPRESSION: "zstd", KEY_ID: "k"},
}
READS = (REMOTE, DELAYED, AGAINST_KAFKA, SHARE, SHARE_DELAYED, FIRST, TAIL)


def at_least(value: float) -> Goal:
    return Goal(value, alone=True)


def at_most(value: float) -> Goal:
    return Goal(value, more=False, alone=True)


GOALS: dict[str, dict[str, Goal]] = {
    REMOTE: {"ratio_to_local": at_least(0.6), "gets_gb": at_most(140)},
    DELAYED: {"ratio_to_local": at_least(0.4)},
    AGAINST_KAFKA: {"rate": Goal(1.0)},
    SHARE: {"ratio_to_local": at_least(0.5)},
    SHARE_DELAYED: {"ratio_to_local": at_least(0.5)},
    FIRST: {"p50_ms": at_most(100)},
    TAIL: {"ratio_to_local": at_most(1.3)},
    PRODUCE: {"ratio": at_least(0.9), "pause_ms": at_most(20)},
    SYNCHRONOUS: {"ratio": at_most(1.2), "pause_ms": at_most(20)},
    COPY: {"cpu_s_gb": at_most(1), "puts_segment": at_most(1)},
    COPY_UNSIGNED: {"cpu_s_gb": at_most(1), "puts_segment": at_most(1)},
    EMPTY_DISK: {"sync_s": at_most(10), "peers_to_local": at_most(1.2)},
    RESTORED: {"first_s": at_most(60)},
    SEGMENTS: {"million_start_s": at_most(30), "million_mb": at_most(300)},
    **{row: {"ratio": at_least(0.98)} for row in NOT_TIERED},
}
FIGURES = [
    "rate",
    "local_per_s",
    "without_per_s",
    "ratio_to_local",
    "ratio",
    "p50_ms",
    "p99_ms",
    "local_p99_ms",
    "alone_p99_ms",
    "without_p99_ms",
    "pause_ms",
    "late_ms",
    "copied_mb_s",
    "cpu_s_gb",
    "gets_gb",
    "puts_segment",
    "requests_segment",
    "stored_ratio",
    "sync_s",
    "local_mb",
    "peers_to_local",
    "restore_s",
    "first_s",
    "all_s",
    "start_s",
    "segments_mb",
    "million_start_s",
    "million_mb",
]


class Bench:
    """One run: its options, its folder and its results."""

    def __init__(self, options: argparse.Namespace, folder: Path, results: Results) -> None:
        self.options, self.folder, self.results = options, folder, results
        self.scale: float = options.scale
        #: The scale of loads that a full-size run does not lengthen.
        self.load_scale = min(1.0, 10 * self.scale)

    def count(self, records: int) -> int:
        return max(1000, int(records * self.scale))

    def _cache(self, records: int) -> dict[str, str]:
        """Return the config of a cache that holds a small part of the records."""
        part = self.count(records) * RECORD_BYTES // 8
        return {"shoal.remote.chunk.cache.bytes": str(min(CACHE_BYTES, max(CACHE_MIN, part)))}

    def wanted(self, *rows: str) -> bool:
        return is_wanted(self.options.only, *rows)

    @contextmanager
    def row(self, name: str, side: str = "shoal") -> Iterator[None]:
        """A row that fails if an error ends the block."""
        try:
            yield
        except (LoadFailed, KafkaException, OSError) as error:
            self.results.fail(name, side, error)

    def add(self, row: str, figures: Figures, side: str = "shoal") -> None:
        self.results.add(row, side, figures)
        print(f"{row:45} {side:6} {json.dumps(figures)}", flush=True)

    def repeat(self, row: str, load: Callable[[], Figures]) -> None:
        """Run a load after a warm-up, and add its figures to a row."""
        if not self.wanted(row):
            return
        with self.row(row):
            for number in range(-1, self.options.rounds):
                figures = load()
                if number >= 0:
                    self.add(row, figures)

    # Reads

    def reads(self, s3: S3Server) -> None:
        """Reads of the same records on the disk, in the store, and in Kafka's store."""
        more = self._cache(READ) | SOON
        broker = Shoal(self.folder / "reads", configs=s3.configs("reads") | more)
        kafka = TieredKafka(self.folder / "kafka") if self._with_kafka() else None
        try:
            broker.start()
            count = self.count(READ)
            local, remote = (Stored(broker, count, tiered=tiered) for tiered in (False, True))
            theirs = None
            if kafka is not None:
                with self.row(AGAINST_KAFKA, "kafka"):
                    kafka.start()
                    theirs = Stored(kafka, count, tiered=True)
            for number in range(-1, self.options.rounds):
                self._read(s3, local, remote, theirs, counts=number >= 0)
            run = Run(broker.bootstrap, self.load_scale)
            self.repeat(SHARE, lambda: _share(local, remote))
            self.repeat(TAIL, lambda: tail_beside_scans(broker, run, local, remote))
            if self.wanted(FIRST, DELAYED, SHARE_DELAYED):
                broker.reconfigure(s3.configs("reads", delayed=True))
                broker.stop()
                broker.start()
                self._delayed(s3, local, remote)
        finally:
            broker.kill9()
            if kafka is not None:
                kafka.kill9()

    def _with_kafka(self) -> bool:
        return self.options.side == "both" and self.wanted(AGAINST_KAFKA)

    def _read(
        self, s3: S3Server, local: Stored, remote: Stored, theirs: Stored | None, *, counts: bool
    ) -> None:
        if not self.wanted(REMOTE, AGAINST_KAFKA):
            return
        with self.row(REMOTE):
            before = local.read()
            s3.requests()
            found = remote.read()
            gets = total(s3.requests(f"{remote.topic}-"), GETS)
            figures = {
                "rate": found.rate,
                "local_per_s": before.rate,
                "ratio_to_local": found.rate / before.rate,
                "cpu_s_gb": found.cpu_s_gb,
                "gets_gb": gets / (found.records * RECORD_BYTES / GB),
            }
            if counts:
                self.add(REMOTE, figures)
                self.add(AGAINST_KAFKA, {"rate": found.rate})
        if theirs is not None:
            with self.row(AGAINST_KAFKA, "kafka"):
                rate = theirs.read().rate
                if counts:
                    self.add(AGAINST_KAFKA, {"rate": rate}, "kafka")

    def _delayed(self, s3: S3Server, local: Stored, remote: Stored) -> None:
        if self.wanted(FIRST):
            with self.row(FIRST):
                self.add(FIRST, percentiles(first_records(remote, s3, FIRST_SAMPLES)))

        def read() -> Figures:
            before, found = local.read(), remote.read()
            return {
                "rate": found.rate,
                "local_per_s": before.rate,
                "ratio_to_local": found.rate / before.rate,
                "cpu_s_gb": found.cpu_s_gb,
            }

        self.repeat(DELAYED, read)
        self.repeat(SHARE_DELAYED, lambda: _share(local, remote))

    def sealed(self, s3: S3Server) -> None:
        """Reads of objects that are compressed or encrypted, against reads of the disk."""
        ring = self.folder / "keys"
        ring.mkdir()
        (ring / "k").write_bytes(base64.b64encode(os.urandom(32)))
        configs = s3.configs("sealed") | self._cache(SEALED) | SOON
        configs["shoal.remote.encryption.key.directory"] = str(ring)
        broker = Shoal(self.folder / "sealed", configs=configs)
        try:
            broker.start()
            run, count = Run(broker.bootstrap, 1.0), self.count(SEALED)
            local = Stored(broker, count, tiered=False)
            for row, given in SEALED_ROWS.items():
                if not self.wanted(row):
                    continue
                alter(run, {COMPRESSION: "uncompressed", KEY_ID: ""} | given, "broker", "1")
                with self.row(row):
                    stored = Stored(broker, count, tiered=True)
                    size = sum(path.stat().st_size for path in s3.segments(stored.topic))
                    logs = sum(p.stat().st_size for p in _logs(broker, local.topic))
                    for number in range(-1, self.options.rounds):
                        before, found = local.read(), stored.read()
                        figures = {
                            "rate": found.rate,
                            "local_per_s": before.rate,
                            "ratio_to_local": found.rate / before.rate,
                            "cpu_s_gb": found.cpu_s_gb,
                            "stored_ratio": size / logs,
                        }
                        if number >= 0:
                            self.add(row, figures)
        finally:
            broker.kill9()

    # Copies

    def copies(self, s3: S3Server) -> None:
        broker = Watched(self.folder / "copies", s3.configs("copies") | SOON)
        try:
            broker.start()
            run = Run(broker.bootstrap, self.load_scale)
            segment_mb = SEGMENT_MB if self.load_scale == 1 else 10
            self.repeat(PRODUCE, lambda: produce_while_copying(broker, run, PRODUCED))
            self.repeat(SYNCHRONOUS, lambda: synchronous_while_copying(broker, run))
            self.repeat(COPY, lambda: copy(broker, run, s3, PRODUCED, segment_mb))
            if self.wanted(COPY_UNSIGNED):
                broker.reconfigure(UNSIGNED)
                broker.stop()
                broker.start()
                run = Run(broker.bootstrap, self.load_scale)
                self.repeat(COPY_UNSIGNED, lambda: copy(broker, run, s3, PRODUCED, segment_mb))
        finally:
            broker.kill9()

    def not_tiered(self, s3: S3Server) -> None:
        """Loads on topics that are not tiered, with and without the feature."""
        brokers = [
            Measured(self.folder / "without"),
            Measured(self.folder / "with", s3.configs("with")),
        ]
        try:
            for broker in brokers:
                broker.start()
            with self.row(next(iter(NOT_TIERED))):
                for number in range(-1, self.options.rounds):
                    # A consumer takes the records of a smaller load at once.
                    scale = max(0.5, self.load_scale)
                    for row, figures in beside_the_feature(brokers, scale).items():
                        if number >= 0:
                            self.add(row, figures)
        finally:
            for broker in brokers:
                broker.kill9()

    # Lost disks

    def lost_disks(self, s3: S3Server) -> None:
        if self.wanted(EMPTY_DISK):
            with self.row(EMPTY_DISK):
                self.add(EMPTY_DISK, empty_disk(self.folder / "empty-disk", s3, self.scale))
        if self.wanted(RESTORED):
            with self.row(RESTORED):
                found = restored(self.folder / "restored", s3, self.load_scale)
                self.add(RESTORED, found)

    def segments(self) -> None:
        with self.row(SEGMENTS):
            count = max(1000, int(1_000_000 * self.scale))
            self.add(SEGMENTS, many_segments(self.folder / "segments", count))

    def run(self) -> None:
        """Run the parts one after the other. Each leaves the disk as it was."""
        parts: list[tuple[Callable[[S3Server], None], tuple[str, ...]]] = [
            (self.reads, READS),
            (self.sealed, tuple(SEALED_ROWS)),
            (self.copies, (PRODUCE, SYNCHRONOUS, COPY, COPY_UNSIGNED)),
            (self.not_tiered, tuple(NOT_TIERED)),
            (self.lost_disks, (EMPTY_DISK, RESTORED)),
        ]
        with S3Server(self.folder / "s3", DELAY_MS) as s3:
            for part, rows in parts:
                if self.wanted(*rows):
                    part(s3)
                    for child in (*self.folder.iterdir(), *s3.bucket.iterdir()):
                        if child.name != "s3":
                            shutil.rmtree(child)
        if self.wanted(SEGMENTS):
            self.segments()

    def notes(self) -> list[str]:
        """Return sentences on the sizes of the run."""
        found = [
            f"The store is versitygw 1.8.0 on the same machine. Rows with {DELAY_MS} ms add that"
            " time to each request. Kafka keeps its remote segments in a directory.",
        ]
        if self.scale != 1:
            found.append(
                f"Scale {self.scale:g}: reads have {10 * self.scale:g} GB instead of 10 GB, the"
                f" broker with an empty disk has {20 * self.scale:g} GB in the store instead of"
                f" 20 GB, and {1_000_000 * self.scale:,.0f} remote segments stand for 1,000,000."
                " Figures of 1,000,000 are extrapolated in proportion."
            )
        if self.load_scale != 1:
            found.append(
                f"Other loads have {self.load_scale:g} of their size, and the restored cluster"
                f" {300 * self.load_scale:.0f} partitions instead of 300."
            )
        return found


def _share(local: Stored, remote: Stored) -> Figures:
    before, found = local.share(), remote.share()
    return {
        "rate": found.rate,
        "local_per_s": before.rate,
        "ratio_to_local": found.rate / before.rate,
        "cpu_s_gb": found.cpu_s_gb,
    }


def _logs(broker: Shoal, topic: str) -> list[Path]:
    return list((broker.directory / f"data/{topic}-0").glob("*.log"))


def measure(options: argparse.Namespace, folder: Path, results: Results) -> None:
    bench = Bench(options, folder, results)
    for note in bench.notes():
        print(note, flush=True)
    results.notes += bench.notes()
    bench.run()


def main() -> None:
    parser = options_of(__doc__, sides=("both", "shoal"))
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--full", action="store_true", help="the sizes of the goals")
    options = parser.parse_args()
    if options.full:
        options.scale = 1.0
    run_bench(
        "tiered",
        partial(measure, options),
        FIGURES,
        lambda row, figure: GOALS.get(row, {}).get(figure),
        into=options.into,
        **describe_kafka(),
        scale=options.scale,
    )


if __name__ == "__main__":
    main()
