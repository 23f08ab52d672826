"""What brokers tell at `/metrics` alone: records in flight and deliveries beyond the first.

Kafka's protocol does not tell a share group's records in flight. A Shoal broker with a metrics
listener does; where it stands is the broker config `shoal.metrics.listener`, or is given by hand.
A broker without one, or another Kafka, leaves these numbers unknown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from shoal.client.admin import Admin
from shoal.client.configs import Resource, ResourceType
from shoal.client.errors import ClientError, KafkaError

LISTENER_CONFIG = "shoal.metrics.listener"
TIMEOUT_S = 3.0
#: The text of a broker with some ten thousand share partitions has a few megabytes.
TEXT_BYTES_MAX = 64 << 20
_IN_FLIGHT = "kafka_server_SharePartitionMetrics_InFlightMessageCount"
_REDELIVERED = "shoal_share_partition_redelivered_records_total"
_HELD = tuple(
    f"shoal_share_partition_{why}_records" for why in ("held_by_key", "delayed", "backing_off")
)
_FIELDS = {_IN_FLIGHT: "in_flight", _REDELIVERED: "redelivered", **dict.fromkeys(_HELD, "held")}
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class ShareNumbers(NamedTuple):
    """Of one share group over all brokers; the counter runs since each broker's start."""

    in_flight: int = 0
    redelivered: int = 0
    #: Held back: by their key, by a delay, or in retry back-off.
    held: int = 0


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
        for name, labels, value in samples(text):
            field = _FIELDS.get(name)
            if field is not None and "group" in labels:
                one = found.get(labels["group"], ShareNumbers())
                found[labels["group"]] = one._replace(**{field: getattr(one, field) + int(value)})
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
