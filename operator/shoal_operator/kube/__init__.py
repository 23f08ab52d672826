"""The Kubernetes API: objects, events and leases."""
