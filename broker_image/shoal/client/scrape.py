"""Share-group numbers from the brokers' `/metrics`, which Kafka's protocol does not have.

They are records in flight, redelivered, waiting and dead-lettered, and the reasons for which
delivery is held. The broker config `shoal.metrics.listener` has the address of the metrics
listener, unless the caller passes addresses. The numbers are unknown for a broker without a
metrics listener and for Apache Kafka.

Metrics may be protected. The client properties `ssl.*` apply to addresses with https, and
`shoal.metrics.token.file` names a file with a bearer token.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shoal.client.cluster import TopicPartition
from shoal.client.configs import Resource, ResourceType
from shoal.client.errors import ClientError, KafkaError, SecurityError
from shoal.client.exposition import samples
from shoal.client.groups import SHARE, Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.samples import Sample

    from shoal.client.admin import Admin
    from shoal.client.settings import Settings

LISTENER_CONFIG, PROTOCOL_CONFIG = "shoal.metrics.listener", "shoal.metrics.security.protocol"
TOKEN_PROPERTY = "shoal.metrics.token.file"
TIMEOUT_S = 3.0
#: The page of a broker with ten thousand share partitions is a few megabytes long.
TEXT_BYTES_MAX = 64 << 20
_COUNTS = {
    "shoal_share_partition_locked_records": "in_flight",
    "shoal_share_partition_acquired_records_total": "acquired",
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
_STOPPED = "shoal_share_group_held"
_PAUSED = "share.delivery.paused"
_OLDEST_LOCK = "shoal_share_partition_oldest_lock_age_seconds"
_NEXT_DUE = "shoal_share_partition_next_due_timestamp_seconds"
_NAMES = frozenset({*_COUNTS, _STOPPED, _OLDEST_LOCK, _NEXT_DUE})


@dataclass(slots=True)
class ShareNumbers:
    """Numbers of one share group over all brokers; counters start at 0 with each broker.

    `in_flight` counts records that members have acquired, while Kafka's `InFlightMessageCount`
    counts the whole window. `stop_reasons` name what stops delivery, or the writing of dead
    letters. `next_due_s` is the Unix time at which the next record that is delayed or in back-off
    is due; None if unknown.
    """

    in_flight: int = 0
    acquired: int = 0
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
    next_due_s: float | None = None
    stop_reasons: frozenset[str] = frozenset()

    @property
    def waiting(self) -> int:
        """Records that a key, a delay, a back-off or an unwritten dead letter holds back."""
        return self.backing_off + self.archiving + self.held_by_key + self.delayed

    def note(self, sample: Sample) -> None:
        """Add one sample of the group."""
        if sample.name == _OLDEST_LOCK:
            self.oldest_lock_age_s = max(self.oldest_lock_age_s, sample.value)
        elif sample.name == _NEXT_DUE:
            self.next_due_s = _earlier(self.next_due_s, sample.value)
        elif sample.name == _STOPPED:
            self.stop_reasons |= {sample.labels.get("why", "")} if sample.value else frozenset()
        elif (name := _COUNTS.get(sample.name)) is not None:
            setattr(self, name, getattr(self, name) + int(sample.value))

    def add(self, other: ShareNumbers) -> None:
        """Add the numbers of other share partitions."""
        for name in _COUNTS.values():
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.oldest_lock_age_s = max(self.oldest_lock_age_s, other.oldest_lock_age_s)
        self.next_due_s = _earlier(self.next_due_s, other.next_due_s)
        self.stop_reasons |= other.stop_reasons


def _earlier(one_s: float | None, other_s: float | None) -> float | None:
    return min((s for s in (one_s, other_s) if s is not None), default=None)


class Refused(Exception):
    """A broker does not show its metrics to this client."""


async def paused(admin: Admin, groups: Iterable[Group]) -> set[str]:
    """Return the ids of the share groups whose config pauses delivery.

    This works without metrics too. Groups whose configs cannot be described are left out.
    """
    asked = [Resource(ResourceType.GROUP, g.group_id) for g in groups if g.type == SHARE]
    found = await admin.configs.describe(asked, keys=[_PAUSED]) if asked else {}
    return {
        resource.name
        for resource, entries in found.items()
        if not isinstance(entries, KafkaError)
        and _PAUSED in entries
        and entries[_PAUSED].value == "true"
    }


async def addresses(admin: Admin) -> list[str]:
    """Return the brokers' metrics listeners as host:port, or https://host:port with TLS, without
    brokers that have none."""
    found = []
    for broker in (await admin.describe_cluster()).brokers:
        resource = Resource(ResourceType.BROKER, str(broker.node_id))
        keys = [LISTENER_CONFIG, PROTOCOL_CONFIG]
        described = (await admin.configs.describe([resource], keys=keys))[resource]
        if isinstance(described, KafkaError) or LISTENER_CONFIG not in described:
            continue
        value = described[LISTENER_CONFIG].value or ""
        host, _, port = value.rpartition("://")[2].rpartition(":")
        if port.isdigit() and int(port):  # A free port that the broker chose is not known.
            everywhere = host.strip("[]") in ("", "0.0.0.0", "::")
            protocol = described.get(PROTOCOL_CONFIG)
            scheme = "https://" if protocol is not None and protocol.value == "SSL" else ""
            found.append(f"{scheme}{broker.host if everywhere else host}:{port}")
    return found


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of all share groups, and those of each share partition by group and partition."""

    groups: Mapping[str, ShareNumbers]
    partitions: Mapping[tuple[str, TopicPartition], ShareNumbers]


async def share_numbers(
    admin: Admin, given: list[str] | None, warn: Callable[[str], None]
) -> dict[str, ShareNumbers] | None:
    """Return the numbers by group id; see `numbers`."""
    found = await numbers(admin, given, warn)
    return None if found is None else dict(found.groups)


async def numbers(
    admin: Admin, given: list[str] | None, warn: Callable[[str], None]
) -> Numbers | None:
    """Return the numbers, or None if no broker shows metrics to this client.

    `given` are addresses of metrics listeners; the default is those of all brokers. `warn` gets a
    sentence for each broker that shows its metrics to others only.
    """
    pages = []
    try:
        where = given or await addresses(admin)
    except ClientError:
        return None
    settings = admin.cluster.settings
    results = await asyncio.gather(*(_read(a, settings) for a in where), return_exceptions=True)
    for address, result in zip(where, results, strict=True):
        if isinstance(result, str):
            # Parsed only now: a large page would use up the time limit of the other requests.
            with contextlib.suppress(ValueError):
                pages.append(list(samples(result, _NAMES)))
        elif isinstance(result, Refused | SecurityError | ssl.SSLError):
            warn(f"{address} shows no metrics to this client: {result}.")
        elif not isinstance(result, OSError | TimeoutError | ValueError):
            raise result
    return _numbers(pages) if pages else None


async def pages(admin: Admin) -> dict[str, str | Exception]:
    """Return the metrics pages of all brokers by address, or why a page cannot be read."""
    where = await addresses(admin)
    settings = admin.cluster.settings
    results = await asyncio.gather(*(_read(a, settings) for a in where), return_exceptions=True)
    found: dict[str, str | Exception] = {}
    for address, result in zip(where, results, strict=True):
        if not isinstance(result, str | Exception):
            raise result
        found[address] = result
    return found


def _numbers(pages: list[list[Sample]]) -> Numbers:
    groups: dict[str, ShareNumbers] = {}
    partitions: dict[tuple[str, TopicPartition], ShareNumbers] = {}
    for page in pages:
        for sample in page:
            labels = sample.labels
            if "group" not in labels:
                continue
            groups.setdefault(labels["group"], ShareNumbers()).note(sample)
            if "topic" in labels and labels.get("partition", "").isdigit():
                where = TopicPartition(labels["topic"], int(labels["partition"]))
                partitions.setdefault((labels["group"], where), ShareNumbers()).note(sample)
    return Numbers(groups, partitions)


async def _read(address: str, settings: Settings) -> str:
    """Return the page at /metrics.

    Raises `Refused`, `SecurityError`, `OSError`, `TimeoutError` or `ValueError`.
    """
    parts = urlsplit(address if "//" in address else f"//{address}")
    host, path = parts.hostname or "", parts.path.rstrip("/") or "/metrics"
    secure = parts.scheme == "https"
    context = await settings.security.https_context() if secure else None
    head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{_token(settings)}\r\n"
    async with asyncio.timeout(TIMEOUT_S):
        port = parts.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        try:
            writer.write(head.encode())
            data = bytearray()
            while chunk := await reader.read(1 << 16):
                data += chunk
                if len(data) > TEXT_BYTES_MAX:
                    raise ValueError(f"{address} answers with more than {TEXT_BYTES_MAX} bytes")
        finally:
            writer.close()
    return _page(address, bytes(data))


def _token(settings: Settings) -> str:
    """Return the header line with the bearer token, if there is one. Raises `Refused`."""
    name = settings.metrics_token_file
    if not name:
        return ""
    try:
        words = Path(name).read_text().split()
    except (OSError, ValueError):
        raise Refused(f"{TOKEN_PROPERTY} {name} cannot be read") from None
    if not words:
        raise Refused(f"{TOKEN_PROPERTY} {name} is empty")
    return f"Authorization: Bearer {words[0]}\r\n"


def _page(address: str, response: bytes) -> str:
    """Return the body of a response. Raises `Refused` or `ValueError`."""
    head, _, body = response.partition(b"\r\n\r\n")
    match head.split(b" ", 2)[1:2]:
        case [b"200"]:
            return body.decode(errors="replace")
        case [b"401"]:
            raise Refused(f"it needs another token. Set {TOKEN_PROPERTY} in the client properties")
        case [b"403"]:
            raise Refused("it needs TLS. Name it as https://HOST:PORT")
    raise ValueError(f"{address} serves no metrics")
