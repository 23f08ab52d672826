"""Configs, client quotas and the metrics of clients (KIP-714)."""
