"""The Kubernetes operator: it observes resources and brokers, decides, and applies.

`main` passes watch events to `runtime`. For each QueueCluster, `runtime` runs a `reconcile_loop`
for each kind of resource:

* the cluster itself (`cluster`, `roller`),
* its topics (`topics`),
* its share groups (`groups`, `group_monitor`),
* its ShareConsumers (`consumers`, `scaling`, `workloads`).

Decisions are pure functions. `model` builds manifests without I/O. Only `kube` calls the API
server, and only `brokers` calls the brokers.
"""

__version__ = "0.2.0"
