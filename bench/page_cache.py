"""Memory for the page cache, so that a load does not pay for what the hypervisor took back.

Hypervisors can take the free memory of a virtual machine, and return a page at its first use. Then
a GB of appended records costs the kernel 2 to 3 s of CPU instead of 0.25 s. Whether it does depends
on what was deleted in the last seconds, not on the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PIECE = b"\1" * (1 << 20)


def take_memory(folder: Path, size: int) -> None:
    """Write a file of `size` bytes into `folder` and delete it. The files written next get its
    pages."""
    file = folder / "page-cache"
    try:
        with file.open("wb", buffering=0) as out:
            for _ in range(0, size, len(_PIECE)):
                out.write(_PIECE)
    finally:
        file.unlink(missing_ok=True)
