"""Times as users type them: `2026-01-31T12:00`, epoch milliseconds, or `15m` for 15 minutes ago."""

from __future__ import annotations

import re
import time
from datetime import datetime

#: The last millisecond of the year 9999 in UTC, the last one that `datetime` has. Records may have
#: later timestamps, for example from clients that send nanoseconds.
DATE_MS_MAX = 253_402_300_799_999
#: The largest timestamp of the protocol.
_TIMESTAMP_MS_MAX = 2**63 - 1
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ISO_DURATION = re.compile(
    r"P(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?"
)


def parse_duration_ms(text: str) -> int | None:
    """Parse `90s`, `15m`, `2h`, `7d`, or ISO 8601 such as `PT15M`; None if it is not a duration."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", text.strip())
    if match:
        return int(float(match[1]) * _UNITS_MS[match[2]])
    iso = _ISO_DURATION.fullmatch(text.strip().upper())
    if iso and any(iso.groups()):
        return int(sum(float(v) * _UNITS_MS[u] for u, v in iso.groupdict().items() if v))
    return None


def parse_timestamp(text: str, now_ms: int | None = None) -> int:
    """Return epoch milliseconds of a date and time (local unless it has a time zone), of a number
    of milliseconds, or of a duration before now. Raises `ValueError` with a sentence.
    """
    if text.isdigit():
        if int(text) > _TIMESTAMP_MS_MAX:
            raise ValueError(f"{text} is too far: a timestamp is at most {_TIMESTAMP_MS_MAX} ms.")
        return int(text)
    ago = parse_duration_ms(text)
    if ago is not None:
        return (int(time.time() * 1000) if now_ms is None else now_ms) - ago
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time. Use 2026-01-31T12:00, 2026-01-31T12:00Z, epoch "
            "milliseconds, or a duration ago such as 15m, 2h or 7d."
        ) from None
    return int(instant.timestamp() * 1000)
