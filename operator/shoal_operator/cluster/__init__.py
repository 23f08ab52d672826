"""The reconciler of QueueClusters: observe, decide, apply, report.

`reconciler` runs the steps. `observation` reads Kubernetes' objects and the brokers, `decision`
is pure, `objects` writes Kubernetes' objects, and `status` writes the resource's status.
"""
