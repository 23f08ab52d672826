"""Writes docs/metrics.md: every metric of brokers and operator.

Names, types and meanings of the brokers' metrics come from the `/metrics` of a broker that this
program starts, and those of the operator's from its module. Labels and units are in the tables
below; `tests/compat/pages/test_metrics_page.py` compares them with what a broker serves.

Use: `python tools/metrics_page.py > docs/metrics.md`
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import urllib.request
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.metrics import MetricWrapperBase
from shoal_operator import metrics as operator_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

INTRODUCTION = """\
# Metrics

This page lists every metric in Prometheus' format. It is generated from the code. If a metric
exists in Kafka, you find it under the name that the Prometheus JMX exporter gives it there: domain,
type and name, joined by `_`.

* **Brokers** serve `/metrics` with `shoal server --metrics HOST:PORT`; on Kubernetes, on port 9404
  of each pod. [Security](security.md#metrics) describes TLS and tokens. `/healthz` and `/readyz`
  are on the same port.
* **The operator** serves `/metrics` on port 8080.
* **Spark** serves metrics of its own: see [Progress and metrics](spark.md#progress-and-metrics).

Without a unit, a metric counts what its meaning names. A counter (`…_total`) only grows, and starts
at 0 when the process starts, so use `rate()` or `increase()`. A pair of `…_sum` and `…_count` gives
the sum and the number of measurements; for example, `rate(x_sum[5m]) / rate(x_count[5m])` is their
mean. You see no sample of a metric until there is something to report, except for dead letters of a
group that is read and requests to the object store, which start with samples of 0.

If you do not know which metrics to watch, [Runbooks](runbooks.md) lists the alerts of the chart,
and [Queue features](queues.md#monitoring) the metrics of a queue.
"""


class Metric(NamedTuple):
    """A family of samples: its name with the suffix of a counter, its type and its meaning."""

    name: str
    kind: str
    description: str


class Section(NamedTuple):
    """A part of the page: a heading and the metrics whose names match."""

    title: str
    pattern: str


#: The first section whose pattern matches a name has the metric.
SECTIONS = (
    Section("Share groups", r"shoal_share_group_|kafka_server_ShareGroupMetrics_"),
    Section("Share partitions", r"shoal_share_partition_|kafka_server_SharePartitionMetrics_"),
    Section("Share sessions and fetches", r"kafka_server_(ShareSessionCache|DelayedShareFetch)"),
    Section("Tiered storage", r"kafka_server_BrokerTopicMetrics_(Build)?Remote|shoal_remote_"),
    Section("Topics", r"kafka_server_BrokerTopicMetrics_"),
    Section("Partitions, logs and disk", r"kafka_server_ReplicaManager_|(kafka|shoal)_(log|disk)_"),
    Section("Controllers", r"kafka_controller_|kafka_server_raft_"),
    Section("Replication throttles", r"kafka_server_(Leader|Follower)Replication_"),
    Section(
        "Coordinators",
        r"(kafka_server|shoal)_(group|share|transaction)_coordinator_|kafka_coordinator_",
    ),
    Section(
        "Requests",
        r"kafka_network_|shoal_network_|kafka_server_(DelayedOperationPurgatory|FetchSessionCache)_",
    ),
    Section("Key ranges", r"shoal_key_range_"),
    Section("Connections and logins", r"kafka_server_socket_server_metrics_"),
    Section("Certificates", r"shoal_listener_"),
    Section("Client quotas", r"kafka_server_(Produce|Fetch|Request)_"),
    Section("Process", r"process_"),
)

_PARTITION = ("group", "topic", "partition")
#: Labels of the first pattern that matches a name. `le` of histograms is not listed.
LABELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"shoal_share_partition_not_due_records", (*_PARTITION, "within")),
    (r"shoal_share_partition_header_failures_total", (*_PARTITION, "reason")),
    (r"shoal_share_partition_look_ahead_full", (*_PARTITION, "config")),
    (r"shoal_share_partition_|kafka_server_SharePartitionMetrics_", _PARTITION),
    (r"shoal_share_group_held", ("group", "why")),
    (r"shoal_share_group_tenant_records", ("group", "tenant", "state")),
    (r"shoal_share_group_limit_loans", ("group", "state")),
    (r"shoal_share_group_dead_letter_failures_total", ("group", "reason")),
    (r"shoal_share_group_", ("group",)),
    (r"kafka_server_ShareGroupMetrics_RecordAcknowledgements", ("ackType",)),
    (r"kafka_server_ShareGroupMetrics_", ("group",)),
    (r"kafka_server_BrokerTopicMetrics_Replication", ()),
    (r"kafka_server_BrokerTopicMetrics_", ("topic",)),
    (r"shoal_remote_store_", ("operation",)),
    (r"kafka_network_RequestMetrics_RequestsPerSec", ("request", "version")),
    (r"kafka_network_RequestMetrics_ErrorsPerSec", ("request", "error")),
    (r"kafka_network_RequestMetrics_", ("request",)),
    (r"kafka_server_(Produce|Fetch|Request)_", ("user", "client_id")),
    (r"kafka_server_group_coordinator_metrics_group_count", ("protocol",)),
    (r"kafka_server_group_coordinator_metrics_\w+_group_count", ("state",)),
    (r"kafka_server_\w+_coordinator_metrics_num_partitions", ("state",)),
    (r"kafka_server_share_coordinator_metrics_last_pruned_offset", ("topic", "partition")),
    (r"kafka_server_DelayedOperationPurgatory_", ("delayedOperation",)),
    (r"kafka_server_socket_server_metrics_", ("listener",)),
    (r"kafka_log_Log_", ("topic", "partition")),
    (r"shoal_listener_\w*certificate_info", ("listener", "fingerprint")),
    (r"shoal_listener_", ("listener",)),
)

#: Units of the first pattern that is in a name. Other metrics count what their meaning names.
UNITS = (
    (r"timestamp_seconds", "Unix time, s"),
    (r"_seconds", "s"),
    (r"(Ms|_ms)_count|Ratio_count|operator_reconcile.*_count", ""),
    (r"(Ms|_ms)(_sum)?$|throttle_time_total", "ms"),
    (r"Ratio_sum|Request_request_time", "%"),
    (r"byte_rate", "bytes/s"),
    (r"[Bb]ytes?(In|Out|PerSec|_total|$)|kafka_log_Log_Size|MemoryPool|resident_memory", "bytes"),
    (r"idle_ratio", "0 to 1"),
    (r"_info$|_paused$|_full$|_leader$|_limited$", "1 or 0"),
    (r"Offset$|_offset$|raft_metrics_high_watermark", "offset"),
)


def parse_broker_metrics(text: str) -> list[Metric]:
    """Return the metrics in the text of a broker's `/metrics`."""
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    return [Metric(name, kind, helps[name]) for name, kind in kinds]


def list_operator_metrics() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    """Yield the operator's metrics and their labels."""
    for made in vars(operator_metrics).values():
        if isinstance(made, MetricWrapperBase):
            (family,) = made.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            # The library has no public name for them.
            names = tuple(made._labelnames)  # noqa: SLF001
            yield Metric(name, family.type, family.documentation), names


def find_labels(name: str) -> tuple[str, ...]:
    """Return the labels of a broker's metric."""
    return next((names for pattern, names in LABELS if re.match(pattern, name)), ())


def find_unit(name: str) -> str:
    """Return the unit of a metric, empty for a count."""
    return next((unit for pattern, unit in UNITS if re.search(pattern, name)), "")


def build_page(text: str) -> str:
    """Return the page for a broker that serves this text."""
    by_section: dict[str, list[Metric]] = {section.title: [] for section in SECTIONS}
    for metric in parse_broker_metrics(text):
        titles = [s.title for s in SECTIONS if re.match(s.pattern, metric.name)]
        if not titles:
            raise ValueError(f"no section of SECTIONS has {metric.name}")
        by_section[titles[0]].append(metric)
    lines = [INTRODUCTION, "## Brokers"]
    for title, metrics in by_section.items():
        lines += ["", f"### {title}", ""]
        lines += _build_table((metric, find_labels(metric.name)) for metric in metrics)
    lines += ["", "## Operator", "", *_build_table(list_operator_metrics())]
    return "\n".join(lines) + "\n"


def _build_table(rows: Iterable[tuple[Metric, tuple[str, ...]]]) -> Iterator[str]:
    yield "| metric | type, unit | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    for metric, names in rows:
        shown = ", ".join(f"`{name}`" for name in names)
        kind = ", ".join(word for word in (metric.kind, find_unit(metric.name)) if word)
        cells = (f"`{metric.name}`", kind, shown, metric.description)
        yield "| " + " | ".join(cells) + " |"


def scrape_broker() -> str:
    """Return the text of the `/metrics` of a new broker."""
    command = [sys.executable, "-m", "shoal.cli", "server", "--listener=127.0.0.1:0"]
    with tempfile.TemporaryDirectory() as folder:
        broker = subprocess.Popen(
            [*command, "--metrics=127.0.0.1:0", f"--data-dir={folder}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert broker.stdout is not None
            url = ""
            for line in broker.stdout:
                if match := re.search(r"Metrics are at (\S+?)\.?$", line):
                    url = match[1]
                if line.startswith("Ready"):
                    break
            with urllib.request.urlopen(url, timeout=60) as answer:
                return str(answer.read().decode())
        finally:
            broker.terminate()
            broker.communicate()


if __name__ == "__main__":
    print(build_page(scrape_broker()), end="")
