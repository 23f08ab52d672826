"""The operator's Prometheus metrics."""

import contextlib

from prometheus_client import Counter, Gauge, Histogram

RECONCILES = Counter("shoal_operator_reconciles", "Reconciliations that were started.", ["kind"])
ERRORS = Counter("shoal_operator_errors", "Reconciliations that failed and are retried.", ["kind"])
DURATION = Histogram(
    "shoal_operator_reconcile_seconds",
    "Duration of a reconciliation.",
    ["kind"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 30),
)
QUEUE = Gauge("shoal_operator_queue", "Resources in the queue.", ["kind"])
API_CALLS = Counter("shoal_operator_api_calls", "Requests to the API server.", ["verb"])
BROKER_CALLS = Counter("shoal_operator_broker_calls", "Requests to brokers.", ["api"])
LEADER = Gauge("shoal_operator_leader", "1 while this replica is the leader.")
LAG = Gauge("shoal_share_group_lag", "Lag of a share group.", ["namespace", "share_group"])
WANTED = Gauge(
    "shoal_share_consumer_wanted", "Wanted number of consumers.", ["namespace", "share_consumer"]
)
_CONSUMER = ("namespace", "share_consumer")
READY = Gauge("shoal_share_consumer_ready", "Ready consumers, or running executors.", _CONSUMER)
MAXIMUM = Gauge(
    "shoal_share_consumer_maximum",
    "Maximum number of consumers, by the spec, a schedule and the record locks.",
    _CONSUMER,
)
DUE = Gauge("shoal_share_consumer_due", "Records by which consumers are scaled.", _CONSUMER)
_OF_CONSUMERS = (WANTED, READY, MAXIMUM, DUE)
AUTHORITY_EXPIRY = Gauge(
    "shoal_certificate_authority_expiry_timestamp_seconds",
    "Unix time at which a certificate authority of a QueueCluster expires.",
    ["namespace", "queue_cluster", "authority"],
)
_GROUP = ("namespace", "share_group")
AVAILABLE = Gauge("shoal_share_group_available", "Records that can be delivered now.", _GROUP)
IN_FLIGHT = Gauge("shoal_share_group_in_flight", "Records that members have acquired.", _GROUP)
_OF_GROUPS = (LAG, AVAILABLE, IN_FLIGHT)


def forget_group(namespace: str, share_group: str) -> None:
    """Remove the samples of a ShareGroup whose lag is no longer known."""
    for gauge in _OF_GROUPS:
        with contextlib.suppress(KeyError):
            gauge.remove(namespace, share_group)


def forget_consumer(namespace: str, share_consumer: str) -> None:
    """Remove the samples of a ShareConsumer that is gone."""
    for gauge in _OF_CONSUMERS:
        with contextlib.suppress(KeyError):
            gauge.remove(namespace, share_consumer)


def forget_all() -> None:
    """Remove the samples of all resources, which the leader reports."""
    for gauge in (*_OF_GROUPS, *_OF_CONSUMERS, AUTHORITY_EXPIRY):
        gauge.clear()
