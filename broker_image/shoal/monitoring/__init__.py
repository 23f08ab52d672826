"""The health of a cluster from its brokers' metrics, and what to do about it."""
