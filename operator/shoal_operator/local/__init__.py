"""`shoal up`: the operator on one machine, without Kubernetes.

The operator's own reconcilers run unchanged. Their port to Kubernetes is `kube.KubeClient`, and
`api` is that port over a folder. What else Kubernetes does, `machine` does: it runs the pods of
StatefulSets and Deployments as processes (ADR 166).
"""

from shoal.protocol.hidden_modules import hide_modules

# The operator's log is JSON: what colours tracebacks takes a tenth of the time of a start.
with hide_modules("rich", "colorama", "better_exceptions"):
    import structlog as structlog
