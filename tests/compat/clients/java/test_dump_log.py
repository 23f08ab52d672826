"""Kafka's own dump tool reads our segments, indexes and snapshots without an error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from shoal.log.appends import AppendOrigin
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.storage import DiskStorage
from shoal.record.control import build_marker
from shoal.record.records import build_batch
from shoal.tiered.segment_object import Section, SegmentDescription, SegmentSource, build_tail, scan
from support.kafka.kafka_tools import dump_log
from support.storage.log_material import NOW_MS, batch, compact, keyed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.java

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def dump(directory: Path, *flags: str) -> str:
    """Return the tool's output for all files in a log's directory."""
    kinds = (".log", "index", ".snapshot")
    files = sorted(str(f) for f in directory.iterdir() if f.name.endswith(kinds))
    said = dump_log("--deep-iteration", "--print-data-log", *flags, "--files", ",".join(files))
    for fault in ("mismatch", "Found", "Error", "not found", "isvalid: false"):
        assert fault not in said, said
    return said


def offsets(text: str) -> list[int]:
    """Return the offsets of the data records that the tool printed."""
    found = re.findall(r"^\| offset: (\d+) (?!.*endTxnMarker)", text, re.MULTILINE)
    return [int(at) for at in found]


def test_all_codecs_over_many_segments(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1500, index_interval_bytes=300)
    log = Log.open(DiskStorage(), str(tmp_path / "t-0"), config, now_ms=NOW_MS, clean=False)
    for i, codec in enumerate(CODECS * 4):
        rows = [
            (NOW_MS + 10 * i + j, b"k%d" % j, b"v-%d" % i * 9, (("h", b"x"),)) for j in range(6)
        ]
        data = build_batch(
            rows, compression=codec, producer_id=7, producer_epoch=0, base_sequence=6 * i
        )
        log.append(data, now_ms=NOW_MS, leader_epoch=i // 7)
    transactional = batch(b"a", b"b", producer=(9, 1, 0), transactional=True)
    log.append(transactional, now_ms=NOW_MS, leader_epoch=3)
    marker = build_marker(
        committed=False, producer_id=9, producer_epoch=1, coordinator_epoch=2, timestamp_ms=NOW_MS
    )
    log.append(marker, now_ms=NOW_MS, leader_epoch=3, origin=AppendOrigin.COORDINATOR)
    log.close()
    said = dump(tmp_path / "t-0")
    assert offsets(said) == list(range(122))
    assert said.count("Dumping ") == len(log.segments) * 3 + 1 + len(log.segments)
    assert "endTxnMarker: ABORT coordinatorEpoch: 2" in said
    assert "producerId: 9 firstOffset: 120 lastOffset: 122 lastStableOffset: 123" in said
    assert re.search(r"producerId: 7 .* lastSequence: 119 lastOffset: 119 offsetDelta: 5", said)


def test_a_compacted_log(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=200, cleanup_policy=("compact",))
    log = Log.open(DiskStorage(), str(tmp_path / "t-0"), config, now_ms=NOW_MS, clean=False)
    for i in range(200):
        value = None if i % 7 == 0 else b"value-%d" % i
        log.append(keyed((b"k%d" % (i % 9), value), (b"same", b"x")), now_ms=NOW_MS, leader_epoch=0)
    log.roll(log.log_end_offset, NOW_MS)
    log.sync()
    before = log.size_bytes
    assert compact(log)
    log.close()
    assert log.size_bytes < before / 4
    said = dump(tmp_path / "t-0")
    assert "deleteHorizonMs: OptionalLong[" in said
    assert offsets(said)[-1] == 399
    assert len(offsets(said)) == 10


def test_log_append_time(tmp_path: Path) -> None:
    config = LogConfig(message_timestamp_type="LogAppendTime")
    log = Log.open(DiskStorage(), str(tmp_path / "t-0"), config, now_ms=NOW_MS, clean=False)
    for i in range(3):
        log.append(batch(b"v", timestamp_ms=i), now_ms=NOW_MS + i, leader_epoch=0)
    log.close()
    said = dump(tmp_path / "t-0")
    assert re.findall(r"LogAppendTime: (\d+)", said)[::2] == [str(NOW_MS + i) for i in range(3)]


def test_an_object_begins_with_the_log(tmp_path: Path) -> None:
    """Kafka's tool reads the object of a tiered segment, up to the sections behind the log."""
    directory = tmp_path / "t-0"
    config = LogConfig(segment_bytes=1500, index_interval_bytes=300)
    log = Log.open(DiskStorage(), str(directory), config, now_ms=NOW_MS, clean=False)
    for _ in range(9):
        log.append(batch(b"v" * 200, b"w" * 200), now_ms=NOW_MS, leader_epoch=0)
    segment = log.segments[0]
    found = scan(segment.read, segment.size)
    described = SegmentDescription(
        cluster_id="c",
        topic="t",
        topic_id=UUID(int=1),
        partition=0,
        segment_id=UUID(int=2),
        base_offset=0,
        end_offset=found.end_offset,
        max_timestamp=found.max_timestamp,
        log_size=segment.size,
        leader_epochs=((0, 0),),
        broker_id=1,
        leader_epoch=0,
        copied_ms=NOW_MS,
    )
    end = build_tail(described, found.chunks, {Section.LEADER_EPOCHS: b"0\n1\n0 0\n"})
    source = SegmentSource(segment.read, segment.size, end)
    target = tmp_path / "00000000000000000000.log"
    target.write_bytes(b"".join(source.iter_chunks()))
    said = dump_log("--deep-iteration", "--files", str(target))
    assert offsets(said) == list(range(found.end_offset + 1)), said
    assert f"Found {len(end)} invalid bytes at the end" in said
