"""Consumers: fetching, group membership, positions, individual commits and key ranges."""
