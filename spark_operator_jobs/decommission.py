#!/usr/bin/env python3
"""Before Kubernetes ends an executor's pod: let it end its tasks first.

Spark has its executors call this as `/opt/decom.sh` (`spark.kubernetes.decommission.script`) where
`spark.decommission.enabled` is set. The executor is told by SIGPWR, and is waited for; the pod's
grace period bounds that. Only the standard library is used.
"""

import os
import signal
import sys
import threading
from pathlib import Path

EXECUTOR = b"org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


def executors() -> list[int]:
    """The process ids of executors in this container.

    A node sees those of its pods too, which are in PID namespaces of their own.
    """
    found, here = [], namespace("self")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        is_executor = EXECUTOR in words and Path(os.fsdecode(words[0])).name == "java"
        if is_executor and namespace(path.parent.name) in ("", here):
            found.append(int(path.parent.name))
    return found


def namespace(pid: str) -> str:
    """The PID namespace of a process; empty where it is not told."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def main() -> int:
    there = executors()
    for pid in there:
        os.kill(pid, signal.SIGPWR)
    pause = threading.Event()
    while any(Path(f"/proc/{pid}").exists() for pid in there):
        pause.wait(0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
