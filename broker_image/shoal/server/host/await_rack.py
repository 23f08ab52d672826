"""Waits until a pod has its rack.

Usage: `python -m shoal.server.host.await_rack FILE ANNOTATION`. Kubernetes runs it before the
containers of a pod. FILE has the pod's annotations (the downward API), which the kubelet updates.
The operator writes ANNOTATION when it knows the node's rack. The containers that start after this
one get its value as a variable, which Kubernetes reads at that moment.

After a time, the pod starts without a rack rather than not at all: the operator may be down. It
restarts the brokers that run in another rack than they registered.

The module imports only the standard library, so that a pod starts at once.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

#: The kubelet shows a new annotation within seconds, or after its sync of 60 s at the latest.
TIMEOUT_S = 120.0
_POLL_INTERVAL_S = 0.1


def await_rack(file: Path, annotation: str, *, timeout_s: float = TIMEOUT_S) -> bool:
    """Return whether the file has the annotation, at the latest after `timeout_s`."""
    # Each line is `name="value"`.
    begin, began = f"{annotation}=", time.monotonic()
    while not any(line.startswith(begin) for line in _read_lines(file)):
        if time.monotonic() - began >= timeout_s:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    given_file, given_annotation = sys.argv[1:]
    if not await_rack(Path(given_file), given_annotation):
        print(
            f"The operator has not set the annotation {given_annotation} within {TIMEOUT_S:.0f} s. "
            "This pod starts without a rack. Check that the operator runs.",
            file=sys.stderr,
        )
