"""Calls to brokers: observing pods, rolling, moving replicas."""
