"""Shoal: a work queue for Kubernetes that speaks Kafka. This is the broker and its tools."""

__version__ = "0.2.0"
