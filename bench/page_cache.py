"""Memory for the page cache, so that a load does not pay for what the hypervisor took back.

Hypervisors can take the free memory of a virtual machine, and return a page at its first use. Then
a GB of appended records costs the kernel 2 to 3 s of CPU instead of 0.25 s. Whether it does depends
on what was deleted in the last seconds, not on the broker.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

#: Bytes that a load of produces appends at most, with what its client and the brokers allocate.
_SIZE = 2 << 30
_PIECE = b"\1" * (1 << 20)


def take_memory() -> None:
    """Write a file of 2 GB and delete it. The files written next get its pages."""
    with tempfile.TemporaryFile(dir=Path(__file__).parent, buffering=0) as out:
        for _ in range(0, _SIZE, len(_PIECE)):
            out.write(_PIECE)
