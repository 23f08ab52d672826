"""Where a tiered log starts: retention by time and by size over both tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Extent(NamedTuple):
    """A segment of either tier: its offsets up to `end`, which is exclusive, its size in bytes and
    its largest timestamp in epoch milliseconds, -1 without one."""

    start: int
    end: int
    size: int
    max_timestamp: int


def joined(remote: Iterable[Extent], local: Sequence[Extent]) -> list[Extent]:
    """Return the segments of both tiers in order, without remote ones whose offsets others have."""
    out: list[Extent] = []
    local_start = local[0].start if local else None
    at = -1
    for extent in sorted(remote):
        if extent.end > at and (local_start is None or extent.start < local_start):
            out.append(extent)
            at = extent.end
    return out + list(local)


def start_offset(
    extents: Sequence[Extent],
    *,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
) -> int:
    """Return the log start offset that retention.ms and retention.bytes require, at least the
    present one. -1 means no limit.

    Only whole segments below the high watermark are removed, oldest first. The last one stays.
    """
    excess = sum(extent.size for extent in extents if extent.end > log_start_offset)
    excess -= retention_bytes
    start = log_start_offset
    for extent in extents[:-1]:
        if extent.end <= log_start_offset:
            continue
        old = retention_ms >= 0 and 0 <= extent.max_timestamp < now_ms - retention_ms
        large = retention_bytes >= 0 and excess >= extent.size
        if extent.end > high_watermark or not (old or large):
            break
        excess -= extent.size
        start = max(start, extent.end)
    return start
