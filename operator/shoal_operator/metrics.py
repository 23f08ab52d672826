"""The operator's own metrics, in Prometheus form."""

import contextlib

from prometheus_client import Counter, Gauge, Histogram

RECONCILES = Counter("shoal_operator_reconciles", "Reconciliations begun.", ["kind"])
ERRORS = Counter("shoal_operator_errors", "Reconciliations that failed and are retried.", ["kind"])
DURATION = Histogram(
    "shoal_operator_reconcile_seconds",
    "Duration of a reconciliation.",
    ["kind"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 30),
)
QUEUE = Gauge("shoal_operator_queue", "Resources that wait to be reconciled.", ["kind"])
API_CALLS = Counter("shoal_operator_api_calls", "Calls to the API server.", ["verb"])
BROKER_CALLS = Counter("shoal_operator_broker_calls", "Requests to brokers.", ["api"])
LEADER = Gauge("shoal_operator_leader", "1 while this replica is the one that acts.")
LAG = Gauge("shoal_share_group_lag", "Lag of a share group.", ["namespace", "share_group"])
WANTED = Gauge("shoal_share_consumer_wanted", "Consumers wanted.", ["namespace", "share_consumer"])
_GROUP = ("namespace", "share_group")
AVAILABLE = Gauge("shoal_share_group_available", "Records that can be delivered now.", _GROUP)
IN_FLIGHT = Gauge("shoal_share_group_in_flight", "Records that members hold.", _GROUP)
_OF_GROUPS = (LAG, AVAILABLE, IN_FLIGHT)


def forget_group(namespace: str, share_group: str) -> None:
    """Drop the samples of a ShareGroup whose lag is not known any more."""
    for gauge in _OF_GROUPS:
        with contextlib.suppress(KeyError):
            gauge.remove(namespace, share_group)


def forget_all() -> None:
    """Drop the samples of all ShareGroups and ShareConsumers: another replica acts."""
    for gauge in (*_OF_GROUPS, WANTED):
        gauge.clear()
