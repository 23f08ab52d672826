"""Numbers and times as text with units. Unknown is a dash."""

from __future__ import annotations

from datetime import UTC, datetime

from shoal.client.queues.timestamps import DATE_MS_MAX

UNKNOWN = "–"
_BYTES = ("KiB", "MiB", "GiB", "TiB", "PiB")


def format_count(number: float | None) -> str:
    """Format a number of things with separators between thousands."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def format_plural(number: int, noun: str) -> str:
    """Return `1 record` or `2 records`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_rate(per_second: float | None) -> str:
    """Format a rate: two significant digits below 10, none after the point above."""
    if per_second is None:
        return UNKNOWN
    if 0 < per_second < 0.01:
        return "<0.01/s"
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.2g}/s"


def format_size(size_bytes: float | None) -> str:
    """Format bytes with a binary unit; a negative size is unknown."""
    if size_bytes is None or size_bytes < 0:
        return UNKNOWN
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    value = float(size_bytes)
    for unit in _BYTES:
        value /= 1024
        if value < 1024 or unit == _BYTES[-1]:
            break
    return f"{value:,.1f} {unit}"


def format_duration(seconds: float | None) -> str:
    """Format a period with its two largest units."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{max(0, seconds) * 1000:.0f} ms"
    whole_seconds = int(seconds)
    for unit_s, unit, part_s, part in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole_seconds >= unit_s:
            remainder = whole_seconds % unit_s // part_s
            text = f"{whole_seconds // unit_s} {unit}"
            return f"{text} {remainder} {part}" if remainder else text
    return f"{whole_seconds} s"


def format_instant(timestamp_ms: int | None) -> str:
    """Format epoch milliseconds as ISO 8601 in UTC; times without a date remain milliseconds."""
    if timestamp_ms is None or timestamp_ms < 0:
        return UNKNOWN
    if timestamp_ms > DATE_MS_MAX:
        return f"{timestamp_ms} ms"
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_clock(timestamp_ms: int) -> str:
    """Format epoch milliseconds as a time of day in UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%H:%M:%S UTC")
