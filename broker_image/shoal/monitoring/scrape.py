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
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.groups import SHARE, GroupDescription
from shoal.client.errors import ClientError, KafkaError, SecurityError
from shoal.client.net.cluster import TopicPartition
from shoal.monitoring.exposition import parse_samples
from shoal.monitoring.http_page import get_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.samples import Sample

    from shoal.client.admin.admin import Admin
    from shoal.client.settings import Settings

LISTENER_CONFIG, PROTOCOL_CONFIG = "shoal.metrics.listener", "shoal.metrics.security.protocol"
TOKEN_PROPERTY = "shoal.metrics.token.file"
_COUNTS = {
    "shoal_share_partition_locked_records": "in_flight",
    "shoal_share_partition_acquired_records_total": "acquired",
    "shoal_share_partition_redelivered_records_total": "redelivered",
    "shoal_share_partition_backing_off_records": "backing_off",
    "shoal_share_partition_archiving_records": "archiving",
    "shoal_share_partition_held_by_key_records": "held_by_key",
    "shoal_share_partition_delayed_records": "delayed",
    "shoal_share_partition_behind_limit_records": "behind_limits",
    "shoal_share_partition_keys_held_by_dead_letters": "keys_held",
    "shoal_share_group_dead_letters_total": "dead_lettered",
    "shoal_share_group_redriven_total": "redriven",
    "shoal_share_group_dead_letters_dropped_total": "dropped",
    "shoal_share_partition_header_failures_total": "header_failures",
}
_STOPPED = "shoal_share_group_held"
_PAUSED = "share.delivery.paused"
_TENANTS = "shoal_share_group_tenant_records"
_OLDEST_LOCK = "shoal_share_partition_oldest_lock_age_seconds"
_NEXT_DUE = "shoal_share_partition_next_due_timestamp_seconds"
_NAMES = frozenset({*_COUNTS, _STOPPED, _TENANTS, _OLDEST_LOCK, _NEXT_DUE})


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
    behind_limits: int = 0
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
        """Records that a key, a delay, a back-off, a limit of their tenant or an unwritten dead
        letter holds back."""
        held = self.held_by_key + self.delayed + self.behind_limits
        return self.backing_off + self.archiving + held

    def note(self, sample: Sample) -> None:
        """Add one sample of the group."""
        if sample.name == _OLDEST_LOCK:
            self.oldest_lock_age_s = max(self.oldest_lock_age_s, sample.value)
        elif sample.name == _NEXT_DUE:
            self.next_due_s = _choose_earlier(self.next_due_s, sample.value)
        elif sample.name == _STOPPED:
            self.stop_reasons |= {sample.labels.get("why", "")} if sample.value else frozenset()
        elif (name := _COUNTS.get(sample.name)) is not None:
            setattr(self, name, getattr(self, name) + int(sample.value))

    def add(self, numbers: ShareNumbers) -> None:
        """Add the numbers of other share partitions."""
        for name in _COUNTS.values():
            setattr(self, name, getattr(self, name) + getattr(numbers, name))
        self.oldest_lock_age_s = max(self.oldest_lock_age_s, numbers.oldest_lock_age_s)
        self.next_due_s = _choose_earlier(self.next_due_s, numbers.next_due_s)
        self.stop_reasons |= numbers.stop_reasons


def _choose_earlier(one_s: float | None, other_s: float | None) -> float | None:
    return min((s for s in (one_s, other_s) if s is not None), default=None)


class MetricsAccessError(Exception):
    """A broker does not show its metrics to this client."""


async def find_paused_groups(admin: Admin, groups: Iterable[GroupDescription]) -> set[str]:
    """Return the ids of the share groups whose config pauses delivery.

    This works without metrics too. Groups whose configs cannot be described are left out.
    """
    resources = [
        ConfigResource(ConfigResourceType.GROUP, g.group_id) for g in groups if g.type == SHARE
    ]
    configs = await admin.configs.describe(resources, keys=[_PAUSED]) if resources else {}
    return {
        resource.name
        for resource, entries in configs.items()
        if not isinstance(entries, KafkaError)
        and _PAUSED in entries
        and entries[_PAUSED].value == "true"
    }


async def find_metrics_addresses(admin: Admin) -> list[str]:
    """Return the brokers' metrics listeners as host:port, or https://host:port with TLS, without
    brokers that have none."""
    listeners = []
    for broker in (await admin.describe_cluster()).brokers:
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker.node_id))
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
            listeners.append(f"{scheme}{broker.host if everywhere else host}:{port}")
    return listeners


@dataclass(frozen=True, slots=True)
class ShareGroupMetrics:
    """The numbers of all share groups, and those of each share partition by group and partition.

    `tenants` are records of the busiest tenants by group, tenant and state: in-flight, available.
    """

    groups: Mapping[str, ShareNumbers]
    partitions: Mapping[tuple[str, TopicPartition], ShareNumbers]
    tenants: Mapping[str, Mapping[str, Counter[str]]] = field(default_factory=dict)


async def read_group_numbers(
    admin: Admin, listeners: list[str] | None, warn: Callable[[str], None]
) -> dict[str, ShareNumbers] | None:
    """Return the numbers by group id; see `read_numbers`."""
    metrics = await read_numbers(admin, listeners, warn)
    return None if metrics is None else dict(metrics.groups)


async def read_numbers(
    admin: Admin, requested: list[str] | None, warn: Callable[[str], None]
) -> ShareGroupMetrics | None:
    """Return the numbers, or None if no broker shows metrics to this client.

    `requested` are addresses of metrics listeners; the default is those of all brokers. `warn` gets
    a sentence for each broker that shows its metrics to others only.
    """
    pages = []
    try:
        listeners = requested or await find_metrics_addresses(admin)
    except ClientError:
        return None
    settings = admin.cluster.settings
    results = await asyncio.gather(
        *(_read_page(a, settings) for a in listeners), return_exceptions=True
    )
    for address, result in zip(listeners, results, strict=True):
        if isinstance(result, str):
            # Parsed only now: a large page would use up the time limit of the other requests.
            with contextlib.suppress(ValueError):
                pages.append(list(parse_samples(result, _NAMES)))
        elif isinstance(result, MetricsAccessError | SecurityError | ssl.SSLError):
            warn(f"{address} shows no metrics to this client: {result}.")
        elif not isinstance(result, OSError | TimeoutError | ValueError):
            raise result
    return _sum_samples(pages) if pages else None


async def read_pages(admin: Admin) -> dict[str, str | Exception]:
    """Return the metrics pages of all brokers by address, or why a page cannot be read."""
    listeners = await find_metrics_addresses(admin)
    settings = admin.cluster.settings
    results = await asyncio.gather(
        *(_read_page(a, settings) for a in listeners), return_exceptions=True
    )
    pages_by_address: dict[str, str | Exception] = {}
    for address, result in zip(listeners, results, strict=True):
        if not isinstance(result, str | Exception):
            raise result
        pages_by_address[address] = result
    return pages_by_address


def _sum_samples(pages: list[list[Sample]]) -> ShareGroupMetrics:
    groups: dict[str, ShareNumbers] = {}
    partitions: dict[tuple[str, TopicPartition], ShareNumbers] = {}
    tenants: dict[str, dict[str, Counter[str]]] = {}
    for page in pages:
        for sample in page:
            labels = sample.labels
            if "group" not in labels:
                continue
            if sample.name == _TENANTS:
                of_group = tenants.setdefault(labels["group"], {})
                states = of_group.setdefault(labels.get("tenant", ""), Counter())
                states[labels.get("state", "")] += int(sample.value)
                continue
            groups.setdefault(labels["group"], ShareNumbers()).note(sample)
            if "topic" in labels and labels.get("partition", "").isdigit():
                topic_partition = TopicPartition(labels["topic"], int(labels["partition"]))
                partitions.setdefault((labels["group"], topic_partition), ShareNumbers()).note(
                    sample
                )
    return ShareGroupMetrics(groups, partitions, tenants)


async def _read_page(address: str, settings: Settings) -> str:
    """Return the page at /metrics.

    Raises `MetricsAccessError`, `SecurityError`, `OSError`, `TimeoutError` or `ValueError`.
    """
    url = (address if "//" in address else f"http://{address}").rstrip("/")
    url = url if urlsplit(url).path else f"{url}/metrics"
    secure = url.startswith("https:")
    context = await settings.security.make_https_context() if secure else None
    page = await get_page(url, context=context, token=_read_token(settings))
    match page.status:
        case 200:
            return page.text
        case 401:
            raise MetricsAccessError(
                f"it needs another token. Set {TOKEN_PROPERTY} in the client properties"
            )
        case 403:
            raise MetricsAccessError("it needs TLS. Name it as https://HOST:PORT")
    raise ValueError(f"{address} serves no metrics")


def _read_token(settings: Settings) -> str:
    """Return the bearer token, empty if there is none. Raises `MetricsAccessError`."""
    name = settings.metrics_token_file
    if not name:
        return ""
    try:
        words = Path(name).read_text().split()
    except (OSError, ValueError):
        raise MetricsAccessError(f"{TOKEN_PROPERTY} {name} cannot be read") from None
    if not words:
        raise MetricsAccessError(f"{TOKEN_PROPERTY} {name} is empty")
    return words[0]
