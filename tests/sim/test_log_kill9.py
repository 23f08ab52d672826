"""A process that appends is killed with SIGKILL repeatedly: its acknowledged records survive.

The child prints each offset after its append has returned, as a broker acknowledges it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.storage import DiskStorage
from support.storage.log_material import NOW_MS, records

CHILD = """
import sys
from support.storage.log_material import NOW_MS, batch
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.storage import DiskStorage

config = LogConfig(segment_bytes=200_000, index_interval_bytes=1000)
log = Log.open(DiskStorage(), sys.argv[1], config, now_ms=NOW_MS, clean=False,
               recovery_point=int(sys.argv[2]))
while True:
    at = log.log_end_offset
    data = batch(b"%d" % at, b"x" * (at % 5000), producer=(1, 0, at))
    log.append(data, now_ms=NOW_MS, leader_epoch=0)
    print(log.log_end_offset, flush=True)
    if at % 500 == 0:
        log.sync()
        print("synced", log.recovery_point, flush=True)
"""


@pytest.mark.parametrize("kills", [4])
def test_nothing_acknowledged_is_lost(tmp_path: Path, kills: int) -> None:
    directory = str(tmp_path / "t-0")
    recovery_point = acknowledged = 0
    for kill in range(1, kills + 1):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, directory, str(recovery_point)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        assert child.stdout is not None
        for line in child.stdout:
            words = line.split()
            if words[0] == "synced":
                recovery_point = int(words[1])
            else:
                acknowledged = int(words[0])
            if acknowledged > 400 * kill + 37 * kill * kill:
                break
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            if line.endswith("\n") and line[0] != "s":
                acknowledged = int(line)
        child.wait(timeout=10)
        child.stdout.close()
        log = Log.open(
            DiskStorage(),
            directory,
            LogConfig(),
            now_ms=NOW_MS,
            clean=False,
            recovery_point=recovery_point,
        )
        assert log.log_end_offset >= acknowledged
        found = records(log)
        assert [r.offset for r in found] == list(range(log.log_end_offset))
        assert all(r.value == b"%d" % r.offset for r in found[::2])
        producer = log.producers.get(1)
        assert producer is not None
        assert producer.last_sequence == log.log_end_offset - 1
