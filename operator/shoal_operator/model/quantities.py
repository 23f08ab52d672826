"""Durations and sizes in Kubernetes' notation."""

import re
from fractions import Fraction

_PART = re.compile(r"(?<!\d)(\d+)(ms|h|m|s)")
_UNIT_MS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_SIZE = re.compile(r"^(\d+)(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$")
_QUANTITY = re.compile(r"^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]|[KMGTPE]i)?$")
_FRACTIONS = {unit: Fraction(1, 1000**n) for n, unit in enumerate("mun", 1)}
_BYTES: dict[str | None, int] = {
    None: 1,
    **{u + "i": 1 << (10 * n) for n, u in enumerate("KMGTPE", 1)},
    **{u: 1000**n for n, u in enumerate("kMGTPE", 1)},
}


def parse_duration_ms(text: str) -> int:
    """Return `1h30m`, `30s` or `500ms` as milliseconds. Raises `ValueError`."""
    if not text or _PART.sub("", text):
        raise ValueError(f"{text!r} is not a duration; use a form like 30s, 5m or 1h30m")
    return sum(int(n) * _UNIT_MS[unit] for n, unit in _PART.findall(text))


def format_duration(ms: int) -> str:
    """Return milliseconds as `1h30m`, `30s` or `250ms`."""
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_iso_duration(ms: int) -> str:
    """Return milliseconds in ISO 8601 (`PT1H`), as in Kafka's `by_duration:`."""
    seconds, remainder_ms = divmod(ms, 1000)
    return f"PT{seconds}.{remainder_ms:03d}S" if remainder_ms else f"PT{seconds}S"


def parse_size_bytes(text: str) -> int:
    """Return `10Gi` as bytes. Raises `ValueError`."""
    match = _SIZE.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a size; use a form like 512Mi or 10Gi")
    return int(match[1]) * _BYTES[match[2]]


def parse_quantity(text: str) -> Fraction:
    """Return a quantity of Kubernetes, such as `500m`, `2`, `1.5Gi` or `1e3`. Raises
    `ValueError`."""
    match = _QUANTITY.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a quantity; use a form like 500m, 2 or 10Gi")
    number, unit = Fraction(match[1]), match[2]
    return number * (_FRACTIONS.get(unit) or _BYTES[unit or None])


def format_size(size: int) -> str:
    """Return bytes as `512 B`, `1.5 GiB` or `20 MiB`."""
    number, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if number >= 10 or unit == "B" else f"{number:.1f} {unit}"
