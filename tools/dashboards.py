"""Writes the chart's Grafana dashboards: cluster, queues, key ranges and scaling.

`tests/compat/pages/test_monitoring_queries.py` checks every query against what brokers and the
operator serve.

Use: `python tools/dashboards.py helm/shoal/dashboards`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

#: Width of the grid, and width and height of a panel.
GRID, WIDTH, HEIGHT = 24, 8, 8
#: Labels of a cluster, which every panel of brokers filters by.
CLUSTER = 'namespace=~"$namespace",shoal_dev_cluster=~"$cluster"'
#: Labels of resources of the operator.
RESOURCES = 'namespace=~"$namespace"'


class Panel(NamedTuple):
    """One graph: a title, a unit of Grafana, and queries with the names of their lines.

    In queries, CLUSTER and RESOURCES stand for the labels above.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def make_panel(title: str, query: str, legend: str, unit: str = "short") -> Panel:
    return Panel(title, unit, ((query, legend),))


_BROKER = "{{pod}}"
_GROUP = "{{group}}"
_TOPICS = "kafka_server_BrokerTopicMetrics_"
_REPLICAS = "kafka_server_ReplicaManager_"
_CONTROLLER = "kafka_controller_KafkaController_"

CLUSTER_PANELS = (
    make_panel("Brokers", f"max({_CONTROLLER}ActiveBrokerCount{{CLUSTER}})", "active"),
    make_panel(
        "Active controllers",
        f"sum by (shoal_dev_cluster) ({_CONTROLLER}ActiveControllerCount{{CLUSTER}})",
        "{{shoal_dev_cluster}}",
    ),
    Panel(
        "Partitions in trouble",
        "short",
        (
            (f"max({_CONTROLLER}OfflinePartitionsCount{{CLUSTER}})", "offline"),
            (f"sum({_REPLICAS}UnderMinIsrPartitionCount{{CLUSTER}})", "under min ISR"),
            (f"sum({_REPLICAS}UnderReplicatedPartitions{{CLUSTER}})", "under-replicated"),
        ),
    ),
    make_panel(
        "Bytes in",
        f"sum by (pod) (rate({_TOPICS}BytesInPerSec_total{{CLUSTER}}[$__rate_interval]))",
        _BROKER,
        "Bps",
    ),
    make_panel(
        "Bytes out",
        f"sum by (pod) (rate({_TOPICS}BytesOutPerSec_total{{CLUSTER}}[$__rate_interval]))",
        _BROKER,
        "Bps",
    ),
    make_panel(
        "Records in",
        f"sum by (topic) (rate({_TOPICS}MessagesInPerSec_total{{CLUSTER}}[$__rate_interval]))",
        "{{topic}}",
        "cps",
    ),
    make_panel("Partitions", f"{_REPLICAS}PartitionCount{{CLUSTER}}", _BROKER),
    make_panel("Leaders", f"{_REPLICAS}LeaderCount{{CLUSTER}}", _BROKER),
    make_panel(
        "Volume used",
        "1 - shoal_log_dir_usable_bytes{CLUSTER} / shoal_log_dir_total_bytes{CLUSTER}",
        _BROKER,
        "percentunit",
    ),
    make_panel(
        "Requests",
        "sum by (request) (rate(kafka_network_RequestMetrics_RequestsPerSec_total{CLUSTER}"
        "[$__rate_interval]))",
        "{{request}}",
        "reqps",
    ),
    make_panel(
        "Produce, 99th percentile",
        "histogram_quantile(0.99, sum by (pod, le) (rate(kafka_network_RequestMetrics_TotalTimeMs"
        '_bucket{CLUSTER,request="Produce"}[$__rate_interval])))',
        _BROKER,
        "ms",
    ),
    make_panel(
        "Failed requests",
        "sum by (request, error) (rate(kafka_network_RequestMetrics_ErrorsPerSec_total"
        '{CLUSTER,error!="NONE"}[$__rate_interval]))',
        "{{request}} {{error}}",
        "reqps",
    ),
    make_panel(
        "CPU",
        "rate(process_cpu_seconds_total{CLUSTER}[$__rate_interval])",
        _BROKER,
        "percentunit",
    ),
    make_panel("Memory", "process_resident_memory_bytes{CLUSTER}", _BROKER, "bytes"),
    make_panel(
        "Connections",
        "sum by (pod) (kafka_server_socket_server_metrics_connection_count{CLUSTER})",
        _BROKER,
    ),
    Panel(
        "Tiered storage: bytes",
        "bytes",
        (
            (f"sum({_TOPICS}RemoteLogSizeBytes{{CLUSTER}})", "in the store"),
            (f"sum({_TOPICS}RemoteCopyLagBytes{{CLUSTER}})", "not copied yet"),
        ),
    ),
    Panel(
        "Tiered storage: requests",
        "reqps",
        (
            (
                "sum by (operation) (rate(shoal_remote_store_requests_total{CLUSTER}"
                "[$__rate_interval]))",
                "{{operation}}",
            ),
            (
                "sum by (operation) (rate(shoal_remote_store_failures_total{CLUSTER}"
                "[$__rate_interval]))",
                "{{operation}} failed",
            ),
        ),
    ),
)

QUEUE_PANELS = (
    make_panel("Lag", "sum by (group) (shoal_share_partition_lag{CLUSTER})", _GROUP),
    make_panel(
        "Records acquired",
        "sum by (group) (rate(shoal_share_partition_acquired_records_total{CLUSTER}"
        "[$__rate_interval]))",
        _GROUP,
        "cps",
    ),
    make_panel(
        "Acknowledgements",
        "sum by (ackType) (rate(kafka_server_ShareGroupMetrics_RecordAcknowledgementsPerSec_total"
        "{CLUSTER}[$__rate_interval]))",
        "{{ackType}}",
        "cps",
    ),
    make_panel(
        "Records in flight",
        "sum by (group) (shoal_share_partition_locked_records{CLUSTER})",
        _GROUP,
    ),
    make_panel(
        "Oldest lock",
        "max by (group) (shoal_share_partition_oldest_lock_age_seconds{CLUSTER})",
        _GROUP,
        "s",
    ),
    make_panel(
        "Expired locks",
        "sum by (group) (rate(kafka_server_SharePartitionMetrics_AcquisitionLockTimeoutPerSec_total"
        "{CLUSTER}[$__rate_interval]))",
        _GROUP,
        "cps",
    ),
    make_panel(
        "Why delivery is held",
        "sum by (group, why) (shoal_share_group_held{CLUSTER})",
        "{{group}}: {{why}}",
    ),
    Panel(
        "Records that wait",
        "short",
        (
            ("sum(shoal_share_partition_backing_off_records{CLUSTER})", "back-off"),
            ("sum(shoal_share_partition_delayed_records{CLUSTER})", "delayed"),
            ("sum(shoal_share_partition_held_by_key_records{CLUSTER})", "behind their key"),
            ("sum(shoal_share_partition_behind_dead_letters_records{CLUSTER})", "behind letters"),
            ("sum(shoal_share_partition_archiving_records{CLUSTER})", "letter being written"),
        ),
    ),
    make_panel(
        "Redeliveries",
        "sum by (group) (rate(shoal_share_partition_redelivered_records_total{CLUSTER}"
        "[$__rate_interval]))",
        _GROUP,
        "cps",
    ),
    make_panel(
        "Dead letters a minute",
        "sum by (group) (shoal_share_group_dead_letters_last_minute{CLUSTER})",
        _GROUP,
    ),
    make_panel(
        "Dead letters that cannot be written",
        "sum by (group, reason) (rate(shoal_share_group_dead_letter_failures_total{CLUSTER}"
        "[$__rate_interval]))",
        "{{group}}: {{reason}}",
        "cps",
    ),
    make_panel(
        "Redriven letters",
        "sum by (group) (increase(shoal_share_group_redriven_total{CLUSTER}[$__rate_interval]))",
        _GROUP,
    ),
)

_COORDINATOR = "shoal_group_coordinator_"
KEY_RANGE_PANELS = (
    make_panel(
        "Partitions shared by key ranges",
        f"sum by (pod) ({_COORDINATOR}key_range_shared_partitions{{CLUSTER}})",
        _BROKER,
    ),
    make_panel(
        "Finished above the stable offset",
        f"sum by (pod) ({_COORDINATOR}individual_commit_finished_offsets{{CLUSTER}})",
        _BROKER,
    ),
    make_panel(
        "Oldest gap below finished offsets",
        f"max by (pod) ({_COORDINATOR}individual_commit_oldest_gap_seconds{{CLUSTER}})",
        _BROKER,
        "s",
    ),
    Panel(
        "Bytes of key-range fetches",
        "Bps",
        (
            (
                "sum(rate(shoal_key_range_looked_bytes_total{CLUSTER}[$__rate_interval]))",
                "looked at",
            ),
            ("sum(rate(shoal_key_range_sent_bytes_total{CLUSTER}[$__rate_interval]))", "sent"),
        ),
    ),
    Panel(
        "Reads of key ranges",
        "reqps",
        (
            (
                "sum(rate(shoal_key_range_cache_hit_total{CLUSTER}[$__rate_interval]))",
                "from the cache",
            ),
            (
                "sum(rate(shoal_key_range_cache_miss_total{CLUSTER}[$__rate_interval]))",
                "from the log",
            ),
        ),
    ),
    make_panel(
        "Cache of hashes",
        "sum by (pod) (shoal_key_range_cache_bytes{CLUSTER})",
        _BROKER,
        "bytes",
    ),
    Panel(
        "Transactions by key ranges",
        "short",
        (
            (f"sum({_COORDINATOR}key_range_open_commits{{CLUSTER}})", "open partitions"),
            (f"sum({_COORDINATOR}key_range_waiting_commits{{CLUSTER}})", "wait for their turn"),
        ),
    ),
    make_panel(
        "Transactions refused by their order",
        f"sum(increase({_COORDINATOR}key_range_refused_order_count_total{{CLUSTER}}"
        "[$__rate_interval]))",
        "refused",
    ),
    Panel(
        "Records done again",
        "cps",
        (
            (
                f"sum(rate({_COORDINATOR}key_range_redone_records_total{{CLUSTER}}"
                "[$__rate_interval]))",
                "by members without key ranges",
            ),
            (
                f"sum(rate({_COORDINATOR}key_range_aborted_records_total{{CLUSTER}}"
                "[$__rate_interval]))",
                "after aborts",
            ),
        ),
    ),
)

SCALING_PANELS = (
    Panel(
        "Consumers",
        "short",
        (
            ("shoal_share_consumer_wanted{RESOURCES}", "{{share_consumer}} wanted"),
            ("shoal_share_consumer_ready{RESOURCES}", "{{share_consumer}} ready"),
            ("shoal_share_consumer_maximum{RESOURCES}", "{{share_consumer}} maximum"),
        ),
    ),
    make_panel("Records that are due", "shoal_share_consumer_due{RESOURCES}", "{{share_consumer}}"),
    make_panel("Lag", "shoal_share_group_lag{RESOURCES}", "{{share_group}}"),
    make_panel("Available", "shoal_share_group_available{RESOURCES}", "{{share_group}}"),
    make_panel("In flight", "shoal_share_group_in_flight{RESOURCES}", "{{share_group}}"),
    make_panel(
        "Lag for each ready consumer",
        "shoal_share_consumer_due{RESOURCES} / (shoal_share_consumer_ready{RESOURCES} > 0)",
        "{{share_consumer}}",
    ),
    make_panel("Leading operators", "sum(shoal_operator_leader)", "leaders"),
    make_panel(
        "Reconciliations",
        "sum by (kind) (rate(shoal_operator_reconciles_total[$__rate_interval]))",
        "{{kind}}",
        "ops",
    ),
    make_panel(
        "Failed reconciliations",
        "sum by (kind) (rate(shoal_operator_errors_total[$__rate_interval]))",
        "{{kind}}",
        "ops",
    ),
    make_panel(
        "Reconciliation, 99th percentile",
        "histogram_quantile(0.99, sum by (kind, le) (rate(shoal_operator_reconcile_seconds_bucket"
        "[$__rate_interval])))",
        "{{kind}}",
        "s",
    ),
    make_panel(
        "Requests to the API server",
        "sum by (verb) (rate(shoal_operator_api_calls_total[$__rate_interval]))",
        "{{verb}}",
        "reqps",
    ),
    make_panel(
        "Requests to brokers",
        "sum by (api) (rate(shoal_operator_broker_calls_total[$__rate_interval]))",
        "{{api}}",
        "reqps",
    ),
)
_OF_BROKERS = (
    ("namespace", f"label_values({_REPLICAS}PartitionCount, namespace)"),
    ("cluster", f"label_values({_REPLICAS}PartitionCount{{{RESOURCES}}}, shoal_dev_cluster)"),
)
_OF_OPERATOR = (("namespace", "label_values(shoal_share_consumer_wanted, namespace)"),)
#: Dashboards by the name of their file: title, panels and variables.
DASHBOARDS = {
    "shoal-cluster": ("Shoal: cluster", CLUSTER_PANELS, _OF_BROKERS),
    "shoal-queues": ("Shoal: queues", QUEUE_PANELS, _OF_BROKERS),
    "shoal-key-ranges": ("Shoal: key ranges", KEY_RANGE_PANELS, _OF_BROKERS),
    "shoal-scaling": ("Shoal: scaling", SCALING_PANELS, _OF_OPERATOR),
}


def build_dashboard(name: str) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it."""
    title, panels, variables = DASHBOARDS[name]
    return {
        "title": title,
        "uid": name,
        "tags": ["shoal"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                *(_build_variable(*variable) for variable in variables),
            ]
        },
        "panels": [_build_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _build_source() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${datasource}"}


def _build_variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _build_source(),
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _build_panel(number: int, panel: Panel) -> dict[str, Any]:
    per_row = GRID // WIDTH
    place = {
        "x": number % per_row * WIDTH,
        "y": number // per_row * HEIGHT,
        "w": WIDTH,
        "h": HEIGHT,
    }
    targets = [
        {
            "refId": chr(ord("A") + index),
            "expr": query.replace("CLUSTER", CLUSTER).replace("RESOURCES", RESOURCES),
            "legendFormat": legend,
        }
        for index, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": _build_source(),
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def format_text(name: str) -> str:
    """Return the file of a dashboard."""
    return json.dumps(build_dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    for name in DASHBOARDS:
        Path(sys.argv[1], f"{name}.json").write_text(format_text(name))
