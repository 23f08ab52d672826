"""Where a tiered log starts, by time and by size over both tiers, and when it is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.log.config import LogConfig


class SegmentRange(NamedTuple):
    """A segment of either tier: its offsets up to `end`, which is exclusive, its size in bytes and
    its largest timestamp in epoch milliseconds, -1 without one."""

    start: int
    end: int
    size: int
    max_timestamp: int


def join_tiers(remote: Iterable[SegmentRange], local: Sequence[SegmentRange]) -> list[SegmentRange]:
    """Return the segments of both tiers in order, without remote ones whose offsets others have."""
    out: list[SegmentRange] = []
    local_start = local[0].start if local else None
    covered_end = -1
    for extent in sorted(remote):
        if extent.end > covered_end and (local_start is None or extent.start < local_start):
            out.append(extent)
            covered_end = extent.end
    return out + list(local)


def find_start_offset(
    extents: Sequence[SegmentRange],
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


def may_copy(config: LogConfig, max_timestamp: int, newer_bytes: int, now_ms: int) -> bool:
    """Whether a closed segment may be copied to the object store by now (KIP-1241).

    `newer_bytes` is the size of the log behind it. One of remote.copy.lag.* is enough. -1 follows
    local.retention.*, and is no reason if that has no limit.
    """
    lag_ms, lag_bytes = config.remote_copy_lag_ms, config.remote_copy_lag_bytes
    if lag_ms == -1:
        lag_ms = config.effective_local_retention_ms
    if lag_bytes == -1:
        lag_bytes = config.effective_local_retention_bytes
    if lag_ms == 0 or lag_bytes == 0:
        return True
    # A timestamp in the future never becomes old.
    age_ms = now_ms - max_timestamp
    is_old = lag_ms > 0 and (age_ms >= lag_ms or age_ms < 0)
    return is_old or 0 < lag_bytes <= newer_bytes
