#!/usr/bin/env python3
"""Lets an executor complete its tasks before Kubernetes ends its pod.

Spark configures its executors to run this as `/opt/decom.sh`
(`spark.kubernetes.decommission.script`) if `spark.decommission.enabled` is set. It sends SIGPWR to
the executor and waits for it, bounded by the pod's grace period. It uses only the standard library.
"""

import os
import signal
import sys
import threading
from pathlib import Path

EXECUTOR = b"org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


def list_executors() -> list[int]:
    """Return the process ids of executors in this container.

    A node's processes include those of its pods, which have their own PID namespaces.
    """
    pids, here = [], get_namespace("self")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        is_executor = EXECUTOR in words and Path(os.fsdecode(words[0])).name == "java"
        if is_executor and get_namespace(path.parent.name) in ("", here):
            pids.append(int(path.parent.name))
    return pids


def get_namespace(pid: str) -> str:
    """Return the PID namespace of a process; empty if it is unavailable."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def main() -> int:
    there = list_executors()
    for pid in there:
        os.kill(pid, signal.SIGPWR)
    pause = threading.Event()
    while any(Path(f"/proc/{pid}").exists() for pid in there):
        pause.wait(0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
