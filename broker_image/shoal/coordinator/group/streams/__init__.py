"""Streams groups: Kafka Streams applications whose tasks the coordinator assigns (KIP-1071)."""
