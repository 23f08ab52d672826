"""Partitions of this broker, and how they follow and are followed."""
