"""Connections to brokers, the cluster as its metadata describe it, and group sessions."""
