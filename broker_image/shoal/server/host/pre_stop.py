"""Waits for the other brokers of a pod: `python -m shoal.server.host.pre_stop PORT...`.

Kubernetes runs it before it stops the first broker of a pod (`preStop`), and tells all others to
stop at that time. The first one votes, and may be the controller by which the others hand over what
they lead; so it goes last, as on a host (`host`). The ports are those of the others' health checks:
a broker that is stopping is not ready, and one that has stopped is not there. Where they do not
stop, since this container alone is started anew, there is nothing to wait for. Of other modules the
standard library's alone are imported: it runs beside a broker that is busy.
"""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

#: How long others may be ready still: Kubernetes tells them to stop at about the same time.
READY_GRACE_S = 2.0
#: No broker is waited for any longer; one that finds no controller gives up after 3 s.
TIMEOUT_S = 20.0
_POLL_INTERVAL_S = 0.1


def wait_until_stopped(
    ports: Sequence[int], *, ready_grace_s: float = READY_GRACE_S, timeout_s: float = TIMEOUT_S
) -> None:
    """Return when nobody stops any more at those ports of this host."""
    began = time.monotonic()
    while states := {_is_ready(port) for port in ports} - {None}:
        waited_s = time.monotonic() - began
        if waited_s >= (ready_grace_s if states == {True} else timeout_s):
            return
        time.sleep(_POLL_INTERVAL_S)


def _is_ready(port: int) -> bool | None:
    """Whether the broker with that port serves; None where there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=TIMEOUT_S):
            return True
    except urllib.error.HTTPError:
        return False
    except OSError:
        return None


if __name__ == "__main__":
    wait_until_stopped([int(port) for port in sys.argv[1:]])
