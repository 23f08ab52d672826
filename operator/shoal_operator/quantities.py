"""Durations and sizes in Kubernetes' words, as numbers."""

import re

_PART = re.compile(r"(\d+)(ms|h|m|s)")
_UNIT_MS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_SIZE = re.compile(r"^(\d+)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$")
_BYTES: dict[str | None, int] = {
    None: 1,
    **{u + "i": 1 << (10 * n) for n, u in enumerate("KMGTP", 1)},
    **{u: 1000**n for n, u in enumerate("kMGTP", 1)},
}


def duration_ms(text: str) -> int:
    """`1h30m`, `30s`, `500ms` as milliseconds. Raises `ValueError` for what is no duration."""
    if not text or _PART.sub("", text):
        raise ValueError(f"{text!r} is no duration; write it like 30s, 5m or 1h30m")
    return sum(int(n) * _UNIT_MS[unit] for n, unit in _PART.findall(text))


def duration_text(ms: int) -> str:
    """Milliseconds as people write them: `1h30m`, `30s`, `250ms`."""
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def iso_duration(ms: int) -> str:
    """Milliseconds as ISO 8601 (`PT1H`), the form of Kafka's `by_duration:`."""
    seconds, rest = divmod(ms, 1000)
    return f"PT{seconds}.{rest:03d}S" if rest else f"PT{seconds}S"


def size_bytes(text: str) -> int:
    """`10Gi` as bytes. Raises `ValueError` for what is no quantity."""
    found = _SIZE.match(text)
    if not found:
        raise ValueError(f"{text!r} is no size; write it like 512Mi or 10Gi")
    return int(found[1]) * _BYTES[found[2]]
