"""What brokers tell at `/metrics` alone: a share group's records in flight, what was delivered
again, waits, or is a dead letter, and why delivery is held.

Kafka's protocol tells none of it. A Shoal broker with a metrics
listener does; where it stands is the broker config `shoal.metrics.listener`, or is given by hand.
A broker without one, or another Kafka, leaves these numbers unknown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from shoal.client.admin import Admin
from shoal.client.configs import Resource, ResourceType
from shoal.client.errors import ClientError, KafkaError
from shoal.client.groups import SHARE, Group

LISTENER_CONFIG = "shoal.metrics.listener"
TIMEOUT_S = 3.0
#: The text of a broker with some ten thousand share partitions has a few megabytes.
TEXT_BYTES_MAX = 64 << 20
_COUNTS = {
    "shoal_share_partition_locked_records": "in_flight",
    "shoal_share_partition_redelivered_records_total": "redelivered",
    "shoal_share_partition_backing_off_records": "backing_off",
    "shoal_share_partition_archiving_records": "archiving",
    "shoal_share_partition_held_by_key_records": "held_by_key",
    "shoal_share_partition_delayed_records": "delayed",
    "shoal_share_partition_keys_held_by_dead_letters": "keys_held",
    "shoal_share_group_dead_letters_total": "dead_lettered",
    "shoal_share_group_redriven_total": "redriven",
    "shoal_share_group_dead_letters_dropped_total": "dropped",
    "shoal_share_partition_header_failures_total": "header_failures",
}
_HELD = "shoal_share_group_held"
_PAUSED = "share.delivery.paused"
_OLDEST_LOCK = "shoal_share_partition_oldest_lock_age_seconds"
_TOLD = frozenset({*_COUNTS, _HELD, _OLDEST_LOCK})
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


@dataclass(slots=True)
class ShareNumbers:
    """Of one share group over all brokers; counters run since each broker's start. `in_flight` are
    the records that members hold, not all of the window as in Kafka's `InFlightMessageCount`;
    `held` are the reasons why share partitions are not delivered, or their dead letters not
    written."""

    in_flight: int = 0
    redelivered: int = 0
    backing_off: int = 0
    archiving: int = 0
    held_by_key: int = 0
    delayed: int = 0
    keys_held: int = 0
    dead_lettered: int = 0
    redriven: int = 0
    dropped: int = 0
    header_failures: int = 0
    oldest_lock_age_s: float = 0.0
    held: frozenset[str] = frozenset()

    @property
    def waiting(self) -> int:
        """Records that are held back: by their key, a delay, a back-off or a letter to write."""
        return self.backing_off + self.archiving + self.held_by_key + self.delayed

    def note(self, sample: Sample) -> None:
        """Take one sample of the group in."""
        if sample.name == _OLDEST_LOCK:
            self.oldest_lock_age_s = max(self.oldest_lock_age_s, sample.value)
        elif sample.name == _HELD:
            self.held |= {sample.labels.get("why", "")} if sample.value else frozenset()
        elif (name := _COUNTS.get(sample.name)) is not None:
            setattr(self, name, getattr(self, name) + int(sample.value))


async def paused(admin: Admin, groups: Iterable[Group]) -> set[str]:
    """The share groups whose configs say that they are paused, which holds where no broker tells
    any numbers, too. Those that may not be looked at are left out."""
    asked = [Resource(ResourceType.GROUP, g.group_id) for g in groups if g.type == SHARE]
    found = await admin.configs.describe(asked, keys=[_PAUSED]) if asked else {}
    return {
        resource.name
        for resource, entries in found.items()
        if not isinstance(entries, KafkaError)
        and _PAUSED in entries
        and entries[_PAUSED].value == "true"
    }


def samples(text: str) -> Iterator[Sample]:
    """The samples of a Prometheus text; lines that are none are passed over."""
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match:
            try:
                value = float(match[3])
            except ValueError:
                continue
            labels = {m[1]: re.sub(r"\\(.)", r"\1", m[2]) for m in _LABEL.finditer(match[2] or "")}
            yield Sample(match[1], labels, value)


async def addresses(admin: Admin) -> list[str]:
    """The metrics listeners of all brokers, as host:port; those without one are left out."""
    found = []
    for broker in (await admin.describe_cluster()).brokers:
        resource = Resource(ResourceType.BROKER, str(broker.node_id))
        described = (await admin.configs.describe([resource], keys=[LISTENER_CONFIG]))[resource]
        if isinstance(described, KafkaError) or LISTENER_CONFIG not in described:
            continue
        value = described[LISTENER_CONFIG].value or ""
        host, _, port = value.rpartition("://")[2].rpartition(":")
        if port.isdigit():
            everywhere = host.strip("[]") in ("", "0.0.0.0", "::")
            found.append(f"{broker.host if everywhere else host}:{port}")
    return found


async def share_numbers(
    admin: Admin, given: list[str] | None = None
) -> dict[str, ShareNumbers] | None:
    """Numbers by group id; None where not one broker tells any."""
    texts = []
    try:
        where = given or await addresses(admin)
    except ClientError:
        return None
    for result in await asyncio.gather(*(_read(a) for a in where), return_exceptions=True):
        if isinstance(result, str):
            texts.append(result)
        elif not isinstance(result, OSError | TimeoutError | ValueError):
            raise result
    return _by_group(texts) if texts else None


def _by_group(texts: list[str]) -> dict[str, ShareNumbers]:
    found: dict[str, ShareNumbers] = {}
    for text in texts:
        for sample in samples(text):
            if sample.name in _TOLD and "group" in sample.labels:
                found.setdefault(sample.labels["group"], ShareNumbers()).note(sample)
    return found


async def _read(address: str) -> str:
    """GET /metrics. Raises `OSError`, `TimeoutError`, or `ValueError` for no such answer."""
    parts = urlsplit(address if "//" in address else f"//{address}")
    host, path = parts.hostname or "", parts.path.rstrip("/") or "/metrics"
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, parts.port or 80)
        try:
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
            )
            data = bytearray()
            while chunk := await reader.read(1 << 16):
                data += chunk
                if len(data) > TEXT_BYTES_MAX:
                    raise ValueError(f"{address} answers without end")
        finally:
            writer.close()
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0] + b" ":
        raise ValueError(f"{address} has no metrics")
    return body.decode(errors="replace")
