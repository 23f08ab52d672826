"""Producers: batches, partitions and transactions."""
