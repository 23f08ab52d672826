"""The state of the cluster as pages show it, from brokers, Kubernetes and Prometheus."""
