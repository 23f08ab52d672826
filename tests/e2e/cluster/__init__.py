"""A Kubernetes cluster for the tests: `kind` where a Docker engine answers, else a real
single-node Kubernetes in namespaces of its own. See docs/local-kubernetes.md."""
