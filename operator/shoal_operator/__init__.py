"""The Kubernetes operator: it observes resources and brokers, decides, and applies.

`main` passes watch events to `runtime`, which runs a `reconcile_loop` for each kind of resource of
each QueueCluster: the cluster itself (`cluster`, `roller`), its topics (`topics`), share groups
(`groups`, `group_monitor`) and ShareConsumers (`consumers`, `scaling`, `workloads`). Decisions are
pure functions. `model` builds manifests without I/O. Only `kube` calls the API server, and only
`brokers` calls the brokers.
"""

__version__ = "0.1.0"
