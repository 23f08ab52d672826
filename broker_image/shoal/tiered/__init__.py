"""Tiered storage: segments of logs in an object store (KIP-405).

This package has the formats and the decisions. `server/tiered/` runs them.
"""
