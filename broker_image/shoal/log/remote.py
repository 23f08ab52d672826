"""The part of a tiered log that is only in the object store, for reads of the log.

A log with `remote.storage.enable` may start below its first local segment. `server/tiered/`
implements the port; the log asks it for offsets below its first segment. It must answer at once.
What has to be downloaded first is an empty result, like records that do not exist yet: the download
starts, and the partition's listeners are called when it has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from shoal.log.indexes import AbortedTransaction
    from shoal.log.slices import LogSlice


class RemoteUnavailable(OSError):
    """The records exist and cannot be downloaded now. The reader tries again later."""


class RebuiltState(NamedTuple):
    """What the object store knows of the records below `next_offset`, with which a log continues
    there: the leader epochs with their start offsets, and the contents of a producer snapshot."""

    next_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    producer_snapshot: bytes


class RemoteLogReader(Protocol):
    """The remote segments of one partition."""

    @property
    def copied_end_offset(self) -> int:
        """The offset below which remote segments have the whole local log."""

    @property
    def end_offset(self) -> int:
        """The last offset in remote segments, -1 without any."""

    def read(self, offset: int, max_bytes: int, bound: int, min_one: bool) -> LogSlice:
        """Read whole batches from `offset` on that lie below `bound`. Raises
        `RemoteUnavailable`."""

    def find_aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap [start, end), which was just read, as far
        as remote segments have their markers."""
