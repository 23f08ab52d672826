"""ShareConsumers: their workloads and how many of them run."""
