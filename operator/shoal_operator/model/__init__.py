"""Pure functions from custom resources to Kubernetes manifests."""
