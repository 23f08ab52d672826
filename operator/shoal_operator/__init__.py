"""The Kubernetes operator: it observes resources and brokers, decides purely, and applies.

`main` wires watches to `workers`; a worker a QueueCluster reconciles the cluster itself
(`clusters`, `roller`), its topics (`topics`), share groups (`groups`) and ShareConsumers
(`consumers`, `scaling`). `model` builds manifests and knows no I/O; `kube` and `brokers` are the
only doors to the API server and to the brokers.
"""

__version__ = "0.1.0"
