"""Waits until the other brokers of a pod have stopped.

Usage: `python -m shoal.server.host.pre_stop PORT...`. Kubernetes runs it as the `preStop` hook of
the first broker of a pod, while it sends SIGTERM to the others. The first broker votes, and may be
the active controller, through which the others hand over their partitions. So it has to stop last,
as on a host (`host`).

The ports are those of the health checks of the others. A broker that is stopping is not ready, and
one that has stopped refuses the connection. If the others stay ready, only this container restarts,
and the hook returns.

The module imports only the standard library, since it runs next to a busy broker.
"""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How long the others may stay ready. Kubernetes stops all containers at about the same time.
READY_GRACE_S = 2.0
#: The longest wait. A broker that finds no controller stops after 3 s.
TIMEOUT_S = 20.0
_POLL_INTERVAL_S = 0.1


def wait_until_stopped(
    ports: Sequence[int], *, ready_grace_s: float = READY_GRACE_S, timeout_s: float = TIMEOUT_S
) -> None:
    """Return when no broker at these ports of this host is stopping."""
    began = time.monotonic()
    while states := {_is_ready(port) for port in ports} - {None}:
        waited_s = time.monotonic() - began
        if waited_s >= (ready_grace_s if states == {True} else timeout_s):
            return
        time.sleep(_POLL_INTERVAL_S)


def _is_ready(port: int) -> bool | None:
    """Whether the broker at that port is ready; None if there is no broker."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=TIMEOUT_S):
            return True
    except urllib.error.HTTPError:
        return False
    except OSError:
        return None


if __name__ == "__main__":
    wait_until_stopped([int(port) for port in sys.argv[1:]])
