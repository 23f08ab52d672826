"""Manifests from specs: pure functions, custom resource in, Kubernetes objects out."""
