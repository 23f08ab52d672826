"""A Kubernetes cluster for the tests: `kind` if a Docker engine answers, else a real single-node
Kubernetes in separate namespaces. See docs/local-kubernetes.md."""
