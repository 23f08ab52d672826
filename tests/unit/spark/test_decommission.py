"""What an executor's container does before its pod ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.runs.machine import lacking

PROGRAM = Path(__file__).resolve().parents[3] / "spark_operator_jobs" / "decommission.py"
EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
#: Stands for an executor: it prints when it is ready, and exits when it gets the signal.
STAND_IN = """
import signal, sys
signal.signal(signal.SIGPWR, lambda *_: sys.exit(7))
print("ready", flush=True)
signal.pause()
"""


def test_the_executor_gets_a_signal_and_is_awaited(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    words = [str(java), "-c", STAND_IN, EXECUTOR]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as executor:
        assert executor.stdout is not None
        assert executor.stdout.readline() == "ready\n"
        executor_process = subprocess.Popen([sys.executable, str(PROGRAM)])
        assert executor.wait(20) == 7, "it did not end by SIGPWR"
        assert executor_process.wait(20) == 0


def test_executors_of_other_containers_are_left_alone(tmp_path: Path) -> None:
    """A node sees the processes of its pods: each pod has a PID namespace."""
    if os.geteuid() or not shutil.which("unshare"):
        lacking("a PID namespace needs root and unshare")
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    words = ["unshare", "--pid", "--fork", "--kill-child", str(java), "-c", STAND_IN, EXECUTOR]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        try:
            done = subprocess.run([sys.executable, str(PROGRAM)], timeout=20, check=False)
            assert done.returncode == 0
            assert other.poll() is None, "it got the signal"
        finally:
            other.kill()


def test_without_an_executor_there_is_nothing_to_do() -> None:
    assert subprocess.run([sys.executable, str(PROGRAM)], timeout=20, check=False).returncode == 0
