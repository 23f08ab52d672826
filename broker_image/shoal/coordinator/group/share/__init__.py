"""Membership and assignment of share groups (KIP-932)."""
